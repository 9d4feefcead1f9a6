"""The editor's capabilities and the message formats it needs, read once from `initialize`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lsprotocol import types as lsp
from pygls.capabilities import get_capability

# Editors built on VS Code, which draw ghost text by different rules (see `convert.to_item`).
_LIKE_VS_CODE = re.compile(r"code|cursor|windsurf|codium|theia|positron", re.IGNORECASE)
# The editor's own debounce, by its name. It has passed already when a request arrives.
_OWN_WAIT_MS = (("neovim", 200.0), ("code", 50.0))


@dataclass(frozen=True, slots=True)
class Client:
    """The capabilities of the connected editor."""

    name: str = ""
    inline: bool = False
    """It supports inline completion."""
    registers_configuration: bool = False
    to_line_end: bool = False
    own_wait_ms: float = 0.0
    old_wire: bool = False
    pulls_configuration: bool = False
    action_literals: bool = False
    resolves_edits: bool = False
    tags_actions: bool = False
    versioned_edits: bool = False
    annotates: bool = False
    progress: bool = False
    hears_status: bool = False
    hears_drafts: bool = False
    previews: bool = False
    """It previews an edit that needs confirmation, at least one sent by `workspace/applyEdit`."""
    shows_offers: bool = False
    """It tells the user of the model that the status offers, so the server asks no question."""


def read(params: lsp.InitializeParams) -> Client:
    """Return the client that these parameters describe."""
    can = params.capabilities
    name = params.client_info.name if params.client_info else ""
    inline = can.text_document.inline_completion if can.text_document else None
    # lsp-mode supports inline completion but announces it as null, which reads as absent.
    is_lsp_mode = name.lower() in ("emacs", "lsp-mode")
    like_code = bool(_LIKE_VS_CODE.search(name))
    resolves = get_capability(can, "text_document.code_action.resolve_support.properties") or ()
    ours = _ours(can.experimental) | _ours(params.initialization_options)
    return Client(
        name=name,
        inline=inline is not None or is_lsp_mode,
        registers_configuration=bool(get_capability(can, "workspace.did_change_configuration.dynamic_registration")),
        to_line_end=like_code,
        own_wait_ms=next((ms for part, ms in _OWN_WAIT_MS if part in name.lower()), 0.0),
        old_wire=like_code and inline is not None and not _knows_3_18(can),
        pulls_configuration=bool(get_capability(can, "workspace.configuration")),
        action_literals=get_capability(can, "text_document.code_action.code_action_literal_support") is not None,
        resolves_edits="edit" in resolves and bool(get_capability(can, "text_document.code_action.data_support")),
        tags_actions=lsp.CodeActionTag.LlmGenerated
        in (get_capability(can, "text_document.code_action.tag_support.value_set") or ()),
        versioned_edits=bool(get_capability(can, "workspace.workspace_edit.document_changes")),
        annotates=get_capability(can, "workspace.workspace_edit.change_annotation_support") is not None,
        progress=bool(get_capability(can, "window.work_done_progress")),
        hears_status="status" in ours,
        hears_drafts="draft" in ours,
        previews="preview" in ours,
        shows_offers="offer" in ours,
    )


def _knows_3_18(can: lsp.ClientCapabilities) -> bool:
    """Return whether the client announces another feature of LSP 3.18, the version that added inline completion."""
    return any(
        get_capability(can, name) is not None
        for name in (
            "text_document.code_action.tag_support",
            "text_document.code_action.documentation_support",
            "workspace.workspace_edit.metadata_support",
            "workspace.workspace_edit.snippet_edit_support",
            "workspace.text_document_content",
        )
    )


def _ours(data: Any) -> frozenset[str]:
    """Return our extensions that the client supports: `{"dgLsp": {"status": true, "draft": true, …}}`."""
    section = data.get("dgLsp") if isinstance(data, Mapping) else None
    if not isinstance(section, Mapping):
        return frozenset()
    return frozenset(name for name in ("status", "draft", "preview", "offer") if section.get(name) is True)
