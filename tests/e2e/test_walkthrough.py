"""The embedded model fills the walkthrough's sample and the sample of `dg-lsp setup` correctly with default settings."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from dg_lsp.cli import doctor
from dg_lsp.wire import config
from tests.e2e.editor import on_engine
from tests.engine.engine_kit import home

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "editors" / "vscode" / "src" / "sample.ts"

pytestmark = pytest.mark.e2e


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


def test_the_sample_of_setup_is_filled_right(monkeypatch: pytest.MonkeyPatch) -> None:
    with home(monkeypatch):
        trial_result = doctor.trial(config.Config(), "embedded")
    assert "+        return self.width * self.height" in trial_result.diff
    assert trial_result.confidence.endswith(" %")
