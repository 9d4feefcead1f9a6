"""Count what the user does with suggestions after they are sent: shown, typed through, accepted, rejected.

This module compares the text of the suggestion with the current text.
"""

from __future__ import annotations

from collections.abc import Callable

from dg_lsp.core.values import Import
from dg_lsp.server import reuse
from dg_lsp.server.reuse import Offer, Rejections
from dg_lsp.server.stats import Statistics

# An editor may report about a suggestion long after it was sent. Older ones than the last 200 are forgotten.
MAX_OFFERS = 200


class Usage:
    """The recently sent suggestions, and the counts of what the user did with them."""

    def __init__(self, statistics: Statistics, clock: Callable[[], float]) -> None:
        """Start with no suggestion; count into `statistics`."""
        self._statistics, self._clock = statistics, clock
        self.rejections = Rejections()
        self._visible: dict[str, tuple[str, int, Offer]] = {}
        self._offers: dict[int, Offer] = {}
        self._imports: dict[int, tuple[Import, ...]] = {}
        self._displayed: set[int] = set()

    def sent(self, offers: tuple[Offer, ...]) -> None:
        """Count and remember the suggestions sent for one request."""
        self._statistics.counts.add("shown")
        for offer in offers:
            self._offers.pop(offer.id, None)
            self._offers[offer.id] = offer
            if offer.imports:
                self._imports[offer.id] = offer.imports
        for entries in (self._offers, self._imports):
            while len(entries) > MAX_OFFERS:
                del entries[next(iter(entries))]
        self._displayed &= self._offers.keys()

    def watch(self, uri: str, text: str, at: int, offer: Offer) -> None:
        """Track an offer at an offset of this text, so that `changed` can tell whether it was accepted or rejected."""
        self._visible[uri] = (text, at, offer)

    def changed(self, uri: str, now: str) -> None:
        """Compare a document's new text with the tracked offer, and count the outcome."""
        entry = self._visible.get(uri)
        if entry is None:
            return
        text, at, offer = entry
        outcome = reuse.outcome(text, at, offer.text, now)
        if outcome == "typing":
            return
        del self._visible[uri]
        if outcome == "taken":
            self.accepted(offer.id)
        elif outcome == "rejected":
            self._statistics.counts.add("rejected")
            self.rejections = self.rejections.add(reuse.place(uri, text, at), offer.text, self._clock())

    def displayed(self, offer_id: int) -> None:
        """Count a suggestion that the editor reports as displayed, once; only VS Code reports this."""
        if offer_id in self._offers and offer_id not in self._displayed:
            self._displayed.add(offer_id)
            self._statistics.counts.add("on screen")

    def accepted(self, offer_id: int) -> None:
        """Count an accepted suggestion, once."""
        offer = self._offers.pop(offer_id, None)
        if offer is not None:
            self._statistics.counts.add("accepted")
            self._statistics.counts.add("characters accepted", len(offer.text))

    def imports(self, offer_id: int) -> tuple[Import, ...]:
        """Return what the file must import for a suggestion, once: its acceptance may be seen before it is reported."""
        return self._imports.pop(offer_id, ())

    def accepted_in_part(self, offer_id: int, n_units: int) -> None:
        """Count a partially accepted suggestion."""
        if offer_id in self._offers and n_units > 0:
            self._statistics.counts.add("accepted in part")

    def forget(self, uri: str) -> None:
        """Forget a document that was closed."""
        self._visible.pop(uri, None)
        self.rejections = self.rejections.without(uri)
