"""Syntax trees with code-point offsets: incremental parsing equals a full parse, errors, outlines, enclosing functions."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tree_sitter import Node

from dg_lsp.core import languages, positions, syntax
from dg_lsp.core.languages import Language
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Span
from tests import marked, naive

PYTHON = languages.TABLE[0]
ROWS = marked.rows(Path(__file__).with_name("outlines.txt"))
OUTLINES = ROWS["outlines"]


def picture(node: Node) -> object:
    return (node.type, node.start_byte, node.end_byte, node.is_missing, [picture(child) for child in node.children])


def parsed(text: str, language: str = "python") -> Syntax:
    tree = marked.parse(marked.read(text, language)[0])
    assert tree is not None
    return tree


def test_parsed_texts_keep_no_objects() -> None:
    def blocks(n: int) -> int:
        """Return how many objects there are after so many texts were parsed, and parsed again after an edit."""
        for number in range(n):
            text = f"def f{number}(a):\n    return a\n"
            before = syntax.parse(text, PYTHON)
            assert syntax.parse(f"{text}{number}\n", PYTHON, before).facts
        del before
        gc.collect()
        return sys.getallocatedblocks()

    once = blocks(300)  # which also fills caches
    assert blocks(300) - once < 100


WORDS = [
    "def f(a):\n", "    ", "return ", "x", " = ", "é", "'🦀'", "(", ")", "\n", "\r\n", "\r", "# c\n", "if x:\n", "1", "\ud800",
    "[", "]", "\ufeff",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(WORDS), max_size=25).map("".join)


@given(TEXTS, TEXTS)
def test_offsets_and_errors_hold_after_any_edit(before: str, after: str) -> None:
    old = syntax.parse(before, PYTHON)
    new = syntax.parse(after, PYTHON, old)
    assert new.tree.root_node.end_byte <= len(new.offsets.source)
    assert all(span.end <= len(after) for span in new.errors)
    assert naive.same_lines(new.lines, positions.lines(after))
    # Valid code has only one tree. For invalid code, tree-sitter's error recovery may differ.
    fresh = syntax.parse(after, PYTHON)
    if not fresh.errors:
        assert picture(new.tree.root_node) == picture(fresh.tree.root_node)


SOUND = [
    "def f(a):\n    return a\n", "class A:\n    x = '🦀'\n\n    def g(self): pass\n", "y = [1, (2), é]\n", "# c\n",
    "if y:\n    pass\nelse:\n    z()\n", "\n",
]  # fmt: skip


@given(
    st.lists(st.sampled_from(SOUND), max_size=8),
    st.lists(st.sampled_from(SOUND), max_size=8),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_incremental_parsing_of_valid_code_equals_a_full_parse(before: list[str], after: list[str], end: str) -> None:
    old = syntax.parse("".join(before), PYTHON)
    text = "".join(after).replace("\n", end)
    new, fresh = syntax.parse(text, PYTHON, old), syntax.parse(text, PYTHON)
    assert not fresh.errors
    assert picture(new.tree.root_node) == picture(fresh.tree.root_node)


def test_many_small_edits_in_a_row_keep_the_tree_correct() -> None:
    text, tree = "", None
    for one in "class A:\n    def f(self):\n        return {'é': '🦀'}\n":
        text += one
        tree = syntax.parse(text, PYTHON, tree)
    assert tree is not None
    assert picture(tree.tree.root_node) == picture(syntax.parse(text, PYTHON).tree.root_node)


def test_an_edit_inside_a_character_covers_the_whole_character() -> None:
    for before, after in (("x = 'é'", "x = 'è'"), ("x = '🦀'", "x = '🦁'"), ("x = 'é'", "x = '©'"), ("é", "ࣩ")):
        old = syntax.parse(before, PYTHON)
        assert picture(syntax.parse(after, PYTHON, old).tree.root_node) == picture(syntax.parse(after, PYTHON).tree.root_node)


def test_the_tree_of_another_language_is_not_reused() -> None:
    old = syntax.parse("x = 1\n", PYTHON)
    lua = languages.get("lua")
    assert lua is not None
    assert not syntax.parse("x = 1\n", lua, old).errors


def test_incremental_parsing_does_not_change_the_old_tree() -> None:
    old = syntax.parse("x = 1\n", PYTHON)
    picture_before = picture(old.tree.root_node)
    syntax.parse("yy = 1\n", PYTHON, old)
    assert picture(old.tree.root_node) == picture_before


def test_a_document_in_an_unknown_language_has_no_syntax() -> None:
    assert syntax.of(Document("", "", "x")) is None
    assert syntax.of(Document("", "python", "x")) is not None


def test_a_change_before_a_comments_opener_in_a_string_makes_it_text_or_a_comment() -> None:
    lua = languages.row("lua")
    texts = ["p(--[[ a\np(']]')\n", "p('--[[ a')\np(']]')\n", "p('--[[')\n\np(']]')\n", "p()--[[')\n\np(']]\n"]
    tree = syntax.parse("", lua)
    for text, n_comments in zip(texts, (1, 0, 0, 1), strict=True):
        tree = syntax.parse(text, lua, tree)
        assert len(tree.facts.all("comment")) == n_comments
        assert tree.text == text


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("language", languages.TABLE, ids=lambda language: language.name)
def test_line_ends_do_not_change_what_parses(language: Language, end: str) -> None:
    mark = language.line_comments[0]
    head = "<?php\n" if language.name == "php" else ""
    assert not syntax.parse(f"{head}{mark} one\n\n{mark} é\ud800\n".replace("\n", end), language).errors


def test_errors_are_spans_and_a_missing_token_is_an_empty_span() -> None:
    assert parsed("x = 1\n").errors == ()
    tree = parsed("int f() {\n  return 1\n}\n", "c")
    assert tree.errors == (Span(20, 20),)
    assert len(parsed("x = = 1\n").errors) == 1
    assert len(parsed("🦀 = ) 1\n").errors) > 0


def test_only_the_outermost_of_nested_errors_has_a_span() -> None:
    tree = parsed("function f( {\n  throw new Error('x');\n}\n", "javascript")
    assert len(tree.errors) == 1


def test_a_longer_broken_stretch_adds_no_errors() -> None:
    before, after = (parsed(f"void h( {{\n  {body}\n}}\n", "cpp") for body in ("throw x;", "let v = vec![1];"))
    assert len(after.errors) == len(before.errors) == 1
    assert after.errors[0].end > before.errors[0].end
    assert not syntax.adds_errors(after, before)
    assert syntax.adds_errors(parsed("x = = 1\n"), parsed("x = 1\n"))


def test_the_enclosing_function_of_an_offset() -> None:
    text = "é = 1\n\nclass A:\n    def f(self):\n        return [x for x in self]\n\n    y = 2\n"
    tree = parsed(text)
    inside = text.index("return")
    function = tree.enclosing_function(inside)
    assert function is not None
    assert text[function.start : function.end] == "def f(self):\n        return [x for x in self]"
    assert tree.enclosing_function(text.index("y = 2")) is None
    assert tree.node_at(Span(inside, inside + 3)).type == "return"
    assert parsed("").node_at(Span(0, 0)).type == "module"


@pytest.mark.parametrize(("language", "text", "expected"), OUTLINES)
def test_an_outline_has_only_signatures(language: str, text: str, expected: str) -> None:
    tree = parsed(text, language)
    assert not tree.errors
    assert " | ".join(signature.rstrip(";") if language == "c" else signature for _, signature in tree.outline) == expected
    assert all(tree.text[span.start : span.end] == signature for span, signature in tree.outline)


def test_every_language_has_an_outline() -> None:
    assert {row.values[0] for row in OUTLINES} == {language.name for language in languages.TABLE}


def test_an_outline_shows_only_the_first_line_of_a_long_type() -> None:
    fields = "".join(f"\tx{n} int\n" for n in range(20))
    ((_, signature),) = parsed(f"package a\n\ntype T struct {{\n{fields}}}\n", "go").outline
    assert signature == "type T struct"


def test_facts_near_a_span_equal_those_of_the_whole_tree_there() -> None:
    tree = parsed("def f():\n    pass\n\n\n# c\ndef g():\n    pass\n")
    near = tree.facts_near(Span(26, 26))
    assert [owner.name for owner in near.owners] == ["g"]
    assert [owner.name for owner in tree.facts.owners] == ["f", "g"]


@pytest.mark.parametrize(("text", "expected"), ROWS["indentation"])
def test_the_indent_unit_is_the_one_that_most_lines_use(text: str, expected: str) -> None:
    assert syntax.indent_unit(text, "  ") == expected


def test_the_tokens_of_a_span() -> None:
    tree = parsed("x = é(a)  # b\n")
    spans = (Span(0, len(tree.text)), Span(4, 8), Span(5, 7), Span(5, 5))
    ends = [[tree.offsets.to_end(token.end_byte) for token in tree.tokens(span)] for span in spans]
    assert ends == [[1, 3, 5, 6, 7, 8, 13], [5, 6, 7, 8], [6, 7], []]
