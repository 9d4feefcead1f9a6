"""Turn a candidate's texts into edits: what follows the answer is cut off, its form becomes the file's own, and what
would not help is dropped.

Each filter has one idea, and their order stands in `FILTERS`. To add one, write it in the module of its purpose and name it
there, with its reason in `_REASONS` if it drops. `shrinks` tells front ends when to ask before code is lost. Knows nothing
of how the texts were made: a text that was denoised between held tokens needs few of these, one that a plain completion
endpoint wrote needs most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dg_lsp.core import scope, values
from dg_lsp.core.context import with_newlines
from dg_lsp.core.polish.around import Filter, around_hole, edit_of
from dg_lsp.core.polish.checks import binds, closes, parses, unbound_names
from dg_lsp.core.polish.cuts import (
    cut_at_closer,
    cut_at_control,
    cut_at_dedent,
    cut_at_fence,
    cut_at_line_end,
    cut_next_line,
    cut_repeated_lines,
    cut_repeated_rest,
)
from dg_lsp.core.polish.drops import (
    drop_blank,
    drop_comments,
    drop_description,
    drop_placeholder,
    drop_repetition,
    drop_shrunk,
    drop_unchanged,
    drop_unreadable,
)
from dg_lsp.core.polish.form import restore_indent, restore_start, trim_end
from dg_lsp.core.polish.joins import drop_comment_before_code, drop_glued
from dg_lsp.core.polish.less import shrinks
from dg_lsp.core.polish.python import compiles
from dg_lsp.core.polish.whole import Check, Whole
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Candidate, Document, Edit, Hole

__all__ = ["CHECKS", "FILTERS", "Polished", "shrinks", "to_edits"]


@dataclass(frozen=True, slots=True)
class Polished:
    """What became of a candidate.

    Either `edits` holds one edit for each hole, in their order, or it is empty and `dropped` says why, as the end of a
    sentence that begins with "it". `fired` names the filters that changed or dropped a text, once for each text.
    `unbound` holds names that nothing in the file binds, in a language where another file may: such a candidate ranks
    below all others. `shrinks` says that working code would be replaced by less, which is dropped unless allowed.
    """

    edits: tuple[Edit, ...] = ()
    fired: tuple[str, ...] = ()
    dropped: str = ""
    unbound: tuple[str, ...] = ()
    shrinks: bool = False


def to_edits(
    candidate: Candidate,
    holes: tuple[Hole, ...],
    document: Document,
    *,
    syntax: Syntax | None = None,
    is_file: bool = False,
    allow_shrink: bool = False,
) -> Polished:
    """Return the candidate as edits of the document, or the reason why it is of no use.

    One useless text drops the whole candidate: its texts were written to fit each other. `syntax` is the document's;
    without it no answer is dropped for its syntax. Pass `is_file=True` where the document is all of a file, so that it
    says which names are bound; a cell of a notebook does not. Pass `allow_shrink=True` where the user agreed that working
    code is replaced by less. Never raises, whatever the texts hold.
    """
    if len(candidate.texts) != len(holes):
        return Polished(dropped=f"has {len(candidate.texts)} texts for {len(holes)} holes")
    fired: list[str] = []
    edits: list[Edit] = []
    unbound: tuple[str, ...] = ()
    is_shrunk = False
    filled, tree = document, syntax
    # From the last hole to the first, so that the spans of those to come stay true while the text grows.
    for hole, raw in reversed(list(zip(holes, candidate.texts, strict=True))):
        around = around_hole(filled, hole, tree, allow_shrink=allow_shrink)
        text = with_newlines(raw.removeprefix("\ufeff"))
        for apply_filter in FILTERS:
            result = apply_filter(text, around)
            if result != text:
                fired.append(apply_filter.__name__)
            if result is None:
                is_less = apply_filter is drop_shrunk
                return Polished(fired=tuple(fired), dropped=_REASONS[apply_filter.__name__], shrinks=is_less)
            text = result
        is_shrunk = is_shrunk or shrinks(around.old, text, document.language)
        edits.insert(0, edit_of(text, hole, around.line_end))
        filled = replace(filled, text=values.apply(filled.text, (edits[0],)))
        tree = around.filled(text) if around.filled else None
    if syntax is not None and tree is not None:
        whole = Whole(tuple(edits), holes, document, syntax, tree, is_file)
        for check in CHECKS:
            if not check(whole):
                return Polished(fired=(*fired, check.__name__), dropped=_REASONS[check.__name__])
        if not scope.is_certain(document.language):
            unbound = tuple(sorted(unbound_names(whole)))
    return Polished(tuple(edits), tuple(fired), unbound=unbound, shrinks=is_shrunk)


FILTERS: tuple[Filter, ...] = (
    cut_at_control,
    cut_at_fence,
    cut_at_line_end,
    drop_glued,
    cut_repeated_rest,
    cut_repeated_lines,
    restore_start,
    restore_indent,
    cut_at_dedent,
    cut_at_closer,
    cut_next_line,
    trim_end,
    drop_unreadable,
    drop_blank,
    drop_unchanged,
    drop_shrunk,
    drop_comment_before_code,
    drop_repetition,
    drop_placeholder,
    drop_comments,
    drop_description,
)
CHECKS: tuple[Check, ...] = (parses, closes, compiles, binds)
_REASONS = {
    "drop_unreadable": "holds characters that are no text",
    "drop_blank": "is blank",
    "drop_unchanged": "changes nothing",
    "drop_shrunk": "replaces working code by less",
    "drop_comment_before_code": "turns the code behind it into a comment",
    "drop_glued": "runs into a name next to it",
    "drop_repetition": "repeats the lines next to it",
    "drop_placeholder": "is a placeholder again",
    "drop_comments": "is a comment, or leaves a hole of its own",
    "drop_description": "only describes, and does nothing",
    "parses": "adds a syntax error",
    "closes": "leaves a string or a bracket open",
    "compiles": "does not compile",
    "binds": "uses a name that nothing binds",
}
