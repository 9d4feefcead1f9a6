"""The outline of a long file is found beside the requests, and is there a moment later."""

from __future__ import annotations

import asyncio

from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.values import Document
from dg_lsp.server.snapshot import OUTLINE_FRESH_S, Outlines


def test_a_request_takes_the_outline_of_a_moment_ago() -> None:
    async def main() -> None:
        now = 0.0
        outlines = Outlines(lambda: now)
        syntax = syntaxes.of(Document("u", "python", "def f():\n    pass\n\n\ndef g():\n    pass\n"))
        assert syntax is not None
        quick = outlines.quick("u", syntax, 5)
        assert quick is not None
        assert quick.outline == ()
        assert len(quick.errors) == len(syntax.errors)
        while not (quick := outlines.quick("u", syntax, 5)) or not quick.outline:
            await asyncio.sleep(0)
        assert [text for _, text in quick.outline] == ["def f():", "def g():"]
        assert outlines.quick("u", syntax, 1000).outline == ()  # type: ignore[union-attr]
        assert outlines.quick("u", None, 5) is None
        longer = syntaxes.of(Document("u", "python", syntax.text + "def h():\n    pass\n"), syntax)
        now = OUTLINE_FRESH_S
        while len(outlines.quick("u", longer, 5).outline) < 3:  # type: ignore[union-attr]
            await asyncio.sleep(0)
        outlines.forget("u")
        assert outlines.quick("u", longer, 5).outline == ()  # type: ignore[union-attr]
        await outlines.close()

    asyncio.run(main())
