"""Canvases for a vLLM server: how a request is laid out on them, and how those that come back are read.

Knows layouts, token ids and what a server serves. Knows nothing of HTTP.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine import layout
from dg_lsp.engine.backends.http_client import RemoteError
from dg_lsp.engine.backends.remote import token_features, trimmed
from dg_lsp.engine.backends.vllm_server import Served
from dg_lsp.engine.calibration import Evidence
from dg_lsp.engine.layout import Sheet
from dg_lsp.engine.profile import Profile
from dg_lsp.engine.vocabulary import Vocabulary

MAX_ROWS = 8  # canvases of one request; vLLM's default for this model, where more would wait for each other
WIDTH_STEP = 16
FULL_WIDTH = 64  # a served canvas up to this is used whole: a step takes about as long, and only that width has whole graphs
LEAST_PREFIX_TOKENS = 64
MAX_WINDOW = 1 << 26  # of a server that does not tell its own, in tokens
LEAST_CHANCE = 1e-9
FULL_AGREEMENT = 0.9  # of the held text; where the model reads more of it otherwise, that speaks against the answer


@dataclass(frozen=True, slots=True)
class PinnedCanvas:
    """A row of token ids, and for each position the gap it belongs to, or -1 where it is held."""

    ids: tuple[int, ...]
    gaps: tuple[int, ...]
    n_filled: int
    """How many positions are the request's; what is right of them only fills the canvas up."""

    @property
    def held(self) -> tuple[int, ...]:
        """The positions that are held."""
        return tuple(place for place, gap in enumerate(self.gaps) if gap < 0)


@dataclass(frozen=True, slots=True)
class ReturnedCanvas:
    """What one canvas came to: what the model reads at each position, and how surely."""

    ids: tuple[int, ...]
    chances: tuple[float, ...]


def fitting_sheet(request: InfillRequest, served: Served, profile: Profile, vocabulary: Vocabulary) -> Sheet:
    """Return the request as tokens; without related text, and then with less and less context, where the window is short.

    Raises RemoteError when the server's window is too short for anything.
    """
    n_free = served.max_tokens - served.canvas if served.max_tokens else MAX_WINDOW
    for attempt in (request, replace(request, related=())):
        sheet = layout.for_profile(profile, vocabulary).lay_out(attempt)
        if len(sheet.kv) <= n_free:
            return sheet
    while profile.prefix_tokens > LEAST_PREFIX_TOKENS:
        profile = replace(profile, prefix_tokens=profile.prefix_tokens // 2, suffix_tokens=profile.suffix_tokens // 2)
        sheet = layout.for_profile(profile, vocabulary).lay_out(replace(request, related=()))
        if len(sheet.kv) <= n_free:
            return sheet
    raise RemoteError(
        f"{served.host} serves windows of {served.max_tokens} tokens, too short for infilling; "
        "start it with a larger --max-model-len"
    )


class CanvasWriter:
    """Lays requests out on canvases of the length that is served."""

    def __init__(self, served: Served, profile: Profile, vocabulary: Vocabulary) -> None:
        self._served, self._profile = served, profile
        self._regular = tuple(
            token for token, piece in enumerate(vocabulary.pieces) if piece and token not in vocabulary.special
        )
        eos, pad = vocabulary.id("<eos>"), vocabulary.id("<pad>")
        self._pad = pad if pad is not None else eos if eos is not None else 0

    def canvases(self, request: InfillRequest, sheet: Sheet) -> Iterator[PinnedCanvas]:
        """Yield canvases with several gap lengths, and then with other noise, until there are as many as are asked for.

        Raises RemoteError where the canvas that is served is too short.
        """
        gaps = self._gap_lengths(request, sheet)
        most = min(MAX_ROWS, self._served.max_rows or MAX_ROWS)
        gaps = _spread(gaps, most)
        # Equally wide, as the server's graphs are captured for batches of one width.
        width = self._width(request, sheet, max(gaps))
        for number in range(min(most, max(len(gaps), request.budget.candidates))):
            # A text as seed: the same in every process, and another for each row.
            noise = random.Random(f"{request.seed} {number}")
            yield self._canvas(request, sheet, gaps[number % len(gaps)], width, noise)

    def _gap_lengths(self, request: InfillRequest, sheet: Sheet) -> tuple[int, ...]:
        is_block = any(hole.block for hole in request.holes)
        lengths = self._profile.block_gaps if is_block else self._profile.line_gaps
        n_free = self._profile.canvas_tokens - len(sheet.heal_ids) - len(sheet.tail) - sum(map(len, sheet.between))
        each = n_free // len(request.holes)
        if each < 1:
            raise RemoteError(
                f"{self._served.host} serves canvases of {self._served.canvas} tokens, too short for this request; "
                "start it with a larger canvas_length in --diffusion-config"
            )
        return tuple(length for length in lengths if length <= each) or (each,)

    def _width(self, request: InfillRequest, sheet: Sheet, gap: int) -> int:
        """Return the width of a request's canvases, the longest of which has gaps of this length.

        The width that is served runs fastest; narrower ones only pay when they are much narrower.
        """
        served = self._served.canvas
        n_filled = len(sheet.heal_ids) + gap * len(request.holes) + sum(map(len, sheet.between)) + len(sheet.tail)
        if served <= FULL_WIDTH or n_filled > served // 2:
            return served
        return min(-(-(n_filled + 1) // WIDTH_STEP) * WIDTH_STEP, served)

    def _canvas(self, request: InfillRequest, sheet: Sheet, gap: int, width: int, noise: random.Random) -> PinnedCanvas:
        # No position can be told to begin with certain letters here, so what is healed elsewhere is held.
        ids, gaps = list(sheet.heal_ids), [-1] * len(sheet.heal_ids)
        for index in range(len(request.holes)):
            # From the whole vocabulary, as in training: noise that looks like code is denoised to more of the kind.
            ids += noise.choices(self._regular, k=gap)
            gaps += [index] * gap
            if index < len(sheet.between):
                ids += sheet.between[index]
                gaps += [-1] * len(sheet.between[index])
        ids += sheet.tail
        n_filled = len(ids)
        # As vLLM fills its own canvases up: the turn ends, unless it has ended already, and padding follows.
        ending = sheet.closing[:1] if n_filled < width and ids[-1] not in sheet.closing else ()
        ids += [*ending, *[self._pad] * (width - n_filled - len(ending))]
        return PinnedCanvas(tuple(ids), (*gaps, *[-1] * (width - len(gaps))), n_filled)


def _spread(lengths: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most so many of the lengths, spread over all of them: the longest always, then the shortest."""
    if len(lengths) <= most:
        return tuple(lengths)
    last = len(lengths) - 1
    return tuple(lengths[last - round(number * last / max(most - 1, 1))] for number in range(most))[::-1]


def agreement(canvas: PinnedCanvas, returned: ReturnedCanvas) -> float:
    """Return at what share of the held positions the model reads what is held there; 1.0 where none is held."""
    held = [place for place in canvas.held if place < canvas.n_filled]
    return sum(canvas.ids[place] == returned.ids[place] for place in held) / len(held) if held else 1.0


def evidence(
    request: InfillRequest, vocabulary: Vocabulary, canvas: PinnedCanvas, returned: ReturnedCanvas, share: float
) -> Evidence:
    """Return what a canvas came to as a candidate, ordered by the mean probability of its tokens times `share`."""
    texts, confidences = [], []
    for index, hole in enumerate(request.holes):
        gap = [
            (token, chance)
            for token, chance, gap in zip(returned.ids, returned.chances, canvas.gaps, strict=True)
            if gap == index
        ]
        answer = list(answer_tokens(vocabulary, gap))
        text = layout.answer(vocabulary, [token for token, _ in answer], b"")
        text, chances = trimmed(text, tuple(chance for _, chance in answer), block=hole.block)
        texts.append(text)
        confidences.append(chances)
    logs = [math.log(max(chance, LEAST_CHANCE)) for row in confidences for chance in row]
    features = {**token_features(logs, "".join(texts)), "share": share, "gap": math.log1p(len(canvas.gaps) - len(canvas.held))}
    candidate = Candidate(tuple(texts), confidences=tuple(confidences))
    return Evidence(candidate, share * math.exp(features["mean"]), features, doubted=share < FULL_AGREEMENT)


def answer_tokens(vocabulary: Vocabulary, gap: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """Yield what counts of a gap: not its delete tokens, and nothing behind a token that ends the answer."""
    delete = vocabulary.id("<delete>")
    for token, chance in gap:
        if token == delete:
            continue
        if token in vocabulary.special or token >= len(vocabulary.pieces):
            return
        yield token, chance
