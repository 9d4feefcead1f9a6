"""Servers on this machine whose answers are right as often as their log-probabilities say, give or take some noise.

Each hole has a number, which the server reads in the text that it is sent. By that number alone it draws whether it
answers right and how sure it sounds, so that the order of requests does not matter.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dg_lsp.evaluate.tasks import Task
from tests.engine.backends_kit import StandIn, serving

SUREST = -0.02


def numbered(start: int, n: int) -> list[Task]:
    """Return tasks whose answer follows from their number; four tasks share a file."""
    return [
        Task(
            f"line/{number}", f"def f_{number}(a):\n    return ", "\n\n\nprint(1)\n", f"a - {number}", path=f"f{number // 4}.py"
        )
        for number in range(start, start + n)
    ]


@dataclass(frozen=True)
class Draw:
    """Whether an answer is right, and the log-probability of each of its tokens."""

    right: bool
    logs: tuple[float, ...]

    @staticmethod
    def of(number: int, choice: int, n_tokens: int) -> Draw:
        """Return a random outcome for one answer; a higher log-probability makes it more often right."""
        draw = random.Random(f"{number} {choice}")
        mean = -abs(draw.gauss(0.9, 0.7))
        right = draw.random() < 1 / (1 + math.exp(-6 * (mean + 0.6)))
        return Draw(right, tuple(min(SUREST, mean + draw.gauss(0, 0.15)) for _ in range(n_tokens)))


def number_in(text: str) -> int:
    numbers = re.findall(r"f_(\d+)\(", text)
    return int(numbers[-1])


@contextlib.contextmanager
def openai(*, logprobs: bool = True) -> Iterator[str]:
    """Yield the URL of a server in OpenAI's dialect."""

    async def answer(request: Request) -> Response:
        body = await request.json()
        number = number_in(body["prompt"])
        choices: list[dict[str, Any]] = []
        for choice in range(body["n"]):
            draw = Draw.of(number, choice, 4)
            text = f"a - {number}" if draw.right else f"a * {number}"
            stated = {"tokens": ["a", " +", " ", str(number)], "token_logprobs": list(draw.logs)} if logprobs else None
            choices.append({"text": text, "finish_reason": "stop", "logprobs": stated})
        return JSONResponse({"choices": choices})

    with serving({"POST /v1/completions": answer}) as url:
        yield url


class NoisyVllm(StandIn):
    """A vLLM server whose model is right as often as its log-probabilities say."""

    def _write(self, parameters: dict[str, Any], xargs: dict[str, Any]) -> tuple[list[int], list[float]]:
        if "diffusion_pinned" not in xargs:
            return super()._write(parameters, xargs)
        seed, pinned = list(xargs["diffusion_seed_canvas"]), set(xargs["diffusion_pinned"])
        number = number_in(self.vocabulary.decode(self.asked[-1]["prompt"]))
        draw = Draw.of(number, sum(seed) % 1000, len(seed))
        answer = self.vocabulary.encode(f"a - {number}" if draw.right else f"a * {number}")
        free = [place for place in range(len(seed)) if place not in pinned]
        for place, token in zip(free, answer, strict=True):
            seed[place] = token
        return seed, [SUREST if place in pinned else draw.logs[place] for place in range(len(seed))]


@contextlib.contextmanager
def openai_that_knows(sources: dict[str, str]) -> Iterator[str]:
    """Yield the URL of a server that has read the files. It is right about every other hole, and a little surer of those."""

    async def answer(request: Request) -> Response:
        body = await request.json()
        matches = [text for text in sources.values() if text.startswith(body["prompt"]) and text.endswith(body["suffix"])]
        text = matches[0][len(body["prompt"]) : len(matches[0]) - len(body["suffix"])] if matches else "nothing"
        draw = random.Random(body["prompt"])
        right = draw.random() < 0.5
        logs = [-0.1 - draw.random() / 2 - (not right)] * 2
        choice = {"text": text if right else "wrong", "finish_reason": "stop", "logprobs": {"token_logprobs": logs}}
        return JSONResponse({"choices": [choice] * body["n"]})

    with serving({"POST /v1/completions": answer}) as url:
        yield url
