"""Ways to find the length of a gap, side by side: python tests/benchmarks/lengths.py [--json] [--embedded]

Holes in a generated language, filled by a small checkpoint that was trained on it and knows no delete token
(`fixtures/worlds`); `delete` is filled by its continuation with one, which is trained first (minutes; kept in `--cache`),
`oracle` by the checkpoint itself, told the length. `--embedded` takes held-out Python and the embedded model instead, its
delete token hidden. Prints the share of answers that are exact, with what each method spent and 95 % intervals (bootstrap
over holes, paired where two methods are compared). `chosen` names the method that the product uses for a checkpoint
without a delete token.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from dg_lsp.engine.decode import layout
from dg_lsp.engine.decode.canvas.denoise import TokenLimits
from dg_lsp.engine.decode.filler import LocalFiller
from dg_lsp.engine.model import loading
from dg_lsp.engine.model.loading import Loaded
from dg_lsp.evaluate import score, tasks
from tests.benchmarks.worlds import language, methods, training
from tests.benchmarks.worlds.language import Hole, Kind
from tests.benchmarks.worlds.methods import Cost, Method, Problem
from tests.trainer.windows import DELETE, EOS

HELDOUT = Path(__file__).parents[2] / "fixtures" / "eval" / "heldout.jsonl.gz"
CHOSEN = "speculation"  # what the product does for a checkpoint without a delete token (`decode/propose/canvas.py`)
KINDS: tuple[Kind, ...] = ("line", "block")
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Case:
    """One hole: how to pose it to a model, how long its answer is, whether an answer is exact, and of what sort it is."""

    ids: tuple[int, ...]
    tail: tuple[int, ...]
    n_answer: int
    answer: str
    kind: Kind
    first: tuple[int, ...] = ()
    heal: bytes = b""
    sorts: tuple[str, ...] = ()
    end: int = EOS  # ends a causal draft
    behind: tuple[int, ...] = ()  # what a causal model writes behind an answer, where that is not the suffix's head


@dataclass(frozen=True, slots=True)
class Asked:
    """Which holes of the language, how many of each kind, by which methods, and the sizes of the canvas."""

    n_holes: int
    seed: int
    methods: str = ""
    canvas: int = training.CANVAS
    held: int = training.HELD


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--embedded", action="store_true", help="held-out Python on the embedded model, its delete token hidden"
    )
    parser.add_argument("--holes", type=int, default=500, metavar="N", help="holes of each kind")
    parser.add_argument("--seed", type=int, default=1, help="of the holes; the checkpoint has its own")
    parser.add_argument("--methods", default="", help="only these, by commas")
    parser.add_argument(
        "--canvas", type=int, default=training.CANVAS, metavar="N", help="positions of a canvas of the language"
    )
    parser.add_argument("--held", type=int, default=training.HELD, metavar="N", help="tokens of the suffix that it holds")
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "dg-lsp-worlds", help="where checkpoints are kept"
    )
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    if arguments.embedded:
        table = embedded(arguments.holes, arguments.methods)
    else:
        request = Asked(arguments.holes, arguments.seed, arguments.methods, arguments.canvas, arguments.held)
        table = worlds(arguments.cache, request)
    print(json.dumps(table) if arguments.json else drawn(table))
    return 0


def worlds(cache: Path, request: Asked) -> dict[str, Any]:
    """Return the table of the generated language."""
    only, seed = request.methods, request.seed

    def loaded(delete: bool) -> Loaded:
        with_its_own = loading.load_model(str(training.made(cache, delete=delete, on_message=note)), device="cpu", threads=1)
        return replace(with_its_own, profile=replace(with_its_own.profile, canvas_tokens=request.canvas))

    plain, with_delete = loaded(delete=False), None
    if not only or "delete" in only.split(","):
        with_delete = loaded(delete=True)
    table: dict[str, Any] = {}
    for kind in KINDS:
        cases = [case_of(hole, request.held) for hole in islice(language.holes(seed + 90_000, kind), request.n_holes)]
        table[kind] = summed(cases, run(plain, cases, only, with_delete))
    return table | {"seeds": {"holes": seed + 90_000, "training": training.PLAN.seed}}


def embedded(n: int, only: str = "") -> dict[str, Any]:
    """Return the table of held-out Python on the embedded model."""
    loaded = loading.load_model(device="cpu", threads=1)
    filler = LocalFiller(loaded)
    table: dict[str, Any] = {}
    held_out = list(tasks.read(HELDOUT))
    for kind in KINDS:
        cases: list[Case] = []
        for task in held_out:
            if task.hole.block != (kind == "block") or len(cases) == n:
                continue
            sheet = filler.layout.lay_out(task.request())
            n_answer = len(loaded.vocabulary.encode(sheet.heal.decode("utf-8", "ignore") + task.answer))
            first = layout.allowed(loaded.vocabulary, sheet.heal, by_parts=False)
            assert sheet.end is not None
            case = Case(
                sheet.kv, sheet.tail, n_answer, task.answer, kind, first, sheet.heal, end=sheet.end, behind=(sheet.end,)
            )
            cases.append(case)
        table[kind] = summed(cases, run(loaded, cases, only, None))
    return table


def case_of(hole: Hole, n_held: int = training.HELD) -> Case:
    sorts = [name for name, holds in (("recurring", hole.recurring), ("ambiguous", hole.ambiguous)) if holds]
    return Case(
        tuple(training.head(hole)),
        tuple(training.held(hole, n_held)),
        len(hole.answer),
        hole.answer,
        hole.kind,
        sorts=tuple(sorts),
    )


def posed(loaded: Loaded, case: Case) -> Problem:
    """Return a case as a problem, its delete token hidden."""
    _, kv = loaded.passes.encode(torch.tensor([case.ids]))
    vocabulary = loaded.vocabulary
    n_logits = loaded.diffusion.model.lm_head.weight.shape[0]
    regular = tuple(token for token, piece in enumerate(vocabulary.pieces) if piece and token not in vocabulary.special)
    banned = tuple(token for token in (*vocabulary.special, *range(vocabulary.size, n_logits)) if token not in (EOS, case.end))
    ends = (EOS,) if case.end == EOS else (EOS, case.end)
    closing = ends if case.kind == "block" else (*ends, *vocabulary.with_newline)
    return Problem(
        loaded.diffusion,
        kv,
        case.ids[-1],
        case.tail,
        TokenLimits(regular, banned, case.first),
        loaded.profile.sampling,
        case.kind == "block",
        loaded.profile.canvas_tokens,
        closing,
        case.end,
        case.behind,
    )


def ways(only: str) -> dict[str, Method]:
    """Return the methods by their names; the oracle and the delete token need more than a problem."""
    every: dict[str, Method] = {
        "grid": methods.grid,
        "speculation": methods.Speculated(),
        "draft": methods.Draft(),
    }
    return {name: method for name, method in every.items() if not only or name in only.split(",")}


def run(loaded: Loaded, cases: Sequence[Case], only: str, with_delete: Loaded | None) -> dict[str, list[tuple[bool, Cost]]]:
    """Return, for each method, whether each case's answer is exact and what it took."""
    every = ways(only)
    outcomes: dict[str, list[tuple[bool, Cost]]] = {
        name: [] for name in [*every, *(["delete"] if with_delete else []), "oracle"]
    }
    began = time.monotonic()
    with torch.inference_mode():
        for number, case in enumerate(cases, 1):
            for name, method in [*every.items(), ("oracle", methods.oracle(case.n_answer))]:
                outcomes[name].append(solved(loaded, case, method))
            if with_delete:
                room = 40 if case.kind == "line" else 64
                outcomes["delete"].append(solved(with_delete, case, methods.delete(DELETE, room)))
            if number % 50 == 0:
                note(f"{number} of {len(cases)} {case.kind} holes, {time.monotonic() - began:.0f} s")
    return outcomes


def solved(loaded: Loaded, case: Case, method: Method) -> tuple[bool, Cost]:
    """Return whether a method's answer to a case is exact, and what it took."""
    problem = posed(loaded, case)
    text = layout.answer(loaded.vocabulary, method(problem), case.heal)
    return score.is_exact(text, case.answer), problem.cost


def summed(cases: Sequence[Case], outcomes: dict[str, list[tuple[bool, Cost]]]) -> dict[str, Any]:
    """Return one kind's part of the table."""
    exact = {name: [float(is_exact) for is_exact, _ in rows] for name, rows in outcomes.items()}
    table: dict[str, Any] = {name: round(mean(values), 4) for name, values in exact.items()}
    table["chosen"] = chosen_name = CHOSEN
    table["interval"] = {name: interval(values) for name, values in exact.items()}
    for other in ("oracle", "grid"):
        if other in exact and chosen_name in exact:
            apart = [a - b for a, b in zip(exact[chosen_name], exact[other], strict=True)]
            table[f"chosen_less_{other}"] = [round(mean(apart), 4), *interval(apart)]
    table["cost"] = {
        name: {field: round(mean([asdict(cost)[field] for _, cost in rows]), 1) for field in asdict(Cost())}
        for name, rows in outcomes.items()
    }
    table["sorts"] = {
        sort: {"holes": len(at)} | {name: round(mean([values[i] for i in at]), 4) for name, values in exact.items()}
        for sort in sorted({sort for case in cases for sort in case.sorts})
        if (at := [i for i, case in enumerate(cases) if sort in case.sorts])
    }
    return table | {"holes": len(cases), "lengths": len({case.n_answer for case in cases})}


def mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def interval(values: Sequence[float]) -> list[float]:
    """Return where 95 % of the means of resampled holes lie."""
    chance = random.Random(0)
    means = sorted(mean(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return [round(means[int(RESAMPLES * share)], 4) for share in (0.025, 0.975)]


def drawn(table: dict[str, Any]) -> str:
    """Return the table for a reader."""
    lines = []
    for kind in KINDS:
        part = table[kind]
        lines += [f"{kind}: {part['holes']} holes of {part['lengths']} lengths", ""]
        lines += ["| method | exact | 95 % | decoder rows | decoder passes | positions | encoder passes |"]
        lines += ["| --- | ---: | --- | ---: | ---: | ---: | ---: |"]
        for name, cost in part["cost"].items():
            low, high = part["interval"][name]
            mark = " (chosen)" if name == part["chosen"] else ""
            lines.append(
                f"| {name}{mark} | {part[name]:.3f} | {low:.3f} to {high:.3f} | {cost['row_passes']} | {cost['passes']} | "
                f"{cost['positions']:.0f} | {cost['encoder_passes']} |"
            )
        for other in ("oracle", "grid"):
            if apart := part.get(f"chosen_less_{other}"):
                lines.append(f"\nchosen less {other}: {apart[0]:+.3f} ({apart[1]:+.3f} to {apart[2]:+.3f})")
        lines.append("")
    return "\n".join(lines)


def note(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
