"""Ask the server at cursor positions in held-out files: python benchmarks/positions.py [N] [SEED] [MODEL] [RECORDS]

The real server, the real engine, and files that the embedded model was never trained on. Prints what was wrong with what
it would show at any threshold (wanted: nothing), what a threshold shows and how much of that is exactly what stood there,
how many characters it saves and how many are read in vain, and why there was silence.
RECORDS is a file with one position to a line. Positions that it has are not asked again, so a run that was stopped or
has a larger N continues, and a complete file prints the tables without a model.
500 positions take about five minutes on two cores with the embedded model. Ends with 1 where something was wrong.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import arguments, scores  # noqa: E402  # found only now
from tests.e2e import positions, replay  # noqa: E402
from tests.e2e.positions import Position  # noqa: E402
from tests.e2e.replay import Record  # noqa: E402

MANY = 500  # of which a smaller N takes the first, so that a file of records can be extended
THRESHOLDS = (0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)


def main(n: int, seed: int, model: str, file: str) -> int:
    asked = positions.positions(max(n, MANY), seed)[:n]
    with tempfile.TemporaryDirectory(prefix="dg") as name:
        os.environ |= {"XDG_RUNTIME_DIR": name, "DG_LSP_MODEL": model}
        found = asyncio.run(_recorded(asked, Path(name), Path(file or Path(name) / "records.jsonl")))
    records = [found[each] for each in asked]
    texts = [(each.position, text) for each in records for text in dict.fromkeys([each.text, *each.by_hand]) if text]
    wrong = [(fault, position, text) for position, text in texts for fault in positions.faults(position, text)]
    n_by_fault = Counter(fault for fault, _, _ in wrong)
    print(
        f"{len(records)} positions, seed {seed}: {len(texts)} texts at {sum(bool(each.by_hand) for each in records)} of them\n"
    )
    print("ends with what follows the cursor:", n_by_fault["overlap"])
    print("adds a syntax error:", n_by_fault["syntax"])
    print("repeats the next line:", n_by_fault["next line"])
    print("uses a name that is bound nowhere:", n_by_fault["unbound"])
    print()
    for fault, position, text in wrong:
        print(f"  {fault}: {position.kind} in {position.path}: …{position.before[-40:]!r} {text!r} {position.after[:40]!r}")
    print(_by_threshold(records), "\n")
    reasons = Counter(each.silence for each in records if each.silence)
    print(
        positions.table([("silent at any threshold", ""), *((reason, str(count)) for reason, count in reasons.most_common())])
    )
    return int(bool(wrong))


async def _recorded(asked: Sequence[Position], folder: Path, file: Path) -> dict[Position, Record]:
    """Return the record of each position: from the file, or else from the server, which is then added to the file."""
    found = {each.position: each for each in _read(file)} if file.exists() else {}
    if missing := [each for each in asked if each not in found]:
        async with replay.session(folder) as client:
            with file.open("a", encoding="utf-8") as rows:
                async for record in replay.replay(client, missing):
                    print(json.dumps(dataclasses.asdict(record)), file=rows, flush=True)
                    found[record.position] = record
    return found


def _read(file: Path) -> Iterator[Record]:
    for line in file.read_text("utf-8").splitlines():
        values = json.loads(line)
        values["position"] = Position(**values["position"])
        values["by_hand"] = tuple(values["by_hand"])
        yield Record(**values)


def _by_threshold(records: list[Record]) -> str:
    rows = [("threshold", "shown", "of all", "right", "of those shown", "right as far as it goes", "saved", "read in vain")]
    for threshold in THRESHOLDS:
        shown_records = [each for each in records if each.text and each.score >= threshold]
        right = sum(positions.is_right(each.position, each.text) for each in shown_records)
        n_begun = sum(positions.is_begun(each.position, each.text) for each in shown_records)
        shares = [f"{n / len(shown_records):.0%}" if shown_records else "" for n in (right, n_begun)]
        row = (f"{threshold:.2f}", str(len(shown_records)), f"{len(shown_records) / len(records):.0%}", str(right))
        trade = scores.trade([(scores.keys(each.text, each.position.truth), each.score) for each in records], threshold)
        rows.append((*row, shares[0], shares[1], f"{trade.saved:.1%}", f"{trade.in_vain:.1%}"))
    return positions.table(rows)


if __name__ == "__main__":
    raise SystemExit(main(*arguments.parsed(__doc__, n=500, seed=1, model="embedded", records="")))
