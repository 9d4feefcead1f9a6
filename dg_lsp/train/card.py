"""Write the model card: what the model is, its training data and training, and its scores.

Every figure comes from a file that another command wrote. This module knows those files, and nothing of how they were
made.
"""

# ruff: noqa: E501  (prose: one sentence a line, as in every Markdown file)

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dg_lsp.engine.model.profile import load_profile as load_profile
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.train import curve

COMMIT_DIGITS = 40  # of git's SHA-1
TABLE = "sources.csv"  # next to the card

LIMITS = """\
## Limits

* It is small and has seen few tokens. It knows the syntax and the idioms of common code, not what your code means. Check what it writes.
* {languages}
* It reads {prefix} tokens before a hole and {suffix} after it, and its canvas has room for {gap} tokens in one hole.
* A canvas that starts from noise is one of several kinds of row. The tables above show its score alone, and what copies and causal drafts add.
* HumanEval-Infilling was not available where the model was trained, so the card has no figure for it.
"""


def write(run: Path, folder: Path, *, results: str, ablation: str) -> str:
    """Return the card of the checkpoint in `folder`, trained in `run`; `results` and `ablation` are Markdown tables.

    Raises OSError if a file is missing, and EvalError if one lacks what the card needs.
    """
    sources, config = _object(run / "corpus" / "sources.json"), _object(folder / "config.json")
    try:
        lines, profile = curve.read(run / "curve.jsonl"), load_profile(folder)
    except ValueError as error:
        raise EvalError(str(error)) from error
    if not lines:
        raise EvalError(f"{run / 'curve.jsonl'} is empty: the training has recorded nothing yet")
    return "\n".join(
        [
            _head(config["text_config"], lines, folder, _origin(run) + _where(run)),
            "## Scores\n",
            results,
            "## Scores without each part\n",
            ablation,
            LIMITS.format(
                languages=_languages(sources),
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
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EvalError(f"{path} can't be read: {error}") from error
    return values


def _origin(run: Path) -> str:
    """Return what the weights were before the run, as the middle of a sentence."""
    file = run / curve.START
    return f" from the weights of {_object(file)['weights']}" if file.exists() else " from scratch"


def _where(run: Path) -> str:
    """Return the hardware of the run's legs, as the end of a sentence; "" if it was not recorded."""
    if not (run / curve.PLAN).exists():
        return ""
    legs = _object(run / curve.PLAN)["legs"]
    return ", on " + " and on ".join(_machine(**leg) for leg in legs)


def _machine(device: str, name: str, threads: int) -> str:
    if device != "cpu":
        return f"one {name or device}"
    return "one thread of a CPU" if threads == 1 else f"{threads} threads of a CPU"


def _head(text: dict[str, Any], lines: Sequence[dict[str, Any]], folder: Path, how: str) -> str:
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
It was trained{how}, in {last["minutes"]:.0f} minutes and {last["tokens"] / 1e6:.1f} million tokens.
transformers loads it unchanged; `dg_lsp.json` says how dg-lsp uses it.
"""


def _training(lines: Sequence[dict[str, Any]]) -> str:
    sample = [*lines[:: max(1, len(lines) // 12)], *([lines[-1]] if (len(lines) - 1) % max(1, len(lines) // 12) else [])]
    return (
        "## How it was trained\n\n"
        "`dg_lsp/train/README.md` has the commands and the objective. The losses are in nats per token, on held-out files of the\n"
        "training packages. The causal losses are those of the prefix, of the answer and of the token that ends it. The canvas\n"
        "losses are those of the gap at half noise, at half noise conditioned by a first pass, and at full noise.\n\n"
        + curve.table(sample)
    )


def _language(source: dict[str, Any]) -> str:
    """Return the language of a source: its name begins with it, unless it is an installed Python package."""
    folder, slash, _ = str(source["name"]).partition("/")
    return folder if slash else "python"


def _shares(sources: dict[str, Any]) -> list[tuple[str, float]]:
    """Return each language with its share of the characters, the largest first."""
    chars: Counter[str] = Counter()
    for source in sources["sources"]:
        chars[_language(source)] += source["chars"]
    return [(language, part / max(1, chars.total())) for language, part in chars.most_common()]


def _languages(sources: dict[str, Any]) -> str:
    """Return the limits that the languages of the training data set."""
    (first, _), *others = _shares(sources)
    if not others:
        return (
            f"Its training data had no language other than {first}. "
            "Its answers in other languages come from copying the file and from what all languages share."
        )
    shares = ", ".join(f"{language} {share:.1%}" for language, share in _shares(sources))
    return f"Most of what it has read is {first}. Characters of the training data: {shares}."


def _version(version: str) -> str:
    """Return the version as the table shows it: a commit by its first ten digits."""
    return version[:10] if len(version) == COMMIT_DIGITS else version


def _data(sources: dict[str, Any]) -> str:
    rows = sources["sources"]
    total = sum(source["chars"] for source in rows)
    held = ", ".join(sources["held_out"])
    return (
        "## What it was trained on\n\n"
        f"{total / 1e6:.0f} MB of sources in {len(rows)} parts, deduplicated by content, without data, generated and vendored files.\n"
        + (f"These packages were held out for evaluation: {held}.\n" if held else "")
        + f"[{TABLE}]({TABLE}) names each source with its version, stated licence, files and MB.\n"
    )


def sources_table(run: Path) -> str:
    """Return a CSV of what the run was trained on, the largest source first. Raises as `write` does."""
    table = io.StringIO()
    lines = csv.writer(table, lineterminator="\n")
    lines.writerow(["source", "version", "licence", "files", "MB"])
    for each in sorted(_object(run / "corpus" / "sources.json")["sources"], key=lambda source: -source["chars"]):
        lines.writerow([each["name"], _version(each["version"]), each["licence"], each["files"], f"{each['chars'] / 1e6:.2f}"])
    return table.getvalue()
