"""Turn a candidate's texts into edits: cut what follows the answer, apply the file's formatting, and drop useless answers.

Each filter does one thing, and `FILTERS` defines their order. To add one, write it in the module for its purpose and
add it to `FILTERS`. A filter that drops needs a reason in `REASONS`. After the filters, the checks look at the whole document
with the candidate's edits: does it parse and compile, is all closed, and are names bound? `Polished.shrinks` tells front
ends when to ask before code is lost.

This package does not know how a text was made. A text that was denoised between held tokens needs few of these filters;
a text from a plain completion endpoint needs most of them.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core import importing, languages, scope, syntax, values
from dg_lsp.core.context import with_newlines
from dg_lsp.core.importing import Sources
from dg_lsp.core.polish import changes, drops
from dg_lsp.core.polish.changes import Filter, around_hole, edit_of, nearest_line_end
from dg_lsp.core.syntax import ParseLimitError, Syntax
from dg_lsp.core.values import Candidate, Document, Edit, Hole, Import, Span

__all__ = ["CHECKS", "FILTERS", "REASONS", "SHRINKS", "UNBOUND", "Polished", "to_edits"]

SHRINKS = "replaces working code by less"


@dataclass(frozen=True, slots=True)
class Polished:
    """The result of polishing a candidate.

    Either `edits` holds one edit for each hole, in order, or it is empty and `dropped` is the reason: the end of a
    sentence that begins with "it". `fired` names the filters that changed or dropped a text, once for each text.

    `imports` are what the file must import for the edits to work. `unbound` holds names that nothing in the file binds,
    in a language where another file may bind them; such a candidate ranks below all others. `shrinks` is true if working
    code would be replaced by less, which is dropped unless allowed.
    """

    edits: tuple[Edit, ...] = ()
    fired: tuple[str, ...] = ()
    dropped: str = ""
    unbound: tuple[str, ...] = ()
    shrinks: bool = False
    imports: tuple[Import, ...] = ()


def to_edits(
    candidate: Candidate,
    holes: tuple[Hole, ...],
    document: Document,
    *,
    syntax: Syntax | None = None,
    is_file: bool = False,
    allow_shrink: bool = False,
    sources: Sources | None = None,
) -> Polished:
    """Return the candidate as edits of the document, or the reason why it was dropped.

    One dropped text drops the whole candidate, because its texts were written to fit each other. `syntax` is the
    document's; without it, no candidate is dropped for its syntax. Pass `is_file=True` if the document is a whole file,
    so that it shows which names are bound; a notebook cell does not. With `sources`, names that it does not bind are imported
    if that is possible. Pass `allow_shrink=True` if the user agreed that
    less code may replace working code.

    Never raises, whatever the texts contain.
    """
    try:
        return _polished(candidate, holes, document, syntax, sources, is_file=is_file, allow_shrink=allow_shrink)
    except ParseLimitError:
        return Polished(dropped="takes too long to parse")


def _polished(
    candidate: Candidate,
    holes: tuple[Hole, ...],
    document: Document,
    syntax: Syntax | None,
    sources: Sources | None,
    *,
    is_file: bool,
    allow_shrink: bool,
) -> Polished:
    if len(candidate.texts) != len(holes):
        return Polished(dropped=f"has {len(candidate.texts)} texts for {len(holes)} holes")
    fired: list[str] = []
    edits: list[Edit] = []
    unbound: tuple[str, ...] = ()
    imports: tuple[Import, ...] = ()
    is_shrunk = False
    filled, tree = document, syntax
    # From the last hole to the first, so that the spans of the remaining holes stay valid while the text changes.
    for hole, raw in reversed(list(zip(holes, candidate.texts, strict=True))):
        around = around_hole(filled, hole, tree, allow_shrink=allow_shrink)
        text = with_newlines(raw.removeprefix("\ufeff"))
        for apply_filter in FILTERS:
            result = apply_filter(text, around)
            if result != text:
                fired.append(apply_filter.__name__)
            if result is None:
                is_less = apply_filter is drops.drop_shrunk
                return Polished(fired=tuple(fired), dropped=REASONS[apply_filter.__name__], shrinks=is_less)
            text = result
        is_shrunk = is_shrunk or drops.shrinks(around.old, text, document.language)
        edits.insert(0, edit_of(text, hole, around.line_end))
        filled = replace(filled, text=values.apply(filled.text, (edits[0],)))
        tree = around.filled(text) if around.filled else None
    if syntax is not None and tree is not None:
        whole = Whole(tuple(edits), holes, document, syntax, tree, is_file)
        if failed := _failed(whole):
            closed = with_block_closed(whole)
            if closed is None or _failed(closed):
                return Polished(fired=(*fired, failed), dropped=REASONS[failed])
            whole = closed
        if unbound := tuple(sorted(unbound_names(whole))):
            imports = _imports(whole, unbound, sources) if sources else ()
            if not imports and scope.is_certain(document.language):
                return Polished(fired=(*fired, UNBOUND), dropped=REASONS[UNBOUND])
    return Polished(tuple(edits), tuple(fired), unbound=() if imports else unbound, shrinks=is_shrunk, imports=imports)


def _failed(whole: Whole) -> str:
    """Return the name of the first check that fails; "" if none does."""
    return next((check.__name__ for check in CHECKS if not check(whole)), "")


def _imports(whole: Whole, names: tuple[str, ...], sources: Sources) -> tuple[Import, ...]:
    """Return the imports with which the file binds the names; empty if there are none, or if they would not help."""
    text, language = whole.document.text, whole.document.language
    # A name just before an answer may be part of its use.
    answers = [whole.after.text[max(0, span.start - NAME_CHARS) : span.end] for span, _ in whole.answers()]
    imports = importing.find(names, "\n".join(answers), text, language, sources)
    edit = importing.edit(text, language, imports) if imports else None
    # An edit at the hole's own place would be refused by editors, and names must be bound before they are used.
    if edit is None or edit.span.end >= whole.edits[0].span.start:
        return ()
    shift = len(edit.text) - (edit.span.end - edit.span.start)
    imported = syntax.parse(values.apply(whole.after.text, (edit,)), whole.after.language, whole.after)
    moved = [(Span(span.start + shift, span.end + shift), old) for span, old in whole.answers()]
    is_bound = not scope.unbound_names(imported, moved, whole.document.uri)
    return imports if is_bound and not syntax.adds_errors(imported, whole.after) else ()


# --- Checks of the whole document

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


def plain_edits(whole: Whole, edits: Sequence[Edit], plain: str) -> list[Edit]:
    """Return the edits with a plain answer in place of their own."""
    holes = (whole.holes[whole.edits.index(edit)] for edit in edits)
    return [edit_of(plain, hole, nearest_line_end(whole.document.text, hole.span)) for hole in holes]


def parses(whole: Whole) -> bool:
    """Return whether the edits leave no more syntax errors than the document has, as it is or with plain answers."""
    if syntax.adds_errors(whole.after, whole.before):
        return False
    for plain in PLAIN if whole.after.errors else ():
        text = values.apply(whole.document.text, tuple(plain_edits(whole, whole.edits, plain)))
        if syntax.adds_errors(whole.after, syntax.parse(text, whole.before.language, whole.before)):
            return False
    return True


def closes(whole: Whole) -> bool:
    """Return whether an answer in broken code leaves no new string or bracket open.

    `parses` misses such an error where code can't be parsed anyway: the parser counts the whole broken stretch as one
    error, and reads everything after an open quote as a string.
    """
    if not whole.after.errors:
        return True
    text, language = whole.document.text, whole.document.language
    row = languages.row(language)
    is_better = len(whole.after.errors) < len(whole.before.errors)
    for edit in whole.edits:
        before = with_newlines(text[max(0, edit.span.start - READ_CHARS) : edit.span.start])
        line, end, below = with_newlines(text[edit.span.end : edit.span.end + READ_CHARS]).partition("\n")
        old = with_newlines(text[edit.span.start : edit.span.end]) + line
        new = with_newlines(edit.text) + line
        # Checked first, because most answers have no such mark and scanning takes time.
        if any(mark in edit.text for mark in (*languages.QUOTES, *(row.block_comment or ()))) and (
            languages.opens_string(before + new, end + below, language)
            and not languages.opens_string(before + old, end + below, language)
        ):
            return False
        # If there are fewer errors than before, an opened bracket may be one that the code below closes.
        if (
            not is_better
            and any(mark in edit.text for mark in row.brackets[0])
            and languages.n_open(before, new, language) > languages.n_open(before, old, language)
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
    answers = []
    for span, old in whole.answers():
        name = _NAME_BEFORE.search(whole.after.text[max(0, span.start - NAME_CHARS) : span.start]) if not old else None
        is_name = name is not None and name[1] not in languages.words(whole.after.language)
        answers.append((Span(span.start - len(name[0]), span.end) if name is not None and is_name else span, old))
    return scope.unbound_names(whole.after, answers, whole.document.uri)


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
    tree, lines = whole.before, whole.before.lines
    regions: list[tuple[Span, list[Edit]]] = []
    for edit in whole.edits:
        # Whole lines, from the module's statement that contains or precedes the hole to the hole's end.
        start, end = tree.offsets.to_byte(edit.span.start), tree.offsets.to_byte(edit.span.end)
        nodes = [node for node in tree.tree.root_node.children if node.type != "comment" and node.start_byte <= end]
        first = max((node.start_byte for node in nodes if node.start_byte <= start), default=start)
        last = max((node.end_byte for node in nodes), default=end)
        # A hole between \r and \n ends after its line's content.
        region = Span(
            lines.start(lines.at(tree.offsets.to_point(first))),
            max(lines.end(lines.at(tree.offsets.to_end(max(last, end)))), edit.span.end),
        )
        if regions and region.start <= regions[-1][0].end:
            other, edits = regions.pop()
            regions.append((Span(min(other.start, region.start), max(other.end, region.end)), [*edits, edit]))
        else:
            regions.append((region, [edit]))
    return regions


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
    end = whole.before.lines.end(whole.before.lines.at(edits[-1].span.end))
    head = Span(start, max(end, edits[-1].span.end))
    others = ([], *(plain_edits(whole, edits, plain) for plain in _PLAIN_BEGINNINGS))
    sources = (_inside(text, head, each) for each in (edits, *others))
    # Compiled one by one: first the one with the edits, and the others only if that can't be the beginning.
    beginnings = (_compiles(f"if 1:\n{one}" if one[:1].isspace() else one, unfinished=True) for one in sources)
    return not next(beginnings) and any(beginnings)


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


# --- Their order, and the reasons for which they drop

FILTERS: tuple[Filter, ...] = (
    changes.cut_at_control,
    changes.cut_at_fence,
    changes.cut_at_line_end,
    drops.drop_glued,
    changes.cut_repeated_rest,
    changes.cut_repeated_lines,
    changes.restore_start,
    changes.restore_indent,
    changes.cut_at_dedent,
    changes.cut_at_closer,
    changes.cut_next_line,
    changes.cut_unreachable,
    changes.trim_end,
    drops.drop_unreadable,
    drops.drop_blank,
    drops.drop_unchanged,
    drops.drop_shrunk,
    drops.drop_comment_before_code,
    drops.drop_repetition,
    drops.drop_loop,
    drops.drop_placeholder,
    drops.drop_comments,
    drops.drop_description,
    drops.drop_definitions,
    drops.drop_endless,
    drops.drop_self_comparison,
)
CHECKS: tuple[Check, ...] = (parses, closes, compiles)
UNBOUND = "binds"
REASONS = {
    "drop_unreadable": "has characters that are not text",
    "cut_unreachable": "ends the code that follows it",
    "drop_blank": "is blank",
    "drop_unchanged": "changes nothing",
    "drop_shrunk": SHRINKS,
    "drop_comment_before_code": "turns the code after it into a comment",
    "drop_glued": "merges with a name next to it",
    "drop_repetition": "repeats the lines next to it",
    "drop_loop": "repeats itself",
    "drop_placeholder": "is only a placeholder",
    "drop_comments": "is only a comment, or contains a new hole",
    "drop_description": "is only a description, without code",
    "drop_definitions": "only defines what nothing uses",
    "drop_endless": "only calls its own function again",
    "drop_self_comparison": "compares its own variable with itself",
    "parses": "adds a syntax error",
    "closes": "leaves a string or a bracket open",
    "compiles": "does not compile",
    UNBOUND: "uses a name that nothing binds",
}
