"""The plan of a run: places, kinds, groups and seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from dg_lsp.batch import discover, plan
from dg_lsp.batch.plan import Location, PlanError
from tests.batch.engines import planned


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a.py:3:4", Location("a.py", (3, 4))),
        ("dir/a b.py:1:1-2:3", Location("dir/a b.py", (1, 1), (2, 3))),
        ("C:\\x\\a.py:1:2", Location("C:\\x\\a.py", (1, 2))),
        ("odd:1:2:3:4", Location("odd:1:2", (3, 4))),
    ],
)
def test_a_place_is_a_file_a_line_and_a_column(text: str, place: Location) -> None:
    assert plan.parse_place(text) == place
    assert str(place) == text


@pytest.mark.parametrize(
    "text", ["a.py", "a.py:3", "a.py:x:y", "a.py:0:1", "a.py:1:0", "a.py:2:1-1:1", ":1:1", "a.py:1:1-2", f"a.py:{'9' * 5000}:1"]
)
def test_an_invalid_place_is_reported(text: str) -> None:
    with pytest.raises(PlanError, match=r"place|counted from 1|ends before"):
        plan.parse_place(text)


def at(tmp_path: Path, text: str, *places: str) -> plan.FilePlan:
    path = tmp_path / "a.py"
    path.write_bytes(text.encode())
    source = discover.read(path)
    assert isinstance(source, discover.Source)
    return plan.for_places(source, [plan.parse_place(f"a.py:{place}") for place in places])


def test_a_cursor_counts_characters_not_bytes(tmp_path: Path) -> None:
    [hole] = at(tmp_path, "s = '😀ä'\nx = \n", "1:8").holes
    assert (hole.kind, hole.span.start) == ("cursor", 7)


def test_a_selection_spans_lines(tmp_path: Path) -> None:
    [hole] = at(tmp_path, "a = 1\r\nb = 2\r\nc = 3\r\n", "1:1-2:6").holes
    assert (hole.kind, hole.span.start, hole.span.end) == ("selection", 0, 12)


def test_a_place_on_a_placeholder_is_its_body(tmp_path: Path) -> None:
    text = "def f():\n    pass\n"
    for place in ("2:5", "2:7", "2:9", "2:5-2:9"):
        assert [hole.kind for hole in at(tmp_path, text, place).holes] == ["body"]
    assert [hole.kind for hole in at(tmp_path, text, "1:3").holes] == ["cursor"]


def test_places_that_overlap_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="overlap"):
        at(tmp_path, "a = 1\nb = 2\n", "1:1-2:2", "2:1-2:6")


def test_near_holes_share_a_request_and_far_ones_do_not(tmp_path: Path) -> None:
    stub = 'def f():\n    """Do."""\n    ...\n\n\n'
    near = planned(tmp_path / "near.py", stub * 2)
    far = planned(tmp_path / "far.py", stub + "# far away\n" * 200 + stub)
    assert [len(group) for group in near.groups] == [2]
    assert [len(group) for group in far.groups] == [1, 1]
    assert len(near.holes) == len(far.holes) == 2


def test_seeds_differ_between_places_and_runs_but_not_between_folders(tmp_path: Path) -> None:
    stub = 'def f():\n    """Do."""\n    ...\n\n\n' + "# far away\n" * 200
    here, there = planned(tmp_path / "here" / "a.py", stub * 2), planned(tmp_path / "there" / "a.py", stub * 2)

    def seeds(seed: int, file_plan: plan.FilePlan) -> list[int]:
        return [plan.seed_for(seed, file_plan.source.document, group) for group in file_plan.groups]

    assert seeds(1, here) == seeds(1, there)
    assert len({*seeds(1, here), *seeds(2, here)}) == 4
    assert all(0 <= seed < 2**31 for seed in seeds(1, here))
