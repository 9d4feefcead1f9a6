"""Read and write prompts with fill-in-the-middle markers, in the templates that models were published with.

A template has the text before the cursor, that after it, and markers around both. Models that were trained on whole
repositories also read other files before the one with the cursor, each after a line with its path. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dg_lsp.core.values import Snippet


@dataclass(frozen=True, slots=True)
class Template:
    """One template: its format, the names of the models that use it, and the marker of a line with a file's path."""

    format: str
    models: str
    """A pattern that is searched for in a model's name, in small letters; "" for none."""
    path_mark: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a prompt contains: both sides of the cursor, the path of their file ("" if unknown), and other files."""

    prefix: str
    suffix: str
    path: str = ""
    related: tuple[Snippet, ...] = ()


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
# Before the first marker, only the beginning of the text and the name of the repository may stand.
_BEGINNING = re.compile(
    r"(?:<s>|<\|begin_of_text\|>|<｜begin▁of▁sentence｜>)?(?:(?:<\|repo_name\|>|<reponame>|<repo_name>)[^\n<]*\n?)?"
)


def for_model(name: str) -> Template | None:
    """Return the template of a model, judged by its name; None if it is not known."""
    return next((one for one in TEMPLATES if one.models and re.search(one.models, name.casefold())), None)


def read(prompt: str) -> Parts | None:
    """Return the parts of a prompt; None unless it is written in one of the templates from its beginning to its end.

    Text that merely contains markers, such as this file, is not a prompt in a template.
    """
    return next((parts for one in TEMPLATES if (parts := _read(prompt, one)) is not None), None)


def write(template: Template, prefix: str, suffix: str) -> str:
    """Return the prompt for a cursor between two texts."""
    return template.format.format(prefix=prefix, suffix=suffix)


def _read(prompt: str, template: Template) -> Parts | None:
    first, second, last = re.split(r"\{(?:prefix|suffix)\}", template.format)
    at = prompt.find(first)
    middle = prompt.find(second, at + len(first)) if at >= 0 else -1
    if middle < 0 or not prompt.endswith(last) or len(prompt) - len(last) < middle + len(second):
        return None
    texts = prompt[at + len(first) : middle], prompt[middle + len(second) : len(prompt) - len(last)]
    prefix, suffix = texts if template.format.find("{prefix}") < template.format.find("{suffix}") else texts[::-1]
    head = prompt[:at]
    beginning = _BEGINNING.match(head)
    head = head[beginning.end() :] if beginning else head
    if not head:
        return Parts(prefix, suffix)
    if not template.path_mark or not head.startswith(template.path_mark):
        return None
    files = [part.partition("\n") for part in head.split(template.path_mark)[1:]]
    *others, (path, _, rest) = files
    return None if rest else Parts(prefix, suffix, path, tuple(Snippet(name, text) for name, _, text in others))
