"""Decide about suggestions without the engine: when to make none, how long to wait, and which earlier answers still fit.

The rules against a suggestion have a fixed order, and each has a reason for the log and the status. The wait depends on the
user's typing speed, the text around the cursor, the engine's latency and the editor's own debounce. An earlier answer is
reused while the user types through it, and not when it was rejected. A place is identified by the text around the cursor, not
by line numbers, so an answer survives edits elsewhere in the file.

Pure: the caller passes the time, and what it has looked up about ignore files and the engine.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from statistics import median_high
from typing import TYPE_CHECKING, Literal

from dg_lsp.core import languages, lexing
from dg_lsp.core.syntax import Syntax, ancestors, difference
from dg_lsp.core.values import Document, Span
from dg_lsp.wire.settings import Settings

if TYPE_CHECKING:
    from dg_lsp.infill.pipeline import Suggestion  # imported for the first request

Scope = Literal["code", "comment", "string"]
MAX_FILE_CHARS = 1_000_000
"""Longer files get suggestions only on request: they are rarely written by hand, and each keystroke would be slow."""
OPEN_CHARS = 2_000
"""How far back to look for the start of an unterminated string or comment."""


# Longer gaps are pauses; shorter ones come from a macro, not from typing.
MIN_GAP_S, MAX_GAP_S = 0.02, 0.6
N_GAPS = 40
# Defaults before anything was measured: an average typist, and an engine of medium speed.
USUAL_GAP_S, USUAL_LATENCY_MS = 0.18, 300.0
MIN_WAIT_MS, MAX_WAIT_MS = 30.0, 800.0

# After these the user probably wants a suggestion at once: an open bracket, an operator, a keyword, an empty line.
_INVITES = re.compile(r"(?:[([{=,:.>]|\b(?:return|in|and|or|not|if|import|new)\s?)\s*$|^\s*$")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why there is no suggestion: a code for programs and a sentence for people."""

    code: str
    message: str


def failed(error: BaseException) -> Reason:
    """Return the reason for an error that is a defect of ours; the caller logs it."""
    return Reason("internal", f"dg-lsp failed on this request ({type(error).__name__}); its log says where")


def reasons(
    settings: Settings,
    *,
    automatic: bool,
    after: str = "",
    language_id: str = "",
    n_chars: int = 0,
    refused: str = "",
    engine: str = "",
    lost: bool = False,
) -> Iterator[Reason]:
    """Yield the reasons not to suggest anything, in order: the first counts. The first three hold for explicit requests too.

    These are known without parsing; `reason_of_scope` has the others. `after` is the line's text after the cursor. `refused`
    says why the file may not be sent to a model, as the end of a sentence that begins with "it", and `engine` why no
    unprompted request may be sent now. An explicit request gets an engine failure as an error instead of a reason.
    """
    if not settings.enable:
        yield Reason("off", "dg-lsp is disabled in the settings")
    if lost:
        yield Reason("lost", "the editor sent a change that could not be read; reopen the file")
    if refused:
        yield Reason("ignored", f"this file gets no suggestions: it {refused}")
    if not automatic:
        return
    if language_id in settings.disabled_languages:
        yield Reason("language", f"suggestions are disabled for {language_id}")
    if n_chars > MAX_FILE_CHARS:
        yield Reason("large", f"the file has more than {MAX_FILE_CHARS} characters")
    if settings.trigger == "manual":
        yield Reason("manual", "suggestions come only on request: `trigger` is `manual`")
    if engine:
        yield Reason("engine", engine)
    if after[:1].isalnum() or after[:1] == "_":
        yield Reason("midWord", "the cursor is before a word")


def reason_of_scope(scope: Scope, settings: Settings, *, is_unparsed: bool = False) -> Reason | None:
    """Return why nothing is suggested unprompted at a place that was parsed, or None."""
    if is_unparsed:
        return Reason("unparsed", "the parser takes too long for this text; a suggestion that you ask for is made without it")
    if scope == "comment" and not settings.in_comments:
        return Reason("comment", "the cursor is in a comment")
    if scope == "string" and not settings.in_strings:
        return Reason("string", "the cursor is in a string")
    return None


def paused(settings: Settings) -> Reason | None:
    """Return why the settings stop unprompted suggestions in every file, or None."""
    return next(reasons(replace(settings, disabled_languages=frozenset()), automatic=True), None)


def scope_at(document: Document, syntax: Syntax | None, offset: int) -> Scope:
    """Return whether the offset lies in a comment or in a string; the end of a line comment is still in it."""
    if syntax is None:
        lexer = languages.lexer(document)
        kind = lexing.kind_at(document.text, offset, lexer) if lexer else "code"
        return "code" if kind == "verbatim" else kind
    facts = syntax.facts_near(Span(max(offset - 1, 0), offset))
    for node in facts.all("comment"):
        span = syntax.span(node)
        is_line = syntax.text.startswith(syntax.language.line_comments, span.start)
        if span.start < offset and (offset < span.end or (is_line and offset == span.end)):
            return "comment"
    # The parser reports an unterminated string or comment as an error, so scan from there. If the error began far above, only
    # what began in this line is likely to be open.
    far, lines = offset - OPEN_CHARS, syntax.lines
    errors = [error.start for error in syntax.errors if error.start < offset and far < max(error.start, error.end)]
    name, begin = syntax.language.name, min((start for start in errors if start > far), default=offset)
    literals = ((node, syntax.span(node)) for name in ("string", "docstring", "unparsed") for node in facts.all(name))
    # Within something open, a quoted word that ends at the cursor is a part of that.
    around = [node for node, span in literals if span.start < offset <= span.end and (offset < span.end or span.start < begin)]
    outermost = min(around, key=lambda node: node.start_byte, default=None)
    if outermost is None:
        if not errors:
            return "code"
        start = lines.start(lines.at(begin))
    else:
        begin = syntax.span(outermost).start
        # The delimiter of a here document is before its text.
        is_behind = "heredoc" in outermost.type
        start = lines.start(lines.at(max(begin - is_behind, 0)))
        if not is_behind and not any(start <= error < begin for error in errors):
            start = begin
        if any(node.type == "token_tree" for node in ancestors(outermost)):
            name = f"{name} macro"
    lexer = lexing.named(f"cursor:{name}", syntax.language.name)
    kind = lexing.kind_at(syntax.text, offset, lexer, start)
    return "code" if kind == "verbatim" else kind


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The time of the last keystroke, the recent gaps between keystrokes, and the engine's recent latencies."""

    last: float | None = None
    gaps: tuple[float, ...] = ()
    latencies_ms: tuple[float, ...] = ()

    def typed(self, now: float) -> Rhythm:
        gap = now - self.last if self.last is not None else 0.0
        gaps = (*self.gaps, gap)[-N_GAPS:] if MIN_GAP_S <= gap <= MAX_GAP_S else self.gaps
        return replace(self, last=now, gaps=gaps)

    def answered(self, latency_ms: float) -> Rhythm:
        return replace(self, latencies_ms=(*self.latencies_ms, latency_ms)[-10:])

    @property
    def latency_ms(self) -> float:
        """The engine's median latency; a default before the first answer."""
        return median_high(self.latencies_ms) if self.latencies_ms else USUAL_LATENCY_MS


def wait_ms(rhythm: Rhythm, now: float, before: str, after: str, *, client_ms: float, fixed: int | None) -> float:
    """Return the remaining time to wait, given the line's text before and after the cursor.

    The wait is longer than a gap between keystrokes, so that no suggestion appears while the user types on. It is shorter after
    text such as an open bracket, and with a slow engine. The time since the last keystroke and the editor's own debounce
    are subtracted. `fixed` is the user's setting; it replaces all of this.
    """
    if fixed is not None:
        return float(fixed)
    factor = 1.0 if _INVITES.search(before) and not after.strip(" )]}\"'`;:,") else 1.6
    # Ask a slow engine earlier, to save time; its work can be cancelled when the user types on.
    slow_ms = max(0.0, rhythm.latency_ms - USUAL_LATENCY_MS) / 4
    elapsed_ms = 1000 * (now - rhythm.last) if rhythm.last is not None else client_ms
    gap_s = median_high(rhythm.gaps) if len(rhythm.gaps) >= 5 else USUAL_GAP_S
    usual_ms = min(max(factor * 1000 * gap_s - slow_ms, MIN_WAIT_MS), MAX_WAIT_MS)
    return max(0.0, usual_ms - max(min(elapsed_ms, MAX_WAIT_MS), client_ms))


# --- Earlier answers

# A cached answer fits where this much text on each side is the same; text further away may change.
BEFORE_CHARS, AFTER_CHARS = 1_500, 500
# Closing brackets and quotes, which editors insert after the cursor automatically.
_CLOSERS = ")]}>\"'`"
MAX_ENTRIES = 100
FRESH_S = 300.0
REJECTED_S = 120.0
MAX_UNWANTED, MAX_REMOVED_CHARS = 50, 500  # how many texts that were rejected or removed, and how much of each
# So many tokens stand for what begins with them. Fewer, as `(`, do so only for a text that is mostly them.
WANTED_TOKENS = 8  # of a removed text that are typed again
TELLING_TOKENS = 3
_TOKEN = re.compile(r"\w+|[^\w\s]")
_CONTINUES = re.compile(r"""[.(["'`]|::|->|\?\.""")  # behind a name: it is a part of another expression


@dataclass(frozen=True, slots=True)
class Place:
    """A cursor position, identified by its document and the text on both sides."""

    uri: str
    before: str
    after: str


def place(uri: str, text: str, offset: int) -> Place:
    return Place(uri, text[max(0, offset - BEFORE_CHARS) : offset], text[offset : offset + AFTER_CHARS])


@dataclass(frozen=True, slots=True)
class Fit:
    """The rest of earlier suggestions at the current place; `typed` counts the characters the user has typed since."""

    suggestions: tuple[Suggestion, ...]
    typed: int = 0
    n_candidates: int = 1


def advanced(then: Place, now: Place) -> str | None:
    """Return the text typed between two places, "" when they are the same; None after any other change.

    A bracket or quote that the editor closed by itself counts as typed text too (see `rest`).
    """
    if then.uri != now.uri:
        return None
    tail = then.before[-(BEFORE_CHARS // 2) :]
    if len(tail) < BEFORE_CHARS // 2:
        # The tail is all text before the cursor, so the document must still start with it.
        whole = len(now.before) < BEFORE_CHARS and now.before.startswith(tail)
        return now.before[len(tail) :] if whole else None
    at = now.before.rfind(tail)
    return now.before[at + len(tail) :] if at >= 0 else None


def closed(then: Place, now: Place) -> str | None:
    """Return the closers that the editor inserted after the cursor between two places; None after any other change."""
    if now.after == then.after:
        return ""
    for n in range(1, 4):
        added = now.after[:n]
        if len(added) == n and not added.strip(_CLOSERS) and now.after[n:] == then.after[: AFTER_CHARS - n]:
            return added
    return None


def rest(text: str, typed: str, added: str) -> str | None:
    """Return the rest of a suggestion after some of it was typed; None when it no longer fits.

    `added` are closers that the editor inserted. The suggestion must end with them, and they are removed from the rest.
    """
    if not text.startswith(typed):
        return None
    left = text[len(typed) :]
    if added:
        if not left.rstrip().endswith(added):
            return None
        left = left.rstrip()[: -len(added)]
    return left


class Cache:
    """A cache of answers by place; the least recently used entry is dropped first, and every entry after some minutes."""

    def __init__(self) -> None:
        # Each answer, and until when it is used.
        self._entries: OrderedDict[Place, tuple[Fit, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, place: Place, suggestions: tuple[Suggestion, ...], n_candidates: int, now: float) -> None:
        """Store the answer for a place, also an empty one; `n_candidates` is how many suggestions were requested."""
        self._entries[place] = Fit(suggestions, 0, n_candidates), now + FRESH_S
        self._entries.move_to_end(place)
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    def find(self, place: Place, now: float, shows: Callable[[tuple[Suggestion, ...]], bool] = lambda _: True) -> Fit | None:
        """Return the answer for this place, or for one from which the user has typed on; None when nothing fits.

        Typed text makes the rest of an answer likelier than it was. So one from another place fits only if `shows` says that
        some of it may be shown already, and then goes before an answer for this place of which nothing may.
        """
        fresh = {then: fit for then, (fit, until) in self._entries.items() if now <= until}
        if (own := fresh.pop(place, None)) is not None:
            self._entries.move_to_end(place)
            if not own.suggestions or shows(own.suggestions):
                return own
        fits = (advance(then, place, fit.suggestions, fit.n_candidates) for then, fit in reversed(fresh.items()))
        # Prefer the answer with the least typed text: it was made with the most of the current context.
        return min((fit for fit in fits if fit and shows(fit.suggestions)), key=lambda fit: fit.typed, default=own)

    def forget(self, uri: str) -> None:
        for place in [place for place in self._entries if place.uri == uri]:
            del self._entries[place]


def advance(then: Place, now: Place, suggestions: tuple[Suggestion, ...], n_candidates: int) -> Fit | None:
    """Return the rest of an earlier place's suggestions at a later place; None when none fits or nothing is left."""
    typed = advanced(then, now)
    added = closed(then, now)
    if typed is None or added is None:
        return None
    left = ((suggestion, rest(suggestion.text, typed, added)) for suggestion in suggestions)
    fitting = tuple(suggestion.with_text(text) for suggestion, text in left if text and text.strip())
    return Fit(fitting, len(typed), n_candidates) if fitting else None


@dataclass(frozen=True, slots=True)
class _Item:
    """A text that is not offered at an offset of a document, which moves with the text around it, and until when."""

    uri: str
    at: int
    text: str
    until: float

    def left(self, text: str, offset: int) -> tuple[str, ...]:
        """Return the tokens that are not written yet before an offset; none where that is another place."""
        if abs(offset - self.at) > MAX_REMOVED_CHARS or (offset < self.at and text[offset : self.at].strip()):
            return ()
        written, tokens, n = "".join(text[self.at : offset].split()), _tokens(self.text), 0
        while written and n < len(tokens) and written.startswith(tokens[n]):
            written, n = written[len(tokens[n]) :], n + 1
        return () if written else tokens[n:]

    def is_in(self, text: str, end: int) -> bool:
        """Return whether all of this stands at its offset, before `end`. White space is not compared."""
        written = text[self.at : min(end, self.at + 2 * MAX_REMOVED_CHARS)]
        return "".join(written.split()).startswith("".join(self.text.split()))


class Unwanted:
    """What the user rejected or removed lately: it is not offered again at its place.

    A place moves with the text around it, and is forgotten when the text before it is removed. What several keystrokes remove
    one after another is one text. White space is not compared. A text that is written there again is forgotten.
    """

    def __init__(self) -> None:
        self._items: tuple[_Item, ...] = ()
        # The offer on the screen of each document: the text when it was made, its offset and its own text.
        self._offers: dict[str, tuple[str, int, str]] = {}
        # What the last change removed, if it wrote nothing: the next change may go on with it.
        self._removal: _Item | None = None

    def offer(self, uri: str, text: str, at: int, suggestion: str) -> None:
        """Record that a suggestion is shown at an offset of a document; a later change tells whether it is rejected."""
        self._offers[uri] = (text, at, suggestion)

    def reject(self, uri: str, at: int, text: str, now_s: float) -> None:
        """Store a suggestion that was rejected at an offset, for some minutes."""
        self._items = (*self._items, _Item(uri, at, text[:MAX_REMOVED_CHARS], now_s + REJECTED_S))[-MAX_UNWANTED:]

    def change(self, uri: str, before: str, now: str, now_s: float) -> None:
        """Store what a change of a document removed or rejected, move the places, and forget what it wrote again."""
        if (offer := self._offers.get(uri)) is not None and (what := outcome(*offer, now)) != "typing":
            del self._offers[uri]
            if what == "rejected":
                self.reject(uri, *offer[1:], now_s)
        change = difference(before, now)
        start, old_end, end = change.start, change.old_end, change.new_end
        removed, last = before[start:old_end], self._removal
        if not removed or last is None or last.uri != uri or not start <= last.at <= old_end:
            last = None
        else:
            removed = before[start : last.at] + last.text + before[last.at : old_end]
        items = [
            item if item.uri != uri or item.at <= start else replace(item, at=max(start, item.at + end - old_end))
            for item in self._items
            if item is not last and (item.uri != uri or not start < item.at <= old_end or not before[start : item.at].strip())
        ]
        if end > start:
            items = [item for item in items if item.uri != uri or item.at > start or not item.is_in(now, end)]
        removal = _Item(uri, start, removed[:MAX_REMOVED_CHARS], math.inf)
        self._items = tuple([*items, removal] if removed.strip() else items)[-MAX_UNWANTED:]
        if removed or end > start:
            self._removal = removal if end == start else None

    def holds(
        self, uri: str, text: str, offset: int, suggestion: str, now_s: float, keywords: Collection[str] = frozenset()
    ) -> bool:
        """Return whether this suggestion, or the rest of it after some of its tokens were typed, was rejected or removed here.

        Who has typed many of them wants the rest. The beginning of such a text counts too. A text that begins with all of it
        counts if that is some tokens or most of it, or ends with a name that is whole there: who removes `(` or `x` has said
        nothing about the arguments, or about `x.y`. The same is true of `keywords`.
        """
        tokens = _tokens(suggestion)
        for item in self._items:
            if item.uri == uri and now_s <= item.until and (left := item.left(text, offset)):
                n, n_tokens = min(len(left), len(tokens)), len(_tokens(item.text))
                is_wanted = n_tokens - len(left) >= WANTED_TOKENS
                is_telling = n_tokens >= TELLING_TOKENS or 2 * len("".join(left)) > len("".join(tokens))
                is_name = re.match(r"\w", left[-1]) is not None and left[-1] not in keywords
                is_telling |= is_name and not _CONTINUES.match("".join(tokens[n : n + 2]))
                if n and left[:n] == tokens[:n] and is_telling and not is_wanted:
                    return True
        return False

    def forget(self, uri: str) -> None:
        self._items, self._removal = tuple(item for item in self._items if item.uri != uri), None
        self._offers.pop(uri, None)


def _tokens(text: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(text[:MAX_REMOVED_CHARS]))


def joins(then: Place, now: Place, *, age_ms: float, latency_ms: float) -> bool:
    """Return whether to wait for a running request for an earlier place instead of starting a new one.

    That is so when nothing changed, or when at most 8 characters were typed on the same line and at least half of the usual
    latency has passed. The answer may then begin with the typed text.
    """
    typed = advanced(then, now)
    if typed is None or closed(then, now) is None:
        return False
    return not typed or (len(typed) <= 8 and "\n" not in typed and age_ms >= latency_ms / 2)


Outcome = Literal["typing", "over", "rejected"]


def outcome(text: str, at: int, suggestion: str, now: str) -> Outcome:
    """Return what a change of the text means for a suggestion at an offset of the old text.

    `typing`: the suggestion still fits. `rejected`: something else was inserted at its place. `over`: the whole suggestion was
    inserted, or the change was elsewhere.
    """
    new = _inserted(text, at, now)
    if new is None or new == suggestion:
        return "over"
    return "typing" if any(rest(suggestion, *parts) is not None for parts in _typings(new)) else "rejected"


def realigned(text: str, at: int, suggestions: tuple[Suggestion, ...], now: str) -> tuple[int, tuple[Suggestion, ...]] | None:
    """Return the offset in a later text and the rest of the suggestions; None when no suggestion fits there."""
    for typed, added in _typings(_inserted(text, at, now)):
        left = ((suggestion, rest(suggestion.text, typed, added)) for suggestion in suggestions)
        fitting = tuple(suggestion.with_text(part) for suggestion, part in left if part)
        if fitting:
            return at + len(typed), fitting
    return None


def _inserted(text: str, at: int, now: str) -> str | None:
    """Return what was inserted at an offset; None after any other change."""
    n_new = len(now) - len(text)
    is_insertion = n_new >= 0 and now.startswith(text[:at]) and now.endswith(text[at:])
    return now[at : at + n_new] if is_insertion else None


def _typings(new: str | None) -> Iterator[tuple[str, str]]:
    """Yield the ways to split new text into typed text and closers that the editor inserted after it."""
    if new is None:
        return
    for n in range(min(len(new), 3) + 1):
        typed, added = new[: len(new) - n], new[len(new) - n :]
        if added.strip(_CLOSERS):
            return
        yield typed, added
