"""Stored answers are reused by a later run, but only if everything that they depend on is unchanged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dg_lsp.batch import journal as journals
from dg_lsp.batch.journal import Journal
from dg_lsp.core.values import Calibrated, Document, Edit, Hole, InfillRequest, Ranked, Snippet, Span
from dg_lsp.infill.fill import Fill

DOCUMENT = Document("file:///a.py", "python", "def f():\n    pass\n")
HOLE = Hole(Span(13, 17), "body", indent="    ", extent="block")
FILLS = (Fill(Edit(HOLE.span, "return 'ä'"), Calibrated(0.5), 7), Fill(Edit(HOLE.span, "x"), Ranked(1, True), 0))


def keep(path: Path, *settings: object) -> None:
    with Journal(path, settings) as journal:
        journal.add(DOCUMENT, HOLE, FILLS)


def known(path: Path, *settings: object, document: Document = DOCUMENT, hole: Hole = HOLE) -> tuple[Fill, ...]:
    with Journal(path, settings) as journal:
        return journal.get(document, hole)


def test_an_answer_is_found_again(tmp_path: Path) -> None:
    keep(tmp_path / "j", "embedded", 1)
    assert known(tmp_path / "j", "embedded", 1) == FILLS


def test_another_text_hole_or_setting_has_another_key(tmp_path: Path) -> None:
    path = tmp_path / "j"
    keep(path, "embedded", 1)
    assert known(path, "embedded", 2) == ()
    assert known(path, "embedded", 1, document=replace(DOCUMENT, text=DOCUMENT.text + "#")) == ()
    assert known(path, "embedded", 1, hole=replace(HOLE, instruction="fast")) == ()


def test_another_request_has_another_key(tmp_path: Path) -> None:
    near = Snippet("near.py", "x = 1\n")
    request = InfillRequest("def f():\n    ", "\n", (HOLE,), related=(near,), seed=1)
    with Journal(tmp_path / "j") as journal:
        journal.add(DOCUMENT, HOLE, FILLS, [request])
    with Journal(tmp_path / "j") as journal:
        assert journal.get(DOCUMENT, HOLE, [request]) == FILLS
        before = Snippet("far.py", "y = 1\n", was_shown=True)
        assert journal.get(DOCUMENT, HOLE, [replace(request, related=(near, before))]) == FILLS
        changed = (
            replace(request, related=()),
            replace(request, related=(replace(near, text="x = 2\n"),)),
            replace(request, related=(replace(near, path="far.py"),)),
            replace(request, related=(replace(near, for_copying=True),)),
            replace(request, prefix="ef f():\n    "),
            replace(request, seed=2),
        )
        for requests in ([], [request, request], *([each] for each in changed)):
            assert journal.get(DOCUMENT, HOLE, requests) == ()


def test_another_version_has_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path / "j")
    monkeypatch.setattr(journals, "__version__", "99.0")
    assert known(tmp_path / "j") == ()


@pytest.mark.parametrize("span", [[0, 17], [13, 16], [17, 17], [13, 99]])
def test_an_edit_of_anything_but_the_hole_is_refused(tmp_path: Path, span: list[int]) -> None:
    keep(tmp_path / "j")
    mark, line = (tmp_path / "j").read_text().splitlines()
    entry = json.loads(line)
    entry["fills"][0]["edit"][:2] = span
    (tmp_path / "j").write_text(f"{mark}\n{json.dumps(entry)}\n")
    assert known(tmp_path / "j") == FILLS[1:]


def test_a_truncated_line_is_ignored_and_does_not_affect_the_next(tmp_path: Path) -> None:
    path = tmp_path / "j"
    keep(path)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[-1][:40])
    assert known(path) == FILLS
    with Journal(path) as journal:
        journal.add(DOCUMENT, replace(HOLE, kind="marker"), FILLS[:1])
    assert known(path, hole=replace(HOLE, kind="marker")) == FILLS[:1]


def test_only_the_user_can_read_it(tmp_path: Path) -> None:
    keep(tmp_path / "j")
    assert (tmp_path / "j").stat().st_mode & 0o077 == 0


NUMBERS = ("1e999", "-1e999", "NaN", "Infinity", '"x"', "[]", "{}", "null", "9" * 5000)
ENTRIES = (
    *(f'"{field}": {number}' for field in ("probability", "steps") for number in NUMBERS),
    *('"probability": 2', '"probability": null, "rank": 1e999, "doubted": false', '"rank": 0'),
)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_line_with_an_invalid_number_or_confidence_is_forgotten(tmp_path: Path, entry: str) -> None:
    keep(tmp_path / "j")
    old = '"steps": 7' if entry.startswith('"steps"') else '"probability": 0.5'
    line = (tmp_path / "j").read_text().replace(old, entry)
    assert entry in line
    (tmp_path / "j").write_text(line + '{"key": ' + "[" * 100_000 + "\n")
    assert known(tmp_path / "j") == ()


def test_without_a_file_nothing_is_stored() -> None:
    with Journal(None) as journal:
        journal.add(DOCUMENT, HOLE, FILLS)
        assert journal.get(DOCUMENT, HOLE) == ()
