"""Code actions, from the menu to the edit: holes, engine, progress bar, drafts. Imported for the first menu."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass
from typing import Any

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams, JsonRpcRequestCancelled

from dg_lsp.core import confidence, importing, polish, positions, values
from dg_lsp.core.positions import Encoding
from dg_lsp.core.values import Budget, Hole, Span
from dg_lsp.infill import fill
from dg_lsp.infill.fill import FillResult
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.server import actions, convert, methods, progress, when
from dg_lsp.server.actions import Action
from dg_lsp.server.app import DgLanguageServer
from dg_lsp.server.methods import BadParamsError, DraftParams, FillParams
from dg_lsp.server.progress import Report
from dg_lsp.server.protocol import CONTENT_MODIFIED
from dg_lsp.server.snapshot import Snapshot

log = logging.getLogger(__name__)

_REPLACE = "Replace"
IMPORT_LABEL = "dg-lsp: import"  # VS Code's client knows by it that the edit belongs to the accepted suggestion
# These actions replace code that the user wrote, so editors that can preview an edit show it first.
PREVIEWED = ("regenerate", "repair")
_TITLES = {
    "body": "Filling the function body",
    "hole": "Filling the hole",
    "all": "Filling all holes",
    "regenerate": "Regenerating the selection",
    "repair": "Repairing the syntax",
    "docstring": "Writing the docstring",
}


async def menu(server: DgLanguageServer, params: lsp.CodeActionParams) -> list[lsp.CodeAction | lsp.Command]:
    """Return the code actions for a range: as commands for a client that does not support code action literals."""
    now = await server.snapshots.take(params.text_document.uri)
    automatic = params.context.trigger_kind == lsp.CodeActionTriggerKind.Automatic
    if now is None or not now.is_current or now.doc.lost or not now.settings.enable or now.refused:
        return []
    # Parsing a longer file would block every other request: for 18 s in a file of 9 MB.
    if len(now.index.text) > when.MAX_FILE_CHARS:
        if not automatic:
            await server.tell(f"no code actions: the file has more than {when.MAX_FILE_CHARS} characters")
        return []
    span = convert.to_span(now.index, params.range, server.documents.encoding)
    only = [str(getattr(kind, "value", kind)) for kind in params.context.only] if params.context.only is not None else None
    # Some editors ask at each cursor movement. Only a menu opened by the user is worth parsing all of a long file.
    syntax = now.doc.near(span.start) if automatic else now.doc.syntax()
    entries = actions.offered(now.document, syntax, span, only)
    if syntax is not None and syntax.parts:
        entries = tuple(action for action in entries if action.what != "all")
    menu_items = [_to_action(server, now, action) for action in entries]
    if server.client.action_literals:
        return [*menu_items]
    return [lsp.Command(action.title, methods.FILL, arguments=[action.data]) for action in menu_items]


async def execute(server: DgLanguageServer, params: lsp.ExecuteCommandParams) -> Any:
    """Run one of our commands and return its result; raise JsonRpcInvalidParams for an unknown command."""
    arguments = params.arguments or []
    first = arguments[0] if arguments else None
    if params.command == methods.ACCEPTED:
        if isinstance(first, int):
            server.completer.usage.accepted(first)
            await _import(server, str(arguments[1]) if len(arguments) > 1 else "", first)
        return None
    if params.command == methods.GET_STATUS:
        return server.reporter.status.to_json()
    if params.command == methods.RESTART:
        server.restart_engine()
        return None
    if params.command == methods.PULL:
        from dg_lsp.server import pulling

        await pulling.execute(server, first)
        return None
    if params.command == methods.FILL:
        return await _fill(server, to_fill_params(first))
    raise JsonRpcInvalidParams(f"unknown command {params.command!r}; use one of {', '.join(methods.COMMANDS)}")


async def _fill(server: DgLanguageServer, params: FillParams) -> dict[str, Any]:
    action_result = await edit(server, params)
    if action_result is None:
        return {"applied": False}
    workspace_edit, label = action_result.edit, labelled(_TITLES[params.what], action_result.note)
    try:
        # Do not check the capability: some editors, such as Kate, support this without announcing it.
        result = await server.workspace_apply_edit_async(lsp.ApplyWorkspaceEditParams(edit=workspace_edit, label=label))
    except JsonRpcException as error:
        log.info("the editor does not apply edits: %s", error)
        return {"applied": False, "edit": server.protocol._converter.unstructure(workspace_edit)}
    if not result.applied:
        log.warning("the editor did not apply the edit: %s", result.failure_reason)
        return {"applied": False}
    return {
        "applied": True,
        "note": action_result.note,
        "nHoles": action_result.n_holes,
        "fills": list(action_result.fills),
    }


async def _import(server: DgLanguageServer, uri: str, offer_id: int) -> None:
    """Add the imports of an accepted suggestion to its document, as it is now."""
    imports, doc = server.completer.usage.imports(offer_id), server.documents.get(uri)
    if not imports or doc is None or doc.lost:
        return
    added = importing.edit(doc.index.text, doc.document.language, imports)
    if added is None:
        return
    workspace_edit = convert.to_workspace_edit(
        uri, doc.document.version, doc.index, (added,), server.documents.encoding, versioned=server.client.versioned_edits
    )
    try:
        await server.workspace_apply_edit_async(lsp.ApplyWorkspaceEditParams(edit=workspace_edit, label=IMPORT_LABEL))
    except JsonRpcException as error:
        log.info("the editor does not apply edits: %s", error)


def to_fill_params(data: object) -> FillParams:
    """Return the parameters in a code action's data; raise JsonRpcInvalidParams when they can't be parsed."""
    try:
        return methods.to_fill_params(data)
    except BadParamsError as error:
        raise JsonRpcInvalidParams(str(error)) from error


def _to_action(server: DgLanguageServer, now: Snapshot, action: Action) -> lsp.CodeAction:
    """Return a menu entry, with the data or the command that runs it later."""
    range_ = convert.to_range(now.index, action.span, server.documents.encoding)
    data = FillParams(action.what, now.document.uri, now.document.version, range_).to_json()
    by_command = lsp.Command(action.title, methods.FILL, arguments=[data])
    is_previewed = action.what in PREVIEWED and server.client.previews
    return lsp.CodeAction(
        title=action.title,
        kind=methods.KINDS[action.what],
        data=data,
        # Editors preview only an edit that the server sends by `workspace/applyEdit`, so use the command.
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
    now = await _unchanged(server, params)
    index, document, encoding = now.index, now.document, server.documents.encoding
    if now.refused:
        server.show_message(f"this file is not sent to a model: it {now.refused}")
        return None
    server.statistics.counts.add("actions")
    result = await _fill_holes(server, params, now)
    if result is None:
        return None
    if not now.is_current:
        raise JsonRpcException("the document changed while it was filled", CONTENT_MODIFIED)
    if not result.edits:
        server.show_message(f"nothing was filled: {'; '.join(result.reasons)}")
        return None
    if result.shrinks and not server.client.previews and not await _confirm(server, index.text, result):
        server.show_message("nothing was replaced")
        return None
    if not now.is_current:
        raise JsonRpcException("the document changed while it was filled", CONTENT_MODIFIED)
    server.statistics.counts.add("actions filled")
    threshold = now.settings.suggestion_threshold
    caution, note = result.caution(threshold), result.note(threshold)
    if len(result.fills) < result.n_holes:
        server.show_message(f"{len(result.fills)} of {result.n_holes} holes were filled: {'; '.join(result.reasons)}")
    if caution:
        server.show_message(f"{caution}: check what was filled")
    workspace_edit = convert.to_workspace_edit(
        params.uri,
        document.version,
        index,
        result.edits,
        encoding,
        versioned=server.client.versioned_edits,
        label=labelled(_TITLES[params.what], note) if server.client.annotates or server.client.previews else "",
        asks=server.client.previews and (params.what == "regenerate" or result.shrinks),
    )
    return ActionResult(workspace_edit, note, result.n_holes, _parts(index.text, result, encoding))


async def _confirm(server: DgLanguageServer, text: str, result: FillResult) -> bool:
    """Return whether the user agrees to replace working code by less code; False for an editor that can't ask."""
    shrinking = next(each for each in result.fills if each.shrinks)
    old, new = (_quoted(each) for each in (text[shrinking.start : shrinking.end], shrinking.text))
    question = f"dg-lsp: this {polish.SHRINKS}: {old} becomes {new}. Replace it?"
    actions = [lsp.MessageActionItem(_REPLACE), lsp.MessageActionItem("Keep")]
    try:
        answer = await server.window_show_message_request_async(
            lsp.ShowMessageRequestParams(lsp.MessageType.Warning, question, actions)
        )
    except JsonRpcException as error:
        log.info("the editor can't ask the user: %s", error)
        return False
    return answer is not None and answer.title == _REPLACE


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
    fills = {each.edit: each for each in result.fills}
    parts = []
    for edit in result.edits:
        start = edit.span.start + shift
        if edit in fills:
            range_ = convert.to_range(index, Span(start, start + len(edit.text)), encoding)
            parts.append({"range": range_, "text": edit.text, "confidence": confidence.words(fills[edit].confidence)})
        shift += len(edit.text) - (edit.span.end - edit.span.start)
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
        async with progress.bar(server, _TITLES[params.what], cancel) as report:
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


async def _unchanged(server: DgLanguageServer, params: FillParams) -> Snapshot:
    now = await server.snapshots.take(params.uri)
    if now is None:
        raise JsonRpcException("the document is not open", CONTENT_MODIFIED)
    if not now.is_current or now.doc.lost or (params.version is not None and params.version != now.document.version):
        raise JsonRpcException("the document has changed since the action was offered", CONTENT_MODIFIED)
    return now


async def _run(server: DgLanguageServer, params: FillParams, now: Snapshot, report: Report) -> FillResult:
    """Return the fills of an action; raise EngineError."""
    document, syntax, index = now.document, now.doc.syntax(), now.index
    encoding, settings = server.documents.encoding, now.settings
    span = convert.to_span(index, params.range, encoding)
    attempts = actions.attempts(params.what, document, syntax, span, params.instruction)
    context = await server.nearby.read(document, settings)
    budget = Budget(ms=settings.action_deadline, candidates=settings.candidates)
    token = secrets.token_hex(6)
    latest: tuple[tuple[lsp.Range, str], ...] = ()

    async def engine_for(group: tuple[Hole, ...]) -> Engine:
        ranges = [convert.to_range(index, hole.span, encoding) for hole in group]

        def draft(texts: tuple[str, ...], step: int) -> None:
            nonlocal latest
            texts = tuple(f"{hole.lead}{text}{hole.trail}" for hole, text in zip(group, texts, strict=False))
            latest = tuple(zip(ranges, texts, strict=False))
            server.send_draft(DraftParams(token, document.uri, document.version, latest, step))

        return await server.resident.engine(document.uri, token, draft if server.client.hears_drafts else None)

    def done(n_done: int, n_holes: int) -> None:
        report(f"{n_done} of {n_holes}", n_done / max(n_holes, 1))

    try:
        # Shrinking is allowed because `edit` asks the user, or the editor shows a preview.
        task = fill.Task(
            document,
            syntax,
            context,
            lambda _n_holes: budget,
            is_file=now.is_file,
            allow_shrink=True,
            repairs=params.what == "repair",
        )
        return await fill.fill(attempts, task, engine_for, done)
    finally:
        if latest:
            server.send_draft(DraftParams(token, document.uri, document.version, (), done=True))
