"""A filler with prepared answers, and small tasks to fill."""

from __future__ import annotations

from dg_lsp.core.values import Calibrated, Candidate, InfillRequest
from dg_lsp.engine.common import task as engine_task
from dg_lsp.engine.common.task import Filler
from dg_lsp.evaluate.tasks import Task


class ScriptedFiller(Filler):
    """Fills every request with the prepared candidates, best first, in `steps` steps, and remembers the requests."""

    def __init__(self, *answers: str, steps: int = 3, chances: tuple[float, ...] = ()) -> None:
        """`chances` are the probabilities of each answer's tokens, of one character each."""
        self.requests: list[InfillRequest] = []
        self.answers, self.steps, self.chances = answers, steps, chances

    def start(self, request: InfillRequest) -> ScriptedTask:
        self.requests.append(request)
        return ScriptedTask(self)


class ScriptedTask(engine_task.Task):
    def __init__(self, filler: ScriptedFiller) -> None:
        self.filler, self.left = filler, filler.steps

    def step(self) -> bool:
        self.left -= 1
        return self.left > 0

    def candidates(self) -> tuple[Candidate, ...]:
        assert self.left <= 0, "an answer was taken before the work was done"
        chances = (1 / (2 + index) for index in range(len(self.filler.answers)))
        return tuple(
            Candidate(
                (text,),
                Calibrated(chance),
                confidences=(self.filler.chances,),
                lengths=((1,) * len(self.filler.chances),),
                row="causal",
                steps=self.filler.steps,
            )
            for text, chance in zip(self.filler.answers, chances, strict=False)
        )

    def drafts(self) -> tuple[str, ...]:
        return self.filler.answers[:1]


class RefusingFiller(Filler):
    """Refuses every request with the sentence."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence

    def start(self, request: InfillRequest) -> ScriptedTask:
        raise ValueError(self.sentence)


def drawn(text: str, kind: str = "", task_id: str = "t/1/a", **facts: str) -> Task:
    """Return the task drawn by a text in which ⟦…⟧ is the hole with the expected answer."""
    prompt, rest = text.split("⟦")
    answer, suffix = rest.split("⟧")
    return Task(task_id, prompt, suffix, answer, kind=kind, **facts)


# Written for these tests, in the shape of HumanEval-Infilling.
PROGRAMS = (
    drawn(
        'def halves(n: int) -> int:\n    """How often n can be halved."""\n    count = 0\n    while n > 1:\n'
        "        n //= 2\n⟦        count += 1\n⟧    return count\n",
        kind="SingleLineInfilling",
        task_id="SingleLineInfilling/Own/0/L3",
        test="def check(f):\n    assert [f(n) for n in (1, 2, 7, 8)] == [0, 1, 2, 3]\n",
        entry_point="halves",
    ),
    drawn(
        "def initials(name: str) -> str:\n⟦    words = name.split()\n    return ''.join(word[0] for word in words).upper()\n⟧",
        kind="MultiLineInfilling",
        task_id="MultiLineInfilling/Own/1/L0_L1",
        test="def check(f):\n    assert f('ada lovelace') == 'AL'\n    assert f('') == ''\n",
        entry_point="initials",
    ),
    drawn(
        "import math\n\n\ndef spread(numbers):\n    mean = sum(numbers) / len(numbers)\n"
        "    return math.sqrt(sum((n - ⟦mean) ** 2⟧ for n in numbers) / len(numbers))\n",
        kind="RandomSpanInfilling",
        task_id="RandomSpanInfilling/Own/2/1",
        test="def check(f):\n    assert f([1, 1]) == 0\n    assert abs(f([1, 3]) - 1) < 1e-9\n",
        entry_point="spread",
    ),
)
