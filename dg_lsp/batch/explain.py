"""Draw the hole at a place, what the engine is sent for it, how the canvas reads step by step, and the answers. Pure.

The engine, which alone knows tokens, may cut further: its model may hold less. What the engine does is handed in.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import asdict, dataclass

from dg_lsp.batch.plan import Plan, where
from dg_lsp.batch.run import FileContext, RunOptions, settings_for
from dg_lsp.core import confidence
from dg_lsp.core.values import Candidate, Hole, InfillRequest
from dg_lsp.infill import pipeline
from dg_lsp.wire import messages
from dg_lsp.wire.messages import Ask, Done
from dg_lsp.wire.visible import visible

# Given a text and what it is (`held`, `gap`, or `new` in the gap), the text as it is shown.
Paint = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Step:
    """How the best canvas read after so many steps, one text for each hole."""

    number: int
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """One fill from its first step to its end."""

    steps: tuple[Step, ...]
    candidates: tuple[Candidate, ...]
    done: Done


def request_of(plan: Plan, around: FileContext, options: RunOptions) -> InfillRequest:
    """Return what a run would send for the plan's one hole."""
    [group] = plan.groups
    settings = settings_for(plan, around, group, options)
    return pipeline.to_request(plan.source.document, group, settings, syntax=plan.syntax, related=around.related)


def picture(plan: Plan, request: InfillRequest, chars: int) -> str:
    """Return the plan's hole, then the request as it is sent, with `⟦…⟧` where the model writes.

    Of the text on each side at most `chars` characters are drawn, and where that is less than is sent, the picture says so.
    """
    [hole] = plan.holes
    parts = [_facts(plan, hole)]
    parts += [f"--- sent besides: {near.path}\n{_ended(near.text)}" for near in request.related]
    before, after = request.prefix[-chars:], request.suffix[:chars]
    n_before = len(request.prefix)
    size_before = f"{n_before} {'character' if n_before == 1 else 'characters'} before"
    title = f"--- sent as {request.path}, {size_before} and {len(request.suffix)} after"
    if (before, after) != (request.prefix, request.suffix):
        title += f", of which those next to the hole are shown ({len(before)} and {len(after)})"
    return "".join([*parts, f"{title}\n{_ended(f'{before}⟦{hole.kind}⟧{after}')}"])


def plain(text: str, what: str) -> str:
    """Return the text with marks around what the model wrote: for where there are no colours."""
    return text if what == "held" else f"⟦{text}⟧"


def frame(request: InfillRequest, step: Step, last: Step | None, paint: Paint) -> str:
    """Return the lines of the gap as they read after a step; held text ends its first line and begins its last.

    What reads otherwise than in the `last` frame is painted as `new`, where the paint tells it apart.
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


def ending(plan: Plan, request: InfillRequest, trace: Trace) -> str:
    """Return the answers, best first, what becomes of each, and what they took."""
    lines = ["--- answers, best first; a percentage is the probability of being right"]
    for candidate in trace.candidates:
        shown, reason = _judged(plan, request, candidate)
        text = "".join(candidate.texts) if reason else shown
        end = f"   (not shown: it {reason})" if reason else "" if candidate.finished else "   (unfinished)"
        lines.append(f"{confidence.words(candidate.confidence):>14}  {candidate.row:8} {_indented(visible(text))}{end}")
    if not trace.candidates:
        lines.append("none")
    done = trace.done
    stages = ", ".join(f"{name.removesuffix('_ms')} {ms:.0f}" for name, ms in asdict(done.timings).items())
    known = f"{done.cache.reused} of {done.cache.tokens} tokens known before"
    lines.append(f"--- {done.reason} after {done.steps} steps; milliseconds: {stages}; {known}")
    return "\n".join(lines) + "\n"


def report(plan: Plan, request: InfillRequest, trace: Trace | None) -> dict[str, object]:
    """Return all of it for programs; without a trace, what would be sent."""
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
        shown, reason = _judged(plan, request, candidate)
        facts_of_one = {name: value for name, value in asdict(candidate).items() if name != "confidence"}
        probability = confidence.probability(candidate.confidence)
        answers.append({**facts_of_one, "probability": probability, "edit": None if reason else shown, "reason": reason})
    steps = [{"step": step.number, "texts": step.texts} for step in trace.steps]
    return {**facts, "steps": steps, "answers": answers, "done": asdict(trace.done)}


def _judged(plan: Plan, request: InfillRequest, candidate: Candidate) -> tuple[str, str]:
    """Return the text that would be written for a candidate, or why none would be: the end of a sentence that begins "it"."""
    answer = pipeline.to_answer(request, [candidate], plan.source.document, syntax=plan.syntax, is_file=True)
    if answer.suggestions:
        return "".join(edit.text for edit in answer.suggestions[0].edits), ""
    return "", "; ".join(answer.dropped)


def _indented(text: str) -> str:
    return text.replace("\n", "\n" + " " * 16)


def _facts(plan: Plan, hole: Hole) -> str:
    document = plan.source.document
    replaced = document.text[hole.span.start : hole.span.end]
    facts = {
        "place": f"{plan.source.name}:{where(document, hole)}",
        "language": document.language or "unknown, filled from text alone",
        "hole": f"{hole.kind}, {'a block' if hole.block else 'the rest of a line'}",
        "indent": repr(hole.indent),
        "replaces": repr(replaced) if replaced else "nothing",
        "instruction": hole.instruction or "none",
    }
    return "".join(f"{name:12} {value}\n" for name, value in facts.items())


def _ended(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
