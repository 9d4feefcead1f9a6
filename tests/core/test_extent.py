"""Where an answer ends: while it is written, and once after."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dg_lsp.core import extent, place
from dg_lsp.core.extent import Bounds
from dg_lsp.core.values import Extent, Hole, Span
from tests.engine import reference


def bounds(
    head: str = "", tail: str = "", language: str = "python", how_far: Extent = "lines", *, knows_end: bool = False
) -> Bounds:
    """Return what ends an answer in a line with these parts before and after it, which has its indentation."""
    here = place.between(head, tail)
    return extent.of(Hole(Span(0, 0), "cursor", indent=here.indent, extent=how_far), here, language, knows_end=knows_end)


# --- The lines of an answer


@pytest.mark.parametrize(
    ("head", "how_far", "written", "is_over"),
    [
        ("    x = ", "line", "1", False),
        ("    x = ", "line", "1\n", True),
        ("    x = ", "line", "1\r", True),
        ("    x = ", "lines", "1\n    y", True),
        ("    ", "lines", "x = 1\n    y", False),
        ("    ", "lines", "x = 1\n", False),
        ("    ", "lines", "x = 1\n\n  ", False),
        ("    ", "lines", "x = 1\ny", True),
        ("    x = (", "block", "1,\n    2", False),
        ("    x = (", "block", "1,\n)", True),
    ],
)
def test_an_answer_is_over_with_its_line_or_before_a_line_that_is_indented_less(
    head: str, how_far: Extent, written: str, is_over: bool
) -> None:
    assert bounds(head, how_far=how_far, knows_end=True).is_over(written) == is_over


def test_in_an_empty_line_an_answer_has_several_lines_only_of_who_knows_its_end() -> None:
    assert bounds("    ", knows_end=True).takes_lines
    assert not bounds("    ").takes_lines
    assert not bounds("    x", knows_end=True).takes_lines


def test_a_server_stops_at_the_end_of_a_line_unless_the_answer_has_several() -> None:
    assert (bounds().stops, bounds(how_far="block").stops) == (("\n",), ())
    assert [bounds(how_far="line").of_server(text) for text in ("a\r\nb", "a\nb", "a", "")] == ["a", "a", "a", ""]
    assert bounds(how_far="block").of_server("a\nb") == "a\nb"


@pytest.mark.parametrize(
    ("head", "how_far", "text", "answer"),
    [
        ("x = ", "line", "1\ny = 2", "1"),
        ("i", "line", "f x:\n    a()\nb()", "f x:"),
        ("i", "lines", "f x:\n    a()\nb()", "f x:\n    a()"),
        ("", "lines", "a()\nb()", "a()\nb()"),
    ],
)
def test_a_written_answer_is_cut_after_its_line_or_the_block_that_the_line_opens(
    head: str, how_far: Extent, text: str, answer: str
) -> None:
    assert bounds(head, how_far=how_far, knows_end=True).cut(text) == answer


# --- The block that an answer opens

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
    return bounds(head, language=language).block("\n".join(lines))


@pytest.mark.parametrize(("language", "head", "lines", "n"), BLOCKS)
def test_block_goes_on_to_its_end(language: str, head: str, lines: list[str], n: int) -> None:
    assert lines_of(language, head, lines) == ("\n".join(lines[:n]), True)


@pytest.mark.parametrize(("language", "head", "lines", "n"), BLOCKS)
def test_line_that_may_go_on_belongs_to_the_block(language: str, head: str, lines: list[str], n: int) -> None:
    own, text = bounds(head, language=language), "\n".join(lines[:n])
    assert all(own.may_go_on(text[:end]) for end in range(len(lines[0]) + 1, len(text)))


@pytest.mark.parametrize("line", ["    return x", "    x.y", "    elements = 1", "    else_ = 1", "y", "  )", "    end[0]"])
def test_line_that_starts_otherwise_does_not_belong_to_it(line: str) -> None:
    assert not bounds("    if ").may_go_on(f"x:\n{line}")


@pytest.mark.parametrize(
    ("language", "head", "text"),
    [("python", "x = ", "1\n    y"), ("typescript", "const x = ", "{\n  a: 1,\n}"), ("typescript", "return ", "{\n  a: 1\n}")],
)
def test_other_lines_open_no_block(language: str, head: str, text: str) -> None:
    assert bounds(head, language=language).block(text) is None


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
    assert bounds("if ", language="typescript").is_whole(text) == is_whole


# --- Where an answer repeats what follows it


@pytest.mark.parametrize(
    ("draft", "suffix", "answer"),
    [
        ("b\n\nf(1)\ng(2)\n", "\n\nf(1)\ng(2)\n", "b"),
        ("b\nf(1)\ng(2)", "\n\nf(1)\ng(2)\n", "b"),  # fewer empty lines
        ("b\n\n\n\nf(1)\ng(2)", "\n\nf(1)\ng(2)\n", "b"),  # more of them
        ("x = {\n}\nfor y in z:\n}\nreturn value\n", "}\nreturn value\n", "x = {\n}\nfor y in z:\n"),
        ("x = {\n}\nfor y in z:\n    pass\n", "}\nreturn value\n", "x = {\n}\nfor y in z:\n    pass\n"),
        ("first, second)", ", second)\n", "first"),
        ("a\nreturn values[ke", "\nreturn values[key].item\n", "a"),  # cut off within the suffix's first line
        ("abc", "\n\n", "abc"),
        ("abc", "", "abc"),
    ],
)
def test_a_draft_ends_before_the_suffix(draft: str, suffix: str, answer: str) -> None:
    assert extent.before_suffix(draft, suffix) == answer


@given(st.text("ab}\n", max_size=14), st.text("ab}\n", max_size=7), st.integers(1, 5))
@example("a}\nb}\nab", "}\nab", 3)
def test_the_end_of_a_draft_equals_the_reference(draft: str, suffix: str, solid: int) -> None:
    assert extent.before_suffix(draft, suffix, solid) == reference.before_suffix(draft, suffix, solid)


@pytest.mark.parametrize(
    ("draft", "suffix", "line"),
    [
        ("a, b", ")\n", "a, b"),
        ("a, b)\nnext", ")\n", "a, b"),
        ("f(a)", ")\n", "f(a)"),  # it never said that the line ends
        ("a\nnext", "\n", "a"),
        ("\nnext", "\n", ""),
    ],
)
def test_a_draft_of_a_line_ends_with_the_line(draft: str, suffix: str, line: str) -> None:
    assert bounds("f(", suffix, how_far="line").of_canvas(draft, is_held=True) == line
