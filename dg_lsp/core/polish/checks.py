"""Check the whole document with an answer: does it parse and compile, is all closed, and are names bound?

`with_block_closed` repairs an answer that fails because the user is still typing.
"""

from __future__ import annotations

import ast
import itertools
import re
import string
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core import importing, languages, memo, scope, syntax, values
from dg_lsp.core.importing import Sources
from dg_lsp.core.polish import frames
from dg_lsp.core.polish.frames import PLAIN_ANSWERS, plain_edits
from dg_lsp.core.scope import declared
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Edit, Hole, Span, joined

_BLOCK = re.compile("block|body|compound_statement|declaration_list|variant_list|accessor_list|switch|select_|interface_type")


@dataclass(frozen=True, slots=True)
class Whole:
    """A candidate after all filters: its edits, the document, and its syntax before and after the edits.

    `is_file` is true if the document is a whole file, so that a name that nothing in it binds may count as unbound. `sources`
    are the repository's files, None if unknown.
    """

    edits: tuple[Edit, ...]
    holes: tuple[Hole, ...]
    document: Document
    before: Syntax
    after: Syntax
    is_file: bool = False
    sources: Sources | None = None

    def answers(self) -> Iterator[tuple[Span, str]]:
        """Yield for each edit the span of its text in the edited document, without white space, and the text it replaced."""
        shift = 0
        for edit in self.edits:
            text = edit.text.strip(string.whitespace)
            start = edit.span.start + shift + len(edit.text) - len(edit.text.lstrip(string.whitespace))
            yield Span(start, start + len(text)), self.document.text[edit.span.start : edit.span.end]
            shift += len(edit.text) - (edit.span.end - edit.span.start)


# Returns whether to keep the candidate.
Check = Callable[[Whole], bool]


def parses(whole: Whole) -> bool:
    """Return whether the edits leave no more syntax errors than the text has, as it is or with plain answers.

    In code that is broken anyway, no more errors touch them either, and no more strings and brackets are left open.
    """
    if not whole.after.errors:
        return True
    written = [span for span, _ in whole.answers()]
    return bool(whole.before.errors) and frames.allows(whole.before, whole.holes, whole.edits, written)


def binds_once(whole: Whole) -> bool:
    """Return whether the edits declare and import nothing that their scope has already."""
    return not any(declared.declares_again(whole.after, span) for span, _ in whole.answers())


def binds(whole: Whole) -> bool:
    """Return whether something binds each name that the edits use, in a language whose files show it."""
    return not (scope.is_certain(whole.document.language) and unbound_names(whole))


def imports(whole: Whole) -> bool:
    """Return whether the repository has what the edits import, as far as that is known."""
    text, new, language = whole.document.text, whole.after.text, whole.document.language
    return not (whole.sources and importing.invented(text, new, language, whole.sources))


def with_block_closed(whole: Whole) -> Whole | None:
    """Return the whole with a closing brace after an answer that opens a block at the end of the cursor's line.

    Someone who types `if `, so that this line is broken, closes the block later. None if this does not apply.
    """
    hole, edit, lines, language = whole.holes[0], whole.edits[0], whole.before.lines, whole.before.language
    text, answer = whole.document.text, edit.text.rstrip()
    is_broken = frames.n_touching(whole.before, [edit.span]) > 0
    is_at_end = answer.endswith("{") and not text[edit.span.end : lines.end(lines.at(edit.span.end))].strip()
    if len(whole.edits) > 1 or hole.kind != "cursor" or hole.extent == "block" or not (is_at_end and is_broken):
        return None
    edits = (replace(edit, text=f"{answer}\n}}"),)
    after = syntax.parse(values.apply(text, edits), language, whole.before)
    brace = edit.span.start + len(answer) - 1
    parent = after.node_at(Span(brace, brace + 1)).parent
    return replace(whole, edits=edits, after=after) if parent is not None and _BLOCK.search(parent.type) else None


def unbound_names(whole: Whole) -> frozenset[str]:
    """Return the names that the answers use and that nothing in the file binds; empty unless the document is a whole file.

    A name just before an answer counts as used by it: the answer takes what may be the beginning of a name for all of it.
    """
    if not whole.is_file:
        return frozenset()
    text, words, answers = whole.after.text, languages.words(whole.after.language), []
    for span, old in whole.answers():
        name = None if old else frames.NAME_BEFORE.search(text[max(0, span.start - frames.NAME_CHARS) : span.start])
        start = span.start - len(name[0]) if name is not None and name[1] not in words else span.start
        answers.append((Span(start, span.end), old))
    return scope.unbound_names(whole.after, answers, whole.document.uri)


# --- Python's own compiler

# The start of a broken function is searched for within this many characters before the hole.
_FUNCTION_CHARS = 12_000
# Plain answers that continue most beginnings in Python, such as `if`, `from`, `for x` and `def`.
_PLAIN_BEGINNINGS = (*PLAIN_ANSWERS, "x:", "x():", "x import x", "in x:")


def compiles(whole: Whole) -> bool:
    """Return whether Python accepts the code with the edits, as far as the code around them allows. True for other languages.

    tree-sitter's grammar accepts code that Python rejects, such as `return` outside a function, or a positional argument
    after a keyword argument. So the edited statements are compiled. If Python rejects them, the edits fail if one of these
    shows that the code around them is not the reason:

    1. Python accepts the statements without the edits, or with a plain answer in their place.
    2. The code up to the end of the answer's line can't be the beginning of a program, but can be with a plain answer.
    3. A string that an answer touches closes a brace that it has not opened, whatever is broken around it.
    """
    if whole.document.language != "python":
        return True
    if any(_closes_too_much(whole.after, span) for span, _ in whole.answers()):
        return False
    # Compiling only these statements takes the same time for every length of the file.
    return all(_compiles_in(whole, region) for region in joined(_statements(whole.before, hole.span) for hole in whole.holes))


def _closes_too_much(tree: Syntax, answer: Span) -> bool:
    """Return whether an f-string that the answer touches has a single closing brace. In broken code no tree says so."""
    lines = tree.lines
    start, end = lines.start(lines.at(answer.start)), lines.end(lines.at(answer.end))
    strings = (match for match in _F_STRING.finditer(tree.text, start, end) if match.start() < answer.end)
    return any(answer.start < match.end() and "single '}'" in (_complaint(match[0], "eval") or "") for match in strings)


def _compiles_in(whole: Whole, region: Span) -> bool:
    text, language = whole.document.text, whole.before.language
    pairs = [pair for pair in zip(whole.holes, whole.edits, strict=True) if region.holds(pair[0].span)]
    holes = [hole for hole, _ in pairs]
    # The parser skipped this text because it is far from the holes. Compiling it takes long.
    gaps = tuple(Edit(span, "") for span in whole.before.gaps(region))
    options = [tuple(edit for _, edit in pairs), (), *(plain_edits(text, holes, language, each) for each in _PLAIN_BEGINNINGS)]
    # One by one: first with the edits, and without them only if Python rejects these.
    accepted = (_complaint(_inside(text, region, (*each, *gaps))) is None for each in options[: 2 + len(PLAIN_ANSWERS)])
    if next(accepted):
        return True
    if any(accepted):
        return False
    # From the enclosing function or class to the end of the last edit's line.
    nearest, first = max(0, holes[0].span.start - _FUNCTION_CHARS), holes[0].span.start
    start = max((match.start() for match in _DEFINITION.finditer(text, nearest, first)), default=region.start)
    head = Span(start, max(whole.before.lines.end(whole.before.lines.at(holes[-1].span.end)), holes[-1].span.end))
    beginnings = (_begins(_inside(text, head, each)) for each in options)
    return start < nearest or next(beginnings) or not any(beginnings)


@memo.in_tree
def _statements(tree: Syntax, hole: Span) -> Span:
    """Return the span of the module's statements that contain a hole, as whole lines."""
    lines = tree.lines
    start, end = tree.offsets.to_byte(hole.start), tree.offsets.to_byte(hole.end)
    nodes = [node for node in tree.tree.root_node.children if node.type != "comment" and node.start_byte <= end]
    first = max((node.start_byte for node in nodes if node.start_byte <= start), default=start)
    last_line = lines.at(tree.offsets.to_end(max([end, *(node.end_byte for node in nodes)])))
    # The body of a head that is missing is no part of a statement yet.
    body = itertools.takewhile(lambda line: lines.is_blank(line) or lines.indent(line), range(last_line + 1, len(lines)))
    last_line = max([last_line, *(line for line in body if not lines.is_blank(line))])
    # A hole between \r and \n ends after its line's content.
    return Span(lines.start(lines.at(tree.offsets.to_point(first))), max(lines.end(last_line), hole.end))


def _inside(text: str, region: Span, edits: Sequence[Edit]) -> str:
    """Return a region of the text with these edits."""
    shifted = (replace(edit, span=Span(edit.span.start - region.start, edit.span.end - region.start)) for edit in edits)
    return values.apply(text[region.start : region.end], tuple(shifted))


def _begins(source: str) -> bool:
    """Return whether Python accepts the source as the beginning of a program, or of a block in one."""
    source = f"if 1:\n{source}" if source[:1].isspace() else source
    return "incomplete input" in (_complaint(source, flags=ast.PyCF_ONLY_AST | _ALLOW_UNFINISHED) or "incomplete input")


# All candidates of a hole are compared with the same plain answers, in a class that may have thousands of lines.
@memo.of_texts
def _complaint(source: str, mode: str = "exec", flags: int = 0) -> str | None:
    """Return why Python does not compile the source; None if it does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source, "hole", mode, flags, dont_inherit=True)
        except SyntaxError as error:
            return str(error.msg)
        # Python raises no SyntaxError for deep nesting and lone surrogates, but does not compile them either.
        except (ValueError, OverflowError, RecursionError, MemoryError):
            return "is too deep, or no text"
    return None


_F_STRING = re.compile(r"""\b(?:[rR]?[fF]|[fF][rR])(?:"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+')""")
_DEFINITION = re.compile(r"^[ \t]*(?:async[ \t]+def|def|class)[ \t]", re.MULTILINE)
_ALLOW_UNFINISHED = 0x4000  # the compiler's PyCF_ALLOW_INCOMPLETE_INPUT, which `ast` does not export
