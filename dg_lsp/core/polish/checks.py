"""Check the whole document with a candidate's edits: does it parse and compile, is all closed, and are names bound?"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from dg_lsp.core import languages, literals, scope, syntax, values
from dg_lsp.core.context import with_newlines
from dg_lsp.core.polish.around import edit_of, nearest_line_end
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Edit, Hole, Span

# In the grammars' names of nodes.
_BLOCK = re.compile("block|body|compound_statement|declaration_list|variant_list|accessor_list|switch|select_|interface_type")
NAME_CHARS = 200  # more than any name and the spaces after it
_NAME_BEFORE = re.compile(r"\b([^\W\d]\w*) *\Z")

# How many characters on each side are scanned for strings, where the tree can't tell.
READ_CHARS = 50_000


@dataclass(frozen=True, slots=True)
class Whole:
    """A candidate after all filters: its edits, the document, and its syntax before and after the edits.

    `is_file` is true if the document is a whole file, so that a name that nothing in it binds may count as unbound.
    """

    edits: tuple[Edit, ...]
    holes: tuple[Hole, ...]
    document: Document
    before: Syntax
    after: Syntax
    is_file: bool = False

    def answers(self) -> Iterator[tuple[Span, str]]:
        """Yield for each edit the span of its text in the edited document, without white space, and the text it replaced."""
        shift = 0
        for edit in self.edits:
            text = edit.text.strip()
            start = edit.span.start + shift + len(edit.text) - len(edit.text.lstrip())
            yield Span(start, start + len(text)), self.document.text[edit.span.start : edit.span.end]
            shift += len(edit.text) - (edit.span.end - edit.span.start)


# Returns whether to keep the candidate.
Check = Callable[[Whole], bool]

# Plain answers that fit most holes. The errors that they leave are the document's own.
PLAIN = ("", "x", "pass")


def plainly_filled(whole: Whole, plain: str) -> Syntax:
    """Return the syntax of the document with a plain answer in each hole."""
    edits = tuple(plain_edits(whole, whole.edits, plain))
    return syntax.parse(values.apply(whole.document.text, edits), whole.before.language, whole.before)


def plain_edits(whole: Whole, edits: Iterable[Edit], plain: str) -> list[Edit]:
    """Return the edits with a plain answer in place of their own."""
    holes = (whole.holes[whole.edits.index(edit)] for edit in edits)
    return [edit_of(plain, hole, nearest_line_end(whole.document.text, hole.span)) for hole in holes]


def parses(whole: Whole) -> bool:
    """Return whether the edits leave no more syntax errors than the document has, as it is or with plain answers."""
    if syntax.adds_errors(whole.after, whole.before):
        return False
    return not whole.after.errors or not any(syntax.adds_errors(whole.after, plainly_filled(whole, plain)) for plain in PLAIN)


def closes(whole: Whole) -> bool:
    """Return whether an answer in broken code leaves no new string or bracket open.

    `parses` misses such an error where code can't be parsed anyway: the parser counts the whole broken stretch as one
    error, and reads everything after an open quote as a string.
    """
    if not whole.after.errors:
        return True
    text, language = whole.document.text, whole.document.language
    is_better = len(whole.after.errors) < len(whole.before.errors)
    for edit in whole.edits:
        before = with_newlines(text[max(0, edit.span.start - READ_CHARS) : edit.span.start])
        line, end, below = with_newlines(text[edit.span.end : edit.span.end + READ_CHARS]).partition("\n")
        old = with_newlines(text[edit.span.start : edit.span.end]) + line
        new = with_newlines(edit.text) + line
        # Checked first, because most answers have no such mark and scanning takes time.
        if _has_any(edit.text, literals.string_marks(language)) and (
            literals.opens_string(before + new, end + below, language)
            and not literals.opens_string(before + old, end + below, language)
        ):
            return False
        # If there are fewer errors than before, an opened bracket may be one that the code below closes.
        if (
            not is_better
            and _has_any(edit.text, languages.row(language).brackets[0])
            and literals.n_open(before, new, language) > literals.n_open(before, old, language)
        ):
            return False
    return True


def with_block_closed(whole: Whole) -> Whole | None:
    """Return the whole with a closing brace after an answer that opens a block at the end of the cursor's line.

    Someone who types `if `, so that this line is broken, closes the block later. None if this does not apply.
    """
    hole, edit = whole.holes[0], whole.edits[0]
    text, language = whole.document.text, whole.before.language
    answer = edit.text.rstrip()
    line = Span(text.rfind("\n", 0, edit.span.start) + 1, text.find("\n", edit.span.end) % (len(text) + 1))
    # A parser often misses what a line lacks only in the next line of code.
    below = len(text) - len(text[line.end :].lstrip())
    last = text.find("\n", below) % (len(text) + 1)
    is_broken = any(error.start <= last and line.start <= error.end for error in whole.before.errors)
    is_at_end = answer.endswith("{") and not text[edit.span.end : line.end].strip()
    if len(whole.edits) > 1 or hole.kind != "cursor" or hole.block or not (is_at_end and is_broken):
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
    answers = tuple((span if old else _with_name_before(span, whole.after), old) for span, old in whole.answers())
    return scope.unbound_names(whole.after, answers, whole.document.uri)


def _with_name_before(answer: Span, after: Syntax) -> Span:
    """Return the span of the answer and of the name before it on its line, if only spaces are between them."""
    match = _NAME_BEFORE.search(after.text[max(0, answer.start - NAME_CHARS) : answer.start])
    if match is None or match[1] in languages.words(after.language):
        return answer
    return Span(answer.start - len(match[0]), answer.end)


def _has_any(text: str, marks: Iterable[str]) -> bool:
    return any(mark in text for mark in marks)


# Python's own compiler

# The start of a broken function is searched for within this many characters before the hole.
_FUNCTION_CHARS = 12_000
# Plain answers that continue most beginnings in Python, such as `if`, `from`, `for x` and `def`.
_PLAIN_BEGINNINGS = (*PLAIN, "x:", "x():", "x import x", "in x:")


def compiles(whole: Whole) -> bool:
    """Return whether Python accepts the code with the edits, as far as the code around them allows. True for other languages.

    tree-sitter's grammar accepts code that Python rejects, such as `return` outside a function, or a positional argument
    after a keyword argument. So the edited statements are compiled. If Python rejects them, the edits fail if one of these
    shows that the code around them is not the reason:

    1. Python accepts the statements without the edits, or with a plain answer in their place.
    2. The code up to the end of the answer's line can't be the beginning of a program, but can be with a plain answer.
    """
    if whole.document.language != "python":
        return True
    for region, edits in _by_statement(whole):
        # The parser skipped this text because it is far from the holes. Compiling it takes long.
        gaps = [Edit(span, "") for span in whole.before.gaps(region)]
        if not _compiles(_inside(whole.document.text, region, [*edits, *gaps])):
            others = ([], *(plain_edits(whole, edits, plain) for plain in PLAIN))
            if any(_compiles(_inside(whole.document.text, region, [*other, *gaps])) for other in others):
                return False
            if _can_not_begin_a_program(whole, region, edits):
                return False
    return True


def _by_statement(whole: Whole) -> list[tuple[Span, list[Edit]]]:
    """Return the spans of the module's statements that contain edits, each with its edits.

    Compiling only these statements takes the same time for every length of the file.
    """
    regions: list[tuple[Span, list[Edit]]] = []
    for edit in whole.edits:
        region = _statements(whole.before, edit.span)
        if regions and region.start <= regions[-1][0].end:
            last, edits = regions.pop()
            regions.append((Span(min(last.start, region.start), max(last.end, region.end)), [*edits, edit]))
        else:
            regions.append((region, [edit]))
    return regions


def _statements(tree: Syntax, span: Span) -> Span:
    """Return the span of whole lines from the module's statement that contains or precedes the hole to the hole's end."""
    start, end = tree.offsets.to_byte(span.start), tree.offsets.to_byte(span.end)
    nodes = [node for node in tree.tree.root_node.children if node.type != "comment" and node.start_byte <= end]
    first = max((node.start_byte for node in nodes if node.start_byte <= start), default=start)
    last = max((node.end_byte for node in nodes), default=end)
    lines = tree.lines
    # A hole between \r and \n ends after its line's content.
    return Span(
        lines.starts[lines.at(tree.offsets.to_point(first))],
        max(lines.ends[lines.at(tree.offsets.to_point(max(last, end)))], span.end),
    )


def _inside(text: str, region: Span, edits: list[Edit]) -> str:
    shifted_edits = (replace(edit, span=Span(edit.span.start - region.start, edit.span.end - region.start)) for edit in edits)
    return values.apply(text[region.start : region.end], tuple(shifted_edits))


def _can_not_begin_a_program(whole: Whole, region: Span, edits: list[Edit]) -> bool:
    """Return whether the code can be the beginning of a program with a plain answer, but not with the edits.

    The code is compiled from the enclosing function or class to the end of the last edit's line.
    """
    text = whole.document.text
    nearest = max(0, edits[0].span.start - _FUNCTION_CHARS)
    definitions = list(_DEFINITION.finditer(text, nearest, edits[0].span.start))
    start = definitions[-1].start() if definitions else region.start
    if start < nearest:
        return False
    end = whole.before.lines.ends[whole.before.lines.at(edits[-1].span.end)]
    head = Span(start, max(end, edits[-1].span.end))

    def is_beginning(edits: list[Edit]) -> bool:
        source = _inside(text, head, edits)
        return _compiles(f"if 1:\n{source}" if source[:1].isspace() else source, unfinished=True)

    others = ([], *(plain_edits(whole, edits, plain) for plain in _PLAIN_BEGINNINGS))
    return not is_beginning(edits) and any(is_beginning(other) for other in others)


def _compiles(source: str, *, unfinished: bool = False) -> bool:
    """Return whether Python compiles the source or, if `unfinished`, accepts it as the beginning of a program."""
    flags = ast.PyCF_ONLY_AST | _ALLOW_UNFINISHED if unfinished else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source, "hole", "exec", flags, dont_inherit=True)
        except SyntaxError as error:
            return unfinished and "incomplete input" in str(error.msg)
        # Python raises no SyntaxError for deep nesting and lone surrogates, but does not compile them either.
        except (ValueError, OverflowError, RecursionError, MemoryError):
            return False
    return True


_DEFINITION = re.compile(r"^[ \t]*(?:async[ \t]+def|def|class)[ \t]", re.MULTILINE)
_ALLOW_UNFINISHED = 0x4000  # the compiler's PyCF_ALLOW_INCOMPLETE_INPUT, which `ast` does not export
