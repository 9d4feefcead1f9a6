"""The state of one fill under way, which proposers read, and what all fills of a loaded model share.

Knows the fill, its encoded prefix and what was proposed so far. Knows nothing of how texts are proposed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import torch

from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Candidate, InfillRequest, Ranked
from dg_lsp.engine.calibration_store import Calibrations
from dg_lsp.engine.decode import layout, scoring
from dg_lsp.engine.decode.canvas.denoise import Denoiser
from dg_lsp.engine.decode.canvas.fixed_step import FixedSteps, Recorder
from dg_lsp.engine.decode.canvas.stack import LocalDecoder
from dg_lsp.engine.decode.canvas.steps import SharedPasses, Stepper, Steps
from dg_lsp.engine.decode.fill import FillInput, GapTokens, Switches, gap_tokens
from dg_lsp.engine.decode.layout import Sheet
from dg_lsp.engine.decode.pace import Budget, Pace, Usage
from dg_lsp.engine.decode.rank import Proposal
from dg_lsp.engine.decode.scoring import Scorer
from dg_lsp.engine.model import room
from dg_lsp.engine.model.family import KV, LEAST_BYTES, PrefixCache, PrefixEncoder, crop
from dg_lsp.engine.model.loading import Loaded
from dg_lsp.engine.model.room import Headroom
from dg_lsp.engine.model.tree import Tree

MAX_ROWS = 32  # the most rows, and so candidates, of one request; one pass has fewer if memory is short
AHEAD_CHUNK = 64  # tokens encoded in one step ahead of a request, for which a new request has to wait
PREFILL_CHUNK = 128  # tokens encoded in one uninterruptible step; more at once take no less time for each
FIRST_SHARE = 0.3  # of the time for an answer that may pass before the first token of a draft
TOKEN_CHARS = 4  # about; for estimates alone

# The work of a fill. Each item is the end of one uninterruptible unit.
Work = Generator[None, None, None]


class Windows:
    """How much of the text around a hole a request's prefix holds: as much as the profile says, or less for a first answer.

    In a new place nothing is encoded. A pause there is over before a processor has encoded the long window. A draft after a
    short one is nearly as good, and the long one is encoded behind it, for the next key.
    """

    def __init__(self, loaded: Loaded, prefixes: PrefixEncoder, pace: Pace) -> None:
        """Use short windows where a profile has them; raise ValueError if the vocabulary lacks a token of the layout."""
        profile, self._prefixes, self._pace = loaded.profile, prefixes, pace
        self.layout = layout.for_profile(profile, loaded.vocabulary)
        short = replace(profile, prefix_tokens=SHORT_PREFIX, suffix_tokens=SHORT_SUFFIX, related_tokens=0)
        has_short = profile.layout in SHORT_LAYOUTS and profile.prefix_tokens > SHORT_PREFIX
        self._short = layout.for_profile(short, loaded.vocabulary) if has_short else None

    def sheets(self, request: InfillRequest, left_ms: float) -> tuple[Sheet, ...]:
        """Return the request as tokens in the order to encode: the long window, or if that takes too long, a short one first.

        `left_ms` is the time until the deadline; if it is infinite, answers do not depend on the clock.
        """
        long = self.layout.lay_out(request)
        if self._short is None or left_ms == math.inf:
            return (long,)
        missing = self._n_missing(long)
        chunk_ms = self._pace.expected_ms("prefill", PREFILL_CHUNK)
        if missing <= AHEAD_CHUNK or (chunk_ms is not None and missing / PREFILL_CHUNK * chunk_ms <= FIRST_SHARE * left_ms):
            return (long,)
        short = self._short.lay_out(request)
        return (short, long) if self._n_missing(short) < missing else (long,)

    def _n_missing(self, sheet: Sheet) -> int:
        return len(sheet.kv) - self._prefixes.cache.longest(sheet.kv, ahead=True)[0]


SHORT_PREFIX, SHORT_SUFFIX = 256, 32  # tokens
SHORT_LAYOUTS = ("left", "fim")  # the other models are so small, or their devices so fast, that they need none


class ReadAhead:
    """The expected request, and the progress of encoding its prefix in the order of its windows."""

    def __init__(self, windows: Windows, prefixes: PrefixEncoder) -> None:
        self._windows, self._prefixes = windows, prefixes
        self._expected: InfillRequest | None = None
        self._ids: list[tuple[int, ...]] = []
        self._is_guess = False

    def expect(self, request: InfillRequest, *, accepted: str | None = None) -> None:
        """Expect this request next, instead of any other. If this one is expected, expect it with its answer `accepted`."""
        if accepted is not None:
            if self._expected is not request:
                return
            request = replace(request, prefix=request.prefix + accepted)
        # With several holes, the later prefixes depend on the answers, so only the single-hole case is prepared.
        self._expected = request if len(request.holes) == 1 else None
        self._ids, self._is_guess = [], accepted is not None

    def read(self) -> bool:
        """Encode one chunk of the expected prefix; return whether more remains."""
        if self._expected is None:
            return False
        try:
            if not self._ids:
                left_ms = self._expected.budget.ms or math.inf
                self._ids = [sheet.kv for sheet in self._windows.sheets(self._expected, left_ms)]
            ids = self._ids[0]
            n_encoded, kv = self._prefixes.cache.longest(ids, ahead=True)
            if n_encoded < len(ids):
                with torch.inference_mode():
                    n_encoded, _ = self._prefixes.encode(ids, n_encoded, kv, AHEAD_CHUNK, is_guess=self._is_guess)
        except BaseException:
            self._expected = None  # a retry would fail again
            raise
        if n_encoded == len(ids):
            del self._ids[0]
        if not self._ids:
            self._expected = None
        return self._expected is not None


@dataclass(frozen=True, slots=True)
class Resources:
    """A loaded model and the objects that its fills share."""

    loaded: Loaded
    windows: Windows
    tokens: GapTokens
    prefixes: PrefixEncoder
    headroom: Headroom
    shared: SharedPasses
    ahead: ReadAhead
    calibrations: Calibrations
    pace: Pace
    stepper: Stepper

    @classmethod
    def of(cls, loaded: Loaded, max_rows: int, clock: Callable[[], float] = time.perf_counter) -> Resources:
        """Return the shared objects of a model; raise ValueError if its vocabulary lacks a token of its layout.

        `clock` returns the seconds for planning deadlines.
        """
        cost = room.cost(loaded.passes)
        longest = loaded.profile.prefix_tokens + loaded.profile.suffix_tokens
        cache_bytes = room.cache_bytes(room.free_bytes(loaded.device), longest * cost.prefix_token, LEAST_BYTES)
        prefixes = PrefixEncoder(loaded.passes, loaded.device, PrefixCache(cache_bytes))
        headroom, pace = Headroom(loaded.device, loaded.profile, prefixes.cache, cost, max_rows), Pace(clock)
        windows = Windows(loaded, prefixes, pace)
        fixed = None
        if loaded.device.startswith("cuda"):  # on other devices, launching a kernel costs little beside the kernel
            fixed = FixedSteps(loaded.passes, cost, headroom.free, recorder=Recorder())
        return cls(
            loaded,
            windows,
            gap_tokens(loaded),
            prefixes,
            headroom,
            SharedPasses(loaded.passes, headroom, pace),
            ReadAhead(windows, prefixes),
            Calibrations(loaded.profile.calibration),
            pace,
            Stepper(pace, fixed),
        )

    def fill(self, request: InfillRequest, switches: Switches, left_ms: float = math.inf) -> FillInput:
        """Lay the request out as tokens for the time left, and return it as the fill of one canvas."""
        sheet = self.windows.sheets(request, left_ms)[0]
        return FillInput(request, sheet, self.loaded, self.tokens, switches, self.calibrations.current())


@dataclass(frozen=True, slots=True)
class Live:
    """What a proposer is writing: the current text of each hole, and the proposals that may still change.

    `is_answer` says that the texts are the best answer if the fill ended now.
    """

    texts: Callable[[], tuple[str, ...]]
    proposals: Callable[[], Sequence[Proposal]] = tuple
    is_answer: bool = False


class Filling:
    """One canvas's fill under way. `proposals` are in the order in which they came, with scores once they have some.

    For several holes, there is `joint` evidence for each canvas instead.

    `begin` sets what needs the encoded prefix: its keys and values `kv`, the `tree` of drafts, and the `scorer` of texts.

    `lengths` are the gap's likely lengths in tokens, likeliest first, if a proposer searched for them; empty if no canvas
    could write a better answer than the search. `steps` are those of the last canvas. It holds all that proposers share.
    """

    def __init__(self, fill: FillInput, resources: Resources, usage: Usage, budget: Budget) -> None:
        self.fill, self.resources, self.usage, self.budget = fill, resources, usage, budget
        self.proposals: list[Proposal] = []
        self.joint: list[Evidence] = []
        self.lengths: tuple[int, ...] | None = None
        self.steps: Steps | None = None
        self.n_steps = 0  # denoising steps so far, as candidates report them
        self.live: Live | None = None

    def begin(self) -> Work:
        """Encode the prefix as far as the cache lacks it."""
        ids, prefixes = self.fill.sheet.kv, self.resources.prefixes
        file = self.fill.file_model(self.fill.profile.file_weight)  # mixed into the scores
        if not ids:  # the canvas is the whole text
            self.scorer = Scorer(self.fill, None, file, self.resources.pace)
            return
        n_encoded, kv = prefixes.cache.longest(ids)
        self.usage.prefix_tokens += len(ids)
        self.usage.reused_tokens += n_encoded
        while n_encoded < len(ids):
            n_chunk = min(PREFILL_CHUNK, len(ids) - n_encoded)
            with self.resources.pace.measuring("prefill", n_chunk):
                n_encoded, kv = prefixes.encode(ids, n_encoded, kv, n_chunk)
            yield
        assert kv is not None
        tree = Tree(self.fill.passes, kv, ids[-1], prefixes.cache.last_hidden(ids))
        right = self.fill.sheet.right
        between = Tree(self.fill.passes, kv, ids[-1], right=right) if right else None
        self.tree = between or tree  # of drafts
        self.kv = kv
        n_plain = self.fill.sheet.n_plain if self.fill.sheet.follow else 0
        plain = Tree(self.fill.passes, crop(kv, n_plain), ids[n_plain - 1]) if n_plain else None
        self.scorer = Scorer(self.fill, tree, file, self.resources.pace, between, plain)

    def score(self) -> Work:
        """Score the proposals that have no score yet."""
        before = self.usage.switch("score")
        self.proposals = self.scorer.score(self.proposals)
        yield
        self.usage.switch(before)

    def read_on(self) -> None:
        """Let the likeliest proposals that have a score be compared by what follows them, if there is time.

        No unit ends here, so that a fill that is overdue by then still has its scores.
        """
        before = self.usage.switch("score")
        n_positions = scoring.MOST_NEAR * len(self.fill.sheet.follow)
        if self.budget.may(self.resources.pace.expected_ms("score", n_positions) or 0.0):
            self.proposals = self.scorer.read_on(self.proposals)
        self.usage.switch(before)

    def score_ms(self, n_positions: int = 0) -> float:
        """Return the expected milliseconds to score the proposals and `n_positions` more tokens; 0 if unknown."""
        own = sum(len(proposal.text) // TOKEN_CHARS + 1 for proposal in self.proposals if not proposal.tokens)
        return self.resources.pace.expected_ms("score", own + n_positions) or 0.0

    def step_ms(self, n_positions: int) -> float | None:
        """Return the expected milliseconds of a denoising step; None if none was measured."""
        return self.resources.pace.expected_ms("step", n_positions)

    def stepping(self, denoiser: Denoiser, kv: KV, *, is_open: bool = False) -> Steps:
        """Return the steps of a canvas on a prefix; from now on, they are those of this fill."""
        self.leave()
        decoder = LocalDecoder(self.fill.passes, kv, conditioned=self.fill.switches.conditioning)
        stepper, shared = self.resources.stepper, self.resources.shared
        self.steps = Steps(denoiser, decoder, stepper, shared, is_open=is_open, on_shared=self.usage.add_denoising)
        return self.steps

    def is_over(self, steps: Steps, n_positions: int = 0) -> bool:
        """Return whether a canvas is finished, or no time is left for a step beside scoring the results and `n_positions` more.

        A canvas takes at least one step if there is no other result.
        """
        denoiser = steps.denoiser
        if self.budget.is_limited and not denoiser.done:
            step_ms = self.step_ms(len(denoiser.running) * steps.width)
            n_steps = self.budget.units(step_ms, self.score_ms(n_positions))
            if n_steps is not None:
                denoiser.bound(max(n_steps, 0 if denoiser.begun or self.proposals else 1))
        return denoiser.done

    # Called between units.

    def texts(self) -> tuple[str, ...]:
        """Return each hole's current text: what is being written, even if it is empty so far, or else the first proposal."""
        if self.live is not None and (texts := self.live.texts()):
            return texts
        return (self.proposals[0].text,) if self.proposals else ()

    def best_so_far(self) -> tuple[Candidate, ...]:
        """Return the unfinished candidates before the end: proposals, then what a canvas is writing."""
        live = self.live
        known = [*self.proposals, *(live.proposals() if live else ())]
        unscored = scoring.unscored_candidates(self.fill, known)
        if live is not None and live.is_answer and any(texts := live.texts()):
            return (*unscored, Candidate(texts, Ranked(len(unscored), doubted=True), finished=False))
        return unscored

    def leave(self) -> None:
        """Stop sharing passes with other requests."""
        if self.steps is not None:
            self.steps.leave()
