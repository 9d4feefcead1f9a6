"""The handlers of the messages: each converts the parameters, calls the server and converts the result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidParams

from dg_lsp.client.port import EngineError
from dg_lsp.core.values import Span
from dg_lsp.server import configuration, convert, methods, reasons
from dg_lsp.server.methods import Versioned
from dg_lsp.server.session import DgLanguageServer

if TYPE_CHECKING:
    from dg_lsp.server.completion import Reply  # imported for the first request

log = logging.getLogger(__name__)


def add(server: DgLanguageServer) -> None:
    """Register the handlers of all messages, by `HANDLERS` and `OPTIONS`."""
    for method, handler in HANDLERS.items():
        server.feature(method, OPTIONS.get(method))(partial(handler, server))
    for name in methods.COMMANDS:
        # pygls reads only the names, for the capabilities; `execute_command` runs the commands.
        server.protocol.fm.commands[name] = None
    server.protocol.begins = lambda: server.spawn(_begin(server))


# The life of the server


def initialize(server: DgLanguageServer, params: lsp.InitializeParams) -> None:
    server.begin(params)
    if server.has_lists:
        server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions())(partial(completion, server))


async def _begin(server: DgLanguageServer) -> None:
    await server.ready()
    # Imported here, because the editor waits for the answer to `initialize`.
    from dg_lsp.server import offers

    await server.look_for_card()
    await offers.offer(server)


def shutdown(server: DgLanguageServer, _params: None) -> None:
    server.tasks.cancel()


def did_change_configuration(server: DgLanguageServer, params: lsp.DidChangeConfigurationParams) -> None:
    if server.client.pulls_configuration:
        server.spawn(server.pull_settings())
    else:
        server.set_editor_settings(configuration.section(params.settings))


def did_change_workspace_folders(server: DgLanguageServer, params: lsp.DidChangeWorkspaceFoldersParams) -> None:
    for folder in params.event.removed:
        server.roots.pop(folder.uri, None)
    server.roots.update(dict.fromkeys(folder.uri for folder in params.event.added))
    server.nearby.set_roots(server.roots)
    server.configuration.set_roots(server.roots)
    server.configure()
    server.spawn(server.pull_settings())


def did_cancel_progress(server: DgLanguageServer, params: lsp.WorkDoneProgressCancelParams) -> None:
    # An unknown token belongs to work that has ended already.
    token: object = params.token  # a client may send anything
    if isinstance(token, str) and (cancel := server.bars.get(token)):
        cancel()


# Documents


def did_open(server: DgLanguageServer, params: lsp.DidOpenTextDocumentParams) -> None:
    new = params.text_document
    server.documents.open(new.uri, new.language_id, new.version, new.text)
    # Look up whether it may be sent to a model, and read other files, before the first request.
    server.spawn(server.snapshots.take(new.uri))


def did_change(server: DgLanguageServer, params: lsp.DidChangeTextDocumentParams) -> None:
    changed(server, params.text_document, params.content_changes)


def did_close(server: DgLanguageServer, params: lsp.DidCloseTextDocumentParams) -> None:
    _close(server, params.text_document.uri)


def did_save(server: DgLanguageServer, params: lsp.DidSaveTextDocumentParams) -> None:
    server.nearby.saved(params.text_document.uri)
    # The document may be a configuration file.
    server.look_at_files()


def did_move(server: DgLanguageServer, params: Any) -> None:
    try:
        moved = methods.read(params, methods.MoveParams)
        if (doc := server.documents.get(moved.document.uri)) is not None:
            at = convert.to_offset(doc.index, moved.position, server.documents.encoding)
            server.completer.arrived(moved.document.uri, at)
    except JsonRpcInvalidParams as error:
        log.warning("ignored a notification with bad parameters: %s", error)


def did_open_notebook(server: DgLanguageServer, params: lsp.DidOpenNotebookDocumentParams) -> None:
    book = params.notebook_document
    server.documents.open_notebook(book.uri, [cell.document for cell in book.cells])
    for cell in params.cell_text_documents:
        server.documents.open(cell.uri, cell.language_id, cell.version, cell.text)


def did_change_notebook(server: DgLanguageServer, params: lsp.DidChangeNotebookDocumentParams) -> None:
    cells = params.change.cells
    if cells is None:
        return
    if cells.structure is not None:
        array = cells.structure.array
        new = [cell.document for cell in array.cells or ()]
        server.documents.splice_cells(params.notebook_document.uri, array.start, array.delete_count, new)
        for opened in cells.structure.did_open or ():
            server.documents.open(opened.uri, opened.language_id, opened.version, opened.text)
        for closed in cells.structure.did_close or ():
            _close(server, closed.uri)
    for content in cells.text_content or ():
        changed(server, content.document, content.changes)


def did_close_notebook(server: DgLanguageServer, params: lsp.DidCloseNotebookDocumentParams) -> None:
    server.documents.close_notebook(params.notebook_document.uri)
    for cell in params.cell_text_documents:
        _close(server, cell.uri)


def _close(server: DgLanguageServer, uri: str) -> None:
    server.documents.close(uri)
    server.completer.forget(uri)
    if "next_edits" in server.__dict__:  # an edit was remembered, or asked for
        server.next_edits.forget(uri)
    server.nearby.forget(uri)


MOST_APART = 50


def changed(
    server: DgLanguageServer, of: lsp.VersionedTextDocumentIdentifier, changes: Sequence[lsp.TextDocumentContentChangeEvent]
) -> None:
    """Apply the changes of a notification to an open document, and let the completer learn from them."""
    if (doc := server.documents.get(of.uri)) is not None:
        at_first = doc.index.text
        # One by one, as several cursors remove several texts; many together, because each compares the whole text.
        for part in [(change,) for change in changes] if len(changes) <= MOST_APART else [changes]:
            before = doc.index.text
            server.documents.change(of.uri, of.version, part)
            server.completer.typed(of.uri, before, doc.index.text)
        # The window's setting counts for the engine, the folder's for its files.
        is_on = server.settings.next_edit != "off" and server.configuration.at(of.uri).next_edit != "off"
        if is_on and doc.index.text != at_first:
            server.next_edits.typed(of.uri, at_first, doc.index.text)


# Code actions


async def code_action(server: DgLanguageServer, params: lsp.CodeActionParams) -> list[lsp.CodeAction | lsp.Command]:
    from dg_lsp.server import running

    return await running.menu(server, params)


async def resolve_code_action(server: DgLanguageServer, params: lsp.CodeAction) -> lsp.CodeAction:
    from dg_lsp.server import running

    if params.command is not None:
        # Some editors resolve every action; this one is done by its command.
        return params
    result = await running.edit(server, methods.read(params.data, methods.FillParams))
    if result is not None:
        params.edit, params.title = result.edit, running.labelled(params.title, result.note)
    return params


async def execute_command(server: DgLanguageServer, params: lsp.ExecuteCommandParams) -> Any:
    """Run one of our commands and return its result; raise JsonRpcInvalidParams for an unknown command."""
    arguments = params.arguments or []
    first = arguments[0] if arguments else None
    match params.command:
        case methods.GET_STATUS:
            return server.reporter.status.to_json()
        case methods.RESTART:
            server.restart_engine()
        case methods.PULL:
            from dg_lsp.server import offers

            await offers.execute(server, first)
        case methods.FILL:
            from dg_lsp.server import running

            return await running.fill_holes(server, methods.read(first, methods.FillParams))
        case methods.TELL_EDIT:
            # What was accepted is a change of the document, which says the same.
            if "rejected" in arguments[1:2] and server.settings.next_edit != "off":
                server.next_edits.reject(str(first))
        case _:
            raise JsonRpcInvalidParams(f"unknown command {params.command!r}; use one of {', '.join(methods.COMMANDS)}")
    return None


# Suggestions


async def inline_completion(server: DgLanguageServer, params: lsp.InlineCompletionParams) -> lsp.InlineCompletionList:
    """Return the suggestions as inline completion items; an empty list, not null, removes the old ghost text."""
    encoding, context = server.documents.encoding, params.context
    automatic = context.trigger_kind == lsp.InlineCompletionTriggerKind.Automatic
    reply = await _answer(server, params, automatic=automatic, selected=context.selected_completion_info)
    if reply is None:
        return lsp.InlineCompletionList([])
    items = []
    for suggestion in reply.suggestions:
        # A span is replaced for the item selected in the editor's own list, such as the word that it completes.
        to_line_end = server.client.to_line_end and reply.replaced is None
        replaced = reply.replaced or Span(reply.at, reply.at)
        items.append(convert.to_item(reply.index, replaced, suggestion.text, to_line_end=to_line_end, encoding=encoding))
    return lsp.InlineCompletionList(items)


async def completion(server: DgLanguageServer, params: lsp.CompletionParams) -> lsp.CompletionList:
    """Return the suggestions as items of an ordinary completion list."""
    encoding = server.documents.encoding
    # Many editors send the trigger kind "invoked" at each letter too, so the user says what it means.
    kind, uri = params.context and params.context.trigger_kind, params.text_document.uri
    is_invoked = kind == lsp.CompletionTriggerKind.Invoked and server.configuration.at(uri).invoked_by_hand
    # An editor asks again for an open list at each key, because ours are incomplete: the list is still the user's.
    goes_on = kind == lsp.CompletionTriggerKind.TriggerForIncompleteCompletions and server.listed_by_hand == uri
    server.listed_by_hand = uri if is_invoked or goes_on else ""
    reply = await _answer(server, params, automatic=not (is_invoked or goes_on))
    if reply is None:
        return lsp.CompletionList(is_incomplete=True, items=[])
    items = [
        convert.to_completion_item(reply.index, reply.at, suggestion.text, encoding=encoding)
        for suggestion in reply.suggestions
    ]
    return lsp.CompletionList(is_incomplete=True, items=items)


async def _answer(
    server: DgLanguageServer,
    params: lsp.InlineCompletionParams | lsp.CompletionParams,
    *,
    automatic: bool,
    selected: lsp.SelectedCompletionInfo | None = None,
) -> Reply | None:
    """Return the reply to a request at a position, None if there is none; an engine error is shown to the user, not raised.

    `selected` is the item selected in the editor's own completion list.
    """
    uri, encoding = params.text_document.uri, server.documents.encoding
    doc = server.documents.get(uri)
    if doc is None:
        server.note_outcome(reasons.UNKNOWN)
        return None
    item = (convert.to_span(doc.index, selected.range, encoding), selected.text) if selected else None
    offset = convert.to_offset(doc.index, params.position, encoding)
    try:
        from dg_lsp.server.completion import SuggestionRequest  # the installation may have changed before the first request

        return await server.completer.complete(SuggestionRequest(uri, offset, automatic, item, server.client.own_wait_ms))
    except EngineError as error:
        server.note_outcome(reasons.no_engine(str(error)))
        await server.tell(str(error))
    except Exception as error:
        # Editors would show a popup for each error response, so only log it.
        log.exception("a request for suggestions failed")
        server.note_outcome(reasons.failed(error))
    finally:
        if "completer" in vars(server) and (latencies := server.completer.rhythm.latencies_ms):
            server.reporter.update(latency_ms=round(latencies[-1]))
    return None


async def next_edit(server: DgLanguageServer, params: object) -> dict[str, Any]:
    """Return at most one edit; none for another version than the document has. Raises JsonRpcInvalidParams."""
    asked = methods.read(params, methods.NextEditParams)
    if asked.document.version is None:
        raise JsonRpcInvalidParams("a request for the next edit needs the document's version")
    uri, encoding = asked.document.uri, server.documents.encoding
    doc = server.documents.get(uri)
    if server.settings.next_edit == "off" or doc is None or doc.document.version != asked.document.version:
        return {"edits": []}
    at = convert.to_offset(doc.index, asked.position, encoding)
    try:
        from dg_lsp.server.next_edit import EditRequest

        offer = await server.next_edits.offer(EditRequest(uri, at, automatic=asked.context.trigger_kind != 1))
    except EngineError as error:
        await server.tell(str(error))
        return {"edits": []}
    except Exception:
        # Editors would show a popup for each error response, so only log it.
        log.exception("a request for the next edit failed")
        server.explain()
        return {"edits": []}
    if offer is None:
        return {"edits": []}
    range_ = convert.to_range(offer.index, offer.span, encoding)
    return {"edits": [methods.next_edit(Versioned(uri, offer.version), range_, offer.text, offer.id)]}


HANDLERS: dict[str, Callable[..., Any]] = {
    lsp.INITIALIZE: initialize,
    lsp.SHUTDOWN: shutdown,
    lsp.WORKSPACE_DID_CHANGE_CONFIGURATION: did_change_configuration,
    lsp.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS: did_change_workspace_folders,
    lsp.WINDOW_WORK_DONE_PROGRESS_CANCEL: did_cancel_progress,
    lsp.TEXT_DOCUMENT_DID_OPEN: did_open,
    lsp.TEXT_DOCUMENT_DID_CHANGE: did_change,
    lsp.TEXT_DOCUMENT_DID_CLOSE: did_close,
    lsp.TEXT_DOCUMENT_DID_SAVE: did_save,
    methods.DID_MOVE: did_move,
    lsp.NOTEBOOK_DOCUMENT_DID_OPEN: did_open_notebook,
    lsp.NOTEBOOK_DOCUMENT_DID_CHANGE: did_change_notebook,
    lsp.NOTEBOOK_DOCUMENT_DID_CLOSE: did_close_notebook,
    lsp.TEXT_DOCUMENT_CODE_ACTION: code_action,
    lsp.CODE_ACTION_RESOLVE: resolve_code_action,
    lsp.WORKSPACE_EXECUTE_COMMAND: execute_command,
    lsp.TEXT_DOCUMENT_INLINE_COMPLETION: inline_completion,
    methods.NEXT_EDIT: next_edit,
}
"""The handler of each method; `initialize` adds `completion` for an editor with lists only."""

OPTIONS: dict[str, object] = {
    lsp.TEXT_DOCUMENT_CODE_ACTION: lsp.CodeActionOptions(
        code_action_kinds=sorted({kind.name for kind in methods.KINDS.values()}), resolve_provider=True
    )
}
