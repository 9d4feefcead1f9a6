"""What the answers of all local models do: encode the prompt, copy, score proposals, and make candidates of them.

Each is a function or a generator, whose items end its uninterruptible units. Knows proposals, trees, log-probabilities and the
time that is left. Knows nothing of how a model writes texts.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from dg_lsp.core import calibration
from dg_lsp.core.calibration import Calibration, Evidence
from dg_lsp.core.values import Candidate
from dg_lsp.engine.common import copies, rank
from dg_lsp.engine.common.inputs import RequestInputs
from dg_lsp.engine.common.pace import Pace, Timing
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.model.room import MORE, PrefixEncoder, Room
from dg_lsp.engine.model.tree import LEAST, Tree

MIDDLING = -1.5  # nats: the assumed log-probability of an unscored token
UNSCORED_ORDER = Calibration(0.0, {"mean": 1.0})  # by the sum, the shortest text would rank best
TOKEN_CHARS = 4  # about; for estimates alone
PREFILL_CHUNK = 128  # tokens encoded in one uninterruptible step; more at once take no less time for each


def encoded(
    inputs: RequestInputs, prefixes: PrefixEncoder, timing: Timing, *, but_last: bool = False
) -> Generator[None, None, tuple[Room, Tree]]:
    """Encode the prompt as far as the cache lacks it, chunk by chunk; return its room, and the tree of drafts in it.

    With `but_last`, the tree's first pass encodes the last token, and what is predicted after it.
    """
    prompt_ids = inputs.prompt.ids
    hidden = prefixes.cache.last_hidden(prompt_ids)
    ids = prompt_ids[:-1] if but_last and hidden is None and len(prompt_ids) > 1 else prompt_ids
    room = prefixes.room(ids, MORE)
    timing.prefix_tokens += len(prompt_ids)
    timing.reused_tokens += len(room.positions)
    while (n_missing := len(ids) - len(room.positions)) > 0:
        n_chunk = min(prefixes.at_once(PREFILL_CHUNK), n_missing)
        with timing.pace.measuring("prefill", n_chunk):
            prefixes.encode(ids, room, n_chunk)
        yield
    hidden = prefixes.cache.last_hidden(prompt_ids) if len(ids) == len(prompt_ids) else None
    if hidden is None:
        room.keep(len(prompt_ids) - 1)
    return room, Tree(room, prompt_ids[-1], hidden)


def copied(inputs: RequestInputs, *, say_something: bool) -> list[Proposal]:
    """Return the best copies for a single hole; with `say_something`, no blank ones."""
    hole, most, proposals = inputs.hole, inputs.loaded.profile.copy_rows, list[Proposal]()
    if len(inputs.request.holes) > 1 or not most:
        return proposals
    prefix, suffix, *related = inputs.sources
    takes_lines = inputs.bounds.takes_lines
    for copy in copies.find(prefix, suffix, takes_lines=takes_lines, indent=hole.indent, most=most, related=related):
        text = inputs.of_draft(copy.text)
        if not say_something or not inputs.says_nothing(text):
            proposals.append(Proposal(text, "copy", left=copy.left, right=copy.right))
    return proposals


# The natural log-probabilities of a text's tokens under the model alone, and of the tokens after it.
Logps = tuple[Sequence[float], Sequence[float]]


def read(inputs: RequestInputs, tree: Tree, pace: Pace, texts: Sequence[str]) -> dict[str, Logps]:
    """Return the log-probabilities of texts after the root of the tree, which encodes only what it lacks."""
    began, n_nodes = pace.clock(), tree.n_nodes
    readings = [inputs.reading(text) for text in texts]
    rows = tree.log_probabilities([[*ids, *after] for ids, after in readings])
    if (n_read := tree.n_nodes - n_nodes) > 0:
        pace.note("score", n_read, 1000 * (pace.clock() - began))
    pairs = zip(texts, readings, rows, strict=True)
    return {text: (row[: len(ids)], row[len(ids) :]) for text, (ids, _), row in pairs}


def scored(inputs: RequestInputs, proposals: Sequence[Proposal], logps_by_text: Mapping[str, Logps]) -> list[Proposal]:
    """Return the proposals with the log-probabilities of their tokens and of the text after them, and their features.

    What the file repeats is mixed in if the profile says so.
    """
    mixed = {text: tuple(_mixed(inputs, text, logps)) for text, (logps, _) in logps_by_text.items()}
    with_scores = list[Proposal]()
    for proposal in proposals:
        logps, after = logps_by_text[proposal.text]
        own = replace(proposal, logps=mixed[proposal.text], model_logps=tuple(logps), after=tuple(after))
        with_scores.append(own)
    return inputs.describer.described(with_scores)


def _mixed(inputs: RequestInputs, text: str, logps: Sequence[float]) -> Iterator[float]:
    """Yield the log-probability of each token of a text, with what the file repeats."""
    if inputs.mixed is None:
        yield from logps
        return
    ids, _ = inputs.reading(text)
    for index, token in enumerate(ids):
        guess = inputs.mixed.guess(ids[:index])
        chance = (1 - guess.weight) * math.exp(logps[index]) + guess.weight * guess.shares.get(token, 0.0)
        yield math.log(max(chance, LEAST))


def score_ms(timing: Timing, proposals: Sequence[Proposal], n_positions: int = 0) -> float:
    """Return the expected milliseconds to score the proposals and `n_positions` more tokens; 0 if unknown."""
    unscored = sum(len(proposal.text) // TOKEN_CHARS + 1 for proposal in proposals if not proposal.logps)
    return timing.pace.expected_ms("score", unscored + n_positions) or 0.0


def evidence(inputs: RequestInputs, proposals: Sequence[Proposal], n_steps: int = 0) -> list[Evidence]:
    """Return the evidence for proposals, whose candidates say that they took `n_steps` of denoising."""
    vocabulary, typed = inputs.vocabulary, inputs.typed
    items = rank.evidence(proposals, inputs.order)
    for index, (item, proposal) in enumerate(zip(items, proposals, strict=True)):
        # Each token's number of characters in the answer, without already typed characters; empty if unknown.
        lengths: tuple[tuple[int, ...], ...] = ()
        whole = vocabulary.lengths(vocabulary.encode(typed + proposal.text))
        if len(whole) == len(proposal.logps) and sum(whole) == len(typed) + len(proposal.text):
            ends = [max(end - len(typed), 0) for end in accumulate(whole)]
            lengths = (tuple(end - start for start, end in pairwise((0, *ends))),)
        chances = tuple(min(1.0, math.exp(logp)) for logp in proposal.logps)
        candidate = replace(item.candidate, confidences=(chances,), steps=n_steps, lengths=lengths)
        items[index] = replace(item, candidate=candidate)
    return items


def ranked(inputs: RequestInputs, proposals: Sequence[Proposal], n_steps: int = 0) -> tuple[Candidate, ...]:
    """Return scored proposals as candidates, best first."""
    return calibration.to_candidates(evidence(inputs, proposals, n_steps), inputs.calibration)


def unscored(inputs: RequestInputs, proposals: Sequence[Proposal]) -> tuple[Candidate, ...]:
    """Return proposals as unfinished candidates, ranked with an assumed log-probability for each token.

    Their confidence is not calibrated, because a calibration is fitted on scored candidates.
    """
    guessed = list[Proposal]()
    for proposal in proposals:
        logps = (MIDDLING,) * (len(proposal.text) // 4 + 1)
        guessed.append(replace(proposal, logps=logps, model_logps=logps, position=inputs.position))
    weights, items = inputs.calibration or UNSCORED_ORDER, rank.evidence(guessed, doubted=True)
    items = [replace(item, order=calibration.linear(item.features, weights)) for item in items]
    return unfinished(calibration.to_candidates(items, None))


def unfinished(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    return tuple(replace(candidate, finished=False) for candidate in candidates)
