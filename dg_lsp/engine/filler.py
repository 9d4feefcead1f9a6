"""From a request to ranked candidates on the local model, one uninterruptible step at a time.

A request is laid out as tokens; its prefix is encoded, as far as the cache does not know it; drafts are gathered (a
match in the file, a causal draft by the encoder); rows of noise and rows of drafts are denoised together on the one
prefix; one causal pass scores what came out, and the calibration ranks it. Knows layouts, rows and scores. Knows
nothing of how requests arrive.
"""

from __future__ import annotations

import codecs
import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from dg_lsp.core.values import Candidate, InfillRequest, RowKind
from dg_lsp.engine import causal, drafts, layout, rank, room
from dg_lsp.engine.denoise import Denoiser, Limits, Question, Row
from dg_lsp.engine.file_model import FileModel
from dg_lsp.engine.model import EMBEDDED, Loaded, Say
from dg_lsp.engine.model import load as load_model
from dg_lsp.engine.passes import KV, crop, widen
from dg_lsp.engine.prefix_cache import LEAST_BYTES, PrefixCache
from dg_lsp.engine.rank import Scored
from dg_lsp.engine.stack import LocalDecoder, Part, Stack, joined
from dg_lsp.engine.task import Task

PREFILL_CHUNK = 512  # tokens encoded in one uninterruptible step
AHEAD_CHUNK = 64  # the same, where nobody has asked yet and whoever does must not wait
MAX_CAUSAL_TOKENS = 128
MAX_ROWS = 32  # of one request: more candidates than rows can't be had; in one pass: fewer where memory is short
MIDDLING = -1.5  # nats: the log-probability of a token that nobody has scored yet
LARGEST_SEED = 2**63 - 1


def load(
    name: str = EMBEDDED,
    *,
    device: str = "auto",
    threads: int = 0,
    revision: str = "",
    dtype: str = "",
    rows: int = MAX_ROWS,
    say: Say = lambda _text, _share: None,
) -> LocalFiller:
    """Return a filler on the model called `name`, which runs here; see `engine.model.load` for what it raises.

    `engine.backends.load` knows models that run elsewhere as well.
    """
    loaded = load_model(name, device=device, threads=threads, revision=revision, dtype=dtype, say=say)
    return LocalFiller(loaded, rows=rows)


@dataclass(frozen=True, slots=True)
class Switches:
    """Parts that a benchmark turns off to see what they are worth."""

    held_suffix: bool = True
    conditioning: bool = True
    copy: bool = True
    causal: bool = True
    file: bool = True
    noise: bool = True
    delete: bool = True
    scorer: bool = True
    gap: int = 0  # a fixed gap length, for an oracle's; 0: the profile's


class LocalFiller:
    """A loaded model with its prefix cache.

    `joins` says whether rows of several requests step in one pass; by default where that was found to pay, which is
    not on a CPU: there a row costs the same wherever it stands. `rows` bounds the rows of a request that step in one
    pass; those that are more step in several.
    """

    def __init__(
        self, loaded: Loaded, switches: Switches | None = None, *, joins: bool | None = None, rows: int = MAX_ROWS
    ) -> None:
        self._joins = loaded.device != "cpu" if joins is None else joins
        self.rows = rows
        self.cost = room.cost(loaded.passes)
        self._stack: Callable[[], Stack | None] = lambda: None
        self._expected: InfillRequest | None = None
        self._ahead: tuple[int, ...] = ()
        self._is_guess = False
        self.loaded, self.switches = loaded, switches or Switches()
        longest = loaded.profile.prefix_tokens + loaded.profile.suffix_tokens
        self.cache = PrefixCache(
            room.cache_bytes(room.free_bytes(loaded.device), longest * self.cost.prefix_token, LEAST_BYTES)
        )
        self.layout = layout.for_profile(loaded.profile, loaded.vocabulary)
        special, pieces = loaded.vocabulary.special, loaded.vocabulary.pieces
        self.n_logits: int = loaded.passes.model.lm_head.weight.shape[0]
        # A model may have more rows than its tokenizer has tokens; none of them may be written.
        self.unwritable = (*special, *range(loaded.vocabulary.size, self.n_logits))
        self.regular = tuple(token for token, piece in enumerate(pieces) if piece and token not in special)

    def start(self, request: InfillRequest) -> InfillTask:
        """Return the request as a task, not yet begun."""
        return InfillTask(self, request)

    def joins(self) -> bool:
        """Return whether rows of several requests step in one pass."""
        return self._joins

    def predict_together(self, tasks: Sequence[Task], most: int) -> Sequence[int]:
        """Predict the next step of the first task and of those that fit beside it, in one pass of at most `most` rows.

        Return which tasks it was done for; none when the first stands alone or its next unit is no denoising step.
        """
        chosen = self._company(tasks, most)
        if len(chosen) < 2:  # one alone steps as it always does
            return ()
        began = time.perf_counter()
        canvases = list(chosen.values())
        with torch.inference_mode():
            asked = [canvas.ask() for canvas in canvases]
            parts = [Part(canvas.prefix_kv, len(one.ids)) for canvas, one in zip(canvases, asked, strict=True)]
            whole, stack = joined(asked), self._stack()
            if stack is None or not stack.serves(parts, whole.ids.shape[1]):
                stack = None
                for canvas in canvases:
                    canvas.leave()  # what these kept is gone before there is more: memory need not have room for both
                stack = Stack(parts, whole.ids.shape[1])
                self._stack = weakref.ref(stack)
            logits = stack.logits(self.loaded.passes, whole, conditioned=self.switches.conditioning)
            each = torch.split(logits, [int(one.free.sum()) for one in asked])
            for canvas, own in zip(canvases, each, strict=True):
                canvas.join(stack, own, (time.perf_counter() - began) * 1000)
        return tuple(chosen)

    def _company(self, tasks: Sequence[Task], most: int) -> dict[int, CanvasTask]:
        """Return the canvases that step in one pass, by their tasks' places: the first one's, and what fits beside it."""
        chosen: dict[int, CanvasTask] = {}
        bucket = rows = prefix = width = 0
        stack = self._stack()
        free = self._free(stack.bytes if stack else 0)
        for place, task in enumerate(tasks):
            canvas = task.asking() if isinstance(task, InfillTask) else None
            if canvas is None and not place:
                break
            if canvas is None:
                continue
            bucket = bucket if place else room.width_bucket(canvas.width)
            longest, widest = max(prefix, canvas.length), max(width, canvas.width)
            most_now = room.rows_that_fit(free, self.cost.row(longest, widest), most)
            if room.width_bucket(canvas.width) == bucket and rows + canvas.n_live <= most_now:
                chosen[place] = canvas
                rows, prefix, width = rows + canvas.n_live, longest, widest
            elif not place:
                break
        return chosen

    def rows_at_once(self, prefix_tokens: int, canvas_tokens: int) -> int:
        """Return how many rows of one request may step in one pass."""
        return room.rows_that_fit(self._free(), self.cost.row(prefix_tokens, canvas_tokens), self.rows)

    def has_room(self) -> bool:
        """Return whether memory admits one more request of the usual size beside those under way."""
        profile, free = self.loaded.profile, self._free()
        prefix = profile.prefix_tokens + profile.suffix_tokens
        usual = prefix * self.cost.prefix_token + self.cost.row(prefix, profile.canvas_tokens)
        return free is None or usual <= free * room.SHARE

    def _free(self, own: int = 0) -> int | None:
        """Return what is free for rows; `own` is what is theirs already, and the prefix cache may still grow."""
        free = room.free_bytes(self.loaded.device)
        return None if free is None else free + own - max(0, self.cache.max_bytes - self.cache.bytes)

    def expect(self, request: InfillRequest) -> None:
        """Take a request as the one that will probably come next: `foresee` reads its prefix, and its answer if it has one."""
        # What several holes are read behind depends on how they are filled.
        self._expected, self._ahead, self._is_guess = request if len(request.holes) == 1 else None, (), False

    def expect_accepted(self, request: InfillRequest, text: str) -> None:
        """Take the request's answer as accepted, where nothing came after the request."""
        if self._expected is request:
            self.expect(replace(request, prefix=request.prefix + text))
            self._is_guess = True

    def foresee(self) -> bool:
        """Encode a little of the prefix that is expected next; return whether there is more of it."""
        if self._expected is None:
            return False
        try:
            ids = self._ahead or self.layout.lay_out(self._expected).kv
            known, kv = self.cache.longest(ids, ahead=True)
            if known < len(ids):
                with torch.inference_mode():
                    known, _ = self.encode(ids, known, kv, AHEAD_CHUNK, is_guess=self._is_guess)
        except BaseException:
            self._expected = None  # what failed would fail again
            raise
        self._ahead = ids
        if known == len(ids):
            self._expected = None
        return self._expected is not None

    def encode(self, ids: tuple[int, ...], known: int, kv: KV | None, most: int, *, is_guess: bool = False) -> tuple[int, KV]:
        """Return how many ids are known, and their keys and values, after encoding at most so many more; the cache has them."""
        part = torch.tensor([ids[known : known + most]], device=self.loaded.device)
        kv = self.loaded.passes.encode(part, kv)[1]
        known = min(known + most, len(ids))
        self.cache.put(ids[:known], kv, is_guess=is_guess)
        return known, kv

    def about(self) -> dict[str, object]:
        """Return where the model runs and what it takes there."""
        parameters = self.loaded.passes.model.parameters()
        size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        loaded = self.loaded
        return {
            "device": loaded.device,
            "dtype": loaded.dtype,
            "revision": loaded.revision,
            "threads": loaded.threads,
            "why": dict(loaded.why),
            "device_bytes": size + self.cache.bytes,
            "device_free_bytes": room.free_bytes(loaded.device),
        }

    def pieces(self, text: str) -> tuple[str, ...]:
        """Return a text's tokens as text; a character that several tokens share stands with the last of them."""
        vocabulary = self.loaded.vocabulary
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return tuple(decoder.decode(vocabulary.pieces[token]) for token in vocabulary.encode(text))

    def trim(self) -> None:
        """Forget what could be computed again."""
        self.cache.clear()


class InfillTask:
    """One request under way; holes that do not fit one canvas are filled one after another."""

    def __init__(self, filler: LocalFiller, request: InfillRequest) -> None:
        self._filler, self._request = filler, request
        self._answers: tuple[Candidate, ...] = ()
        self._current: CanvasTask | None = None
        self._filled: list[str] = []
        self._hurried = False
        self._work = self._run()
        self.milliseconds = {"prefill": 0.0, "draft": 0.0, "denoise": 0.0, "score": 0.0}
        self.prefix = {"tokens": 0, "reused": 0}

    def step(self) -> bool:
        """Do one unit of work; return whether more is to do."""
        with torch.inference_mode():
            return next(self._work, None) is not None

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the best answers so far, best first; unfinished ones when the task has not ended."""
        if self._answers or self._current is None:
            return self._answers
        rest = ("",) * (len(self._request.holes) - len(self._filled) - 1)
        return tuple(
            replace(
                candidate,
                texts=(*self._filled, *candidate.texts, *rest)[: len(self._request.holes)],
                confidences=(),
                lengths=(),
            )
            for candidate in self._current.best_so_far()
        )

    def drafts(self) -> tuple[str, ...]:
        """Return one text for each hole as the best canvas reads now, or the answer when there is one."""
        if self._answers:
            return self._answers[0].texts
        now = self._current.read() if self._current else ()
        texts = [*self._filled, *now]
        return (*texts, *[""] * (len(self._request.holes) - len(texts)))

    def asking(self) -> CanvasTask | None:
        """Return the canvas whose denoising step is what the next `step` does, or None when that is something else."""
        return self._current if self._current is not None and self._current.n_live else None

    def hurry(self) -> None:
        """Score drafts as soon as there are some."""
        self._hurried = len(self._request.holes) == 1

    def early(self) -> Candidate | None:
        """Return the best of what is scored so far."""
        return self._current.first if self._current else None

    def cache(self) -> dict[str, int]:
        """Return how many `tokens` the prefixes of this task had, and how many of them were `reused`."""
        return dict(self.prefix)

    def rows(self) -> tuple[Scored, ...]:
        """Return what each row of the last canvas came to, with all that the ranking knows of it."""
        return tuple(self._current.scored) if self._current else ()

    def _fit_one_canvas(self, request: InfillRequest) -> bool:
        """Return whether the holes and the text between them stand on one canvas, each with room for an answer."""
        profile, n_holes = self._filler.loaded.profile, len(request.holes)
        gaps = profile.block_gaps if any(hole.block for hole in request.holes) else profile.line_gaps
        fixed = sum(len(self._filler.loaded.vocabulary.encode(text)) for text in request.between) + profile.held_tokens
        return n_holes <= profile.gaps_per_canvas and fixed + n_holes * min(gaps) <= profile.canvas_tokens

    def _run(self) -> Iterator[bool]:
        request = self._request
        if len(request.holes) == 1 or self._fit_one_canvas(request):
            self._current = CanvasTask(self._filler, request, self.milliseconds, self.prefix, hurried=self._hurried)
            yield from self._current.run()
            self._answers = self._current.answers
            if self._answers:
                self._filler.expect_accepted(request, self._answers[0].texts[0])
            return
        parts: list[Candidate] = []
        for index, hole in enumerate(request.holes):
            before = request.prefix + "".join(text + gap for text, gap in zip(self._filled, request.between, strict=False))
            rest = [*request.between[index:], request.suffix]
            alone = replace(request, prefix=before, suffix="".join(rest), holes=(hole,), between=(), seed=request.seed + index)
            self._current = CanvasTask(self._filler, alone, self.milliseconds, self.prefix)
            yield from self._current.run()
            if not self._current.answers:
                return
            parts.append(self._current.answers[0])
            self._filled.append(parts[-1].texts[0])
            self._current = None
        score = 1.0
        for part in parts:
            score *= part.score
        self._answers = (
            Candidate(
                tuple(part.texts[0] for part in parts), score, tuple(part.confidences[0] for part in parts), parts[0].row,
                sum(part.steps for part in parts),
                lengths=tuple(part.lengths[0] for part in parts) if all(part.lengths for part in parts) else (),
            ),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a denoised row came from, and which gap each of its free positions belongs to (-1: held)."""

    kind: RowKind
    gaps: tuple[int, ...]
    left: int = 0
    right: int = 0


class CanvasTask:
    """One canvas's worth of a request: its rows from first draft to ranked answers."""

    def __init__(
        self,
        filler: LocalFiller,
        request: InfillRequest,
        milliseconds: dict[str, float],
        prefix: dict[str, int],
        *,
        hurried: bool = False,
    ) -> None:
        self.filler, self.request, self.milliseconds, self.prefix = filler, request, milliseconds, prefix
        self.profile, self.vocabulary, self.passes = filler.loaded.profile, filler.loaded.vocabulary, filler.loaded.passes
        self.sheet = filler.layout.lay_out(request)
        self.block = any(hole.block for hole in request.holes)
        self.answers: tuple[Candidate, ...] = ()
        self.denoiser: Denoiser | None = None
        self.origins: list[Origin] = []
        self.scored: list[Scored] = []
        self.kv: KV | None = None
        self.file: FileModel | None = None
        self.hurried = hurried
        self.first: Candidate | None = None
        self._known: dict[str, tuple[tuple[float, ...], float]] = {}
        self._decoder: LocalDecoder | None = None
        self._shared: Stack | None = None  # held while this canvas is part of it
        self._given: Tensor | None = None

    @property
    def place(self) -> rank.Place:
        """Where the hole stands, as the ranking tells places apart."""
        if self.block:
            return "block"
        if self.request.suffix.partition("\n")[0].strip():
            return "inside"
        return "end" if self.request.prefix.rpartition("\n")[2].strip() else "line"

    def run(self) -> Iterator[bool]:
        """Do everything, yielding after each unit that must not be interrupted."""
        yield from self._timed("prefill", self._prefill)
        yield from self._timed("draft", self._copy)
        yield from self._timed("score", self._score_early)
        yield from self._timed("draft", self._causal)
        yield from self._timed("score", self._score_early)
        yield from self._timed("denoise", self._denoise)
        yield from self._timed("score", self._score)

    def read(self) -> tuple[str, ...]:
        """Return each hole's text as the surest row reads now."""
        if self.denoiser is None or not self.denoiser.begun:
            return (self.scored[0].text,) if self.scored else ()
        readings = {row: self.denoiser.read(row) for row, origin in enumerate(self.origins) if max(origin.gaps) >= 0}
        best = min(readings, key=lambda row: readings[row].entropy)
        return self._texts(readings[best].places, readings[best].ids, self.origins[best])

    def best_so_far(self) -> tuple[Candidate, ...]:
        """Return what there is before the end: drafts, ranked as if each were middling likely, then the canvas."""
        guessed = [replace(item, tokens=(MIDDLING,) * (len(item.text) // 4 + 1), place=self.place) for item in self.scored]
        ranked = rank.best_first(guessed, self.profile.calibration)
        found = [Candidate((item.text,), chance, row=item.row, finished=False) for chance, item in ranked]
        if self.denoiser and (texts := self.read()) and any(texts):
            found.append(Candidate(texts, 0.0, finished=False))
        return tuple(found)

    @property
    def prefix_kv(self) -> KV:
        """The keys and values of the prefix, once it is encoded."""
        assert self.kv is not None
        return self.kv

    @property
    def length(self) -> int:
        """How many tokens the prefix has."""
        return len(self.sheet.kv)

    @property
    def width(self) -> int:
        """How many positions the canvas has; 0 before there is one."""
        return self.denoiser.canvas.ids.shape[1] if self.denoiser else 0

    @property
    def n_live(self) -> int:
        """How many rows wait for a denoising step."""
        return len(self.denoiser.live) if self.denoiser else 0

    def ask(self) -> Question:
        """Return what the rows that wait want to know."""
        assert self.denoiser is not None
        return self.denoiser.ask(self.denoiser.live)

    def join(self, stack: Stack, logits: Tensor, milliseconds: float) -> None:
        """Take the logits [G, V] that a pass with others found for `ask`; the next unit goes on from them."""
        self._shared, self._given = stack, logits
        self.milliseconds["denoise"] += milliseconds

    def leave(self) -> None:
        """Let go of what passes alone, or with those of the last time, have kept."""
        self._shared = None
        if self._decoder is not None:
            self._decoder.stack = None

    def _timed(self, stage: str, work: Callable[[], Iterator[bool]]) -> Iterator[bool]:
        began = time.perf_counter()
        for _ in work():
            self.milliseconds[stage] += (time.perf_counter() - began) * 1000
            yield True
            began = time.perf_counter()
        self.milliseconds[stage] += (time.perf_counter() - began) * 1000

    def _prefill(self) -> Iterator[bool]:
        ids = self.sheet.kv
        known, kv = self.filler.cache.longest(ids)
        self.prefix["tokens"] += len(ids)
        self.prefix["reused"] += known
        while known < len(ids):
            known, kv = self.filler.encode(ids, known, kv, PREFILL_CHUNK)
            yield True
        self.kv = kv

    def _copy(self) -> Iterator[bool]:
        """Gather what the file alone would write; only for a single hole."""
        if len(self.request.holes) > 1:
            return
        hole, switches = self.request.holes[0], self.filler.switches
        if self.profile.file_weight and switches.file:
            self.file = self._file_model()
        if switches.copy and self.profile.copy_rows:
            for copy in drafts.copies(
                self.request.prefix, self.request.suffix, block=hole.block, indent=hole.indent, most=self.profile.copy_rows
            ):
                self.scored.append(Scored(copy.text, "copy", left=copy.left, right=copy.right))
        if self.request.previous.strip() and self.profile.refine_steps:
            # Only worth a row where the canvas corrects it: what is left as it was is rarely what is wanted now.
            self.scored.append(Scored(drafts.kept(self.request.previous, block=hole.block), "previous"))
        yield from ()  # it is no unit of its own

    def _file_model(self) -> FileModel:
        """Return what the text around the hole says of itself; what is healed is left for the gap to write."""
        encode, most, n_healed = self.vocabulary.encode, self.profile.file_chars, len(self.sheet.heal_ids)
        before = encode(self.request.prefix[-most:])
        return FileModel(
            before[: len(before) - n_healed],
            encode(self.request.suffix[:most]),
            full=self.profile.file_weight,
            half_at=self.profile.file_half_at,
        )

    def _causal(self) -> Iterator[bool]:
        """Write the gap from left to right with the encoder, from its likeliest first tokens on; only for a single hole."""
        if len(self.request.holes) > 1 or not self.filler.switches.causal or not self.profile.causal_rows:
            return
        assert self.kv is not None
        hole = self.request.holes[0]
        end = {self.sheet.end} if self.sheet.end is not None else set(self.vocabulary.special)
        written = yield from causal.drafts(
            self.passes,
            self.kv,
            self.sheet.kv[-1],
            rows=self.profile.causal_rows,
            most=min(MAX_CAUSAL_TOKENS, max(self._gaps())),
            first=layout.allowed_first(self.vocabulary, self.sheet.heal),
            banned=[token for token in self.filler.unwritable if token not in end],
            file=self.file,
            stops=end if hole.block else end | set(self.vocabulary.with_newline),
        )
        texts = (layout.answer(self.vocabulary, row, self.sheet.heal) for row in written)
        self.scored += [Scored(text, "causal") for text in texts]

    def _denoise(self) -> Iterator[bool]:
        rows = self._rows()
        if not rows:
            return
        delete = self.sheet.delete if self.filler.switches.delete else None
        first = layout.allowed_first(self.vocabulary, self.sheet.heal)
        limits = Limits(self.filler.regular, tuple(self._banned()), first, delete)
        sampling = self.profile.sampling
        denoiser = Denoiser(rows, limits, sampling, self.filler.n_logits, self.filler.loaded.device)
        self._decoder = LocalDecoder(self.passes, self.prefix_kv, conditioned=self.filler.switches.conditioning)
        self.denoiser = denoiser
        n_steps, most = 0, self.filler.rows_at_once(self.length, self.width)
        while not denoiser.done:
            yield True  # so that the pass that follows can be one with others
            if self._given is not None:
                denoiser.take(denoiser.live, self._given)
                self._given = None
            else:
                self._shared = None
                denoiser.step(self._decoder, most)
            n_steps += 1
            if n_steps == 2 and self.sheet.delete is None:
                self._keep_likely_lengths(denoiser)
        self._decoder = self._shared = None
        yield True
        for index, origin in enumerate(self.origins):
            if max(origin.gaps) < 0:
                continue
            reading = denoiser.read(index)
            texts = self._texts(reading.places, reading.ids, origin)
            chances = [chance for place, chance in zip(reading.places, reading.chances, strict=True) if origin.gaps[place] >= 0]
            if len(texts) == 1:
                self.scored.append(Scored(texts[0], origin.kind, entropy=reading.entropy, left=origin.left, right=origin.right))
            else:
                score = sum(chances) / max(len(chances), 1)
                by_gap = tuple(
                    tuple(c for p, c in zip(reading.places, reading.chances, strict=True) if origin.gaps[p] == gap)
                    for gap in range(len(texts))
                )
                self.answers += (Candidate(texts, score, by_gap, origin.kind, denoiser.canvas.steps[index]),)

    def _keep_likely_lengths(self, denoiser: Denoiser) -> None:
        """Go on with the two gap lengths whose first tokens are surest for their length (CAL, arXiv 2602.00476)."""
        by_length: dict[int, list[float]] = {}
        for index, origin in enumerate(self.origins):
            reading = denoiser.read(index)
            chances = [c for place, c in zip(reading.places, reading.chances, strict=True) if origin.gaps[place] >= 0]
            if origin.kind == "noise":
                expected = layout.expected_confidence(len(chances))
                by_length.setdefault(len(chances), []).append(sum(chances) / max(len(chances), 1) - expected)
        means = {length: sum(found) / len(found) for length, found in by_length.items()}
        kept = sorted(means, key=lambda length: -means[length])[:2]
        for index, origin in enumerate(self.origins):
            if origin.kind == "noise" and sum(gap >= 0 for gap in origin.gaps) not in kept:
                # A row that was dropped says nothing any more: only what was worked out is ranked.
                denoiser.drop(index)
                self.origins[index] = replace(origin, gaps=tuple(-1 for _ in origin.gaps))

    def _rows(self) -> list[Row]:
        """Return the canvases to denoise and remember where each came from in `origins`."""
        switches, seed, sampling = self.filler.switches, self.request.seed, self.profile.sampling
        steps = self.request.budget.steps or (sampling.block_steps if self.block else sampling.line_steps)
        rows: list[Row] = []
        if switches.noise or len(self.request.holes) > 1:
            lengths = self._gaps()
            wanted = max(self.profile.noise_rows, self.request.budget.candidates - len(self.scored))
            for number in range(max(1, min(wanted, MAX_ROWS // len(lengths)))):
                for gap in lengths:
                    ids, gaps = self._canvas([[]] * len(self.request.holes), gap)
                    rows.append(
                        Row(
                            ids,
                            tuple(g >= 0 for g in gaps),
                            steps,
                            (seed * 1000 + len(rows)) & LARGEST_SEED,
                            greedy=number == 0,
                        )
                    )
                    self.origins.append(Origin("noise", gaps))
        if self.profile.refine_steps:
            for item in list({item.text: item for item in reversed(self.scored)}.values()):
                draft = self.vocabulary.encode(self.sheet.heal.decode("utf-8", "ignore") + item.text)
                room = next((gap for gap in sorted({8, 16, *self._gaps()}) if gap > len(draft)), 0)
                if self.sheet.delete is None:
                    room = len(draft)
                if not room:
                    continue
                ids, gaps = self._canvas([draft], room)
                rows.append(
                    Row(
                        ids,
                        tuple(g >= 0 for g in gaps),
                        self.profile.refine_steps,
                        (seed * 1000 + len(rows)) & LARGEST_SEED,
                        draft=True,
                    )
                )
                self.origins.append(Origin(item.row, gaps, item.left, item.right))
        return rows

    def _canvas(self, texts: Sequence[Sequence[int]], gap: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return a canvas's ids, drafts padded with deletes, and the gap that each position belongs to (-1: held)."""
        filler = self.sheet.delete if self.sheet.delete is not None else self.filler.regular[0]
        ids: list[int] = []
        gaps: list[int] = []
        for index, text in enumerate(texts):
            ids += [*text, *[filler] * gap][:gap]
            gaps += [index] * gap
            if index < len(self.sheet.between):
                ids += self.sheet.between[index]
                gaps += [-1] * len(self.sheet.between[index])
        tail = self.sheet.tail if self.filler.switches.held_suffix else ()
        return (*ids, *tail), (*gaps, *[-1] * len(tail))

    def _gaps(self) -> tuple[int, ...]:
        if self.filler.switches.gap:
            return (self.filler.switches.gap,)
        gaps = self.profile.block_gaps if self.block else self.profile.line_gaps
        room = self.profile.canvas_tokens - len(self.sheet.tail) - sum(map(len, self.sheet.between))
        fitting = tuple(gap for gap in gaps if gap * len(self.request.holes) <= room)
        return fitting or (max(room // len(self.request.holes), 1),)

    def _banned(self) -> list[int]:
        """Return the tokens a gap never holds: control tokens, and line ends where the hole ends with its line."""
        keep = self.sheet.delete if self.filler.switches.delete else None
        banned = [token for token in self.filler.unwritable if token != keep]
        return banned if self.block else banned + list(self.vocabulary.with_newline)

    def _texts(self, places: Sequence[int], ids: Sequence[int], origin: Origin) -> tuple[str, ...]:
        texts = []
        for gap in range(len(self.request.holes)):
            found = [token for place, token in zip(places, ids, strict=True) if origin.gaps[place] == gap]
            texts.append(layout.answer(self.vocabulary, found, self.sheet.heal if gap == 0 else b""))
        return tuple(texts)

    def _score(self) -> Iterator[bool]:
        """Rank what was gathered by one causal pass over each distinct text, and make it candidates."""
        if len(self.request.holes) > 1:
            self.answers = tuple(sorted(self.answers, key=lambda candidate: -candidate.score))
            return
        if self.scored:
            self.answers = self._ranked()
            yield True

    def _score_early(self) -> Iterator[bool]:
        """Rank what there is already, where somebody wants to hear of it; of copies, which come best first, the first."""
        if self.hurried and self.scored and self.filler.switches.scorer:
            gathered = self.scored
            if all(item.row == "copy" for item in gathered):
                self.scored = gathered[:1]
            self.first = replace(self._ranked()[0], finished=False)
            self.scored = [*self.scored, *gathered[len(self.scored) :]]
            yield True

    def _ranked(self) -> tuple[Candidate, ...]:
        """Return what was gathered as candidates, best first, after a causal pass over the texts that have had none."""
        if self.filler.switches.scorer:
            texts = [text for text in dict.fromkeys(item.text for item in self.scored) if text not in self._known]
            if texts:
                self._known |= dict(zip(texts, self._log_probabilities(texts), strict=True))
            known = self._known
            self.scored = [replace(item, tokens=known[item.text][0], after=known[item.text][1]) for item in self.scored]
        self.scored = [replace(item, place=self.place) for item in self.scored]
        steps = max(self.denoiser.canvas.steps) if self.denoiser else 0
        return tuple(
            Candidate(
                (item.text,),
                chance,
                (tuple(min(1.0, math.exp(logp)) for logp in item.tokens),),
                item.row,
                steps,
                lengths=self._lengths(item),
            )
            for chance, item in rank.best_first(self.scored, self.profile.calibration)
        )

    def _lengths(self, item: Scored) -> tuple[tuple[int, ...], ...]:
        """Return how much of the answer each of its tokens is, the first ones without what the user had typed of them."""
        heal = self.sheet.heal.decode("utf-8", "ignore")
        lengths = self.vocabulary.lengths(self.vocabulary.encode(heal + item.text))
        if len(lengths) != len(item.tokens) or sum(lengths) != len(heal) + len(item.text):
            return ()
        ends = [max(end - len(heal), 0) for end in accumulate(lengths)]
        return (tuple(end - start for start, end in pairwise((0, *ends))),)

    def _log_probabilities(self, texts: Sequence[str]) -> list[tuple[tuple[float, ...], float]]:
        """Return, for each text, the causal log-probability of its tokens, and that of what comes after it."""
        assert self.kv is not None
        heal = self.sheet.heal.decode("utf-8", "ignore")
        after = [self.sheet.end] if self.sheet.end is not None else list(self.sheet.tail)
        coded = [self.vocabulary.encode(heal + text) for text in texts]
        rows = [[self.sheet.kv[-1], *ids, *after] for ids in coded]
        width = max(map(len, rows))
        padded = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=self.filler.loaded.device)
        before = crop(self.kv, len(self.sheet.kv) - 1)
        hidden, _ = self.passes.encode(padded, widen(before, len(rows)))
        logps = self.passes.logits(hidden[:, :-1]).log_softmax(-1).gather(-1, padded[:, 1:, None])[..., 0].tolist()
        found = []
        for ids, row in zip(coded, logps, strict=True):
            behind = row[len(ids) : len(ids) + len(after)]
            own = row[: len(ids)] if self.file is None else self._with_file(self.file, ids, row)
            found.append((tuple(own), sum(behind) / len(behind) if behind else 0.0))
        return found

    @staticmethod
    def _with_file(file: FileModel, ids: Sequence[int], logps: Sequence[float]) -> list[float]:
        """Return the log-probabilities of `ids` under the model and the file together."""
        mixed = []
        for index, token in enumerate(ids):
            guess = file.guess(ids[:index])
            chance = (1 - guess.weight) * math.exp(logps[index]) + guess.weight * guess.shares.get(token, 0.0)
            mixed.append(math.log(max(chance, 1e-12)))
        return mixed
