"""Read settings from any source by their declaration: the known keys, the valid values, and the messages for wrong ones.

msgspec checks types and ranges. This module and the declarations add what msgspec can't express: patterns, lists in
environment variables, keys in several spellings, and messages that name the key and the source. It knows nothing of files,
and no setting by name except `local_only`, whose values add up.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args, get_type_hints

import msgspec

from dg_lsp.wire.settings import DEFAULTS, About, BadValueError, Settings

SECTION = "dgLsp"
"""The section of the server's settings in an editor."""
EDITOR = "the editor's settings"
ENVIRONMENT = "the environment"
AUTO = "auto"
"""How None is written in files and in editors."""
# The groups whose settings have an environment variable, named after the last part of the key.
_WITH_VARIABLE = ("engine", "batch", "privacy")


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting: its field in `Settings`, its key in configuration files, its type, and its description."""

    field: str
    key: str
    kind: Any
    about: About

    @property
    def editor_key(self) -> str:
        """The key in editors' settings, without the section."""
        return re.sub(r"_(\w)", lambda match: match[1].upper(), self.key)

    @property
    def variable(self) -> str:
        """The environment variable, or "" if there is none."""
        group, _, name = self.key.rpartition(".")
        return f"DG_LSP_{name.upper()}" if group in _WITH_VARIABLE else ""

    @property
    def allowed(self) -> str:
        """What a value must be: the end of a sentence."""
        return _allowed(msgspec.inspect.type_info(self.kind), self.about.items)

    @property
    def if_wrong(self) -> dict[str, object]:
        """The field with the safe value that replaces a wrong one; empty if a wrong value is left out."""
        return {} if self.about.if_wrong is None else {self.field: self.about.if_wrong}

    def parse(self, value: object, *, is_text: bool = False) -> object:
        """Return the field's value; raise BadValueError, which says what is allowed, for a wrong one.

        With `is_text`, for the environment, numbers are parsed from text, and lists are separated by commas.
        """
        if value is None:
            return getattr(DEFAULTS, self.field)
        if value == AUTO and type(None) in get_args(self.kind):
            return None
        if is_text and self.about.items:
            value = [part.strip() for part in str(value).split(",") if part.strip()]
        # JSON has only one number type.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        try:
            parsed: object = msgspec.convert(value, self.kind, strict=not is_text)
        except (msgspec.ValidationError, UnicodeError) as error:  # half of a surrogate pair is no text
            raise BadValueError(f"must be {self.allowed}, not {_shown(value)}") from error
        if self.about.check is not None:
            self.about.check(parsed)
        return parsed


_KINDS = get_type_hints(Settings, include_extras=True)
ALL = tuple(
    Setting(item.name, item.metadata["about"].key, _KINDS[item.name], item.metadata["about"]) for item in fields(Settings)
)
OF_EDITORS = tuple(setting for setting in ALL if setting.about.in_editors)


def squeezed(key: str) -> str:
    """Return a key without case, underscores and hyphens, so that all its spellings are equal."""
    return key.replace("_", "").replace("-", "").lower()


_ALL = {squeezed(setting.key): setting for setting in ALL}
_OF_EDITORS = {squeezed(setting.key): setting for setting in OF_EDITORS}
_GROUPS = frozenset(key.partition(".")[0] for key in _ALL if "." in key)


def flat(data: Mapping[Any, Any], prefix: str = "", *, any_table: bool = False) -> Iterator[tuple[str, object]]:
    """Yield each key with its value. Groups may be nested or written with dots: `{"engine": {"model": …}}`.

    Only tables of known groups are flattened, or all tables with `any_table`.
    """
    for name, value in data.items():
        key = f"{prefix}{re.sub(r'[^ -~]', '?', str(name))}"
        if isinstance(value, Mapping) and (any_table or squeezed(key) in _GROUPS):
            yield from flat(value, f"{key}.", any_table=any_table)
        else:
            yield key, value


def parse(
    data: Mapping[Any, Any], where: str = EDITOR, *, in_editor: bool = False, defaults_count: bool = True
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the values of a table by field, and a message for each wrong value that was left out.

    `where` names the table in messages. `null` means the default. Unless `defaults_count`, a value that equals the
    default is left out, so that it overrides nothing.
    """
    settings_by_key, prefix = (_OF_EDITORS, f"{SECTION}.") if in_editor else (_ALL, "")
    values: dict[str, object] = {}
    problems: list[str] = []
    for key, value in flat(data):
        setting = settings_by_key.get(squeezed(key))
        if setting is None:
            problems.append(f"Unknown key {prefix}{key} in {where}. {_instead(key, settings_by_key, in_editor=in_editor)}")
            continue
        try:
            parsed = setting.parse(value)
        except BadValueError as error:
            problems.append(f"{prefix}{key} in {where} {error}.")
            values |= setting.if_wrong
        else:
            if defaults_count or value is None or parsed != getattr(DEFAULTS, setting.field):
                values[setting.field] = parsed
    return values, tuple(problems)


def parse_environment(environ: Mapping[str, str]) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the values of the environment's variables by field, and a message for each wrong one."""
    values: dict[str, object] = {}
    problems: list[str] = []
    for setting in ALL:
        if text := environ.get(setting.variable) if setting.variable else None:
            try:
                values[setting.field] = setting.parse(text, is_text=True)
            except BadValueError as error:
                problems.append(f"{setting.variable} in {ENVIRONMENT} {error}.")
                values |= setting.if_wrong
    return values, tuple(problems)


def layered(base: Settings, values: Mapping[str, object]) -> Settings:
    """Return the settings with the values of a later source. A later source can add to `local_only` but not remove from it."""
    more: dict[str, Any] = dict(values)
    if "local_only" in more:
        more["local_only"] = tuple(dict.fromkeys((*base.local_only, *more["local_only"])))
    return replace(base, **more)


def _instead(key: str, settings_by_key: Mapping[str, Setting], *, in_editor: bool) -> str:
    """Return a sentence that suggests the key that was probably meant, or lists the keys of its group."""

    def spelled(setting: Setting) -> str:
        return f"{SECTION}.{setting.editor_key}" if in_editor else setting.key

    if close := difflib.get_close_matches(squeezed(key), settings_by_key, n=1, cutoff=0.8):
        return f"Did you mean {spelled(settings_by_key[close[0]])}?"
    group = squeezed(key).partition(".")[0]
    same = [setting for name, setting in settings_by_key.items() if name.startswith(f"{group}.")]
    return f"Known keys: {', '.join(sorted(map(spelled, same or settings_by_key.values())))}."


def _allowed(kind: msgspec.inspect.Type, items: str) -> str:
    match kind:
        case msgspec.inspect.UnionType(types):
            return f'{_allowed(types[0], items)}, or "{AUTO}"'
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType(ge=low, le=high):
            return f"a whole number from {low} to {high}"
        case msgspec.inspect.FloatType(ge=low, le=high):
            return f"a number from {low:g} to {high:g}"
        case msgspec.inspect.LiteralType(values):
            return " or ".join(json.dumps(value) for value in values)
        case msgspec.inspect.StrType():
            return "a string that is not empty"
        case _:
            return f"a list of {items}"


def _shown(value: object) -> str:
    """Return a wrong value as one short line for messages."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, bool | int | float | str):
        text = json.dumps(value) if not isinstance(value, int) or abs(value) < 10**20 else "a huge number"
        return text if len(text) <= 40 else f"{text[:39]}…"
    return "something else"
