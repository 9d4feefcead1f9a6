"""What the user has configured: one TOML file, one in the workspace that may say less, and the environment over both.

Front ends and the engine read the same file, so this is shared. A bad value never stops the reading: it is left out, and
a sentence names the file, the key and what is allowed. The workspace's file comes with other people's repositories: it
may not say where code is sent, with which key, or what is run. Knows files and sources; which settings there are is
declared in `settings`.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dg_lsp.wire import model_names, schema, trust
from dg_lsp.wire.model_names import expanded
from dg_lsp.wire.settings import EVERYTHING, Settings

FILE = "config.toml"
WORKSPACE_FILE = ".dg-lsp.toml"
FILE_VARIABLE = "DG_LSP_CONFIG"
KEY_VARIABLE = "DG_LSP_API_KEY"
MAX_BYTES = 1 << 20

# The end of a sentence, no password.
NO_PASSWORD = "must hold no user name or password, which logs and process lists would show. Put a key into [keys]."  # noqa: S105
VARIABLES = (FILE_VARIABLE, KEY_VARIABLE, *(setting.variable for setting in schema.ALL if setting.variable))

Origin = Literal["user", "workspace"]
# What no header can hold is no key.
_KEY = re.compile(r"\s*[!-~]+\s*")
_HOST = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:[0-9]{1,5})?")


class ConfigError(Exception):
    """The configuration is wrong; the message says in which file, which key, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Config:
    """What was configured; `keys` maps hosts to API keys."""

    settings: Settings = field(default_factory=Settings)
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)

    def key_for(self, host: str) -> str:
        """Return the API key for a host (`name` or `name:port`), or ""."""
        host = host.casefold()
        return self.keys.get(host) or self.keys.get(re.sub(r":[0-9]+$", "", host), "")


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
    files = sources(workspace, file=file, environ=environ)
    (users, _), *_ = files
    own_model = config.settings.model
    for path, origin in files:
        stated, problem = _load(path, needed=bool(named) and origin == "user")
        if problem:
            problems.append(problem)
            config = replace(config, settings=schema.layered(config.settings, {"local_only": EVERYTHING}))
        keys, wrong_keys = _keys(stated.pop("keys", {}), origin, str(path), users)
        values, wrong = schema.parse(stated, str(path))
        values, wrong_model = _with_model(values, path.parent, f"engine.model in {path}")
        problems += [*wrong_keys, *wrong, *wrong_model]
        if origin == "workspace":
            values, refused = trust.admit(values, config.settings, str(path), users)
            problems += refused
        config = Config(schema.layered(config.settings, values), {**config.keys, **keys})
        own_model = config.settings.model if origin == "user" else own_model
    values, wrong = schema.parse_environment(environ)
    values, wrong_model = _with_model(values, Path.cwd(), f"DG_LSP_MODEL in {schema.ENVIRONMENT}")
    settings = schema.layered(config.settings, values)
    keys, wrong_keys = _environment_key(environ.get(KEY_VARIABLE, ""), str(values.get("model", own_model)))
    return Config(settings, {**config.keys, **keys}), (*problems, *wrong, *wrong_model, *wrong_keys)


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
        with open(path, "rb", opener=_opener) as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                return {}, "" if str(path) == os.devnull else f"{path} is not a regular file."
            if status.st_uid not in (os.getuid(), 0):
                return {}, f"{path} belongs to another user and does not count. Remove it, or make it your own (chown)."
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


def _opener(path: str, flags: int) -> int:
    # A named pipe in a cloned repository would otherwise be waited for.
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _with_model(values: dict[str, object], folder: Path, what: str) -> tuple[dict[str, object], list[str]]:
    """Return the values with the model's folder by its full path, which begins at `folder` where it is relative."""
    model = values.get("model")
    if not isinstance(model, str):
        return values, []
    if model_names.has_password(model):
        return {name: value for name, value in values.items() if name != "model"}, [f"{what} {NO_PASSWORD}"]
    return {**values, "model": str(model_names.folder_of(model, folder) or model)}, []


def _keys(stated: object, origin: Origin, where: str, users: Path) -> tuple[dict[str, str], list[str]]:
    """Return API keys by host; nothing that goes wrong repeats one."""
    if not stated:
        return {}, []
    if origin == "workspace":
        return {}, [f"keys must not stand in {where}, where others read them. Move them to {users}."]
    hosts = dict(schema.flat(stated, any_table=True)) if isinstance(stated, Mapping) else {}
    if not hosts or not all(isinstance(key, str) and _KEY.fullmatch(key) for key in hosts.values()):
        return {}, [f'keys in {where} must be a table of texts by host, as in "api.deepseek.com" = "…".']
    return {host.casefold(): str(key).strip() for host, key in hosts.items()}, []


def _environment_key(stated: str, own_model: str) -> tuple[dict[str, str], list[str]]:
    """Return the environment's API key by its host: the one it names, as in HOST=KEY, or that of the user's own model."""
    host, _, key = stated.partition("=")
    # What is left of a key that ends with base64's padding is no key.
    if not _HOST.fullmatch(host) or not key.strip("="):
        host, key = _host_of(own_model), stated
    if key and not _KEY.fullmatch(key):
        return {}, [f"{KEY_VARIABLE} in {schema.ENVIRONMENT} must be a key, or HOST=KEY."]
    return ({host.casefold(): key.strip()} if host and key else {}), []


def _host_of(model: str) -> str:
    try:
        address = model_names.parse_remote(model).address if model_names.is_remote(model) else None
    except model_names.ModelNameError:
        return ""
    return address.name if address is not None else ""
