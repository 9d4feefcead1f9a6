"""The real server with the real resident engine around a tiny untrained checkpoint."""

from __future__ import annotations

import contextlib
import json
import os
import re
from itertools import pairwise
from pathlib import Path

import pytest

from dg_lsp.cli import doctor
from dg_lsp.wire import config
from tests import checkpoints
from tests.e2e.editor import URI, Editor, on_engine
from tests.engine.engine_kit import home
from tests.engine.test_causal_draft import written_profile

pytestmark = pytest.mark.e2e

TWO = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    raise NotImplementedError\n"


def session(folder: Path, monkeypatch: pytest.MonkeyPatch, model: Path) -> contextlib.AbstractAsyncContextManager[Editor]:
    settings = {
        "engine": {"model": str(model), "threads": 1},
        "completion": {"debounce": 0, "threshold": 0, "speculate": False},
    }
    return on_engine(folder, monkeypatch, settings, DG_LSP_ALLOW=str(model))


@pytest.mark.slow
async def test_a_laptop_model_s_draft_grows_in_its_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The editor shows what the engine writes, and the text around the gap stays as it is."""
    model = checkpoints.qwen(tmp_path)
    written_profile(model)
    text = "def add(a, b):\n    total = a + b\n    return total\n\n\nprint(add(1, 2))\n"
    selection = {"start": {"line": 1, "character": 4}, "end": {"line": 2, "character": 16}}

    async with session(tmp_path, monkeypatch, model) as client:
        client.open(text)
        client.answers["window/showMessageRequest"] = lambda _params: {"title": "Keep"}
        document = {"uri": URI, "version": 1}
        fill = {"do": "regenerate", "textDocument": document, "range": selection}
        await client.request("workspace/executeCommand", {"command": "dgLsp.fill", "arguments": [fill]})
        *drafts, last = client.said("dgLsp/draft")
        assert last["done"]
        assert all(hole["range"] == selection for draft in drafts for hole in draft["holes"])
        views = [hole["text"] for draft in drafts for hole in draft["holes"]]
        assert len(set(views)) > 3
        assert all(later.startswith(earlier) for earlier, later in pairwise(views))


# The walkthrough


ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "editors" / "vscode" / "src" / "sample.ts"


def constant(name: str) -> str:
    """Return a string of the client's source."""
    text = SOURCE.read_text("utf-8")
    if match := re.search(rf"{name} = `(.*?)`;", text, re.DOTALL):
        return match[1]
    match = re.search(rf"{name} = (\".*\");", text)
    assert match is not None, name
    return str(json.loads(match[1]))


@pytest.mark.skipif(not SOURCE.exists(), reason="the clients are not part of a source distribution")
async def test_the_walkthroughs_suggestion_and_fill_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample, before, typed = constant("SAMPLE"), constant("BEFORE_TYPED"), constant("TYPED")
    body = constant("BEFORE_BODY")
    assert sample.count(before) == 1
    # The first one is the example that the second one should copy.
    assert sample.count(body) == 2
    assert sample.index(body + constant("FILLED")) < sample.index(body + "...")

    # Default settings, except for deadlines that a busy machine meets.
    settings = {"completion": {"deadline": 60_000}, "actions": {"deadline": 60_000}}
    async with on_engine(tmp_path, monkeypatch, settings, DG_LSP_CONFIG=os.devnull) as client:
        at = sample.index(before) + len(before)
        client.open(sample[:at] + typed + sample[at:], uri="untitled:sample.py")
        lines = (sample[:at] + typed).split("\n")
        # An unprompted request, so the probability must reach the threshold.
        [item] = await client.suggestions(len(lines) - 1, len(lines[-1]), uri="untitled:sample.py", trigger=2)
        assert typed + item["insertText"] == constant("COMPLETED")
        client.open(sample, uri="untitled:fill.py")
        line = sample[: sample.index(body + "...") + len(body)].count("\n")
        [action, *_] = await client.menu(line, 8, uri="untitled:fill.py")
        resolved = await client.request("codeAction/resolve", action)
        [edit] = resolved["edit"]["documentChanges"][0]["edits"]
        assert edit["newText"] == constant("FILLED")
        status = await client.status()
        assert status["latencyMs"] is not None
        assert [each["message"] for each in client.said("dgLsp/status") if each["state"] == "loading"]


def test_the_sample_of_setup_is_filled_right(monkeypatch: pytest.MonkeyPatch) -> None:
    with home(monkeypatch):
        trial_result = doctor.trial(config.Config(), "embedded")
    assert "+        return self.width * self.height" in trial_result.diff
    assert trial_result.confidence.endswith(" %")
