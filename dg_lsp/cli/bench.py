"""`dg-lsp bench`: time a model's fills of lines and of blocks, with nothing cached and with a known prefix.

Both ways take turns on each task, so that other load on the machine affects both; compare their ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dg_lsp.cli.options import command_group, model_option, named_path, reports
from dg_lsp.core.wording import counted, size
from dg_lsp.evaluate import tasks
from dg_lsp.evaluate.answers import Answer, InProcess, answer, is_exact, percentile
from dg_lsp.evaluate.tasks import EvalError, Task

if TYPE_CHECKING:
    from dg_lsp.engine.common.loading import Loaded
    from dg_lsp.engine.model.memory import Speed

app = command_group()


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of one way to fill; times in milliseconds."""

    name: str
    n: int
    ms_p50: float
    ms_p95: float
    exact_match: float


def measure(loaded: Loaded[Any, Any], holes: Sequence[Task], blocks: Sequence[Task] = ()) -> list[Line]:
    """Return the figures of filling single-line holes, and of filling blocks.

    "prefix known" is a fill after the same request without its last character, as when a user types.
    """
    from dg_lsp.engine.backends.local import filler_of

    try:
        engine = InProcess(filler_of(loaded))
    except ValueError as error:
        raise EvalError(str(error)) from error
    lines = list[Line]()
    for name, chosen in (("dg-lsp", holes), ("dg-lsp, a block", blocks)):
        answers: dict[str, list[tuple[Task, Answer]]] = {name: [], f"{name}, prefix known": []}
        for task in chosen[:1]:
            answer(engine, task)  # a process is slow the first time
        for task in chosen:
            engine.filler.trim()
            answers[name].append((task, answer(engine, task)))
            engine.filler.trim()
            answer(engine, replace(task, prompt=task.prompt[:-1]))
            answers[f"{name}, prefix known"].append((task, answer(engine, task)))
        lines += [_line(way, own) for way, own in answers.items() if own]
    return lines


def _line(name: str, answers: Sequence[tuple[Task, Answer]]) -> Line:
    n = len(answers)
    middle, slow = (round(percentile([each.ms for _, each in answers], share), 1) for share in (50, 95))
    right = sum(is_exact(each.text, task.answer) for task, each in answers) / n
    return Line(name, n, middle, slow, round(right, 4))


def table(lines: Sequence[Line], loaded: Loaded[Any, Any], speed: Speed | None = None) -> str:
    """Return the figures as a Markdown table, with what passes took beside the memory's floor, and how many cores they had."""
    cores = loaded.cores
    head = "| way | ms p50 | ms p95 | exact match |\n| --- | --- | --- | --- |\n"
    rows = "".join(f"| {line.name} | {line.ms_p50:.0f} | {line.ms_p95:.0f} | {line.exact_match:.3f} |\n" for line in lines)
    took = f"{cores.wall_ms / 1000:.1f} s, and {cores.processor_ms / 1000:.1f} s of processor time"
    threads = f"{counted(cores.threads, 'thread')} ({cores.why})"
    products = f"products in {loaded.passes.products_dtype}"
    shown = f"{head}{rows}\nAll passes, with {products}, took {took}; the last ones had {threads}.\n"
    if speed is not None:
        shown += (
            f"A pass over one token takes {speed.pass_ms:.2f} ms, {speed.pass_ms / speed.floor_ms:.1f} times what reading its "
            f"weights takes ({speed.floor_ms:.2f} ms): {1000 / speed.pass_ms:.0f} tokens a second.\n"
        )
        if speed.free_bytes is not None:
            shown += f"{size(speed.free_bytes)} are free beside the model: {speed.tokens_that_fit:,} tokens' keys and values.\n"
    return shown


@app.command()
@reports(EvalError, who="dg-lsp bench", doing="measuring")
def bench(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="Tasks in the format of HumanEval-Infilling: .jsonl or .jsonl.gz.", parser=named_path
        ),
    ] = None,
    model: Annotated[str, model_option("The model: embedded, a folder, or a hub id.")] = "embedded",
    limit: Annotated[int, typer.Option(help="How many single-line tasks, and how many blocks, to use; 0: all.")] = 40,
    threads: Annotated[int, typer.Option(help="Threads on a CPU; 0: the engine's default.")] = 0,
) -> None:
    """Time fills of single-line holes and of blocks, with nothing cached and with a known prefix."""
    if file is None:
        raise EvalError("no tasks given; name a .jsonl file")
    all_tasks = tasks.read(file)  # before the engine is imported, which leaves a folder that was removed
    from dg_lsp.engine.backends.local import load_model
    from dg_lsp.engine.common.loading import LoadError
    from dg_lsp.engine.diffusion.masked import MaskedProfile
    from dg_lsp.engine.model.memory import measured_speed

    single, blocks = ([task for task in all_tasks if (task.hole.extent == "block") == block] for block in (False, True))
    if not single:
        raise EvalError(f"{file} has no single-line task")
    try:
        loaded = load_model(model, threads=threads)
    except LoadError as error:
        raise EvalError(str(error)) from error
    lines = measure(loaded, tasks.spread(single, limit), tasks.spread(blocks, limit))
    speed = None
    if not isinstance(loaded.profile, MaskedProfile):  # models of masks have no passes over one token
        speed = measured_speed(loaded.passes, loaded.device, loaded.profile.prefix_tokens)
    typer.echo(table(lines, loaded, speed), nl=False)
