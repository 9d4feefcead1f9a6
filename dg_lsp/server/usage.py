"""What becomes of suggestions once they are sent: shown, typed through, accepted, rejected. It is counted here.

Knows the text at which a suggestion was made and the text now; nothing of how suggestions are made.
"""

from __future__ import annotations

from collections.abc import Callable

from dg_lsp.server import reuse
from dg_lsp.server.reuse import Offer, Rejections
from dg_lsp.server.stats import Statistics

# An editor may tell of a suggestion long after it was sent, but not of one so many suggestions ago.
MAX_OFFERS = 200


class Usage:
    """The suggestions that were sent lately, and what became of them."""

    def __init__(self, statistics: Statistics, clock: Callable[[], float]) -> None:
        """Have sent none."""
        self._statistics, self._clock = statistics, clock
        self.rejections = Rejections()
        self._shown: dict[str, tuple[str, int, Offer]] = {}
        self._offered: dict[int, Offer] = {}
        self._displayed: set[int] = set()

    def sent(self, offers: tuple[Offer, ...]) -> None:
        """Count suggestions that the editor was sent for one request."""
        self._statistics.counts.add("shown")
        for offer in offers:
            self._offered.pop(offer.id, None)
            self._offered[offer.id] = offer
        while len(self._offered) > MAX_OFFERS:
            del self._offered[next(iter(self._offered))]
        self._displayed &= self._offered.keys()

    def watch(self, uri: str, text: str, at: int, offer: Offer) -> None:
        """See from the document's next changes what becomes of an offer at an offset of this text."""
        self._shown[uri] = (text, at, offer)

    def changed(self, uri: str, now: str) -> None:
        """Take note that a document's text is another."""
        watched = self._shown.get(uri)
        if watched is None:
            return
        text, at, offer = watched
        outcome = reuse.outcome(text, at, offer.text, now)
        if outcome == "typing":
            return
        del self._shown[uri]
        if outcome == "taken":
            self.accepted(offer.id)
        elif outcome == "rejected":
            self._statistics.counts.add("rejected")
            self.rejections = self.rejections.add(reuse.place(uri, text, at), offer.text, self._clock())

    def displayed(self, offer_id: int) -> None:
        """Count a suggestion that the editor reports to be on the screen, once. Of the editors only VS Code reports it."""
        if offer_id in self._offered and offer_id not in self._displayed:
            self._displayed.add(offer_id)
            self._statistics.counts.add("on screen")

    def accepted(self, offer_id: int) -> None:
        """Count a suggestion that was accepted, once."""
        offer = self._offered.pop(offer_id, None)
        if offer is not None:
            self._statistics.counts.add("accepted")
            self._statistics.counts.add("characters accepted", len(offer.text))

    def accepted_in_part(self, offer_id: int, n_units: int) -> None:
        """Count a suggestion of which a part was accepted."""
        if offer_id in self._offered and n_units > 0:
            self._statistics.counts.add("accepted in part")

    def forget(self, uri: str) -> None:
        """Forget a document that was closed."""
        self._shown.pop(uri, None)
        self.rejections = self.rejections.without(uri)
