"""Read the configuration: the user's TOML file, a limited file in the workspace, and the environment, which overrides both.

Front ends and the engine read the same file, so this module is shared. A wrong value never stops the reading: it is
left out, and a message names the file, the key and what is allowed. msgspec checks types and ranges. This module and the
declarations in `settings` add what msgspec can't express: patterns, lists in environment variables, keys in several
spellings, and messages that name the key and the source.

The workspace's file comes with a repository that the user may not have written. It must not choose where code is sent,
which API key is used, or what is run.
"""

from __future__ import annotations

import difflib
import json
import os
import posixpath
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NewType, get_args, get_type_hints

import msgspec

from dg_lsp.core.values import InfillRequest
from dg_lsp.wire import laptop, model_names
from dg_lsp.wire.model_names import NO_PASSWORD, expanded
from dg_lsp.wire.settings import DEFAULTS, EVERYTHING, About, BadValueError, Settings

FILE = "config.toml"
WORKSPACE_FILE = ".dg-lsp.toml"
FILE_VARIABLE = "DG_LSP_CONFIG"
KEY_VARIABLE = "DG_LSP_API_KEY"
SAFE_VARIABLE = "DG_LSP_SAFE_DIRECTORY"
MAX_BYTES = 1 << 20
# A workspace's file is untrusted, and the TOML parser's time grows with the square of the number of parts in a key.
MAX_WORKSPACE_BYTES = 64 << 10
MAX_DOTS = 100

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
        settings_object, problem = _load(path, origin, environ, needed=bool(file_variable) and origin == "user")
        if problem:
            problems.append(problem)
            config = replace(config, settings=layered(config.settings, {"local_only": EVERYTHING}))
        keys, wrong_keys = _keys(settings_object.pop("keys", {}), origin, str(path), users)
        values, wrong = parse(settings_object, str(path))
        values, wrong_model = _with_models(values, path.parent, str(path))
        problems += [*wrong_keys, *wrong, *wrong_model]
        if origin == "workspace":
            values, refused = admit(values, config.settings, str(path), users)
            problems += refused
        config = Config(layered(config.settings, values), {**config.keys, **keys})
        own_model = config.settings.model if origin == "user" else own_model
    values, wrong = parse_environment(environ)
    values, wrong_model = _with_models(values, Path(), ENVIRONMENT)
    settings = layered(config.settings, values)
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
    if model_names.is_remote(model):
        try:
            model_names.parse_remote(model)
        except model_names.ModelNameError as error:
            raise ConfigError(str(error)) from error
    folder = model_names.folder_of(model)
    if folder is not None and model_names.is_gguf(folder):
        if not folder.is_file():
            raise ConfigError(f"there is no file {folder}")
    elif folder is not None and not folder.is_dir():
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


def _is_safe(path: Path, environ: Mapping[str, str]) -> bool:
    """Return whether the user trusts the owners of the files in a file's folder, as with git's `safe.directory`."""
    folders = re.sub(rf"/\*(?={os.pathsep}|$)", "/", environ.get(SAFE_VARIABLE, "")).split(os.pathsep)
    place = Path(os.path.realpath(path))
    return "*" in folders or any(place.is_relative_to(os.path.realpath(folder)) for folder in folders if folder)


def _load(path: Path, origin: Origin, environ: Mapping[str, str], *, needed: bool) -> tuple[dict[str, Any], str]:
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
            if status.st_uid not in (os.getuid(), 0) and not _is_safe(path, environ):
                way = f"If you trust its owner, set {SAFE_VARIABLE}={path.parent}; else remove it, or make it your own (chown)."
                return {}, f"{path} belongs to another user. {way}"
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


def _with_models(values: dict[str, object], folder: Path, where: str) -> tuple[dict[str, object], list[str]]:
    """Return the values with each model's folder as a full path, and a message for each model whose URL holds a password.

    A relative path starts at `folder`. `where` names the source.
    """
    full, problems = dict(values), list[str]()
    for setting in OF_MODELS:
        if isinstance(model := values.get(setting.field), str):
            if model_names.has_password(model):
                del full[setting.field]
                key = setting.variable if where == ENVIRONMENT else setting.key
                problems.append(f"{key} in {where} {NO_PASSWORD}")
            else:
                full[setting.field] = model_names.full(model, folder)
    return full, problems


def _keys(keys_object: object, origin: Origin, where: str, users: Path) -> tuple[dict[str, str], list[str]]:
    """Return the API keys by host, and messages, which never repeat a key."""
    if not keys_object:
        return {}, []
    if origin == "workspace":
        return {}, [f"keys must not be in {where}, where others can read them. Move them to {users}."]
    hosts = dict(flat(keys_object, any_table=True)) if isinstance(keys_object, Mapping) else {}
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
        return {}, [f"{KEY_VARIABLE} in {ENVIRONMENT} must be a key, or HOST=KEY."]
    return ({host.casefold(): key.strip()} if host and key else {}), []


# --- Settings by their declaration: the known keys, the valid values, and the messages for wrong ones

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
SETTINGS = tuple(
    Setting(item.name, item.metadata["about"].key, _KINDS[item.name], item.metadata["about"]) for item in fields(Settings)
)
VARIABLES = (FILE_VARIABLE, KEY_VARIABLE, SAFE_VARIABLE, *(setting.variable for setting in SETTINGS if setting.variable))
OF_EDITORS = tuple(setting for setting in SETTINGS if setting.about.in_editors)
OF_MODELS = tuple(setting for setting in SETTINGS if setting.about.is_model)


def squeezed(key: str) -> str:
    """Return a key without case, underscores and hyphens, so that all its spellings are equal."""
    return key.replace("_", "").replace("-", "").lower()


_BY_KEY = {squeezed(setting.key): setting for setting in SETTINGS}
_OF_EDITORS = {squeezed(setting.key): setting for setting in OF_EDITORS}
_GROUPS = frozenset(key.partition(".")[0] for key in _BY_KEY if "." in key)


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
    settings_by_key, prefix = (_OF_EDITORS, f"{SECTION}.") if in_editor else (_BY_KEY, "")
    values: dict[str, object] = {}
    problems: list[str] = []
    for key, value in flat(data):
        setting = settings_by_key.get(squeezed(key))
        if setting is None:
            problems.append(f"Unknown key {prefix}{key} in {where}. {_instead(key, settings_by_key, in_editor=in_editor)}")
            continue
        read = _read_value(setting, value, f"{prefix}{key} in {where}", problems)
        is_default = value is not None and read.get(setting.field) == getattr(DEFAULTS, setting.field)
        values |= read if defaults_count or not is_default else {}
    return values, tuple(problems)


def parse_environment(environ: Mapping[str, str]) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the values of the environment's variables by field, and a message for each wrong one."""
    values: dict[str, object] = {}
    problems: list[str] = []
    for setting in SETTINGS:
        if text := environ.get(setting.variable) if setting.variable else None:
            values |= _read_value(setting, text, f"{setting.variable} in {ENVIRONMENT}", problems, is_text=True)
    return values, tuple(problems)


def _read_value(
    setting: Setting, value: object, place: str, problems: list[str], *, is_text: bool = False
) -> dict[str, object]:
    """Return a setting's value by field; for a wrong one nothing or the safe value, and add a message with its place."""
    try:
        return {setting.field: setting.parse(value, is_text=is_text)}
    except BadValueError as error:
        problems.append(f"{place} {error}.")
        return {} if setting.about.if_wrong is None else {setting.field: setting.about.if_wrong}


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
    for setting in SETTINGS:
        if setting.about.is_users_own and setting.field in admitted:
            del admitted[setting.field]
            problems.append(f"{prefix}{setting.key} in {where} is ignored. Move it to {user_file}.")
    for setting in OF_MODELS:
        if not isinstance(model := admitted.get(setting.field), str):
            continue
        # The full path, so that the folder that was checked is the one that is loaded.
        model = model_names.full(model)
        entry = None if model == getattr(base, setting.field) else unallowed(model, base.allow)
        if entry is None:
            admitted[setting.field] = model
        else:
            del admitted[setting.field]
            verb = "send code to" if model_names.is_remote(model) else "load"
            advice = f'To allow that, add "{entry}" to engine.allow in {user_file}.'
            reason = f"it would {verb} {entry}. {advice}" if entry else "its URL is not the URL of a server."
            key = setting.editor_key if prefix else setting.key
            problems.append(f"{prefix}{key} in {where} is ignored: {reason}")
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
# type that `shown` returns, so no request can skip the check. Both sides make it: only a front end knows the patterns of a
# workspace, and only the engine gets the requests of other clients, and patterns that were written after a front end's start.

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


def keeps_file(path: Path, patterns: tuple[str, ...]) -> bool:
    """Return whether a file stays on this machine."""
    return any(stays_local(name, patterns) for name in private_names(path.resolve()))


def patterns_of(paths: Iterable[Path]) -> tuple[str, ...]:
    """Return the private patterns of the user and of all workspaces of these files."""
    roots = dict.fromkeys(workspace_of(path.resolve()) for path in paths)
    return tuple(dict.fromkeys(pattern for root in roots for pattern in read(root)[0].settings.local_only))


def shown(request: InfillRequest, patterns: tuple[str, ...]) -> Shown:
    """Return the parts of a request that a remote model may see; raise LocalOnlyError if its file must stay local."""
    if stays_local(request.path, patterns):
        raise LocalOnlyError(f"{request.path or 'a file without a path'} {LOCAL_ONLY}")
    related = tuple(
        snippet for snippet in request.related if not snippet.for_copying and not stays_local(snippet.path, patterns)
    )
    question = request.question
    if question is not None:
        allowed = tuple(edit for edit in question.edits if not stays_local(edit.path, patterns))
        question = replace(question, edits=allowed)
    return Shown(replace(request, related=related, question=question))
