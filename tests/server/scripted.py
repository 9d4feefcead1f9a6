"""An engine for the server's tests: real code in the server's own process, told what to do by the text that it is asked about.

A comment line in the prefix may say, as JSON after `engine:`, the `text` (or `texts` for several holes) to answer, its
`probability` or null, `confidences`, and a `gate`: a file that must exist before the answer is given, or `fail` with a
sentence. With `late`, the deadline ends the first request with this value. With `whole`, a line, the answer is its part up to
the next `)`, after what stands before the cursor. The answer takes `ms`. A question for the next edit is answered with the
window in which all of `edit[0]` is `edit[1]`; its directive stands in the file as it was before the edits. What is asked is
written to the file that DG_LSP_TEST_JOURNAL names.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dg_lsp.client.port import EngineBusyError, EngineError
from dg_lsp.core.values import Calibrated, Candidate, InfillRequest, Ranked
from tests.fakes import ReadyEngine, connecting

OnDraft = Callable[[tuple[str, ...], int], None]


class Scripted(ReadyEngine):
    """What the texts say."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.late: set[str] = set()

    async def ready(self) -> None:
        if self.model == "broken":
            raise EngineError("the model is broken")
        if self.model == "paused":
            raise EngineBusyError("no requests until 12:00:00", 3000)

    async def prepare(self, request: InfillRequest) -> None:
        _note("prepared", "", prefix=request.prefix)

    async def fill(
        self, request: InfillRequest, *, document: str = "", on_draft: OnDraft | None = None
    ) -> tuple[Candidate, ...]:
        shown = request.question.shown if request.question is not None else ""
        directives = re.findall(r"engine: (\{.*\})", shown + request.prefix + "".join(request.between) + request.suffix)
        script: dict[str, Any] = json.loads(directives[-1]) if directives else {}
        _note(
            "asked",
            document,
            prefix=request.prefix,
            suffix=request.suffix,
            related=[snippet.path for snippet in request.related],
        )
        try:
            if on_draft is not None:
                on_draft(("...",) * len(request.holes), 1)
            if "gate" in script:
                while not Path(script["gate"]).exists():
                    await asyncio.sleep(0.002)
            await asyncio.sleep(script.get("ms", 0) / 1000)
        except asyncio.CancelledError:
            _note("cancelled", document)
            raise
        if (late := script.get("late")) and late not in self.late:
            self.late.add(late)
            return (Candidate(("(",), finished=False),)
        if "fail" in script:
            raise EngineBusyError(script["fail"], script["retry_s"]) if "retry_s" in script else EngineError(script["fail"])
        if (whole := script.get("whole")) is not None:
            part, closed, _ = whole.removeprefix(request.prefix.rpartition("\n")[2]).partition(")")
            script["text"] = part + closed
        if request.question is not None:
            return (Candidate((request.question.window.text.replace(*script.get("edit", ("", ""))),)),)
        texts = tuple(script.get("texts") or [script.get("text", "answer = 1")] * len(request.holes))
        confidences = tuple(tuple(script.get("confidences", ())) for _ in texts)
        probability = script.get("probability", 0.9)
        confidence = Ranked() if probability is None else Calibrated(probability)
        more = (
            [(f"{text}  # {idx}",) for text in texts[:1] for idx in range(1, request.budget.candidates)]
            if len(texts) == 1
            else []
        )
        _note("answered", document)
        return tuple(Candidate(each, confidence, confidences) for each in (texts, *more))


engine = connecting(Scripted)


def _note(what: str, document: str, **more: Any) -> None:
    if path := os.environ.get("DG_LSP_TEST_JOURNAL"):
        with Path(path).open("a", encoding="ascii") as journal:
            journal.write(json.dumps({"what": what, "document": document, **more}) + "\n")
