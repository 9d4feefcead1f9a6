"""Lay a request out on canvases for a vLLM server, and read the canvases that it returns."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.backends.http_client import RemoteError
from dg_lsp.engine.backends.remote import token_features, trimmed
from dg_lsp.engine.backends.vllm_server import Served
from dg_lsp.engine.decode import layout
from dg_lsp.engine.decode.layout import Sheet
from dg_lsp.engine.model.profile import Profile
from dg_lsp.engine.model.vocabulary import Vocabulary

MAX_ROWS = 8  # canvases of one request: vLLM's default batch for this model; further ones would have to wait
WIDTH_STEP = 16
FULL_WIDTH = 64  # up to this, the whole canvas is used: a step takes about as long, and only that width has full graphs
LEAST_PREFIX_TOKENS = 64
MAX_WINDOW = 1 << 26  # tokens; for a server that does not report its window
LEAST_CHANCE = 1e-9
FULL_AGREEMENT = 0.9  # an answer is doubted if the model predicts a smaller share of the held text correctly


@dataclass(frozen=True, slots=True)
class PinnedCanvas:
    """A row of token ids, and for each position its gap's index, or -1 if it is held."""

    ids: tuple[int, ...]
    gaps: tuple[int, ...]
    n_filled: int
    """The number of positions that the request uses; the rest is padding."""

    @property
    def held(self) -> tuple[int, ...]:
        """The held positions."""
        return tuple(position for position, gap in enumerate(self.gaps) if gap < 0)


@dataclass(frozen=True, slots=True)
class ReturnedCanvas:
    """A denoised canvas: the model's prediction at each position, and its probability."""

    ids: tuple[int, ...]
    chances: tuple[float, ...]


def fitting_sheet(request: InfillRequest, served: Served, profile: Profile, vocabulary: Vocabulary) -> Sheet:
    """Return the request as tokens that fit the server's window.

    In a short window, related text is left out first; then the context is halved until it fits. Raises RemoteError if even
    the smallest context does not fit.
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
        """Yield as many canvases as requested: each gap length once, then again with other noise.

        Raises RemoteError if the served canvas is too short.
        """
        gaps = self._gap_lengths(request, sheet)
        most = min(MAX_ROWS, self._served.max_rows or MAX_ROWS)
        gaps = _spread(gaps, most)
        # All have the same width, because the server's graphs are captured for batches of one width.
        width = self._width(request, sheet, max(gaps))
        for number in range(min(most, max(len(gaps), request.budget.candidates))):
            # A text as the seed gives the same noise in every process, and different noise for each row.
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
        """Return the width of a request's canvases, where `gap` is the longest gap.

        The served width runs fastest. A narrower canvas is faster only if it is much narrower.
        """
        served = self._served.canvas
        n_filled = len(sheet.heal_ids) + gap * len(request.holes) + sum(map(len, sheet.between)) + len(sheet.tail)
        if served <= FULL_WIDTH or n_filled > served // 2:
            return served
        return min(-(-(n_filled + 1) // WIDTH_STEP) * WIDTH_STEP, served)

    def _canvas(self, request: InfillRequest, sheet: Sheet, gap: int, width: int, noise: random.Random) -> PinnedCanvas:
        # The server can't constrain a token to begin with certain letters, so the tokens that local models heal are held here.
        ids, gaps = list(sheet.heal_ids), [-1] * len(sheet.heal_ids)
        for index in range(len(request.holes)):
            # Noise comes from the whole vocabulary, as in training. Noise that looks like code is denoised to similar code.
            ids += noise.choices(self._regular, k=gap)
            gaps += [index] * gap
            if index < len(sheet.between):
                ids += sheet.between[index]
                gaps += [-1] * len(sheet.between[index])
        ids += sheet.tail
        n_filled = len(ids)
        # vLLM fills its own canvases in the same way: an end of turn, unless there is one already, then padding.
        ending = sheet.closing[:1] if n_filled < width and ids[-1] not in sheet.closing else ()
        ids += [*ending, *[self._pad] * (width - n_filled - len(ending))]
        return PinnedCanvas(tuple(ids), (*gaps, *[-1] * (width - len(gaps))), n_filled)


def _spread(lengths: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most `most` of the lengths, evenly spread. The longest is always among them, then the shortest."""
    if len(lengths) <= most:
        return tuple(lengths)
    last = len(lengths) - 1
    return tuple(lengths[last - round(number * last / max(most - 1, 1))] for number in range(most))[::-1]


def agreement(canvas: PinnedCanvas, returned: ReturnedCanvas) -> float:
    """Return the share of held positions where the model predicts the held token; 1.0 if none is held."""
    held = [position for position in canvas.held if position < canvas.n_filled]
    return sum(canvas.ids[position] == returned.ids[position] for position in held) / len(held) if held else 1.0


def evidence(
    request: InfillRequest, vocabulary: Vocabulary, canvas: PinnedCanvas, returned: ReturnedCanvas, share: float
) -> Evidence:
    """Return a denoised canvas as a candidate, ordered by the mean probability of its tokens times `share`."""
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
    """Yield a gap's tokens without delete tokens, up to a token that ends the answer."""
    delete = vocabulary.id("<delete>")
    for token, chance in gap:
        if token == delete:
            continue
        if token in vocabulary.special or token >= len(vocabulary.pieces):
            return
        yield token, chance
