"""Lines that stand for missing code, recognised without a syntax tree."""

from __future__ import annotations

import pytest

from dg_lsp.core import placeholders

LINES = (
    "pass", "...", "raise NotImplementedError", 'raise NotImplementedError("later")', "todo!()", 'unimplemented!("later");',
    'throw new Error("not implemented");', "throw new NotImplementedException();", 'panic("TODO: later")',
)  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_placeholder_of_any_language_is_recognised(line: str) -> None:
    assert placeholders.is_line(line)
    assert placeholders.removed(f"before\n    {line}  \nafter\n") == "before\nafter\n"


@pytest.mark.parametrize(
    "line",
    [
        "pass   end",
        "raise NotImplementedError ...",
        'throw new Error("not implemented"); end',
        "todo!();\tpass; end ;",
        ": done",
    ],
)
def test_more_placeholders_and_the_ends_of_blocks_may_follow_on_the_line(line: str) -> None:
    assert placeholders.is_line(line)


@pytest.mark.parametrize(
    "line",
    [
        "end", "return x end", "pass the end", "", "; ;", "end pass_on", "pass_on()", "x = pass", "raise ValueError",
        'panic("no memory")', "return ...", "else: pass",
    ],
)  # fmt: skip
def test_code_is_not_a_placeholder(line: str) -> None:
    assert not placeholders.is_line(line)
    assert placeholders.removed(f"{line}\n") == f"{line}\n"


def test_the_unfinished_last_line_stays() -> None:
    # It is the line of the hole, and drafts are compared with its white space.
    assert placeholders.removed("def f():\n    pass\n\ndef g():\n    ") == "def f():\n\ndef g():\n    "
    assert placeholders.removed("    pass") == "    pass"


@pytest.mark.parametrize("text", ["pass", "", "...\n", '"""Return it."""', '"""Return\n    it."""\n    pass', "'''It.'''\n"])
def test_docstrings_and_placeholders_say_nothing(text: str) -> None:
    assert placeholders.says_nothing(text)


@pytest.mark.parametrize("text", ["return 1", '"""Return it."""\n    return 1', 'x = """a"""', "pass_ = 1", '"""a""" + b'])
def test_code_beside_a_docstring_says_something(text: str) -> None:
    assert not placeholders.says_nothing(text)
