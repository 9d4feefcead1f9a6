"""Run the stages of one canvas, from the prefix to ranked answers, in uninterruptible units.

`CanvasTask.run` shows the order of the stages; each stage's computation is in its own module. Knows the stages, the rows and
their results. Knows nothing of other canvases.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from dg_lsp.core import calibration
from dg_lsp.core.calibration import Evidence
from dg_lsp.core.confidence import Ranked
from dg_lsp.core.values import Candidate
from dg_lsp.engine.decode import pace, scoring
from dg_lsp.engine.decode.canvas.denoise import DecoderInput, Denoiser
from dg_lsp.engine.decode.canvas.speculation import Speculate
from dg_lsp.engine.decode.canvas.stack import LocalDecoder
from dg_lsp.engine.decode.file_model import FileModel
from dg_lsp.engine.decode.fill import Fill
from dg_lsp.engine.decode.pace import Due, Usage
from dg_lsp.engine.decode.propose import drafting, longer, rows, search
from dg_lsp.engine.decode.propose.causal import Draft
from dg_lsp.engine.decode.propose.rows import PlannedRow
from dg_lsp.engine.decode.propose.search import LengthSearch
from dg_lsp.engine.decode.rank import RowResult
from dg_lsp.engine.decode.resources import MAX_ROWS, Resources
from dg_lsp.engine.decode.scoring import Scorer
from dg_lsp.engine.model.passes import KV

PREFILL_CHUNK = 512  # tokens encoded in one uninterruptible step
READ_AHEAD = Speculate().look + 1  # the most tokens that one round of the length search verifies


class CanvasTask:
    """One running canvas: its results so far, the rows it denoises, and in the end its answers."""

    def __init__(
        self, fill: Fill, resources: Resources, usage: Usage, *, is_hurried: bool = False, due: Due | None = None
    ) -> None:
        self.fill, self._resources, self._usage, self._is_hurried = fill, resources, usage, is_hurried
        self._pace, self._due = resources.pace, due
        self.answers: tuple[Candidate, ...] = ()
        self.early: Candidate | None = None
        self.results: list[RowResult] = []
        self._joint: list[Evidence] = []  # of rows with several holes
        self._kv: KV | None = None
        self._draft_so_far: Draft | None = None  # the likeliest causal draft
        self._search: LengthSearch | None = None
        self._lengths: tuple[int, ...] | None = None  # of the gap, if a length search ran
        self._n_search_steps = 0
        self._denoiser: Denoiser | None = None
        self._rows: list[PlannedRow] = []
        self._dropped_rows: set[int] = set()
        self._n_steps = 0
        self._decoder: LocalDecoder | None = None
        self._shared_logits: Tensor | None = None  # the next step's logits, if a shared pass computed them

    def run(self) -> Iterator[bool]:
        """Run all stages, yielding after each uninterruptible unit."""
        fill, usage = self.fill, self._usage
        self._kv = kv = yield from usage.timed("prefill", self._encode_prefix())
        with usage.timing("draft"):
            file = drafting.file_model(fill)
            self.results = drafting.copied_drafts(fill)
        scorer = Scorer(fill, kv, file, self._pace)
        yield from self._score_early(scorer)
        if fill.profile.first == "drafts":
            yield from self._draft(kv, file, scorer)
            yield from self._score_early(scorer)
            yield from usage.timed("score", self._score_drafts(scorer))
            yield from usage.timed("denoise", self._denoise(kv, rows.planned(fill, self.results, self._lengths)))
        else:
            yield from self._canvas_first(kv, file, scorer)
        yield from usage.timed("score", self._rank(scorer))

    def _canvas_first(self, kv: KV, file: FileModel | None, scorer: Scorer) -> Iterator[bool]:
        """Denoise, draft if that pays, correct the drafts, and continue on more canvases if the answer is longer than one.

        If a length search runs, its open canvas comes first, and the text that it verifies is the draft.
        """
        fill, usage = self.fill, self._usage
        yield from usage.timed("score", self._score_drafts(scorer))
        if (yield from self._corrects_previous(kv, scorer)):
            return
        is_searched = search.applies(fill)
        if is_searched:
            yield from self._draft(kv, file, scorer)
            yield from self._score_early(scorer)
            yield from usage.timed("score", self._score_drafts(scorer))
        drafts = [result for result in self.results if result.row != "previous"]
        # An empty search result says that no canvas could rank higher than the draft.
        first = [] if self._lengths == () else rows.planned(fill, drafts, self._lengths)
        if self._due is not None:
            first = rows.affordable(fill, first, self._due.left_ms() - self._score_ms(first), self._step_ms)
        yield from usage.timed("denoise", self._denoise(kv, first))
        yield from self._score_early(scorer)
        if not is_searched and self._draft_pays():
            texts = {result.text for result in self.results}
            yield from self._draft(kv, file, scorer)
            yield from usage.timed("score", self._score_drafts(scorer))
            drafts = [result for result in self.results if result.row == "causal" and result.text not in texts]
            yield from usage.timed("denoise", self._denoise(kv, rows.corrected(fill, drafts, len(first))))
        if fill.may_go_on:
            yield from usage.timed("score", self._score(scorer))
            yield from usage.timed("denoise", self._go_on(kv))

    def _corrects_previous(self, kv: KV, scorer: Scorer) -> Generator[bool, None, bool]:
        """Correct the rest of an earlier answer; return whether the result is so sure that no noise row is needed."""
        fill = self.fill
        previous = [result for result in self.results if result.row == "previous"]
        if not previous:
            return False
        yield from self._usage.timed("denoise", self._denoise(kv, rows.corrected(fill, previous, MAX_ROWS + 1)))
        yield from self._usage.timed("score", self._score(scorer))
        yield from self._score_early(scorer)
        return any(scoring.is_sure(fill, result) for result in self.results if result.row == "previous")

    def _encode_prefix(self) -> Generator[bool, None, KV]:
        """Return the prefix's keys and values, from the cache as far as it has them; encode the rest."""
        ids, prefixes = self.fill.sheet.kv, self._resources.prefixes
        n_encoded, kv = prefixes.cache.longest(ids)
        self._usage.prefix_tokens += len(ids)
        self._usage.reused_tokens += n_encoded
        while n_encoded < len(ids):
            n_encoded, kv = prefixes.encode(ids, n_encoded, kv, PREFILL_CHUNK)
            yield True
        assert kv is not None  # every layout writes at least one token
        return kv

    def _score_early(self, scorer: Scorer) -> Generator[bool, None, None]:
        """Score the results so far, if early answers are requested. Of copies, score only the first, which is the best."""
        if self._is_hurried and self.results and self.fill.switches.scorer:
            yield from self._usage.timed("score", self._scored_early(scorer))

    def _scored_early(self, scorer: Scorer) -> Generator[bool, None, None]:
        n_scored = 1 if all(result.row == "copy" for result in self.results) else len(self.results)
        scored = scorer.score(self.results[:n_scored])
        self.results = [*scored, *self.results[n_scored:]]
        self.early = replace(scoring.candidates(self.fill, scored, 0)[0], finished=False)
        yield True

    def _find_lengths(self, kv: KV) -> Generator[bool, None, list[RowResult]]:
        """Search for the gap's possible lengths; return the search's drafts."""
        self._search = finder = LengthSearch(self.fill, kv, self._pace, self._resources.stepper)
        self._lengths, drafts = yield from finder.run(lambda: self._may_search(finder))
        self.leave()
        self._search, self._n_search_steps = None, finder.n_steps
        return drafts

    def _may_search(self, finder: LengthSearch) -> bool:
        """Return whether the deadline leaves time for one more round of the search.

        The open canvas may take the steps in which a canvas usually settles. It may take more while there is still time for
        as many steps on a canvas that holds the suffix. If the search ended earlier, that canvas would have to guess its
        length.
        """
        step_ms = self._step_ms(finder.width)
        if self._due is None or step_ms is None:
            return True
        round_ms = step_ms + (self._pace.expected_ms("score", READ_AHEAD) or 0.0)
        last_ms = 2 * (self._pace.expected_ms("score", finder.n_scored) or 0.0)  # one for the search, one for the ranking
        reserve_ms = pace.LEAST_STEPS * step_ms if finder.n_steps >= pace.LEAST_STEPS else 0.0
        return self._due.left_ms() - last_ms >= round_ms + reserve_ms

    def _score(self, scorer: Scorer) -> Generator[bool, None, None]:
        """Score the results that have no score yet."""
        self.results = scorer.score(self.results)
        yield True

    def _score_drafts(self, scorer: Scorer) -> Generator[bool, None, None]:
        """Score the drafts that the canvas will correct, because it starts with the tokens that have a high probability."""
        if self.results and self.fill.profile.refine_steps:
            yield from self._score(scorer)

    def _draft(self, kv: KV, file: FileModel | None, scorer: Scorer) -> Generator[bool, None, None]:
        """Add causal drafts to the results, unless the time runs out before they are complete.

        If a length search runs, its results are the drafts.
        """
        if not search.applies(self.fill):
            return (yield from self._usage.timed("draft", self._causal_drafts(kv, file, scorer)))
        found = yield from self._usage.timed("denoise", self._find_lengths(kv))
        self.results = [*self.results, *found]

    def _causal_drafts(self, kv: KV, file: FileModel | None, scorer: Scorer) -> Generator[bool, None, None]:
        """Add the causal drafts, each as soon as it is finished, and then their branches unless the time runs out."""
        results, work = self.results, drafting.causal_drafts(self.fill, kv, file)
        is_late: bool | None = None
        finished: list[Draft] = []
        while True:
            began = self._pace.clock()
            try:
                written = work.send(is_late)
            except StopIteration as stop:
                self.results = [*results, *drafting.causal_results(self.fill, stop.value, scorer)]
                return
            self._draft_so_far = written[0]
            if len(now := [draft for draft in written if draft.is_finished]) != len(finished):
                finished = now
                self.results = [*results, *drafting.causal_results(self.fill, finished, scorer)]
            self._pace.note("token", self.fill.profile.causal_rows, (self._pace.clock() - began) * 1000)
            is_late = self._due is not None and self._due.left_ms() <= self._score_ms(self._rows)
            if not is_late:
                yield True

    def _draft_pays(self) -> bool:
        """Return whether a causal draft pays: it takes no longer than the time left, or than the canvas took.

        Without a deadline it always pays, because answers must not depend on the clock.
        """
        if self._due is None:
            return True
        left_ms = self._due.left_ms() - self._score_ms(self._rows)
        token_ms = self._pace.expected_ms("token", self.fill.profile.causal_rows)
        if token_ms is None or self._denoiser is None:
            return left_ms > 0
        lengths = [len(self.fill.vocabulary.encode(result.text)) for result in self.results if result.row == "noise"]
        draft_ms = token_ms * (1 + max(lengths, default=max(self.fill.gap_lengths())))
        canvas_ms = max(self._denoiser.canvas.steps) * (self._step_ms(self.width) or 0.0)
        return draft_ms <= min(left_ms, canvas_ms)

    def _step_ms(self, positions: int) -> float | None:
        return self._pace.expected_ms("step", positions)

    def _score_ms(self, planned_rows: Sequence[PlannedRow]) -> float:
        """Return the expected milliseconds to score the texts of these rows and of the drafts; 0 if unknown."""
        widest = max((len(planned.row.ids) for planned in planned_rows), default=1)
        return self._pace.expected_ms("score", widest * (len(planned_rows) + len(self.results))) or 0.0

    def _go_on(self, kv: KV) -> Generator[bool, None, None]:
        """Write the answer on several canvases in sequence, if the suffix follows none of the results."""
        fill = self.fill
        if not all(scoring.is_unclosed(fill, result) for result in self.results):
            return
        if self._due is not None:
            step_ms = self._step_ms(fill.profile.canvas_tokens)
            n_steps = pace.affordable(self._due.left_ms() - self._score_ms(self._rows), step_ms)
            if n_steps is None or n_steps < pace.LEAST_STEPS:
                return
        text = yield from longer.written(fill, kv, rows.seed(fill, MAX_ROWS), self._settle)
        if text.strip():
            self.results.append(RowResult(text, "noise"))

    def _settle(self, denoiser: Denoiser, decoder: LocalDecoder) -> Generator[bool, None, None]:
        """Step a canvas whose prefix is not the request's own until it is finished or the time is up."""
        while not denoiser.done:
            self._bound(denoiser)
            if not denoiser.done:
                self._resources.stepper.step(denoiser, decoder)
                yield True

    def _bound(self, denoiser: Denoiser) -> None:
        """Limit the rows to the steps that the deadline allows, but at least one if there is no other result."""
        if self._due is None or self.fill.profile.first == "drafts":
            return
        step_ms = self._step_ms(len(denoiser.running) * denoiser.canvas.ids.shape[1])
        n_steps = pace.affordable(self._due.left_ms() - self._score_ms(self._rows), step_ms)
        if n_steps is not None:
            denoiser.bound(max(n_steps, 0 if denoiser.begun or self.results else 1))

    def _denoise(self, kv: KV, planned_rows: list[PlannedRow]) -> Generator[bool, None, None]:
        """Denoise rows, and add their results, or their evidence if there are several holes."""
        fill = self.fill
        if not planned_rows:
            return
        self._rows, self._dropped_rows = planned_rows, set()
        to_denoise = [planned.row for planned in self._rows]
        limits, sampling = rows.token_limits(fill), fill.profile.sampling
        denoiser = Denoiser(to_denoise, limits, sampling, fill.tokens.n_logits, fill.loaded.device)
        self._decoder = LocalDecoder(fill.passes, kv, conditioned=fill.switches.conditioning)
        self._denoiser = denoiser
        yield from self._steps(denoiser, self._decoder)
        denoiser.collect()
        self._n_steps = max(self._n_steps, *denoiser.canvas.steps)
        self._decoder = None
        self.leave()
        yield True
        if not denoiser.begun:  # no time was left, so it still contains its start
            return
        for index, planned in enumerate(self._rows):
            if index in self._dropped_rows:
                continue
            reading = denoiser.read(index)
            if fill.n_holes == 1:
                self.results.append(rows.result(fill, planned, reading))
            else:
                self._joint.append(rows.evidence(fill, planned, reading, denoiser.canvas.steps[index]))

    def _steps(self, denoiser: Denoiser, decoder: LocalDecoder) -> Generator[bool, None, None]:
        """Step the rows until all are finished, alone or with the logits of a pass shared with other canvases."""
        n_steps, max_rows = 0, self._resources.headroom.rows_at_once(self.length, self.width)
        while not denoiser.done:
            self._bound(denoiser)
            if denoiser.done:
                break
            yield True  # so that the next pass can be shared with other canvases
            if self._shared_logits is not None:
                denoiser.take(denoiser.live, self._shared_logits)
                self._shared_logits = None
            else:
                self.leave()
                self._resources.stepper.step(denoiser, decoder, max_rows)
            n_steps += 1
            if n_steps == rows.DROPPING_STEP and self.fill.sheet.delete is None and self._lengths is None:
                self._drop_unlikely(denoiser)

    def _drop_unlikely(self, denoiser: Denoiser) -> None:
        """Drop the rows of gap lengths that have become unlikely; their results are ignored."""
        readings = [denoiser.read(index) for index in range(len(self._rows))]
        for index in rows.unlikely(self._rows, readings):
            denoiser.drop(index)
            self._dropped_rows.add(index)

    def _rank(self, scorer: Scorer) -> Generator[bool, None, None]:
        """Rank the results as candidates, best first, after a causal pass over the unscored texts."""
        if self.fill.n_holes > 1:
            self.answers = calibration.to_candidates(self._joint, None)
        elif self.results:
            self.results = scorer.score(self.results)
            self.answers = scoring.candidates(self.fill, self.results, self._n_search_steps + self._n_steps)
            yield True

    def evidence(self) -> list[Evidence]:
        """Return the evidence for each row of a single hole, after the end."""
        return scoring.evidence(self.fill, self.results, 0) if self.fill.n_holes == 1 else []

    # Called between units.

    def read(self) -> tuple[str, ...]:
        """Return each hole's current text: in the row of lowest entropy, or before there is one, the text of a draft."""
        denoiser = self._denoiser
        if self._search is not None and (text := self._search.text()):
            return (text,)
        if denoiser is None or not denoiser.begun:
            if self._draft_so_far is not None and (text := drafting.text_so_far(self.fill, self._draft_so_far)):
                return (text,)
            return (self.results[0].text,) if self.results else ()
        readings = {index: denoiser.read(index) for index in range(len(self._rows)) if index not in self._dropped_rows}
        best = min(readings, key=lambda index: readings[index].entropy)
        return rows.texts(self.fill, self._rows[best], readings[best])

    def best_so_far(self) -> tuple[Candidate, ...]:
        """Return the unfinished candidates before the end: drafts, then the canvas."""
        unscored = scoring.unscored_candidates(self.fill, self.results)
        if (self._denoiser or self._search) and (texts := self.read()) and any(texts):
            return (*unscored, Candidate(texts, Ranked(len(unscored), doubted=True), finished=False))
        return unscored

    # Called for a pass shared with other canvases.

    @property
    def kv(self) -> KV:
        """The keys and values of the encoded prefix."""
        assert self._kv is not None
        return self._kv

    @property
    def length(self) -> int:
        """The number of tokens in the prefix."""
        return len(self.fill.sheet.kv)

    @property
    def width(self) -> int:
        """The number of positions of the canvas; 0 before there is one."""
        denoiser = self._search.denoiser if self._search else self._denoiser
        return denoiser.canvas.ids.shape[1] if denoiser else 0

    @property
    def n_live(self) -> int:
        """The number of rows that wait for a denoising step."""
        if self._search is not None:
            return int(self._search.is_asking)
        return len(self._denoiser.live) if self._denoiser else 0

    def ask(self) -> DecoderInput:
        """Return the decoder's input for the waiting rows, and drop this canvas's own stack."""
        if self._search is not None:
            return self._search.denoiser.ask([0])
        assert self._denoiser is not None
        if self._decoder is not None:
            self._decoder.stack = None  # memory may not have room for it beside the shared stack
        return self._denoiser.ask(self._denoiser.live)

    def take(self, logits: Tensor, milliseconds: float) -> None:
        """Take the logits [G, V] of a shared pass for the input of `ask`; the next unit uses them."""
        if self._search is not None:
            self._search.shared_logits = logits
        else:
            self._shared_logits = logits
        self._usage.milliseconds["denoise"] += milliseconds

    def leave(self) -> None:
        """Stop stepping with other canvases; drop the shared stack if this canvas is part of it."""
        if self._kv is not None:
            self._resources.shared_stack.leave(self._kv)
