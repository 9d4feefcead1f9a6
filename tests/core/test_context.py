"""What the model reads, as drawings: ⟦…⟧ is a hole with its old text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import context, languages, syntax
from dg_lsp.core.values import Document, Hole, InfillRequest, Snippet, Span
from tests import marked
from tests.fakes import drawn

ROWS = marked.rows(Path(__file__).with_name("context.txt"))


def picture(request: InfillRequest) -> str:
    """Draw the window of a request, each hole as ⟦⟧."""
    return "⟦⟧".join((request.prefix, *request.between, request.suffix))


LINES = "one\ntwo\n⟦⟧\nfour\nfive\n"


@pytest.mark.parametrize(
    ("text", "expected", "options"),
    [
        ("def f():\n    ⟦pass⟧\nf()\n", "def f():\n    ⟦⟧\nf()\n", {}),  # both sides
        ("⟦⟧", "⟦⟧", {}),
        ("⟦⟧x", "⟦⟧x", {}),
        ("a = ⟦⟧\nb = ⟦1⟧\nc = 2\n", "a = ⟦⟧\nb = ⟦⟧\nc = 2\n", {}),  # the text between holes
        ("f() {⟦⟧}\n", "f() {\n  ⟦⟧\n}\n", {"lead": "\n  ", "trail": "\n"}),  # lead and trail are fixed text
        ("{⟦⟧} {⟦⟧}", "{<⟦⟧>} {<⟦⟧>}", {"lead": "<", "trail": ">"}),
        ("\ufeffa\r\nb\r⟦⟧\r\nc\rd\n", "a\nb\n⟦⟧\nc\nd\n", {}),  # plain line ends, and no byte order mark at the start
        ("a\n⟦⟧\ufeffb", "a\n⟦⟧\ufeffb", {}),
        (LINES, "⟦⟧\n", {"window_chars": 1}),  # cut at line starts
        (LINES, "⟦⟧\n", {"window_chars": 3}),
        (LINES, "two\n⟦⟧\n", {"window_chars": 4}),
        (LINES, "two\n⟦⟧\nfour\n", {"window_chars": 6}),
        (LINES, "one\ntwo\n⟦⟧\nfour\n", {"window_chars": 8}),
        (LINES, LINES, {"window_chars": 11}),
        (LINES, LINES, {"window_chars": 99}),
        (LINES.replace("\n", "\r"), "two\n⟦⟧\nfour\n", {"window_chars": 6}),
        (LINES.replace("\n", "\r\n"), "two\n⟦⟧\nfour\n", {"window_chars": 8}),
        ("x" * 50 + "⟦⟧" + "y" * 50, "xxxxx⟦⟧yyyyy", {"window_chars": 5}),  # a longer line is cut inside
    ],
)
def test_a_window_has_the_text_around_its_holes(text: str, expected: str, options: dict[str, Any]) -> None:
    document, holes = drawn(text, lead=options.pop("lead", ""), trail=options.pop("trail", ""))
    assert picture(context.build(document, holes, **options)) == expected


def test_the_start_of_a_window_moves_once_in_many_keys_and_lines() -> None:
    text = "".join(f"value_{number} = {number}\n" for number in range(100, 400))
    requests = [
        context.build(Document("", "", text), [Hole(Span(at, at), "cursor")], window_chars=800) for at in range(2000, 4000)
    ]
    starts = [text.index(request.prefix) for request in requests]
    assert len(set(starts)) == 21
    assert all(680 < len(request.prefix) <= 800 for request in requests)


@pytest.mark.parametrize(
    ("spans", "sentence"),
    [
        ((), "a request needs at least one hole"),
        (((2, 3), (0, 1)), "holes overlap or are out of order"),
        (((0, 2), (1, 3)), "holes overlap or are out of order"),
        (((0, 9),), "a hole ends at 9, beyond the text's 3 characters"),
    ],
)
def test_invalid_holes_are_refused(spans: tuple[tuple[int, int], ...], sentence: str) -> None:
    document = Document("", "", "abc")
    holes = [Hole(Span(*span), "cursor") for span in spans]
    with pytest.raises(ValueError, match=sentence):
        context.build(document, holes)


@given(text=st.text("ab\r\n", max_size=60), at=st.integers(0, 60), window_chars=st.integers(1, 30))
def test_a_window_is_part_of_the_text_and_starts_lines(text: str, at: int, window_chars: int) -> None:
    at = min(at, len(text))
    request = context.build(Document("", "", text), [Hole(Span(at, at), "cursor")], window_chars=window_chars)
    before, after = context.with_newlines(text[:at]), context.with_newlines(text[at:])
    assert before.endswith(request.prefix)
    assert after.startswith(request.suffix)
    assert len(request.prefix) <= window_chars
    assert len(request.suffix) <= window_chars


# --- Which holes share a request --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected", "bounds"),
    [
        ("⟦⟧ + ⟦⟧\n⟦⟧", [3], {}),
        ("⟦⟧ " + "x" * 500 + "⟦⟧ ⟦⟧", [1, 2], {}),  # distant
        ("⟦⟧123⟦⟧123⟦⟧123⟦⟧", [2, 2], {"max_chars": 5}),  # the fixed text of a group is bounded
        ("⟦a long old body⟧12⟦a long old body⟧", [2], {"max_chars": 5}),  # without the text inside of holes
        ("⟦⟧ ⟦⟧ ⟦⟧ ⟦⟧ ⟦⟧", [4, 1], {}),
        ("no hole", [], {}),
    ],
)
def test_close_holes_share_a_request(text: str, expected: list[int], bounds: dict[str, int]) -> None:
    _, holes = drawn(text)
    groups = context.group(holes[::-1], **bounds)
    assert [len(group) for group in groups] == expected
    assert [hole for group in groups for hole in group] == list(holes)


def test_overlapping_holes_never_share_a_request() -> None:
    holes = [Hole(Span(0, 3), "cursor"), Hole(Span(2, 4), "cursor"), Hole(Span(5, 5), "cursor"), Hole(Span(5, 5), "body")]
    assert [len(group) for group in context.group(holes)] == [1, 2, 1]


# --- Signatures of the same file --------------------------------------------------------------------------------------

MODULE = "def first(a):\n    return a\n\n\nclass Second:\n    def third(self):\n        ⟦⟧\n\n\ndef fourth(b):\n    return b\n"


def test_signatures_outside_the_window_are_related_text() -> None:
    document, holes = drawn(MODULE, language="python")
    request = context.build(document, holes, syntax=syntax.of(document), window_chars=22, path="a.py")
    assert [snippet.path for snippet in request.related] == ["a.py"]
    assert [line.strip() for line in request.related[0].text.splitlines()] == [
        "def first(a):",
        "class Second:",
        "def third(self):",
    ]


def test_a_file_that_fits_needs_no_outline() -> None:
    document, holes = drawn(MODULE, language="python")
    assert context.build(document, holes, syntax=syntax.of(document)).related == ()


# --- Imports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("language", "text", "expected"), ROWS["imports"])
def test_imports_are_read_as_written(language: str, text: str, expected: str) -> None:
    assert ", ".join(context.imports(text, language)) == expected


def test_every_language_of_the_table_has_imports() -> None:
    assert {language.name for language in languages.TABLE} <= {row.values[0] for row in ROWS["imports"]}


def test_an_instruction_is_a_comment_line_before_the_hole_or_above_its_line_of_code() -> None:
    def said(language: str, prefix: str = "x\n  ", instruction: str = "add  a\nand b", *, block: bool = False) -> str:
        hole = Hole(Span(0, 0), "cursor", indent="  ", instruction=instruction, extent="block" if block else "line")
        return context.with_instruction(InfillRequest(prefix, "", (hole,), language=language))

    assert said("python") == "x\n  # add a and b\n  "
    assert said("go") == "x\n  // add a and b\n  "
    assert said("python", "x\n  y = z ") == "x\n  # add a and b\n  y = z "
    assert said("python", "y = z ") == "# add a and b\ny = z "
    assert said("python", "def f(): ", block=True) == "def f(): # add a and b\n  "
    assert (said(""), said("python", instruction="")) == ("x\n  ", "x\n  ")


def test_marks_of_other_holes_are_not_shown_but_in_the_line_of_the_hole() -> None:
    def shown(text: str, language: str) -> tuple[str, str]:
        at = text.index("⟦⟧")
        document = Document("file:///a", language, text.replace("⟦⟧", ""))
        request = context.build(document, (Hole(Span(at, at), "cursor"),), syntax=syntax.of(document))
        return request.prefix, request.suffix

    text = (
        "function f(a) {\r\n  // FILL: add\r\n  b = a; // FILL\r\n  return g(a, /* FILL */) + ⟦⟧h(/* FILL: x */);\r\n}\r\n"
        "// FILLED\r\n\r\n  // FILL\r\n/* FILL: one\r\n two */z();\r\nx = '// FILL';\r\n"
    )
    prefix = "function f(a) {\n  b = a; \n  return g(a, /* FILL */) + "
    assert shown(text, "javascript") == (prefix, "h(/* FILL: x */);\n}\n// FILLED\n\nz();\nx = '// FILL';\n")
    text = "pad = width // FILL\nMARK = '# FILL: add'\ndef area(w, h):\n    # FILL: half of the area\n    ⟦⟧\nx = 1  # FILL"
    assert shown(text, "python") == (text.partition("⟦⟧")[0], "\nx = 1  "), "the line above the cursor says what to write"


# Paragraphs of other files


CART = """class Cart:
    def total(self):
        return sum(self.prices)

    def add(self, price):
        self.prices.append(price)
"""
OTHER = "def unrelated():\n    first = 1\n    second = 2\n    return first\n"


def chosen(above: str, *texts: str, below: str = "", limit_chars: int = 10_000) -> list[str]:
    files = [Snippet(f"{number}.py", text) for number, text in enumerate(texts)]
    return [snippet.text for snippet in context.paragraphs(above, below, files, limit_chars)]


def test_a_paragraph_with_the_rare_names_around_the_place_comes_first() -> None:
    use = "cart = Cart()\ncart.add(price)\ncart.add(price)\nprint(cart.total())\n"
    assert chosen("cart = Cart()\ncart.add(3)", OTHER, use, CART)[0] == use
    assert chosen("x = 1", OTHER, use, below="cart.total()") == [use]


def test_a_nearer_name_counts_more() -> None:
    one, other = (f"{name} = 1\n{name}(2)\n{name}(3)\n{name}(4)\n" for name in ("alpha", "gamma"))
    assert chosen("alpha()\n" + "\n" * 12 + "gamma()", one, other, OTHER) == [other, one]


def test_text_that_shares_no_name_is_not_shown() -> None:
    assert chosen("alpha()", OTHER) == []
    assert chosen("", OTHER) == chosen("first") == []


def test_a_blank_line_ends_a_paragraph_of_some_lines_and_a_long_one_is_divided() -> None:
    short, rest = "alpha = 1\n\nalpha(2)\nalpha(3)\n", "beta = 4\nbeta(5)\nbeta(6)\nbeta(7)\n"
    assert chosen("alpha", f"{short}\n{rest}", OTHER) == [short]
    long = "".join(f"line{number} = 0\n" for number in range(context.MOST_LINES + 4))
    assert chosen("line1", long, OTHER)[0].count("\n") == context.MOST_LINES


def test_the_text_has_a_limit_and_the_last_paragraph_is_cut_at_a_line_end() -> None:
    text = "alpha = 1\nalpha(2)\nalpha(3)\nalpha(4)\n"
    assert chosen("alpha", text, OTHER, limit_chars=20) == ["alpha = 1\nalpha(2)\n"]
    assert chosen("alpha", text, OTHER, limit_chars=5) == chosen("alpha", text, OTHER, limit_chars=0) == []


def test_the_same_paragraph_of_several_files_is_shown_once_with_plain_line_ends() -> None:
    text = "alpha = 1\nalpha(2)\nalpha(3)\nalpha(4)\n"
    assert chosen("alpha", text, "\ufeff" + text.replace("\n", "\r\n"), OTHER, CART) == [text]


def test_files_that_were_prepared_are_not_divided_again() -> None:
    files = [Snippet("a.py", CART + "# prepared\n"), Snippet("b.py", OTHER + "# prepared\n")]
    context.divide(files)
    before = context._divided.cache_info().misses
    assert context.paragraphs("cart.add(price)", "", files, 1_000)
    assert context._divided.cache_info().misses == before
