"""Read the configuration: the user's TOML file, a limited file in the workspace, and the environment, which overrides both.

Front ends and the engine read the same file, so this module is shared. A wrong value never stops the reading: it is
left out, and a message names the file, the key and what is allowed.

The workspace's file comes with a repository that the user may not have written. It must not choose where code is sent,
which API key is used, or what is run.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NewType

from dg_lsp.core.values import InfillRequest
from dg_lsp.wire import laptop, model_names, schema
from dg_lsp.wire.model_names import expanded
from dg_lsp.wire.settings import EVERYTHING, Settings

FILE = "config.toml"
WORKSPACE_FILE = ".dg-lsp.toml"
FILE_VARIABLE = "DG_LSP_CONFIG"
KEY_VARIABLE = "DG_LSP_API_KEY"
MAX_BYTES = 1 << 20
# A workspace's file is untrusted, and the TOML parser's time grows with the square of the number of parts in a key.
MAX_WORKSPACE_BYTES = 64 << 10
MAX_DOTS = 100

# The lint takes this end of a sentence for a password.
NO_PASSWORD = "must hold no user name or password, which logs and process lists would show. Put a key into [keys]."  # noqa: S105
VARIABLES = (FILE_VARIABLE, KEY_VARIABLE, *(setting.variable for setting in schema.ALL if setting.variable))

Origin = Literal["user", "workspace"]
# A key is sent in a header, so it needs characters that a header can hold.
_KEY = re.compile(r"\s*[!-~]+\s*")
_HOST = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:[0-9]{1,5})?")


class ConfigError(Exception):
    """The configuration is wrong. The message names the file, the key and what is allowed."""


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration; `keys` maps hosts to API keys."""

    settings: Settings = field(default_factory=Settings)
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)

    def model(self, chosen: str = "") -> str:
        """Return the name of the model that runs: the chosen or else the configured one, and for `auto` what that means now."""
        return laptop.resolve(chosen or self.settings.model)

    def key_for(self, host: str) -> str:
        """Return the API key for a host (`name` or `name:port`), or ""."""
        host = host.casefold()
        return self.keys.get(host) or self.keys.get(re.sub(r":[0-9]+$", "", host), "")


def load_config(workspace: Path | None = None) -> Config:
    """Return the configuration; raise ConfigError if anything in it is wrong."""
    config, problems = read(workspace)
    if problems:
        raise ConfigError(" ".join(problems))
    return config


def read(workspace: Path | None = None, environ: Mapping[str, str] | None = None) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration, and a message for each wrong value that was left out.

    `workspace` is a folder whose own file is read too. If a file can't be read, its `privacy.local_only` is unknown, so
    every file stays local.
    """
    environ = os.environ if environ is None else environ
    file_variable = environ.get(FILE_VARIABLE, "")
    config, problems = Config(), list[str]()
    files = sources(workspace, environ)
    (users, _), *_ = files
    own_model = config.settings.model
    for path, origin in files:
        settings_object, problem = _load(path, origin, needed=bool(file_variable) and origin == "user")
        if problem:
            problems.append(problem)
            config = replace(config, settings=schema.layered(config.settings, {"local_only": EVERYTHING}))
        keys, wrong_keys = _keys(settings_object.pop("keys", {}), origin, str(path), users)
        values, wrong = schema.parse(settings_object, str(path))
        values, wrong_model = _with_model(values, path.parent, f"engine.model in {path}")
        problems += [*wrong_keys, *wrong, *wrong_model]
        if origin == "workspace":
            values, refused = admit(values, config.settings, str(path), users)
            problems += refused
        config = Config(schema.layered(config.settings, values), {**config.keys, **keys})
        own_model = config.settings.model if origin == "user" else own_model
    values, wrong = schema.parse_environment(environ)
    values, wrong_model = _with_model(values, Path(), f"DG_LSP_MODEL in {schema.ENVIRONMENT}")
    settings = schema.layered(config.settings, values)
    keys, wrong_keys = _environment_key(environ.get(KEY_VARIABLE, ""), str(values.get("model", own_model)))
    return Config(settings, {**config.keys, **keys}), (*problems, *wrong, *wrong_model, *wrong_keys)


def sources(workspace: Path | None = None, environ: Mapping[str, str] | None = None) -> tuple[tuple[Path, Origin], ...]:
    """Return the files that `read` reads, existing or not, each with its origin."""
    file_variable = (os.environ if environ is None else environ).get(FILE_VARIABLE, "")
    users = expanded(file_variable) if file_variable else user_file()
    files: tuple[tuple[Path, Origin], ...] = ((users, "user"),)
    return files if workspace is None else (*files, (workspace / WORKSPACE_FILE, "workspace"))


def workspace_of(path: Path) -> Path:
    """Return the nearest folder with a `.dg-lsp.toml` or a repository, else the path's own folder."""
    # `os.path` returns False for names that are too long or folders that can't be read, where Path raises.
    own = path if os.path.isdir(path) else path.parent  # noqa: PTH112
    return next((folder for folder in (own, *own.parents) if _is_marked(folder)), own)


def check_model(model: str) -> None:
    """Raise ConfigError if no model can have this name, or its folder does not exist. Contacts no server."""
    if not model.strip() or not model.isprintable():
        raise ConfigError("a model needs a name")
    if model_names.has_password(model):
        raise ConfigError(f"the model's URL {NO_PASSWORD}")
    if model_names.is_remote(model):
        try:
            remote = model_names.parse_remote(model)
        except model_names.ModelNameError as error:
            raise ConfigError(str(error)) from error
        if remote.backend == "fim" and remote.dialect not in model_names.USUAL_URLS:
            raise ConfigError(f"there is no dialect {remote.dialect}; choose one of {', '.join(model_names.USUAL_URLS)}")
        if remote.address is None:
            raise ConfigError(f"{model} names no server; a remote model is named {model_names.HELP}")
    folder = model_names.folder_of(model)
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}")


def private_names(path: Path, workspace: Path | None = None) -> tuple[str, ...]:
    """Return the names of a file that the patterns of `privacy.local_only` are compared with.

    These are its path below the workspace, and the same path with the workspace's own name before it, so that `vault/`
    also means a workspace named `vault`. A file outside of all workspaces has its full path too. `workspace` is a folder
    around the file; without it, it is the nearest one.
    """
    folder = workspace or workspace_of(path)
    name = path.relative_to(folder).as_posix()
    names = (name, f"{folder.name}/{name}") if folder.name else (name,)
    return names if workspace is not None or _is_marked(folder) else (*names, path.as_posix().lstrip("/"))


def _is_marked(folder: Path) -> bool:
    return any(os.path.exists(folder / mark) for mark in (WORKSPACE_FILE, ".git"))  # noqa: PTH110


def user_file() -> Path:
    """Return the path of the user's configuration file, which may not exist."""
    import platformdirs  # imported here because only this function needs it, and front ends must start fast

    return Path(platformdirs.user_config_dir("dg-lsp", appauthor=False)) / FILE


def _load(path: Path, origin: Origin, *, needed: bool) -> tuple[dict[str, Any], str]:
    """Return the content of a TOML file, and a message if it can't be read."""
    limit = MAX_BYTES if origin == "user" else MAX_WORKSPACE_BYTES
    # Without O_NONBLOCK, opening a named pipe would wait for a writer.
    safely = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if origin == "workspace":
        # A link in a cloned repository may point to a device or a slow network folder.
        safely |= os.O_NOFOLLOW
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | safely)) as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                return {}, "" if str(path) == os.devnull else f"{path} is not a regular file."
            if status.st_uid not in (os.getuid(), 0):
                return {}, f"{path} belongs to another user and is ignored. Remove it, or make it your own (chown)."
            data = opened.read(limit + 1)
        if len(data) > limit:
            return {}, f"{path} is larger than {limit >> 10} KiB, the limit for a configuration."
        if origin == "workspace" and any(line.count(b".") > MAX_DOTS for line in data.split(b"\n")):
            return {}, f"{path} has a line with more than {MAX_DOTS} dots, which may take too long to read. Split the line."
        values: dict[str, Any] = tomllib.loads(data.decode("utf-8").removeprefix("\ufeff"))
    except (FileNotFoundError, NotADirectoryError):
        return {}, f"{path}, which {FILE_VARIABLE} names, does not exist." if needed else ""
    except OSError as error:
        # Unlike Path.is_symlink, this does not fail where the name is too long or a folder above can't be read.
        if origin == "workspace" and os.path.islink(path):  # noqa: PTH114
            return {}, f"{path} is a link, which is not followed. Replace it with a file."
        return {}, f"{path} can't be read: {(error.strerror or str(error)).lower()}."
    except UnicodeDecodeError:
        return {}, f"{path} is not UTF-8."
    except (ValueError, RecursionError) as error:
        return {}, f"{path} is not valid TOML: {error}."
    return values, ""


def _with_model(values: dict[str, object], folder: Path, what: str) -> tuple[dict[str, object], list[str]]:
    """Return the values with the model's folder as a full path, and a message if the model's URL holds a password.

    A relative path starts at `folder`.
    """
    model = values.get("model")
    if not isinstance(model, str):
        return values, []
    if model_names.has_password(model):
        return {name: value for name, value in values.items() if name != "model"}, [f"{what} {NO_PASSWORD}"]
    return {**values, "model": model_names.full(model, folder)}, []


def _keys(keys_object: object, origin: Origin, where: str, users: Path) -> tuple[dict[str, str], list[str]]:
    """Return the API keys by host, and messages, which never repeat a key."""
    if not keys_object:
        return {}, []
    if origin == "workspace":
        return {}, [f"keys must not be in {where}, where others can read them. Move them to {users}."]
    hosts = dict(schema.flat(keys_object, any_table=True)) if isinstance(keys_object, Mapping) else {}
    if not hosts or not all(isinstance(key, str) and _KEY.fullmatch(key) for key in hosts.values()):
        return {}, [f'keys in {where} must be a table of hosts and their keys, as in "api.deepseek.com" = "…".']
    return {host.casefold(): str(key).strip() for host, key in hosts.items()}, []


def _environment_key(variable: str, own_model: str) -> tuple[dict[str, str], list[str]]:
    """Return the environment's API key by host, and messages.

    The host is the one in HOST=KEY, or else the host of the user's own model.
    """
    host, _, key = variable.partition("=")
    # If only `=` signs follow, they are the base64 padding at the end of a plain key.
    if not _HOST.fullmatch(host) or not key.strip("="):
        try:
            address = model_names.parse_remote(own_model).address if model_names.is_remote(own_model) else None
        except model_names.ModelNameError:
            address = None
        host = address.name if address is not None else ""
        key = variable
    if key and not _KEY.fullmatch(key):
        return {}, [f"{KEY_VARIABLE} in {schema.ENVIRONMENT} must be a key, or HOST=KEY."]
    return ({host.casefold(): key.strip()} if host and key else {}), []


# --- What a workspace or an editor may choose; an editor may have read its settings from the workspace. A cloned repository
# must not choose where code is sent or which weights are loaded. So these sources may name a model only if it comes with the
# package, or if `engine.allow` in the user's own configuration covers it. Only this decides that.


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
        model = model_names.full(model)
        entry = None if model == base.model else unallowed(model, base.allow)
        if entry is None:
            admitted["model"] = model
        else:
            del admitted["model"]
            verb = "send code to" if model_names.is_remote(model) else "load"
            advice = f'To allow that, add "{entry}" to engine.allow in {user_file}.'
            reason = f"it would {verb} {entry}. {advice}" if entry else "its URL is not the URL of a server."
            problems.append(f"{prefix}engine.model in {where} is ignored: {reason}")
    return admitted, tuple(problems)


def unallowed(model: str, allow: Sequence[str]) -> str | None:
    """Return the entry that the user's list lacks for a model; "" if no entry can help, None if the model is allowed."""
    if model_names.comes_with_the_package(model):
        return None
    if model_names.is_remote(model):
        try:
            remote = model_names.parse_remote(model)
        except model_names.ModelNameError:
            return ""
        address = remote.address
        if address is None:
            return ""
        # An entry without a scheme means https, or any scheme on this machine.
        scheme = address.scheme if address.is_here else "https"
        if not any(model_names.address_of(each if "://" in each else f"{scheme}://{each}") == address for each in allow):
            return f"http://{address.name}" if address.is_clear else address.name
        # For vLLM, the part after the # is a folder or a hub id whose tokenizer is loaded on this machine.
        return unallowed(remote.model, allow) if remote.backend == "vllm" and remote.model else None
    folder = model_names.folder_of(model)
    if folder is None:
        return None if model in allow else model
    # Only absolute entries: a relative one would depend on the folder that the command was started in.
    absolute = (path for each in allow if "\0" not in each and (path := model_names.expanded(each)).is_absolute())
    folders = (Path(os.path.realpath(path)) for path in absolute)
    return None if any(folder.is_relative_to(each) for each in folders) else str(folder)


# --- Which files and which parts of a request a remote model may see, by `privacy.local_only`. Remote backends accept only the
# type that `shown` returns, so no request can skip the check.

LOCAL_ONLY = "is for local models only (privacy.local_only), and the chosen model is remote"
"""Why a file gets no answer from a remote model: the end of a sentence that begins with the file."""

Shown = NewType("Shown", InfillRequest)
"""A request without the parts that must stay on this machine."""


class LocalOnlyError(ValueError):
    """The request's file must stay on this machine. The message is a sentence."""


def keeps_everything(patterns: tuple[str, ...]) -> bool:
    """Return whether the patterns keep every file local."""
    return any(pattern.strip() in (*EVERYTHING, "**", "/*", "/**") for pattern in patterns)


def stays_local(path: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a file must not be sent anywhere. `path` is relative to its workspace.

    If there are patterns and the path is unknown, the file stays local.
    """
    if not patterns:
        return False
    name = posixpath.normpath(path.replace("\\", "/")) if path else "."
    if name in (".", "..") or name.startswith(("/", "../")):
        return True
    from dg_lsp.core import gitignore  # imported here because most runs have no pattern

    try:
        return gitignore.covers(patterns, name)
    except gitignore.PatternError:
        return True  # a pattern that is too expensive to match keeps every file local


def shown(request: InfillRequest, patterns: tuple[str, ...]) -> Shown:
    """Return the parts of a request that a remote model may see; raise LocalOnlyError if its file must stay local."""
    if stays_local(request.path, patterns):
        raise LocalOnlyError(f"{request.path or 'a file without a path'} {LOCAL_ONLY}")
    related = tuple(
        snippet for snippet in request.related if not snippet.for_copying and not stays_local(snippet.path, patterns)
    )
    return Shown(replace(request, related=related))
