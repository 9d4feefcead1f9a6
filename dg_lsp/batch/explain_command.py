"""`dg-lsp explain`: show one request and how the engine fills it.

Modules are imported where they are used, so that `--help` stays fast.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dg_lsp.batch.commands import is_colourful, print_bytes, print_message, print_painted
from dg_lsp.wire import completions, config, model_names

if TYPE_CHECKING:
    from dg_lsp.batch.explain import Trace
    from dg_lsp.core.values import InfillRequest
    from dg_lsp.infill.client import ConnectOptions
    from dg_lsp.infill.life import State
    from dg_lsp.wire.messages import Done


def explain(
    place: Annotated[str, typer.Argument(metavar="PLACE", help="FILE:LINE:COL or FILE:LINE:COL-LINE:COL, counted from 1.")],
    chars: Annotated[int, typer.Option(min=1, help="How many characters to show on each side.")] = 600,
    fill: Annotated[bool, typer.Option(help="Fill the hole, and show the canvas step by step.")] = True,
    model: Annotated[
        str,
        typer.Option(
            metavar="ID_OR_PATH", help="Use this model instead of the configured one.", autocompletion=completions.model
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object: the whole request, and each step.")] = False,
) -> None:
    """Show the hole at a place, the request that is sent for it, and the canvas step by step.

    Shows the canvas at most every 30 ms, then the answers with the reasons for dropped ones, and the time of each stage.
    Changes no file.
    """
    from dg_lsp.batch import explain, job, plan
    from dg_lsp.batch.rounds import RunOptions
    from dg_lsp.infill import client, guarded
    from dg_lsp.infill.port import EngineError

    try:
        location = plan.parse_place(place)
        file_plan = plan.for_places(job.source_at(location), [location])
        configuration = config.load_config(config.workspace_of(file_plan.source.path))
        model = configuration.model(model)
        options = RunOptions(configuration.settings.batch_candidates, seed, configuration.settings.batch_deadline)
        context = job.context_source()(file_plan)
        request, sources = explain.request_of(file_plan, context, options), context.sources
        if model_names.is_remote(model):
            privacy = guarded.privacy_of([file_plan.source.path])
            if privacy.keeps_file(file_plan.source.path):
                raise EngineError(guarded.refusal(file_plan.source.name))
            request = privacy.shown(request)
        trace = None
        if not as_json:
            print_bytes(explain.picture(file_plan, request, chars))
        if fill:
            joining = client.connect_options(configuration, model=model)
            trace = asyncio.run(_traced(request, joining, is_drawn=not as_json))
        if as_json:
            typer.echo(json.dumps(explain.report(file_plan, request, trace, sources), indent=2))
        elif trace is not None:
            print_bytes(explain.ending(file_plan, request, trace, sources))
    except (plan.PlanError, config.ConfigError, EngineError) as error:
        print_message(str(error))
        raise typer.Exit(2) from error


async def _traced(request: InfillRequest, options: ConnectOptions, *, is_drawn: bool) -> Trace:
    """Fill a request and return its trace; with `is_drawn`, print each step as it happens."""
    from dg_lsp.batch.explain import Step, Trace, frame, plain
    from dg_lsp.infill import client
    from dg_lsp.infill.life import Loading

    steps: list[Step] = []
    ends: list[Done] = []
    paint = _paint if is_colourful() else plain

    def on_draft(texts: tuple[str, ...], number: int) -> None:
        last = steps[-1] if steps else None
        steps.append(Step(number, texts))
        if is_drawn and (last is None or last.texts != texts):
            print_painted(frame(request, steps[-1], last, paint))

    def on_state(state: State) -> None:
        if isinstance(state, Loading) and state.message and sys.stderr.isatty():
            print_message(f"the engine is loading its model: {state.message}")

    async with client.connect(options, on_state=on_state, on_message=print_message) as engine:
        if is_drawn:
            print_bytes("--- the canvas after each step; a step reads, drafts, denoises or scores\n")
        candidates = await engine.fill(request, on_draft=on_draft, on_done=ends.append)
    return Trace(tuple(steps), candidates, ends[-1])


def _paint(text: str, what: str) -> str:
    if what == "held":
        return typer.style(text, dim=True)
    return typer.style(text, fg="yellow") if what == "new" else text
