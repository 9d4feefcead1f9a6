"""Propose drafts: what the model writes from left to right, its branches, and their shorter cuts. Knows texts and drafts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dg_lsp.core import scope
from dg_lsp.engine.causal.generation import FirstDraft, Generation
from dg_lsp.engine.causal.layout import CausalInputs
from dg_lsp.engine.common import drafts
from dg_lsp.engine.common.drafts import LONGEST_DRAFT, MOST_BEHIND, CausalDraft, Drafting, DraftSettings
from dg_lsp.engine.common.generation import Live, Work
from dg_lsp.engine.common.rank import Proposal

MOST_NEEDED = 3  # more drafts, to bind the names that the code after the hole needs
MOST_CUTS = 3  # of one draft, besides its end
HOPELESS = -5.0  # nats: a draft below that is hardly ever right, and not shown while the user types
LEAST_HEAD = math.log(0.02)  # where the suffix's first token is less likely, an answer hardly ever ends


def propose(generation: Generation) -> Work:
    """Propose the drafts that are complete before the time runs out, and their branches.

    At the end, another draft than the first may be the likeliest.
    """
    inputs, timing = generation.inputs, generation.timing
    if timing.budget.left_ms(generation.score_ms()) <= 0:
        return
    written: list[CausalDraft] = []
    # The first draft stays visible until the answer replaces it.
    generation.live = Live(
        lambda: (inputs.of_draft(inputs.text_of(written[0].ids)),) if written else (),
        lambda: _proposals(inputs, [draft for draft in written if draft.is_finished]) if is_open else [],
    )
    is_open = True  # what is written is not in the proposals yet
    texts, start = list[str](), list[int]()
    for n_more in range(MOST_NEEDED, -1, -1):
        found, is_late = yield from drafts.finished(_drafts(generation, start), 1, timing, generation.score_ms, written)
        if is_late and inputs.bounds.takes_lines:
            found += [lines for draft in written if not draft.is_finished and (lines := _whole_lines(inputs, draft))]
        is_open, proposals = False, _proposals(inputs, found)
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

    settings = DraftSettings(
        rows=1,
        most=min(LONGEST_DRAFT, inputs.most_tokens),
        allowed=inputs.next_tokens,
        banned=inputs.banned,
        stops=inputs.ends | inputs.line_ends,
        is_over=_end_of(inputs),
        is_incomplete=is_incomplete if inputs.needed and is_block else None,
        is_enough=None if start else is_enough,
        others=[[*ids, *after] for each in generation.proposals for ids, after in generation.scorer.readings(each.text)],
        going_on=vocabulary.starting_with(b"\n"),
        end=prompt.end,
        head=prompt.tail[0] if prompt.tail and prompt.end is None else None,
        ahead=inputs.ahead,
        start=start,
        branches=n_branches,
        # Of blocks, the likeliest are the shortest, so a choice of several has the others too.
        most_behind=MOST_BEHIND if n_branches and (not is_block or inputs.wants_likeliest) else math.inf,
        least_joint=HOPELESS if inputs.wants_first and generation.timing.budget.is_limited else -math.inf,
    )
    return drafts.drafts(loaded.passes, generation.tree, settings)


def _proposals(inputs: CausalInputs, written: Sequence[CausalDraft]) -> list[Proposal]:
    """Return the distinct texts of drafts."""
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
