"""Copy a project, so that a check does not run in the user's own files.

Files are copied, because a check could write to the original through hard links. No link leads out of a copy: a link into the
project points into the copy, and one to a file elsewhere becomes a file. Paths are compared after links are resolved. Whole
directories that git ignores are left out (build output, environments), except `node_modules` and directories that the check's
command names; so are links to directories elsewhere. The copies of a run are in one private directory, which no walk enters
(`wire.files.COPIES`). If the run is killed, the next run removes it.

Most test runners and compilers search the folders above for settings. So a copy gets the settings that are above the original,
and it is put where no others are above it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dg_lsp.batch import git
from dg_lsp.wire import files

MAX_BYTES = 4 << 30  # a larger project could fill the disk unnoticed
MAX_LINKED_BYTES = 64 << 20  # of one file elsewhere that a link in the project leads to, and of a left-out folder
_BLOCK = 1 << 12  # what a small file takes on most disks
LEFT_OUT = frozenset({".git", ".hg", ".jj", ".svn", "__pycache__"})
ENVIRONMENTS = frozenset({".venv", "venv", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache", "target"})
MAX_SETTING_BYTES = _N_AT_ONCE = 1 << 20
_LOCKED = fcntl.LOCK_EX | fcntl.LOCK_NB  # until it is closed; OSError if another process has locked it
_SETTINGS = re.compile(
    r"""
    \.?pytest\.(ini|toml) | pyproject\.toml | tox\.ini | setup\.cfg | (setup|conftest)\.py | \.?(ruff|uv)\.toml | \.?mypy\.ini
    | pyrightconfig\.json | (package|tsconfig(\.\w+)?|jsconfig|biome|deno|global)\.jsonc? | Directory\.\w+\.props
    | (eslint|jest|prettier|babel)\.config\.\w+ | \.(eslint|prettier|babel|swc|browserslist|shellcheck|luacheck)rc(\.\w+)?
    | go\.(mod|sum) | \.?(clippy|rustfmt)\.toml | rust-toolchain(\.toml)? | \.(golangci|rubocop)\.ya?ml
    | \.(editorconfig|nvmrc|tool-versions|(python|node|ruby|java)-version) | mise\.toml
    """,
    re.VERBOSE,
)
"""The files that a program in a project reads in the folders above it, and that mostly say something by themselves."""
# These name other projects, or hold packages or keys.
_OTHERS = re.compile(
    r"node_modules|\.npmrc|\.env|go\.work|Cargo\.toml|\.cargo|Gemfile|Rakefile|pom\.xml|\.mvn|settings\.gradle(\.kts)?"
    r"|pnpm-workspace\.yaml|\.yarnrc\.yml|\.pnp\.c?js|yarn\.lock"
)
# A path in a text, alone in the second group, and with what may belong to it in the first. Before it is a separator, an option
# (`-I`) or the `//` of a `file:` URL. `PROJECT` may have characters that end a path.
_HOME = r"~|\$\{?HOME\}?"
_PATH = (
    rf"""(?<![^\s:;,='"`(\[{{<>|&@!])(?:-+\w*)?/*(((?:PROJECT(?![\w.-])|(?:{_HOME})?/)"""
    r"""(?:\\.|[^\s:;,='"`()\[\]{}<>|&\\])*)[^:]{0,4096})"""
)
# What installers write with absolute paths: their environment's, and those of editable installs.
_INSTALLED = re.compile(
    r".*/(\.?bin/[^/]+|pyvenv\.cfg|direct_url\.json|[^/]+\.(pth|egg-link)|__editable__[^/]+\.py)", re.DOTALL
)
_MAX_INSTALLED_BYTES = 1 << 16  # others are programs
_PYTHON = re.compile(r"(?:python|pypy|graalpy)[\d.]*[dmt]*")


class ScratchError(Exception):
    """A copy can't be created; the message is a sentence for the user."""


@dataclass(slots=True)
class Copy:
    """One copy of a project: the original's folder, the copy's folder, and the state of its files."""

    original: Path
    root: Path
    private: Path  # the directory around the copy, for what a check writes besides
    _above: dict[Path, bytes]  # the copied settings above the copy, by their places
    too_large: set[Path] = field(default_factory=set)  # what a check uses in the original, as the copy lacks it
    _stamps: dict[Path, files.Stamp] = field(default_factory=dict)  # of copied files, for `restore`
    _clock: int = 0

    def path_of(self, path: Path) -> Path:
        """Return the path in the copy for a path in the original."""
        return self.root / path.relative_to(self.original)

    def around(self) -> list[Path]:
        """Return the folders above the copy with a `conftest.py`, each before the original's, whose modules it may import."""
        places = [place.parent for place in self._above if place.name == "conftest.py"]
        return [each for place in places for each in (place, self.original.parents[self.root.parents.index(place)])]

    def text_in_copy(self, text: str, *, is_searched: bool = False) -> str:
        """Return the text with the paths in the project, by any of its names, as paths in the copy, in folders that exist.

        What the copy lacks is copied. It stays if it is large, `is_searched`, or in a folder with programs (an environment).
        """
        names = (str(self.original), os.path.expanduser("~"))  # noqa: PTH111 -- Path raises without a home
        project, home = (re.sub(r"([^\w/])", r"\\\\?\\\1", name) for name in names)  # a shell may need a backslash there
        path_in_text = re.compile(_PATH.replace("PROJECT", project.replace(home, f"(?:{home}|{_HOME})", 1)))
        parts, at = list[str](), 0
        while match := path_in_text.search(text, at):
            longer, path = match.groups()
            around, around_longer = map(os.path.dirname, (path, longer))  # Path raises for long names
            if os.path.lexists(longer) or (around != around_longer and os.path.lexists(around_longer)):
                path = longer
            parts += [text[at : match.start(1)], self._in_copy(path, is_searched=is_searched)]
            at = match.start(1) + len(path)
        return "".join([*parts, text[at:]])

    def _in_copy(self, text: str, *, is_searched: bool) -> str:
        if (name := self._name(text)) is None:
            return text
        path, names = self.original / name, (name, *name.parents)
        lacking = [self.original / each for each in names if not (os.path.isfile(self.root / each) or _names(self.root / each))]  # noqa: PTH113
        stays = any(each in self.too_large or os.path.isdir(each / "bin") for each in lacking)  # noqa: PTH112
        stays = stays or (is_searched and os.path.lexists(path))
        if lacking and (stays or not self._takes(path, lacking[-1])):
            return text
        for folder in (path, path.parent):
            if os.path.isdir(folder) and folder.is_relative_to(self.original):  # noqa: PTH112 -- Path raises in a closed folder
                self.folder(self.path_of(folder))
        place = str(self.path_of(path)) + "/" * text.endswith("/")
        return re.sub(r"(?=[^\w/.-])", r"\\", place) if "\\" in text else place

    def _takes(self, path: Path, left_out: Path) -> bool:
        """Copy the left-out folder of a path, or its file alone if checks make the folder; return False if it is too large."""
        is_made, paths, n_left = left_out.name in ENVIRONMENTS | LEFT_OUT, list[Path](), MAX_LINKED_BYTES
        for each in filter(os.path.lexists, [path] if is_made else _walked(left_out, self.original, "")):
            paths.append(each)
            if (n_left := n_left - max(_BLOCK, each.lstat().st_size)) < 0:
                self.too_large.add(path if is_made else left_out)
                return False
        for each in set(paths) - self._stamps.keys():  # a check may be about to run with a fill in one
            with contextlib.suppress(OSError):  # a pipe, or a link to a folder
                self.put(each, files.read_regular(_target(each), MAX_LINKED_BYTES))
        return True

    def _name(self, path: str) -> Path | None:
        """Return a path in the project relative to it, whatever the project is called in it; None for another path."""
        path = re.sub(r"\\(\W)", r"\1", path)
        path = os.path.expanduser(re.sub(f"^(?:{_HOME})", "~", path))  # noqa: PTH111 -- Path raises without a home
        for place in map(Path, (os.path.realpath(path), os.path.normpath(path))):
            for folder in (place, *place.parents):
                with contextlib.suppress(OSError):
                    if folder.samefile(self.original):
                        return place.relative_to(folder)
        return None

    def content(self, path: Path) -> bytes:
        """Return what the copy of an original file holds: a copied environment is of the copy."""
        data = _target(path).read_bytes()
        if b"\0" in data or not _names_places(path):
            return data
        return os.fsencode("".join(map(self.text_in_copy, os.fsdecode(data).splitlines(keepends=True))))

    def folder(self, place: Path) -> Path:
        """Return a folder of the copy, which may be lacking; what a check put in its place or above it is removed."""
        mounts = _mounts()
        for folder in reversed((place, *place.parents[: len(place.relative_to(self.private).parts)])):
            if folder in mounts:
                raise OSError(errno.EBUSY, "a check has mounted something there", str(folder))
            if folder.is_symlink() or not folder.is_dir():
                clear(folder)
                folder.mkdir()
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IRWXU)
        return place

    def put(self, path: Path, data: bytes) -> None:
        """Write this content to the copy of an original file."""
        place = self.path_of(path)
        self._write(place, data, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644)
        # Python finds compiled files by time in whole seconds and size, so each version of a file gets another time.
        self._clock = max(self._clock + 1, int(time.time()))
        os.utime(place, (self._clock, self._clock))
        self._stamps[path] = files.stamp(place.lstat())

    def _write(self, place: Path, data: bytes, mode: int) -> None:
        self.folder(place.parent)
        clear(place)
        files.replace(place, data, finish=lambda new: new.chmod(mode | stat.S_IWUSR))

    def restore(self) -> None:
        """Undo a check's changes to the copied files. Files that it added stay, because caches make the next check faster."""
        for place, data in self._above.items():
            with contextlib.suppress(OSError):
                self._write(place, data, 0o644)
        for path, stamp in list(self._stamps.items()):
            place = self.path_of(path)
            with contextlib.suppress(OSError):
                if place.exists() and files.stamp(place.lstat()) == stamp:
                    continue
                self.put(path, self.content(path))


def place_for(project: Path) -> tuple[Path, Path | None]:
    """Return the folder for a run's copies, and settings above it that are not above the project, or None.

    It is the first of `_places` with no such settings, else the first one.
    """
    strange = {place: next(_strange_settings(place, project), None) for place in _places()}
    return next(((place, None) for place, setting in strange.items() if setting is None), next(iter(strange.items())))


def _places() -> list[Path]:
    named = [Path(tempfile.gettempdir()).resolve(), Path("/var/tmp").resolve()]  # noqa: S108 -- a private folder is made in it
    return [place for place in named if place == named[0] or os.access(place, os.W_OK | os.X_OK)]


def _strange_settings(place: Path, project: Path) -> Iterator[Path]:
    folders = [folder for folder in (place, *place.parents) if folder != project and folder not in project.parents]
    paths = (folder / name for folder in folders for name in _names(folder))
    return (path for path in paths if _SETTINGS.fullmatch(path.name) or _OTHERS.fullmatch(path.name))


def _is_of_another_user(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.lstat().st_uid not in (0, os.getuid())
    return False


@contextlib.contextmanager
def directory(place: Path | None = None) -> Iterator[Path]:
    """Yield a private directory that is removed afterwards, or by the next run if this process is killed.

    It is in `place`, else in the first of `_places`.
    """
    for folder in (folder for each in _places() for folder in each.glob(f"{files.COPIES}*")):
        with contextlib.suppress(OSError):
            info = folder.lstat()
            if info.st_uid != os.getuid() or not stat.S_ISDIR(info.st_mode):
                continue
            with os.fdopen(os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW), "rb") as lock:
                fcntl.flock(lock, _LOCKED)
                # A project may have a folder of this name, but can't know which inodes it gets.
                if lock.read(100) == _identity(folder):
                    _remove(folder)
    temporary = Path(tempfile.mkdtemp(prefix=files.NEW_COPIES, dir=place or _places()[0]))
    handle = os.open(temporary / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, _LOCKED)
        os.write(handle, _identity(temporary))
        # Renamed after it is locked, so that another run never treats it as left over.
        folder = temporary.with_name(files.COPIES + temporary.name.removeprefix(files.NEW_COPIES))
        temporary = temporary.rename(folder)
        yield folder
    finally:
        _remove(temporary)
        os.close(handle)


def _remove(folder: Path) -> None:
    """Remove the copies, then their folder: the next run knows what is left by its lock."""
    for path in (folder / name for name in _names(folder) if name != "lock"):
        clear(path)
    if {*_names(folder)} <= {"lock"}:
        clear(folder)


def copy(original: Path, into: Path, command: str = "") -> tuple[Copy, list[str]]:
    """Copy the project into a directory; return the copy, and a line for each file that could not be copied.

    Raises ScratchError if the project is too large, the disk is full, or another user's settings are above the directory.
    """
    original = original.resolve()
    if foreign := next(filter(_is_of_another_user, _strange_settings(into.parent, original)), None):
        raise ScratchError(f"{foreign} of another user is above the copies; set TMPDIR to a folder that only you can write to")
    above = _settings_above(original)
    top = min((path.parent for path in above), default=original)
    # One folder deeper than what a check writes besides, whose names a project may have.
    place_of_top = into / "copy" / (top.name or "project")
    root = place_of_top / original.relative_to(top)
    root.mkdir(parents=True)
    for folder in (original, *original.parents[: len(original.relative_to(top).parts)]):
        if (folder / ".git").exists():  # where many programs stop to look for settings
            (place_of_top / folder.relative_to(top) / ".git").mkdir()
    settings = {place_of_top / path.relative_to(top): data for path, data in above.items()}
    for place, data in settings.items():
        place.write_bytes(data)
    made, problems, n_left = Copy(original, root, into, settings), [], MAX_BYTES
    for path in contents(original, command):
        place = root / path.relative_to(original)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            n_left -= _copy_one(path, place, made, command, n_left)
        except (FileNotFoundError, shutil.SpecialFileError):
            continue  # deleted, but still in git's index; or a pipe, a socket or a device
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ScratchError(f"no space left for a copy of {original} in {into}; free some, or set TMPDIR") from error
            problems.append(f"{path}: {(error.strerror or str(error)).lower()}")
    for path in filter(_names_places, list(made._stamps)):  # now that all that they name is there
        made.put(path, made.content(path))
    return made, problems


def _names_places(path: Path) -> bool:
    return _INSTALLED.fullmatch(str(path)) is not None and path.stat().st_size <= _MAX_INSTALLED_BYTES


def _settings_above(original: Path) -> dict[Path, bytes]:
    """Return the settings above the project with their contents."""
    settings = {}
    for path in (folder / name for folder in original.parents for name in _names(folder) if _SETTINGS.fullmatch(name)):
        with contextlib.suppress(OSError):
            settings[path] = files.read_regular(_target(path), MAX_SETTING_BYTES)
    return settings


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))  # noqa: PTH208 -- names alone
    return []


def contents(root: Path, command: str = "") -> Iterator[Path]:
    """Yield the files and links to copy. A link to a directory outside of the root is one, unless the command names it."""
    repositories = [root]
    while repositories:
        repository = repositories.pop()
        tracked = _listed(repository, "--cached", "--others", "--exclude-standard")
        if tracked is None:
            yield from _walked(repository, root, command)
            continue
        ignored = _listed(repository, "--others", "--ignored", "--exclude-standard", "--directory") or []
        for path in dict.fromkeys([*tracked, *ignored]):
            is_folder = os.path.isdir(path)  # noqa: PTH112 -- that of Path raises in a closed folder
            if any(map(files.is_of_copies, path.relative_to(repository).parts[: None if is_folder else -1])):
                continue
            if not is_folder or (path.is_symlink() and not _is_followed(path, root, command)):
                yield path
            elif path.is_symlink() or (path in ignored and (path.name == "node_modules" or _is_named(path, command))):
                yield from _walked(path, root, command)
            elif path not in ignored:
                repositories.append(path)  # a submodule, or a repository that git does not look into


def _listed(root: Path, *options: str) -> list[Path] | None:
    """Return what git lists below the folder; None if git can't list it."""
    if not (root / ".git").exists():
        return None
    try:
        listed = git.read(root, "ls-files", "-z", *options)
    except git.GitError:
        return None
    return [root / os.fsdecode(name).rstrip("/") for name in listed.split(b"\0") if name]


def _walked(start: Path, root: Path, command: str) -> Iterator[Path]:
    problems: list[OSError] = []
    left_out = {name for name in ENVIRONMENTS if not _is_named(Path(name), command)} | LEFT_OUT
    starts, followed = [start], set[str]()
    while starts:
        for here, folders, names in os.walk(starts.pop(), onerror=problems.append):
            own = [Path(here, name) for name in folders if name not in left_out and not files.is_of_copies(name)]
            links = [path for path in own if path.is_symlink()]
            folders[:] = [path.name for path in own if path not in links]
            for link in links:
                if not _is_followed(link, root, command):
                    yield link
                elif (target := os.path.realpath(link)) not in followed:
                    followed.add(target)
                    starts.append(link)
            yield from (Path(here, name) for name in names if name not in LEFT_OUT)  # a worktree's `.git` is a file
    yield from (Path(problem.filename) for problem in problems)


def _is_named(path: Path, command: str) -> bool:
    """Return whether the check's command has this name, as a part of a path or alone."""
    return re.search(rf"(?<![\w.-]){re.escape(path.name)}(?![\w.-])", command) is not None


def _is_followed(link: Path, root: Path, command: str) -> bool:
    """Return whether a check needs a copy of what is behind a link to a directory outside of the root, and not around it."""
    with contextlib.suppress(OSError):
        is_wanted = link.name == "node_modules" or _is_named(link, command)
        return is_wanted and _inside(link, root) is None and not root.is_relative_to(_target(link))
    return False


def _target(path: Path) -> Path:
    """Return the file that a path leads to; raise OSError for one that the kernel makes: it may hold keys, or never end."""
    target = Path(os.path.realpath(path))  # `resolve` raises for a loop
    if any(map(target.is_relative_to, ("/proc", "/sys"))):
        raise OSError(errno.EXDEV, "it is a link to a file of the kernel")
    return target


def _inside(link: Path, root: Path) -> Path | None:
    """Return the path below the root to what a link leads to, also through a followed link; None if there is none."""
    target = _target(link)
    folders = [folder for folder in link.parents if folder == root or (root in folder.parents and folder.is_symlink())]
    return next((each / target.relative_to(_target(each)) for each in folders if target.is_relative_to(_target(each))), None)


def _copy_one(path: Path, place: Path, made: Copy, command: str, n_left: int) -> int:
    """Copy what is at a path, and return its size; raise ScratchError if it is larger than what is left."""
    target = path
    if path.is_symlink():
        target, inside = _target(path), _inside(path, made.original)
        # A venv's Python finds its libraries by its own place, and no check writes to it.
        is_python = bool(_PYTHON.fullmatch(path.name) and _PYTHON.fullmatch(target.name)) and target.is_file()
        is_python = is_python and (path.parent.parent / "pyvenv.cfg").is_file()
        if inside or is_python:
            place.symlink_to(made.path_of(inside) if inside else target)
            return 0
        if stat.S_ISDIR((info := target.stat()).st_mode) or (info.st_size > MAX_LINKED_BYTES and not _is_named(path, command)):
            what = "a directory" if stat.S_ISDIR(info.st_mode) else "a large file"
            advice = "; name it in the command to have it copied" * (target not in made.original.parents)
            raise OSError(errno.EXDEV, f"it is a link to {what} elsewhere{advice}")
    info = target.stat()
    if stat.S_ISDIR(info.st_mode):
        list(path.iterdir())  # a folder that can't be read raises the reason
    if not stat.S_ISREG(info.st_mode):
        raise shutil.SpecialFileError(path)
    if info.st_size > n_left:
        raise ScratchError(
            f"{made.original} has more than {MAX_BYTES >> 30} GiB to copy for --check; "
            "add its data to .gitignore, or run without --check"
        )
    place.unlink(missing_ok=True)  # it may be a link, by the name of another file without its case
    with target.open("rb") as source, place.open("xb") as new:
        for at in range(0, info.st_size, _N_AT_ONCE):  # not to its end: it may grow as fast as it is read
            new.write(source.read(min(_N_AT_ONCE, info.st_size - at)))
    shutil.copystat(target, place)
    made._stamps[path] = files.stamp(place.lstat())
    return info.st_size


def _identity(folder: Path) -> bytes:
    """Return the inodes of a folder and its lock. After a restart the device may have another number."""
    return b"%d:%d" % (folder.stat().st_ino, (folder / "lock").lstat().st_ino)


def clear(place: Path) -> None:
    """Remove what is there, but nothing that is mounted in it: a check may have left a link or a folder in place of a file."""
    if place.is_symlink() or not place.is_dir():
        place.unlink(missing_ok=True)
        return
    mounts = _mounts()
    folders = [place] if place not in mounts else []
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.chmod(stat.S_IRWXU)  # a check may have made a directory without permission to enter
        for path in map(folder.joinpath, _names(folder)):
            with contextlib.suppress(OSError):
                if path.is_symlink() or not path.is_dir():
                    path.unlink()
                elif path not in mounts:
                    folders.append(path)
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _mounts() -> set[Path]:
    """Return where file systems and folders are mounted. A folder mounted elsewhere on its device shows nowhere else."""
    with contextlib.suppress(OSError):
        escaped = (line.split()[4] for line in Path("/proc/self/mountinfo").read_bytes().splitlines())
        return {Path(os.fsdecode(re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), name))) for name in escaped}
    return set()
