"""One canvas's worth of a request from its prefix to ranked answers, in units that must not be interrupted.

`CanvasTask.run` is the order of the stages; what a stage computes stands in its own module. Knows the stages, the rows and
what they came to. Knows nothing of other canvases.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from torch import Tensor

from dg_lsp.core.confidence import Ranked
from dg_lsp.core.values import Candidate
from dg_lsp.engine import calibration
from dg_lsp.engine.calibration import Evidence
from dg_lsp.engine.denoise import DecoderInput, Denoiser
from dg_lsp.engine.local import drafting, rows, scoring
from dg_lsp.engine.local.fill import Fill
from dg_lsp.engine.local.resources import Resources
from dg_lsp.engine.local.rows import PlannedRow
from dg_lsp.engine.local.scoring import Scorer
from dg_lsp.engine.local.usage import Usage
from dg_lsp.engine.passes import KV
from dg_lsp.engine.rank import RowResult
from dg_lsp.engine.stack import LocalDecoder

PREFILL_CHUNK = 512  # tokens encoded in one uninterruptible step
DROPPING_STEP = 2  # after so many steps unlikely gap lengths are dropped, where the canvas can't shrink


class CanvasTask:
    """One canvas under way: what it gathered, the rows it denoises, and in the end its answers."""

    def __init__(self, fill: Fill, resources: Resources, usage: Usage, *, is_hurried: bool = False) -> None:
        self.fill, self._resources, self._usage, self._is_hurried = fill, resources, usage, is_hurried
        self.answers: tuple[Candidate, ...] = ()
        self.early: Candidate | None = None
        self.results: list[RowResult] = []
        self._joint: list[Evidence] = []  # of rows that hold several holes
        self._kv: KV | None = None
        self._denoiser: Denoiser | None = None
        self._rows: list[PlannedRow] = []
        self._dropped_rows: set[int] = set()
        self._decoder: LocalDecoder | None = None
        self._shared_logits: Tensor | None = None  # of the next step, when a pass with others has found them

    def run(self) -> Iterator[bool]:
        """Do everything, yielding after each unit that must not be interrupted."""
        fill, usage = self.fill, self._usage
        self._kv = kv = yield from usage.timed("prefill", self._encode_prefix())
        with usage.timing("draft"):
            file = drafting.file_model(fill)
            self.results = drafting.copied_drafts(fill)
        scorer = Scorer(fill, kv, file)
        yield from usage.timed("score", self._score_early(scorer))
        causal = yield from usage.timed("draft", drafting.causal_drafts(fill, kv, file))
        self.results = [*self.results, *causal]
        yield from usage.timed("score", self._score_early(scorer))
        yield from usage.timed("denoise", self._denoise(kv))
        yield from usage.timed("score", self._rank(scorer))

    def _encode_prefix(self) -> Generator[bool, None, KV]:
        """Return the prefix's keys and values: what the cache knows of it, and the rest encoded."""
        ids, prefixes = self.fill.sheet.kv, self._resources.prefixes
        known, kv = prefixes.cache.longest(ids)
        self._usage.prefix_tokens += len(ids)
        self._usage.reused_tokens += known
        while known < len(ids):
            known, kv = prefixes.encode(ids, known, kv, PREFILL_CHUNK)
            yield True
        assert kv is not None  # every layout writes a token at least
        return kv

    def _score_early(self, scorer: Scorer) -> Generator[bool, None, None]:
        """Rank what is gathered already, where that is asked for; of copies, which come best first, only the first."""
        if not (self._is_hurried and self.results and self.fill.switches.scorer):
            return
        n_scored = 1 if all(result.row == "copy" for result in self.results) else len(self.results)
        scored = scorer.score(self.results[:n_scored])
        self.results = [*scored, *self.results[n_scored:]]
        self.early = replace(scoring.candidates(self.fill, scored, 0)[0], finished=False)
        yield True

    def _denoise(self, kv: KV) -> Generator[bool, None, None]:
        """Denoise rows of noise and of drafts; add what they come to to the results, or to the answers of several holes."""
        fill = self.fill
        self._rows = rows.planned(fill, self.results)
        if not self._rows:
            return
        to_denoise = [planned.row for planned in self._rows]
        limits, sampling = rows.token_limits(fill), fill.profile.sampling
        denoiser = Denoiser(to_denoise, limits, sampling, fill.tokens.n_logits, fill.loaded.device)
        self._decoder = LocalDecoder(fill.passes, kv, conditioned=fill.switches.conditioning)
        self._denoiser = denoiser
        yield from self._steps(denoiser, self._decoder)
        self._decoder = None
        self.leave()
        yield True
        for index, planned in enumerate(self._rows):
            if index in self._dropped_rows:
                continue
            reading = denoiser.read(index)
            if fill.n_holes == 1:
                self.results.append(rows.result(fill, planned, reading))
            else:
                self._joint.append(rows.evidence(fill, planned, reading, denoiser.canvas.steps[index]))

    def _steps(self, denoiser: Denoiser, decoder: LocalDecoder) -> Generator[bool, None, None]:
        """Step the rows until all have settled, alone or by the logits that a pass with other canvases has found."""
        n_steps, max_rows = 0, self._resources.headroom.rows_at_once(self.length, self.width)
        while not denoiser.done:
            yield True  # so that the pass that follows can be one with others
            if self._shared_logits is not None:
                denoiser.take(denoiser.live, self._shared_logits)
                self._shared_logits = None
            else:
                self.leave()
                denoiser.step(decoder, max_rows)
            n_steps += 1
            if n_steps == DROPPING_STEP and self.fill.sheet.delete is None:
                self._drop_unlikely(denoiser)

    def _drop_unlikely(self, denoiser: Denoiser) -> None:
        """Work no further on gap lengths that are unlikely by now; their rows count for nothing any more."""
        readings = [denoiser.read(index) for index in range(len(self._rows))]
        for index in rows.unlikely(self._rows, readings):
            denoiser.drop(index)
            self._dropped_rows.add(index)

    def _rank(self, scorer: Scorer) -> Generator[bool, None, None]:
        """Make candidates of the results: best first, after a causal pass over the texts that have had none."""
        if self.fill.n_holes > 1:
            self.answers = calibration.stated(self._joint, None)
        elif self.results:
            self.results = scorer.score(self.results)
            steps = max(self._denoiser.canvas.steps) if self._denoiser else 0
            self.answers = scoring.candidates(self.fill, self.results, steps)
            yield True

    def evidence(self) -> list[Evidence]:
        """Return what is known of each row of a single hole, after the end."""
        return scoring.evidence(self.fill, self.results, 0) if self.fill.n_holes == 1 else []

    # What others ask between units.

    def read(self) -> tuple[str, ...]:
        """Return each hole's text as the surest row reads now."""
        denoiser = self._denoiser
        if denoiser is None or not denoiser.begun:
            return (self.results[0].text,) if self.results else ()
        readings = {index: denoiser.read(index) for index in range(len(self._rows)) if index not in self._dropped_rows}
        best = min(readings, key=lambda index: readings[index].entropy)
        return rows.texts(self.fill, self._rows[best], readings[best])

    def best_so_far(self) -> tuple[Candidate, ...]:
        """Return what there is before the end: drafts, then the canvas."""
        unscored = scoring.unscored_candidates(self.fill, self.results)
        if self._denoiser and (texts := self.read()) and any(texts):
            return (*unscored, Candidate(texts, Ranked(len(unscored), doubted=True), finished=False))
        return unscored

    # What a pass with other canvases needs.

    @property
    def kv(self) -> KV:
        """The keys and values of the prefix, once it is encoded."""
        assert self._kv is not None
        return self._kv

    @property
    def length(self) -> int:
        """How many tokens the prefix has."""
        return len(self.fill.sheet.kv)

    @property
    def width(self) -> int:
        """How many positions the canvas has; 0 before there is one."""
        return self._denoiser.canvas.ids.shape[1] if self._denoiser else 0

    @property
    def n_live(self) -> int:
        """How many rows wait for a denoising step."""
        return len(self._denoiser.live) if self._denoiser else 0

    def ask(self) -> DecoderInput:
        """Return what the rows that wait need of the decoder; what this canvas keeps for passes alone is dropped."""
        assert self._denoiser is not None
        if self._decoder is not None:
            self._decoder.stack = None  # memory need not have room for it beside the shared stack
        return self._denoiser.ask(self._denoiser.live)

    def take(self, logits: Tensor, milliseconds: float) -> None:
        """Take the logits [G, V] that a pass with others found for `ask`; the next unit goes on from them."""
        self._shared_logits = logits
        self._usage.milliseconds["denoise"] += milliseconds

    def leave(self) -> None:
        """Step with others no more: the shared stack is dropped if this canvas is part of it."""
        if self._kv is not None:
            self._resources.shared_stack.leave(self._kv)
