"""Drive a real Neovim without a screen over its RPC, with real keys and its real event loop."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgpack

from tests.editors.texts import INSIDE, SHOP, inserted
from tests.editors.waiting import until

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "editors" / "nvim"
# Show every suggestion, whatever its probability and latency, because these tests are about editors.
EVERYTHING = (
    "{ settings = { ['completion.threshold'] = 0, ['completion.tokenThreshold'] = 0, "
    "['completion.deadline'] = 60000, ['actions.deadline'] = 60000 } }"
)

# Returns the virtual text on the screen with a highlight; needs no internal names of Neovim.
LOOK = """
local found = {}
for _, mark in ipairs(vim.api.nvim_buf_get_extmarks(0, -1, 0, -1, { details = true })) do
  local text, is_ours = {}, false
  local function take(chunks)
    local line = ""
    for _, chunk in ipairs(chunks) do
      if chunk[2] == HIGHLIGHT then
        is_ours, line = true, line .. chunk[1]
      end
    end
    table.insert(text, line)
  end
  if mark[4].virt_text then take(mark[4].virt_text) elseif mark[4].virt_lines then table.insert(text, "") end
  for _, chunks in ipairs(mark[4].virt_lines or {}) do take(chunks) end
  if is_ours then table.insert(found, table.concat(text, "\\n")) end
end
return #found > 0 and table.concat(found, "\\n") or ""
"""

SERVER = """
for _, pid in ipairs(vim.api.nvim_get_proc_children(vim.uv.os_getpid())) do
  local line = table.concat(vim.fn.readfile("/proc/" .. pid .. "/cmdline", "b"), " ")
  if line:find("serve", 1, true) then return pid end
end
return 0
"""


class Neovim:
    """One Neovim with the plugin, after `setup`."""

    def __init__(self, program: Path, folder: Path, environment: Mapping[str, str], options: str = "{}") -> None:
        """Start it in a folder. `options` is the argument of `setup`, in Lua."""
        self.folder = folder
        self._ids = itertools.count(1)
        init = folder / ".init.lua"
        init.write_text(
            f"vim.opt.rtp:prepend({json.dumps(str(PLUGIN))})\n"
            "vim.o.swapfile = false\n"
            "vim.g.notes = {}\n"
            "vim.notify = function(text) vim.g.notes = vim.list_extend(vim.g.notes, { text }) end\n"
            f'require("dg_lsp").setup({options})\n'
            'vim.keymap.set("i", "<C-l>", "<Plug>(dg-lsp-accept)")\n'
            'vim.keymap.set("i", "<C-j>", "<Plug>(dg-lsp-accept-word)")\n'
            'vim.keymap.set("i", "<C-g>l", "<Plug>(dg-lsp-accept-line)")\n'
            'vim.keymap.set("i", "<M-n>", "<Plug>(dg-lsp-next)")\n'
            'vim.keymap.set("i", "<M-p>", "<Plug>(dg-lsp-previous)")\n'
            'vim.keymap.set("i", "<C-x><C-d>", "<Plug>(dg-lsp-dismiss)")\n'
        )
        address = Path(environment["HOME"]) / f"nvim-{os.getpid()}-{id(self):x}.sock"
        self._process = subprocess.Popen(
            [program, "--clean", "--headless", "-u", init, "--listen", address],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._socket = socket.socket(socket.AF_UNIX)
        until(lambda: self._joined(address), "Neovim to listen")
        self._unpacker = msgpack.Unpacker(raw=False, unicode_errors="surrogateescape")

    def _joined(self, address: Path) -> bool:
        try:
            self._socket.connect(str(address))
        except OSError:
            return False
        return True

    def __enter__(self) -> Neovim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # It may have ended already.
        with contextlib.suppress(OSError, EOFError):
            self.call("nvim_command", "qall!")
        self._socket.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def has_ended(self) -> bool:
        """Whether Neovim's process has ended."""
        return self._process.poll() is not None

    def call(self, method: str, *arguments: object) -> Any:
        """Return the result of a function of Neovim's API; raise RuntimeError with its error."""
        request_id = next(self._ids)
        self._socket.sendall(msgpack.packb([0, request_id, method, arguments]))
        while True:
            for kind, *rest in self._unpacker:
                if kind == 1 and rest[0] == request_id:
                    if rest[1] is not None:
                        raise RuntimeError(rest[1])
                    return rest[2]
            if not (data := self._socket.recv(65536)):
                raise EOFError("Neovim has ended")
            self._unpacker.feed(data)

    def lua(self, code: str, *arguments: object) -> Any:
        """Return the result of Lua code."""
        return self.call("nvim_exec_lua", code, list(arguments))

    def type(self, keys: str) -> None:
        """Press keys, as a user would."""
        self.call("nvim_input", keys)

    def command(self, text: str) -> None:
        """Run an Ex command."""
        self.call("nvim_command", text)

    def edit(self, name: str, text: str, *, wait: bool = True) -> Path:
        """Write a file with exactly this text and open it; wait until the engine is ready for it."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
        self.command(f"edit! {name}")
        if wait:
            self.until_ready()
        return path

    def until_ready(self) -> None:
        """Wait until the engine is ready for the current buffer."""
        self.until("(require('dg_lsp').status() or {}).state == 'ready'", "the engine")

    def put(self, line: int, column: int) -> None:
        """Put the cursor before a byte of a line, both counted from 0, and enter insert mode."""
        self.leave()
        self.lua("vim.api.nvim_win_set_cursor(0, {...})", line + 1, column)
        at_end = self.lua("return #vim.api.nvim_get_current_line() <= ...", column)
        self.type("A" if at_end else "i")
        self.until("vim.api.nvim_get_mode().mode == 'i'", "insert mode")

    def begin(self, typed: str = "self.") -> str:
        """Open the shop, begin a line in its `add`, and return the suggestion."""
        self.edit("shop.py", SHOP)
        return self.ask(typed)

    def ask(self, typed: str = "self.") -> str:
        """Begin a line in the `add` of the shop, which is open; return the suggestion."""
        self.put(*INSIDE)
        self.type(f"<CR>{typed}")
        return self.until_ghost()

    def change(self, keys: str) -> str:
        """Press keys that change the text, and return what they insert."""
        before = self.text()
        self.type(keys)
        until(lambda: self.text() != before, f"another text after {keys}", tell=self.picture)
        return inserted(before, self.text())

    def leave(self, keys: str = "") -> None:
        """Leave insert mode, by keys if they are given."""
        if keys:
            self.type(keys)
        else:
            self.lua("vim.cmd.stopinsert()")
        self.until("vim.api.nvim_get_mode().mode == 'n'", "normal mode")

    def until(self, expression: str, what: str) -> Any:
        """Return the value of a Lua expression as soon as it is true."""
        return until(lambda: self.lua(f"return {expression}"), what, tell=self.picture)

    def ghost(self, buffer: int = 0) -> str:
        """Return the suggestion in a buffer, by default the current one; "" for none."""
        look = LOOK.replace("HIGHLIGHT", '"ComplHint"')
        return str(self.lua(look.replace("extmarks(0", f"extmarks({buffer}")))

    def hint(self) -> str:
        """Return the text that shows the number of the suggestion, such as (1/3)."""
        return str(self.lua(LOOK.replace("HIGHLIGHT", '"ComplHintMore"')))

    def until_ghost(self) -> str:
        """Return the suggestion as soon as there is one."""
        return until(self.ghost, "ghost text", tell=self.picture)

    def draft(self) -> str:
        """Return the draft on the screen, "" for none."""
        return str(self.lua(LOOK.replace("HIGHLIGHT", '"DgLspDraft"')))

    def text(self) -> str:
        """Return the buffer's text."""
        return "\n".join(self.call("nvim_buf_get_lines", 0, 0, -1, True)) + "\n"

    def save(self, path: Path) -> str:
        """Write the buffer, and return the content of the file."""
        self.leave()
        self.command("silent write!")
        return path.read_bytes().decode()

    def notes(self) -> list[str]:
        """Return the messages that the user has seen."""
        return list(self.lua("return vim.g.notes"))

    def status(self) -> dict[str, Any]:
        """Return the last status of the server."""
        return dict(self.lua("return require('dg_lsp').status()"))

    def until_silent(self, code: str) -> None:
        """Wait until the server gives this reason for showing nothing."""
        self.until(f"(require('dg_lsp').status().suppressed or {{}}).code == '{code}'", "the reason")

    def server_pid(self) -> int:
        """Return the server's process, 0 for none."""
        return int(self.lua(SERVER))

    def sentences(self) -> str:
        """Return what `:Dg status` shows."""
        return str(self.lua("return table.concat(require('dg_lsp.status').sentences(), ' ')"))

    def picture(self) -> str:
        """Return the state of the editor, for a failure's message."""
        status = self.lua("return vim.inspect(require('dg_lsp').status())")
        log = Path(self.lua("return vim.lsp.log.get_filename()"))
        tail = log.read_text()[-1500:] if log.exists() else ""
        return f"\n{self.text()}\nghost {self.ghost()!r}\nnotes {self.notes()}\nstatus {status}\nlog {tail}"
