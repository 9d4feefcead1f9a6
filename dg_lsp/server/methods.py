"""The names, parameters and version of the messages that dg-lsp adds to the Language Server Protocol.

`editors/PROTOCOL.md` describes them for clients, and a test compares the two. This module only declares and converts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from lsprotocol import types as lsp

from dg_lsp.client.life import StateName

VERSION = 1
"""Grows when an older client would misread a changed message; sent in the result of `initialize` and in each status."""

STATUS = "dgLsp/status"
DRAFT = "dgLsp/draft"
DID_MOVE = "dgLsp/didMove"

FILL = "dgLsp.fill"
GET_STATUS = "dgLsp.status"
RESTART = "dgLsp.restartEngine"
PULL = "dgLsp.pull"

COMMANDS = (FILL, GET_STATUS, RESTART, PULL)

What = Literal["body", "hole", "all", "regenerate", "repair", "docstring"]
KINDS: dict[What, str] = {
    "body": "refactor.rewrite",
    "hole": "refactor.rewrite",
    "all": "source.dgLsp.fillAll",
    "regenerate": "refactor.rewrite",
    "repair": "quickfix",
    "docstring": "refactor.rewrite",
}
"""Each action, with its code action kind in the protocol."""


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """A laptop model that can be downloaded: its name, its size as text, and what it gives, as the end of "it gives …".

    `is_new`: the client tells the user of it now. Otherwise only a user who asks is told.
    """

    model: str
    size: str
    gives: str
    is_new: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the offer as the status has it."""
        return {"model": self.model, "size": self.size, "gives": self.gives, "isNew": self.is_new}


@dataclass(frozen=True, slots=True)
class StatusParams:
    """The status: the engine's state and model, the last answer's latency, the reason for a missing suggestion."""

    state: StateName
    model: str
    message: str = ""
    fraction: float = 0.0
    latency_ms: int | None = None
    suppressed: tuple[str, str] | None = None
    """A reason's code and sentence."""
    busy: bool = False
    problems: tuple[str, ...] = ()
    """A sentence for each problem in the settings."""
    offer: ModelOffer | None = None
    """The laptop model that could replace the embedded one, which is in use."""

    def to_json(self) -> dict[str, Any]:
        """Return the parameters of the notification."""
        reason = {"code": self.suppressed[0], "message": self.suppressed[1]} if self.suppressed else None
        return {
            "version": VERSION,
            "state": self.state,
            "model": self.model,
            "message": self.message,
            "fraction": round(self.fraction, 3),
            "latencyMs": self.latency_ms,
            "suppressed": reason,
            "busy": self.busy,
            "problems": list(self.problems),
            "offer": self.offer.to_json() if self.offer else None,
        }


@dataclass(frozen=True, slots=True)
class DraftParams:
    """The current draft: one text for each range of one version of a document. The last message has `done` set."""

    token: str
    uri: str
    version: int | None
    holes: tuple[tuple[lsp.Range, str], ...]
    step: int = 0
    done: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the parameters of the notification."""
        return {
            "version": VERSION,
            "token": self.token,
            "textDocument": {"uri": self.uri, "version": self.version},
            "holes": [{"range": range_, "text": text} for range_, text in self.holes],
            "step": self.step,
            "done": self.done,
        }


class BadParamsError(ValueError):
    """The parameters of a message can't be parsed; the error's message is a sentence."""


@dataclass(frozen=True, slots=True)
class FillParams:
    """The parameters of a code action or of `dgLsp.fill`: the action, the document with its version, and the range."""

    what: What
    uri: str
    version: int | None
    range: lsp.Range
    instruction: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the `data` of a code action, which is also the argument of the command."""
        return {
            "version": VERSION,
            "do": self.what,
            "textDocument": {"uri": self.uri, "version": self.version},
            "range": self.range,
            "instruction": self.instruction,
        }


def to_fill_params(data: object) -> FillParams:
    """Return the parameters that the JSON describes; raise BadParamsError when it can't be parsed."""
    try:
        assert isinstance(data, Mapping)
        if (what := data["do"]) not in KINDS:
            raise BadParamsError(f"unknown action {what!r}; use one of {', '.join(KINDS)}")
        document, ends = data["textDocument"], data["range"]
        version = document.get("version")
        assert isinstance(document["uri"], str)
        assert version is None or isinstance(version, int)
        return FillParams(
            what=cast("What", what),
            uri=document["uri"],
            version=version,
            range=lsp.Range(_position(ends["start"]), _position(ends["end"])),
            instruction=str(data.get("instruction") or ""),
        )
    except BadParamsError:
        raise
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadParamsError("the parameters need `do`, `textDocument` with `uri`, and `range`") from error


def to_place(params: object) -> tuple[str, lsp.Position]:
    """Return the document and the position to which the cursor moved; raise BadParamsError."""
    try:
        uri = params["textDocument"]["uri"]  # type: ignore[index]  # checked by trying
        assert isinstance(uri, str)
        return uri, _position(params["position"])  # type: ignore[index]
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise BadParamsError("the parameters need `textDocument` with `uri`, and `position`") from error


def _position(position: Any) -> lsp.Position:
    line, character = position["line"], position["character"]
    # The protocol's `uinteger` ends at 2**31 - 1.
    if not all(isinstance(number, int) and 0 <= number < 2**31 for number in (line, character)):
        raise ValueError(line, character)
    return lsp.Position(line, character)
