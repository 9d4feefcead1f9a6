"""What a keystroke in a long document waits for: the syntax near the cursor, whatever was typed where before."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

from dg_lsp.core import excerpt, holes
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.syntax import Syntax
from dg_lsp.server.sync import OpenDocument, Point
from tests import naive
from tests.core.test_excerpt import long


def point(text: str, offset: int) -> Point:
    head = text[:offset]
    return head.count("\n"), len(head) - head.rfind("\n") - 1


class Typist:
    """Types into a document that is open, and looks at what stands at the cursor."""

    def __init__(self, text: str) -> None:
        self.open = OpenDocument("untitled:a", "python", 1, text)
        self.version = 1

    def type(self, start: int, end: int, new: str) -> None:
        text = self.open.document.text
        self.version += 1
        self.open.change(self.version, [naive.edit(new, point(text, start), point(text, end))], "utf-32")
        assert self.open.document.text == text[:start] + new + text[end:]

    def check(self, offset: int) -> bool:
        """Return whether only a part was parsed; the hole must be that of the whole text in any case."""
        document = self.open.document
        near, whole = self.open.near(offset), syntaxes.of(document)
        assert near is not None
        assert whole is not None
        assert near.text == document.text
        assert excerpt.covers(near, offset)
        assert holes.at_cursor(document, offset, near) == holes.at_cursor(document, offset, whole)
        return bool(near.parts)


@pytest.mark.slow
def test_keys_at_many_places_of_a_long_document() -> None:
    typist = Typist(long(n=200))
    assert typist.check(0)
    chance = random.Random(0)
    for _ in range(5):
        text = typist.open.document.text
        at = text.index("\n", text.index("        return helper(", chance.randrange(len(text) // 2)))
        at = text.rfind("\n", 0, at)
        for key in "\n        if self.ready:\n            found = 1":
            typist.type(at, at, key)
            at += 1
            assert typist.check(at)
    document = typist.open.document
    whole = asyncio.run(typist.open.syntax())
    assert whole is not None
    assert whole.text == document.text
    assert not whole.parts


def test_a_change_may_replace_the_whole_text() -> None:
    typist = Typist(long())
    typist.check(0)
    at = len(typist.open.document.text) // 2
    typist.type(at, at, "\n")
    typist.check(at)
    typist.open.change(9, [naive.edit(long(n=300))], "utf-32")
    typist.check(at)
    typist.open.change(10, [naive.edit("short = 1\n")], "utf-32")
    assert not typist.check(5)


def test_local_syntax_in_text_that_is_not_ascii() -> None:
    typist = Typist(long().replace("A comment", "Ein Küßchen 🦀"))
    typist.check(0)
    for word in ("method_20(", "method_300(", "method_150("):
        at = typist.open.document.text.index(word)
        for key in "ü🦀x":
            typist.type(at, at, key)
            typist.check(at + 1)


async def test_a_long_document_is_parsed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, parsed = syntaxes.parse, list[tuple[bool, bool]]()

    def recorded(*args: Any, **options: Any) -> Syntax:
        result = parse(*args, **options)
        is_quick = bool(result.parts or args[2:3] not in ((), (None,)))  # only a part, or a change
        parsed.append((threading.current_thread() is threading.main_thread(), is_quick))
        return result

    monkeypatch.setattr(syntaxes, "parse", recorded)
    document = OpenDocument("untitled:a", "python", 1, long())
    await document.prepare()
    document.near(0)
    document.change(2, [naive.edit("x", (0, 0), (0, 0))], "utf-32")
    await document.syntax()
    assert parsed == [(False, False), (True, True), (False, True)]
    document.change(3, [naive.edit("short = 1\n")], "utf-32")
    parsing = asyncio.ensure_future(document.syntax())
    await asyncio.sleep(0)
    document.change(4, [naive.edit("y", (0, 0), (0, 0))], "utf-32")
    old, new = await parsing, document.near(0)
    assert [each.text for each in (old, new) if each is not None] == ["short = 1\n", "yshort = 1\n"]
    # Also if a key is typed while it is parsed for the first time.
    document = OpenDocument("untitled:a", "python", 1, long())
    preparing = asyncio.ensure_future(document.prepare())
    await asyncio.sleep(0)
    document.change(2, [naive.edit("x", (0, 0), (0, 0))], "utf-32")
    await preparing
    near = document.near(0)
    assert near is not None
    assert near.text == f"x{long()}"
    assert (True, False) not in parsed


@pytest.mark.parametrize("end", ["", "    'last': [{\n}\n"], ids=["never closed", "open inside"])
def test_a_long_file_with_an_open_bracket_is_parsed_in_parts(end: str) -> None:
    text = "TABLE = {\n" + "    'key': {'value': 1},\n" * 4_000 + end
    document = OpenDocument("untitled:a", "python", 1, text)
    for place in (2, 3):
        near = document.near(len(text) // place)
        assert near is not None
        assert near.parts


def test_a_file_whose_parts_do_not_fit_is_parsed_in_whole() -> None:
    text = "#ifdef A\nvoid f() {\n#else\nvoid g() {\n#endif\n" + "  x();\n" * 8000 + "}\n"
    document = OpenDocument("untitled:a.c", "c", 1, text)
    document.near(0)
    document.change(2, [naive.edit("y", (4000, 3), (4000, 3))], "utf-32")
    near = document.near(len(text) // 2)
    assert near is not None
    whole = syntaxes.of(document.document)
    assert whole is not None
    assert len(near.errors) <= len(whole.errors)
