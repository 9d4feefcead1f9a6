"""Convert requests for suggestions between the protocol and `completion`. Imported for the first request."""

from __future__ import annotations

import logging

from lsprotocol import types as lsp

from dg_lsp.core import importing, positions
from dg_lsp.core.values import Span
from dg_lsp.infill.port import EngineError
from dg_lsp.server import convert, methods
from dg_lsp.server.app import DgLanguageServer
from dg_lsp.server.completion import Reply, SuggestionRequest
from dg_lsp.server.when import Reason

log = logging.getLogger(__name__)


async def inline_completion(server: DgLanguageServer, params: lsp.InlineCompletionParams) -> lsp.InlineCompletionList:
    """Return the suggestions as inline completion items; an empty list, not null, removes the old ghost text."""
    encoding, context = server.documents.encoding, params.context
    automatic = context.trigger_kind == lsp.InlineCompletionTriggerKind.Automatic
    reply = await _answer(server, params, automatic=automatic, selected=context.selected_completion_info)
    items, language = [], reply.language
    for offer in reply.offers:
        lines = [importing.statement(each, language) for each in offer.imports]
        # The protocol's inline completions have no additional edits, so the command of an accepted one adds the imports.
        arguments = [offer.id, params.text_document.uri, lines] if lines else [offer.id]
        command = lsp.Command("Accepted", methods.ACCEPTED, arguments=arguments)
        # A span is replaced for the item selected in the editor's own list, such as the word that it completes.
        to_line_end = server.client.to_line_end and reply.replaced is None
        replaced = reply.replaced or Span(reply.at, reply.at)
        items.append(
            convert.to_item(reply.index, replaced, offer.text, to_line_end=to_line_end, encoding=encoding, command=command)
        )
    return lsp.InlineCompletionList(items)


async def completion(server: DgLanguageServer, params: lsp.CompletionParams) -> lsp.CompletionList:
    """Return the suggestions as items of an ordinary completion list."""
    encoding = server.documents.encoding
    # Editors send the trigger kind "invoked" at each letter too, so an explicit request can't be told apart.
    reply = await _answer(server, params, automatic=True)
    items = [
        convert.to_completion_item(
            reply.index,
            reply.at,
            offer.text,
            encoding=encoding,
            detail="dg-lsp",
            added=importing.edit(reply.index.text, reply.language, offer.imports) if offer.imports else None,
        )
        for offer in reply.offers
    ]
    return lsp.CompletionList(is_incomplete=True, items=items)


async def _answer(
    server: DgLanguageServer,
    params: lsp.InlineCompletionParams | lsp.CompletionParams,
    *,
    automatic: bool,
    selected: lsp.SelectedCompletionInfo | None = None,
) -> Reply:
    """Return the reply to a request at a position; an engine error is shown to the user, not raised.

    `selected` is the item selected in the editor's own completion list.
    """
    uri, encoding = params.text_document.uri, server.documents.encoding
    doc = server.documents.get(uri)
    if doc is None:
        server.note_outcome(Reason("unknown", "the document is not open"))
        return Reply(positions.lines(""))
    item = (convert.to_span(doc.index, selected.range, encoding), selected.text) if selected else None
    offset = convert.to_offset(doc.index, params.position, encoding)
    try:
        return await server.completer.complete(SuggestionRequest(uri, offset, automatic, item, server.client.own_wait_ms))
    except EngineError as error:
        server.note_outcome(Reason("engine", str(error)))
        await server.tell(str(error))
        return Reply(doc.index)
    except Exception as error:
        # Editors would show a popup for each error response, so only log it.
        log.exception("a request for suggestions failed")
        server.note_outcome(Reason("internal", f"dg-lsp failed on this request ({type(error).__name__}); its log says where"))
        return Reply(doc.index)
    finally:
        if latencies := server.completer.rhythm.latencies_ms:
            server.reporter.update(latency_ms=round(latencies[-1]))
