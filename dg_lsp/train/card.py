"""Write the model card: what the model is, what it was trained on, how, and what it scores.

Every figure comes from a file that a command wrote. Knows those files. Knows nothing of how they were made.
"""

# ruff: noqa: E501  (prose: one sentence a line, as in every Markdown file)

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dg_lsp.engine.profile import load as load_profile
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.train import curve

LIMITS = """\
## Limits

* It is small and has seen few tokens: it knows Python's shapes and the phrases of common libraries, not what your code means. Read what it writes.
* Other languages than Python were not in its training data. What it fills there comes from copying the file and from what all languages share.
* It reads {prefix} tokens before a hole and {suffix} after it, and its canvas has room for {gap} tokens in one hole.
* Its canvas, started from noise, is one kind of row among others: the tables above say what it is worth alone, and what copies and causal drafts add.
* HumanEval-Infilling could not be had where it was trained, so no figure on it is stated.
"""


def write(run: Path, folder: Path, *, results: str, ablation: str) -> str:
    """Return the card of the checkpoint in `folder`, trained in `run`; `results` and `ablation` are Markdown tables.

    Raises OSError when a file is missing, and EvalError when one does not say what the card needs.
    """
    sources, config = _object(run / "corpus" / "sources.json"), _object(folder / "config.json")
    try:
        lines, profile = curve.read(run / "curve.jsonl"), load_profile(folder)
    except ValueError as error:
        raise EvalError(str(error)) from error
    if not lines:
        raise EvalError(f"{run / 'curve.jsonl'} holds no line: the training has recorded nothing yet")
    return "\n".join(
        [
            _head(config["text_config"], lines, folder, _where(run)),
            "## What it scores\n",
            results,
            "## What each part is worth\n",
            ablation,
            LIMITS.format(
                prefix=profile.prefix_tokens,
                suffix=profile.suffix_tokens,
                gap=max(*profile.line_gaps, *profile.block_gaps),
            ),
            _training(lines),
            _data(sources),
        ]
    )


def _object(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EvalError(f"{path} can't be read: {error}") from error
    return found


def _where(run: Path) -> str:
    """Return what the run's legs ran on, as the end of "made from nothing"; "" where nobody noted it."""
    if not (run / curve.PLAN).exists():
        return ""
    legs = _object(run / curve.PLAN)["legs"]
    return ", on " + " and on ".join(_machine(**leg) for leg in legs)


def _machine(device: str, name: str, threads: int) -> str:
    if device != "cpu":
        return f"one {name or device}"
    return "one thread of a CPU" if threads == 1 else f"{threads} threads of a CPU"


def _head(text: dict[str, Any], lines: Sequence[dict[str, Any]], folder: Path, where: str) -> str:
    size = (folder / "model.safetensors").stat().st_size / 1024**2
    last = lines[-1]
    return f"""\
---
license: apache-2.0
library_name: transformers
tags: [code, infilling, text-diffusion, diffusion_gemma]
---

# The embedded model of dg-lsp

A `DiffusionGemmaForBlockDiffusion` of {text["num_hidden_layers"]} layers, width {text["hidden_size"]}, {text["num_attention_heads"]} heads,
feed-forward {text["intermediate_size"]} and {text["vocab_size"]} tokens, in bf16: {size:.1f} MiB.
It was made from nothing{where}, in {last["minutes"]:.0f} minutes and {last["tokens"] / 1e6:.1f} million tokens.
transformers loads it unchanged; `dg_lsp.json` says how dg-lsp uses it.
"""


def _training(lines: Sequence[dict[str, Any]]) -> str:
    shown = [*lines[:: max(1, len(lines) // 12)], *([lines[-1]] if (len(lines) - 1) % max(1, len(lines) // 12) else [])]
    return (
        "## How it was trained\n\n"
        "`dg_lsp/train/README.md` has the commands and the objective. Losses in nats a token, on files of the training packages\n"
        "that were kept out: of the prefix, of the answer and of the token that ends it, read causally; and of the gap on a\n"
        "canvas at half noise, at half noise conditioned by a first pass, and at full noise.\n\n" + curve.table(shown)
    )


def _data(sources: dict[str, Any]) -> str:
    rows = sorted(sources["sources"], key=lambda source: -source["chars"])
    total = sum(source["chars"] for source in rows)
    head = (
        "## What it was trained on\n\n"
        f"{total / 1e6:.0f} MB of Python from {len(rows)} packages, deduplicated by content; tests, data, generated and vendored files left out.\n"
        f"Held out by name before anything else, for evaluation: {', '.join(sources['held_out'])}.\n\n"
        "| package | version | licence as stated | files | MB |\n| --- | --- | --- | --- | --- |\n"
    )
    return head + "".join(
        f"| {s['name']} | {s['version']} | {s['licence'].replace('|', '/')} | {s['files']} | {s['chars'] / 1e6:.2f} |\n"
        for s in rows
    )
