"""Decide whether to show an answer, and where to cut it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dg_lsp.core import confidence, polish
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.confidence import Calibrated, Confidence, Ranked, Threshold
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Candidate, Hole, Span
from dg_lsp.infill.pipeline import Suggestion
from dg_lsp.server.reuse import Offer, Place, Rejections
from dg_lsp.server.snapshot import Snapshot
from dg_lsp.server.when import Reason
from dg_lsp.wire.settings import Settings

# Each cut costs one parse.
MAX_CUTS = 6
_WORD = re.compile(r"\w")


def visible(
    offers: tuple[Offer, ...], place: Place, rejections: Rejections, settings: Settings, now: float, *, automatic: bool
) -> tuple[tuple[Offer, ...], Reason | None]:
    """Return the offers to show, best first, or the reason for none.

    An unprompted request gets at most one offer, which must reach the threshold and not be recently rejected. An explicit
    request gets up to `settings.candidates` offers.
    """
    if not offers:
        return (), Reason("noAnswer", "the model has no answer here")
    if not automatic:
        return offers[: settings.candidates], None
    sure_offers = [offer for offer in offers if confidence.is_sure(offer.confidence, settings.suggestion_threshold)]
    if not sure_offers:
        best = max((offer.confidence for offer in offers), key=confidence.order)
        return (), Reason("unsure", f"the best answer {_unsure(best, settings.suggestion_threshold)}")
    new_offers = [offer for offer in sure_offers if not rejections.holds(place, offer.text, now)]
    if not new_offers:
        return (), Reason("rejected", "the same suggestion was rejected a moment ago")
    return (new_offers[0],), None


def _unsure(best: Confidence, threshold: Threshold) -> str:
    """Return why an answer is not sure enough, as the end of a sentence."""
    match best:
        case Calibrated(probability):
            return f"is right with a probability of {probability:.2f}, below {threshold.probability:.2f}"
        case Ranked(_, True):
            return "was cut short, or contradicts the text around it"
        case Ranked():
            return "comes from a model that is not calibrated; `dg-lsp calibrate` measures how often it is right"


@dataclass(frozen=True, slots=True)
class Doubt:
    """The offset of a text's first uncertain token, and whether it is exact or estimated."""

    at: int
    is_exact: bool


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


def offer(item: Suggestion, hole: Hole, now: Snapshot, syntax: Syntax | None, offer_id: int) -> Offer:
    """Return the suggestion's text up to its first uncertain token, or all of it where no shorter text is valid alone."""
    text = item.edits[0].text
    unsure = doubt(item.candidate, text, hole.lead, now.settings.token_threshold)
    whole = now.with_text(syntax, text) if unsure is not None else None
    ends: tuple[int, ...] = ()
    # In code that does not parse, a cut's own syntax errors could not be told apart.
    if whole is not None and not whole.errors:
        ends = tuple(end - now.offset for end in whole.token_ends(Span(now.offset, now.offset + len(text))))
    for cut in cuts(text, unsure, ends):
        shorter = now.with_text(syntax, cut)
        # A cut may leave half a construct, such as an open bracket, which the whole text closes.
        if whole is not None and shorter is not None and syntaxes.adds_errors(shorter, whole):
            continue
        # Polish the cut text too: the parser accepts `x = self.` when another line follows.
        alone = replace(item.candidate, texts=(cut[len(hole.lead) :],))
        polished = polish.to_edits(alone, (hole,), now.document, syntax=syntax, is_file=now.is_file, sources=now.sources)
        if polished.edits:
            return Offer(polished.edits[0].text, item.candidate.confidence, offer_id, polished.imports)
    return Offer(text, item.candidate.confidence, offer_id, item.imports)
