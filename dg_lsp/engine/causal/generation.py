"""The answer of one hole while it is generated: its encoded prompt, the tree of drafts, and their scores.

A text is scored with what follows it: after all that the model read, and after the left side alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core import calibration, scope
from dg_lsp.core.calibration import Calibration, Evidence
from dg_lsp.core.values import Candidate
from dg_lsp.engine.causal.layout import CausalInputs
from dg_lsp.engine.common import drafts, generation, rank
from dg_lsp.engine.common.drafts import LONGEST_DRAFT, MOST_BEHIND, CausalDraft, Drafting, DraftSettings
from dg_lsp.engine.common.generation import MIDDLING, Live, Work
from dg_lsp.engine.common.pace import Pace
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.model.prefix_cache import crop
from dg_lsp.engine.model.tree import Tree

MOST_NEAR, NEAR = 3, 3.0  # candidates that are read on: so many, at most so many nats behind the best
FOLLOW_WEIGHT = 0.75  # of the log-probability of what follows an answer, compared with the answer's own
FIRST_TOKENS = 8  # of a long text: they tell whether the rest is worth reading
LEAST_CHANCE = 0.15  # of an answer that is worth scoring


class Scorer(generation.Scorer):
    """Scores the texts of one hole in the `tree` of drafts, and in that after the left side alone if the prompt holds more."""

    _inputs: CausalInputs

    def __init__(self, inputs: CausalInputs, tree: Tree, left: Tree | None, pace: Pace) -> None:
        profile = inputs.loaded.profile
        super().__init__(inputs, tree, pace, inputs.file_model(profile.file_weight, profile.file_half_at))
        self._left = left
        self._copies: dict[str, Proposal] = {}

    def score(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        self._copies |= {each.text: each for each in proposals if each.row == "copy"}
        return super().score(proposals)

    def read_on(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Return the scored proposals with `suffix_margin`: how likely the suffix is after the left side and the likeliest.

        A small model that has read the suffix before it writes hardly uses it to choose between answers. Where the suffix
        comes after an answer, the model says better how well both fit.
        """
        orders: dict[str, float] = {}
        for proposal in proposals:
            order = calibration.linear({"joint": proposal.joint_logp, **proposal.incomplete}, rank.ORDER)
            orders[proposal.text] = max(order, orders.get(proposal.text, -math.inf))
        best = max(orders.values(), default=0.0)
        near = sorted((text for text in orders if orders[text] >= best - NEAR), key=lambda text: -orders[text])[:MOST_NEAR]
        if self._left is None or len(near) < 2:
            return list(proposals)
        # The last token may end inside a character.
        follow = self._inputs.vocabulary.decode(self._inputs.prompt.follow).rstrip("\ufffd")
        parts = [self._inputs.joined(text, follow) for text in near]
        typed = self._inputs.prompt.typed
        with self._pace.measuring("score", len(typed) + sum(len(ids) + len(after) for ids, after in parts)):
            rows = self._left.log_probabilities(
                [[*typed, *ids, *after] for ids, after in parts], [len(typed) + len(ids) for ids, _ in parts]
            )
        found = {text: FOLLOW_WEIGHT * sum(row) for text, row in zip(near, rows, strict=True)}
        most, least = max(found.values()), min(found.values())
        return [replace(proposal, suffix_margin=found.get(proposal.text, least) - most) for proposal in proposals]

    def _read(self, texts: Sequence[str]) -> None:
        """Learn the log-probabilities of texts and of what follows them, as far as they matter.

        If only the likeliest answer is wanted, a text that is behind it in any case is left out: it counts as if its unknown
        tokens were middling. A calibration may prefer a copy that is behind; that is left out if it will hardly have
        `LEAST_CHANCE`. Of a long text, the first tokens are read before that is decided.
        """
        readings = [self._inputs.reading(text) for text in texts]
        rows = [[*ids, *after] for ids, after in readings]
        long = [row[:FIRST_TOKENS] for row in rows if self._tree.bound(row).n_unknown > 2 * FIRST_TOKENS]
        if self._inputs.wants_likeliest and long:
            with self._pace.measuring("score", FIRST_TOKENS * len(long)):
                self._tree.log_probabilities(long)
        bounds = [self._tree.bound(row) for row in rows]
        behind = max((bound.logp for bound in bounds if not bound.n_unknown), default=-math.inf) - NEAR
        chosen = list[tuple[str, list[int], list[int]]]()
        for text, (ids, after), bound in sorted(zip(texts, readings, bounds, strict=True), key=lambda row: row[2].logp):
            if not (bound.n_unknown and self._inputs.wants_likeliest) or self._may_be_best(text, bound.logp, behind):
                chosen.append((text, ids, after))
            else:
                guess = (bound.logp + MIDDLING * bound.n_unknown) / max(len(ids), 1)
                self._keep(text, ids, [guess] * len(ids), [])
        self._learn(chosen)

    def _may_be_best(self, text: str, logp: float, behind: float) -> bool:
        """Return whether a text whose log-probability is at most this may be the answer; `behind` is too little for most."""
        weights = self._inputs.calibration
        if text not in self._copies or weights is None or not weights.reorders:
            return logp > behind
        return self._most_chance(text, logp, weights) >= LEAST_CHANCE

    def _most_chance(self, text: str, logp: float, weights: Calibration) -> float:
        """Return about the most that the probability of a copy can be if its log-probability is at most this."""
        others = [replace(copy, logps=(-math.inf,)) for copy in self._copies.values() if copy.text != text]
        (copy,) = self.describer.described([self._copies[text]])
        likeliest = replace(copy, logps=(logp, *[0.0] * (len(self._inputs.ids_of(text)) - 1)))
        return calibration.probability(rank.features(likeliest, [likeliest, *others]), weights)


MOST_MARGIN = 5.0  # nats
RIVAL_CHARS = 60  # that a copy has in common with the text before the hole, so that a draft with another text is not sure


@dataclass(frozen=True, slots=True)
class FirstDraft:
    """The first draft with the log-probabilities that drafting computed.

    It is `margin` nats likelier than the start of any branch, and it `is_sure` if nothing is likely to be better.
    """

    proposal: Proposal
    margin: float
    is_sure: bool


class Generation(generation.Generation):
    """The answer of one hole."""

    inputs: CausalInputs
    scorer: Scorer
    first: FirstDraft | None = None
    """The first draft once it is finished."""

    def begin(self) -> Work:
        prompt, passes = self.inputs.prompt, self.inputs.loaded.passes
        kv = yield from self.encoded(but_last=True)
        left = None
        if prompt.follow and prompt.n_left:
            left = Tree(passes, crop(kv, prompt.n_left), prompt.ids[prompt.n_left - 1], buffers=passes.buffers)
        self.scorer = Scorer(self.inputs, self.tree, left, self.timing.pace)

    @property
    def is_answered(self) -> bool:
        """Whether the first draft is the answer: one is asked for, and nothing that may still come is likely to be better.

        A rival is code that agrees long with the text before the hole, goes on in another way, and ends as the hole does.
        """
        first = self.first
        if first is None or not (first.is_sure and self.inputs.wants_first):
            return False
        copies = [each for each in self.proposals if each.row == "copy" and each.left >= RIVAL_CHARS and each.right]
        return all(each.text == first.proposal.text for each in copies)

    def score_ms(self, n_positions: int = 0) -> float:
        """Return the expected milliseconds of what must follow the drafts; a first draft that is the answer needs no score."""
        return 0.0 if self.inputs.wants_first else super().score_ms(n_positions)

    def ranked(self) -> Generator[None, None, tuple[Candidate, ...]]:
        """Score the proposals, and return them as candidates, best first.

        If there is time, what follows the likeliest is read too. No unit ends there, so that a task that is overdue by then
        still has its scores.
        """
        if self.is_answered or not self.proposals:
            return self._early()
        yield  # a task that is overdue by now still has its first draft
        yield from self.score()
        n_positions = MOST_NEAR * len(self.inputs.prompt.follow)
        if self.timing.left_ms() >= (self.timing.pace.expected_ms("score", n_positions) or 0.0):
            self.proposals = self.scorer.read_on(self.proposals)
        return calibration.to_candidates(self.evidence(), self.inputs.calibration)

    def best_so_far(self) -> tuple[Candidate, ...]:
        """Return the candidates before the end: with their scores if there are any, otherwise the first draft first."""
        if self.is_scored:
            candidates = calibration.to_candidates(self.evidence(), self.inputs.calibration)
        else:
            candidates = self._early()
            known = [candidate.texts for candidate in candidates]
            candidates += tuple(candidate for candidate in super().best_so_far() if candidate.texts not in known)
        return tuple(replace(candidate, finished=False) for candidate in candidates)

    def first_evidence(self) -> Evidence | None:
        """Return the evidence for the first draft by its own tokens; None before it is finished."""
        first = self.first
        if first is None:
            return None
        own = first.proposal
        copies = [replace(each, logps=own.logps) for each in self.proposals if (each.text, each.row) == (own.text, "copy")]
        (evidence, *_) = self.evidence(self.scorer.describer.described([own, *copies]))
        margin = max(-MOST_MARGIN, min(MOST_MARGIN, first.margin))
        return replace(evidence, features={**evidence.features, "margin": margin, "sure": float(first.is_sure)})

    def _early(self) -> tuple[Candidate, ...]:
        """Return the first draft with the probability that its own tokens give it; nothing if that was never measured."""
        evidence, weights = self.first_evidence(), self.inputs.loaded.profile.draft_calibration
        return calibration.to_candidates([evidence], weights) if evidence is not None and weights is not None else ()


# --- What the model writes from left to right, its branches, and their shorter cuts


MOST_NEEDED = 3  # more drafts, to bind the names that the code after the hole needs
MOST_CUTS = 3  # of one draft, besides its end
HOPELESS = -5.0  # nats: a draft below that is right with a probability of less than HOPELESS_BELOW
HOPELESS_BELOW = 0.2
LEAST_HEAD = math.log(0.02)  # where the suffix's first token is less likely, an answer hardly ever ends


def propose_drafts(generation: Generation) -> Work:
    """Propose the drafts that are complete before the time runs out, and their branches.

    At the end, another draft than the first may be the likeliest.
    """
    inputs, timing = generation.inputs, generation.timing
    if timing.left_ms(generation.score_ms()) <= 0:
        return
    written: list[CausalDraft] = []
    # The first draft stays visible until the answer replaces it.
    generation.live = Live(
        lambda: (inputs.of_draft(inputs.text_of(written[0].ids)),) if written else (),
        lambda: _proposals(inputs, [draft for draft in written if draft.is_finished]) if is_open else [],
    )
    is_open = True  # what is written is not in the proposals yet
    inputs.remember(written)
    texts, start = list[str](), list[int]()
    for n_more in range(MOST_NEEDED, -1, -1):
        found, is_late = yield from drafts.finished(_drafts(generation, start), 1, timing, generation.score_ms, written)
        if is_late and inputs.bounds.takes_lines:
            found += [lines for draft in written if not draft.is_finished and (lines := _whole_lines(inputs, draft))]
        is_open, proposals = False, _proposals(inputs, found)
        written[:] = found or written
        generation.proposals += proposals
        texts = [each.text for each in proposals] or texts
        last, start = start, _needed_start(inputs, texts) if not is_late and n_more else []
        if not start or start == last:
            return


def _whole_lines(inputs: CausalInputs, draft: CausalDraft) -> CausalDraft | None:
    """Return the lines of a draft that it has written to their end; None without any."""
    has_end = [b"\n" in inputs.vocabulary.pieces[token] for token in draft.ids]
    end = next((n for n in reversed(range(1, len(draft.ids))) if has_end[n] and inputs.text_of(draft.ids[:n]).strip()), None)
    return CausalDraft(draft.ids[:end], draft.logps[:end], is_finished=True) if end is not None else None


def _needed_start(inputs: CausalInputs, texts: Sequence[str]) -> list[int]:
    """Return the start of a draft that binds one more name which the code after it needs; empty if a text binds all of them.

    A block goes on with the text that binds most of them.
    """
    if not inputs.needed:
        return []
    missing = {text: scope.missing(inputs.needed, text) for text in texts or ("",)}
    best, is_block = min(missing, key=lambda text: len(missing[text])), inputs.hole.extent == "block"
    if not missing[best] or (not is_block and len(missing[best]) < len(inputs.needed)):
        return []
    request, text = inputs.request, best if is_block else ""
    start = text + scope.next_start(request.prefix, text, request.suffix, missing[best][0], request.language)
    ids = inputs.ids_of(start)
    return ids if len(ids) > 1 else []


def _drafts(generation: Generation, start: Sequence[int] = ()) -> Drafting:
    """Return a draft that starts with the likeliest token, and its branches, as `drafts.drafts` does.

    With `start`, there is one draft, which begins with it.
    """
    inputs, prompt, loaded = generation.inputs, generation.inputs.prompt, generation.inputs.loaded
    profile, vocabulary, is_block = loaded.profile, loaded.vocabulary, generation.inputs.hole.extent == "block"
    n_branches = 0 if start or inputs.wants_first else profile.branches

    def is_incomplete(ids: Sequence[int]) -> bool:
        return bool(scope.missing(inputs.needed, inputs.text_of(ids)))

    def is_enough(draft: CausalDraft, margin: float) -> bool:
        generation.first = generation.first or _first(inputs, draft, margin)
        return generation.is_answered

    is_unwanted = inputs.wants_first and inputs.request.budget.least >= HOPELESS_BELOW
    settings = DraftSettings(
        rows=1 if start or not is_block else profile.block_rows,
        most=min(LONGEST_DRAFT, inputs.most_tokens),
        file=None if start else generation.scorer.file,
        alone=not start,
        allowed=inputs.next_tokens,
        banned=inputs.banned,
        stops=inputs.ends | inputs.line_ends,
        is_over=_end_of(inputs),
        is_incomplete=is_incomplete if inputs.needed and is_block else None,
        is_enough=None if start else is_enough,
        others=[[*ids, *after] for each in generation.proposals for ids, after in [inputs.reading(each.text)]],
        going_on=vocabulary.starting_with(b"\n"),
        end=prompt.end,
        head=prompt.tail[0] if prompt.tail and prompt.end is None else None,
        ahead=inputs.ahead,
        start=start,
        branches=n_branches,
        # Of blocks, the likeliest are the shortest, so a choice of several has the others too.
        most_behind=MOST_BEHIND if n_branches and (not is_block or inputs.wants_likeliest) else math.inf,
        # Beside a copy it is written on: without a rival, the copy would look sure.
        least_joint=HOPELESS if is_unwanted and not generation.proposals else -math.inf,
    )
    return drafts.drafts(loaded.passes, generation.tree, settings)


def _proposals(inputs: CausalInputs, written: Sequence[CausalDraft]) -> list[Proposal]:
    proposals: dict[str, Proposal] = {}
    ends_line = inputs.request.suffix[:1] in ("", "\n", "\r")
    for draft in written:
        text = inputs.draft_text(draft.ids, draft.stop)
        if inputs.bounds.takes_lines and ends_line:  # it stopped at a line of the block around it
            text = text.rstrip()
        for each in (text, *_shorter(inputs, draft, text)):
            if not inputs.says_nothing(each):
                proposals.setdefault(each, Proposal(each, "causal"))
    return list(proposals.values())


def _first(inputs: CausalInputs, draft: CausalDraft, margin: float) -> FirstDraft | None:
    """Return the finished first draft by the log-probabilities that drafting computed; None if it says nothing."""
    proposal = next(iter(_proposals(inputs, [draft])), None)
    if proposal is None:
        return None
    logps, after = tuple(draft.logps), draft.joint - sum(draft.logps)
    proposal = replace(proposal, logps=logps, model_logps=logps, suffix_mean=after, suffix_sum=after)
    profile = inputs.loaded.profile
    is_likely = draft.joint >= profile.sure_logp or margin >= profile.sure_margin
    return FirstDraft(proposal, margin, is_sure=is_likely and draft.stop is not None)


def _end_of(inputs: CausalInputs) -> Callable[[Sequence[int]], bool]:
    """Return the function that tells whether a draft's last token ends it, for a draft that writes typed text again."""
    n_typed, bytes_of = len(inputs.prompt.heal), inputs.vocabulary.bytes_of

    def is_over(ids: Sequence[int]) -> bool:
        return ids[-1] in inputs.ends or inputs.bounds.is_over(bytes_of(ids)[n_typed:].decode("utf-8", "ignore"))

    return is_over


def _shorter(inputs: CausalInputs, draft: CausalDraft, text: str) -> Iterator[str]:
    """Yield the starts of a draft after which the suffix may come, for a model without a token that ends an answer.

    In a block, they end with a line. The likeliest come first, by the probability of the suffix's first token.
    """
    if not draft.heads:
        return
    lengths = [n for n in range(1, min(len(draft.heads), len(draft.ids) + 1)) if draft.heads[n] >= LEAST_HEAD]
    n_yielded = 0
    for n in sorted(lengths, key=lambda n: -draft.heads[n]):
        start = inputs.text_of(draft.ids[:n])
        is_whole = inputs.hole.extent != "block" or text.startswith(start + "\n")
        if start.strip() and start != text and is_whole and n_yielded < MOST_CUTS:
            n_yielded += 1
            yield start
