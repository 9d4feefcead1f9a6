"""Values that are read in the background: when they are read again, and what an error or a forgotten key does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document
from dg_lsp.server.snapshot import OUTLINE_FRESH_S, Background, Outlines


class Source:
    """A value that counts how often it was read. Reading raises `error`, and waits for `gate`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.n_read = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.values = Background[str, int](lambda: self.now, 0, fresh_s=10.0, share=3.0)

    async def read(self) -> int:
        self.n_read += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.n_read

    async def renewed(self) -> int:
        if (task := self.values.renew("a", self.read)) is not None:
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
        return self.values.get("a")


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    source = Source()
    yield source
    await source.values.close()


@pytest.mark.parametrize(("took_s", "old_at"), [(0.0, 10.0), (5.0, 20.0)])
async def test_a_value_is_read_again_when_it_is_old_and_later_if_reading_is_slow(
    source: Source, took_s: float, old_at: float
) -> None:
    source.gate.clear()
    assert source.values.get("a") == 0
    task = source.values.renew("a", source.read)
    assert source.values.renew("a", source.read) is task
    assert task is not None
    await asyncio.sleep(0)
    source.now = took_s
    source.gate.set()
    await task
    source.now = old_at - 0.1
    assert (await source.renewed(), source.n_read) == (1, 1)
    source.now = old_at
    assert (await source.renewed(), source.n_read) == (2, 2)


async def test_an_error_keeps_the_last_value_and_is_not_retried_at_once(source: Source) -> None:
    assert await source.renewed() == 1
    source.now, source.error = 10.0, OSError()
    assert (await source.renewed(), source.n_read) == (1, 2)
    assert (await source.renewed(), source.n_read) == (1, 2)


async def test_what_was_being_read_for_a_forgotten_key_is_dropped(source: Source) -> None:
    source.gate.clear()
    task = source.values.renew("a", source.read)
    assert task is not None
    await asyncio.sleep(0)
    source.values.forget("a")
    source.gate.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert source.values.get("a") == 0
    assert await source.renewed() == 2


async def test_a_request_takes_the_outline_of_a_moment_ago() -> None:
    now = 0.0
    outlines = Outlines(lambda: now)
    document = Document("u", "python", "def f():\n    pass\n\n\ndef g():\n    pass\n")

    async def whole() -> Syntax | None:
        return syntaxes.of(document)

    def texts(window_chars: int = 5) -> list[str]:
        return [text for _, text in outlines.signatures(document, window_chars, whole)]

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
