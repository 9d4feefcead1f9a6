"""Decide what the model reads: the text on both sides of the holes, and related text from elsewhere.

Everything is cut by characters and at line starts; the engine, which alone knows tokens, cuts again. Knows nothing of
files: related text is handed in (`infill.workspace` finds it).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from dg_lsp.core import languages
from dg_lsp.core.values import Budget, Document, Hole, InfillRequest, Snippet, Span

if TYPE_CHECKING:
    from dg_lsp.core.syntax import Syntax

# Text between two holes stands on the canvas, where every token costs; more holes than this also blur each other.
BETWEEN_CHARS = 400
GROUP_HOLES = 4

# Endings of files that are imported by the name of their folder, all of its files at once.
FOLDER_ENDINGS = tuple(ending for one in languages.TABLE if one.imports_folders for ending in one.extensions)

# What one related file may contribute, so that a single long one does not crowd the others out.
EXCERPT_CHARS = 2_000

_LINE_END = re.compile("\r\n|\r")
_WORD = re.compile(r"[^\W\d]\w{2,}")


def build(
    document: Document,
    holes: Sequence[Hole],
    *,
    syntax: Syntax | None = None,
    related: Sequence[Snippet] = (),
    path: str = "",
    window_chars: int = 24_000,
    budget: Budget | None = None,
    seed: int = 0,
    previous: str = "",
) -> InfillRequest:
    r"""Return the request for holes of one document, with at most `window_chars` of text on each side of them.

    Line ends become `\n` and a byte order mark is left out; `polish` restores what the file has. With `syntax`, the
    signatures of this file that lie outside the window come first among the related text.
    Raises ValueError when there is no hole, or when holes overlap, are out of order or lie outside the text.
    """
    _check(document, holes)
    text = document.text
    window = _window(text, Span(holes[0].span.start, holes[-1].span.end), window_chars)
    texts = [
        text[window.start : holes[0].span.start],
        *(text[left.span.end : right.span.start] for left, right in pairwise(holes)),
        text[holes[-1].span.end : window.end],
    ]
    if window.start == 0:
        texts[0] = texts[0].removeprefix("\ufeff")
    leads = ["", *(hole.trail for hole in holes)]
    trails = [*(hole.lead for hole in holes), ""]
    prefix, *between, suffix = (
        lead + with_newlines(part) + trail for lead, part, trail in zip(leads, texts, trails, strict=True)
    )
    signatures = outline(syntax, window, path) if syntax is not None else None
    return InfillRequest(
        prefix=prefix,
        suffix=suffix,
        holes=tuple(holes),
        between=tuple(between),
        language=document.language,
        path=path,
        related=(*((signatures,) if signatures else ()), *related),
        budget=budget or Budget(),
        seed=seed,
        previous=with_newlines(previous),
    )


def group(
    holes: Sequence[Hole], document: Document, *, max_chars: int = BETWEEN_CHARS, max_holes: int = GROUP_HOLES
) -> tuple[tuple[Hole, ...], ...]:
    """Return the holes in the order of the text, those of one request together.

    Holes share a request while the fixed text between the first and the last is at most `max_chars`, and they are at
    most `max_holes`. Overlapping holes never do.
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


def outline(syntax: Syntax, around: Span, path: str = "") -> Snippet | None:
    """Return the signatures of the file that lie outside the span, or None where there is none."""
    lines = [with_newlines(text) for span, text in syntax.outline() if span.end <= around.start or span.start >= around.end]
    return Snippet(path, "\n".join(lines)) if lines else None


def rank_related(document: Document, candidates: Sequence[Snippet], limit_chars: int) -> tuple[Snippet, ...]:
    """Return the most useful candidates, best first, together at most `limit_chars` long.

    Files that the document imports come before others, and in each class those that share more of its identifiers.
    A long text is cut to the lines that share the most. What shares no identifier and is not imported is left out.
    """
    names = imports(document.text, document.language)
    words = frozenset(_WORD.findall(document.text))
    scored = []
    for idx, candidate in enumerate(candidates):
        imported = is_imported(candidate.path, names)
        shared = _overlap(words, candidate.text)
        if imported or shared:
            scored.append((not imported, -shared, idx, candidate))
    excerpts, n_left = [], limit_chars
    for *_, candidate in sorted(scored, key=lambda row: row[:3]):
        part = excerpt(candidate, words, min(n_left, EXCERPT_CHARS))
        if part.text.strip():
            excerpts.append(part)
            n_left -= len(part.text)
    return tuple(excerpts)


def excerpt(snippet: Snippet, words: frozenset[str], max_chars: int) -> Snippet:
    """Return the run of whole lines, at most `max_chars` long, that shares the most identifiers with `words`."""
    text = with_newlines(snippet.text.removeprefix("\ufeff"))
    if len(text) <= max_chars:
        return Snippet(snippet.path, text)
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    line_words = [words.intersection(_WORD.findall(line)) for line in lines]
    counts: dict[str, int] = {}
    best, best_score = (0, 0), (0, 0)
    begin = size = 0
    for end, line in enumerate(lines):
        size += len(line)
        for word in line_words[end]:
            counts[word] = counts.get(word, 0) + 1
        while size > max_chars:
            size -= len(lines[begin])
            for word in line_words[begin]:
                counts[word] -= 1
                if not counts[word]:
                    del counts[word]
            begin += 1
        if counts and (len(counts), size) > best_score:
            best, best_score = (begin, end + 1), (len(counts), size)
    return Snippet(snippet.path, "".join(lines[slice(*best)]))


def instruction(request: InfillRequest) -> str:
    """Return the first hole's instruction as a comment line to stand before it, or "" where there is none to write.

    A model that was trained on files alone knows no other way to be told.
    """
    hole, language = request.holes[0], languages.get(request.language) if request.language else None
    if not hole.instruction or language is None or not language.line_comments:
        return ""
    return f"{language.line_comments[0]} {' '.join(hole.instruction.split())}\n{hole.indent}"


def imports(text: str, language: str) -> tuple[str, ...]:
    """Return the names of modules and files that the text imports, as it writes them, each once, in its order."""
    known = languages.get(language)
    return tuple(dict.fromkeys(known.imports(text))) if known else ()


def is_imported(path: str, names: Iterable[str]) -> bool:
    """Return whether one of the names may mean the file at this path, judged by the path's last parts alone."""
    parts = re.split(r"[/\\]", path)
    stem = parts[-1].split(".")[0] if not parts[-1].startswith(".") else parts[-1]
    if parts[-1].endswith(FOLDER_ENDINGS):
        return any(_in_folder(parts[:-1], name) for name in names)
    parts = parts[:-1] if stem in _PACKAGE_FILES else [*parts[:-1], stem]
    return bool(parts) and any(_ends_with(parts, name) for name in names)


def name_parts(name: str) -> list[str]:
    """Return the parts of an imported name, outermost first, without what stands for the importing file's own place."""
    return [part for part in re.split(r"::|[./\\]+", _EXTENSION.sub("", name)) if part and part not in _HERE]


def with_newlines(text: str) -> str:
    r"""Return the text with `\n` for each of its line ends, as the model reads it."""
    return _LINE_END.sub("\n", text)


def _check(document: Document, holes: Sequence[Hole]) -> None:
    if not holes:
        raise ValueError("a request has at least one hole")
    if any(left.span.end > right.span.start for left, right in pairwise(holes)):
        raise ValueError("holes overlap or are out of order")
    if holes[-1].span.end > len(document.text):
        raise ValueError(f"a hole ends at {holes[-1].span.end}, beyond the text's {len(document.text)} characters")


def _window(text: str, inner: Span, window_chars: int) -> Span:
    """Return the part of the text to send: cut at line starts, or in mid-line where one line is longer than that."""
    start = max(0, inner.start - window_chars)
    if start and text[start - 1] not in "\r\n":
        starts = re.compile(r"\r\n|\r|\n").search(text, start, inner.start)
        start = starts.end() if starts else start
    end = min(len(text), inner.end + window_chars)
    if end < len(text) and text[end - 1 : end] not in ("\r", "\n"):
        last = max(text.rfind("\n", inner.end, end), text.rfind("\r", inner.end, end))
        end = last + 1 if last >= 0 else end
    return Span(start, end)


def _overlap(words: frozenset[str], text: str) -> float:
    """Return the share of the text's identifiers that are among the words."""
    other = set(_WORD.findall(text))
    return len(words & other) / len(other) if other else 0.0


def _ends_with(parts: list[str], name: str) -> bool:
    ending = name_parts(name)
    if ending and ending[-1] in _PACKAGE_FILES:
        ending = ending[:-1]
    return bool(ending) and parts[-len(ending) :] == ending


def _in_folder(folder: list[str], name: str) -> bool:
    """Return whether the name ends with the folder; what comes before it may stand for the repository."""
    ending = name_parts(name)
    size = min(len(folder), len(ending))
    return size > 0 and folder[-size:] == ending[-size:]


# Files that stand for the folder they are in, and path parts that mean a place relative to the importing file.
_PACKAGE_FILES = frozenset({"__init__", "index", "mod", "init"})
_HERE = frozenset({"crate", "self", "super", "@", "~"})
_EXTENSION = re.compile(r"(?<=\w)\.(?:[cm]?[jt]sx?|py|h|hh|hpp|hxx|inc|rb|php|lua|sh|bash)$")
