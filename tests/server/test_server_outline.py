"""The outline of a long file is found beside the requests, and is there a moment later."""

from __future__ import annotations

import asyncio

from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.values import Document
from dg_lsp.server.snapshot import OUTLINE_FRESH_S, Outlines


async def test_a_request_takes_the_outline_of_a_moment_ago() -> None:
    now = 0.0
    outlines = Outlines(lambda: now)
    document = Document("u", "python", "def f():\n    pass\n\n\ndef g():\n    pass\n")

    def texts(window_chars: int = 5) -> list[str]:
        return [text for _, text in outlines.signatures(document, window_chars, lambda: syntaxes.of(document))]

    assert texts() == []
    while not texts():
        await asyncio.sleep(0)
    assert texts() == ["def f():", "def g():"]
    assert texts(1000) == []
    document, now = Document("u", "python", document.text + "def h():\n    pass\n"), OUTLINE_FRESH_S
    assert texts() == ["def f():", "def g():"]
    while len(texts()) < 3:
        await asyncio.sleep(0)
    outlines.forget("u")
    assert texts() == []
    await outlines.close()
