"""Choose the text that the model reads: both sides of the holes, and related text from other files.

Text is cut by characters, at line starts. The engine cuts again by tokens, which only it knows. This module reads no
files: the caller passes the related text, which `infill.workspace` finds.
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from dg_lsp.core import languages
from dg_lsp.core.holes import markers
from dg_lsp.core.values import Budget, Document, Hole, InfillRequest, Snippet, Span

if TYPE_CHECKING:
    from dg_lsp.core.syntax import Syntax

# Text between holes takes up canvas tokens, and each token costs time. More holes than this in one request degrade each
# other's answers.
BETWEEN_CHARS = 400
GROUP_HOLES = 4

# File extensions of languages that import a folder, and with it all of its files.
FOLDER_ENDINGS = tuple(ending for one in languages.TABLE if one.imports_folders for ending in one.extensions)

_LINE_END = re.compile("\r\n|\r")

Signatures = tuple[tuple[Span, str], ...]
"""The signature and span of each definition of a file, in order."""


def build(
    document: Document,
    holes: Sequence[Hole],
    *,
    syntax: Syntax | None = None,
    signatures: Signatures | None = None,
    related: Sequence[Snippet] = (),
    path: str = "",
    window_chars: int = 24_000,
    budget: Budget | None = None,
    seed: int = 0,
) -> InfillRequest:
    r"""Return the request for the holes of one document, with at most `window_chars` of text on each side of them.

    Line ends become `\n`, and a byte order mark is removed; `polish` restores the file's own line ends. FILL comments in the
    lines before and after are left out, but for one just before the hole. The file's `signatures` outside the window become
    the first related text; by default they are those of `syntax`.

    Raises ValueError when there is no hole, or when holes overlap, are out of order or lie outside the text.
    """
    text = document.text
    if not holes:
        raise ValueError("a request needs at least one hole")
    if any(left.span.end > right.span.start for left, right in pairwise(holes)):
        raise ValueError("holes overlap or are out of order")
    if holes[-1].span.end > len(text):
        raise ValueError(f"a hole ends at {holes[-1].span.end}, beyond the text's {len(text)} characters")
    window = _window(text, Span(holes[0].span.start, holes[-1].span.end), window_chars)
    before, after = Span(window.start, holes[0].span.start), Span(holes[-1].span.end, window.end)
    marks = _marks_of_others(document, syntax, before, after)
    texts = [
        _without(text, before, marks),
        *(text[left.span.end : right.span.start] for left, right in pairwise(holes)),
        _without(text, after, marks),
    ]
    if window.start == 0:
        texts[0] = texts[0].removeprefix("\ufeff")
    leads = ["", *(hole.trail for hole in holes)]
    trails = [*(hole.lead for hole in holes), ""]
    prefix, *between, suffix = (
        lead + with_newlines(part) + trail for lead, part, trail in zip(leads, texts, trails, strict=True)
    )
    if signatures is None:
        signatures = syntax.outline if syntax is not None else ()
    shown = outline(signatures, window, path)
    return InfillRequest(
        prefix=prefix,
        suffix=suffix,
        holes=tuple(holes),
        between=tuple(between),
        language=document.language,
        path=path,
        related=(*((shown,) if shown else ()), *related),
        budget=budget or Budget(),
        seed=seed,
    )


def _marks_of_others(document: Document, syntax: Syntax | None, before: Span, after: Span) -> list[Span]:
    """Return the spans of FILL comments in the lines above and below, but for one just before the hole.

    A small model that reads the marks of other holes writes such a mark instead of an answer.
    """
    text = document.text
    if text.find("FILL", before.start, before.end) < 0 and text.find("FILL", after.start, after.end) < 0:
        return []
    line, below = text.rfind("\n", 0, before.end) + 1, text.find("\n", after.start)
    return [
        span
        for span in (mark.span for mark in markers(document, syntax))
        if (span.end <= line and text[span.end : before.end].strip()) or 0 <= below <= span.start
    ]


def _without(text: str, part: Span, marks: Sequence[Span]) -> str:
    """Return a part of the text without the marks in it, which are in order, and without lines that hold nothing else."""
    pieces, at = [], part.start
    for mark in marks:
        start, end = mark.start, mark.end
        if start < at or end > part.end:
            continue
        line_start, line_end = text.rfind("\n", 0, start) + 1, text.find("\n", end, part.end) + 1
        if at <= line_start and line_end and not f"{text[line_start:start]}{text[end:line_end]}".strip():
            start, end = line_start, line_end
        pieces.append(text[at:start])
        at = end
    return "".join([*pieces, text[at : part.end]])


def group(
    holes: Sequence[Hole], *, max_chars: int = BETWEEN_CHARS, max_holes: int = GROUP_HOLES
) -> tuple[tuple[Hole, ...], ...]:
    """Return the holes in document order, in groups that share a request.

    A group has at most `max_holes` holes and at most `max_chars` of fixed text between its first and last hole.
    Overlapping holes never share a group.
    """
    groups: list[list[Hole]] = []
    fixed = 0
    for hole in sorted(holes, key=lambda hole: hole.span):
        apart = hole.span.start - groups[-1][-1].span.end if groups else 0
        fixed += apart
        if groups and apart >= 0 and fixed <= max_chars and len(groups[-1]) < max_holes and hole.span != groups[-1][-1].span:
            groups[-1].append(hole)
        else:
            groups.append([hole])
            fixed = 0
    return tuple(tuple(part) for part in groups)


def outline(signatures: Signatures, around: Span, path: str = "") -> Snippet | None:
    """Return the signatures outside the span, or None if there are none."""
    lines = [with_newlines(text) for span, text in signatures if span.end <= around.start or span.start >= around.end]
    return Snippet(path, "\n".join(lines)) if lines else None


def with_instruction(request: InfillRequest) -> str:
    """Return the prefix with the first hole's instruction as a comment: in a line before the hole, or above its line of code.

    The prefix alone is returned if there is no instruction, or no line comment in the language. A model that was trained only
    on source files takes instructions in no other form.
    """
    hole, language, prefix = request.holes[0], languages.row(request.language), request.prefix
    if not hole.instruction or not language.line_comments:
        return prefix
    comment = f"{language.line_comments[0]} {' '.join(hole.instruction.split())}\n"
    here = request.place
    if hole.extent == "block" or here.starts_line:
        return f"{prefix}{comment}{hole.indent}"
    return f"{prefix.removesuffix(here.head)}{here.indent}{comment}{here.head}"


def imports(text: str, language: str) -> tuple[str, ...]:
    """Return the names of modules and files that the text imports, as written, without duplicates, in order."""
    return tuple(dict.fromkeys(languages.row(language).imports(text)))


def name_parts(name: str) -> list[str]:
    """Return the parts of an imported name, outermost first, without relative parts such as `self` and `~`."""
    return [part for part in re.split(r"::|[./\\]+", _EXTENSION.sub("", name)) if part and part not in _HERE]


def with_newlines(text: str) -> str:
    r"""Return the text with `\n` line ends, as the model reads it."""
    return _LINE_END.sub("\n", text)


def _window(text: str, inner: Span, window_chars: int) -> Span:
    """Return the part of the text to send, cut at line starts, or within a line that is longer than the window.

    Its start moves in steps, because what a model or a server has encoded counts only from the start on.
    """
    step = max(1, window_chars // 8)
    start = -(-max(0, inner.start - window_chars) // step) * step
    if start and text[start - 1] not in "\r\n":
        starts = re.compile(r"\r\n|\r|\n").search(text, start, inner.start)
        start = starts.end() if starts else start
    end = min(len(text), inner.end + window_chars)
    if end < len(text) and text[end - 1 : end] not in ("\r", "\n"):
        last = max(text.rfind("\n", inner.end, end), text.rfind("\r", inner.end, end))
        end = last + 1 if last >= 0 else end
    return Span(start, end)


# Path parts that are relative to the importing file.
_HERE = frozenset({"crate", "self", "super", "@", "~"})
_EXTENSION = re.compile(r"(?<=\w)\.(?:[cm]?[jt]sx?|py|h|hh|hpp|hxx|inc|rb|php|lua|sh|bash)$")


# --- Paragraphs of other files that resemble the lines around a place. These say more about the names that a hole needs than
# the file's imports do: code that has the same rare names often has the missing one too

LEAST_LINES, MOST_LINES = 4, 16
"""A blank line ends a paragraph of at least so many lines; a longer one is divided."""
LINES_ABOVE, LINES_BELOW = 24, 8
HALF_LINES = 4  # a name counts half at this distance from the place
BELOW_SHARE = 0.7  # what a name below the place counts, compared with one above
N_FILES = 256  # files whose paragraphs are cached

_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class _Paragraphs:
    """The paragraphs of a file, the number of different names in each, and for each name the paragraphs that have it."""

    texts: tuple[str, ...]
    sizes: tuple[int, ...]
    by_name: dict[str, tuple[int, ...]]


def paragraphs(above: str, below: str, files: Sequence[Snippet], limit_chars: int) -> tuple[Snippet, ...]:
    """Return the paragraphs of the files that have most in common with the lines above and below a place, best first.

    They have at most `limit_chars` characters in all, the last of them cut at a line end, and each shares a name with these
    lines. A name counts by how rare it is in the files and by how near it is. Files with the same paragraph give it once.
    """
    nearness = _nearness(above, below)
    indexed = [_divided(file.text) for file in files] if nearness and limit_chars > 0 else []
    n_all = sum(len(each.texts) for each in indexed)
    scores = defaultdict[tuple[int, int], float](float)
    for name, near in nearness.items():
        places = [(number, at) for number, each in enumerate(indexed) for at in each.by_name.get(name, ())]
        for place in places:
            scores[place] += near * math.log((n_all + 1) / len(places))
    # A long paragraph has many names by chance.
    ranked = sorted(scores, key=lambda place: (-scores[place] / math.sqrt(indexed[place[0]].sizes[place[1]]), place))
    chosen = dict[str, Snippet]()
    for number, at in ranked:
        text = indexed[number].texts[at]
        if text in chosen:
            continue
        end = len(text) if len(text) <= limit_chars else text.rfind("\n", 0, limit_chars) + 1
        if not end:
            break
        chosen[text] = Snippet(files[number].path, text[:end])
        limit_chars -= end
    return tuple(chosen.values())


MOST_SHOWN = 24  # snippets that may stay


@dataclass(slots=True)
class ShownBefore:
    """What requests of one document have shown of other files, and of its own text far away."""

    _snippets: tuple[Snippet, ...] = ()

    def again(self, request: InfillRequest, files: Sequence[Snippet]) -> tuple[Snippet, ...]:
        """Return what was shown before and may stay, because the files still have it; remember what the request shows."""
        paths = {each.path for each in self._snippets}
        texts = {file.path: with_newlines(file.text) for file in files if file.path in paths}
        here = [each for each in self._snippets if each.path == request.path or each.text.rstrip() in texts.get(each.path, "")]
        shown = tuple(each for each in request.related if not each.for_copying)
        self._snippets = tuple(dict.fromkeys((*shown, *here)))[:MOST_SHOWN]
        return tuple(replace(each, was_shown=True) for each in here if each not in shown)


def divide(files: Sequence[Snippet]) -> None:
    """Divide the files, which takes up to 40 ms for 24 of them, so that `paragraphs` need not."""
    for file in files:
        _divided(file.text)


def _nearness(above: str, below: str) -> dict[str, float]:
    """Return the names in the lines around a place, and how near each is: from 1 towards 0."""
    sides = ((above.split("\n")[: -LINES_ABOVE - 1 : -1], 1.0), (below.split("\n")[:LINES_BELOW], BELOW_SHARE))
    nearness = dict[str, float]()
    for lines, share in sides:
        for distance, line in enumerate(lines):
            for name in _WORD.findall(line):
                nearness[name] = max(nearness.get(name, 0.0), share / (1 + distance / HALF_LINES))
    return nearness


@functools.lru_cache(N_FILES)
def _divided(text: str) -> _Paragraphs:
    texts, lines = list[str](), list[str]()
    for line in [*with_newlines(text.removeprefix("\ufeff")).split("\n"), ""]:
        lines += [line] if line.strip() or lines else []
        if len(lines) >= (MOST_LINES if line.strip() else LEAST_LINES):
            texts.append("\n".join(lines).rstrip() + "\n")
            lines = []
    texts += ["\n".join(lines).rstrip() + "\n"] if lines else []
    names = [frozenset(_WORD.findall(each)) for each in texts]
    by_name = defaultdict[str, list[int]](list)
    for at, own in enumerate(names):
        for name in own:
            by_name[name].append(at)
    sizes = tuple(max(len(own), 1) for own in names)
    return _Paragraphs(tuple(texts), sizes, {name: tuple(places) for name, places in by_name.items()})
