"""What the server would show at cursor positions in files that the embedded model never saw; benchmarks ask at more."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e import positions, replay
from tests.e2e.positions import Position
from tests.e2e.replay import Record
from tests.engine.engine_kit import home

N, SEED = 60, 1


@pytest.mark.slow
def test_nothing_shown_repeats_what_follows_or_adds_a_syntax_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> list[Record]:
        async with replay.session(tmp_path) as client:
            records = [each async for each in replay.replay(client, positions.positions(N, SEED))]
            assert client.stderr == b""
            return records

    with home(monkeypatch):
        record_list = asyncio.run(ask())
    texts = [(each.position, text) for each in record_list for text in (each.text, *each.by_hand) if text]
    assert [
        (position, text, all_positions) for position, text in texts if (all_positions := positions.faults(position, text))
    ] == []
    # It has something to say at most places, and some of it is right.
    assert sum(bool(each.text) for each in record_list) >= N // 2
    assert sum(positions.is_right(each.position, each.text) for each in record_list) >= N // 12
    assert all(each.silence for each in record_list if not each.text)


@pytest.mark.slow
def test_positions_are_of_every_kind_and_a_seed_gives_the_same() -> None:
    all_positions = positions.positions(N, SEED)
    assert all_positions == positions.positions(N, SEED)
    assert Counter(position.kind for position in all_positions) == dict.fromkeys(positions.KINDS, N // len(positions.KINDS))


@pytest.mark.parametrize(
    ("before", "after", "text", "expected"),
    [
        ("x = int(", ")\n", "1", []),
        ("x = f(", ")\n", "a", ["unbound"]),
        ("a = f()\nx = f(", ")\n", "a", []),
        ("x = f(", ")\n", "a)", ["overlap", "syntax"]),
        ("x = f(", ")\n", "int(1)", []),
        ("x = f(", ", b)\n", "a, b)", ["overlap", "syntax"]),
        ("a = f(1)\n", "\nb = f(2)\n", "b = f(2)", ["next line"]),
        ("a = [\n    x", "\n    x for x in xs,\n]\n", " for x in xs,", ["next line", "syntax"]),
        ("def f(a):\n    if a:\n        ", "\n\n    return 1\n", "if int(a):\n            return 1", []),
        ("def f(a):\n    if a:\n        int(", "\n\n    return 1\n", "2)\n    return 1", ["next line"]),
        ("print('x', self.", "\n\ny = 1\n", '"""', ["syntax"]),
        ("print('x', self.", "\n\ny = 1\n", "name", []),
        ("def f(a\n\n\ndef g():\n    x = [y for y ", "\n\n\nz = 1\n", "put a", ["syntax"]),
    ],
)
def test_faults_are_found(before: str, after: str, text: str, expected: list[str]) -> None:
    assert positions.faults(Position("typing", "a.py", before, after, ""), text) == expected
