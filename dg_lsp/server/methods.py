"""The names, parameters and version of the messages that dg-lsp adds to the Language Server Protocol.

`editors/PROTOCOL.md` describes them for clients, and a test compares the two. This module only declares and converts.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidParams

from dg_lsp.client.life import StateName
from dg_lsp.server.reasons import Reason
from dg_lsp.wire.settings import NextEditTrigger

VERSION = 1
"""Grows when an older client would misread a changed message; sent in the result of `initialize` and in each status."""

STATUS = "dgLsp/status"
DRAFT = "dgLsp/draft"
REFRESH = "dgLsp/refresh"
DID_MOVE = "dgLsp/didMove"
NEXT_EDIT = "textDocument/copilotInlineEdit"
"""Named so by the clients that know the request."""

FILL = "dgLsp.fill"
GET_STATUS = "dgLsp.status"
RESTART = "dgLsp.restartEngine"
PULL = "dgLsp.pull"
TELL_EDIT = "dgLsp.nextEdit"

COMMANDS = (FILL, GET_STATUS, RESTART, TELL_EDIT, PULL)

What = Literal["body", "hole", "all", "regenerate", "repair", "docstring"]


class Kind(NamedTuple):
    """The kind of an action in the protocol, what its progress is called, and whether it replaces code that the user wrote."""

    name: str
    progress: str
    replaces: bool = False


KINDS: dict[What, Kind] = {
    "body": Kind("refactor.rewrite", "Filling the function body"),
    "hole": Kind("refactor.rewrite", "Filling the hole"),
    "all": Kind("source.dgLsp.fillAll", "Filling all holes"),
    "regenerate": Kind("refactor.rewrite", "Regenerating the selection", replaces=True),
    "repair": Kind("quickfix", "Repairing the syntax", replaces=True),
    "docstring": Kind("refactor.rewrite", "Writing the docstring"),
}


class Message(msgspec.Struct, frozen=True, rename="camel"):
    """The parameters of a message, with the protocol's names in JSON."""

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **msgspec.to_builtins(self)}


class Versioned(Message, frozen=True):
    """A document and its version."""

    uri: str
    version: int | None = None


class ModelOffer(Message, frozen=True):
    """A laptop model that can be downloaded: its name, its size as text, and what it gives, as the end of "it gives …".

    `is_new`: the client tells the user of it now. Otherwise only a user who asks is told.
    """

    model: str
    size: str
    gives: str
    is_new: bool = False


class StatusParams(Message, frozen=True):
    """The status: the engine's state and model, the last answer's latency, the reason for a missing suggestion.

    `problems` has a sentence for each problem in the settings. `offer` could replace the embedded model, which is in use.
    `held`: the client shows an unprompted suggestion only when the user reveals it. `next_edit`: when to ask for the next edit.
    """

    state: StateName
    model: str
    message: str = ""
    fraction: float = 0.0
    latency_ms: int | None = None
    suppressed: Reason | None = None
    busy: bool = False
    problems: tuple[str, ...] = ()
    offer: ModelOffer | None = None
    held: bool = False
    next_edit: NextEditTrigger = "off"


class DraftHole(Message, frozen=True):
    """The text that is drafted for a range."""

    range: lsp.Range
    text: str


class DraftParams(Message, frozen=True):
    """The current draft: one text for each range of one version of a document. The last message has `done` set."""

    token: str
    text_document: Versioned
    holes: tuple[DraftHole, ...]
    step: int = 0
    done: bool = False


class RefreshParams(Message, frozen=True):
    """The version of a document for which an answer came after its request had ended."""

    text_document: Versioned


class FillParams(Message, frozen=True, rename={"what": "do", "document": "textDocument"}):
    """The `data` of a code action, which is also the argument of `dgLsp.fill`: the action, the document and the range."""

    what: What
    document: Versioned
    range: lsp.Range
    instruction: str | None = ""


class MoveParams(Message, frozen=True, rename={"document": "textDocument"}):
    """Where the cursor moved to."""

    document: Versioned
    position: lsp.Position


class EditContext(Message, frozen=True):
    """Who asks for the next edit: the user (1), or the client by itself."""

    trigger_kind: int = 2


class NextEditParams(Message, frozen=True, rename={"document": "textDocument"}):
    """Where the cursor is, for which the next edit is requested."""

    document: Versioned
    position: lsp.Position
    context: EditContext = EditContext()


def next_edit(document: Versioned, range_: lsp.Range, text: str, offer_id: str) -> dict[str, Any]:
    """Return an edit to offer: what replaces a range of this version of a document, and the command for who accepts it."""
    accept = {"title": "Accept the next edit", "command": TELL_EDIT, "arguments": [offer_id, "accepted"]}
    return {
        "textDocument": msgspec.to_builtins(document),
        "range": msgspec.to_builtins(range_),
        "text": text,
        "command": accept,
    }


Params = TypeVar("Params", bound=Message)


def read(data: object, kind: type[Params]) -> Params:
    """Return the parameters that the JSON describes; raise JsonRpcInvalidParams when it can't be parsed."""
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, UnicodeError) as error:  # half of a surrogate pair is no text
        raise JsonRpcInvalidParams(f"the parameters can't be read: {error}") from error
