"""Limit what settings from a workspace or an editor may choose; an editor may have read its settings from the workspace.

A cloned repository must not choose where code is sent or which weights are loaded. So these sources may name a model
only if it comes with the package, or if `engine.allow` in the user's own configuration covers it. Only this module
decides that. It knows models' names and the user's list, and nothing of files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dg_lsp.wire import model_names, schema
from dg_lsp.wire.model_names import Address, Remote, address_of
from dg_lsp.wire.settings import Settings


def admit(
    values: dict[str, object], base: Settings, where: str, user_file: Path, *, prefix: str = ""
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the allowed values of a source that is not the user's own, and a message for each value that was removed.

    `base` is the configuration so far, whose model is already allowed. `where` names the source, `prefix` is put before
    its keys in messages, and `user_file` is where the user may allow more.
    """
    admitted, problems = dict(values), []
    for setting in schema.ALL:
        if setting.about.is_users_own and setting.field in admitted:
            del admitted[setting.field]
            problems.append(f"{prefix}{setting.key} in {where} is ignored. Move it to {user_file}.")
    if isinstance(model := admitted.get("model"), str):
        # The full path, so that the folder that was checked is the one that is loaded.
        model = str(model_names.folder_of(model) or model)
        entry = None if model == base.model else unallowed(model, base.allow)
        if entry is None:
            admitted["model"] = model
        else:
            del admitted["model"]
            problems.append(f"{prefix}engine.model in {where} is ignored: {_reason(model, entry, user_file)}")
    return admitted, tuple(problems)


def unallowed(model: str, allow: Sequence[str]) -> str | None:
    """Return the entry that the user's list lacks for a model; "" if no entry can help, None if the model is allowed."""
    if model_names.comes_with_the_package(model):
        return None
    if model_names.is_remote(model):
        return _unallowed_server(model, allow)
    folder = model_names.folder_of(model)
    if folder is None:
        return None if model in allow else model
    # Only absolute entries: a relative one would depend on the folder that the command was started in.
    absolute = (path for each in allow if "\0" not in each and (path := model_names.expanded(each)).is_absolute())
    folders = (Path(os.path.realpath(path)) for path in absolute)
    return None if any(folder.is_relative_to(each) for each in folders) else str(folder)


def _unallowed_server(model: str, allow: Sequence[str]) -> str | None:
    remote = _remote(model)
    if remote is None:
        return ""
    # Each server must be allowed, because any of them may receive the code.
    for address in remote.addresses:
        if address is None:
            return ""
        if not any(_covers(each, address) for each in allow):
            return f"http://{address.name}" if address.is_clear else address.name
    # For vLLM, the part after the # is a folder or a hub id whose tokenizer is loaded on this machine.
    return unallowed(remote.model, allow) if remote.backend == "vllm" and remote.model else None


def _reason(model: str, entry: str, user_file: Path) -> str:
    if not entry:
        return "its URL is not the URL of a server."
    verb = "send code to" if model_names.is_remote(model) else "load"
    return f'it would {verb} {entry}. To allow that, add "{entry}" to engine.allow in {user_file}.'


def _remote(model: str) -> Remote | None:
    try:
        return model_names.parse_remote(model)
    except model_names.ModelNameError:
        return None


def _covers(entry: str, address: Address) -> bool:
    """Return whether an entry of the user's list covers the address.

    An entry without a scheme means https, or any scheme on this machine.
    """
    if "://" not in entry:
        entry = f"{address.scheme if address.is_here else 'https'}://{entry}"
    return address_of(entry) == address
