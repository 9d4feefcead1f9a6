"""Code actions, from the menu to the edit: the holes, the engine, the bar, the drafts. Imported when a menu is first wanted."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams, JsonRpcRequestCancelled

from dg_lsp.core.values import Budget, Candidate, Document, Hole, InfillRequest, Snippet
from dg_lsp.infill import pipeline
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.server import actions, convert, filling, methods
from dg_lsp.server.actions import Action
from dg_lsp.server.filling import Filled, Job
from dg_lsp.server.methods import BadParamsError, Draft, Part, Wanted
from dg_lsp.server.progress import Bar
from dg_lsp.server.protocol import CONTENT_MODIFIED
from dg_lsp.server.sync import Open

if TYPE_CHECKING:
    from dg_lsp.server.app import Server

log = logging.getLogger(__name__)

_TITLES = {
    "body": "Filling the function body",
    "hole": "Filling the hole",
    "all": "Filling all holes",
    "regenerate": "Writing the selection anew",
    "repair": "Repairing the syntax",
    "docstring": "Writing the docstring",
}


async def menu(server: Server, params: lsp.CodeActionParams) -> list[lsp.CodeAction | lsp.Command]:
    """Return the code actions at a place, in the form that the client reads."""
    uri = params.text_document.uri
    found, settings = server.documents.get(uri), server.configuration.at(uri)
    text = found.index.text if found is not None else ""
    await server.nearby.look(uri)
    if found is not None and found.index.text is not text:
        return []
    automatic = params.context.trigger_kind == lsp.CodeActionTriggerKind.Automatic
    if found is None or found.lost or not settings.enable or server.nearby.refused(uri):
        return []
    # Reading all of a longer one would hold up every other request, for 18 s in one of 9 MB.
    if len(found.index.text) > settings.max_file_chars:
        if not automatic:
            await server.tell(f"there are no code actions in files of more than {settings.max_file_chars} characters")
        return []
    span = convert.to_span(found.index, params.range, server.documents.encoding)
    only = [str(getattr(kind, "value", kind)) for kind in params.context.only] if params.context.only is not None else None
    # Some editors ask at each move of the cursor; only for the menu that somebody opens is all of a long file looked at.
    syntax = found.near(span.start) if automatic else found.syntax()
    offered = actions.offered(found.document, syntax, span, only)
    if syntax is not None and syntax.parts:
        offered = tuple(action for action in offered if action.what != "all")
    written = [_to_action(server, found.document, found, action) for action in offered]
    if server.client.action_literals:
        return [*written]
    return [lsp.Command(action.title, methods.FILL, arguments=[action.data]) for action in written]


async def execute(server: Server, params: lsp.ExecuteCommandParams) -> Any:
    """Run a command of ours; raise JsonRpcInvalidParams for another's."""
    arguments = params.arguments or []
    first = arguments[0] if arguments else None
    if params.command == methods.ACCEPTED:
        if isinstance(first, int):
            server.completer.accepted(first)
        return None
    if params.command == methods.GET_STATUS:
        return server.reporter.status.to_json()
    if params.command == methods.RESTART:
        server.restart_engine()
        return None
    if params.command == methods.FILL:
        return await _fill(server, to_wanted(first))
    raise JsonRpcInvalidParams(f"there is no command {params.command!r}; there are {', '.join(methods.COMMANDS)}")


async def _fill(server: Server, wanted: Wanted) -> dict[str, Any]:
    found = await edit(server, wanted)
    if found is None:
        return {"applied": False}
    label = _TITLES[wanted.what]
    try:
        # Some editors, Kate among them, do this without announcing it.
        result = await server.workspace_apply_edit_async(lsp.ApplyWorkspaceEditParams(edit=found, label=label))
    except JsonRpcException as error:
        log.info("the editor does not apply edits: %s", error)
        return {"applied": False, "edit": server.protocol._converter.unstructure(found)}
    if not result.applied:
        log.warning("the editor did not apply the edit: %s", result.failure_reason)
    return {"applied": bool(result.applied)}


def to_wanted(data: object) -> Wanted:
    """Return what a code action's data asks for; raise JsonRpcInvalidParams when it can't be read."""
    try:
        return methods.to_wanted(data)
    except BadParamsError as error:
        raise JsonRpcInvalidParams(str(error)) from error


def _to_action(server: Server, document: Document, found: Open, action: Action) -> lsp.CodeAction:
    """Return an entry of the menu, with what it takes to do it later."""
    ends = convert.to_points(found.index, action.span, server.documents.encoding)
    wanted = Wanted(action.what, document.uri, document.version, *ends).to_json()
    by_command = lsp.Command(action.title, methods.FILL, arguments=[wanted])
    return lsp.CodeAction(
        title=action.title,
        kind=methods.KINDS[action.what],
        data=wanted,
        command=None if server.client.resolves_edits else by_command,
        tags=[lsp.CodeActionTag.LlmGenerated] if server.client.tags_actions else None,
    )


async def edit(server: Server, wanted: Wanted) -> lsp.WorkspaceEdit | None:
    """Return what an action comes to, None when it comes to nothing, of which the user is told.

    Raises JsonRpcException when the document is another by now, or the work was cancelled.
    """
    await server.nearby.look(wanted.uri)
    found = _unchanged(server, wanted)
    index, document, encoding = found.index, found.document, server.documents.encoding
    if refused := server.nearby.refused(wanted.uri):
        server.say(f"this file is not given to a model: it {refused}")
        return None
    server.statistics.counts.add("actions")
    filled = await _filled(server, wanted, found)
    if filled is None:
        return None
    # One that was closed and opened again is another document, though it may have the same version.
    if server.documents.get(wanted.uri) is not found or found.index.text is not index.text:
        raise JsonRpcException("the document changed while it was filled", CONTENT_MODIFIED)
    if not filled.edits:
        server.say(f"nothing was filled: {'; '.join(filled.reasons)}")
        return None
    server.statistics.counts.add("actions filled")
    if len(filled.edits) < filled.n_holes:
        server.say(f"{len(filled.edits)} of {filled.n_holes} holes were filled: {'; '.join(filled.reasons)}")
    return convert.to_workspace_edit(
        wanted.uri,
        document.version,
        index,
        filled.edits,
        encoding,
        versioned=server.client.versioned_edits,
        label=_TITLES[wanted.what] if server.client.annotates else "",
    )


async def _filled(server: Server, wanted: Wanted, found: Open) -> Filled | None:
    """Return what the action comes to, None when the engine failed, of which the user is told."""
    work: asyncio.Task[Filled] | None = None

    def cancel() -> None:
        if work is not None:
            work.cancel()

    # Somebody asked by hand, and hears what is wrong though it was told before.
    server.tell_again()
    server.reporter.busy(1)
    try:
        async with server.progresses.bar(_TITLES[wanted.what], cancel, wanted=server.client.progress) as bar:
            work = server.spawn(_run(server, wanted, found, bar))
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


def _unchanged(server: Server, wanted: Wanted) -> Open:
    found = server.documents.get(wanted.uri)
    if found is None:
        raise JsonRpcException("the document is not open", CONTENT_MODIFIED)
    if found.lost or (wanted.version is not None and wanted.version != found.document.version):
        raise JsonRpcException("the document has changed since the action was offered", CONTENT_MODIFIED)
    return found


async def _run(server: Server, wanted: Wanted, found: Open, bar: Bar) -> Filled:
    """Return what the action comes to. Raises EngineError."""
    document, syntax, index = found.document, found.syntax(), found.index
    encoding, settings = server.documents.encoding, server.configuration.at(document.uri)
    span = convert.from_points(index, wanted.start, wanted.end, encoding)
    attempts = actions.attempts(wanted.what, document, syntax, span, wanted.instruction)
    related: Sequence[Snippet] = await server.nearby.read(document, settings.related_chars)
    asked = pipeline.Settings(
        window_chars=settings.window_chars,
        budget=Budget(ms=settings.action_deadline, candidates=settings.candidates),
        path=server.nearby.name(document.uri),
    )
    token = secrets.token_hex(6)
    latest: tuple[Part, ...] = ()

    def engine_for(group: tuple[Hole, ...]) -> Engine:
        ends = [convert.to_points(index, hole.span, encoding) for hole in group]

        def draft(texts: tuple[str, ...], step: int) -> None:
            nonlocal latest
            texts = tuple(f"{hole.lead}{text}{hole.trail}" for hole, text in zip(group, texts, strict=False))
            latest = tuple(Part(start, end, text) for (start, end), text in zip(ends, texts, strict=False))
            server.send_draft(Draft(token, document.uri, document.version, latest, step))

        return _Later(server, document.uri, token, draft if server.client.hears_drafts else None)

    def done(n_done: int, n_holes: int) -> None:
        bar.report(f"{n_done} of {n_holes}", n_done / max(n_holes, 1))

    try:
        job = Job(document, syntax, asked, related)
        return await filling.fill(attempts, job, engine_for, done, mends=wanted.what == "repair")
    finally:
        if latest:
            server.send_draft(Draft(token, document.uri, document.version, (), done=True))


class _Later:
    """The engine, once it is joined."""

    def __init__(self, server: Server, uri: str, turn: str, on_draft: filling.OnDraft | None) -> None:
        self._server, self._uri, self._turn, self._on_draft = server, uri, turn, on_draft

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        engine = await self._server.resident.engine(self._uri, self._turn, self._on_draft)
        return await engine.fill(request)
