"""Draw the hole at a place, and what the engine would be sent for it. Pure.

The engine, which alone knows tokens, may cut further: its model may hold less.
"""

from __future__ import annotations

from dg_lsp.batch.plan import Plan, where
from dg_lsp.batch.run import Around
from dg_lsp.core import context
from dg_lsp.core.values import Hole
from dg_lsp.infill import pipeline


def picture(plan: Plan, around: Around, chars: int) -> str:
    """Return the plan's holes, then each request as a run would send it, with `⟦…⟧` where the model writes.

    Of the text on each side at most `chars` characters are drawn, and where that is less than is sent, the picture says so.
    """
    settings = pipeline.Settings(path=around.path)
    parts = [_facts(plan, hole) for hole in plan.holes]
    for group in plan.groups:
        request = context.build(
            plan.source.document,
            group,
            syntax=plan.syntax,
            related=around.related,
            path=settings.path,
            window_chars=settings.window_chars,
        )
        parts += [f"--- sent besides: {near.path}\n{_ended(near.text)}" for near in request.related]
        before, after = request.prefix[-chars:], request.suffix[:chars]
        window = before + "".join(f"⟦{hole.kind}⟧{text}" for hole, text in zip(group, [*request.between, after], strict=True))
        title = f"--- sent as {request.path}, {len(request.prefix)} characters before and {len(request.suffix)} after"
        if (before, after) != (request.prefix, request.suffix):
            title += f", of which those next to the hole are shown ({len(before)} and {len(after)})"
        parts.append(f"{title}\n{_ended(window)}")
    return "".join(parts)


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
