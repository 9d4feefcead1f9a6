"""A request laid out as tokens, and its answers while they are generated, which proposers add to, and their scores.

A causal pass reads each distinct text and what follows it. Knows proposals, trees, log-probabilities and the time that is left.
Knows nothing of how texts are proposed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from dg_lsp.core import calibration, extent, placeholders
from dg_lsp.core.calibration import Calibration, Evidence
from dg_lsp.core.values import Candidate, InfillRequest, Ranked
from dg_lsp.engine.common import copies, rank
from dg_lsp.engine.common.drafts import FileModel
from dg_lsp.engine.common.layout import answer
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.common.pace import Pace, Timing
from dg_lsp.engine.common.rank import Describer, Proposal
from dg_lsp.engine.model.prefix_cache import KV, PrefixEncoder
from dg_lsp.engine.model.tree import LEAST, Tree

MAX_ROWS = 32  # the most rows, and so candidates, of one request; one pass has fewer if memory is short
LARGEST_SEED = 2**63 - 1
FILE_CHARS = 12_000  # the characters on each side of the hole that are searched for repetitions

# How a text is read: its ids, and those of what follows it.
Reading = tuple[list[int], list[int]]


class RequestInputs:
    """A request with its `prompt`, and the model that answers it. `weights` is the current calibration.

    What every stage asks of the request is computed once. `hole` is the first one, and often the only one; `bounds` say where
    its answer ends, for a model that `knows_end` or not. `is_block` says whether a hole may take several lines, and `is_body`
    whether the answer may not be another placeholder. `needed` are the names that the code after the hole needs and only the
    answer can bind. `typed` are the characters of the answer's first tokens that are already typed. A text that the model
    writes is the hole's part, or if it `may_exceed` that, begins with it. On a canvas, a gap has at most `longest_gap` tokens.
    """

    prompt: Any  # of any layout: it has the `ids` to encode first, and the typed bytes `heal` that the answer begins with
    loaded: Loaded[Any, Any]
    may_exceed = True
    longest_gap = 0

    def __init__(
        self,
        request: InfillRequest,
        prompt: Any,
        loaded: Loaded[Any, Any],
        weights: Calibration | None,
        *,
        knows_end: bool = False,
    ) -> None:
        self.request, self.prompt, self.loaded = request, prompt, loaded
        self.calibration, self.position = weights, calibration.position(request)
        self.vocabulary, self.hole = loaded.vocabulary, request.holes[0]
        self.is_block = request.extent == "block"
        self.bounds = extent.of(self.hole, request.place, knows_end=knows_end)
        self.is_body = self.hole.kind in ("body", "marker")
        self.needed = self.hole.needed
        self.typed = prompt.heal.decode("utf-8", "ignore")

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a draft. A checkpoint without its own end token may write any special token."""
        return frozenset({self.prompt.end}) if self.prompt.end is not None else self.vocabulary.special

    @cached_property
    def line_ends(self) -> frozenset[int]:
        """The tokens that end a draft within a line."""
        return frozenset() if self.bounds.takes_lines else frozenset(self.vocabulary.with_newline)

    @cached_property
    def control(self) -> tuple[int, ...]:
        """The tokens without text: control tokens, and logits without a token."""
        return (*self.vocabulary.special, *range(self.vocabulary.size, self.loaded.passes.n_vocabulary))

    @property
    def banned(self) -> list[int]:
        return [token for token in self.control if token not in self.ends]

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The texts to copy from: the prefix, the suffix, and the related texts.

        For a body these have no placeholders: a file with many holes repeats its placeholders, so they would be what most
        drafts of a body say, and all such drafts are useless.
        """
        request = self.request
        sources = (request.prefix, request.suffix, *(snippet.text for snippet in request.related))
        return tuple(map(placeholders.removed, sources)) if self.is_body else sources

    def seed(self, number: int) -> int:
        """Return the seed of a row's noise."""
        return (self.request.seed * 1000 + number) & LARGEST_SEED

    def gap_lengths(self) -> tuple[int, ...]:
        """Return the gap lengths to try on a canvas: those of the profile that fit it."""
        profile = self.loaded.profile
        lengths: Sequence[int] = profile.block_gaps if self.is_block else profile.line_gaps
        return tuple(length for length in lengths if length <= self.longest_gap) or (max(self.longest_gap, 1),)

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text of an answer's tokens, without the characters that were already typed."""
        return answer(self.vocabulary, ids, self.prompt.heal)

    def of_draft(self, text: str) -> str:
        """Return the part of a draft for the only hole: its line or lines, without a copy of the suffix."""
        return self.bounds.of_draft(text) if self.may_exceed else text

    def draft_text(self, ids: Sequence[int], stop: int | None) -> str:
        """Return the hole's part of a draft that ended before the token `stop`, if with one."""
        has_ended = stop in self.ends
        # A token with a line end may contain text before it.
        if stop is not None and stop in self.line_ends and not has_ended and self.may_exceed:
            ids = [*ids, stop]
        text = self.text_of(ids)
        return text if has_ended and self.prompt.end is not None else self.of_draft(text)

    def ids_of(self, text: str) -> list[int]:
        """Return the ids of an answer, with those of the typed characters that it continues."""
        return self.vocabulary.encode(self.typed + text)

    def reading(self, text: str) -> Reading:
        """Return how a text is read: its ids, and those of the end token or of the held suffix."""
        prompt = self.prompt
        return self.ids_of(text), [prompt.end] if prompt.end is not None else list(prompt.tail)

    def says_nothing(self, text: str) -> bool:
        """Return whether a text is blank, or no body where a body is asked for."""
        return placeholders.says_nothing(text) if self.is_body else not text.strip()

    def file_model(self, weight: float, half_at: float = 4.0, written: Sequence[Sequence[int]] = ()) -> FileModel | None:
        """Return the model of the text around the hole, None without a weight; typed tokens are left out: the answer has them.

        At the match length `half_at`, in tokens, it has half of the weight. What was `written` counts as other files.
        """
        if len(self.request.holes) > 1 or not weight:
            return None
        encode, (prefix, suffix, *related) = self.vocabulary.encode, self.sources
        before = encode(prefix[-FILE_CHARS:])
        others = [*(encode(text) for text in reversed(related)), *written]
        known = before[: len(before) - len(self.prompt.heal_ids)]
        return FileModel(known, encode(suffix[:FILE_CHARS]), related=others, full=weight, half_at=half_at)


@dataclass(frozen=True, slots=True)
class Scores:
    """Natural log-probabilities of a text: those of its tokens that rank it and under the model alone, and of what follows."""

    logps: tuple[float, ...]
    model_logps: tuple[float, ...]
    after: tuple[float, ...]


class Scorer:
    """Scores the texts of one hole after its encoded prefix, each only once. What `file` repeats is mixed into the scores."""

    def __init__(self, inputs: RequestInputs, tree: Tree, pace: Pace, file: FileModel | None = None) -> None:
        self._inputs, self._tree, self._pace, self.file = inputs, tree, pace, file
        self._scores: dict[str, Scores] = {}
        self.describer = Describer(inputs.request, needed=inputs.needed, n_context=len(inputs.prompt.ids))

    def score(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Return the proposals with the log-probabilities of their tokens and of the text after them, and their features."""
        self._read([text for text in dict.fromkeys(each.text for each in proposals) if text not in self._scores])
        scored = []
        for proposal in proposals:
            scores = self._scores[proposal.text]
            total = sum(scores.after)
            mean = total / max(len(scores.after), 1)
            logps, model_logps = scores.logps, scores.model_logps
            scored.append(replace(proposal, logps=logps, model_logps=model_logps, suffix_mean=mean, suffix_sum=total))
        return self.describer.described(scored)

    def _read(self, texts: Sequence[str]) -> None:
        self._learn([(text, *self._inputs.reading(text)) for text in texts])

    def _learn(self, readings: Sequence[tuple[str, list[int], list[int]]]) -> None:
        """Learn the log-probabilities of texts, given with their ids and those of what follows them."""
        began, n_nodes = self._pace.clock(), self._tree.n_nodes
        rows = self._tree.log_probabilities([[*ids, *after] for _, ids, after in readings])
        if (n_read := self._tree.n_nodes - n_nodes) > 0:
            self._pace.note("score", n_read, 1000 * (self._pace.clock() - began))
        for (text, ids, _), row in zip(readings, rows, strict=True):
            self._keep(text, ids, row[: len(ids)], row[len(ids) :])

    def _keep(self, text: str, ids: Sequence[int], logps: Sequence[float], after: Sequence[float]) -> None:
        mixed = list(logps)
        if self.file is not None:
            for index, token in enumerate(ids):
                guess = self.file.guess(ids[:index])
                chance = (1 - guess.weight) * math.exp(logps[index]) + guess.weight * guess.shares.get(token, 0.0)
                mixed[index] = math.log(max(chance, LEAST))
        self._scores[text] = Scores(tuple(mixed), tuple(logps), tuple(after))


MIDDLING = -1.5  # nats: the assumed log-probability of an unscored token
UNSCORED_ORDER = Calibration(0.0, {"mean": 1.0})  # by the sum, the shortest text would rank best
TOKEN_CHARS = 4  # about; for estimates alone
PREFILL_CHUNK = 128  # tokens encoded in one uninterruptible step; more at once take no less time for each

# Work on a task. Each item is the end of one uninterruptible unit.
Work = Generator[None, None, None]


@dataclass(frozen=True, slots=True)
class Live:
    """What a proposer is writing: the current text of each hole, and the proposals that may still change.

    `is_answer` says that the texts are the best answer if the task ended now.
    """

    texts: Callable[[], tuple[str, ...]]
    proposals: Callable[[], Sequence[Proposal]] = tuple
    is_answer: bool = False


class Generation:
    """The proposals for one request so far, in the order in which they came, with scores once they have some.

    `proposers` add them, each with the stage that its time counts for. Without a calibration, `order` ranks them. `begin` sets
    what needs the encoded prompt: the `tree` of drafts, and the `scorer` of texts.
    """

    tree: Tree
    scorer: Scorer

    proposers: Sequence[tuple[str, Callable[[Any], Work]]] = ()
    order = rank.ORDER
    n_steps = 0  # denoising steps so far, as candidates report them
    is_scored = False

    def __init__(self, inputs: RequestInputs, timing: Timing, prefixes: PrefixEncoder | None = None) -> None:
        self.inputs, self.timing, self._prefixes = inputs, timing, prefixes
        self.proposals: list[Proposal] = []
        self.live: Live | None = None

    def begin(self) -> Work:
        """Do what must precede the proposers."""
        yield from ()

    def encoded(self, *, but_last: bool = False) -> Generator[None, None, KV]:
        """Encode the prompt as far as the cache lacks it, chunk by chunk, and begin the tree; return the keys and values.

        With `but_last`, the tree's first pass encodes the last token, and what is predicted after it.
        """
        prompt_ids, prefixes, timing, passes = self.inputs.prompt.ids, self._prefixes, self.timing, self.inputs.loaded.passes
        assert prefixes is not None
        hidden = prefixes.cache.last_hidden(prompt_ids)
        ids = prompt_ids[:-1] if but_last and hidden is None and len(prompt_ids) > 1 else prompt_ids
        n_encoded, kv = prefixes.cache.longest(ids)
        timing.prefix_tokens += len(prompt_ids)
        timing.reused_tokens += n_encoded
        while n_encoded < len(ids):
            n_chunk = min(prefixes.at_once(PREFILL_CHUNK), len(ids) - n_encoded)
            with timing.pace.measuring("prefill", n_chunk):
                n_encoded, kv = prefixes.encode(ids, n_encoded, kv, n_chunk)
            yield
        assert kv is not None
        has_root = len(ids) == len(prompt_ids)
        hidden = prefixes.cache.last_hidden(prompt_ids) if has_root else None
        self.tree = Tree(passes, kv, prompt_ids[-1], hidden, has_root=has_root, buffers=passes.buffers)
        return kv

    def score(self) -> Work:
        """Score the proposals that have no score yet."""
        before = self.timing.switch("score")
        self.proposals, self.is_scored = self.scorer.score(self.proposals), True
        yield
        self.timing.switch(before)

    def ranked(self) -> Generator[None, None, tuple[Candidate, ...]]:
        """Score the proposals, and return them as candidates, best first."""
        if not self.proposals:
            return ()
        yield from self.score()
        return calibration.to_candidates(self.evidence(), self.inputs.calibration)

    def evidence(self, proposals: Sequence[Proposal] | None = None) -> list[Evidence]:
        """Return the evidence for proposals, or for all of them."""
        vocabulary, typed = self.inputs.vocabulary, self.inputs.typed
        proposals = self.proposals if proposals is None else proposals
        items = rank.evidence(proposals, self.order)
        for index, (item, proposal) in enumerate(zip(items, proposals, strict=True)):
            # Each token's number of characters in the answer, without already typed characters; empty if unknown.
            lengths: tuple[tuple[int, ...], ...] = ()
            whole = vocabulary.lengths(vocabulary.encode(typed + proposal.text))
            if len(whole) == len(proposal.logps) and sum(whole) == len(typed) + len(proposal.text):
                ends = [max(end - len(typed), 0) for end in accumulate(whole)]
                lengths = (tuple(end - start for start, end in pairwise((0, *ends))),)
            chances = tuple(min(1.0, math.exp(logp)) for logp in proposal.logps)
            candidate = replace(item.candidate, confidences=(chances,), steps=self.n_steps, lengths=lengths)
            items[index] = replace(item, candidate=candidate)
        return items

    def score_ms(self, n_positions: int = 0) -> float:
        """Return the expected milliseconds to score the proposals and `n_positions` more tokens; 0 if unknown."""
        unscored = sum(len(proposal.text) // TOKEN_CHARS + 1 for proposal in self.proposals if not proposal.logps)
        return self.timing.pace.expected_ms("score", unscored + n_positions) or 0.0

    def propose_copies(self, *, say_something: bool) -> Work:
        """Propose the best copies for a single hole; with `say_something`, no blank ones."""
        yield from ()  # all of that is no unit of work for the queue to wait for
        inputs, hole, most = self.inputs, self.inputs.hole, self.inputs.loaded.profile.copy_rows
        if len(inputs.request.holes) > 1 or not most:
            return
        prefix, suffix, *related = inputs.sources
        takes_lines = inputs.bounds.takes_lines
        for copy in copies.find(prefix, suffix, takes_lines=takes_lines, indent=hole.indent, most=most, related=related):
            text = inputs.of_draft(copy.text)
            if not say_something or not inputs.says_nothing(text):
                self.proposals.append(Proposal(text, "copy", left=copy.left, right=copy.right))

    # Called between units.

    def texts(self) -> tuple[str, ...]:
        """Return each hole's current text: what is being written, even if it is empty so far, or else the first proposal."""
        if self.live is not None and (texts := self.live.texts()):
            return texts
        return (self.proposals[0].text,) if self.proposals else ()

    def best_so_far(self) -> tuple[Candidate, ...]:
        """Return the unfinished candidates before the end: proposals, then what a canvas is writing."""
        live = self.live
        unscored = self._unscored([*self.proposals, *(live.proposals() if live else ())])
        if live is not None and live.is_answer and any(texts := live.texts()):
            return (*unscored, Candidate(texts, Ranked(len(unscored), doubted=True), finished=False))
        return unscored

    def _unscored(self, proposals: Sequence[Proposal]) -> tuple[Candidate, ...]:
        """Return proposals as unfinished candidates, ranked with an assumed log-probability for each token.

        Their confidence is not calibrated, because a calibration is fitted on scored candidates.
        """
        guessed = list[Proposal]()
        for proposal in proposals:
            logps = (MIDDLING,) * (len(proposal.text) // 4 + 1)
            guessed.append(replace(proposal, logps=logps, model_logps=logps, position=self.inputs.position))
        weights, items = self.inputs.calibration or UNSCORED_ORDER, rank.evidence(guessed, doubted=True)
        items = [replace(item, order=calibration.linear(item.features, weights)) for item in items]
        return tuple(replace(candidate, finished=False) for candidate in calibration.to_candidates(items, None))

    def leave(self) -> None:
        """End it, wherever it is. What a later request can use stays in the cache."""
        self.live = None
        ids, root = self.inputs.prompt.ids, self.tree.root if hasattr(self, "tree") else None
        if root is not None and self._prefixes is not None and self._prefixes.cache.known(ids) == len(ids) - 1:
            self._prefixes.cache.put(ids, *root)
