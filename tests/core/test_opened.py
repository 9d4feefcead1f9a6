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
    ("cpp", "  t", ["ry {", "    a();", "  }", "  catch (const E& e) {", "    b();", "  }", "  c();"], 6),
    ("javascript", "  if ", ["(a) {", "    b();", "  }", "  else {", "    c();", "  }", "  d();"], 6),
    ("c", "  d", ["o {", "    a();", "  }", "  while (b);", "  c();"], 4),
    ("c", "  if ", ["(a) {", "    b();", "  }", "  while (c) {", "    d();", "  }"], 3),
    ("javascript", "  useMemo(", ["() => {", "    return a;", "  }, [", "    b,", "  ]);", "  c();"], 5),
    ("java", "  String f() ", ["{", '    return """', "a", 'b""".x();', "  }", "  int c;"], 5),
    ("python", "if ", ["ok:", "    x()", "done()"], 2),
    ("python", "if ", ["a:", "    x()", "else:  # b", "    y()", "z()"], 4),
    ("python", "def ", ["f():", '    x = """', "abc", '"""', "y = 1"], 4),
    ("python", "if ", ["a:", "    x()", "# why", "else:", "    y()", "z()"], 5),
    ("typescript", "  if ", ["(a) {  // b", "    x();", "  }", "  y();"], 3),
    ("c", "  if ", ["(a) {", "#ifdef B", "    x();", "#endif", "  }", "  y();"], 5),
    ("cpp", "class ", ["A {", "public:", "    int b;", "};", "int c;"], 4),
    ("java", "        for ", ["(int i : xs) {", "            a(i);", "    }"], 2),
]


def lines_of(language: str, head: str, lines: list[str]) -> tuple[str, bool] | None:
    return opened.block(head, "\n".join(lines), head[: len(head) - len(head.lstrip())], language)


@pytest.mark.parametrize(("language", "head", "lines", "n"), BLOCKS)
def test_block_goes_on_to_its_end(language: str, head: str, lines: list[str], n: int) -> None:
    assert lines_of(language, head, lines) == ("\n".join(lines[:n]), True)


@pytest.mark.parametrize(("language", "head", "lines", "n"), BLOCKS)
def test_line_that_may_go_on_belongs_to_the_block(language: str, head: str, lines: list[str], n: int) -> None:
    indent, text = head[: len(head) - len(head.lstrip())], "\n".join(lines[:n])
    assert all(opened.may_go_on(head, text[:end], indent, language) for end in range(len(lines[0]) + 1, len(text)))


@pytest.mark.parametrize("line", ["    return x", "    x.y", "    elements = 1", "    else_ = 1", "y", "  )", "    end[0]"])
def test_line_that_starts_otherwise_does_not_belong_to_it(line: str) -> None:
    assert not opened.may_go_on("    if ", f"x:\n{line}", "    ", "python")


@pytest.mark.parametrize(
    ("language", "head", "text"),
    [("python", "x = ", "1\n    y"), ("typescript", "const x = ", "{\n  a: 1,\n}"), ("typescript", "return ", "{\n  a: 1\n}")],
)
def test_other_lines_open_no_block(language: str, head: str, text: str) -> None:
    assert opened.block(head, text, "", language) is None


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ("(x) {", False),
        ("(x) {\n    a();", False),
        ("(x) {\n    a();\n}", True),
        ("(x) {\n    a();\n} else {", False),
        ("(x) {\n    a(`b}\n", False),
    ],
)
def test_block_is_whole_with_all_of_its_brackets(text: str, is_whole: bool) -> None:
    assert opened.is_whole("if ", text, "typescript") == is_whole
