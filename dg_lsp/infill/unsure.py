"""Cut a suggestion before its first uncertain token, at the end of a syntax token or of a line.

Pure. The candidate was polished before, so a cut is only parsed again, because it must be valid alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

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
    candidate: Candidate, polished: Polished, lead: str, threshold: float, cut_at: Callable[[str], Polished | None]
) -> Polished:
    """Return the candidate of one hole, cut before its first token below the threshold; all of it if no cut is valid alone.

    `polished` is the whole candidate, and `lead` that of the hole. `cut_at` returns it with the beginning of its text, if that
    is valid.
    """
    [edit], whole = polished.edits, polished.after
    unsure = doubt(candidate, edit.text, lead, threshold)
    ends: tuple[int, ...] = ()
    # In code that does not parse, a cut's own syntax errors could not be told apart.
    if unsure is not None and whole is not None and not whole.errors:
        start = edit.span.start
        ends = tuple(end - start for end in whole.token_ends(Span(start, start + len(edit.text))))
    # The parser accepts `x = self.` when another line follows, and the checks of an answer do not.
    return next(filter(None, map(cut_at, cuts(edit.text, unsure, ends))), polished)


def doubt(candidate: Candidate, text: str, lead: str, threshold: float) -> Doubt | None:
    r"""Return where the first token below the confidence threshold starts in the text; None when there is none.

    The text is the candidate after polishing, with the hole's `lead` before it. Tokens are assumed to be equally long when
    the engine does not send token lengths, or when polishing changed more than the end.
    """
    confidences = candidate.confidences[0] if candidate.confidences else ()
    first = next((idx for idx, chance in enumerate(confidences) if chance < threshold), None)
    if first is None or not text:
        return None
    lengths = candidate.lengths[0] if candidate.lengths else ()
    if len(lengths) == len(confidences):
        sure_text = lead + candidate.texts[0][: sum(lengths[:first])]
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
