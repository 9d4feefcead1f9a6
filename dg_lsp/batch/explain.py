"""Draw the hole at a place, and the text around it, as the model would see them. Pure."""

from __future__ import annotations

from dg_lsp.batch.plan import Plan, where
from dg_lsp.core import context
from dg_lsp.core.values import Hole


def picture(plan: Plan, chars: int) -> str:
    """Return the plan's holes, then the window of each request with `⟦…⟧` where the model writes."""
    parts = [_facts(plan, hole) for hole in plan.holes]
    for group in plan.groups:
        request = context.build(plan.source.document, group, syntax=plan.syntax, window_chars=chars)
        parts += [f"--- seen besides: {near.path or plan.source.name}\n{_ended(near.text)}" for near in request.related]
        between = [*request.between, request.suffix]
        window = request.prefix + "".join(f"⟦{hole.kind}⟧{text}" for hole, text in zip(group, between, strict=True))
        parts.append(
            f"--- the window, {len(request.prefix)} characters before and {len(request.suffix)} after\n{_ended(window)}"
        )
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
