"""Write edits as a unified diff that `git apply` and `patch -p1` accept.

Both tools end a line only at a line feed, so carriage returns and form feeds are part of a line here. The diff is built
from the edits themselves: it shows exactly what was changed, and needs no search for common lines.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from dg_lsp.core.values import Edit, Span, apply, n_common

N_CONTEXT = 3


@dataclass(frozen=True, slots=True)
class _Change:
    """The old lines `start..end` become `lines`."""

    start: int
    end: int
    lines: tuple[str, ...]


def unified(name: str, text: str, edits: Sequence[Edit]) -> str:
    """Return the diff of one file; "" if the edits change nothing. `name` is its path from the folder where it will be applied.

    There is no `diff --git` line. With it, git reads names as relative to the top of the repository; without it, as relative
    to the current folder, like patch.
    """
    old = _lines(text)
    hunks, shift = [f"--- {_quoted('a/' + name)}\n+++ {_quoted('b/' + name)}\n"], 0
    for group in _near(_changes(old, text, edits)):
        hunks.append(_hunk(old, group, shift))
        shift += sum(_count(change.lines) - _count(old[change.start : change.end]) for change in group)
    return "".join(hunks) if len(hunks) > 1 else ""


def _lines(text: str) -> list[str]:
    """Return the lines with their line ends. The text after the last line end is also a line, often empty."""
    *whole, rest = text.split("\n")
    return [*(line + "\n" for line in whole), rest]


def _changes(old: list[str], text: str, edits: Sequence[Edit]) -> Iterator[_Change]:
    starts = [0, *accumulate(map(len, old[:-1]))]
    for first, last, touching in _touching(starts, edits):
        begin, end = starts[first], starts[last] if last < len(starts) else len(text)
        moved = tuple(Edit(Span(edit.span.start - begin, edit.span.end - begin), edit.text) for edit in touching)
        new = _lines(apply(text[begin:end], moved))
        if last < len(old):
            new.pop()  # the text after the block's last line end is the next line's
        before = old[first:last]
        n_head = n_common(before, new)
        n_tail = n_common(before[n_head:][::-1], new[n_head:][::-1])
        change = _Change(first + n_head, last - n_tail, tuple(new[n_head : len(new) - n_tail]))
        if change.lines or change.start < change.end:
            yield change


def _touching(starts: list[int], edits: Sequence[Edit]) -> Iterator[tuple[int, int, list[Edit]]]:
    """Yield groups of edits that share a line, each with its first line and the line after its last."""
    group: list[Edit] = []
    first = last = 0
    for edit in sorted(edits, key=lambda edit: edit.span):
        begins, ends = bisect_right(starts, edit.span.start) - 1, bisect_right(starts, edit.span.end)
        if group and begins < last:
            group.append(edit)
            last = max(last, ends)
            continue
        if group:
            yield first, last, group
        group, first, last = [edit], begins, ends
    if group:
        yield first, last, group


def _near(changes: Iterator[_Change]) -> Iterator[list[_Change]]:
    """Yield groups of changes that share a hunk, because their context would touch."""
    group: list[_Change] = []
    for change in changes:
        if group and change.start - group[-1].end > 2 * N_CONTEXT:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _hunk(old: list[str], group: list[_Change], shift: int) -> str:
    first, last = max(0, group[0].start - N_CONTEXT), min(len(old), group[-1].end + N_CONTEXT)
    body, at, n_new = [], first, 0
    for change in group:
        context = old[at : change.start]
        body += [*_marked(" ", context), *_marked("-", old[change.start : change.end]), *_marked("+", change.lines)]
        n_new += _count(context) + _count(change.lines)
        at = change.end
    body += _marked(" ", old[at:last])
    n_new += _count(old[at:last])
    return f"@@ -{_range(first, _count(old[first:last]))} +{_range(first + shift, n_new)} @@\n" + "".join(body)


def _marked(mark: str, lines: Sequence[str]) -> list[str]:
    with_marks = (mark + line for line in lines if line)
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in with_marks]


def _count(lines: Sequence[str]) -> int:
    return sum(map(bool, lines))


def _range(first: int, n_lines: int) -> str:
    return f"{first + 1 if n_lines else first},{n_lines}"


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
