"""Move a cursor through real files, and count what a laptop model reads for it.

    python benchmarks/walk.py --mirror DIR [--model MODEL] [--look S] [--deadline MS] [--places N] [--only WORD]

At each place the cursor arrives in a line without its code, the user looks, types four characters, and a suggestion is asked
for. The places are ten lines apart, downwards and back up; then jumps of 100 to 300 lines, and the same ones again; then two
files in turn. Between two places ten lines apart, about a hundred tokens are new: what is encoded beyond them was read in vain.

Times are processor time of this process, so other programs hardly change them. It also measures the deadline and the look.
DIR has the git folders of the repositories, as `commits.py` describes it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.commits import Mirrors
from dg_lsp.core import holes, languages, syntax
from dg_lsp.core.values import Budget, Document, InfillRequest
from dg_lsp.engine.backends import local
from dg_lsp.engine.causal.filler import CausalFiller
from dg_lsp.engine.causal.layout import CausalInputs
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.infill.workspace import ContextReader

FILES = (
    ("pallets/click", "src/click/core.py"),
    ("charmbracelet/crush", "internal/agent/agent.go"),
    ("BurntSushi/jiff", "crates/jiff/src/civil/date.rs"),
    ("TanStack/db", "packages/db/src/collection/index.ts"),
)
STEP, N_TYPED, LEAST_CHARS = 10, 4, 12
JUMPS = 130, 270, -110, 300, -190, 240, 160, -220


@dataclass
class Clock:
    """Processor time, which can be moved on where nothing happens."""

    skipped: float = 0.0

    def __call__(self) -> float:
        return time.process_time() + self.skipped


@dataclass(frozen=True)
class File:
    """A file with what a request shows of others."""

    path: str
    text: str
    context: FileContext

    def place(self, line: int) -> int:
        """Return the first line with code at or after this one, within the file."""
        lines = self.text.split("\n")
        line = line % (len(lines) - 40) + 20
        return next((at for at in range(line, len(lines)) if len(lines[at].strip()) >= LEAST_CHARS), 20)

    def request(self, line: int, n_typed: int, deadline_ms: int) -> tuple[InfillRequest, str]:
        """Return the request in this line after so many of its characters, and the rest of the line."""
        lines = self.text.split("\n")
        own, start = lines[line], sum(len(each) + 1 for each in lines[:line])
        at = start + len(own) - len(own.lstrip()) + n_typed
        text = self.text[:at] + self.text[start + len(own) :]
        language = languages.for_path(self.path)
        document = Document(f"file:///{self.path}", language.name if language else "", text)
        tree = syntax.of(document)
        context = replace(self.context, budget=Budget(ms=deadline_ms))
        request = pipeline.to_request(document, (holes.at_cursor(document, at, tree),), context, syntax=tree)
        return request, self.text[at : start + len(own)]


@dataclass(frozen=True)
class Row:
    """What one place cost: processor milliseconds and new tokens while looking, and what the answer asked for and reused."""

    ahead_ms: float
    answer_ms: float
    n_asked: int
    n_reused: int
    n_text: int
    is_late: bool
    is_right: bool


class Walker:
    """A model whose user walks."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.clock = options, Clock()
        loaded = local.load_model(options.model, device="cpu", threads=1)
        self.filler = CausalFiller(loaded, clock=self.clock)
        self._look(File("warm.py", "x = 1\n" * 60, FileContext()).request(20, 0, options.deadline)[0])

    def visit(self, file: File, line: int) -> Row:
        """Arrive at a line, look, type and ask."""
        deadline = self.options.deadline
        (arrival, _), (request, rest) = (file.request(line, n_typed, deadline) for n_typed in (0, N_TYPED))
        began = time.process_time()
        self._look(arrival)
        looked = time.process_time()
        task = self.filler.start(request)
        task.finish_in(deadline)
        self.filler.expect(request)
        due, is_late = self.clock() + deadline / 1000, False
        while not is_late and task.step():
            is_late = self.clock() > due
        answered = time.process_time()
        texts, cache = [each.texts[0] for each in task.candidates()], task.cache()
        assert isinstance(task.inputs, CausalInputs)
        n_text = task.inputs.prompt.n_text
        task.close()
        is_right = bool(texts) and texts[0].strip() == rest.strip()
        times = 1000 * (looked - began), 1000 * (answered - looked)
        return Row(*times, cache["tokens"], cache["reused"], n_text, is_late, is_right)

    def _look(self, request: InfillRequest) -> None:
        self.filler.expect(request)
        end = self.clock() + self.options.look
        while (left_s := end - self.clock()) > 0:
            wait_s = self.filler.foresee()
            self.clock.skipped += left_s if wait_s is None else min(wait_s, left_s)


def moves(files: Sequence[File], n_places: int) -> Iterator[tuple[str, list[tuple[File, int]]]]:
    """Yield each move by its name: the files and lines that it visits."""
    for file in files:
        name = Path(file.path).suffix
        down = [(file, file.place(60 + STEP * number)) for number in range(n_places)]
        jumps, line = list[tuple[File, int]](), 60
        for jump in JUMPS[:n_places]:
            line += jump
            jumps.append((file, file.place(line)))
        yield f"{name} down", down
        yield f"{name} up", down[::-1]
        yield f"{name} jumps", jumps
        yield f"{name} jumps back", jumps[::-1]
    for one, other in zip(files[::2], files[1::2], strict=True):
        names = f"{Path(one.path).suffix} and {Path(other.path).suffix} in turn"
        lines = [60 + STEP * number for number in range(n_places)]
        yield names, [(file, file.place(line)) for line in lines for file in (one, other)]


def opened(mirrors: Mirrors, folder: Path) -> list[File]:
    """Return the files, with their repositories around them in a folder."""
    files = list[File]()
    for repository, path in FILES:
        root = folder / repository.rpartition("/")[2]
        root.mkdir()
        mirrors.checkout(repository, "HEAD", root)
        (root / ".git").mkdir(exist_ok=True)  # where the workspace begins
        text, language = (root / path).read_text("utf-8"), languages.for_path(path)
        document = Document((root / path).as_uri(), language.name if language else "", text)
        files.append(File(path, text, ContextReader().read(root / path, document)))
    return files


def report(name: str, rows: Sequence[Row]) -> str:
    """Return a row of the table: all but the first place, whose text was never read before."""
    rows = rows[1:]
    n_asked = sum(row.n_asked for row in rows)
    cells = [
        f"{statistics.median(row.ahead_ms for row in rows):.0f}",
        f"{statistics.median(row.answer_ms for row in rows):.0f}",
        str(n_asked),
        f"{sum(row.n_reused for row in rows) / max(n_asked, 1):.2f}",
        f"{statistics.median(row.n_text for row in rows):.0f}",
        str(sum(row.is_late for row in rows)),
        f"{sum(row.is_right for row in rows)} of {len(rows)}",
    ]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirror", type=Path, required=True, metavar="DIR", help="the folder of the git folders")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--look", type=float, default=2.5, metavar="S", help="seconds of processor time at most")
    parser.add_argument("--deadline", type=int, default=1500, metavar="MS")
    parser.add_argument("--places", type=int, default=10, metavar="N", help="of each move")
    parser.add_argument("--only", default="", metavar="WORD", help="only the moves whose name has it")
    options = parser.parse_args()
    walker = Walker(options)
    print("| | ahead ms | answer ms | tokens asked | reused | of the file | late | right |", flush=True)
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    with tempfile.TemporaryDirectory(prefix="walk-") as folder:
        for name, places in moves(opened(Mirrors(options.mirror), Path(folder)), options.places):
            if options.only in name:
                print(report(name, [walker.visit(file, line) for file, line in places]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
