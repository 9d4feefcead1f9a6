"""Read settings as an editor sends them: JSON under our section, with or without the defaults.

A bad value never stops the server: the old value stays, and a sentence names the key and the valid values. `wire.settings`
declares the settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from dg_lsp.wire import config, schema, trust
from dg_lsp.wire.schema import SECTION
from dg_lsp.wire.settings import Settings

__all__ = ["KEYS", "SECTION", "Settings", "read", "restarts_engine", "section", "without"]

KEYS = tuple(setting.editor_key for setting in schema.OF_EDITORS)


def read(data: object, base: Settings, *, defaults_count: bool = True) -> tuple[Settings, tuple[str, ...]]:
    """Return `base` updated with the settings of a JSON object, and a sentence for each problem.

    Groups may be nested or written with dots: `{"engine": {"model": …}}`, `{"engine.model": …}`. `null` means the default.
    Without `defaults_count`, default values are ignored, because some editors send all their defaults. The editor's
    settings may come from a file of the workspace. They can therefore only name models that `base.allow` permits.
    """
    if data is None:
        return base, ()
    if not isinstance(data, Mapping):
        return base, (f"The settings in {SECTION} must be an object.",)
    values, problems = schema.parse(data, in_editor=True, defaults_count=defaults_count)
    (users, _), *_ = config.sources()
    values, refused = trust.admit(values, base, schema.EDITOR, users, prefix=f"{SECTION}.")
    return schema.layered(base, values), (*problems, *refused)


def without(data: object, *others: object) -> object:
    """Return the settings of a JSON object without the keys that one of the others has, even with a default value."""
    if not isinstance(data, Mapping):
        return data
    other_keys = {schema.squeezed(key) for other in others if isinstance(other, Mapping) for key, _ in schema.flat(other)}
    return {key: value for key, value in schema.flat(data) if schema.squeezed(key) not in other_keys}


def section(data: object) -> object:
    """Return our section of the settings that an editor sends; all of them when there is no section of our name."""
    if isinstance(data, Mapping):
        inner = data.get(SECTION, data.get("dg-lsp"))
        # These two keys of the section are client capabilities, not settings (see `client`).
        data = inner if isinstance(inner, Mapping) else {} if SECTION in data else data
        return {key: value for key, value in data.items() if key not in ("status", "draft")}
    return data


def restarts_engine(old: Settings, new: Settings) -> bool:
    """Return whether an engine setting that editors offer has changed, which requires another engine."""
    fields = [setting.field for setting in schema.OF_EDITORS if setting.key.startswith("engine.")]
    return any(getattr(old, field) != getattr(new, field) for field in fields)
