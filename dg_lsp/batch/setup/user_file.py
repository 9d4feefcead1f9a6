"""Write the chosen model into the user's configuration file, and change nothing else in it.

tomlkit edits the text, so comments, order and spacing stay. The new text is parsed before it replaces the file.
"""

from __future__ import annotations

import copy
import os
import tomllib
from pathlib import Path
from typing import Any

from dg_lsp.batch.setup import SetupError
from dg_lsp.wire import files, schema
from dg_lsp.wire.config import MAX_BYTES


def write_model(path: Path, model: str) -> None:
    """Set `engine.model` in a file, created if missing; raise SetupError if that fails."""
    new = prepare(path, model)
    try:
        files.write_output(path, new.encode(), new_mode=0o600)
    except OSError as error:
        raise SetupError(f"{path} can't be written: {error.strerror or error}") from error


def prepare(path: Path, model: str) -> str:
    """Return a file's text with another `engine.model`, and create the file's folder.

    Raises SetupError if the file can't be read, changed or written.
    """
    new = _new_text(path, model)
    try:
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"{path} can't be written: {error.strerror or error}") from error
    if problem := files.output_problem(path):
        raise SetupError(f"{path} can't be written: {problem}")
    return new


def _new_text(path: Path, model: str) -> str:
    try:
        old = files.read_regular(Path(os.path.realpath(path)), MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        old = ""
    except UnicodeDecodeError as error:
        raise SetupError(f"{path} is not UTF-8; fix or remove it") from error
    except OSError as error:
        raise SetupError(f"{path} can't be read: {error.strerror or error}") from error
    return with_model(old, model, str(path))


def with_model(text: str, model: str, name: str) -> str:
    """Return a configuration file's text with another `engine.model`; raise SetupError naming the file."""
    import tomlkit  # imported here because it takes 60 ms
    from tomlkit.exceptions import TOMLKitError

    mark, body = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    try:
        before = tomllib.loads(body)
        document: Any = tomlkit.parse(body)
        engine = document.get("engine")
        if engine is None:
            table = tomlkit.table()
            table["model"] = model
            if document:
                document.add(tomlkit.nl())
            document["engine"] = table
        else:
            engine["model"] = model
        new = tomlkit.dumps(document)
        after = tomllib.loads(new)
    except (TOMLKitError, tomllib.TOMLDecodeError, TypeError, ValueError, RecursionError) as error:
        raise SetupError(f'{name} can\'t be changed: {error}. Fix it, or set engine.model = "{model}" by hand') from error
    if not _changes_only_the_model(before, after, model):
        raise SetupError(f'{name} sets the model in an unusual way; set engine.model = "{model}" there by hand')
    return mark + new


def _changes_only_the_model(before: dict[str, Any], after: dict[str, Any], model: str) -> bool:
    """Return whether only the model differs, and only one key sets the model."""
    values, _ = schema.parse(copy.deepcopy({name: value for name, value in after.items() if name != "keys"}))
    model_keys = [key for key, _ in schema.flat(after) if schema.squeezed(key) == "engine.model"]
    return values.get("model") == model and len(model_keys) == 1 and _rest(before) == _rest(after)


def _rest(values: dict[str, Any]) -> dict[str, Any]:
    rest = copy.deepcopy(values)
    if isinstance(rest.get("engine"), dict):
        rest["engine"].pop("model", None)
        if not rest["engine"]:
            del rest["engine"]
    return rest
