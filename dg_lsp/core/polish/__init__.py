"""Turn a candidate's texts into edits: cut what follows the answer, apply the file's formatting, and drop useless answers.

Each filter does one thing, and `FILTERS` defines their order. To add one, write it in `filters` and add it to `FILTERS`, with
the reason if it drops. After the filters, the checks look at the whole document with the candidate's edits: does it parse and
compile, is all closed, and are names bound? `Suggestion.shrinks` tells front ends when to ask before code is lost.

This package does not know how a text was made. A text that was denoised between held tokens needs few of these filters;
a text from a plain completion endpoint needs most of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dg_lsp.core import placeholders, values
from dg_lsp.core.context import with_newlines
from dg_lsp.core.importing import Sources
from dg_lsp.core.polish import checks, filters, frames
from dg_lsp.core.polish.checks import Check, Whole
from dg_lsp.core.polish.filters import Filter, around_hole
from dg_lsp.core.polish.frames import edit_of
from dg_lsp.core.syntax import ParseLimitError, Syntax, difference
from dg_lsp.core.values import Candidate, Confidence, Document, Edit, Hole, Span

__all__ = ["CHECKS", "FILTERS", "SHRINKS", "Suggestion", "allows", "to_edits"]

SHRINKS = "replaces working code by less"


@dataclass(frozen=True, slots=True)
class Suggestion:
    r"""A candidate after polishing.

    Either `edits` holds one edit for each hole, in order, or it is empty and `dropped` is the reason: the end of a
    sentence that begins with "it". `texts` are the edits' texts without the lead and trail of their holes, with `\n` line
    ends.

    `unbound` holds names that nothing in the file binds, in a language where another file may bind them; such a candidate
    ranks below those without. With `shrinks` it replaces working code by less: it is dropped unless that is allowed, and then
    the user must confirm it. `after` is the syntax of the document with the edits, None if its language has no grammar.
    """

    candidate: Candidate
    edits: tuple[Edit, ...] = ()
    dropped: str = ""
    unbound: tuple[str, ...] = ()
    shrinks: bool = False
    after: Syntax | None = field(default=None, repr=False, compare=False)
    texts: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The new text of the first hole."""
        return self.edits[0].text

    @property
    def confidence(self) -> Confidence:
        """The confidence that all edits are right."""
        return self.candidate.confidence

    @property
    def of_holes(self) -> tuple[Confidence, ...]:
        """The confidence in each edit: its own if that is known, else that in all of them."""
        return self.candidate.alone or (self.confidence,) * len(self.edits)

    def with_text(self, text: str) -> Suggestion:
        """Return the suggestion for one hole with another text."""
        return replace(self, edits=(replace(self.edits[0], text=text),))


def to_edits(
    candidate: Candidate,
    holes: tuple[Hole, ...],
    document: Document,
    *,
    syntax: Syntax | None = None,
    is_file: bool = False,
    allow_shrink: bool = False,
    sources: Sources | None = None,
    is_cut: bool = False,
) -> Suggestion:
    """Return the candidate as edits of the document, or the reason why it was dropped.

    One dropped text drops the whole candidate, because its texts were written to fit each other. `syntax` is the
    document's; without it, no candidate is dropped for its syntax. Pass `is_file=True` if the document is a whole file,
    so that it shows which names are bound; a notebook cell does not. With `sources`, an answer is dropped that imports what
    the repository lacks. Pass `allow_shrink=True` if the user agreed that less code may replace working code, and
    `is_cut=True` for the beginning of a text that was polished: it is judged like any other, but not changed again.

    Never raises, whatever the texts contain.
    """
    if len(candidate.texts) != len(holes):
        return Suggestion(candidate, dropped=f"has {len(candidate.texts)} texts for {len(holes)} holes")
    if syntax is not None and any(syntax.is_deep(hole.span.start) for hole in holes):
        return Suggestion(candidate, dropped="is in code that is nested too deeply to be checked")
    texts, edits, is_shrunk = list[str](), list[Edit](), False
    filled, tree = document, syntax
    try:
        # From the last hole to the first, so that the spans of the remaining holes stay valid while the text changes.
        for hole, raw in reversed(list(zip(holes, candidate.texts, strict=True))):
            around = around_hole(filled, hole, tree, allow_shrink=allow_shrink)
            text = with_newlines(raw.removeprefix("\ufeff"))
            for apply_filter, reason in FILTERS.items():
                result = apply_filter(text, around) if reason or not is_cut else text
                if result is None:
                    return Suggestion(candidate, dropped=reason, shrinks=reason == SHRINKS)
                text = result
            is_shrunk = is_shrunk or placeholders.shrinks(around.old, text, document.language)
            texts.insert(0, text)
            edits.insert(0, edit_of(text, hole, around.line_end))
            filled = replace(filled, text=values.apply(filled.text, (edits[0],)))
            tree = around.filled(text)
        if syntax is None or tree is None:
            return Suggestion(candidate, tuple(edits), "", (), is_shrunk, tree, tuple(texts))
        whole = Whole(tuple(edits), holes, document, syntax, tree, is_file, sources)
        if dropped := _dropped(whole):
            closed = checks.with_block_closed(whole)
            if closed is None or _dropped(closed):
                return Suggestion(candidate, dropped=dropped)
            whole = closed
        unbound = tuple(sorted(checks.unbound_names(whole)))
        return Suggestion(candidate, tuple(edits), "", unbound, is_shrunk, tree, tuple(texts))
    except ParseLimitError:
        return Suggestion(candidate, dropped="takes too long to parse")


def allows(text: str, document: Document, syntax: Syntax | None) -> bool:
    """Return whether the document may become this text: what changes parses, and has no character that does not belong there.

    `syntax` is the document's; without it, any syntax is allowed.
    """
    change = difference(document.text, text)
    hole, new = Hole(Span(change.start, change.old_end), "selection"), text[change.start : change.new_end]
    around, edit = around_hole(document, hole, syntax), Edit(hole.span, new)
    try:
        if None in (filters.drop_unreadable(new, around), filters.drop_untyped(with_newlines(new), around)):
            return False
        return syntax is None or checks.parses(Whole((edit,), (hole,), document, syntax, frames.after(syntax, (edit,))))
    except ParseLimitError:
        return False


def _dropped(whole: Whole) -> str:
    """Return the reason of the first check that fails; "" if none does."""
    return next((reason for check, reason in CHECKS.items() if not check(whole)), "")


# --- Their order, and the reasons for which they drop; "" if they only change the text

_SAYS_NOTHING = "says nothing, or leaves a new hole"
FILTERS: dict[Filter, str] = {
    filters.cut_at_control: "",
    filters.cut_at_fence: "",
    filters.cut_at_line_end: "",
    filters.drop_merged: "merges with the name behind it",
    filters.cut_repeated_rest: "",
    filters.cut_repeated_lines: "",
    filters.restore_start: "",
    filters.restore_indent: "",
    filters.cut_at_dedent: "",
    filters.cut_at_closer: "",
    filters.trim_end: "",
    filters.drop_unreadable: "has characters that are not text",
    filters.drop_untyped: "has a character that code does not have",
    filters.drop_blank: "is blank",
    filters.drop_unchanged: "changes nothing",
    filters.drop_shrunk: SHRINKS,
    filters.drop_comment_before_code: "turns the code after it into a comment",
    filters.drop_continued: "makes the next line a part of itself",
    filters.drop_repetition: "repeats the lines next to it",
    filters.drop_loop: "repeats itself",
    filters.drop_holes: _SAYS_NOTHING,
    filters.drop_nothing: _SAYS_NOTHING,
}
CHECKS: dict[Check, str] = {
    checks.parses: "adds a syntax error",
    checks.binds_once: "declares or imports what is there already",
    checks.compiles: "does not compile",
    checks.binds: "uses a name that nothing binds",
    checks.imports: "imports what the repository does not have",
}
