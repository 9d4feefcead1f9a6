"""Start programs so that none runs code of the current folder, which may be a repository that its user has not read.

`dg_lsp.__main__` imports this module before any other, so this one imports only what Python has then.
"""

import errno
import os
import sys

OURSELVES = (sys.executable, "-P", "-m", "dg_lsp")
"""Runs dg-lsp in this environment."""
FOLDER = "/"
"""The current folder of a program that needs none. Some, such as uv, read their settings in that folder and above it."""
# Paths that a program in another folder would not find.
_PATHS = ("DG_LSP_CONFIG", "DG_LSP_MODELS", "DG_LSP_RUNTIME_DIR", "SSL_CERT_FILE")
# What ties git to one repository (`git rev-parse --local-env-vars`), and what changes how it reads paths.
_OF_REPOSITORY = frozenset(
    f"GIT_{name}"
    for name in (
        *("ALTERNATE_OBJECT_DIRECTORIES", "COMMON_DIR", "CONFIG", "CONFIG_COUNT", "CONFIG_PARAMETERS", "DIR", "GRAFT_FILE"),
        *("IMPLICIT_WORK_TREE", "INDEX_FILE", "INTERNAL_SUPER_PREFIX", "NO_REPLACE_OBJECTS", "OBJECT_DIRECTORY", "PREFIX"),
        *("QUARANTINE_PATH", "REPLACE_REF_BASE", "SHALLOW_FILE", "WORK_TREE"),
        *("GLOB_PATHSPECS", "ICASE_PATHSPECS", "LITERAL_PATHSPECS", "NOGLOB_PATHSPECS"),
    )
)
# How a word ends, in the singular, in the name of a variable that holds a key or a password: `OPENAI_API_KEY`, `PGPASSWORD`.
_SECRET = ("COOKIE", "CREDENTIAL", "KEY", "PASS", "PASSWD", "PASSWORD", "PHRASE", "PWD", "SECRET", "TOKEN")
_SECRET_WORDS = frozenset({"AUTH", "AUTHORIZATION", "BEARER", "CRED", "JWT", "OAUTH", "OTP", "PAT", "PSK", "PSW", "PW", "SK"})
_NO_SECRET_WORDS = frozenset({"BYPASS", "COMPASS", "HOTKEY", "MONKEY", "OVERPASS", "PARAPHRASE", "TRESPASS"})
_SHORTEST = 16  # characters of a value that services make so that it can be recognised
_NO_SECRETS = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK"})
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")  # maybe with a password
DOWNLOADS = ("HF_", "HUGGING_FACE_", "PIP_", "UV_", *_PROXIES)
"""How the names of variables begin that pip, uv and huggingface_hub read, also for their keys."""
_OWN = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))  # noqa: PTH118, PTH120 -- pathlib isn't loaded yet


def ignore_current_folder() -> None:
    """Remove the current folder from the module search path, and let other folders of PYTHONPATH only add modules."""
    if not sys.flags.safe_path and sys.path[0] in ("", here()):
        del sys.path[0]
    named = {_full(entry) for entry in _python_path()}
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) not in named] + _module_folders()


def own_variables() -> dict[str, str]:
    """Return the variables of a child: without keys, and without what git says to the hook that started us.

    That is its index, the commit's date and more. `GIT_EXEC_PATH` is there in each hook, and in an alias. Without it, the
    other variables are the user's. With it, names, e-mail addresses and the configuration still are.
    """
    theirs = ("GIT_", "GITHEAD_") if "GIT_EXEC_PATH" in os.environ else ()
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_REPOSITORY
        and (not name.startswith(theirs) or name.endswith(("_NAME", "_EMAIL", "_GLOBAL")))
        and not _is_secret(name, value)
    }


def keys(*starts: str) -> dict[str, str]:
    """Return the variables that hold keys or passwords, by their names; with `starts`, those whose names begin so."""
    return {name: value for name, value in os.environ.items() if _is_secret(name, value) and name.startswith(starts or "")}


def environment(**changes: str) -> dict[str, str]:
    """Return the variables of a child, in which nothing names the current folder; a Python in it does not search it either.

    It has no keys but those in `changes`.
    """
    paths = {name: _full(os.path.expanduser(os.environ[name])) for name in _PATHS if os.environ.get(name)}  # noqa: PTH111
    searched = {"PATH": search_path(), "PYTHONPATH": os.pathsep.join(_module_folders()), "PYTHONSAFEPATH": "1"}
    return {**own_variables(), **paths, **searched, **changes}


def here() -> str:
    """Return the current folder; "" if it was removed, and then the system refuses each relative path."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return ""


def search_path() -> str:
    """Return PATH without relative and empty entries, which mean the current folder or one below it."""
    return os.pathsep.join(filter(os.path.isabs, os.environ.get("PATH", os.defpath).split(os.pathsep)))


def find(name: str) -> str:
    """Return the path of a program; raise FileNotFoundError if `search_path` has none."""
    import shutil

    if path := shutil.which(name, path=search_path()):
        return path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _is_secret(name: str, value: str) -> bool:
    import re

    words = {word.rstrip("0123456789") for word in re.split("[-._]", name.upper())} - _NO_SECRET_WORDS
    is_named = any(form.endswith(_SECRET) or form in _SECRET_WORDS for word in words for form in (word, word.removesuffix("S")))
    # The values of git's settings may be headers with keys. A proxy may have a password without a scheme.
    is_named = (is_named and name not in _NO_SECRETS) or name.startswith("GIT_CONFIG_VALUE_")
    if is_named or ("PROXY" in name.upper() and "@" in value) or re.search(_HAS_USER, value):
        return True
    if len(value) < _SHORTEST:
        return False
    from dg_lsp.core import secrets

    return bool(secrets.spans(value.replace("://", " ")))  # who a URL names is judged above


# A URL with a password, which may contain a slash, or with a user who may be a token: servers of HTTP and NATS take these.
# Elsewhere, as for ssh and databases, a user without a password is a name, without which tests would not find their database.
# A connection string, a query and an option may name it: `password=`.
_HAS_USER = (
    r"(?i:https?|wss?|nats|tls)://[^\s/@]+@|://[^\s/@:]*:(?!\d+[/?#,])[^\s@]+@|:[^\s/@:]+@(?:tcp|unix)\("
    r"|(?<![\w.-])(?i:(?:--|x-amz-|x-goog-|\w+_)?"
    r"(?:password|passwd|passphrase|pwd|accountkey|api_?key|sig(?:nature)?|secret|token|authorization))=[^\s;&]"
)


def _module_folders() -> list[str]:
    """Return the absolute folders of PYTHONPATH but the current one, and in any case the one that dg-lsp was found in."""
    here_or_root = here() or FOLDER
    entries = [*_python_path(), here_or_root]
    return [_full(each) for each in entries if _full(each) == _OWN or (each.startswith(os.sep) and _full(each) != here_or_root)]


def _python_path() -> list[str]:
    value = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    return value.split(os.pathsep) if value else []


def _full(path: str) -> str:
    return os.path.realpath(os.path.join(here() or FOLDER, path))  # noqa: PTH118
