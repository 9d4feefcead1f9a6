"""Every message of ours that is not in the protocol's specification: its name, its parameters, its version.

`editors/PROTOCOL.md` describes them for clients; a test compares the two. Nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from dg_lsp.server.resident import StateName

VERSION = 1
"""Grows when a message changes so that an older client would misread it; told in `initialize` and in each status."""

STATUS = "dgLsp/status"
DRAFT = "dgLsp/draft"
DID_SHOW = "textDocument/didShowCompletion"
DID_PARTIALLY_ACCEPT = "textDocument/didPartiallyAcceptCompletion"

NOTIFICATIONS_OUT = (STATUS, DRAFT)
NOTIFICATIONS_IN = (DID_SHOW, DID_PARTIALLY_ACCEPT)

FILL = "dgLsp.fill"
ACCEPTED = "dgLsp.accepted"
GET_STATUS = "dgLsp.status"
RESTART = "dgLsp.restartEngine"

COMMANDS = (FILL, ACCEPTED, GET_STATUS, RESTART)

What = Literal["body", "hole", "all", "regenerate", "repair", "docstring"]
KINDS: dict[What, str] = {
    "body": "refactor.rewrite",
    "hole": "refactor.rewrite",
    "all": "source.dgLsp.fillAll",
    "regenerate": "refactor.rewrite",
    "repair": "quickfix",
    "docstring": "refactor.rewrite",
}
"""What code actions do, and the protocol's name for each sort."""


@dataclass(frozen=True, slots=True)
class StatusParams:
    """How things are: the engine's state, its model, how long the last answer took, why there was no last one."""

    state: StateName
    model: str
    message: str = ""
    fraction: float = 0.0
    latency_ms: int | None = None
    suppressed: tuple[str, str] | None = None
    """A reason's code and sentence."""
    busy: bool = False
    problems: tuple[str, ...] = ()
    """What is wrong in the settings, a sentence each."""

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
        }


@dataclass(frozen=True, slots=True)
class DraftPart:
    """What would stand in place of a range; its ends are line and character as the editor counts them."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


@dataclass(frozen=True, slots=True)
class DraftParams:
    """The canvas as it reads now: one text for each range of that version of a document. The last one is `done`."""

    token: str
    uri: str
    version: int | None
    holes: tuple[DraftPart, ...]
    step: int = 0
    done: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the parameters of the notification."""
        return {
            "version": VERSION,
            "token": self.token,
            "textDocument": {"uri": self.uri, "version": self.version},
            "holes": [
                {"range": {"start": _position(hole.start), "end": _position(hole.end)}, "text": hole.text}
                for hole in self.holes
            ],
            "step": self.step,
            "done": self.done,
        }


class BadParamsError(ValueError):
    """A message's parameters can't be read; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class FillParams:
    """What a code action or `dgLsp.fill` asks for: what to do, in which version of which document, where.

    `start` and `end` are line and character as the editor counts them.
    """

    what: What
    uri: str
    version: int | None
    start: tuple[int, int]
    end: tuple[int, int]
    instruction: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the `data` of a code action, which is also the argument of the command."""
        return {
            "version": VERSION,
            "do": self.what,
            "textDocument": {"uri": self.uri, "version": self.version},
            "range": {"start": _position(self.start), "end": _position(self.end)},
            "instruction": self.instruction,
        }


def to_fill_params(data: object) -> FillParams:
    """Return what the JSON asks for; raise BadParamsError when it can't be read."""
    try:
        assert isinstance(data, Mapping)
        if (what := data["do"]) not in KINDS:
            raise BadParamsError(f"there is no action {what!r}; there are {', '.join(KINDS)}")
        document, ends = data["textDocument"], data["range"]
        version = document.get("version")
        assert isinstance(document["uri"], str)
        assert version is None or isinstance(version, int)
        return FillParams(
            what=cast("What", what),
            uri=document["uri"],
            version=version,
            start=_pair(ends["start"]),
            end=_pair(ends["end"]),
            instruction=str(data.get("instruction") or ""),
        )
    except BadParamsError:
        raise
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadParamsError("this needs `do`, `textDocument` with `uri`, and `range`") from error


def to_shown(params: object) -> int:
    """Return the id of the item that a client says it has shown or accepted a part of; raise BadParamsError."""
    try:
        return int(params["item"]["command"]["arguments"][0])  # type: ignore[index]  # checked by trying
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise BadParamsError("this needs the `item` with its `command`, as it was sent") from error


def to_accepted_length(params: object) -> int:
    """Return how many characters, in UTF-16 units, a client says were accepted so far; raise BadParamsError."""
    try:
        return int(params["acceptedLength"])  # type: ignore[index]  # checked by trying
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadParamsError("this needs `acceptedLength`") from error


def _position(point: tuple[int, int]) -> dict[str, int]:
    return {"line": point[0], "character": point[1]}


def _pair(position: Any) -> tuple[int, int]:
    line, character = position["line"], position["character"]
    # The protocol's own numbers end there.
    if not all(isinstance(number, int) and 0 <= number < 2**31 for number in (line, character)):
        raise ValueError(line, character)
    return line, character
