"""Requests drawn as the tokens they become."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dg_lsp.core.values import Hole, InfillRequest, Snippet, Span
from dg_lsp.engine.causal import layout as causal
from dg_lsp.engine.causal.layout import SuffixFirst
from dg_lsp.engine.diffusion.layout import CanvasProfile, Instruct, load_profile
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.engine.model.weights import checkpoint
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("layout.txt"))

CURSOR, BODY = Hole(Span(0, 0), "cursor"), Hole(Span(0, 0), "body", indent="    ", extent="block")


def suffix_first(folder: Path) -> SuffixFirst:
    profile = checkpoint.load_profile(folder, causal.CausalProfile, None)
    return SuffixFirst(profile, Vocabulary.from_file(folder / "tokenizer.json"))


def read(folder: Path, request: InfillRequest) -> str:
    """Return what the embedded model's layout reads as text, and what is healed."""
    made = suffix_first(folder)
    prompt = made.lay_out(request)
    return f"{shown(made.vocabulary, prompt.ids)}⟪{prompt.heal.decode()}⟫"


def shown(vocabulary: Vocabulary, ids: tuple[int, ...]) -> str:
    return "".join(str(vocabulary.tokenizer.id_to_token(i)) if i in vocabulary.special else vocabulary.decode([i]) for i in ids)


def drawn(folder: Path, request: InfillRequest, profile: CanvasProfile | None = None) -> str:
    """Return the prompt as text: the encoder's side, what is healed, and what is held after the gap."""
    vocabulary = Vocabulary.from_file(folder / "tokenizer.json")
    prompt = Instruct(profile or load_profile(folder), vocabulary).lay_out(request)

    def text(ids: tuple[int, ...]) -> str:
        return shown(vocabulary, ids)

    middle = "".join(f"⟦⟧{text(part)}" for part in prompt.between)
    return f"{text(prompt.ids)}⟪{prompt.heal.decode()}⟫{middle}⟦⟧{text(prompt.tail)}"


def request(prefix: str, suffix: str, *holes: Hole, **more: object) -> InfillRequest:
    return InfillRequest(prefix, suffix, holes or (CURSOR,), language="python", **more)  # type: ignore[arg-type]


def test_the_suffix_comes_first(trained_layout: Path) -> None:
    assert read(trained_layout, request("def f():\n", "\nf()\n", BODY, path="src/pkg/mod.py")) == (
        "<bos><path>pkg/mod.py<suf>\nf()\n<eos><body><pre>def f():\n⟪⟫"
    )


@pytest.mark.parametrize(("prefix", "kept", "healed"), ROWS["healed"])
def test_a_cursor_inside_a_line_is_healed(trained_layout: Path, prefix: str, kept: str, healed: str) -> None:
    assert read(trained_layout, request(prefix, "")).endswith(f"<pre>{kept}⟪{healed}⟫")


@pytest.mark.parametrize(
    ("prefix", "suffix", "hole", "kind"),
    [
        ("x = ", "\ny = 2\n", CURSOR, "line"),
        ("x = ", "", CURSOR, "line"),
        ("x = f(", ")\n", CURSOR, "span"),
        ("if x:\n    ", "\n", Hole(Span(0, 0), "cursor", extent="block"), "block"),
        ("if x:\n", "y = 2\n", Hole(Span(0, 0), "cursor", extent="block"), "lines"),
        ("", "y = 2\n", Hole(Span(0, 0), "selection", extent="block"), "lines"),
        ("def f():\n    ", "\n", BODY, "body"),
    ],
)
def test_the_kind_of_hole_comes_before_the_prefix(
    trained_layout: Path, prefix: str, suffix: str, hole: Hole, kind: str
) -> None:
    assert f"<{kind}><pre>" in read(trained_layout, request(prefix, suffix, hole))


def test_an_instruction_becomes_a_comment_before_the_hole(trained_layout: Path) -> None:
    hole = Hole(Span(0, 0), "marker", indent="    ", extent="block", instruction="add them")
    assert "<pre>def f():\n    # add them\n    ⟪⟫" in read(trained_layout, request("def f():\n    ", "\n", hole))


def test_the_instruct_layout_starts_the_answer_with_the_lines_before_the_hole(instruct_layout: Path) -> None:
    assert drawn(instruct_layout, request("import os\ndef f(a):\n    return a +", "\n\nf(1)\n", path="m.py")) == (
        "<bos><|turn>user\n"
        "Code is missing from m.py. Reply with the last lines before the gap, the missing code, and the code that follows it. "
        "Write nothing else.\nThe code after the gap:\n```python\n\n\nf(1)\n```<turn|>\n"
        "<|turn>model\n<|channel>thought\n<channel|>```python\nimport os\ndef f(a):\n    return a"
        "⟪ +⟫⟦⟧\n\nf(1)\n```<turn|><eos>"
    )


def test_the_instruct_layout_puts_the_prefix_last_and_its_end_in_the_answer(instruct_layout: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(11))
    drawing = drawn(instruct_layout, request(text + "x", "\ny\n", related=(Snippet("b.py", "b"), Snippet("a.py", "a"))))
    user, model = drawing.split("<turn|>\n<|turn>model\n")
    related = user.index("File a.py")
    after, before = user.index("The code after the gap"), user.index("The code before the gap")
    assert related < user.index("File b.py") < after < before
    assert user.endswith("line 7\n```")
    assert model.startswith(f"<|channel>thought\n<channel|>```python\n{text}")


def test_the_instruct_layout_marks_further_holes(instruct_layout: Path) -> None:
    text = drawn(instruct_layout, request("a\n", "c\n", BODY, BODY, between=("b\n",)))
    assert "missing from a file and at each <|fim_hole|>." in text
    assert "```python\nb\n<|fim_hole|>c\n```" in text


LINES = "".join(f"value_{n} = {n}\n" for n in range(40))


@pytest.mark.parametrize(
    ("suffix", "held"),
    [
        ("\nf(1)\n", "\nf(1)\n"),
        (")\nf(1)\n" + LINES, ")\nf(1)\n"),
        ("\n" + "x" * 14 + "\n" + LINES, "\n" + "x" * 14 + "\n"),  # empty lines alone say too little
        ("x" * 14 + "\n" + LINES, "x" * 14 + "\n"),
        ("x" * 40 + "\n" + LINES, ""),
        ("\n" + "x" * 40 + "\n" + LINES, "\n"),
        ("f(1)", "f(1)"),
        ("", ""),
    ],
)
def test_whole_lines_are_held_and_the_answer_is_closed_at_the_files_end(instruct_layout: Path, suffix: str, held: str) -> None:
    profile = replace(load_profile(instruct_layout), held_tokens=9)
    text = drawn(instruct_layout, InfillRequest("a = 1\nb = ", suffix, (CURSOR,)), profile).rpartition("⟦⟧")[2]
    closing = "```<turn|><eos>" if held.endswith("\n") else "\n```<turn|><eos>"
    assert text == held + (closing if held == suffix else "")


@given(st.text("ab \n", max_size=60), st.integers(1, 12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_held_suffix_ends_within_a_line(instruct_layout: Path, suffix: str, n_held: int) -> None:
    vocabulary = Vocabulary.from_file(instruct_layout / "tokenizer.json")
    profile = CanvasProfile(held_tokens=n_held, suffix_tokens=30)
    prompt = Instruct(profile, vocabulary).lay_out(InfillRequest("a", suffix, (CURSOR,)))
    held = vocabulary.decode(prompt.tail)
    if prompt.tail and prompt.tail[-1] in vocabulary.special:
        assert held == suffix + ("```" if suffix.endswith("\n") else "\n```")
    else:
        assert suffix.startswith(held)
        assert not held or held.endswith("\n")


PASSAGE = Snippet("copied.py", "x = 1\n", for_copying=True)


def test_the_instruct_layout_states_the_wish_and_shows_related_text(instruct_layout: Path) -> None:
    hole = Hole(Span(0, 0), "marker", instruction="sort by name", extent="block")
    text = drawn(instruct_layout, request("a\n", "", hole, related=(Snippet("b.py", "def g(): ..."), PASSAGE)))
    assert PASSAGE.path not in text
    assert "File b.py:\n```python\ndef g(): ...\n```\n" in text
    assert "It should do this: sort by name. " in text


def test_a_tokenizer_without_the_layouts_tokens_is_named(trained_layout: Path) -> None:
    vocabulary = Vocabulary.from_file(trained_layout / "tokenizer.json")
    broken = Vocabulary.from_file(trained_layout / "tokenizer.json")
    broken.id = lambda token: None if token == "<suf>" else vocabulary.id(token)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="no token <suf>"):
        SuffixFirst(suffix_first(trained_layout).profile, broken)


@pytest.mark.parametrize("text", ["x = 1\n", "\tif a:\r\n", "naïve 😀 日本", "a\u2028b\x0cc", ""])
@pytest.mark.parametrize("which", ["trained_layout", "instruct_layout"])
def test_text_survives_the_vocabulary(request: pytest.FixtureRequest, which: str, text: str) -> None:
    vocabulary = Vocabulary.from_file(request.getfixturevalue(which) / "tokenizer.json")
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_a_lone_surrogate_does_not_fail(trained_layout: Path) -> None:
    vocabulary = Vocabulary.from_file(trained_layout / "tokenizer.json")
    assert vocabulary.decode(vocabulary.encode("a\ud800b")) == "a?b"


def test_related_text_keeps_to_its_budget(instruct_layout: Path) -> None:
    many = tuple(Snippet(f"{n}.py", "x = 1\n" * 200) for n in range(30))
    text = drawn(instruct_layout, request("a\n", "", BODY, related=many))
    assert "File 0.py" in text
    assert "File 29.py" not in text
