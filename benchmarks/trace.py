"""Count what one answer runs: calls, functions and modules of dg_lsp for one inline completion.

    python benchmarks/trace.py [--path] [--all] [--model NAME]

The engine serves on its socket in this process's main thread, and the language server runs in a second thread, so one profiler
sees every thread. The path is the ordinary one: the server's handler, the client, HTTP over the engine's
socket, the queue, a model, and back. Both are warm: the same has been done once before, and the completion's file
has been read. What the libraries do is not counted, and neither is what the engine prepares after its answer.

A function is a `def`: comprehensions and lambdas belong to the function around them. A generator that continues is a call.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).parents[1]
PACKAGE = str(ROOT / "dg_lsp") + os.sep
PATIENCE_S = 120.0
PREPARING = "_foresee"
"""The function in which the engine prepares for the next request, which may begin before the answer has arrived."""

SHAPES = '''\
"""Shapes, which the window draws."""


class Rectangle:
    """A rectangle on the screen."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height

    def area(self) -> int:
        """Return the number of pixels."""
        return self.width * self.height
'''
WINDOW = '''\
"""A window of the screen."""

from shapes import Rectangle


class Window:
    """A window with a title and a frame."""

    def __init__(self, title: str, frame: Rectangle) -> None:
        self.title = title
        self.frame = frame
        self.first

    def width(self) -> int:
        """Return the width of the frame."""
        return self.second
'''


class Tracer:
    """Counts the calls of functions of dg_lsp in all threads that start after it, while it is on.

    It leaves out what runs below `PREPARING`.
    """

    def __init__(self) -> None:
        self._is_on = False
        self._preparing: set[int] = set()  # the threads that prepare for the next request
        self._codes: Counter[CodeType] = Counter()
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        if frame.f_code.co_name == PREPARING and event in ("call", "return"):
            (self._preparing.add if event == "call" else self._preparing.discard)(threading.get_ident())
        elif self._is_on and event == "call" and threading.get_ident() not in self._preparing:
            self._codes[frame.f_code] += 1

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Count from here, from zero."""
        self._codes.clear()
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    def calls(self) -> Counter[tuple[str, str]]:
        """Return the number of calls of each function of dg_lsp, by module and qualified name."""
        calls: Counter[tuple[str, str]] = Counter()
        for code, n in self._codes.items():
            name = ".".join(part for part in code.co_qualname.replace(".<locals>", "").split(".") if not part.startswith("<"))
            if code.co_filename.startswith(PACKAGE) and name:
                calls[code.co_filename.removeprefix(PACKAGE).removesuffix(".py").replace(os.sep, "."), name] += n
        return calls


def report(calls: Counter[tuple[str, str]], *, path: bool, everything: bool) -> None:
    """Print the numbers, and with `path` those of each module."""
    modules = Counter(module for module, _ in calls)
    rooms = Counter(room(module) for module in modules)
    parts = ", ".join(f"{n} {name}" for name, n in rooms.most_common())
    print(f"inline completion: {calls.total():,} calls of {len(calls)} functions in {len(modules)} modules ({parts})")
    if path or everything:
        for module in sorted(modules, key=lambda name: (room(name), name)):
            own = sorted((name, n) for (where, name), n in calls.items() if where == module)
            print(f"  {module}: {sum(n for _, n in own)} calls of {len(own)} functions")
            if everything:
                print("    " + ", ".join(f"{name} {n}" if n > 1 else name for name, n in own))


def room(module: str) -> str:
    """Return the part of the package that a module belongs to, such as `core` or `engine.causal`."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "engine" and len(parts) > 2 else 1])


async def completion(tracer: Tracer, folder: Path) -> None:
    """Count the calls of one warm, explicit inline completion, from the server's handler to its answer."""
    from lsprotocol import types as lsp

    from dg_lsp.server import handlers
    from dg_lsp.server.session import DgLanguageServer

    (folder / "shapes.py").write_text(SHAPES)
    (folder / "window.py").write_text(WINDOW)
    server = DgLanguageServer()
    handlers.add(server)
    features = server.protocol.fm.features
    uri = (folder / "window.py").as_uri()
    server.begin(lsp.InitializeParams(lsp.ClientCapabilities(), root_uri=folder.as_uri()))

    def asked(name: str) -> lsp.InlineCompletionParams:
        line = WINDOW[: WINDOW.index(name)].count("\n")
        position = lsp.Position(line, len(WINDOW.split("\n")[line]) - len(name))
        context = lsp.InlineCompletionContext(lsp.InlineCompletionTriggerKind.Invoked)
        return lsp.InlineCompletionParams(context, lsp.TextDocumentIdentifier(uri), position)

    try:
        await server.ready()
        text = WINDOW.replace("first", "").replace("second", "")
        features[lsp.TEXT_DOCUMENT_DID_OPEN](lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(uri, "python", 1, text)))
        before = await features[lsp.TEXT_DOCUMENT_INLINE_COMPLETION](asked("first"))
        await server.snapshots.take(uri)  # loading the model may have taken so long that what was read is old
        await asyncio.sleep(2)  # the index of the folder is read, and the engine has encoded what it expects
        with tracer.on():
            answer = await features[lsp.TEXT_DOCUMENT_INLINE_COMPLETION](asked("second"))
    finally:
        await server.close()
    if not before.items or not answer.items:
        raise SystemExit("there was no suggestion to follow")
    print(f"suggested behind `return self.`: {answer.items[0].insert_text!r}")


def serve(work: Callable[[], None]) -> None:
    """Serve the model on its socket, and do the work in a second thread."""
    from dg_lsp.client.engine import ConnectOptions, connect_options
    from dg_lsp.engine.serve import daemon
    from dg_lsp.wire import config, discovery

    options = ConnectOptions(discovery.EngineId(connect_options(config.read()[0]).engine_id.model))
    errors: list[BaseException] = []

    def working() -> None:
        files, give_up = discovery.engine_files(options.engine_id), time.monotonic() + PATIENCE_S
        try:
            while discovery.read_state(files) is None and time.monotonic() < give_up:
                time.sleep(0.05)
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            os.kill(os.getpid(), 15)

    # The front ends' processes don't log this. In the engine's process it would be formatted for the engine's log.
    logging.getLogger("pygls").setLevel(logging.WARNING)
    threading.Thread(target=working, daemon=True).start()
    daemon.run(daemon.RunOptions(options.engine_id, options.settings))
    if errors:
        raise errors[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", action="store_true", help="list the modules, with the calls and functions of each")
    parser.add_argument("--all", action="store_true", help="list the functions as well")
    parser.add_argument("--model", default="embedded", help="or a laptop model that was pulled")
    options = parser.parse_args()
    tracer = Tracer()
    with tempfile.TemporaryDirectory(prefix="dg") as name:
        folder = Path(name)
        for sub in ("runtime", "state", "work"):
            (folder / sub).mkdir(mode=0o700)
        # However slow the machine is, no deadline ends the answer.
        (folder / "config.toml").write_text("[completion]\ndeadline = 60000\n")
        os.environ |= {
            "DG_LSP_CONFIG": str(folder / "config.toml"),
            "DG_LSP_RUNTIME_DIR": str(folder / "runtime"),
            "DG_LSP_MODEL": options.model,
            "DG_LSP_NO_PULL": "1",
            "XDG_STATE_HOME": str(folder / "state"),
        }
        serve(lambda: asyncio.run(completion(tracer, folder / "work")))
    report(tracer.calls(), path=options.path, everything=options.all)


if __name__ == "__main__":
    main()
