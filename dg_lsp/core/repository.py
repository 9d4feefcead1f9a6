"""Find text in the other files of a repository that helps at a hole: definitions of names, and passages to copy from.

    files that may be read ── infill/repository.py: walk, read the changed ones, mask ──> IndexedFile, … = Repository
    Repository + request   ── with_repository ──> definitions of names near the hole, related files, passages
    passages (Snippet.for_copying) ──> engine/common/propose/; no model reads them as context

A passage is found by the tokens before the hole. The index of a file maps each run of `GRAM` tokens to the offsets where
such runs end. It is a sorted array of integers, eight bytes per token, so a changed file replaces only its own array.
"""

from __future__ import annotations

import re
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tree_sitter import Node

from dg_lsp.core import context, languages, syntax
from dg_lsp.core.imports import Offered, imported, offered
from dg_lsp.core.languages import GrammarError
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Import, InfillRequest, Snippet, n_common

GRAM = 4  # tokens that must agree before a place; three find many more places and no better ones
TAIL_CHARS = 400  # the text before the hole that is compared
MIN_MATCH = 12  # fewer equal characters before a place, blanks not counted, occur in any code of the language
MAX_MATCH = 240  # equal characters beyond this number do not count
MAX_RIGHT = 24
# The maximum numbers of places that are looked up and compared for one hole, so that a frequent phrase takes no longer.
MAX_LOOKED = 2_000
MAX_PLACES = 300
MAX_PASSAGES = 8
BEFORE_CHARS = 300  # of a passage, before the place: more than MAX_MATCH
LINE_CHARS = 240  # of a passage, after the place
BLOCK_CHARS = 1_600
NEAR_LINES = 16  # names this close to the hole are looked up; the window moves in steps of as many lines
MAX_NAMESAKES = 50  # definitions of one name to compare with the imports; a name with more of them is not looked up
MAX_DEFINITIONS = 2  # of one name; a name with more of them in files that are not imported says little
DEFINITION_SHARE = 4  # definitions take at most one in this many characters of the related text

_OFFSET_BITS = 24
_TOKEN = re.compile(r"[^\S\n]*(?:\n\s*|\w+|[^\w\s])")
_NAME = re.compile(r"(\.|->|::)?([^\W\d]\w{2,})")
_LAST_WORD = re.compile(r"\w+\Z")
_BLANK = re.compile(r"[ \t]+")


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file's text and its index. `places` are sorted integers: the hash of `GRAM` tokens, then the offset where they end.

    `path` is the name that a model sees; several files may have the same. `imports` and `offers` are names for answers
    (see `core.imports`).
    """

    path: str
    language: str
    text: str
    places: array[int]
    symbols: tuple[Symbol, ...] = ()
    imports: tuple[Import, ...] = ()
    offers: tuple[Offered, ...] = ()

    @property
    def n_bytes(self) -> int:
        """The approximate memory of the file in bytes."""
        widest = 4 if not self.text.isascii() else 1
        shown = sum(len(symbol.name) + len(symbol.text) + 150 for symbol in self.symbols)
        shown += 100 * (len(self.imports) + len(self.offers))
        return len(self.text) * widest + self.places.itemsize * len(self.places) + shown


def index(path: str, language: str, text: str) -> IndexedFile:
    """Return the index of a file's text, which the caller has masked. `language` is a name from the table, or ""."""
    text = context.with_newlines(text.removeprefix("\ufeff"))[: (1 << _OFFSET_BITS) - 1]
    tokens = list(_tokens(text))
    hashes = _hashes([token for token, _ in tokens])
    places = array("Q", sorted(code << _OFFSET_BITS | end for code, (_, end) in zip(hashes, tokens[GRAM - 1 :], strict=False)))
    row = languages.row(language)
    imports, offers = tuple(imported(text, row.importing)), tuple(offered(text, row.importing))
    try:
        defined = symbols(syntax.parse(text, row)) if row.name else ()
    except GrammarError:
        defined = ()
    return IndexedFile(path, language, text, places, defined, imports, offers)


# The class has no slots, so that the table of names can be computed on first use.
@dataclass(frozen=True)
class Repository:
    """The indexed files of one workspace at one time. A file's key is its absolute path without links.

    `is_whole` says that they are all source files that may be read, so that what is missing does not exist.
    """

    files: Mapping[str, IndexedFile] = field(default_factory=dict)
    is_whole: bool = False

    def changed(self, files: Mapping[str, IndexedFile]) -> Repository:
        """Return the repository with these files in place of those with the same keys; unknown keys are ignored."""
        new = {key: file for key, file in files.items() if key in self.files}
        if not new:
            return self
        changed = Repository({**self.files, **new}, self.is_whole)
        # Only the changed names are sorted again: `by_name` of a large repository takes longer than a request.
        old = [self.files[key] for key in new]
        old_ids, names = set(map(id, old)), {symbol.name for file in (*old, *new.values()) for symbol in file.symbols}
        rows = {name: [row for row in self.by_name.get(name, ()) if id(row[0]) not in old_ids] for name in names}
        for file in new.values():
            for symbol in file.symbols:
                rows[symbol.name].append((file, symbol))
        ranks = {id(file): rank for rank, file in enumerate(changed.files.values())}
        for name_rows in rows.values():
            name_rows.sort(key=lambda row: ranks[id(row[0])])
        vars(changed)["by_name"] = {name: kept for name, kept in {**self.by_name, **rows}.items() if kept}
        return changed

    @cached_property
    def by_name(self) -> dict[str, list[tuple[IndexedFile, Symbol]]]:
        """The files and definitions of each name."""
        table: dict[str, list[tuple[IndexedFile, Symbol]]] = {}
        for file in self.files.values():
            for symbol in file.symbols:
                table.setdefault(symbol.name, []).append((file, symbol))
        return table

    @cached_property
    def importers(self) -> dict[str, list[str]]:
        """For each name, the keys of the files that offer it, import it, or are a module with this name."""
        table: dict[str, list[str]] = {}
        for key, file in self.files.items():
            *folders, last = key.replace("\\", "/").split("/")
            stem = last.partition(".")[0]
            module = folders[-1] if stem == "__init__" and folders else stem
            for name in {module, *(each.bound for each in file.imports), *(each.name for each in file.offers)}:
                table.setdefault(name, []).append(key)
        return table

    @cached_property
    def folders(self) -> frozenset[str]:
        """The folders that have an indexed file at any depth."""
        folders = set[str]()
        for key in self.files:
            folder = key.rpartition("/")[0]
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        return frozenset(folders)

    def is_own(self, file: IndexedFile, request: InfillRequest, own: str) -> bool:
        """Return whether `file` is the file of the request. `own` is that file's key, or "" if it is unknown.

        Its copy on the disk may contain the answer, and may have another path than the editor's.
        """
        return file.path == request.path or file is self.files.get(own)


EMPTY = Repository()


def with_repository(
    request: InfillRequest, related: Sequence[Snippet], repository: Repository, limit_chars: int, own: str = ""
) -> InfillRequest:
    """Return the request with text from other files: definitions, its own related text, `related`, and passages.

    Definitions and `related` together have at most `limit_chars` characters. Only a request with one hole gets passages,
    because copies are drafted only for one hole. `own` is the key of the request's own file, which is left out.
    """
    if limit_chars <= 0:
        return request
    near = definitions(request, repository, limit_chars // DEFINITION_SHARE, related, own)
    n_left = limit_chars - sum(len(snippet.text) for snippet in near)
    shown = [*near, *request.related]
    # The first snippets of `related` that fit. The last of them is cut at a line end.
    for snippet in related:
        end = len(snippet.text) if len(snippet.text) <= n_left else snippet.text.rfind("\n", 0, n_left) + 1
        if not end:
            break
        shown.append(replace(snippet, text=snippet.text[:end]))
        n_left -= end
    copied = passages(request, repository, own=own) if len(request.holes) == 1 else ()
    return replace(request, related=(*shown, *copied))


def passages(request: InfillRequest, repository: Repository, most: int = MAX_PASSAGES, own: str = "") -> tuple[Snippet, ...]:
    """Return the passages of other files that have the longest text in common with the text around the hole, best first.

    Of several passages that continue with the same text, only the best is returned.
    """
    hole = request.holes[0]
    ranked = sorted(_places(request, repository, own), key=lambda place: place[:2], reverse=True)
    found = dict[str, Snippet]()
    shown = list[tuple[IndexedFile, int, int]]()
    for *_, file, at in ranked:
        if len(found) == most:
            break
        ahead = file.text[at : at + 40]
        if ahead in found or any(
            file is other and start <= at - MAX_MATCH and at < end - LINE_CHARS for other, start, end in shown
        ):
            continue
        start = file.text.rfind("\n", 0, max(at - BEFORE_CHARS, 0)) + 1
        end = file.text.find("\n", at + (BLOCK_CHARS if hole.block else LINE_CHARS)) + 1 or len(file.text)
        shown.append((file, start, end))
        found[ahead] = Snippet(file.path, file.text[start:end], for_copying=True)
    return tuple(found.values())


def definitions(
    request: InfillRequest, repository: Repository, limit_chars: int, related: Sequence[Snippet] = (), own: str = ""
) -> tuple[Snippet, ...]:
    """Return the definitions, in other files, of the names used near the hole; at most `limit_chars`, one snippet per file.

    Names nearer to the hole come first. If imported files define a name, only their definitions are used. Left out are
    definitions whose first line is in `related`, and names with more than `MAX_NAMESAKES` definitions or with more than
    `MAX_DEFINITIONS` to choose from.
    """
    imported = context.imports(f"{request.prefix}\n{request.suffix}", request.language)
    lines_by_path: dict[str, list[str]] = {}
    for name, is_attribute in _names_near(request).items():
        namesakes = repository.by_name.get(name, ())
        # Comparing thousands of paths with the imports takes seconds, and requests are built between keystrokes.
        if len(namesakes) > MAX_NAMESAKES:
            continue
        places = [
            (file.path, symbol)
            for file, symbol in namesakes
            if not repository.is_own(file, request, own)
            and file.language == request.language
            # An indented definition is a member of something, so only an attribute can mean it.
            and (is_attribute or not symbol.text[:1].isspace())
        ]
        chosen = [(path, symbol) for path, symbol in places if context.is_imported(path, imported)] or places
        for path, symbol in chosen if len(chosen) <= MAX_DEFINITIONS else ():
            if any(symbol.text.partition("\n")[0] in snippet.text for snippet in related):
                continue
            limit_chars -= len(symbol.text) + 1
            if limit_chars < 0:
                return tuple(Snippet(path, "".join(lines)) for path, lines in lines_by_path.items())
            lines_by_path.setdefault(path, []).append(f"{symbol.text}\n")
    return tuple(Snippet(path, "".join(lines)) for path, lines in lines_by_path.items())


def _names_near(request: InfillRequest) -> dict[str, bool]:
    """Return the names near the hole, nearest first, and whether each is used as an attribute, as in `a.name`.

    The word that is being typed is left out. The first line of the window is a multiple of `NEAR_LINES`, so that
    the same names are found, and the encoded prompt can be used again, while the cursor moves by a few lines.
    """
    typed = _LAST_WORD.search(request.prefix) if request.holes[0].kind == "cursor" else None
    before = (request.prefix[: typed.start()] if typed else request.prefix).split("\n")
    first = max((len(before) - 1) // NEAR_LINES - 1, 0) * NEAR_LINES
    after = "\n".join(request.suffix[: NEAR_LINES * 200].split("\n")[:NEAR_LINES])
    names = [*reversed(_NAME.findall("\n".join(before[first:]))), *_NAME.findall(after)]
    attributes = {name for mark, name in names if mark}
    # Special methods, such as `__init__`, have the same meaning everywhere.
    return {name: name in attributes for _, name in names if not name.startswith("__")}


def _places(request: InfillRequest, repository: Repository, own: str) -> Iterator[tuple[int, int, IndexedFile, int]]:
    """Yield each place that has the same tokens before it as the hole.

    A place is: the number of equal characters on both sides, the number before it, its file, and its offset.
    """
    tail = request.prefix[-TAIL_CHARS:]
    typed = _LAST_WORD.search(tail)
    blank = "" if tail.endswith("\n") or not tail.rstrip(" \t") else tail[len(tail.rstrip(" \t")) :]
    if blank and tail[: -len(blank)].endswith("\n"):
        blank = ""  # an indentation is part of its line end's token
    keys = [(_hash_before(tail), blank)]
    if typed:
        keys.append((_hash_before(tail[: typed.start()]), typed.group()))
    head = request.suffix[:TAIL_CHARS].lstrip("\n").split("\n", 1)[0].strip()[:MAX_RIGHT]
    is_line = not request.suffix.startswith("\n") and bool(head)
    solid_tail = _BLANK.sub("", tail[-MAX_MATCH:])[::-1]
    n_looked, n_compared = 0, 0
    seen = set[tuple[int, int]]()
    for file in repository.files.values():
        if repository.is_own(file, request, own) or file.language != request.language:
            continue
        for key, more in keys:
            if key is None:
                continue
            first, last = (bisect_left(file.places, code << _OFFSET_BITS) for code in (key, key + 1))
            for place in file.places[first : min(last, first + MAX_LOOKED)]:
                n_looked += 1
                at = _after(file.text, place & ((1 << _OFFSET_BITS) - 1), more)
                if at is not None and (id(file), at) not in seen:
                    seen.add((id(file), at))
                    left = n_common(_BLANK.sub("", file.text[max(at - MAX_MATCH, 0) : at])[::-1], solid_tail)
                    n_compared += 1
                    if left < MIN_MATCH:
                        continue
                    right = len(head) if head and _goes_on(file.text, at, head, is_line=is_line) else 0
                    yield left + right, left, file, at
                if n_looked == MAX_LOOKED or n_compared == MAX_PLACES:
                    return


def _after(text: str, at: int, more: str) -> int | None:
    """Return the offset after `more`, which is the start of a word or white space; None if that word is not at `at`.

    White space may be missing.
    """
    if more.strip():
        while text[at : at + 1] in (" ", "\t"):
            at += 1
        return at + len(more) if text.startswith(more, at) else None
    return at + len(more) if text.startswith(more, at) else at


def _goes_on(text: str, at: int, head: str, *, is_line: bool) -> bool:
    """Return whether the suffix's `head` follows: with `is_line` on the same line, otherwise at the start of a later line."""
    line_end = text.find("\n", at)
    if is_line:
        return text.find(head, at, line_end if line_end >= 0 else len(text)) >= 0
    found = text.find(head, line_end + 1, at + BLOCK_CHARS) if line_end >= 0 else -1
    while found >= 0:
        if not text[text.rfind("\n", at, found) + 1 : found].strip():
            return True
        found = text.find(head, found + 1, at + BLOCK_CHARS)
    return False


def _hash_before(tail: str) -> int | None:
    """Return the hash of the last tokens of a text, or None if it has too few."""
    code = tail.rstrip(" \t")
    hashes = _hashes([token for token, _ in _tokens(tail if code.endswith("\n") else code)][-GRAM:])
    return hashes[0] if hashes else None


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    r"""Yield each token with its end. White space counts only as a line end, and several line ends count as one."""
    for match in _TOKEN.finditer(text):
        token = match.group().strip(" \t")
        yield ("\n" if token.startswith("\n") else token), match.end()


def _hashes(tokens: Sequence[str]) -> list[int]:
    """Return a hash of 32 bits for each run of `GRAM` tokens. A collision does no harm, because places are compared as text."""
    coded = [token.encode("utf-8", "surrogatepass") + b"\0" for token in tokens]
    return [zlib.crc32(b"".join(coded[at : at + GRAM])) for at in range(len(coded) - GRAM + 1)]


MAX_CHARS = 600  # of one definition: a class is shown with the signatures of its first members


@dataclass(frozen=True, slots=True)
class Symbol:
    """A definition: its name, and its signature as text."""

    name: str
    text: str


def symbols(syntax: Syntax) -> tuple[Symbol, ...]:
    """Return the file's definitions in order. A class has the signatures of its members in its text."""
    heads = syntax.outline
    texts = [context.with_newlines(text) for _, text in heads]
    starts = {span.start: position for position, (span, _) in enumerate(heads)}
    found = list[Symbol]()
    # The name and the node of each definition, and the end of its head.
    named = [(owner.name, owner.node, owner.inside.start) for owner in syntax.facts.owners if owner.kind != "closure"]
    named += [(_name(node), node, syntax.span(node).end) for node in syntax.facts.all("type")]
    for name, node, end in named:
        place = starts.get(syntax.head(node, end).start)
        if place is None or not name:
            continue
        lines, size = [texts[place]], len(texts[place])
        for (span, _), text in zip(heads[place + 1 :], texts[place + 1 :], strict=True):
            size += len(text) + 1
            if span.start >= syntax.span(node).end or size > MAX_CHARS:
                break
            lines.append(text)
        found.append(Symbol(name, "\n".join(lines)))
    return tuple(found)


def _name(node: Node) -> str:
    """Return the name of a type's definition, which some grammars keep one level deeper; "" if there is none."""
    for each in (node, *node.named_children):
        name = each.child_by_field_name("name")
        if name is not None and name.text:
            return name.text.decode("utf-8", "replace")
    return ""
