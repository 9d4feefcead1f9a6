"""Settings as an editor sends them: JSON under our section, with its defaults or without.

A bad value never stops the server: it keeps what was there before, and a sentence says which key and what is allowed.
Which settings there are is declared in `wire.settings`. Knows nothing of where else settings come from.
"""

from __future__ import annotations

from collections.abc import Mapping

from dg_lsp.wire import config, schema, trust
from dg_lsp.wire.schema import SECTION
from dg_lsp.wire.settings import Settings

__all__ = ["KEYS", "SECTION", "Settings", "read", "restarts_engine", "section", "without"]

KEYS = tuple(setting.editor_key for setting in schema.OF_EDITORS)


def read(data: object, base: Settings, *, defaults_count: bool = True) -> tuple[Settings, tuple[str, ...]]:
    """Return the base with the settings of a JSON object in place of its own, and a sentence for each that is wrong.

    Groups may be nested or written with dots: `{"engine": {"model": …}}`, `{"engine.model": …}`. `null` means the default.
    Unless `defaults_count`, a default says nothing: some editors send all of theirs along. What an editor says may come
    from a file of the workspace, so it may name no model but those that `base.allow` covers.
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
    """Return the settings of a JSON object but for those that one of the others has as well, be it as a default."""
    if not isinstance(data, Mapping):
        return data
    stated = {schema.squeezed(key) for other in others if isinstance(other, Mapping) for key, _ in schema.flat(other)}
    return {key: value for key, value in schema.flat(data) if schema.squeezed(key) not in stated}


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
