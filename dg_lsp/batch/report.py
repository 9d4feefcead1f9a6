"""Show a run to the user: its report as one object for programs and as lines for the terminal, and its diff.

Pure; callers print the texts. docs/infill.md describes the object.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import unified_diff
from typing import Any, Literal

from dg_lsp.batch.discover import OTHER_REPOSITORY, Skipped
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.plan import FilePlan, line_column, symbols_of
from dg_lsp.core import confidence, polish, positions
from dg_lsp.core.wording import counted
from dg_lsp.infill.fill import Fill
from dg_lsp.wire.visible import one_line

Status = Literal["filled", "unsure", "failed"]
WRONG_USE, TRY_AGAIN = 2, 3
"""Exit codes: options or setup are wrong; the engine or the network failed."""
FAIL_ON = ("open", "failed", "any", "never")
MAX_NAMED = 5  # of other repositories, in the line before the work
VERSION = 1
"""The version of the report and of the list of a dry run; incremented by incompatible changes.

docs/infill-report.schema.json is the schema of the report.
"""


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One hole, with a field for each of the report's. `text` is the fill in the diff or the file; empty if it stays open.

    `retry` says that the engine or the network failed, so that another run may fill the hole.
    """

    path: str
    line: int
    column: int
    kind: str
    status: Status
    text: str
    probability: float | None
    verified: str
    steps: int
    ms: float
    reason: str
    retry: bool
    candidates: tuple[dict[str, object], ...]


def rows(result: FileResult) -> list[ReportRow]:
    """Return a row for each hole of the file, in the order of the text."""
    source = result.plan.source
    lines = positions.lines(source.document.text)
    rows_of_file = []
    for hole in result.plan.holes:
        decision = result.decisions[hole]
        fill, answer = decision.fill, decision.answer
        line, column = line_column(lines, hole)
        rows_of_file.append(
            ReportRow(
                path=source.name,
                line=line,
                column=column,
                kind=hole.kind,
                status="filled" if fill else "unsure" if decision.is_unsure else "failed",
                text=fill.edit.text if fill else "",
                probability=_probability(fill) if fill else None,
                verified=decision.proof,
                steps=fill.steps if fill else 0,
                ms=round(answer.ms, 1),
                reason=decision.reason,
                retry=not fill and answer.is_lost,
                candidates=tuple(
                    {"text": each.edit.text, "probability": _probability(each)}
                    for each in (() if fill else decision.candidates)
                ),
            )
        )
    return rows_of_file


def note(plan: FilePlan) -> str:
    """Return a note about the file before it is filled, or ""."""
    if plan.syntax is None or not plan.syntax.errors:
        return ""
    first = plan.syntax.errors[0].start
    line, _ = positions.to_position(positions.lines(plan.source.document.text), first, "utf-32")
    return f"does not parse (line {line + 1}); its holes are filled anyway"


def build(rows: Sequence[ReportRow], skipped: Iterable[Skipped], notes: Mapping[str, str], **facts: Any) -> dict[str, Any]:
    """Return the report as `--json` prints it; `facts` are added to the summary."""
    files = [{"path": skip.name, "status": "skipped", "reason": skip.reason} for skip in skipped]
    files += [{"path": name, "status": "noted", "reason": reason} for name, reason in notes.items()]
    summary = {**counts(rows), **facts}
    return {"version": VERSION, "holes": [asdict(row) for row in rows], "files": files, "summary": summary}


def before(skipped: Sequence[Skipped], notes: Mapping[str, str], n_by_option: Mapping[str, int]) -> list[str]:
    """Return the lines that are shown before the work: skipped files, notes, and the options that left holes out."""
    others = [skip.name for skip in skipped if skip.reason == OTHER_REPOSITORY]
    lines = [
        f"skipped {skip.name}: it {skip.reason}" for skip in skipped if skip.reason != OTHER_REPOSITORY or len(others) == 1
    ]
    if len(others) > 1:
        more = f" and {len(others) - MAX_NAMED} more" if others[MAX_NAMED:] else ""
        lines.append(f"skipped {', '.join(others[:MAX_NAMED])}{more}: each {OTHER_REPOSITORY}")
    lines += [f"{name} {text}" for name, text in notes.items()]
    return lines + [f"{counted(n, 'hole')} left out by {option}" for option, n in n_by_option.items()]


def counts(rows: Sequence[ReportRow]) -> dict[str, int]:
    """Return how many holes there are, how many of each status, and how many fills a check verified."""
    by_status = {status: sum(row.status == status for row in rows) for status in ("filled", "unsure", "failed")}
    n_verified = sum(bool(row.verified) for row in rows)
    return {"files": len({row.path for row in rows}), "holes": len(rows), **by_status, "verified": n_verified}


def open_holes(rows: Sequence[ReportRow]) -> list[str]:
    """Return one line for each hole that was not filled."""
    words = {"unsure": "unsure", "failed": "not filled"}
    return [f"{row.path}:{row.line}:{row.column}: {words[row.status]}: {row.reason}" for row in rows if row.status != "filled"]


def summary(rows: Sequence[ReportRow], seconds: float, *, written: bool) -> str:
    """Return the last line on the terminal."""
    total = counts(rows)
    if not total["holes"]:
        return "no holes found"
    verified = f" ({total['verified']} verified)" if total["verified"] else ""
    open_parts = "".join(f", {name} {total[name]}" for name in ("unsure", "failed") if total[name])
    done = f"{'wrote' if written else 'filled'} {total['filled']} of {counted(total['holes'], 'hole')}{verified}{open_parts}"
    return f"{done} in {counted(total['files'], 'file')}, {seconds:.1f} s"


def advice(rows: Sequence[ReportRow], *, has_check: bool) -> str:
    """Return advice on the holes that stayed open, or ""."""
    unsure = [row for row in rows if row.status == "unsure"]
    if not unsure:
        is_refused = any(row.status == "failed" and polish.SHRINKS in row.reason for row in rows)
        return "--allow-shrink lets a fill shorten working code" if is_refused else ""
    remedies = ["a stronger model (--model)"]
    if not has_check:
        remedies.append("a check that proves fills (--check 'pytest -q')")
    if any(candidate["probability"] is None for row in unsure for candidate in row.candidates):
        remedies.append("dg-lsp calibrate, which measures the model's probabilities")
    return f"to decide unsure holes: {'; '.join(remedies)}; --all accepts every fill"


def exit_code(rows: Sequence[ReportRow], fail_on: str = "open") -> int:
    """Return 3 if another run may fill a hole, 1 if there are holes of the kind in `fail_on` (one of `FAIL_ON`), else 0."""
    if any(row.retry for row in rows):
        return TRY_AGAIN
    failing = {"open": ("unsure", "failed"), "failed": ("failed",), "any": ("filled", "unsure", "failed"), "never": ()}
    return int(any(row.status in failing[fail_on] for row in rows))


def _probability(fill: Fill) -> float | None:
    value = confidence.probability(fill.confidence)
    return None if value is None else round(value, 4)


# --- The list of a dry run


def list_lines(plans: Sequence[FilePlan]) -> str:
    """Return the list for the terminal: the counts, then each hole with its place, kind and symbol."""
    lines = [f"{counted(sum(len(plan.holes) for plan in plans), 'hole')} in {counted(len(plans), 'file')}"]
    lines += [f"{row['path']}:{row['line']}:{row['column']}: {row['kind']} {row['symbol']}".rstrip() for row in _rows(plans)]
    # A file's name may contain a line break, and each hole has one line.
    return "".join(f"{one_line(line)}\n" for line in lines)


def build_list(plans: Sequence[FilePlan], skipped: Iterable[Skipped], left_out: Mapping[str, int]) -> dict[str, Any]:
    """Return the same as an object, for `--json`."""
    files = [{"path": skip.name, "status": "skipped", "reason": skip.reason} for skip in skipped]
    return {"version": VERSION, "holes": list(_rows(plans)), "files": files, "left_out": dict(left_out)}


def _rows(plans: Sequence[FilePlan]) -> Iterator[dict[str, Any]]:
    for plan in plans:
        text_lines = positions.lines(plan.source.document.text)
        for hole in plan.holes:
            line, column = line_column(text_lines, hole)
            place = {"path": plan.source.name, "line": line, "column": column}
            symbol = max(symbols_of(plan, hole), key=lambda name: name.count("."), default="")
            yield {**place, "kind": hole.kind, "language": plan.source.document.language, "symbol": symbol}


# --- A unified diff that `git apply` and `patch -p1` accept. Both tools end a line only at a line feed, so carriage returns and
# form feeds are part of a line here.


def unified(name: str, before: str, after: str) -> str:
    """Return the diff of one file; "" if nothing changed. `name` is its path from the folder where it will be applied.

    There is no `diff --git` line. With it, git reads names as relative to the top of the repository; without it, as relative
    to the current folder, like patch.
    """
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", each) for each in (before, after))
    lines = unified_diff(old, new, _quoted(f"a/{name}"), _quoted(f"b/{name}"))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def patch_file(diff: bytes) -> bytes:
    """Return the content of a patch file of ours, also without a diff: a line that `git apply` and `patch` skip, and the diff.

    The line has the diff's hash, so that a file which the user changed is not ours any more.
    """
    return f"# dg-lsp infill --patch {hashlib.sha256(diff).hexdigest()[:16]}\n".encode() + diff


def is_patch_file(data: bytes) -> bool:
    """Return whether this is the content of a patch file of ours, unchanged."""
    return data == patch_file(data.partition(b"\n")[2])


def _quoted(name: str) -> str:
    """Return the name as git writes it: quoted if it contains a quote, a backslash or a character that can't be shown.

    These are control characters, also those above 0x7f and those that reverse the direction of text, and bytes that are not
    UTF-8. A tab follows a name with a space, because patch stops reading there.
    """
    if any(char in '"\\' or not char.isprintable() for char in name):
        return '"' + "".join(_escaped(char) for char in name) + '"'
    return f"{name}\t" if " " in name else name


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return char if char.isprintable() else "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))
