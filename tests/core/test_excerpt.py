"""Parsing a part of a text gives the same tree there as parsing the whole text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dg_lsp.core import excerpt, holes, languages, syntax, values
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Span
from tests import marked

PYTHON, METHOD, JAVASCRIPT, JAVASCRIPT_METHOD = marked.drawings(Path(__file__).with_name("excerpt.txt")).values()


def long(text: str = PYTHON, method: str = METHOD, n: int = 400) -> str:
    return text.format(methods="".join(method.format(n=number) for number in range(n)))


def whole(text: str, language: str = "python") -> Syntax:
    result = syntax.of(Document("u", language, text))
    assert result is not None
    return result


def near(full: Syntax, offset: int) -> Syntax:
    parts = excerpt.parts(full.tree, full.offsets, full.lines, offset)
    return syntax.parse(full.text, full.language, None, parts)


@pytest.mark.parametrize(
    ("language", "text"),
    [("python", long()), ("javascript", long(JAVASCRIPT, JAVASCRIPT_METHOD))],
    ids=["python", "javascript"],
)
def test_partial_parsing_finds_the_same_holes_as_a_full_parse(language: str, text: str) -> None:
    full, document = whole(text, language), Document("u", language, text)
    chance = random.Random(0)
    for offset in [0, len(text), *(chance.randrange(len(text)) for _ in range(60))]:
        partial = near(full, offset)
        assert excerpt.covers(partial, offset)
        assert partial.errors == ()
        assert holes.at_cursor(document, offset, partial) == holes.at_cursor(document, offset, full)
        assert partial.enclosing_function(offset) == full.enclosing_function(offset)


def test_only_part_of_a_long_text_is_parsed() -> None:
    full = whole(long())
    partial = near(full, len(full.text) // 2)
    assert 2 * sum(part.end - part.start for part in partial.parts) < len(full.text)
    assert partial.parsed == "".join(full.text[part.start : part.end] for part in partial.parts)
    assert "class Long(Base):" in partial.parsed
    assert "method_1(" not in partial.parsed
    gaps = partial.gaps(Span(0, len(full.text)))
    assert values.joined([*gaps, *partial.parts]) == (Span(0, len(full.text)),)
    assert partial.gaps(partial.parts[0]) == ()
    assert full.gaps(Span(0, 10)) == ()


def test_a_comment_is_never_cut() -> None:
    text = "/* a very long one\n" + "that goes on;\n" * 4000 + "*/\nint x;\n"
    partial = near(whole(text, "c"), len(text) // 2)
    assert partial.errors == ()
    assert [node.type for node in partial.tree.root_node.children][:1] == ["comment"]


def test_parts_move_with_an_edit() -> None:
    full = whole(long())
    at = full.text.index("method_200(")
    partial = near(full, at)
    for start, end, new in (
        (at, at + 6, "renamed"),
        (at, at, "é🦀\n"),
        (0, 0, "# above\n"),
        (10, at, ""),
        (at + 900, len(full.text), "x"),
    ):
        text = full.text[:start] + new + full.text[end:]
        moved_tree = syntax.parse(text, partial.language, partial)
        fresh = syntax.parse(text, partial.language, None, moved_tree.parts)
        assert str(moved_tree.tree.root_node) == str(fresh.tree.root_node)
        assert any(part.start <= start and start + len(new) <= part.end for part in moved_tree.parts)
        assert moved_tree.parts == values.joined(moved_tree.parts)
        unchanged_parts = [full.text[part.start : part.end] for part in partial.parts if part.end < start or part.start > end]
        assert all(part in [text[span.start : span.end] for span in moved_tree.parts] for part in unchanged_parts)


def test_random_edits_leave_the_tree_of_the_parts() -> None:
    chance = random.Random(1)
    text = long(n=120)
    at = text.index("method_60(")
    partial = near(whole(text), at)
    for _ in range(200):
        start = max(0, min(len(text), at + chance.randrange(-400, 400)))
        end = min(len(text), start + chance.choice([0, 0, 0, 1, 5, 60]))
        text = text[:start] + chance.choice(["x", "\n", "    ", "é", "(", ")", '"', "def f():\n", ""]) + text[end:]
        partial = syntax.parse(text, partial.language, partial)
        assert partial.text == text
        fresh = syntax.parse(text, partial.language, None, partial.parts)
        assert (fresh.tree.root_node.end_byte, len(fresh.errors)) == (partial.tree.root_node.end_byte, len(partial.errors))


def test_every_language_can_be_parsed_in_parts() -> None:
    for language in languages.TABLE:
        text = f"{language.line_comments[0]} x\n" * 20_000
        partial = near(whole(text, language.name), 30_000)
        assert excerpt.covers(partial, 30_000)
        # Before `<?php`, everything is one text node.
        assert language.name == "php" or len(partial.parsed) < len(text)
