"""The block that an answer opens: where it begins and ends, by lines alone."""

import pytest

from dg_lsp.core import opened

# The language, the text before the answer in its line, the answer's lines, and how many of them belong to the block.
BLOCKS = [
    ("python", "    for ", ["x in xs:", "        print(x)", "    return 1"], 2),
    ("python", "    tr", ["y:", "        a()", "    except OSError:", "        b()", "", "    c()"], 4),
    ("python", "    if ", ["x:", "        a()", "    else_ = 1"], 2),
    ("python", "if ", ["x:", "", "    a()", "y = 1"], 3),
    ("go", "\ti", ["f err != nil {", "\t\treturn err", "\t}", "\treturn nil"], 3),
    ("go", "\tswitch ", ["x {", "\tcase 1:", "\t\ta()", "\tdefault:", "\t\tb()", "\t}", "\tc()"], 6),
    ("typescript", "  if ", ["(x) {", "    a();", "  } else {", "    b();", "  }", "  c();"], 5),
    ("javascript", "  xs.forEach(", ["x => {", "    a(x);", "  });", "  b();"], 3),
    ("ruby", "  items.each ", ["do |item|", "    puts item", "  end", "  x"], 3),
    ("bash", "  if ", ["[ -f x ]; then", "    a", "  fi", "  b"], 3),
    ("java", "        for ", ["(int i : xs) {", "            a(i);", "    }"], 2),
]


def lines_of(language: str, head: str, lines: list[str]) -> tuple[str, bool] | None:
    return opened.block(head, "\n".join(lines), head[: len(head) - len(head.lstrip())], language)


@pytest.mark.parametrize(("language", "head", "lines", "n"), BLOCKS)
def test_block_goes_on_to_its_end(language: str, head: str, lines: list[str], n: int) -> None:
    assert lines_of(language, head, lines) == ("\n".join(lines[:n]), True)


@pytest.mark.parametrize(("language", "head", "lines", "n"), BLOCKS)
def test_line_that_may_go_on_belongs_to_the_block(language: str, head: str, lines: list[str], n: int) -> None:
    indent = head[: len(head) - len(head.lstrip())]
    assert all(
        opened.may_go_on(line[:end], indent) for line in lines[1:n] for end in range(len(line)) if line[:end].strip() != "else_"
    )


@pytest.mark.parametrize("line", ["    return", "    x", "    elements = 1", "    else_ = 1", "y", "  )"])
def test_line_that_starts_otherwise_does_not_belong_to_it(line: str) -> None:
    assert not opened.may_go_on(line, "    ")


@pytest.mark.parametrize(
    ("language", "head", "text"),
    [("python", "x = ", "1\n    y"), ("typescript", "const x = ", "{\n  a: 1,\n}"), ("typescript", "return ", "{\n  a: 1\n}")],
)
def test_other_lines_open_no_block(language: str, head: str, text: str) -> None:
    assert opened.block(head, text, "", language) is None


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [("(x) {", False), ("(x) {\n    a();", False), ("(x) {\n    a();\n}", True), ("(x) {\n    a();\n} else {", False)],
)
def test_block_is_whole_with_all_of_its_brackets(text: str, is_whole: bool) -> None:
    assert opened.is_whole("if ", text, "typescript") == is_whole
