"""One request for the next edit, from the cursor to the offer: the rest of the last answer, else wait, ask, choose a hunk.

`history` has what the user changed, `core.edits` the form of the question and of the answer. A newer request for a document, a
change of it, or a cancelled request ends the work, in the engine too. Nothing is offered for another text than the one that
the answer was made for.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dg_lsp.client.engine import EngineClient
from dg_lsp.client.port import EngineBusyError, EngineError
from dg_lsp.core import edits, polish, values
from dg_lsp.core.edits import CURSOR, LINE_CHARACTERS, SEPARATOR, Edit, Hunk, Question, Window
from dg_lsp.core.positions import Lines
from dg_lsp.core.secrets import MASK
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Budget, Document, Hole, InfillRequest, Ranked, Span
from dg_lsp.infill.pipeline import beside
from dg_lsp.server import reasons
from dg_lsp.server.completion import Completer
from dg_lsp.server.history import History, in_lf, is_restored, meets_secret
from dg_lsp.server.snapshot import Snapshot, Snapshots
from dg_lsp.wire.background import Tasks

PAUSE_S = 0.4
"""An unprompted request waits so long for another change or movement before the model is asked."""
PREPARE_S = 0.15  # of it, after which the model begins to read
FRESH_S = 60.0  # after the last edit, nothing is offered unprompted
DEADLINE_MS = 5_000
MOST_REJECTED = 50
LANE = "edit"


@dataclass(frozen=True, slots=True)
class EditRequest:
    """A request for the next edit at an offset. It is `automatic` if the user did not ask for it."""

    uri: str
    offset: int
    automatic: bool


@dataclass(frozen=True, slots=True)
class EditOffer:
    """An edit to show: its id, the document's lines and version, the range to replace, and the new text."""

    id: str
    uri: str
    index: Lines
    version: int | None
    span: Span
    text: str

    @property
    def content(self) -> tuple[str, str]:
        """What is rejected with it: the old and new text without white space."""
        return _squeezed(self.index.text[self.span.start : self.span.end]), _squeezed(self.text)


@dataclass(frozen=True, slots=True)
class EditAnswer:
    """What the model changes in a text, nearest first, and the lines around the cursor that it was asked for.

    If it is `doubted`, it is only for a user who asks.
    """

    text: str
    hunks: tuple[Hunk, ...]
    around: Span
    asked_at: int
    doubted: bool = False

    def fits(self, text: str, offset: int) -> bool:
        """Return whether it is the answer for an offset of a text. One without a change is that of its line alone."""
        if text != self.text:
            return False
        line = text.count("\n", 0, offset) == text.count("\n", 0, self.asked_at)
        return self.around.start <= offset <= self.around.end if self.hunks else line

    def accepted(self, text: str) -> EditAnswer | None:
        """Return what is left after the first hunk was accepted, which made this text; None after any other change."""
        first, *others = self.hunks
        if text != self.text[: first.start] + first.text + self.text[first.end :]:
            return None
        more = len(first.text) - (first.end - first.start)
        moved = [hunk if hunk.end <= first.start else Hunk(hunk.start + more, hunk.end + more, hunk.text) for hunk in others]
        return EditAnswer(text, tuple(moved), Span(self.around.start, self.around.end + more), first.start, self.doubted)


class NextEdits:
    """Answers the requests for next edits of one session, and remembers its last edits.

    `engine` returns the client of the model that writes edits. `withheld` returns why a document may not be sent to it, "" if
    it may. `note` is called with the reason why a request gets nothing.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        completer: Completer,
        engine: Callable[[], EngineClient],
        withheld: Callable[[str], str],
        clock: Callable[[], float],
        note: Callable[[str], None],
    ) -> None:
        self._snapshots, self._completer, self._engine, self._withheld = snapshots, completer, engine, withheld
        self._clock, self._note = clock, note
        self._history = History()
        self._answers: dict[str, EditAnswer] = {}
        self._offers: dict[str, EditOffer] = {}
        self._rejected: dict[str, deque[tuple[str, str]]] = {}  # what was rejected in each document
        self._numbers = itertools.count(1)
        self._work = Tasks[str]()

    async def offer(self, request: EditRequest) -> EditOffer | None:
        """Return the edit to show, or None. Raises EngineError, and CancelledError."""
        work = self._work.start(request.uri, self._found(request))
        try:
            await asyncio.wait([work])
        finally:
            work.cancel()
        if work.cancelled():
            return None
        found = work.result()
        if isinstance(found, EngineError):
            raise found
        if isinstance(found, str):
            self._note(found)
            return None
        self._offers[request.uri] = found
        return found

    async def _found(self, request: EditRequest) -> EditOffer | str | EngineError:
        """Return the edit to show, or the reason why there is none. An error is a result, so that it is reported only once."""
        now = await self._snapshots.take(request.uri, request.offset)
        if now is None:
            return "the document is not open"
        if reason := self._refusal(now, automatic=request.automatic):
            return reason
        known = self._answers.get(request.uri)
        if known is not None and known.fits(now.index.text, request.offset):
            return self._chosen(request, now, known)
        since_s = self._history.since_s(self._clock())
        if since_s is None or (request.automatic and since_s > FRESH_S):
            return "nothing was edited lately"
        if request.automatic:
            await asyncio.sleep(PREPARE_S)  # before texts are compared, which takes long in large files
        made = await self._made()
        if not made:
            return "no edit may be shown to the model"
        asked = question(now, self._history, made)
        if isinstance(asked, str):
            return asked
        try:
            return await self._asked(request, now, asked, made)
        except EngineError as error:
            is_pause = isinstance(error, EngineBusyError)  # of a server, which is no failure
            return str(error) if is_pause and request.automatic else error

    async def _asked(self, request: EditRequest, now: Snapshot, asked: Question, made: Sequence[Edit]) -> EditOffer | str:
        """Ask the model, after the user has paused, and return what is offered of its answer."""
        engine = self._engine()
        hole = Hole(Span(0, len(asked.window.text)), "cursor", extent="lines")
        infill = InfillRequest(
            "", "", (hole,), language=now.base.language, path=now.context.path, budget=Budget(DEADLINE_MS), question=asked
        )
        if request.automatic:
            if why := engine.trouble():
                return why
            if engine is not self._completer.engine:  # which may read for a suggestion at this place now
                await engine.prepare(infill)
            await asyncio.sleep(PAUSE_S - PREPARE_S)
        if not await self._completer.finished(request.uri, request.offset):
            return "a suggestion is shown"
        sent = await engine.for_document(request.uri, LANE)
        candidates = await sent.fill(infill)
        if not candidates:
            return "the model has no answer"
        typed = self._history.typed_line(request.uri, now.index.text, request.offset)
        found = changes(now, request.offset if typed else None, asked.window, candidates[0].texts[0], made)
        hunks = await beside(now.base, partial(allowed, found, now.base, self._snapshots.syntax(now)))
        if not self._snapshots.is_current(now):
            return "the text changed while the answer was made"
        start, end = (raw_offset(now.index, at) for at in (asked.window.start, asked.window.start + len(asked.window.text)))
        confidence = candidates[0].confidence
        is_doubted = isinstance(confidence, Ranked) and confidence.doubted
        answer = EditAnswer(now.index.text, hunks, Span(start, end), request.offset, is_doubted)
        self._answers[request.uri] = answer
        return self._chosen(request, now, answer)

    def _refusal(self, now: Snapshot, *, automatic: bool) -> str:
        """Return why no edit is offered, as far as that is known without the model; "" if one may be."""
        settings = now.settings
        if settings.next_edit == "off" or (automatic and settings.next_edit == "manual"):
            return f"next_edit.trigger is {settings.next_edit}"
        found = reasons.reasons(
            replace(settings, trigger="auto"),
            automatic=automatic,
            language_id=now.base.language_id,
            n_chars=len(now.index.text),
            refused=now.refused or self._withheld(now.base.uri),
            lost=now.lost,
        )
        return next((reason.message for reason in found), "")

    async def _made(self) -> tuple[Edit, ...]:
        """Return the last edits, without those of documents that may not be sent to the model, or that turn next edits off."""
        paths = dict[str, str]()
        for uri in self._history.uris():
            other = await self._snapshots.take(uri)
            is_shown = other is not None and other.settings.enable and other.settings.next_edit != "off"
            if other is not None and is_shown and not (other.refused or self._withheld(uri)):
                paths[uri] = other.context.path
        return self._history.edits(lambda uri, edit: replace(edit, path=paths[uri]) if uri in paths else None)

    def _chosen(self, request: EditRequest, now: Snapshot, answer: EditAnswer) -> EditOffer | str:
        """Return the nearest change as an offer, unless the user has rejected it."""
        if not answer.hunks:
            return "the model changes nothing here"
        if request.automatic and answer.doubted:
            return "the model is not sure of it"
        span, text = within_lines(now.index.text, answer.hunks[0])
        offer = EditOffer(str(next(self._numbers)), now.base.uri, now.index, now.base.version, span, text)
        return "the user rejected it" if offer.content in self._rejected.get(offer.uri, ()) else offer

    # Events from the editor

    def typed(self, uri: str, before: str, text: str) -> None:
        """Record that the text of a document changed."""
        self._offers.pop(uri, None)
        known = self._answers.get(uri)
        self.forget_answers()  # of other documents too: what the user changes here may change what follows there
        if known is not None and len(known.hunks) > 1 and known.text == before and (rest := known.accepted(text)) is not None:
            self._answers[uri] = rest
        if len(text) <= reasons.MAX_FILE_CHARS:
            self._history.change(uri, before, text, self._clock())
        else:
            self._history.forget(uri)

    def reject(self, offer_id: str) -> None:
        """Record that the user rejected an offer; do nothing for one that is over."""
        for offer in self._offers.values():
            if offer.id == offer_id:
                self._rejected.setdefault(offer.uri, deque(maxlen=MOST_REJECTED)).append(offer.content)

    def forget(self, uri: str) -> None:
        """Forget a document that was closed."""
        self._work.end(uri)
        self._answers.pop(uri, None)
        self._offers.pop(uri, None)
        self._rejected.pop(uri, None)
        self._history.forget(uri)

    def forget_answers(self) -> None:
        """Forget all answers, also those on their way; they depend on the texts, the settings and the model."""
        self._work.cancel()
        self._answers.clear()

    async def close(self) -> None:
        """End all work."""
        await self._work.close()


# --- The question, and the changes in an answer. Pure


def question(now: Snapshot, history: History, made: Sequence[Edit]) -> Question | str:
    """Return what to ask at a snapshot's cursor, or why nothing can be asked."""
    raw, uri = now.index.text, now.base.uri
    text, original = in_lf(raw), history.original(uri, raw)
    for each in (text, original):
        if len(each.splitlines()) != each.count("\n") + (each[-1:] not in ("", "\n")):
            return "the file has other line ends than those of lines"
    asked = edits.question(original, text, now.offset - raw.count("\r\n", 0, now.offset), made)
    if asked is None:
        return "the lines around the cursor are blank"
    if any(mark in asked.window.text for mark in (CURSOR, SEPARATOR)):
        return "the lines around the cursor contain a mark of the prompt"
    if max(map(len, asked.window.text.splitlines())) > LINE_CHARACTERS - len(CURSOR):
        return "a line around the cursor is too long"
    if meets_secret(raw, *(raw_offset(now.index, asked.window.start + at) for at in (0, len(asked.window.text)))):
        return "the lines around the cursor hold what looks like a secret"
    return asked


def changes(now: Snapshot, typing_at: int | None, window: Window, answer: str, made: Sequence[Edit]) -> tuple[Hunk, ...]:
    """Return what a model's answer changes in a snapshot's text, nearest to the cursor first.

    Left out are changes of white space alone, of the line that is being typed at an offset, and those that bring back what the
    user has just removed, or remove what was just written.
    """
    text, found = now.index.text, list[Hunk]()
    lf = in_lf(text)
    end_of_line = "\r\n" if lf != text else "\n"
    for hunk in edits.hunks(window, answer):
        old = lf[hunk.start : hunk.end]
        raw = Hunk(raw_offset(now.index, hunk.start), raw_offset(now.index, hunk.end), hunk.text.replace("\n", end_of_line))
        is_typed = typing_at is not None and raw.start <= text.rfind("\n", 0, typing_at) + 1 < raw.end
        is_masked = MASK in hunk.text and MASK not in old  # copied from an edit whose secret was masked
        if _squeezed(old) != _squeezed(hunk.text) and not is_typed and not is_masked and not is_restored(hunk, lf, made):
            found.append(raw)
    return tuple(found)


def allowed(hunks: Sequence[Hunk], document: Document, syntax: Syntax | None) -> tuple[Hunk, ...]:
    """Return the changes that polishing allows, one after another; `syntax` is the document's, if known."""
    kept = list[Hunk]()
    for hunk in hunks:
        made = tuple(values.Edit(Span(each.start, each.end), each.text) for each in (*kept, hunk))
        if polish.allows(values.apply(document.text, made), document, syntax):
            kept.append(hunk)
    return tuple(kept)


def raw_offset(index: Lines, offset: int) -> int:
    r"""Return the offset in a text of one in the same text whose lines all end in `\n`."""
    text = index.text
    if "\r\n" not in text:
        return offset
    lf = in_lf(text)
    line = lf.count("\n", 0, offset)
    return index.start(line) + offset - (lf.rfind("\n", 0, offset) + 1)


def within_lines(text: str, hunk: Hunk) -> tuple[Span, str]:
    """Return the range that a change replaces and the new text, both without a last line end that they share."""
    for end in ("\r\n", "\n"):
        if text.endswith(end, hunk.start, hunk.end) and hunk.text.endswith(end):
            return Span(hunk.start, hunk.end - len(end)), hunk.text.removesuffix(end)
    return Span(hunk.start, hunk.end), hunk.text


def _squeezed(text: str) -> str:
    return "".join(text.split())
