"""Show the hole at a place, the request for it, the canvas after each step, and the answers. Pure.

The engine may cut the request further, because only it knows the tokens that fit into its model. The caller passes the trace
of the engine's work.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import asdict, dataclass

from dg_lsp.batch.plan import FilePlan, where
from dg_lsp.batch.rounds import RunOptions, request_for
from dg_lsp.core import confidence, importing
from dg_lsp.core.importing import Sources
from dg_lsp.core.values import Candidate, Hole, InfillRequest
from dg_lsp.core.wording import counted
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.wire import messages
from dg_lsp.wire.messages import Ask, Done
from dg_lsp.wire.visible import one_line, visible

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


def request_of(plan: FilePlan, context: FileContext, options: RunOptions) -> InfillRequest:
    """Return the request that a run would send for the plan's only hole."""
    [group] = plan.groups
    return request_for(plan, context, group, options)


def picture(plan: FilePlan, request: InfillRequest, chars: int) -> str:
    """Return a description of the plan's hole, then the request with `⟦…⟧` where the model writes.

    At most `chars` characters are shown on each side; a note says so if more are sent.
    """
    [hole] = plan.holes
    parts = [_facts(plan, hole)]
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
    gap = paint(text, "gap") if paint is plain else _changes(text, visible("".join(last.texts)) if last else text, paint)
    before, after = visible(request.prefix.rpartition("\n")[2]), visible(request.suffix.partition("\n")[0])
    line = paint(before, "held") + gap + paint(after, "held")
    return f"step {step.number:3}  " + _ended(line.replace("\n", "\n" + " " * len("step 000  ")))


def _changes(text: str, last: str, paint: Paint) -> str:
    parts = []
    for kind, _, _, start, end in difflib.SequenceMatcher(None, last, text, autojunk=False).get_opcodes():
        if start < end:
            parts.append(paint(text[start:end], "gap" if kind == "equal" else "new"))
    return "".join(parts)


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


def _facts(plan: FilePlan, hole: Hole) -> str:
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
    return "".join(f"{name:12} {value}\n" for name, value in facts.items())


def _ended(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
