"""Whether to show an answer, and how much of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dg_lsp.core import confidence
from dg_lsp.core.confidence import Calibrated, Confidence, Ranked, Threshold
from dg_lsp.core.values import Candidate
from dg_lsp.server.reuse import Offer, Place, Rejections
from dg_lsp.server.settings import Settings
from dg_lsp.server.when import Reason

# Each takes a parse to try.
MAX_CUTS = 6
_WORD = re.compile(r"\w")


def visible(
    offers: tuple[Offer, ...], place: Place, rejections: Rejections, settings: Settings, now: float, *, automatic: bool
) -> tuple[tuple[Offer, ...], Reason | None]:
    """Return the offers to show, best first, or why there is none.

    An unprompted request gets one at most: it must be sure enough, and not rejected just now. An explicit one gets all.
    """
    if not offers:
        return (), Reason("noAnswer", "the model has no answer here")
    if not automatic:
        return offers[: settings.candidates], None
    sure = [offer for offer in offers if confidence.is_sure(offer.confidence, settings.gate)]
    if not sure:
        best = max((offer.confidence for offer in offers), key=confidence.order)
        return (), Reason("unsure", f"the best answer {_unsure(best, settings.gate)}")
    welcome = [offer for offer in sure if not rejections.holds(place, offer.text, now)]
    if not welcome:
        return (), Reason("rejected", "the same suggestion was rejected a moment ago")
    return (welcome[0],), None


def _unsure(best: Confidence, gate: Threshold) -> str:
    """Return why an answer is not sure enough, as the end of a sentence."""
    match best:
        case Calibrated(probability):
            return f"is right with a probability of {probability:.2f}, below {gate.probability:.2f}"
        case Ranked(_, True):
            return "was cut short, or contradicts the text around it"
        case Ranked():
            return "comes from a model that is not calibrated; `dg-lsp calibrate` measures how often it is right"


@dataclass(frozen=True, slots=True)
class Doubt:
    """Where in a text its first uncertain token starts, and whether that is known or only estimated."""

    at: int
    is_exact: bool


def doubt(candidate: Candidate, text: str, lead: str, threshold: float) -> Doubt | None:
    r"""Return where the first token stands that is less sure than that, in what a candidate comes to; None where none is.

    The text is what polishing left of the candidate, behind the hole's `lead`. Where the engine does not tell how long its
    tokens are, or polishing changed more than the end, tokens are taken to be equally long.
    """
    confidences = candidate.confidences[0] if candidate.confidences else ()
    first = next((idx for idx, chance in enumerate(confidences) if chance < threshold), None)
    if first is None or not text:
        return None
    lengths = candidate.lengths[0] if candidate.lengths else ()
    if len(lengths) == len(confidences):
        sure = lead + candidate.texts[0][: sum(lengths[:first])]
        if sure.startswith(text):
            return None
        if text.startswith(sure):
            return Doubt(len(sure), is_exact=True)
    return Doubt(int(first / len(confidences) * len(text)), is_exact=False)


def cuts(text: str, doubt: Doubt | None, ends: Iterable[int] = ()) -> Iterator[str]:
    r"""Yield the text up to its first uncertain token, then shorter ones: first at the ends of its tokens, then whole lines.

    `ends` are where its syntax's tokens end; they count on the uncertain token's own line, where that place is exact. Where
    it is estimated, the line before it is still certain. What would leave no word is not offered: its score tells.
    """
    if doubt is None:
        return
    end = text.rfind("\n", 0, doubt.at + 1)
    near = [at for at in ends if max(end, 0) < at <= doubt.at] if doubt.is_exact else []
    for at in sorted(near, reverse=True)[:MAX_CUTS]:
        if _WORD.search(text, max(end, 0), at):
            yield text[:at]
    while end > 0:
        head = text[:end].rstrip("\r\n")
        if not head.strip():
            return
        yield head
        end = text.rfind("\n", 0, end)
