"""Whether to show an answer, and how much of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dg_lsp.server.reuse import Offer, Place, Rejections
from dg_lsp.server.settings import Settings
from dg_lsp.server.when import Reason


def visible(
    offers: tuple[Offer, ...], place: Place, rejections: Rejections, settings: Settings, now: float, *, automatic: bool
) -> tuple[tuple[Offer, ...], Reason | None]:
    """Return the offers to show, best first, or why there is none.

    By oneself there is one at most, it must be likely enough to be right, and it must not have been rejected just now.
    Whoever asks gets all that there is.
    """
    if not offers:
        return (), Reason("noAnswer", "the model has no answer here")
    if not automatic:
        return offers[: settings.candidates], None
    sure = [offer for offer in offers if offer.score >= settings.threshold]
    if not sure:
        best = max(offer.score for offer in offers)
        return (), Reason(
            "unsure", f"the best answer is right with a probability of {best:.2f}, below {settings.threshold:.2f}"
        )
    wanted = [offer for offer in sure if not rejections.holds(place, offer.text, now)]
    if not wanted:
        return (), Reason("rejected", "the same suggestion was rejected a moment ago")
    return (wanted[0],), None


def cuts(text: str, confidences: tuple[float, ...], threshold: float) -> Iterator[str]:
    r"""Yield the text up to the line of its first uncertain token, then shorter ones, by whole lines.

    The engine tells how sure it is of each token but not where tokens end, so they are taken to be equally long; the line
    before the estimated place is still certain. A text whose first line is uncertain is not cut: its score tells.
    """
    doubtful = next((idx for idx, chance in enumerate(confidences) if chance < threshold), None)
    if doubtful is None or not text:
        return
    end = text.rfind("\n", 0, int(doubtful / len(confidences) * len(text)) + 1)
    while end > 0:
        kept = text[:end].rstrip("\r\n")
        if not kept.strip():
            return
        yield kept
        end = text.rfind("\n", 0, end)
