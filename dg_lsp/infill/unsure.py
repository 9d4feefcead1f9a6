"""Cut a suggestion before its first uncertain token, at the end of a syntax token or of a line.

Pure. The candidate was polished before, so a cut is not changed again, but judged like a whole one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.polish import Polished
from dg_lsp.core.values import Candidate, Span

MAX_CUTS = 6
"""Each costs a parse."""
_WORD = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Doubt:
    """The offset of a text's first uncertain token, and whether it is exact or estimated."""

    at: int
    is_exact: bool


def cut(
    candidate: Candidate, polished: Polished, lead: str, threshold: float, to_cut: Callable[[Candidate], Polished]
) -> Polished:
    """Return the candidate of one hole, cut before its first token below the threshold; all of it if no cut is valid alone.

    `polished` is the whole candidate, and `lead` that of the hole. `to_cut` judges the beginning of its text.
    """
    [edit], [text], whole = polished.edits, polished.texts, polished.after
    unsure = doubt(candidate, text, threshold)
    ends: list[int] = []
    # In code that does not parse, a cut's own syntax errors could not be told apart.
    if unsure is not None and whole is not None and not whole.errors:
        start = edit.span.start
        own = Span(start, start + len(edit.text))
        ends = [end - start - whole.text.count("\r\n", start, end) - len(lead) for end in whole.token_ends(own)]
    for beginning in cuts(text, unsure, ends):
        alone = to_cut(replace(candidate, texts=(beginning,)))
        # A cut may leave half a construct, such as an open bracket, which the whole text closes.
        is_half = whole is not None and alone.after is not None and syntaxes.adds_errors(alone.after, whole)
        if alone.edits and not is_half:
            return alone
    return polished


def doubt(candidate: Candidate, text: str, threshold: float) -> Doubt | None:
    """Return where the first token below the confidence threshold starts in the text; None when there is none.

    The text is the candidate after polishing. Tokens are assumed to be equally long when the engine does not send token
    lengths, or when polishing changed more than the end.
    """
    confidences = candidate.confidences[0] if candidate.confidences else ()
    first = next((idx for idx, chance in enumerate(confidences) if chance < threshold), None)
    if first is None or not text:
        return None
    lengths = candidate.lengths[0] if candidate.lengths else ()
    if len(lengths) == len(confidences):
        sure_text = candidate.texts[0][: sum(lengths[:first])]
        if sure_text.startswith(text):
            return None
        if text.startswith(sure_text):
            return Doubt(len(sure_text), is_exact=True)
    return Doubt(int(first / len(confidences) * len(text)), is_exact=False)


def cuts(text: str, doubt: Doubt | None, ends: Iterable[int] = ()) -> Iterator[str]:
    r"""Yield cuts of the text before its first uncertain token, longest first: at ends of syntax tokens, then of lines.

    `ends` are the end offsets of the syntax tokens. They are used only on the uncertain token's own line, and only when its
    offset is exact. Otherwise the cuts end before that line. A cut within the line must contain a word.
    """
    if doubt is None:
        return
    end = text.rfind("\n", 0, doubt.at + 1)
    line_ends = [at for at in ends if max(end, 0) < at <= doubt.at] if doubt.is_exact else []
    for at in sorted(line_ends, reverse=True)[:MAX_CUTS]:
        if _WORD.search(text, max(end, 0), at):
            yield text[:at]
    while end > 0:
        head = text[:end].rstrip("\r\n")
        if not head.strip():
            return
        yield head
        end = text.rfind("\n", 0, end)
