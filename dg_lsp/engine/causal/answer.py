"""One answer of a causal model, from its request to its candidates: `answer` reads from the top to the bottom.

    encode the prompt -> copies -> a draft, its branches, and drafts that begin with a needed name
    -> the first draft, if nothing can be better
    -> otherwise the scores of all texts, in the tree of drafts -> what follows the likeliest -> candidates

A text is scored with what follows it: after all that the model read, and after the left side alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dg_lsp.core import calibration, scope
from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Candidate
from dg_lsp.engine.causal.layout import CausalInputs
from dg_lsp.engine.common import answering, drafts, rank
from dg_lsp.engine.common.answering import MIDDLING, Logps, unfinished
from dg_lsp.engine.common.drafts import LONGEST_DRAFT, MOST_BEHIND, CausalDraft, DraftSettings
from dg_lsp.engine.common.pace import Pace, Timing
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.common.task import Answering, Progress
from dg_lsp.engine.model.room import PrefixEncoder, Room
from dg_lsp.engine.model.tree import Tree


def answer(inputs: CausalInputs, prefixes: PrefixEncoder, timing: Timing) -> Answering:
    """Answer a request with one hole. What a later request can use stays in the cache, wherever it ends."""
    prompt = inputs.prompt
    room, tree = yield from answering.encoded(inputs, prefixes, timing, but_last=True)
    try:
        timing.switch("draft")
        so_far = SoFar(inputs, answering.copied(inputs, say_something=True))
        yield from _write(so_far, tree, timing)
        timing.switch("score")
        if so_far.is_answered or not so_far.proposals:
            return so_far.early()
        yield None  # a task that is overdue by now still has its first draft
        so_far.proposals[:] = _scored(inputs, tree, timing.pace, so_far.proposals)
        yield so_far.progress(lambda: unfinished(answering.ranked(inputs, so_far.proposals)))
    finally:
        prefixes.keep(prompt.ids, tree.root)
    # No unit ends after reading on, so that a task that is overdue by then still has its scores.
    n_positions = MOST_NEAR * len(prompt.follow)
    if timing.left_ms() >= (timing.pace.expected_ms("score", n_positions) or 0.0):
        so_far.proposals[:] = _read_on(inputs, room, timing.pace, so_far.proposals)
    return answering.ranked(inputs, so_far.proposals)


MOST_MARGIN = 5.0  # nats
RIVAL_CHARS = 60  # that a copy has in common with the text before the hole, so that a draft with another text is not sure


@dataclass(slots=True)
class SoFar:
    """What an answer is made of: its proposals, the drafts that are being written, and the first draft once it is finished."""

    inputs: CausalInputs
    proposals: list[Proposal]
    written: list[CausalDraft] = field(default_factory=list)
    first: Proposal | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the first draft is the answer: one is asked for, and nothing that may still come is likely to be better.

        A rival is code that agrees long with the text before the hole, goes on in another way, and ends as the hole does.
        """
        first = self.first
        if first is None or not (first.is_sure and self.inputs.wants_first):
            return False
        copies = [each for each in self.proposals if each.row == "copy" and each.left >= RIVAL_CHARS and each.right]
        return all(each.text == first.text for each in copies)

    def early(self) -> tuple[Candidate, ...]:
        """Return the first draft with the probability that its own tokens give it; nothing if that was never measured."""
        weights = self.inputs.loaded.profile.draft_calibration
        if self.first is None or weights is None:
            return ()
        return calibration.to_candidates([first_evidence(self.inputs, self.first, self.proposals)], weights)

    def drafted(self) -> tuple[Candidate, ...]:
        """Return the candidates before any text has a score: the first draft, then the others as far as they are finished."""
        early = self.early()
        known = [candidate.texts for candidate in early]
        finished = _proposals(self.inputs, [draft for draft in self.written if draft.is_finished])
        texts = {proposal.text for proposal in self.proposals if proposal.row == "causal"}
        new = [proposal for proposal in finished if proposal.text not in texts]
        others = answering.unscored(self.inputs, [*self.proposals, *new])
        return (*unfinished(early), *(candidate for candidate in others if candidate.texts not in known))

    def texts(self) -> tuple[str, ...]:
        """Return the text of the first draft, or else of the first proposal. It stays until the answer replaces it."""
        if self.written:
            return (self.inputs.of_draft(self.inputs.text_of(self.written[0].ids)),)
        return tuple(proposal.text for proposal in self.proposals[:1])

    def progress(self, candidates: Callable[[], tuple[Candidate, ...]]) -> Progress:
        return Progress(self.texts, candidates, self.proposals)


def first_evidence(inputs: CausalInputs, own: Proposal, proposals: Sequence[Proposal]) -> Evidence:
    """Return the evidence for the first draft by its own tokens."""
    copies = [replace(each, logps=own.logps) for each in proposals if (each.text, each.row) == (own.text, "copy")]
    (evidence, *_) = answering.evidence(inputs, inputs.describer.described([own, *copies]))
    margin = max(-MOST_MARGIN, min(MOST_MARGIN, own.ahead))
    return replace(evidence, features={**evidence.features, "margin": margin, "sure": float(own.is_sure)})


# --- Scores


MOST_NEAR, NEAR = 3, 3.0  # candidates that are read on: so many, at most so many nats behind the best
FOLLOW_WEIGHT = 0.75  # of the log-probability of what follows an answer, compared with the answer's own
FIRST_TOKENS = 8  # of a long text: they tell whether the rest is worth reading
LEAST_CHANCE = 0.15  # of an answer that is worth scoring


def _scored(inputs: CausalInputs, tree: Tree, pace: Pace, proposals: Sequence[Proposal]) -> list[Proposal]:
    """Return the proposals with the log-probabilities of their texts and of what follows them, as far as these matter.

    If only the likeliest answer is wanted, a text that is behind it in any case is left out: it counts as if its unknown
    tokens were middling. A calibration may prefer a copy that is behind; that is left out if it will hardly have
    `LEAST_CHANCE`. Of a long text, the first tokens are read before that is decided.
    """
    texts = list(dict.fromkeys(each.text for each in proposals))
    readings = [inputs.reading(text) for text in texts]
    rows = [[*ids, *after] for ids, after in readings]
    long = [row[:FIRST_TOKENS] for row in rows if tree.bound(row).n_unknown > 2 * FIRST_TOKENS]
    if inputs.wants_likeliest and long:
        with pace.measuring("score", FIRST_TOKENS * len(long)):
            tree.log_probabilities(long)
    bounds = [tree.bound(row) for row in rows]
    behind = max((bound.logp for bound in bounds if not bound.n_unknown), default=-math.inf) - NEAR
    guessed, chosen = dict[str, Logps](), list[str]()
    for text, (ids, _), bound in sorted(zip(texts, readings, bounds, strict=True), key=lambda row: row[2].logp):
        if not (bound.n_unknown and inputs.wants_likeliest) or _may_be_best(inputs, text, bound.logp, behind, proposals):
            chosen.append(text)
        else:
            guess = (bound.logp + MIDDLING * bound.n_unknown) / max(len(ids), 1)
            guessed[text] = [guess] * len(ids), ()
    return answering.scored(inputs, proposals, guessed | answering.read(inputs, tree, pace, chosen))


def _may_be_best(inputs: CausalInputs, text: str, logp: float, behind: float, proposals: Sequence[Proposal]) -> bool:
    """Return whether a text may be the answer if its log-probability is at most this; `behind` is too little for most."""
    copies, weights = {each.text: each for each in proposals if each.row == "copy"}, inputs.calibration
    if text not in copies or weights is None or not weights.reorders:
        return logp > behind
    # About the most that its probability can be.
    others = [replace(copy, logps=(-math.inf,)) for copy in copies.values() if copy.text != text]
    (copy,) = inputs.describer.described([copies[text]])
    likeliest = replace(copy, logps=(logp, *[0.0] * (len(inputs.ids_of(text)) - 1)))
    return calibration.probability(rank.features(likeliest, [likeliest, *others]), weights) >= LEAST_CHANCE


def _read_on(inputs: CausalInputs, room: Room, pace: Pace, proposals: Sequence[Proposal]) -> list[Proposal]:
    """Return the scored proposals with `suffix_margin`: how likely the suffix is after the left side and the likeliest.

    The left side is all that the `room` keeps. A small model that has read the suffix before it writes hardly
    uses it to choose between answers. Where the suffix comes after an answer, the model says better how well both fit.
    """
    prompt = inputs.prompt
    orders: dict[str, float] = {}
    for proposal in proposals:
        order = calibration.linear({"joint": proposal.joint_logp, **proposal.of_text}, rank.ORDER)
        orders[proposal.text] = max(order, orders.get(proposal.text, -math.inf))
    best = max(orders.values(), default=0.0)
    near = sorted((text for text in orders if orders[text] >= best - NEAR), key=lambda text: -orders[text])[:MOST_NEAR]
    if not prompt.n_left or not prompt.follow or len(near) < 2:
        return list(proposals)
    room.keep(prompt.n_left - 1)
    tree = Tree(room, prompt.ids[prompt.n_left - 1])
    # The last token may end inside a character.
    follow, typed = inputs.vocabulary.decode(prompt.follow).rstrip("\ufffd"), prompt.typed
    parts = [inputs.joined(text, follow) for text in near]
    with pace.measuring("score", len(typed) + sum(len(ids) + len(after) for ids, after in parts)):
        rows = tree.log_probabilities(
            [[*typed, *ids, *after] for ids, after in parts], [len(typed) + len(ids) for ids, _ in parts]
        )
    found = {text: FOLLOW_WEIGHT * sum(row) for text, row in zip(near, rows, strict=True)}
    most, least = max(found.values()), min(found.values())
    return [replace(proposal, suffix_margin=found.get(proposal.text, least) - most) for proposal in proposals]


# --- What the model writes from left to right, its branches, and their shorter cuts


MOST_NEEDED = 3  # more drafts, to bind the names that the code after the hole needs
MOST_CUTS = 3  # of one draft, besides its end
HOPELESS = -5.0  # nats: a draft below that is right with a probability of less than HOPELESS_BELOW
HOPELESS_BELOW = 0.2
LEAST_HEAD = math.log(0.02)  # where the suffix's first token is less likely, an answer hardly ever ends


def _write(so_far: SoFar, tree: Tree, timing: Timing) -> Generator[Progress, None, None]:
    """Propose the drafts that are complete before the time runs out, and their branches.

    At the end, another draft than the first may be the likeliest.
    """
    inputs, proposals = so_far.inputs, so_far.proposals

    def score_ms() -> float:
        """Return the expected milliseconds of what must follow; a first draft that is the answer needs no score."""
        return 0.0 if inputs.wants_first else answering.score_ms(timing, proposals)

    if timing.left_ms(score_ms()) <= 0:
        return
    inputs.remember(so_far.written)
    texts, start = list[str](), list[int]()
    for n_more in range(MOST_NEEDED, -1, -1):
        work = drafts.drafts(tree, _settings(so_far, start))
        found, is_late = yield from drafts.finished(work, timing, score_ms, so_far.written, so_far.progress(so_far.drafted))
        if is_late and inputs.bounds.takes_lines:
            found += [lines for draft in so_far.written if not draft.is_finished and (lines := _whole_lines(inputs, draft))]
        written = _proposals(inputs, found)
        so_far.written[:] = found or so_far.written
        proposals += written
        texts = [each.text for each in written] or texts
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


def _settings(so_far: SoFar, start: Sequence[int] = ()) -> DraftSettings:
    """Return the settings for a draft that starts with the likeliest token, and for its branches.

    With `start`, there is one draft, which begins with it.
    """
    inputs, prompt, profile, proposals = so_far.inputs, so_far.inputs.prompt, so_far.inputs.loaded.profile, so_far.proposals
    is_block, n_branches = inputs.hole.extent == "block", 0 if start or inputs.wants_first else profile.branches

    def is_incomplete(ids: Sequence[int]) -> bool:
        return bool(scope.missing(inputs.needed, inputs.text_of(ids)))

    def is_enough(draft: CausalDraft, margin: float) -> bool:
        so_far.first = so_far.first or first_draft(inputs, draft, margin)
        return so_far.is_answered

    is_unwanted = inputs.wants_first and inputs.request.budget.least >= HOPELESS_BELOW
    return DraftSettings(
        rows=1 if start or not is_block else profile.block_rows,
        most=min(LONGEST_DRAFT, inputs.most_tokens),
        allowed=inputs.next_tokens,
        banned=inputs.banned,
        stops=inputs.ends | inputs.line_ends,
        is_over=_end_of(inputs),
        is_incomplete=is_incomplete if inputs.needed and is_block else None,
        is_enough=None if start else is_enough,
        file=None if start else inputs.mixed,
        alone=not start,
        others=[[*ids, *after] for each in proposals for ids, after in [inputs.reading(each.text)]],
        going_on=inputs.vocabulary.starting_with(b"\n"),
        end=prompt.end,
        head=prompt.tail[0] if prompt.tail and prompt.end is None else None,
        ahead=inputs.ahead,
        start=start,
        branches=n_branches,
        # Of blocks, the likeliest are the shortest, so a choice of several has the others too.
        most_behind=MOST_BEHIND if n_branches and (not is_block or inputs.wants_likeliest) else math.inf,
        # Beside a copy it is written on: without a rival, the copy would look sure.
        least_joint=HOPELESS if is_unwanted and not proposals else -math.inf,
    )


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


def first_draft(inputs: CausalInputs, draft: CausalDraft, margin: float) -> Proposal | None:
    """Return the finished first draft with the log-probabilities that drafting computed; None if it says nothing."""
    proposal = next(iter(_proposals(inputs, [draft])), None)
    if proposal is None:
        return None
    logps, profile = tuple(draft.logps), inputs.loaded.profile
    is_likely = draft.joint >= profile.sure_logp or margin >= profile.sure_margin
    proposal = replace(proposal, logps=logps, model_logps=logps, after=(draft.joint - sum(logps),))
    return replace(proposal, ahead=margin, is_sure=is_likely and draft.stop is not None)


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
