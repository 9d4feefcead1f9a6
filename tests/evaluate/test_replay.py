"""The replay of real commits: its positions, its scores, and what it makes of a server's answer."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import commits, replay, replay_table
from benchmarks.commits import Hole, Mirrors, Position
from tests.processes import git

ROOT = Path(__file__).parents[2]


def test_no_repository_is_in_two_sets_or_was_trained_on() -> None:
    names = [name.lower() for repositories in commits.REPOSITORIES.values() for name in repositories]
    trained_on: set[str] = set()
    for file in ROOT.glob("dg_lsp/models/*/sources.csv"):
        with file.open(encoding="utf-8", newline="") as rows:
            sources = [row.get("repository") or row["source"] for row in csv.DictReader(rows)]
        trained_on |= {name.rpartition("/")[2].replace("__", "/").lower() for name in sources} | {
            name.lower() for name in sources
        }
    assert trained_on
    assert len(set(names)) == len(names)
    assert not set(names) & trained_on


@pytest.mark.parametrize("name", commits.REPOSITORIES)
def test_each_set_has_its_positions_of_new_commits(name: str) -> None:
    positions = commits.read(name)
    assert len(positions) == commits.SIZES[name]
    assert {each.repository for each in positions} == set(commits.REPOSITORIES[name])
    assert min(each.date for each in positions) >= commits.SINCE
    assert all(0 < each.line <= each.cursor < each.end for each in positions)
    by_kind = Counter(each.kind for each in positions)
    assert min(by_kind[kind] for kind in commits.KINDS) >= 0.28 * commits.SIZES[name]


def test_a_sample_keeps_the_shares_of_repositories_and_kinds() -> None:
    positions = commits.read("dev")
    for key in ("repository", "kind"):
        whole, part = (Counter(getattr(each, key) for each in some) for some in (positions, commits.spread(positions, 120)))
        for value, n in whole.items():
            assert abs(part[value] - n * 120 / len(positions)) <= 3, value


TEXT = "def f(a):\n    b = a + 1\n    return b\n"


def position(cursor: int, end: int, text: str = TEXT) -> Position:
    line = text.rfind("\n", 0, cursor) + 1
    sha256 = commits.fingerprint(text)
    return Position("dev-000", "o/n", "HEAD", "2026-01-01", "a/f.py", commits.REST_OF_LINE, False, 1, line, cursor, end, sha256)


def test_the_file_is_opened_without_the_line_that_is_typed() -> None:
    cursor = TEXT.index("a + 1")
    hole = Hole(position(cursor, cursor + 5), TEXT)
    assert hole.truth == "a + 1"
    assert hole.opened == "def f(a):\n    return b\n"
    assert hole.typed == "\n    b = "
    at = hole.position.line - 1
    assert hole.opened[:at] + hole.typed + hole.opened[at:] == hole.before + hole.after


def mirrored(folder: Path, texts: Mapping[str, str]) -> Mirrors:
    """Return mirrors with one repository, which has these files and a link to the first."""
    repository = folder / "o+n" / "repo"
    for path, text in texts.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(text)
    (repository / "link").symlink_to(next(iter(texts)))
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        git(*arguments, cwd=repository)
    return Mirrors(folder)


def test_a_mirror_gives_the_file_only_if_it_is_the_same(tmp_path: Path) -> None:
    mirrors = mirrored(tmp_path, {"a/f.py": TEXT})
    assert mirrors.hole(position(14, 18)).text == TEXT
    other = position(14, 18, TEXT.replace("1", "2"))
    with pytest.raises(commits.MirrorError, match=r"another a/f\.py at HEAD"):
        mirrors.hole(other)
    with pytest.raises(commits.MirrorError, match="fetch a git folder of x/y there"):
        mirrors.git("x/y", "log")
    (tmp_path / "out").mkdir()
    mirrors.checkout("o/n", "HEAD", tmp_path / "out")
    assert (tmp_path / "out" / "link").read_text() == TEXT


@pytest.mark.parametrize(
    ("text", "flags", "saved", "in_vain"),
    [
        ("a = b(c)\nreturn a", "shown exact begun first_line indented", 17, 0),
        ("a = b( c )\n  return a", "shown exact begun first_line", 17, 0),
        ("a = b(c)", "shown begun first_line", 8, 0),
        ("a = b(c)\nreturn b", "shown first_line", 0, 17),
        ("x", "shown", 0, 1),
        ("", "", 0, 0),
    ],
)
def test_an_answer_is_scored_by_its_characters(text: str, flags: str, saved: int, in_vain: int) -> None:
    scores = replay_table.scored([text] if text else [], "a = b(c)\nreturn a")
    names = ("shown", "exact", "begun", "first_line", "indented")
    assert [name for name in names if scores[name]] == flags.split()
    assert (scores["saved"], scores["in_vain"], scores["n_truth"]) == (saved, in_vain, 17)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"insertText": "b"}, "b"),
        ({"insertText": "b)", "range": {"start": [0, 2], "end": [0, 3]}}, "b"),
        ({"insertText": "f(b)", "range": {"start": [0, 0], "end": [0, 3]}}, "b"),
        ({"insertText": "g(b)", "range": {"start": [0, 0], "end": [0, 3]}}, "g(b)"),
    ],
)
def test_an_item_with_a_range_is_read_as_text_at_the_cursor(item: dict[str, Any], expected: str) -> None:
    if "range" in item:
        item["range"] = {key: dict(zip(("line", "character"), at, strict=True)) for key, at in item["range"].items()}
    assert replay.inserted(item, "f()\n", 2) == expected


@pytest.mark.parametrize("mode", ["typed", "request"])
@pytest.mark.e2e
def test_the_real_server_is_asked_at_each_position(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrored(tmp_path, {"a/f.py": TEXT})
    cursor = TEXT.index("a + 1")
    monkeypatch.setattr(commits, "read", lambda name: [position(cursor, cursor + 5)])
    out = tmp_path / "out"
    for _ in range(2):  # the second run has nothing left to ask
        arguments = ["run", str(out), "--mirror", str(tmp_path), "--model", "embedded", "--mode", mode, "--deadline", "0"]
        assert replay.main([*arguments, "--stated"]) == 0
    header, rows = replay_table.read(out)
    assert header["mode"] == mode
    assert [row["id"] for row in rows] == ["dev-000"]
    assert rows[0]["ms"] > 0
    assert bool(rows[0]["reason"]) != rows[0]["shown"]
    assert rows[0]["typed"] == (2 if mode == "typed" else 0)
