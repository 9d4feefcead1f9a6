"""What Neovim shows of a laptop model's draft: the gap's text as the engine has written it so far, and the rest as it is.

The model is tiny and random. Regenerating a selection uses it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from tests import checkpoints
from tests.editors import machine
from tests.editors.conftest import Watch
from tests.editors.machine import program
from tests.editors.neovim import LOOK, Neovim
from tests.editors.waiting import until
from tests.engine.test_causal_draft import written_profile

TEXT = "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n"
LEAST_VIEWS = 3

# Collects what is drawn as a draft, with the buffer's text, whenever a draft arrives.
WATCH = """
_G.seen = {}
local on_draft = require("dg_lsp.draft").on_draft
require("dg_lsp.draft").on_draft = function(params, context)
  on_draft(params, context)
  vim.cmd.redraw()
  local drawn = (function() LOOK end)()
  local text = table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, true), "\\n")
  table.insert(_G.seen, { drawn, text, params.holes[1] and params.holes[1].text or "", params.done })
end
""".replace("LOOK", LOOK.replace("HIGHLIGHT", '"DgLspDraft"'))


@pytest.fixture
def model(environment: Mapping[str, str], tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "laptop"
    folder.mkdir()
    checkpoints.qwen(folder)
    written_profile(folder)
    yield str(folder)
    # Other tests count the engines.
    machine.engine(environment, "stop", "--now", "--model", str(folder))


def visible(text: str) -> str:
    """Return a text without white space, and with control characters as Neovim draws them."""
    return re.sub(r"[\x00-\x1f\x7f]", lambda match: f"^{chr(ord(match[0]) ^ 64)}", "".join(text.split()))


def test_neovim_shows_the_draft_as_it_is_written(
    environment: Mapping[str, str], tmp_path: Path, model: str, watch: Watch
) -> None:
    options = f"{{ settings = {{ ['engine.model'] = {json.dumps(model)}, ['actions.deadline'] = 60000 }} }}"
    with Neovim(program("nvim"), tmp_path, environment, options) as nvim:
        watch(nvim.picture)
        nvim.edit("add.py", TEXT)
        assert nvim.status()["model"] == model
        nvim.lua(WATCH)
        nvim.command("2DgFill")
        seen = until(lambda: (views := nvim.lua("return _G.seen")) and views[-1][3] and views, "the end", tell=nvim.picture)
        *views, last = seen
        assert {text for _, text, _, _ in views} == {TEXT.removesuffix("\n")}, "the buffer stays as it is"
        sent = [text for _, _, text, _ in views]
        assert len(set(sent)) >= LEAST_VIEWS
        assert all(later.startswith(earlier) for earlier, later in pairwise(sent))
        # The part that covers the old text and the one after it are drawn by themselves.
        assert [visible(drawn) for drawn, _, _, _ in views] == [visible(text) for text in sent]
        assert not last[0]
