"""What the server would show at cursor positions in files that the embedded model never saw; benchmarks ask at more."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests import marked
from tests.e2e import positions, replay
from tests.e2e.positions import Position
from tests.e2e.replay import Record
from tests.engine.engine_kit import home

ROWS = marked.rows(Path(__file__).with_name("faults.txt"))

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


@pytest.mark.parametrize(("before", "after", "text", "expected"), ROWS["faults"])
def test_faults_are_found(before: str, after: str, text: str, expected: str) -> None:
    assert ", ".join(positions.faults(Position("typing", "a.py", before, after, ""), text)) == expected
