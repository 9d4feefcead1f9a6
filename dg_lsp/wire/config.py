"""What the user has configured: one TOML file, one in the workspace that may say less, and the environment over both.

Front ends and the engine read the same file, so this is shared. A bad value never stops the reading: it is left out, and
a sentence names the file, the key and what is allowed. The workspace's file comes with other people's repositories: it
may not say where code is sent, with which key, or what is run. Knows nothing of what settings do.

Keys read the same in camelCase and in snake_case, as they do in editors' settings.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dg_lsp.wire import files

FILE = "config.toml"
WORKSPACE_FILE = ".dg-lsp.toml"
FILE_VARIABLE = "DG_LSP_CONFIG"
KEY_VARIABLE = "DG_LSP_API_KEY"
MAX_BYTES = 1 << 20

EMBEDDED = "embedded"
"""The model that comes with the package; no folder of that name is meant."""
REMOTE = ("vllm:", "fim:")
EVERYTHING = ("*",)

# Settings of editors alone. Their values are checked where they are used (`server.settings`, which has the same names).
EDITOR_KEYS = (
    "enable",
    "statistics",
    "completion.trigger",
    "completion.debounce",
    "completion.deadline",
    "completion.threshold",
    "completion.token_threshold",
    "completion.candidates",
    "completion.in_comments",
    "completion.in_strings",
    "completion.disabled_languages",
    "completion.max_file_chars",
    "completion.speculate",
    "completion.in_lists",
    "actions.deadline",
    "context.window_chars",
    "context.related_chars",
)

Origin = Literal["user", "workspace", "environment"]


class ConfigError(Exception):
    """The configuration is wrong; the message says in which file, which key, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Config:
    """What was configured. `local_only` are patterns, as in `.gitignore`, of files that no remote model ever sees.

    An engine that crashed `restart_limit` times within the window is started no more; before that, a start after so many
    crashes waits for as long as the pauses say, the last of them counting for all further ones.
    `keys` maps hosts to API keys; "" is the one from the environment, for whichever host the model names. `editor` holds
    the settings that editors know, those of the engine among them, as far as they were given.
    """

    model: str = EMBEDDED
    device: str = "auto"
    threads: int = 0
    unload_after_s: float = 900.0
    exit_after_s: float = 600.0
    rows: int = 32
    restart_limit: int = 3
    restart_window_s: float = 300.0
    restart_pauses_s: tuple[float, ...] = (0.0, 0.0, 1.0)
    deadline_ms: int = 0
    candidates: int = 4
    local_only: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    editor: Mapping[str, object] = field(default_factory=dict)

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


def stays_local(path: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a file, named by its path below its workspace, must not be sent anywhere."""
    if not patterns or not path:
        return False
    from dg_lsp.core import gitignore  # most runs have no such pattern

    try:
        return gitignore.covers(patterns, path)
    # Where nobody can tell, it stays.
    except gitignore.PatternError:
        return True


def load(workspace: Path | None = None, *, file: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Return what is configured; raise ConfigError when something in it is wrong."""
    config, problems = read(workspace, file=file, environ=environ)
    if problems:
        raise ConfigError("; ".join(problems))
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
        stated, problem = _parse(path, needed=bool(named) and origin == "user", is_foreign=origin == "workspace")
        if problem:
            problems.append(problem)
            config = replace(config, local_only=EVERYTHING)
        config, more = _with(config, stated, origin, str(path), path.parent)
        problems += more
    config, more = _with(config, _of_environment(environ), "environment", "the environment", Path.cwd())
    return config, (*problems, *more)


def sources(
    workspace: Path | None = None, *, file: Path | None = None, environ: Mapping[str, str] | None = None
) -> tuple[tuple[Path, Origin], ...]:
    """Return the files that `read` looks into, whether they are there or not, and whose they are."""
    named = (os.environ if environ is None else environ).get(FILE_VARIABLE, "")
    users = file or (expanded(named) if named else user_file())
    found: tuple[tuple[Path, Origin], ...] = ((users, "user"),)
    return found if workspace is None else (*found, (workspace / WORKSPACE_FILE, "workspace"))


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


def _parse(path: Path, *, needed: bool, is_foreign: bool) -> tuple[dict[str, Any], str]:
    """Return what a TOML file states, or why it can't be told. One that came with a workspace may be no link and no pipe."""
    # The library stands in the standard one since Python 3.11, and is the same.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        if is_foreign:
            data = files.read_start(path, MAX_BYTES + 1)
        else:
            with path.open("rb") as opened:
                data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            return {}, f"{path} is larger than a configuration ever is"
        stated: dict[str, Any] = toml.loads(data.decode("utf-8").removeprefix("\ufeff"))
    except (FileNotFoundError, NotADirectoryError):
        return {}, f"there is no {path}, which {FILE_VARIABLE} names" if needed else ""
    except files.NotRegularError as error:
        return {}, f"{path} {error}"
    except OSError as error:
        return {}, f"{path} can't be read: {(error.strerror or str(error)).lower()}"
    except UnicodeDecodeError:
        return {}, f"{path} is not UTF-8"
    except (ValueError, RecursionError) as error:
        return {}, f"{path} is not valid TOML: {error}"
    return stated, ""


class _WrongError(ValueError):
    """A value is not allowed; the message ends a sentence that begins with its key."""


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _WrongError("must be a text that is not empty")
    return value


def _between(low: int, high: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value):
            value = int(value)  # the environment has texts alone
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _WrongError(f"must be a whole number from {low} to {high}")
        return value

    return check


def _seconds(value: object) -> float:
    return float(_between(0, 1_000_000)(value))


def _window(value: object) -> float:
    return float(_between(1, 86_400)(value))


def _pauses(value: object) -> tuple[float, ...]:
    if isinstance(value, str):
        value = [float(part) if re.fullmatch(r"\s*\d{1,4}(\.\d+)?\s*", part) else part for part in value.split(",")]
    if not isinstance(value, list) or not 0 < len(value) <= 16 or not all(_is_pause(each) for each in value):
        raise _WrongError("must be a list of 1 to 16 numbers of seconds from 0 to 3600, as in [0, 0, 1]")
    return tuple(float(each) for each in value)


def _is_pause(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 3600


def _patterns(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
        raise _WrongError("must be a list of patterns as in .gitignore")
    # What one place keeps local, another must not give away.
    if any(item.lstrip().startswith("!") for item in value):
        raise _WrongError("must be a list of patterns that do not begin with !")
    from dg_lsp.core import gitignore

    try:
        gitignore.covers(value, "any")
    except gitignore.PatternError as error:
        raise _WrongError(f"must be a list of patterns as in .gitignore, and {error}") from error
    return tuple(value)


# The key, the field, what is allowed, the environment's name for it.
_TABLE: tuple[tuple[str, str, Callable[[object], object], str], ...] = (
    ("engine.model", "model", _text, "DG_LSP_MODEL"),
    ("engine.device", "device", _text, "DG_LSP_DEVICE"),
    ("engine.threads", "threads", _between(0, 1024), "DG_LSP_THREADS"),
    ("engine.unload_after", "unload_after_s", _seconds, "DG_LSP_UNLOAD_AFTER"),
    ("engine.exit_after", "exit_after_s", _seconds, "DG_LSP_EXIT_AFTER"),
    ("engine.rows", "rows", _between(1, 1024), "DG_LSP_ROWS"),
    ("engine.restart_limit", "restart_limit", _between(1, 100), "DG_LSP_RESTART_LIMIT"),
    ("engine.restart_window", "restart_window_s", _window, "DG_LSP_RESTART_WINDOW"),
    ("engine.restart_pauses", "restart_pauses_s", _pauses, "DG_LSP_RESTART_PAUSES"),
    ("batch.deadline", "deadline_ms", _between(0, 3_600_000), "DG_LSP_DEADLINE"),
    ("batch.candidates", "candidates", _between(1, 64), "DG_LSP_CANDIDATES"),
    ("privacy.local_only", "local_only", _patterns, "DG_LSP_LOCAL_ONLY"),
)

KEYS = tuple(key for key, _, _, _ in _TABLE)
VARIABLES = (FILE_VARIABLE, KEY_VARIABLE, *(variable for _, _, _, variable in _TABLE))
# Of the engine's settings, those that editors have as well.
_SHARED = ("engine.model", "engine.device", "engine.threads", "engine.unload_after")


def _squeezed(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


_BY_NAME = {_squeezed(key): key for key in (*KEYS, *EDITOR_KEYS)}
_FIELDS = {key: (name, check) for key, name, check, _ in _TABLE}
_GROUPS = tuple(dict.fromkeys(key.partition(".")[0] for key in (*KEYS, *EDITOR_KEYS) if "." in key))


def _of_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    stated: dict[str, Any] = {key: environ[variable] for key, _, _, variable in _TABLE if environ.get(variable)}
    if environ.get(KEY_VARIABLE):
        stated["keys"] = {"": environ[KEY_VARIABLE]}
    return stated


def _with(config: Config, stated: Mapping[str, Any], origin: Origin, where: str, folder: Path) -> tuple[Config, list[str]]:
    """Return the configuration with what one source states in place of what was there before."""
    found: dict[str, Any] = {}
    editor = dict(config.editor)
    problems: list[str] = []
    keys, problem = _keys(stated.get("keys", {}), origin, where)
    problems += [problem] if problem else []
    for spelled, value in _flat({name: value for name, value in stated.items() if name != "keys"}):
        key = _BY_NAME.get(_squeezed(spelled))
        if key is None:
            problems.append(f"{where}: {spelled} is no setting; {_instead(spelled)}")
        elif key in EDITOR_KEYS:
            editor[key] = value
        else:
            name, check = _FIELDS[key]
            try:
                made = _model(_text(value), origin, folder) if key == "engine.model" else check(value)
            except _WrongError as error:
                problems.append(f"{where}: {_named(key, origin)} {error}")
                made = EVERYTHING if name == "local_only" else None
            if made is None:
                continue
            # What one place keeps here, another may only add to.
            found[name] = (*config.local_only, *made) if name == "local_only" and isinstance(made, tuple) else made
            if key in _SHARED:
                editor[key] = int(made) if isinstance(made, float) else made
    return replace(config, **found, keys={**config.keys, **keys}, editor=editor), problems


def _named(key: str, origin: Origin) -> str:
    if origin != "environment":
        return key
    return next(variable for other, _, _, variable in _TABLE if other == key)


def _model(name: str, origin: Origin, folder: Path) -> str:
    """Return the model's name, as an absolute path where it means a folder beside the file that names it."""
    if place := folder_of(name, folder):
        return str(place)
    if origin == "workspace" and name != EMBEDDED:
        raise _WrongError(
            f"may only be {EMBEDDED} or a folder in this file, which comes with the workspace; "
            "name other models in your own configuration"
        )
    return name


def _keys(stated: object, origin: Origin, where: str) -> tuple[dict[str, str], str]:
    """Return API keys by host; nothing that goes wrong repeats one."""
    if not stated:
        return {}, ""
    if origin == "workspace":
        return {}, f"{where}: keys must not stand in a workspace, where others read them; put them into {user_file()}"
    hosts = dict(_flat(stated, anything=True)) if isinstance(stated, Mapping) else {}
    # What no header can hold is no key.
    if not hosts or not all(isinstance(key, str) and re.fullmatch(r"\s*[!-~]+\s*", key) for key in hosts.values()):
        return {}, f'{where}: keys must be a table of texts by host, as in "api.deepseek.com" = "…"'
    return {host.casefold(): str(key).strip() for host, key in hosts.items()}, ""


def _flat(data: Mapping[str, Any], prefix: str = "", *, anything: bool = False) -> Iterator[tuple[str, object]]:
    for name, value in data.items():
        key = f"{prefix}{re.sub(r'[^ -~]', '?', str(name))}"
        if isinstance(value, Mapping) and (anything or _squeezed(key) in _GROUPS):
            yield from _flat(value, f"{key}.", anything=anything)
        else:
            yield key, value


def _instead(spelled: str) -> str:
    """Return which settings there are, as the end of a sentence: the one that was meant, or those of its group."""
    squeezed = _squeezed(spelled)
    if close := difflib.get_close_matches(squeezed, _BY_NAME, n=1, cutoff=0.8):
        return f"did you mean {_BY_NAME[close[0]]}?"
    group = squeezed.partition(".")[0]
    same = [key for key in _BY_NAME.values() if key.startswith(f"{group}.")]
    return f"there are {', '.join(sorted(same or [*_BY_NAME.values(), 'keys']))}"
