"""What can be asked to fill a task: the whole engine, parts of it, and baselines without a model.

A method is data; `run` carries it out. Knows names of switches. Knows nothing of the engine behind them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from dg_lsp.engine import drafts
from dg_lsp.evaluate.tasks import Task

SAME_RIGHT = 24  # how many characters behind a match count at most; as drafts are ranked


@dataclass(frozen=True, slots=True)
class Method:
    """One way to fill a task.

    `without` names parts of the engine that are switched off (`engine.local.Switches`), `profile` settings of the
    checkpoint's profile that are replaced. `told_length` gives the canvas as many tokens as the answer has. A method
    without `suffix` hears nothing of the text behind the hole. `kinds` are those it can fill; empty: all.
    """

    name: str
    by: Literal["model", "copy", "told copy", "answer", "nothing"] = "model"
    without: tuple[str, ...] = ()
    profile: tuple[tuple[str, int], ...] = ()
    steps: int = 0
    told_length: bool = False
    suffix: bool = True
    kinds: tuple[str, ...] = ()


FULL = Method("full")
COPY = Method("copy", "copy")
# Only where a length says where to stop.
SPANS = ("span", "RandomSpanInfilling", "RandomSpanInfillingLight")
TOLD_COPY = Method("copy, told the length", "told copy", kinds=SPANS)
AR = Method("ar", without=("copy", "file", "noise", "scorer"), profile=(("causal_rows", 1), ("refine_steps", 0)))
ORACLE_LENGTH = Method("oracle length", without=("delete",), told_length=True)
NO_SUFFIX = Method("no suffix", without=("held_suffix",), suffix=False)

BASELINES: dict[str, tuple[Method, ...]] = {
    "copy": (COPY, TOLD_COPY),
    "ar": (AR,),
    "answer": (Method("answer", "answer"),),
    "empty": (Method("empty", "nothing"),),
}

ABLATION: tuple[Method, ...] = (
    FULL,
    *(Method(f"{steps} steps", steps=steps) for steps in (4, 8, 12, 16, 24)),
    Method("without held suffix", without=("held_suffix",)),
    Method("without self-conditioning", without=("conditioning",)),
    Method("without the copy row", without=("copy",)),
    Method("without the file's statistics", without=("file",)),
    Method("without delete tokens", without=("delete",)),
    Method("without scorer", without=("scorer",)),
    Method("without causal rows", without=("causal",)),
    Method("without noise rows", without=("noise",)),
    Method("copy rows alone", without=("causal", "noise")),
    Method("causal rows alone", without=("copy", "noise")),
    Method("noise rows alone", without=("copy", "causal")),
)


def with_steps(method: Method, steps: int) -> Method:
    """Return the method with that many steps, where it takes any and states none itself."""
    return replace(method, steps=steps) if method.by == "model" and not method.steps else method


def copied(task: Task) -> str:
    """Return the best match that the file itself holds; "" where there is none."""
    hole = task.hole
    found = drafts.copies(task.prompt, task.suffix, block=hole.block, indent=hole.indent, most=1)
    return found[0].text if found else ""


def copied_to_length(task: Task) -> str:
    """Return as many characters as the answer has from behind the best match; "" where there is none.

    The match agrees with the prompt before it and with the suffix behind it, in as many characters as can be.
    """
    length, best, text = len(task.answer), (0, 0), ""
    tail = task.prompt[-drafts.MIN_MATCH :]
    if len(tail) < drafts.MIN_MATCH:
        return ""
    for side in (task.prompt, task.suffix):
        at = side.find(tail)
        while at >= 0:
            start, end = at + len(tail), at + len(tail) + length
            if end <= len(side):
                left = _agreement(side[:start][::-1], task.prompt[::-1], drafts.MAX_MATCH)
                right = _agreement(side[end : end + SAME_RIGHT], task.suffix, SAME_RIGHT)
                if (left + right, left) >= best:
                    best, text = (left + right, left), side[start:end]
            at = side.find(tail, at + 1)
    return text


def _agreement(one: str, other: str, most: int) -> int:
    length, bound = 0, min(len(one), len(other), most)
    while length < bound and one[length] == other[length]:
        length += 1
    return length
