"""The next edit of a causal model: it rewrites the window around the cursor, and the window's own tokens predict the answer.

The first pass reads the whole window behind the prompt. It tells all tokens up to the first one that differs, so an answer that
changes nothing takes one pass. After that, what follows the last tokens in the window is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dg_lsp.core import edits
from dg_lsp.core.values import Candidate, InfillRequest, Ranked
from dg_lsp.engine.causal.layout import CausalProfile, CausalPrompt
from dg_lsp.engine.common import answering
from dg_lsp.engine.common.inputs import RequestInputs
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.common.pace import Timing
from dg_lsp.engine.common.task import Answering
from dg_lsp.engine.model.room import MORE, PrefixEncoder
from dg_lsp.engine.model.tree import ROOT, Tree

AHEAD = 16  # tokens that are predicted at a time, after the first difference
MATCH = 3  # tokens that agree with the window's, at most, where it predicts the next ones
MOST_TIMES, MOST_MORE = 2, 60  # an answer is given up when it is so many times as long as the window, and so many tokens longer


class EditInputs(RequestInputs):
    """A laid out question for the next edit: `copy` are the tokens of an answer that changes nothing, its end included."""

    prompt: CausalPrompt
    loaded: Loaded[Any, CausalProfile]

    def __init__(self, request: InfillRequest, loaded: Loaded[Any, CausalProfile]) -> None:
        """Lay the question out for a model whose vocabulary has the separator of the form."""
        encode, separator = loaded.vocabulary.encode, loaded.vocabulary.id(edits.SEPARATOR)
        assert request.question is not None
        assert separator is not None
        part = loaded.profile.edit_file or (edits.SHORT if loaded.device == "cpu" else edits.PUBLISHED)
        blocks = edits.blocks(request.path, request.question, part)
        # Each block is encoded alone, so a separator in the text of a file stays text.
        ids = tuple(token for block in blocks for token in (separator, *encode(block)))
        super().__init__(request, CausalPrompt(ids, (), b"", ()), loaded, None)
        self.asked = request.question
        self.copy = (*encode(self.asked.window.text.strip("\n") + "\n"), separator)

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end an answer. A model that was not trained for it may write another than the separator."""
        return frozenset(self.control)

    @property
    def most_tokens(self) -> int:
        return MOST_TIMES * len(self.copy) + MOST_MORE


@dataclass(slots=True)
class EditDraft:
    """The tokens of an answer so far, with their log-probabilities, and the node of the last one that was read."""

    inputs: EditInputs
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    node: int = ROOT

    @property
    def is_over(self) -> bool:
        return bool(self.ids) and self.ids[-1] in self.inputs.ends

    def ahead(self) -> Sequence[int]:
        """Return the tokens that the window predicts next: before the first difference all of it, as far as a room has slots.

        After it, those behind the place in the window that agrees best with the last tokens, and is nearest to where the answer
        is.
        """
        ids, copy = self.ids, self.inputs.copy
        if tuple(ids) == copy[: len(ids)]:
            return copy[len(ids) : len(ids) + MORE]
        for n in range(min(MATCH, len(ids)), 0, -1):
            last = tuple(ids[-n:])
            ends = [end for end in range(n, len(copy)) if copy[end - n : end] == last]
            if ends:
                at = min(ends, key=lambda end: abs(end - len(ids)))
                return copy[at : at + AHEAD]
        return ()

    def write(self, tree: Tree) -> None:
        """Read the predicted tokens in one pass, and write those that the model agrees with, and the one after them."""
        ahead = [token for token in self.ahead() if token not in self.inputs.ends]
        row = [*self.ids[-1:], *ahead]
        nodes = tree.grow([(self.node, row)])[0]
        nodes = nodes if self.ids else [ROOT, *nodes]
        logits = tree.logits(nodes)
        values, likeliest = logits.max(-1)
        logps = (values - logits.logsumexp(-1)).tolist()
        for node, token, logp, guess in zip(nodes, likeliest.tolist(), logps, [*ahead, None], strict=True):
            self.node = node
            self.ids.append(token)
            self.logps.append(logp)
            if token != guess:
                break

    def candidate(self) -> Candidate:
        """Return the written window, with the probability of each token; it is doubted if all of it is too unlikely.

        How likely it must be depends on whether its change repeats one of the last edits.
        """
        text = self.inputs.vocabulary.decode(self.ids[:-1]).replace(edits.CURSOR, "")
        profile, asked = self.inputs.loaded.profile, self.inputs.asked
        doubted = sum(self.logps) < (profile.edit_threshold if edits.repeats(asked, text) else profile.new_edit_threshold)
        chances = tuple(math.exp(min(logp, 0.0)) for logp in self.logps)
        return Candidate((text,), Ranked(0, doubted=doubted), (chances,), "causal")


def answer(inputs: EditInputs, prefixes: PrefixEncoder, timing: Timing) -> Answering:
    """Answer a question for the next edit with the written window; with nothing if it does not end."""
    _, tree = yield from answering.encoded(inputs, prefixes, timing, but_last=True)
    try:
        timing.switch("draft")
        written = EditDraft(inputs)
        while not written.is_over:
            if len(written.ids) > inputs.most_tokens:
                return ()
            written.write(tree)
            yield None
        return (written.candidate(),)
    finally:
        prefixes.keep(inputs.prompt.ids, tree.root)
