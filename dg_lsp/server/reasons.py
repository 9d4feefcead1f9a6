"""Why nothing is shown at a place: each reason has a code, and a sentence for the log and the status.

They have a fixed order. Some are known at once, some only after parsing, and some from the engine's answer (`visible`). Pure:
the caller passes what it has looked up about ignore files, the engine and what the user does not want.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from dg_lsp import OUT_OF_MEMORY, is_out_of_memory
from dg_lsp.core import confidence, languages, lexing
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Calibrated, Document, Ranked, Span
from dg_lsp.server import installation
from dg_lsp.wire.settings import Settings

if TYPE_CHECKING:
    from dg_lsp.core.polish import Suggestion  # imported for the first request

Scope = Literal["code", "comment", "string"]
MAX_FILE_CHARS = 1_000_000
"""Longer files get suggestions only on request: they are rarely written by hand, and each keystroke would be slow."""
OPEN_CHARS = 2_000
"""How far back to look for the start of an unterminated string or comment."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why nothing is shown: a code for programs and a sentence for people."""

    code: str
    message: str


UNKNOWN = Reason("unknown", "the document is not open")
SUPERSEDED = Reason("superseded", "a newer request replaced this one")
MOVED = Reason("moved", "the text changed while the answer was made")


def no_answer(message: str = "the model has no answer here") -> Reason:
    """Return the reason where the engine gave none that could be shown, with its message."""
    return Reason("noAnswer", message)


def no_engine(message: str) -> Reason:
    """Return the reason where the engine takes no requests now, or has failed on this one."""
    return Reason("engine", message)


def failed(error: BaseException) -> Reason:
    """Return the reason for an unexpected error, which is logged: a changed installation, no memory, or a defect of ours."""
    defect = f"dg-lsp failed on this request ({type(error).__name__}); its log says where"
    return Reason("internal", installation.change() or (OUT_OF_MEMORY if is_out_of_memory(error) else defect))


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
        hint = "; with `completion.invoked_by_hand`, a list that you open by a key counts as a request"
        by_key = "" if settings.invoked_by_hand else hint
        yield Reason("manual", f"suggestions come only on request, as `completion.trigger` says{by_key}")
    if engine:
        yield no_engine(engine)
    if after[:1].isalnum() or after[:1] == "_":
        yield Reason("midWord", "the cursor is before a word")


def reason_of_scope(scope: Scope, settings: Settings, *, is_unparsed: bool = False) -> Reason | None:
    """Return why nothing is suggested unprompted at a place that was parsed, or None."""
    if is_unparsed:
        why = "this text takes too long to parse, or is nested too deeply"
        return Reason("unparsed", f"{why}; a suggestion that you ask for is made without its syntax")
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
        if any(node.type == "token_tree" for node in syntax.ancestors(outermost)):
            name = f"{name} macro"
    lexer = lexing.named(f"cursor:{name}", syntax.language.name)
    kind = lexing.kind_at(syntax.text, offset, lexer, start)
    return "code" if kind == "verbatim" else kind


def visible(
    suggestions: tuple[Suggestion, ...], is_unwanted: Callable[[Suggestion], bool], settings: Settings, *, automatic: bool
) -> tuple[tuple[Suggestion, ...], Reason | None]:
    """Return the suggestions to show, best first, or the reason for none.

    An unprompted request gets at most one suggestion, which must reach the threshold and not be unwanted: rejected or removed
    by the user. Without those the others are likelier. An explicit request gets up to `settings.candidates` suggestions.
    """
    if not suggestions:
        return (), no_answer()
    if not automatic:
        return suggestions[: settings.candidates], None
    unwanted = [suggestion for suggestion in suggestions if is_unwanted(suggestion)]
    excluded = [suggestion.confidence for suggestion in unwanted]
    wanted = [
        (suggestion, confidence.without(excluded, suggestion.confidence))
        for suggestion in suggestions
        if suggestion not in unwanted
    ]
    if not wanted:
        return (), Reason("rejected", "you rejected or removed the same text here")
    for suggestion, sureness in wanted:
        if confidence.is_sure(sureness, settings.suggestion_threshold):
            return (suggestion,), None
    if not any(suggestion.candidate.finished for suggestion, _ in wanted):
        return (), out_of_time(settings)
    match max((sureness for _, sureness in wanted), key=confidence.order):
        case Calibrated(probability):
            why = f"is right with a probability of {probability:.2f}, below {settings.threshold:.2f}"
        case Ranked(_, True):
            why = "was cut short, or contradicts the text around it"
        case Ranked():
            why = "comes from a model that is not calibrated; `dg-lsp calibrate` measures how often it is right"
    return (), Reason("unsure", f"the best answer {why}")


def out_of_time(settings: Settings) -> Reason:
    """Return the reason for no suggestion where the deadline ended the engine's work."""
    limit = f"the time ({settings.deadline / 1000:g} s) ran out"
    return Reason("deadline", f"{limit}; raise `completion.deadline`, or choose a faster model")
