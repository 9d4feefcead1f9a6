"""What the user has configured: one TOML file, one in the workspace that may say less, and the environment over both.

Front ends and the engine read the same file, so this is shared. A bad value never stops the reading: it is left out, and
a sentence names the file, the key and what is allowed. The workspace's file comes with other people's repositories: it
may not say where code is sent, with which key, or what is run. Knows files and sources; which settings there are is
declared in `settings`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dg_lsp.wire import schema
from dg_lsp.wire.settings import EMBEDDED, EVERYTHING, Settings

FILE = "config.toml"
WORKSPACE_FILE = ".dg-lsp.toml"
FILE_VARIABLE = "DG_LSP_CONFIG"
KEY_VARIABLE = "DG_LSP_API_KEY"
MAX_BYTES = 1 << 20

REMOTE = ("vllm:", "fim:")
VARIABLES = (FILE_VARIABLE, KEY_VARIABLE, *(setting.variable for setting in schema.ALL if setting.variable))

Origin = Literal["user", "workspace", "environment"]


class ConfigError(Exception):
    """The configuration is wrong; the message says in which file, which key, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Config:
    """What was configured.

    `keys` maps hosts to API keys; "" is the one from the environment, for whichever host the model names.
    """

    settings: Settings = field(default_factory=Settings)
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)

    def key_for(self, host: str) -> str:
        """Return the API key for a host (`name` or `name:port`), or ""."""
        host = host.casefold()
        return self.keys.get("") or self.keys.get(host) or self.keys.get(host.partition(":")[0], "")


def is_remote(model: str) -> bool:
    """Return whether a model's name means that code leaves this process for a server, be it on this machine."""
    return model.startswith(REMOTE)


def folder_of(model: str, beside: Path | None = None) -> Path | None:
    """Return the folder that a model's name means, by its full path; None where it means something else.

    A relative name is looked for in `beside`, or else in the current folder.
    """
    if model == EMBEDDED or is_remote(model):
        return None
    folder = (beside or Path()) / expanded(model)
    return folder.resolve() if folder.is_dir() else None


def expanded(name: str) -> Path:
    """Return the path with a home folder in place of its ~; as it is where nobody is called so."""
    return Path(os.path.expanduser(name))  # noqa: PTH111 -- that of Path raises for a user that there is not


def load(workspace: Path | None = None, *, file: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Return what is configured; raise ConfigError when something in it is wrong."""
    config, problems = read(workspace, file=file, environ=environ)
    if problems:
        raise ConfigError(" ".join(problems))
    return config


def read(
    workspace: Path | None = None, *, file: Path | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Config, tuple[str, ...]]:
    """Return what is configured, and a sentence for each thing in it that is wrong and was left out.

    `workspace` is a folder whose own file counts too. Where nobody can tell which files should stay local, all do.
    """
    environ = os.environ if environ is None else environ
    named = environ.get(FILE_VARIABLE, "")
    config, problems = Config(), list[str]()
    for path, origin in sources(workspace, file=file, environ=environ):
        stated, problem = _load(path, needed=bool(named) and origin == "user")
        if problem:
            problems.append(problem)
            config = replace(config, settings=schema.layered(config.settings, {"local_only": EVERYTHING}))
        keys, wrong_keys = _keys(stated.pop("keys", {}), origin, str(path))
        values, wrong = schema.parse(stated, str(path))
        config, refused = _layered(config, values, keys, origin, path.parent, f"engine.model in {path}")
        problems += [*wrong_keys, *wrong, *refused]
    values, wrong = schema.parse_environment(environ)
    own_key = {"": environ[KEY_VARIABLE]} if environ.get(KEY_VARIABLE) else {}
    keys, wrong_keys = _keys(own_key, "environment", schema.ENVIRONMENT)
    config, refused = _layered(config, values, keys, "environment", Path.cwd(), "")
    return config, (*problems, *wrong_keys, *wrong, *refused)


def sources(
    workspace: Path | None = None, *, file: Path | None = None, environ: Mapping[str, str] | None = None
) -> tuple[tuple[Path, Origin], ...]:
    """Return the files that `read` looks into, whether they are there or not, and whose they are."""
    named = (os.environ if environ is None else environ).get(FILE_VARIABLE, "")
    users = file or (expanded(named) if named else user_file())
    files: tuple[tuple[Path, Origin], ...] = ((users, "user"),)
    return files if workspace is None else (*files, (workspace / WORKSPACE_FILE, "workspace"))


def workspace_of(path: Path) -> Path:
    """Return the folder that a file or folder belongs to: the nearest with a `.dg-lsp.toml` or a repository, or its own."""
    # Not what Path has for it, which raises for names that are too long, and where nobody may look.
    own = path if os.path.isdir(path) else path.parent  # noqa: PTH112
    marks = (WORKSPACE_FILE, ".git")
    return next((folder for folder in (own, *own.parents) if any(os.path.exists(folder / mark) for mark in marks)), own)  # noqa: PTH110


def user_file() -> Path:
    """Return where the user's file is, if there is one."""
    import platformdirs  # only this function needs it, and front ends start fast

    return Path(platformdirs.user_config_dir("dg-lsp", appauthor=False)) / FILE


def _load(path: Path, *, needed: bool) -> tuple[dict[str, Any], str]:
    """Return what a TOML file states, or why it can't be told."""
    try:
        with path.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            return {}, f"{path} is larger than {MAX_BYTES >> 20} MiB, which no configuration is."
        stated: dict[str, Any] = tomllib.loads(data.decode("utf-8").removeprefix("\ufeff"))
    except (FileNotFoundError, NotADirectoryError):
        return {}, f"{path}, which {FILE_VARIABLE} names, does not exist." if needed else ""
    except OSError as error:
        return {}, f"{path} can't be read: {(error.strerror or str(error)).lower()}."
    except UnicodeDecodeError:
        return {}, f"{path} is not UTF-8."
    except (ValueError, RecursionError) as error:
        return {}, f"{path} is not valid TOML: {error}."
    return stated, ""


def _layered(
    config: Config, values: dict[str, object], keys: Mapping[str, str], origin: Origin, folder: Path, where: str
) -> tuple[Config, list[str]]:
    """Return the configuration with what one source states in place of what was there before."""
    problems = []
    if "model" in values:
        model, refusal = _model(str(values.pop("model")), origin, folder)
        values |= {} if refusal else {"model": model}
        problems += [f"{where} {refusal}"] if refusal else []
    return Config(schema.layered(config.settings, values), {**config.keys, **keys}), problems


def _model(name: str, origin: Origin, folder: Path) -> tuple[str, str]:
    """Return the model's name, as an absolute path where it means a folder beside the file that names it.

    With it comes why that source may not name it, for the end of a sentence.
    """
    if place := folder_of(name, folder):
        return str(place), ""
    if origin == "workspace" and name != EMBEDDED:
        return "", (
            f"may only be {EMBEDDED} or a folder, because this file comes with the workspace. "
            "Name other models in your own configuration."
        )
    return name, ""


def _keys(stated: object, origin: Origin, where: str) -> tuple[dict[str, str], list[str]]:
    """Return API keys by host; nothing that goes wrong repeats one."""
    if not stated:
        return {}, []
    if origin == "workspace":
        return {}, [f"keys must not stand in {where}, where others read them. Move them to {user_file()}."]
    hosts = dict(schema.flat(stated, any_table=True)) if isinstance(stated, Mapping) else {}
    # What no header can hold is no key.
    if not hosts or not all(isinstance(key, str) and re.fullmatch(r"\s*[!-~]+\s*", key) for key in hosts.values()):
        return {}, [f'keys in {where} must be a table of texts by host, as in "api.deepseek.com" = "…".']
    return {host.casefold(): str(key).strip() for host, key in hosts.items()}, []
