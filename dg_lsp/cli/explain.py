"""`dg-lsp explain`: show the hole at a place, the request for it, the canvas after each step, and the answers.

The engine may cut the request further, because only it knows the tokens that fit into its model.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from dg_lsp.batch import plan
from dg_lsp.batch.options import Options
from dg_lsp.batch.plan import FilePlan, where
from dg_lsp.batch.rounds import request_for
from dg_lsp.cli import completions
from dg_lsp.cli.command_group import command_group, print_message, reports
from dg_lsp.cli.terminal import is_colourful, print_bytes, print_painted
from dg_lsp.core import confidence, importing
from dg_lsp.core.importing import Sources
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.core.wording import counted
from dg_lsp.infill import pipeline, port
from dg_lsp.infill.life import Loading, State
from dg_lsp.infill.port import EngineError
from dg_lsp.wire import config, messages, model_names
from dg_lsp.wire.config import Config
from dg_lsp.wire.messages import Ask, Done
from dg_lsp.wire.privacy import LOCAL_ONLY
from dg_lsp.wire.visible import one_line, visible

app = command_group()


@app.command()
@reports(plan.PlanError, config.ConfigError, EngineError)
def explain(
    place: Annotated[str, typer.Argument(metavar="PLACE", help="FILE:LINE:COL or FILE:LINE:COL-LINE:COL, counted from 1.")],
    chars: Annotated[int, typer.Option(min=1, help="How many characters to show on each side.")] = 600,
    fill: Annotated[bool, typer.Option(help="Fill the hole, and show the canvas step by step.")] = True,
    model: Annotated[str, completions.model_option("Use this model instead of the configured one.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object: the whole request, and each step.")] = False,
) -> None:
    """Show the hole at a place, the request that is sent for it, and the canvas step by step.

    Shows the canvas at most every 30 ms, then the answers with the reasons for dropped ones, and the time of each stage.
    Changes no file.
    """
    from dg_lsp.batch import api  # imported here, because it takes long and `--help` does not need it

    location = plan.parse_place(place)
    file_plan = plan.for_places(api.source_at(location), [location])
    configuration = config.load_config(config.workspace_of(file_plan.source.path))
    model = configuration.model(model)
    options = Options(
        candidates=configuration.settings.batch_candidates, seed=seed, deadline=configuration.settings.batch_deadline
    )
    context = api.contexts()(file_plan, {})
    request, sources = request_for(file_plan, context, file_plan.groups[0], options), context.sources
    if model_names.is_remote(model):
        patterns = port.patterns_of([file_plan.source.path])
        if port.keeps_file(file_plan.source.path, patterns):
            raise EngineError(f"{file_plan.source.name} {LOCAL_ONLY}")
        request = port.shown(request, patterns)
    trace = None
    if not as_json:
        print_bytes(picture(file_plan, request, chars))
    if fill:
        trace = asyncio.run(_traced(request, configuration, model, is_drawn=not as_json))
    if as_json:
        typer.echo(json.dumps(report(file_plan, request, trace, sources), indent=2))
    elif trace is not None:
        print_bytes(ending(file_plan, request, trace, sources))


async def _traced(request: InfillRequest, configuration: Config, model: str, *, is_drawn: bool) -> Trace:
    """Fill a request and return its trace; with `is_drawn`, print each step as it happens."""
    from dg_lsp.infill import client  # imported here, because it takes long and `--help` does not need it

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

    async with client.connect(
        client.connect_options(configuration, model=model), on_state=on_state, on_message=print_message
    ) as engine:
        if is_drawn:
            print_bytes("--- the canvas after each step; a step reads, drafts, denoises or scores\n")
        candidates = await engine.fill(request, on_draft=on_draft, on_done=ends.append)
    return Trace(tuple(steps), candidates, ends[-1])


def _paint(text: str, what: str) -> str:
    if what == "held":
        return typer.style(text, dim=True)
    return typer.style(text, fg="yellow") if what == "new" else text


# Returns a text as it is shown, given its kind: `held`, `gap`, or `new` in the gap.
Paint = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Step:
    """The best canvas after a step, as one text for each hole."""

    number: int
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """One fill: its steps, its candidates and its end."""

    steps: tuple[Step, ...]
    candidates: tuple[Candidate, ...]
    done: Done


def picture(plan: FilePlan, request: InfillRequest, chars: int) -> str:
    """Return a description of the plan's hole, then the request with `⟦…⟧` where the model writes.

    At most `chars` characters are shown on each side; a note says so if more are sent.
    """
    [hole] = plan.holes
    document = plan.source.document
    replaced = document.text[hole.span.start : hole.span.end]
    facts = {
        "place": one_line(f"{plan.source.name}:{where(document, hole)}"),
        "language": document.language or "unknown, filled from text alone",
        "hole": f"{hole.kind}, {'a block' if hole.block else 'the rest of a line'}",
        "indent": repr(hole.indent),
        "replaces": repr(replaced) if replaced else "nothing",
        "instruction": hole.instruction or "none",
    }
    parts = ["".join(f"{name:12} {value}\n" for name, value in facts.items())]
    titles = {False: "also sent", True: "only to copy from"}
    parts += [f"--- {titles[near.for_copying]}: {near.path}\n{_ended(near.text)}" for near in request.related]
    before, after = request.prefix[-chars:], request.suffix[:chars]
    size_before = f"{counted(len(request.prefix), 'character')} before"
    title = f"--- sent as {request.path}, {size_before} and {len(request.suffix)} after"
    if (before, after) != (request.prefix, request.suffix):
        title += f", of which those next to the hole are shown ({len(before)} and {len(after)})"
    return "".join([*parts, f"{title}\n{_ended(f'{before}⟦{hole.kind}⟧{after}')}"])


def plain(text: str, what: str) -> str:
    """Return the text with marks around what the model wrote; used without colours."""
    return text if what == "held" else f"⟦{text}⟧"


def frame(request: InfillRequest, step: Step, last: Step | None, paint: Paint) -> str:
    """Return the gap's lines after a step, together with the held text on its first and last line.

    With colours, text that differs from the `last` frame is painted as `new`.
    """
    text = visible("".join(step.texts))
    gap = paint(text, "gap") if paint is plain else ""
    if paint is not plain:
        shown = visible("".join(last.texts)) if last else text
        for kind, _, _, start, end in difflib.SequenceMatcher(None, shown, text, autojunk=False).get_opcodes():
            gap += paint(text[start:end], "gap" if kind == "equal" else "new") if start < end else ""
    before, after = visible(request.prefix.rpartition("\n")[2]), visible(request.suffix.partition("\n")[0])
    line = paint(before, "held") + gap + paint(after, "held")
    return f"step {step.number:3}  " + _ended(line.replace("\n", "\n" + " " * len("step 000  ")))


def ending(plan: FilePlan, request: InfillRequest, trace: Trace, sources: Sources) -> str:
    """Return the answers, best first, each with its confidence or the reason it is dropped, and the times."""
    lines = ["--- answers, best first; a percentage is the probability of being right"]
    for candidate in trace.candidates:
        shown, reason = _judged(plan, request, candidate, sources)
        text = "".join(candidate.texts) if reason else shown
        end = f"   (not shown: it {reason})" if reason else "" if candidate.finished else "   (unfinished)"
        text = visible(text).replace("\n", "\n" + " " * 16)
        lines.append(f"{confidence.words(candidate.confidence):>14}  {candidate.row:8} {text}{end}")
    if not trace.candidates:
        lines.append("none")
    done = trace.done
    stages = ", ".join(f"{name.removesuffix('_ms')} {ms:.0f}" for name, ms in asdict(done.timings).items())
    known = f"{done.cache.reused} of {done.cache.tokens} tokens cached"
    lines.append(f"--- {done.reason} after {done.steps} steps; milliseconds: {stages}; {known}")
    return "\n".join(lines) + "\n"


def report(plan: FilePlan, request: InfillRequest, trace: Trace | None, sources: Sources) -> dict[str, object]:
    """Return the same facts for programs; without a trace, only the request."""
    [hole] = plan.holes
    document = plan.source.document
    facts: dict[str, object] = {
        "place": f"{plan.source.name}:{where(document, hole)}",
        "replaces": document.text[hole.span.start : hole.span.end],
        "request": messages.encode_ask(Ask(request))["request"],
    }
    if trace is None:
        return facts
    answers = []
    for candidate in trace.candidates:
        shown, reason = _judged(plan, request, candidate, sources)
        facts_of_one = {name: value for name, value in asdict(candidate).items() if name != "confidence"}
        probability = confidence.probability(candidate.confidence)
        answers.append({**facts_of_one, "probability": probability, "edit": None if reason else shown, "reason": reason})
    steps = [{"step": step.number, "texts": step.texts} for step in trace.steps]
    return {**facts, "steps": steps, "answers": answers, "done": asdict(trace.done)}


def _judged(plan: FilePlan, request: InfillRequest, candidate: Candidate, sources: Sources) -> tuple[str, str]:
    """Return the text that would be written for a candidate, or why it is dropped, as the rest of a sentence after "it".

    The text begins with its imports, one a line.
    """
    document = plan.source.document
    answer = pipeline.to_answer(request, [candidate], document, syntax=plan.syntax, is_file=True, sources=sources)
    for suggestion in answer.suggestions:
        imports = "".join(f"{importing.statement(each, document.language)}\n" for each in suggestion.imports)
        return imports + "".join(edit.text for edit in suggestion.edits), ""
    return "", "; ".join(answer.dropped)


def _ended(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
