"""Read a JSON object from an untrusted sender: a value of another type than expected raises an error with a clear message.

Unknown fields are ignored, so that messages of a newer sender can be read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass


class WireError(ValueError):
    """A message is malformed. The error's text names the field."""


_REQUIRED = object()
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    type(None): "null",
    int: "a number",
    float: "a number",
}


def parse(data: bytes | str) -> Fields:
    """Return the fields of a JSON object; raise WireError if the data is not one."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError("the message is not valid JSON") from error
    return of(value, "the message")


def of(value: object, what: str) -> Fields:
    """Return the fields of a value; raise WireError, naming `what`, if it is not an object."""
    if not isinstance(value, dict):
        raise WireError(f"{what} must be an object, but is {_kind(value)}")
    return Fields(value, "" if what == "the message" else what)


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object, and its path in the message."""

    values: Mapping[str, object]
    where: str = ""

    def has(self, name: str) -> bool:
        """Return whether a field is present and not null."""
        return self.values.get(name) is not None

    def text(self, name: str, default: object = _REQUIRED) -> str:
        """Return a field that is a string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def flag(self, name: str, default: object = _REQUIRED) -> bool:
        """Return a field that is true or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def integer(self, name: str, default: object = _REQUIRED, *, low: int = 0, high: int = 2**53) -> int:
        """Return a field that is a whole number from `low` to `high`; a float without a fraction counts as one."""
        value = self._get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, "a whole number", value)
        if not low <= value <= high:
            raise WireError(f"{self._path(name)} must be between {low} and {high}")
        return value

    def number(self, name: str, default: object = _REQUIRED) -> float:
        """Return a field that is a finite number."""
        value = self._get(name, default)
        # Python reads integers of any size, and one beyond the range of floats can't be converted.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300 or math.isnan(value):
            raise self._wrong(name, "a number", value)
        return float(value)

    def choice(self, name: str, choices: tuple[str, ...], default: object = _REQUIRED) -> str:
        """Return a field that is one of the allowed strings."""
        value = self.text(name, default)
        if value not in choices:
            raise WireError(f"{self._path(name)} must be one of {', '.join(choices)}")
        return value

    def items(self, name: str, default: object = _REQUIRED, *, high: int = 1024) -> tuple[object, ...]:
        """Return a field that is a list of at most `high` values."""
        value = self._get(name, default)
        if not isinstance(value, (list, tuple)):
            raise self._wrong(name, "a list", value)
        if len(value) > high:
            raise WireError(f"{self._path(name)} has {len(value)} entries, more than the {high} allowed")
        return tuple(value)

    def texts(self, name: str, default: object = _REQUIRED, *, high: int = 1024) -> tuple[str, ...]:
        """Return a field that is a list of strings."""
        values = self.items(name, default, high=high)
        for value in values:
            if not isinstance(value, str):
                raise self._wrong(name, "a list of strings", value, has=True)
        return tuple(str(value) for value in values)

    def inner(self, name: str) -> Fields:
        """Return the fields of a field that is an object; an absent object counts as empty."""
        return of(self._get(name, {}), self._path(name))

    def objects(self, name: str, default: object = _REQUIRED, *, high: int = 1024) -> tuple[Fields, ...]:
        """Return a field that is a list of objects."""
        return tuple(of(value, f"{self._path(name)}[{idx}]") for idx, value in enumerate(self.items(name, default, high=high)))

    def _get(self, name: str, default: object) -> object:
        value = self.values.get(name)
        if value is None:
            if default is _REQUIRED:
                raise WireError(f"{self._path(name)} is missing")
            return default
        return value

    def _path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def _wrong(self, name: str, expected: str, value: object, *, has: bool = False) -> WireError:
        verb = "contains" if has else "is"
        return WireError(f"{self._path(name)} must be {expected}, but {verb} {_kind(value)}")


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "something else")
