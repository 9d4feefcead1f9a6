"""Templates of fill-in-the-middle prompts, as the models' authors and Ollama's library publish them."""

from __future__ import annotations

import pytest

from dg_lsp.core import fim
from dg_lsp.core.fim import Parts
from dg_lsp.core.values import Snippet

BEFORE, AFTER = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"
# Each model's prompt for the texts above, spelled out.
PUBLISHED = {
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": f"<|fim_prefix|>{BEFORE}<|fim_suffix|>{AFTER}<|fim_middle|>",
    "qwen2.5-coder:7b-base": f"<|fim_prefix|>{BEFORE}<|fim_suffix|>{AFTER}<|fim_middle|>",
    "google/codegemma-2b": f"<|fim_prefix|>{BEFORE}<|fim_suffix|>{AFTER}<|fim_middle|>",
    "JetBrains/Mellum-4b-base": f"<fim_suffix>{AFTER}<fim_prefix>{BEFORE}<fim_middle>",
    "bigcode/starcoder2-7b": f"<fim_prefix>{BEFORE}<fim_suffix>{AFTER}<fim_middle>",
    "ibm-granite/granite-3b-code-base": f"<fim_prefix>{BEFORE}<fim_suffix>{AFTER}<fim_middle>",
    "codellama:7b-code": f"<PRE> {BEFORE} <SUF>{AFTER} <MID>",
    "deepseek-coder:6.7b-base": f"<｜fim▁begin｜>{BEFORE}<｜fim▁hole｜>{AFTER}<｜fim▁end｜>",
    "mistralai/Codestral-22B-v0.1": f"[SUFFIX]{AFTER}[PREFIX]{BEFORE}",
    "glm-4.5": f"<|code_prefix|>{BEFORE}<|code_suffix|>{AFTER}<|code_middle|>",
    "ByteDance-Seed/Seed-Coder-8B-Base": f"<[fim-suffix]>{AFTER}<[fim-prefix]>{BEFORE}<[fim-middle]>",
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_prompt_has_the_markers_of_the_published_template(model: str) -> None:
    template = fim.for_model(model)
    assert template is not None
    assert fim.write(template, BEFORE, AFTER) == PUBLISHED[model]
    assert fim.read(PUBLISHED[model]) == Parts(BEFORE, AFTER)


def test_a_template_without_spaces_is_read_too() -> None:
    assert fim.read(f"<PRE>{BEFORE}<SUF>{AFTER}<MID>") == Parts(BEFORE, AFTER)


def test_an_unknown_model_has_no_template() -> None:
    assert fim.for_model("gpt-3.5-turbo-instruct") is None
    assert fim.for_model("embedded") is None


def test_other_files_before_the_markers_are_read() -> None:
    marked = f"<|repo_name|>shop\n<|file_sep|>a.py\nA = 1\n<|file_sep|>b.py\n{PUBLISHED['qwen2.5-coder:7b-base']}"
    assert fim.read(marked) == Parts(BEFORE, AFTER, "b.py", (Snippet("a.py", "A = 1\n"),))
    mellum = f"<filename>a.py\nA = 1\n<filename>b.py\n{PUBLISHED['JetBrains/Mellum-4b-base']}"
    assert fim.read(mellum) == Parts(BEFORE, AFTER, "b.py", (Snippet("a.py", "A = 1\n"),))


@pytest.mark.parametrize(
    "text",
    [
        "",
        BEFORE,
        "x = '<fim_prefix>a<fim_suffix>b<fim_middle>'\n",
        "<fim_prefix>a<fim_suffix>b<fim_middle>\n",
        "# see <fim_prefix>a<fim_suffix>b<fim_middle>",
        "<fim_prefix>only",
        "<fim_prefix><fim_middle>",
        "[PREFIX]a[SUFFIX]b",
        "x[SUFFIX]a[PREFIX]b",
        "<|fim_prefix|>a<fim_suffix>b<|fim_middle|>",
    ],
)
def test_code_that_contains_markers_stays_code(text: str) -> None:
    assert fim.read(text) is None
