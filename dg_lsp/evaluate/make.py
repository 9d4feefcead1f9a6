"""Cut infilling tasks from source files, in any known language.

There are five kinds: the rest of a line from a position inside it, a whole line without its indentation, the block of a
statement, the body of a function without its docstring, and a short span anywhere in a line. Only code is cut out,
never a comment, a docstring or a string of several lines.

Each pass over the files takes one task of a kind from each file, so that no long file dominates.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

from tree_sitter import Node

from dg_lsp.core import context, generated, languages, syntax
from dg_lsp.core.syntax import Owner, Syntax
from dg_lsp.core.values import Document, Span
from dg_lsp.evaluate.tasks import EvalError, Task
from dg_lsp.infill.ignoring import Ignore

KINDS = ("rest-of-line", "whole-line", "block", "body", "span")

# How many characters of the file a task keeps on each side, cut at line starts: more than a small model reads, so that
# there is text to copy from.
PROMPT_CHARS, SUFFIX_CHARS = 8_000, 4_000

LINE_CHARS = range(8, 101)  # a shorter line is punctuation, a longer one is data
SPAN_CHARS = (3, 14)
EDGE_CHARS = 3  # the least number of characters on each side of the cursor in a rest-of-line task
LINES = {"block": 8, "body": 12}
CHARS = {"block": range(10, 401), "body": range(15, 501)}
MAX_SAME = 2  # how often the same answer may occur within a kind
FILE_CHARS = range(100, 200_001)

_LICENCE = re.compile(r"licen[cs]e|copyright|SPDX|\(c\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Source:
    """A file to cut from. `barred` are the spans that are not code, `insides` the bodies of functions and classes."""

    path: str
    syntax: Syntax
    barred: tuple[Span, ...]
    insides: tuple[Span, ...]


def tasks(folder: Path, n: int, seed: int) -> list[Task]:
    """Return `n` tasks from a folder, equally many of each kind, ordered by place; fewer if its files have no more.

    The same files and seed give the same tasks. Raises EvalError if nothing can be read.
    """
    files = source_files(folder)
    sources: dict[str, Source | None] = {}
    contents: set[str] = set()

    def source(path: str) -> Source | None:
        if path not in sources:
            parsed_source = read(path, text_of(files[path]))
            squeezed = _squeezed(parsed_source.syntax.text) if parsed_source else ""
            sources[path] = parsed_source if squeezed not in contents else None
            contents.add(squeezed)
        return sources[path]

    made_tasks: list[Task] = []
    for number, kind in enumerate(KINDS):
        n_of_kind = n // len(KINDS) + (number < n % len(KINDS))
        made_tasks += _of_kind(kind, sorted(files), source, n_of_kind, seed)
    # Sorted, because neighbouring tasks from one file share most of their text, which makes the gzipped file small.
    return sorted(made_tasks, key=lambda task: (task.path, len(task.prompt), task.task_id))


def read(path: str, text: str) -> Source | None:
    """Return the parsed file, or None if its language is unknown, it is generated, or it does not parse (in time)."""
    text = context.with_newlines(text.removeprefix("\ufeff"))
    language = languages.for_path(path, text)
    if language is None or len(text) not in FILE_CHARS or generated.line_of(Document(path, language.name, text)):
        return None
    if path.endswith(language.stub_suffixes or "\0") or max(map(len, text.split("\n"))) > 400:
        return None
    tree = syntax.of(Document(path, language.name, text))
    if tree is not None and (body := _without_licence(tree)):
        tree = syntax.of(Document(path, language.name, body))
    if tree is None or tree.errors:
        return None
    nodes = [*tree.facts.all("comment"), *tree.facts.all("docstring")]
    barred = [tree.span(node) for node in nodes]
    barred += [span for span in map(tree.span, tree.facts.all("string")) if "\n" in tree.text[span.start : span.end]]
    return Source(path, tree, tuple(sorted(barred)), tuple(owner.inside for owner in tree.facts.owners))


def spans(source: Source, kind: str, draw: random.Random) -> list[Span]:
    """Return all spans of that kind that can be cut from the file, in order, but at most one per line.

    Raises KeyError for an unknown kind.
    """
    cuts = [span for span in _FINDERS[kind](source, draw) if not any(span.overlaps(other) for other in source.barred)]
    if kind in CHARS:
        texts = [source.syntax.text[span.start : span.end] for span in cuts]
        is_short = [len(text) in CHARS[kind] and text.count("\n") < LINES[kind] and _says_something(text) for text in texts]
        cuts = list(compress(cuts, is_short))
    return sorted(set(cuts))


def cut(source: Source, span: Span, kind: str) -> Task:
    """Return the task whose answer is the span."""
    text, lines = source.syntax.text, source.syntax.lines
    line, before, after = lines.at(span.start), text[: span.start], text[span.end :]
    if len(before) > PROMPT_CHARS:
        before = before[before.find("\n", len(before) - PROMPT_CHARS) + 1 :]
    if len(after) > SUFFIX_CHARS:
        after = after[: after.rfind("\n", 0, SUFFIX_CHARS) + 1]
    column = f":{span.start - lines.start(line) + 1}" if kind in ("rest-of-line", "span") else ""
    return Task(
        f"{kind}/{source.path}:{line + 1}{column}",
        before,
        after,
        text[span.start : span.end],
        kind=kind,
        language=source.syntax.language.name,
        path=source.path,
    )


def _of_kind(kind: str, paths: Sequence[str], source: Callable[[str], Source | None], n_tasks: int, seed: int) -> list[Task]:
    draw = random.Random(f"{seed}/{kind}")
    order, cut_tasks = list(paths), list[Task]()
    draw.shuffle(order)
    left: dict[str, list[Span]] = {}
    places, n_by_answer = set[tuple[str, str, str]](), Counter[str]()
    while order and len(cut_tasks) < n_tasks:
        for path in list(order):
            if len(cut_tasks) == n_tasks:
                break
            parsed_source = source(path)
            if path not in left:
                left[path] = spans(parsed_source, kind, draw) if parsed_source else []
                draw.shuffle(left[path])
            while parsed_source and left[path]:
                task = cut(parsed_source, left[path].pop(), kind)
                answer = _squeezed(task.answer)
                around = _squeezed(task.prompt[-160:]), answer, _squeezed(task.suffix[:160])
                # Nothing similar is cut again.
                if around not in places and n_by_answer[answer] < MAX_SAME:
                    places.add(around)
                    n_by_answer[answer] += 1
                    cut_tasks.append(task)
                    break
            if not left[path]:
                order.remove(path)
    return cut_tasks


# --- What can be cut --------------------------------------------------------------------------------------------------


def _lines(source: Source) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of the code in each line that is suitable for a task."""
    lines, text = source.syntax.lines, source.syntax.text
    for line in range(len(lines)):
        start = lines.start(line) + len(lines.indent(line))
        end = start + len(text[start : lines.end(line)].rstrip())
        inside = not source.insides or any(span.start <= start < span.end for span in source.insides)
        if inside and end - start in LINE_CHARS and _says_something(text[start:end]):
            yield start, end


def _short_spans(source: Source, draw: random.Random) -> Iterator[Span]:
    for line_start, line_end in _lines(source):
        start = draw.randint(line_start + 1, line_end - SPAN_CHARS[0])
        end = min(start + draw.randint(*SPAN_CHARS), line_end)
        if _says_something(source.syntax.text[start:end]):
            yield Span(start, end)


def blocks(source: Source) -> Iterator[Span]:
    """Yield each stretch of code that is indented more than the line that opens it, which works in every language."""
    tree = source.syntax
    owned = {span.start for span in source.insides}
    for token in tree.facts.all("opens"):
        opener = tree.span(token)
        if opener.end in owned:
            continue
        above, inside = tree.lines.at(opener.end), list[Span]()
        depth = len(tree.lines.indent(above).expandtabs(8))
        sibling: Node | None = token.next_sibling
        while sibling is not None:
            span = _filled(tree.span(sibling), tree)
            line = tree.lines.at(span.start)
            if line > above and len(tree.lines.indent(line).expandtabs(8)) > depth:
                inside.append(span)
            elif inside or line > above:
                break
            sibling = sibling.next_sibling
        if inside and _is_alone(span := Span(inside[0].start, inside[-1].end), tree):
            yield span
    yield from _inner(tree, "closure")


_FINDERS: dict[str, Callable[[Source, random.Random], Iterator[Span]]] = {
    "rest-of-line": lambda source, draw: (
        Span(draw.randint(start + EDGE_CHARS, end - EDGE_CHARS), end) for start, end in _lines(source)
    ),
    "whole-line": lambda source, draw: (Span(start, end) for start, end in _lines(source)),
    "block": lambda source, draw: blocks(source),
    "body": lambda source, draw: _inner(source.syntax, "function"),
    "span": _short_spans,
}


def _inner(tree: Syntax, kind: str) -> Iterator[Span]:
    for owner in tree.facts.owners:
        if owner.kind == kind and (span := body(owner, tree)):
            yield span


def body(owner: Owner, tree: Syntax) -> Span | None:
    """Return the span of a body's code after its docstring; None if it has no code or shares a line with other code."""
    facts, items = tree.facts, list(owner.items)
    while items and (facts.has("comment", items[0]) or facts.has("docstring", items[0])):
        items.pop(0)
    if not items or any(facts.has(name, item) for item in items for name in ("placeholder", "placeholder.weak")):
        return None
    start, end = _filled(tree.span(items[0]), tree).start, _filled(tree.span(items[-1]), tree).end
    span = Span(start, end)
    return span if tree.lines.at(start) > tree.lines.at(owner.inside.start) and _is_alone(span, tree) else None


def _filled(span: Span, tree: Syntax) -> Span:
    """Return the span without the surrounding white space that some grammars include in a node."""
    text = tree.text[span.start : span.end]
    return (
        Span(span.start + len(text) - len(text.lstrip()), span.end - len(text) + len(text.rstrip())) if text.strip() else span
    )


def _is_alone(span: Span, tree: Syntax) -> bool:
    """Return whether the span's lines contain nothing else."""
    lines, text = tree.lines, tree.text
    before = text[lines.start(lines.at(span.start)) : span.start]
    return not before.strip() and not text[span.end : lines.end(lines.at(span.end))].strip()


def _says_something(text: str) -> bool:
    return sum(map(str.isalnum, text)) >= 2


# --- Texts ------------------------------------------------------------------------------------------------------------


def _without_licence(tree: Syntax) -> str:
    """Return the text without the comments at its top if they state a licence, else ""."""
    end, states = 0, False
    for node in tree.facts.all("comment"):
        span = tree.span(node)
        if tree.text[end : span.start].strip():
            break
        states = states or bool(_LICENCE.search(tree.text[span.start : span.end]))
        end = span.end
    return tree.text[end:].lstrip() if states else ""


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def source_files(folder: Path) -> dict[str, Path]:
    """Return the source files in the folder by their relative paths, in which bytes that are not characters are escaped."""
    if not folder.is_dir():
        raise EvalError(f"{folder} is not a folder")
    ignore = Ignore(folder.resolve(), folder.resolve())
    files: dict[str, Path] = {}
    for here, folders, names in os.walk(folder.resolve()):
        folders[:] = sorted(name for name in folders if ignore.allows(Path(here, name)))
        for name in sorted(names):
            path = Path(here, name)
            if languages.for_path(name) and not path.is_symlink() and path.is_file() and ignore.allows(path):
                name = path.relative_to(folder.resolve()).as_posix()
                files[name.encode("utf-8", "backslashreplace").decode()] = path
    if not files:
        raise EvalError(f"{folder} has no source file in a language that dg-lsp knows")
    return files


def text_of(path: Path) -> str:
    """Return a file's text; "" if it can't be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""  # too short to cut from
