"""A text typed key by key, or accepted, in a real server whose engine takes 200 ms: no place is asked for twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.editor import CODE, Editor, editor, says

pytestmark = pytest.mark.e2e

WHOLE = "total = price(a, b) + price(c, d) + price(e, f)"


def is_asked(client: Editor, reply: asyncio.Future[Any], n: int) -> bool:
    """Return whether the engine has been asked for more than `n` places, or the request is answered without it."""
    return reply.done() or len(client.asked) > n


async def typed(client: Editor, pace: str) -> tuple[str, dict[str, Any]]:
    """Type the whole text, each key as soon as its pace allows; return the text and the reply to its last request."""
    text, new = "", WHOLE[0]
    while True:
        at = {"line": 1, "character": len(text)}
        client.change(len(text) + 2, {"range": {"start": at, "end": at}, "text": new})
        text, n_asked = text + new, len(client.asked)
        _, reply = client.start("textDocument/inlineCompletion", client.inline(1, len(text)))
        if pace == "asked":
            await client.until(partial(is_asked, client, reply, n_asked))
        elif pace == "shown":
            await reply
        elif pace == "accepted":
            items = (await reply)["items"]
            new = items[0]["insertText"] if items else WHOLE[len(text) : len(text) + 1]
        if pace != "accepted":
            new = WHOLE[len(text) : len(text) + 1]
        if not new:
            return text, await reply


@pytest.mark.parametrize("debounce", [100, 300])
@pytest.mark.parametrize("pace", ["at once", "asked", "shown", "accepted"])
async def test_no_place_is_asked_for_twice(tmp_path: Path, debounce: int, pace: str) -> None:
    async with editor(tmp_path, CODE, settings={"completion": {"debounce": debounce}}) as client:
        client.open(says(ms=200, whole=WHOLE) + "\n")
        text, reply = await asyncio.wait_for(typed(client, pace), 240)
        assert (text, reply["items"]) == (WHOLE, [])
        places = Counter(entry["prefix"] for entry in client.asked if entry["what"] == "asked")
        assert places
        assert not [place for place, n in places.items() if n > 1]
        # Keys typed before the engine is asked are one request; what is shown is typed through or accepted.
        assert len(places) <= {"at once": 1, "asked": 4, "shown": 4, "accepted": 4}[pace] + 1
