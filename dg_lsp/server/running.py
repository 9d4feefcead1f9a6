"""Code actions, from the menu to the edit: the holes, the engine, the bar, the drafts. Imported when a menu is first wanted."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams, JsonRpcRequestCancelled

from dg_lsp.core.values import Budget, Candidate, Document, Hole, InfillRequest, Snippet
from dg_lsp.infill import pipeline
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.server import actions, convert, filling, methods, when
from dg_lsp.server.actions import Action
from dg_lsp.server.app import DgLanguageServer
from dg_lsp.server.filling import Filled, Job
from dg_lsp.server.methods import BadParamsError, DraftParams, DraftPart, FillParams
from dg_lsp.server.progress import Bar
from dg_lsp.server.protocol import CONTENT_MODIFIED
from dg_lsp.server.sync import OpenDocument

log = logging.getLogger(__name__)

_TITLES = {
    "body": "Filling the function body",
    "hole": "Filling the hole",
    "all": "Filling all holes",
    "regenerate": "Writing the selection anew",
    "repair": "Repairing the syntax",
    "docstring": "Writing the docstring",
}


async def menu(server: DgLanguageServer, params: lsp.CodeActionParams) -> list[lsp.CodeAction | lsp.Command]:
    """Return the code actions at a place, in the form that the client reads."""
    uri = params.text_document.uri
    doc, settings = server.documents.get(uri), server.configuration.at(uri)
    text = doc.index.text if doc is not None else ""
    await server.nearby.look(uri)
    if doc is not None and doc.index.text is not text:
        return []
    automatic = params.context.trigger_kind == lsp.CodeActionTriggerKind.Automatic
    if doc is None or doc.lost or not settings.enable or server.nearby.refused(uri):
        return []
    # Reading all of a longer one would hold up every other request, for 18 s in one of 9 MB.
    if len(doc.index.text) > when.MAX_FILE_CHARS:
        if not automatic:
            await server.tell(f"there are no code actions in files of more than {when.MAX_FILE_CHARS} characters")
        return []
    span = convert.to_span(doc.index, params.range, server.documents.encoding)
    only = [str(getattr(kind, "value", kind)) for kind in params.context.only] if params.context.only is not None else None
    # Some editors ask at each move of the cursor; only for the menu that somebody opens is all of a long file looked at.
    syntax = doc.near(span.start) if automatic else doc.syntax()
    entries = actions.offered(doc.document, syntax, span, only)
    if syntax is not None and syntax.parts:
        entries = tuple(action for action in entries if action.what != "all")
    menu_items = [_to_action(server, doc.document, doc, action) for action in entries]
    if server.client.action_literals:
        return [*menu_items]
    return [lsp.Command(action.title, methods.FILL, arguments=[action.data]) for action in menu_items]


async def execute(server: DgLanguageServer, params: lsp.ExecuteCommandParams) -> Any:
    """Run a command of ours; raise JsonRpcInvalidParams for another's."""
    arguments = params.arguments or []
    first = arguments[0] if arguments else None
    if params.command == methods.ACCEPTED:
        if isinstance(first, int):
            server.completer.usage.accepted(first)
        return None
    if params.command == methods.GET_STATUS:
        return server.reporter.status.to_json()
    if params.command == methods.RESTART:
        server.restart_engine()
        return None
    if params.command == methods.FILL:
        return await _fill(server, to_fill_params(first))
    raise JsonRpcInvalidParams(f"there is no command {params.command!r}; there are {', '.join(methods.COMMANDS)}")


async def _fill(server: DgLanguageServer, params: FillParams) -> dict[str, Any]:
    made = await edit(server, params)
    if made is None:
        return {"applied": False}
    workspace_edit, label = made.edit, labelled(_TITLES[params.what], made.caution)
    try:
        # Some editors, Kate among them, do this without announcing it.
        result = await server.workspace_apply_edit_async(lsp.ApplyWorkspaceEditParams(edit=workspace_edit, label=label))
    except JsonRpcException as error:
        log.info("the editor does not apply edits: %s", error)
        return {"applied": False, "edit": server.protocol._converter.unstructure(workspace_edit)}
    if not result.applied:
        log.warning("the editor did not apply the edit: %s", result.failure_reason)
    return {"applied": bool(result.applied)}


def to_fill_params(data: object) -> FillParams:
    """Return what a code action's data asks for; raise JsonRpcInvalidParams when it can't be read."""
    try:
        return methods.to_fill_params(data)
    except BadParamsError as error:
        raise JsonRpcInvalidParams(str(error)) from error


def _to_action(server: DgLanguageServer, document: Document, doc: OpenDocument, action: Action) -> lsp.CodeAction:
    """Return an entry of the menu, with what it takes to do it later."""
    ends = convert.to_points(doc.index, action.span, server.documents.encoding)
    data = FillParams(action.what, document.uri, document.version, *ends).to_json()
    by_command = lsp.Command(action.title, methods.FILL, arguments=[data])
    return lsp.CodeAction(
        title=action.title,
        kind=methods.KINDS[action.what],
        data=data,
        command=None if server.client.resolves_edits else by_command,
        tags=[lsp.CodeActionTag.LlmGenerated] if server.client.tags_actions else None,
    )


@dataclass(frozen=True, slots=True)
class Made:
    """What an action came to, and a word of caution where the model is not sure of it."""

    edit: lsp.WorkspaceEdit
    caution: str = ""


def labelled(title: str, caution: str) -> str:
    """Return a title with the caution: `Fill function body (best guess, 4 %)`."""
    return f"{title} ({caution})" if caution else title


async def edit(server: DgLanguageServer, params: FillParams) -> Made | None:
    """Return what an action comes to, None when it comes to nothing, of which the user is told.

    Raises JsonRpcException when the document is another by now, or the work was cancelled.
    """
    await server.nearby.look(params.uri)
    doc = _unchanged(server, params)
    index, document, encoding = doc.index, doc.document, server.documents.encoding
    if refusal := server.nearby.refused(params.uri):
        server.say(f"this file is not given to a model: it {refusal}")
        return None
    server.statistics.counts.add("actions")
    result = await _filled(server, params, doc)
    if result is None:
        return None
    # One that was closed and opened again is another document, though it may have the same version.
    if server.documents.get(params.uri) is not doc or doc.index.text is not index.text:
        raise JsonRpcException("the document changed while it was filled", CONTENT_MODIFIED)
    if not result.edits:
        server.say(f"nothing was filled: {'; '.join(result.reasons)}")
        return None
    server.statistics.counts.add("actions filled")
    caution = result.caution(server.configuration.at(params.uri).gate)
    if len(result.edits) < result.n_holes:
        server.say(f"{len(result.edits)} of {result.n_holes} holes were filled: {'; '.join(result.reasons)}")
    if caution:
        server.say(f"{caution}: check what was filled")
    workspace_edit = convert.to_workspace_edit(
        params.uri,
        document.version,
        index,
        result.edits,
        encoding,
        versioned=server.client.versioned_edits,
        label=labelled(_TITLES[params.what], caution) if server.client.annotates else "",
    )
    return Made(workspace_edit, caution)


async def _filled(server: DgLanguageServer, params: FillParams, doc: OpenDocument) -> Filled | None:
    """Return what the action comes to, None when the engine failed, of which the user is told."""
    work: asyncio.Task[Filled] | None = None

    def cancel() -> None:
        if work is not None:
            work.cancel()

    # Somebody asked by hand, and hears what is wrong though it was told before.
    server.tell_again()
    server.reporter.busy(1)
    try:
        async with server.progresses.bar(_TITLES[params.what], cancel, is_shown=server.client.progress) as bar:
            work = server.spawn(_run(server, params, doc, bar))
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


def _unchanged(server: DgLanguageServer, params: FillParams) -> OpenDocument:
    doc = server.documents.get(params.uri)
    if doc is None:
        raise JsonRpcException("the document is not open", CONTENT_MODIFIED)
    if doc.lost or (params.version is not None and params.version != doc.document.version):
        raise JsonRpcException("the document has changed since the action was offered", CONTENT_MODIFIED)
    return doc


async def _run(server: DgLanguageServer, params: FillParams, doc: OpenDocument, bar: Bar) -> Filled:
    """Return what the action comes to. Raises EngineError."""
    document, syntax, index = doc.document, doc.syntax(), doc.index
    encoding, settings = server.documents.encoding, server.configuration.at(document.uri)
    span = convert.from_points(index, params.start, params.end, encoding)
    attempts = actions.attempts(params.what, document, syntax, span, params.instruction)
    related: Sequence[Snippet] = await server.nearby.read(document, settings.related_chars)
    options = pipeline.RequestOptions(
        window_chars=settings.window_chars,
        budget=Budget(ms=settings.action_deadline, candidates=settings.candidates),
        path=server.nearby.name(document.uri),
    )
    token = secrets.token_hex(6)
    latest: tuple[DraftPart, ...] = ()

    def engine_for(group: tuple[Hole, ...]) -> Engine:
        ends = [convert.to_points(index, hole.span, encoding) for hole in group]

        def draft(texts: tuple[str, ...], step: int) -> None:
            nonlocal latest
            texts = tuple(f"{hole.lead}{text}{hole.trail}" for hole, text in zip(group, texts, strict=False))
            latest = tuple(DraftPart(start, end, text) for (start, end), text in zip(ends, texts, strict=False))
            server.send_draft(DraftParams(token, document.uri, document.version, latest, step))

        return _Later(server, document.uri, token, draft if server.client.hears_drafts else None)

    def done(n_done: int, n_holes: int) -> None:
        bar.report(f"{n_done} of {n_holes}", n_done / max(n_holes, 1))

    try:
        job = Job(document, syntax, options, related, is_file=not server.documents.is_cell(document.uri))
        return await filling.fill(attempts, job, engine_for, done, mends=params.what == "repair")
    finally:
        if latest:
            server.send_draft(DraftParams(token, document.uri, document.version, (), done=True))


class _Later:
    """The engine, once it is joined."""

    def __init__(self, server: DgLanguageServer, uri: str, turn: str, on_draft: filling.OnDraft | None) -> None:
        self._server, self._uri, self._turn, self._on_draft = server, uri, turn, on_draft

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        engine = await self._server.resident.engine(self._uri, self._turn, self._on_draft)
        return await engine.fill(request)
