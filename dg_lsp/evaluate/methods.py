"""The methods that can fill a task: the whole engine, parts of it, and baselines without a model.

A method is data; `run` executes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from dg_lsp.core.values import n_common
from dg_lsp.engine.decode.propose import copies
from dg_lsp.evaluate.tasks import Task

SAME_RIGHT = 24  # how many characters after a match are compared at most; the same as for ranking drafts


@dataclass(frozen=True, slots=True)
class Method:
    """One way to fill a task.

    `without` names parts of the engine to switch off (`decode.Switches`), and `profile` replaces settings of the
    checkpoint's profile. `known_length` gives the canvas as many tokens as the answer has. A method without `suffix`
    does not see the text after the hole. `kinds` lists the kinds of task that it can fill; empty means all.
    """

    name: str
    by: Literal["model", "copy", "told copy", "answer", "nothing"] = "model"
    without: tuple[str, ...] = ()
    profile: tuple[tuple[str, int], ...] = ()
    steps: int = 0
    known_length: bool = False
    suffix: bool = True
    kinds: tuple[str, ...] = ()


FULL = Method("full")
COPY = Method("copy", "copy")
# The kinds of task whose answer ends in mid-line, where only its length says where to stop.
SPANS = ("span", "RandomSpanInfilling", "RandomSpanInfillingLight")
TOLD_COPY = Method("copy, told the length", "told copy", kinds=SPANS)
# A profile may switch off rows of noise where there are drafts, so a method that changes the canvas adds one.
WITH_NOISE = (("line_noise_rows", 1), ("block_noise_rows", 1))
AR = Method(
    "ar", without=("copy", "file", "noise", "scorer"), profile=(("causal_rows", 1), ("branches", 0), ("refine_steps", 0))
)
ORACLE_LENGTH = Method("oracle length", without=("delete",), profile=WITH_NOISE, known_length=True)
NO_SUFFIX = Method("no suffix", without=("held_suffix",), suffix=False)

BASELINES: dict[str, tuple[Method, ...]] = {
    "copy": (COPY, TOLD_COPY),
    "ar": (AR,),
    "answer": (Method("answer", "answer"),),
    "empty": (Method("empty", "nothing"),),
}

ABLATION: tuple[Method, ...] = (
    FULL,
    *(Method(f"{steps} steps", profile=WITH_NOISE, steps=steps) for steps in (4, 8, 12, 16, 24)),
    Method("without held suffix", without=("held_suffix",), profile=WITH_NOISE),
    Method("without the canvas adapter", profile=(("right_tokens", 0),)),
    Method("without self-conditioning", without=("conditioning",), profile=WITH_NOISE),
    Method("without the copy row", without=("copy",)),
    Method("without the file's statistics", without=("file",)),
    Method("without delete tokens", without=("delete",), profile=WITH_NOISE),
    Method("without needed names", without=("needed",)),
    Method("without scorer", without=("scorer",)),
    Method("without causal rows", without=("causal",)),
    Method("without noise rows", without=("noise",)),
    Method("with noise rows", profile=WITH_NOISE),
    Method("copy rows alone", without=("causal", "noise")),
    Method("causal rows alone", without=("copy", "noise")),
    Method("noise rows alone", without=("copy", "causal")),
)


def with_steps(method: Method, steps: int) -> Method:
    """Return the method with this number of steps, if it uses the model and does not set its own."""
    return replace(method, steps=steps) if method.by == "model" and not method.steps else method


def copied(task: Task) -> str:
    """Return the text after the best match in the file itself, or ""."""
    hole = task.hole
    best = copies.find(task.prompt, task.suffix, block=hole.block, indent=hole.indent, most=1)
    return best[0].text if best else ""


def copied_to_length(task: Task) -> str:
    """Return as many characters as the answer has, from after the best match; "" if there is no match.

    The best match has the most characters in common with the prompt before it and the suffix after it.
    """
    length, best, text = len(task.answer), (0, 0), ""
    tail = task.prompt[-copies.MIN_MATCH :]
    if len(tail) < copies.MIN_MATCH:
        return ""
    for side in (task.prompt, task.suffix):
        at = side.find(tail)
        while at >= 0:
            start, end = at + len(tail), at + len(tail) + length
            if end <= len(side):
                left = n_common(side[max(start - copies.MAX_MATCH, 0) : start][::-1], task.prompt[: -copies.MAX_MATCH - 1 : -1])
                right = n_common(side[end : end + SAME_RIGHT], task.suffix)
                if (left + right, left) >= best:
                    best, text = (left + right, left), side[start:end]
            at = side.find(tail, at + 1)
    return text
