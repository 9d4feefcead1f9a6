"""Templates of fill-in-the-middle prompts, as the models' authors and Ollama's library publish them."""

from __future__ import annotations

import pytest

from dg_lsp.core import templates

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
    template = templates.for_model(model)
    assert template is not None
    assert template.write(BEFORE, AFTER) == PUBLISHED[model]


def test_an_unknown_model_has_no_template() -> None:
    assert templates.for_model("gpt-3.5-turbo-instruct") is None
    assert templates.for_model("embedded") is None
