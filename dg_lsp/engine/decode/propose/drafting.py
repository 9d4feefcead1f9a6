"""Propose drafts: copies from the file and from related texts, and what the encoder writes from left to right.

Several holes get no drafts. Knows fills, texts and drafts. Knows nothing of canvases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence

from dg_lsp.core import scope
from dg_lsp.engine.decode import layout
from dg_lsp.engine.decode.fill import FillInput
from dg_lsp.engine.decode.filling import Filling, Live, Work
from dg_lsp.engine.decode.propose import causal, copies
from dg_lsp.engine.decode.propose.causal import CausalDraft, DraftSettings
from dg_lsp.engine.decode.rank import Proposal
from dg_lsp.engine.decode.scoring import Scorer
from dg_lsp.engine.model.tree import Tree

MAX_CAUSAL_TOKENS = 128
AHEAD_WEIGHT = 0.9  # of the file's repetitions, where they only predict what to read ahead
MOST_NEEDED = 3  # more drafts, to bind the names that the code after the hole needs
MOST_CUTS = 3  # of one draft, besides its end
LEAST_HEAD = math.log(0.02)  # where the suffix's first token is less likely, an answer hardly ever ends
MOST_BEHIND = 3.0  # nats: a draft that is so much less likely than another of its hole is hardly ever right


def copies_of(filling: Filling) -> Work:
    """Propose the best copies for a single hole."""
    fill, hole = filling.fill, filling.fill.request.holes[0]
    if fill.n_holes > 1 or not fill.switches.copy or not fill.profile.copy_rows:
        return
    most, related = fill.profile.copy_rows, fill.related
    for copy in copies.find(fill.prefix, fill.suffix, block=hole.block, indent=hole.indent, most=most, related=related):
        text = fill.of_draft(copy.text)
        # The embedded model's probabilities were fitted with copies that say nothing.
        if not fill.sheet.heals_by_parts or not fill.says_nothing(text):
            filling.proposals.append(Proposal(text, "copy", left=copy.left, right=copy.right))
    yield from ()  # all of that is no unit of work for the queue to wait for


def propose(filling: Filling) -> Work:
    """Propose the causal drafts that are complete before the time runs out, and their branches.

    A search for the gap's length has written them already. At the end, another draft than the first may be the likeliest.
    """
    fill = filling.fill
    is_off = fill.n_holes > 1 or not fill.switches.causal or not fill.profile.causal_rows
    if is_off or filling.lengths is not None or not _pays(filling):
        return
    written: list[CausalDraft] = []
    are_proposals = False
    filling.scorer.prepare([proposal.text for proposal in filling.proposals])
    if filling.live is None:
        # The first draft stays visible until the answer replaces it.
        filling.live = Live(
            lambda: (fill.of_draft(layout.answer(fill.vocabulary, written[0].ids, fill.sheet.heal)),) if written else (),
            lambda: () if are_proposals else _results(fill, [draft for draft in written if draft.is_finished], filling.scorer),
        )
    pace, is_late = filling.resources.pace, None
    work = _drafts(fill, filling.tree, filling.scorer)
    texts, start, n_more = list[str](), list[int](), MOST_NEEDED
    while True:
        began = pace.clock()
        try:
            written = work.send(is_late)
        except StopIteration as stop:
            are_proposals = True
            results = _results(fill, stop.value, filling.scorer)
            filling.proposals += results
            texts = [each.text for each in results] or texts
            last, start = start, _needed_start(fill, texts) if not is_late and n_more else []
            if not start or start == last:
                return
            work, is_late, n_more = _drafts(fill, filling.tree, filling.scorer, start), None, n_more - 1
            continue
        pace.note("token", fill.profile.causal_rows, (pace.clock() - began) * 1000)
        is_late = filling.budget.left_ms(filling.score_ms()) <= 0
        if not is_late:
            yield


def _needed_start(fill: FillInput, texts: Sequence[str]) -> list[int]:
    """Return the start of a draft that binds one more name which the code after it needs; empty if a text binds all of them.

    A block goes on with the text that binds most of them.
    """
    if not fill.needed:
        return []
    missing = {text: scope.missing(fill.needed, text) for text in texts or ("",)}
    best = min(missing, key=lambda text: len(missing[text]))
    if not missing[best] or (not fill.is_block and len(missing[best]) < len(fill.needed)):
        return []
    request, text = fill.request, best if fill.is_block else ""
    start = text + scope.next_start(request.prefix, text, request.suffix, missing[best][0], request.language)
    ids = fill.vocabulary.encode(fill.heal_text + start)
    return ids if len(ids) > 1 else []


def _pays(filling: Filling) -> bool:
    """Return whether a causal draft pays: it takes no longer than the time left, or than the canvas took.

    Without a deadline it always pays, because answers must not depend on the clock.
    """
    fill, budget = filling.fill, filling.budget
    if not budget.is_limited:
        return True
    left_ms = budget.left_ms(filling.score_ms())
    token_ms = filling.resources.pace.expected_ms("token", fill.profile.causal_rows)
    if token_ms is None or filling.steps is None:
        return left_ms > 0
    lengths = [len(fill.vocabulary.encode(each.text)) for each in filling.proposals if each.row == "noise"]
    draft_ms = token_ms * (1 + max(lengths, default=max(fill.gap_lengths())))
    canvas_ms = max(filling.steps.denoiser.canvas.steps) * (filling.step_ms(filling.steps.width) or 0.0)
    return draft_ms <= min(left_ms, canvas_ms)


def _drafts(
    fill: FillInput, tree: Tree, scorer: Scorer, start: Sequence[int] = ()
) -> Generator[list[CausalDraft], bool | None, list[CausalDraft]]:
    """Return the drafts, as `causal.drafts` does. With `start`, there is one, which begins with it.

    Within a line there is one that starts with the likeliest token, because its branches start with other likely tokens too.
    In blocks, branches of the embedded model found hardly any right answer more; those of pretrained models do.
    """
    has_branches = fill.profile.branches > 0 and (not fill.is_block or fill.sheet.heals_by_parts) and not start
    has_end = fill.sheet.end is not None
    ahead = fill.file_model(AHEAD_WEIGHT) if scorer.file is None else None

    def is_incomplete(ids: Sequence[int]) -> bool:
        return bool(scope.missing(fill.needed, layout.answer(fill.vocabulary, ids, fill.sheet.heal)))

    settings = DraftSettings(
        rows=1 if has_branches else fill.profile.causal_rows,
        most=min(MAX_CAUSAL_TOKENS, max(fill.gap_lengths())),
        allowed=fill.next_tokens,
        banned=[token for token in fill.tokens.unwritable if token not in fill.ends],
        stops=fill.ends | fill.line_ends,
        is_over=_end_of(fill) if fill.sheet.heals_by_parts else None,
        is_incomplete=is_incomplete if fill.needed and fill.is_block else None,
        going_on=fill.vocabulary.starting_with(b"\n"),
        end=fill.sheet.end,
        head=fill.tail[0] if fill.tail and not has_end else None,
        file=scorer.file,
        ahead=ahead,
        alone=fill.profile.branches > 0,
        start=start,
        branches=fill.profile.branches if has_branches else 0,
        # Of blocks, the likeliest are the shortest.
        most_behind=MOST_BEHIND if has_branches and not fill.is_block else math.inf,
    )
    return causal.drafts(fill.passes, tree, settings)


def _results(fill: FillInput, written: Sequence[CausalDraft], scorer: Scorer) -> list[Proposal]:
    """Return the distinct texts of drafts. The scorer learns the log-probabilities that drafting computed."""
    results: dict[str, Proposal] = {}
    ends_line = fill.request.suffix[:1] in ("", "\n", "\r")
    for draft in written:
        has_ended, ids = draft.stop in fill.ends, draft.ids
        # A token with a line end may contain text before it.
        if draft.stop is not None and draft.stop in fill.line_ends and not has_ended and fill.profile.line_ends:
            ids = [*ids, draft.stop]
        text = layout.answer(fill.vocabulary, ids, fill.sheet.heal)
        if not has_ended or fill.sheet.end is None:
            text = fill.of_draft(text)
        if fill.sheet.heals_by_parts and fill.is_block and ends_line:  # it stopped at a line of the block around it
            text = text.rstrip()
        # Other texts are scored with what follows them.
        if draft.end is not None and (fill.sheet.right or not fill.sheet.heals_by_parts):
            scorer.learn(text, draft.ids, draft.logps, draft.end)
        for each in (text, *_shorter(fill, draft, text)):
            if fill.sheet.heals_by_parts and fill.says_nothing(each):
                continue
            results.setdefault(each, Proposal(each, "causal"))
    return list(results.values())


def _end_of(fill: FillInput) -> Callable[[Sequence[int]], bool]:
    """Return the function that tells whether a draft's last token ends it, for a draft that writes typed text again.

    Within a line it is a line end behind the typed text. A block ends before a line that is indented less than the hole.
    """
    n_typed, indent, bytes_of = len(fill.sheet.heal), fill.request.holes[0].indent, fill.vocabulary.bytes_of

    def is_over(ids: Sequence[int]) -> bool:
        if ids[-1] in fill.ends:
            return True
        raw = bytes_of(ids)
        own = raw[max(n_typed, len(raw) - len(bytes_of(ids[-1:]))) :]
        if not fill.is_block:
            return b"\n" in own or b"\r" in own
        *lines, last = raw[n_typed:].decode("utf-8", "ignore").split("\n")
        return bool(lines and own.strip() and last.strip() and not last.startswith(indent))

    return is_over


def _shorter(fill: FillInput, draft: CausalDraft, text: str) -> Iterator[str]:
    """Yield the starts of a draft after which the suffix may come, for a model without a token that ends an answer.

    In a block, they end with a line. The likeliest come first, by the probability of the suffix's first token.
    """
    if not draft.heads or not fill.sheet.heals_by_parts:
        return
    lengths = [n for n in range(1, min(len(draft.heads), len(draft.ids) + 1)) if draft.heads[n] >= LEAST_HEAD]
    n_yielded = 0
    for n in sorted(lengths, key=lambda n: -draft.heads[n]):
        start = layout.answer(fill.vocabulary, draft.ids[:n], fill.sheet.heal)
        is_whole = not fill.is_block or text.startswith(start + "\n")
        if start.strip() and start != text and is_whole and n_yielded < MOST_CUTS:
            n_yielded += 1
            yield start
