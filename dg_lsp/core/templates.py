"""The templates of prompts with fill-in-the-middle markers, as models were published with them.

A template has the text before the cursor, that after it, and markers around both. Models that were trained on whole
repositories also read other files before the one with the cursor, each after a line with its path. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Template:
    """One template: its format, the names of the models that use it, and the marker of a line with a file's path."""

    format: str
    models: str
    """A pattern that is searched for in a model's name, in small letters; "" for none."""
    path_mark: str = ""

    def write(self, prefix: str, suffix: str) -> str:
        """Return the prompt for a cursor between two texts."""
        return self.format.format(prefix=prefix, suffix=suffix)


# Qwen's and StarCoder's templates are also those of CodeGemma, and of Granite, StableCode and Refact.
TEMPLATES = (
    Template("<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>", r"qwen|codegemma", "<|file_sep|>"),
    Template("<fim_suffix>{suffix}<fim_prefix>{prefix}<fim_middle>", "mellum", "<filename>"),
    Template("<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>", "starcoder|granite|stable-?code|refact", "<file_sep>"),
    Template("<PRE> {prefix} <SUF>{suffix} <MID>", "code-?llama"),
    Template("<PRE>{prefix}<SUF>{suffix}<MID>", ""),
    Template("<｜fim▁begin｜>{prefix}<｜fim▁hole｜>{suffix}<｜fim▁end｜>", "deepseek-coder"),
    Template("[SUFFIX]{suffix}[PREFIX]{prefix}", "codestral"),
    Template("<|code_prefix|>{prefix}<|code_suffix|>{suffix}<|code_middle|>", r"\bglm-4"),
    Template("<[fim-suffix]>{suffix}<[fim-prefix]>{prefix}<[fim-middle]>", "seed-coder"),
)


def for_model(name: str) -> Template | None:
    """Return the template of a model, judged by its name; None if it is not known."""
    return next((one for one in TEMPLATES if one.models and re.search(one.models, name.casefold())), None)
