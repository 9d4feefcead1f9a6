"""Show a run's losses as a table and as a picture.

This module knows the lines that the loop records, and nothing of training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PLAN = "plan.json"  # next to the curve: the hardware of the run's legs
START = "start.json"  # next to the curve: the checkpoint with the run's first weights, if it has one
LOSSES = ("prefix_loss", "answer_loss", "end_loss", "noise_half", "noise_half_conditioned", "noise_1")
COLOURS = ("#1f6feb", "#0a3069", "#cf222e", "#2da44e", "#116329", "#bf3989")
WIDTH, HEIGHT, MARGIN = 720, 360, 48


def read(path: Path) -> list[dict[str, Any]]:
    """Return the recorded lines, oldest first."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the losses on held-out files as a Markdown table, one row for each recorded line."""
    head = "| minutes | tokens (M) | " + " | ".join(LOSSES) + " |"
    rows = [
        f"| {line['minutes']:.1f} | {line['tokens'] / 1e6:.2f} | " + " | ".join(f"{line[name]:.3f}" for name in LOSSES) + " |"
        for line in lines
    ]
    return "\n".join([head, "|" + " --- |" * (len(LOSSES) + 2), *rows]) + "\n"


def picture(lines: Sequence[dict[str, Any]]) -> str:
    """Return a plot of the losses against tokens, as an SVG image."""
    if not lines:
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"/>\n'
    most = max(line["tokens"] for line in lines) or 1
    top = max(line[name] for line in lines for name in LOSSES)

    def at(line: dict[str, Any], name: str) -> str:
        x = MARGIN + line["tokens"] / most * (WIDTH - 2 * MARGIN)
        y = HEIGHT - MARGIN - line[name] / top * (HEIGHT - 2 * MARGIN)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{MARGIN}" y="{HEIGHT - 14}">0</text>',
        f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - 14}" text-anchor="end">{most / 1e6:.1f} M tokens</text>',
        f'<text x="8" y="{MARGIN}">{top:.1f} nats</text>',
    ]
    for index, (name, colour) in enumerate(zip(LOSSES, COLOURS, strict=True)):
        points = " ".join(at(line, name) for line in lines)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>')
        parts.append(f'<text x="{WIDTH - MARGIN}" y="{MARGIN + 16 * index}" fill="{colour}" text-anchor="end">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
