"""Check the document with a candidate's edits by Python's own compiler."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import replace

from dg_lsp.core import values
from dg_lsp.core.polish.whole import PLAIN, Whole, plain_edits
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Edit, Span

# The start of a broken function is searched for within this many characters before the hole.
_FUNCTION_CHARS = 12_000
# Plain answers that continue most beginnings in Python, such as `if`, `from`, `for x` and `def`.
_PLAIN_BEGINNINGS = (*PLAIN, "x:", "x():", "x import x", "in x:")


def compiles(whole: Whole) -> bool:
    """Return whether Python accepts the code with the edits, as far as the code around them allows. True for other languages.

    tree-sitter's grammar accepts code that Python rejects, such as `return` outside a function, or a positional argument
    after a keyword argument. So the edited statements are compiled. If Python rejects them, the edits pass only if the
    code around them is to blame. Then both of these hold:

    1. Python also rejects the statements without the edits, and with each plain answer in their place.
    2. The code up to the end of the answer's line can be the beginning of a program, or can't be with a plain answer either.
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
