"""Generate the tables of docs/which-model.md that say what fits on which GPU, from the code that decides it.

`python -m tests.pages.gpus --write`, or `make settings`, rewrites the tables in a checkout. Without `--write` it
exits with 1 if they are out of date; a test checks the same. Knows sizes; queries no device.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dg_lsp.cli.setup import CONTEXT_BYTES, DIFFUSION, PUBLISHED
from dg_lsp.core.wording import size
from dg_lsp.engine.model.fit import Machine, NoRoomError, Precision, Use, choose, needs

PAGE = "docs/which-model.md"
BEGIN, END = "<!-- {name}: written by `make settings` -->", "<!-- end of {name} -->"
GPUS_GB = (16, 18, 24, 32, 48, 80, 141)
H200_GB = 141  # its size is in powers of ten; all other GPUs' sizes are in powers of two
USE = Use()


def free_on(gpu_gb: int) -> int:
    """Return the bytes of a GPU that a model can use."""
    return (gpu_gb * 10**9 if gpu_gb == H200_GB else gpu_gb << 30) - CONTEXT_BYTES


def cards() -> list[tuple[str, ...]]:
    """Return a table row for each GPU: the precision, the weights' bytes, and the total bytes."""
    rows: list[tuple[str, ...]] = []
    for gpu_gb in GPUS_GB:
        machine = Machine("cuda", free_on(gpu_gb), f"a GPU with {gpu_gb} GB")
        try:
            choice = choose(DIFFUSION, PUBLISHED, machine, use=USE)
        except NoRoomError:
            rows.append((f"{gpu_gb} GB", "does not fit", "", ""))
            continue
        one = choice.needs
        rows.append((f"{gpu_gb} GB", choice.precision, size(one.weights), size(one.total)))
    return rows


def precisions() -> list[tuple[str, ...]]:
    """Return a table row for each precision: the bytes of each part."""
    rows: list[tuple[str, ...]] = []
    listed: tuple[Precision, ...] = ("bfloat16", "fp8", "int4")
    for precision in listed:
        one = needs(PUBLISHED, precision, USE)
        rows.append((precision, *map(size, (one.weights, one.workspace, one.cache, one.row, one.total))))
    return rows


def rewritten(text: str) -> str:
    """Return the page with newly computed tables."""
    text = _with_table(text, "cards", ("GPU", "runs in", "weights", "with one request"), cards())
    head = ("precision", "weights", "workspace", "one prefix", "one row", "together")
    return _with_table(text, "precisions", head, precisions())


def _with_table(text: str, name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    begin, end = BEGIN.format(name=name), END.format(name=name)
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    return f"{before}{begin}\n\n" + "\n".join(lines) + f"\n\n{end}{after}"


def main() -> None:
    """Rewrite the page if it is out of date and `--write` is given; without `--write`, exit with 1 instead."""
    path = Path(__file__).parents[2] / PAGE
    text = path.read_text(encoding="utf-8")
    if (new := rewritten(text)) == text:
        return
    if "--write" not in sys.argv[1:]:
        sys.exit(f"{path}: out of date. Run: make settings")
    path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
