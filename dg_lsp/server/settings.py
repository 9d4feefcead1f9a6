"""What a user can choose, as one frozen value, and how it is read from what an editor sends.

A bad value never stops the server: it keeps what was there before, and a sentence says which key and what is allowed.
Keys read the same in camelCase and in snake_case. Knows nothing of where settings come from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

SECTION = "dgLsp"
WHERE = f"{SECTION}."

T = TypeVar("T")
Trigger = Literal["auto", "manual"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be chosen. Times are in milliseconds unless the name says otherwise."""

    enable: bool = True
    model: str = "embedded"
    device: str = "auto"
    threads: int = 0
    trigger: Trigger = "auto"
    debounce: int | None = None
    """Wait so long before asking by oneself; None adapts to the user's typing and the engine's latency."""
    deadline: int = 1500
    action_deadline: int = 20_000
    threshold: float = 0.15
    """Show by oneself only what the model holds to be right with at least this probability."""
    token_threshold: float = 0.1
    candidates: int = 3
    """How many answers to choose from when asked for explicitly."""
    in_comments: bool = False
    in_strings: bool = False
    disabled_languages: frozenset[str] = field(default_factory=frozenset)
    max_file_chars: int = 1_000_000
    window_chars: int = 24_000
    related_chars: int = 6_000
    speculate: bool = True
    """While a suggestion is shown, already ask for what could follow it."""
    completion_list: bool | None = None
    """Offer suggestions in ordinary completion lists; None does where the editor has no inline completion."""
    statistics: bool = True
    unload_after: int = 900
    """Seconds without a request after which the engine gives the model's memory back; 0 means never."""

    def asks_in(self, language_id: str) -> bool:
        """Return whether suggestions are wanted in a language."""
        return language_id not in self.disabled_languages


class BadValueError(ValueError):
    """A value is not allowed; the message ends a sentence that begins with its key."""


def read(data: object, base: Settings, *, where: str = WHERE, defaults_count: bool = True) -> tuple[Settings, tuple[str, ...]]:
    """Return the base with the settings of a JSON object in place of its own, and a sentence for each that is wrong.

    Groups may be nested or written with dots: `{"engine": {"model": …}}`, `{"engine.model": …}`. `null` means the default.
    Sentences begin with `where`. Unless `defaults_count`, a default says nothing: some editors send all of theirs along.
    """
    if data is None:
        return base, ()
    if not isinstance(data, Mapping):
        return base, (f"{where.rstrip('.: ')}: the settings must be an object",)
    found: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in _flat(data):
        name = _NAMES.get(_squeezed(key))
        if name is None:
            problems.append(f"{where}{key} is no setting; there are {', '.join(sorted(KEYS))}")
            continue
        try:
            made = _DEFAULTS[name] if value is None else CHECKS[name](value)
        except BadValueError as error:
            problems.append(f"{where}{key} {error}")
        else:
            if defaults_count or value is None or made != _DEFAULTS[name]:
                found[name] = made
    return replace(base, **found), tuple(problems)


def without(data: object, *others: object) -> object:
    """Return the settings of a JSON object but for those that one of the others has as well, be it as a default."""
    if not isinstance(data, Mapping):
        return data
    said = {_squeezed(key) for other in others if isinstance(other, Mapping) for key, _ in _flat(other)}
    return {key: value for key, value in _flat(data) if _squeezed(key) not in said}


def section(data: object) -> object:
    """Return our settings of what an editor sends: what stands under our name, or all of it."""
    if isinstance(data, Mapping):
        inner = data.get(SECTION, data.get("dg-lsp"))
        # The same section says which notifications are understood.
        data = inner if isinstance(inner, Mapping) else {} if SECTION in data else data
        return {key: value for key, value in data.items() if key not in ("status", "draft")}
    return data


def restarts_engine(old: Settings, new: Settings) -> bool:
    """Return whether the change means another engine."""
    return any(getattr(old, name) != getattr(new, name) for name in ("model", "device", "threads", "unload_after"))


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadValueError("must be true or false")
    return value


def _or_auto(check: Callable[[object], T]) -> Callable[[object], T | None]:
    def checked(value: object) -> T | None:
        try:
            return None if value == "auto" else check(value)
        except BadValueError as error:
            raise BadValueError(f'{error}, or "auto"') from error

    return checked


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadValueError("must be a text that is not empty")
    return value


def _trigger(value: object) -> Trigger:
    if value == "auto":
        return "auto"
    if value == "manual":
        return "manual"
    raise BadValueError('must be "auto" or "manual"')


def _between(low: int, high: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        # JSON has one kind of number.
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
            raise BadValueError(f"must be a whole number from {low} to {high}")
        return number

    return check


def _share(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise BadValueError("must be a number from 0 to 1")
    return float(value)


def _names(value: object) -> frozenset[str]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise BadValueError("must be a list of language ids")
    return frozenset(value)


# The key in the editor's settings, the field, what is allowed.
_TABLE: tuple[tuple[str, str, Callable[[object], object]], ...] = (
    ("enable", "enable", _boolean),
    ("engine.model", "model", _text),
    ("engine.device", "device", _text),
    ("engine.threads", "threads", _between(0, 1024)),
    ("engine.unloadAfter", "unload_after", _between(0, 1_000_000)),
    ("completion.trigger", "trigger", _trigger),
    ("completion.debounce", "debounce", _or_auto(_between(0, 10_000))),
    ("completion.deadline", "deadline", _between(0, 600_000)),
    ("completion.threshold", "threshold", _share),
    ("completion.tokenThreshold", "token_threshold", _share),
    ("completion.candidates", "candidates", _between(1, 16)),
    ("completion.inComments", "in_comments", _boolean),
    ("completion.inStrings", "in_strings", _boolean),
    ("completion.disabledLanguages", "disabled_languages", _names),
    ("completion.maxFileChars", "max_file_chars", _between(0, 100_000_000)),
    ("completion.speculate", "speculate", _boolean),
    ("completion.inLists", "completion_list", _or_auto(_boolean)),
    ("actions.deadline", "action_deadline", _between(0, 3_600_000)),
    ("context.windowChars", "window_chars", _between(100, 1_000_000)),
    ("context.relatedChars", "related_chars", _between(0, 1_000_000)),
    ("statistics", "statistics", _boolean),
)

KEYS = tuple(key for key, _, _ in _TABLE)
CHECKS = {name: check for _, name, check in _TABLE}
_DEFAULTS = {item.name: getattr(Settings(), item.name) for item in fields(Settings)}


def _squeezed(key: str) -> str:
    return key.replace("_", "").lower()


_NAMES = {_squeezed(key): name for key, name, _ in _TABLE}
_GROUPS = {_squeezed(key.partition(".")[0]) for key in KEYS if "." in key}


def _flat(data: Mapping[Any, Any], prefix: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name, value in data.items():
        key = f"{prefix}{re.sub(r'[^ -~]', '?', str(name))}"
        if isinstance(value, Mapping) and _squeezed(key) in _GROUPS:
            found += _flat(value, f"{key}.")
        else:
            found.append((key, value))
    return found
