"""Code actions, from the menu to the edit: holes, engine, progress bar, drafts. Imported for the first menu.

The end of this module lists the actions for a cursor or a selection, and the holes that each action fills. It is pure: no
model runs to build a menu.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from lsprotocol import types as lsp
from msgspec import structs
from pygls.exceptions import JsonRpcException, JsonRpcRequestCancelled

from dg_lsp.client.port import Engine, EngineError
from dg_lsp.core import confidence, holes, polish, positions, values
from dg_lsp.core.positions import Encoding
from dg_lsp.core.syntax import Owner, Syntax
from dg_lsp.core.values import Budget, Document, Hole, Span
from dg_lsp.infill import fill
from dg_lsp.infill.fill import FillResult
from dg_lsp.server import convert, methods, reasons
from dg_lsp.server.methods import KINDS, DraftHole, DraftParams, FillParams, Versioned, What
from dg_lsp.server.protocol import CONTENT_MODIFIED
from dg_lsp.server.session import DgLanguageServer, Report
from dg_lsp.server.snapshot import Snapshot
from dg_lsp.wire.background import in_thread

log = logging.getLogger(__name__)

_REPLACE = "Replace"


async def menu(server: DgLanguageServer, params: lsp.CodeActionParams) -> list[lsp.CodeAction | lsp.Command]:
    """Return the code actions for a range: as commands for a client that does not support code action literals."""
    now = await server.snapshots.take(params.text_document.uri)
    automatic = params.context.trigger_kind == lsp.CodeActionTriggerKind.Automatic
    snapshots = server.snapshots
    if now is None or not snapshots.is_current(now) or now.lost or not now.settings.enable or now.refused:
        return []
    # Parsing a longer file would block every other request: for 18 s in a file of 9 MB.
    if len(now.index.text) > reasons.MAX_FILE_CHARS:
        if not automatic:
            await server.tell(f"no code actions: the file has more than {reasons.MAX_FILE_CHARS} characters")
        return []
    span = convert.to_span(now.index, params.range, server.documents.encoding)
    only = [str(getattr(kind, "value", kind)) for kind in params.context.only] if params.context.only is not None else None
    # Some editors ask at each cursor movement: it tells where the user may type next.
    if automatic and span.start == span.end:
        server.completer.arrived(params.text_document.uri, span.start)
    # Only a menu opened by the user is worth parsing all of a long file.
    syntax = snapshots.near(now, span.start) if automatic else await snapshots.whole(now)
    entries = await in_thread(partial(offered, now.document, syntax, span, only))
    if syntax is not None and syntax.parts:
        entries = tuple(action for action in entries if action.what != "all")
    menu_items = [_to_action(server, now, action) for action in entries]
    if server.client.action_literals:
        return [*menu_items]
    return [lsp.Command(action.title, methods.FILL, arguments=[action.data]) for action in menu_items]


async def fill_holes(server: DgLanguageServer, params: FillParams) -> dict[str, Any]:
    """Fill what the parameters say, and return what was done, for the client."""
    action_result = await edit(server, params)
    if action_result is None:
        return {"applied": False}
    workspace_edit, label = action_result.edit, labelled(KINDS[params.what].progress, action_result.note)
    try:
        # Do not check the capability: some editors, such as Kate, support this without announcing it.
        result = await server.workspace_apply_edit_async(lsp.ApplyWorkspaceEditParams(edit=workspace_edit, label=label))
    except JsonRpcException as error:
        log.info("the editor does not apply edits: %s", error)
        return {"applied": False, "edit": server.protocol._converter.unstructure(workspace_edit)}
    if not result.applied:
        log.warning("the editor did not apply the edit: %s", result.failure_reason)
        return {"applied": False}
    return {"applied": True, "note": action_result.note, "nHoles": action_result.n_holes, "fills": list(action_result.fills)}


def _to_action(server: DgLanguageServer, now: Snapshot, action: Action) -> lsp.CodeAction:
    """Return a menu entry, with the data or the command that runs it later."""
    range_ = convert.to_range(now.index, action.span, server.documents.encoding)
    data = FillParams(action.what, Versioned(now.document.uri, now.document.version), range_).to_json()
    by_command = lsp.Command(action.title, methods.FILL, arguments=[data])
    is_previewed = KINDS[action.what].replaces and server.client.previews
    return lsp.CodeAction(
        title=action.title,
        kind=KINDS[action.what].name,
        data=data,
        # What replaces code that the user wrote is previewed. Editors preview only an edit that the server sends.
        command=by_command if is_previewed or not server.client.resolves_edits else None,
        tags=[lsp.CodeActionTag.LlmGenerated] if server.client.tags_actions else None,
    )


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The result of an action: its edit, a note about the confidence, the number of holes, and the fills after the edit."""

    edit: lsp.WorkspaceEdit
    note: str = ""
    n_holes: int = 0
    fills: tuple[dict[str, Any], ...] = ()


def labelled(title: str, note: str) -> str:
    """Return the title with the note: `Fill function body (best guess, 4 %)`."""
    return f"{title} ({note})" if note else title


async def edit(server: DgLanguageServer, params: FillParams) -> ActionResult | None:
    """Return the result of an action; None when there is nothing to apply, after telling the user why.

    Raises JsonRpcException when the document has changed or the action was cancelled.
    """
    now = await server.snapshots.take(params.document.uri, waits=True)
    if now is None:
        raise JsonRpcException("the document is not open", CONTENT_MODIFIED)
    is_version = params.document.version in (None, now.document.version)
    if not server.snapshots.is_current(now) or now.lost or not is_version:
        raise JsonRpcException("the document has changed since the action was offered", CONTENT_MODIFIED)
    index, document, encoding = now.index, now.document, server.documents.encoding
    if now.refused:
        server.show_message(f"this file is not sent to a model: it {now.refused}")
        return None
    result = await _fill_holes(server, params, now)
    if result is None:
        return None
    if not server.snapshots.is_current(now):
        raise JsonRpcException("the document changed while it was filled", CONTENT_MODIFIED)
    if not result.edits:
        server.show_message(f"nothing was filled: {'; '.join(result.reasons)}")
        return None
    if result.shrinks and not server.client.previews and not await _confirm(server, index.text, result):
        server.show_message("nothing was replaced")
        return None
    if not server.snapshots.is_current(now):
        raise JsonRpcException("the document changed while it was filled", CONTENT_MODIFIED)
    threshold = now.settings.suggestion_threshold
    caution, note = result.caution(threshold), result.note(threshold)
    if len(result.fills) < result.n_holes:
        server.show_message(f"{len(result.fills)} of {result.n_holes} holes were filled: {'; '.join(result.reasons)}")
    if caution:
        server.show_message(f"{caution}: check what was filled")
    workspace_edit = convert.to_workspace_edit(
        params.document.uri,
        document.version,
        index,
        result.edits,
        encoding,
        versioned=server.client.versioned_edits,
        label=labelled(KINDS[params.what].progress, note) if server.client.annotates or server.client.previews else "",
        asks=server.client.previews and (params.what == "regenerate" or result.shrinks),
    )
    return ActionResult(workspace_edit, note, result.n_holes, _parts(index.text, result, encoding))


async def _confirm(server: DgLanguageServer, text: str, result: FillResult) -> bool:
    """Return whether the user agrees to replace working code by less code; False for an editor that can't ask."""
    shrinking = next(each for each in result.fills if each.shrinks)
    old, new = (_quoted(each) for each in (text[shrinking.start : shrinking.end], shrinking.text))
    question = f"dg-lsp: this {polish.SHRINKS}: {old} becomes {new}. Replace it?"
    return await server.ask(lsp.MessageType.Warning, question, _REPLACE, "Keep") == _REPLACE


def _quoted(text: str) -> str:
    """Return the first line of a text for a question, and the number of further lines."""
    lines = text.strip().splitlines()
    if not lines:
        return "nothing"
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return f"`{lines[0].strip()[:60]}`{more}"


def _parts(text: str, result: FillResult, encoding: Encoding) -> tuple[dict[str, Any], ...]:
    """Return the fills as the result of `dgLsp.fill` has them, with their ranges in the text after the edit."""
    index, shift = positions.lines(values.apply(text, result.edits)), 0
    parts = []
    for each in result.fills:
        start = each.start + shift
        range_ = convert.to_range(index, Span(start, start + len(each.text)), encoding)
        parts.append({"range": range_, "text": each.text, "confidence": confidence.words(each.confidence)})
        shift += len(each.text) - (each.end - each.start)
    return tuple(parts)


async def _fill_holes(server: DgLanguageServer, params: FillParams, now: Snapshot) -> FillResult | None:
    """Return the fills of an action; None when the engine failed, after telling the user why."""
    work: asyncio.Task[FillResult] | None = None

    def cancel() -> None:
        if work is not None:
            work.cancel()

    # The user started this action, so show the engine's error even if it was shown before.
    server.allow_repeat()
    server.reporter.busy(1)
    try:
        async with server.bar(KINDS[params.what].progress, cancel) as report:
            work = server.spawn(_run(server, params, now, report))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                if work.cancelled():
                    raise JsonRpcRequestCancelled("the user cancelled it") from None
                work.cancel()
                raise
    except EngineError as error:
        await server.tell(str(error))
        return None
    finally:
        server.reporter.busy(-1)


async def _run(server: DgLanguageServer, params: FillParams, now: Snapshot, report: Report) -> FillResult:
    document, syntax, index = now.document, await server.snapshots.whole(now), now.index
    encoding, settings = server.documents.encoding, now.settings
    span = convert.to_span(index, params.range, encoding)
    hole_sets = await in_thread(partial(attempts, params.what, document, syntax, span, params.instruction or ""))
    budget = Budget(ms=settings.action_deadline, candidates=settings.candidates)
    draft = DraftParams(secrets.token_hex(6), Versioned(document.uri, document.version), ())

    async def engine_for(group: tuple[Hole, ...]) -> Engine:
        ranges = [convert.to_range(index, hole.span, encoding) for hole in group]

        def on_draft(texts: tuple[str, ...], step: int) -> None:
            nonlocal draft
            texts = tuple(f"{hole.lead}{text}{hole.trail}" for hole, text in zip(group, texts, strict=False))
            draft = structs.replace(draft, holes=tuple(map(DraftHole, ranges, texts)), step=step)
            server.send_draft(draft)

        return await server.engine.for_document(document.uri, draft.token, on_draft if server.client.hears_drafts else None)

    def done(n_done: int, n_holes: int) -> None:
        report(f"{n_done} of {n_holes}", n_done / max(n_holes, 1))

    try:
        # Shrinking is allowed because `edit` asks the user, or the editor shows a preview.
        filling = fill.Filling(
            document,
            syntax,
            now.context,
            lambda _n_holes: budget,
            is_file=now.is_file,
            allow_shrink=True,
            repairs=params.what == "repair",
        )
        return await fill.fill(hole_sets, filling, engine_for, done)
    finally:
        if draft.holes:
            server.send_draft(structs.replace(draft, holes=(), step=0, done=True))


# --- The actions at a place

# With more broken places than this in one request, too little fixed text is left to guide the model.
MAX_REPAIRS = 4


@dataclass(frozen=True, slots=True)
class Action:
    """A menu entry, and the span that it applies to."""

    title: str
    what: What
    span: Span


def offered(document: Document, syntax: Syntax | None, span: Span, only: Iterable[str] | None = None) -> tuple[Action, ...]:
    """Return the actions for a cursor or a selection; `only` limits them to these kinds, None returns all."""
    # A kind includes those below it, and the empty kind all.
    prefixes = ("",) if only is None else tuple(f"{kind}." if kind else "" for kind in only)
    return tuple(action for action in _all(document, syntax, span) if f"{KINDS[action.what].name}.".startswith(prefixes))


def attempts(
    what: str, document: Document, syntax: Syntax | None, span: Span, instruction: str = ""
) -> tuple[tuple[Hole, ...], ...]:
    """Return the sets of holes to try for an action, in order; empty when there is nothing to fill.

    The caller uses the first set that yields an edit. Raises ValueError for an unknown action.
    """
    if what in ("body", "hole"):
        touched = [hole for hole in _placeholders(document, syntax) if hole.span.touches(span)]
        touched = touched or _pointed_at(document, syntax, span)
        return ((touched[0],),) if touched else ()
    if what == "all":
        placeholders = _placeholders(document, syntax)
        return (placeholders,) if placeholders else ()
    if what == "regenerate":
        hole_at = holes.at_place if span.start != span.end else holes.selection
        return ((hole_at(document, span, syntax, instruction),),)
    if what == "repair":
        return _repairs(document, syntax, span)
    if what == "docstring":
        owner = _undocumented(syntax, span)
        return ((_docstring(syntax, owner),),) if syntax is not None and owner is not None else ()
    raise ValueError(f"unknown action {what!r}; use one of {', '.join(KINDS)}")


def _all(document: Document, syntax: Syntax | None, span: Span) -> Iterable[Action]:
    placeholders = _placeholders(document, syntax)
    nearby_holes = [hole for hole in placeholders if _is_near(hole, syntax, span)]
    # A body that may be empty on purpose is offered only on its own line.
    if near_or_pointed := nearby_holes or _pointed_at(document, syntax, span):
        hole = near_or_pointed[0]
        if hole.kind == "body":
            yield Action("Fill function body", "body", hole.span)
        else:
            says = f": {hole.instruction[:40]}{'…' if len(hole.instruction) > 40 else ''}" if hole.instruction else ""
            yield Action(f"Fill this hole{says}", "hole", hole.span)
    if len(placeholders) > 1 or (placeholders and not nearby_holes):
        n = len(placeholders)
        yield Action(f"Fill all {n} holes in this file" if n > 1 else "Fill the hole in this file", "all", Span(0, 0))
    if document.text[span.start : span.end].strip():
        yield Action("Regenerate selection", "regenerate", span)
    if _repairs(document, syntax, span):
        yield Action("Repair syntax here", "repair", span)
    if span.start == span.end and (owner := _undocumented(syntax, span)) is not None:
        yield Action(f"Write docstring for {owner.name}" if owner.name else "Write docstring", "docstring", span)


def _placeholders(document: Document, syntax: Syntax | None) -> tuple[Hole, ...]:
    return holes.in_document(document, syntax, frozenset({"bodies", "markers"}))


def _pointed_at(document: Document, syntax: Syntax | None, span: Span) -> list[Hole]:
    """Return the body or statement whose placeholder is on the cursor's line or in the selection, if there is one."""
    if syntax is not None and span.start == span.end:
        line = syntax.lines.at(span.start)
        span = Span(syntax.lines.start(line), syntax.lines.end(line))
    hole = holes.at_placeholder(document, span, syntax)
    return [hole] if hole is not None else []


def _is_near(hole: Hole, syntax: Syntax | None, span: Span) -> bool:
    """Return whether the span touches the hole's lines, or lies in the function whose body it is."""
    if hole.span.touches(span):
        return True
    if syntax is None:
        return False
    index = syntax.lines
    if index.at(hole.span.start) <= index.at(span.end) and index.at(span.start) <= index.at(hole.span.end):
        return True
    around = syntax.enclosing_function(hole.span.start)
    return around is not None and around.start <= span.start <= around.end and syntax.enclosing_function(span.start) == around


def _repairs(document: Document, syntax: Syntax | None, span: Span) -> tuple[tuple[Hole, ...], ...]:
    """Return the sets of holes to try in order to repair the span's lines: the unparsable parts, then the whole lines."""
    if syntax is None:
        return ()
    index = syntax.lines
    first, last = index.at(span.start), index.at(span.end)
    lines = [hole for hole in holes.errors(syntax) if index.at(hole.span.start) <= last and first <= index.at(hole.span.end)]
    if not lines:
        return ()
    errors = [error for error in syntax.errors if any(hole.span.start <= error.start <= hole.span.end for hole in lines)]
    attempts = [tuple(lines[:1])]
    if len(errors) <= MAX_REPAIRS and all(left.end <= right.start for left, right in pairwise(errors)):
        tight = tuple(
            Hole(
                error,
                "error",
                indent=index.indent(index.at(error.start)),
                extent="block" if "\n" in syntax.text[error.start : error.end] else "line",
            )
            for error in errors
        )
        if tight and tight != attempts[0]:
            attempts.insert(0, tight)
    return tuple(attempts)


def _undocumented(syntax: Syntax | None, span: Span) -> Owner | None:
    """Return the function or class whose header contains the span's start, when it has no documentation; else None."""
    if syntax is None:
        return None
    line = syntax.lines.at(span.start)
    for owner in syntax.facts.owners:
        if owner.kind == "closure":
            continue
        first = syntax.lines.at(syntax.span(owner.node).start)
        if first <= line <= syntax.lines.at(owner.inside.start):
            if syntax.language.by_indentation:
                same_line = syntax.lines.at(owner.inside.start) == syntax.lines.at(_first_item(syntax, owner))
                first_bytes = [item.start_byte for item in owner.items[:1]]
                is_described = same_line or any(node.start_byte in first_bytes for node in syntax.facts.all("docstring"))
            else:
                is_described = first - 1 in {syntax.lines.at(syntax.span(node).end) for node in syntax.facts.all("comment")}
            return None if is_described else owner
    return None


def _first_item(syntax: Syntax, owner: Owner) -> int:
    return syntax.offsets.to_point(owner.items[0].start_byte) if owner.items else owner.inside.start


def _docstring(syntax: Syntax, owner: Owner) -> Hole:
    """Return the hole for a one-line docstring.

    It lies in the body in languages that use indentation for blocks, else above the definition.
    """
    language, index = syntax.language, syntax.lines
    at = _first_item(syntax, owner) if language.by_indentation else index.at(syntax.span(owner.node).start)
    if not language.by_indentation:
        at = index.start(at) + len(index.indent(at))
    indent = index.indent(index.at(at))
    if language.by_indentation:
        opening, closing = '"""', '"""'
    elif language.block_comment == ("/*", "*/") and not language.doc_comment:
        opening, closing = "/** ", " */"
    else:
        opening, closing = f"{language.doc_comment or language.line_comments[0]} ", ""
    return Hole(
        Span(at, at), "cursor", indent=indent, lead=opening, trail=f"{closing}\n{indent}", instruction="describe it in one line"
    )
