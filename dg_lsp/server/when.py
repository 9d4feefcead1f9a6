"""Decide when not to suggest anything, and how long an unprompted request waits.

The rules have a fixed order, and each has a reason for the log and the status. The wait depends on the user's typing speed,
the text around the cursor, the engine's latency and the editor's own debounce. Pure: the caller passes the time, and what
it has looked up about ignore files and the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median_high
from typing import Literal

from dg_lsp.core import languages
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span
from dg_lsp.wire.settings import Settings

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
class SuggestionFacts:
    """The facts about a request that decide whether to suggest anything."""

    automatic: bool
    before: str = ""
    """The line's text before the cursor; `after` is the rest of the line."""
    after: str = ""
    scope: Scope = "code"
    language_id: str = ""
    n_chars: int = 0
    refused: str = ""
    """Why the file may not be sent to a model, as the end of a sentence that begins with "it"."""
    engine: str = ""
    """Why no unprompted request may be sent to the engine now, as a sentence."""
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Reason:
    """Why there is no suggestion: a code for programs and a sentence for people."""

    code: str
    message: str


def reasons(facts: SuggestionFacts, settings: Settings) -> Iterator[Reason]:
    """Yield the reasons not to suggest anything, in order: the first counts. The first three hold for explicit requests too.

    An explicit request gets an engine failure as an error instead of a reason.
    """
    if not settings.enable:
        yield Reason("off", "dg-lsp is disabled in the settings")
    if facts.lost:
        yield Reason("lost", "the editor sent a change that could not be read; reopen the file")
    if facts.refused:
        yield Reason("ignored", f"this file gets no suggestions: it {facts.refused}")
    if not facts.automatic:
        return
    if facts.language_id in settings.disabled_languages:
        yield Reason("language", f"suggestions are disabled for {facts.language_id}")
    if facts.n_chars > MAX_FILE_CHARS:
        yield Reason("large", f"the file has more than {MAX_FILE_CHARS} characters")
    if settings.trigger == "manual":
        yield Reason("manual", "suggestions come only on request: `trigger` is `manual`")
    if facts.engine:
        yield Reason("engine", facts.engine)
    if facts.after[:1].isalnum() or facts.after[:1] == "_":
        yield Reason("midWord", "the cursor is before a word")
    if facts.scope == "comment" and not settings.in_comments:
        yield Reason("comment", "the cursor is in a comment")
    if facts.scope == "string" and not settings.in_strings:
        yield Reason("string", "the cursor is in a string")


def paused(settings: Settings) -> Reason | None:
    """Return why the settings stop unprompted suggestions in every file, or None."""
    return next(reasons(SuggestionFacts(automatic=True), replace(settings, disabled_languages=frozenset())), None)


def scope_at(syntax: Syntax | None, offset: int) -> Scope:
    """Return whether the offset lies in a comment or in a string; the end of a line comment is still in it."""
    if syntax is None:
        return "code"
    facts = syntax.facts_near(Span(max(offset - 1, 0), offset))
    for node in facts.all("comment"):
        span = syntax.span(node)
        is_line = syntax.text.startswith(syntax.language.line_comments, span.start)
        if span.start < offset and (offset < span.end or (is_line and offset == span.end)):
            return "comment"
    for node in (*facts.all("string"), *facts.all("docstring")):
        span = syntax.span(node)
        if span.start < offset < span.end:
            return "string"
    # The parser reports an unterminated string or comment as an error, so scan from there.
    broken = min((error.start for error in syntax.errors if offset - OPEN_CHARS < error.start < offset), default=None)
    if broken is None:
        return "code"
    begin = syntax.lines.starts[syntax.lines.at(broken)]
    return languages.kind_at_end(syntax.text[begin:offset].replace("\r", "\n"), syntax.language.name) or "code"


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The time of the last keystroke, the recent gaps between keystrokes, and the engine's recent latencies."""

    last: float | None = None
    gaps: tuple[float, ...] = ()
    latencies_ms: tuple[float, ...] = ()

    def typed(self, now: float) -> Rhythm:
        """Return the rhythm after a keystroke."""
        gap = now - self.last if self.last is not None else 0.0
        gaps = (*self.gaps, gap)[-N_GAPS:] if MIN_GAP_S <= gap <= MAX_GAP_S else self.gaps
        return replace(self, last=now, gaps=gaps)

    def answered(self, latency_ms: float) -> Rhythm:
        """Return the rhythm after an answer from the engine."""
        return replace(self, latencies_ms=(*self.latencies_ms, latency_ms)[-10:])

    @property
    def gap_ms(self) -> float:
        """The median gap between keystrokes; a default before five gaps were measured."""
        return 1000 * (median_high(self.gaps) if len(self.gaps) >= 5 else USUAL_GAP_S)

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
    usual_ms = min(max(factor * rhythm.gap_ms - slow_ms, MIN_WAIT_MS), MAX_WAIT_MS)
    return max(0.0, usual_ms - max(min(elapsed_ms, MAX_WAIT_MS), client_ms))
