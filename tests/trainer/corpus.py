"""Collect source code whose licences allow training, and record where each source came from.

Packages held out for evaluation are set aside by name, before anything else looks at a file. This module knows
installed distributions, the standard library, and folders of source code in any language. It knows nothing of tokens.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import json
import random
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from email.message import Message
from pathlib import Path
from typing import cast

from dg_lsp.core import languages
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.train.canvas.holes import HELD_OUT, LISTING, clean

# Only whole words match, because "Limited" and "IMPLIED" contain licence names. A version may follow directly, as in GPLv3.
ALLOWED = re.compile(
    r"(?<![a-z])(MIT|BSD|Apache|PSFL?|Python Software|ISCL?|Unlicense|Public Domain|HPND|zlib|CNRI)(?![a-z])", re.IGNORECASE
)
REFUSED = re.compile(
    r"(?<![a-z])([AL]?GPL|GNU|Affero|MPL|Mozilla|Proprietary|(non-?)?Commercial)(?![a-uw-z]|v[a-z])", re.IGNORECASE
)

LEFT_OUT = re.compile(
    r"(^|/)(tests?|testing|_?vendor(ed)?|_click|idlelib|lib2to3|turtledemo|pydoc_data|locale|antlr4|test_[^/]*|data|fixtures)/"
    r"|(^|/)test_|_test\.py$|conftest\.py$|_builtins\.py$|_pb2\.py$|unicode|(^|/)_?(mapping|entities|tables?)\.py$"
)
PACKAGE_CHARS = 6_000_000
STDLIB_CHARS = 16_000_000
HELD_FILE_SHARE = 60  # one in this many files of the training packages is used to measure the loss
TEST_SHARE = 3  # one in this many test files is used, because tests are more repetitive than other code
TEST = re.compile(
    r"(^|/)(tests?|testing|spec|__tests__)/|(^|/)test_[^/]*$|[._-](test|spec)\.[a-z]+$|conftest\.py$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Source:
    """One package that contributed texts, with its stated licence."""

    name: str
    version: str
    licence: str
    files: int
    chars: int


@dataclass(slots=True)
class Corpus:
    """The texts by use: `train`, `valid` (other files of the same packages), `held` (packages that are never trained on)."""

    train: list[tuple[str, str]] = field(default_factory=list)
    valid: list[tuple[str, str]] = field(default_factory=list)
    held: list[tuple[str, str]] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def collect(site_packages: Iterable[Path], *, stdlib: bool = True, seed: int = 1) -> Corpus:
    """Return the texts of every permissively licensed package in the given folders, deduplicated by content.

    A file that occurs both in a held-out package and in another one is held out.
    """
    corpus, hashes = Corpus(), set[str]()
    groups = list(_stdlib()) if stdlib else []
    for folder in site_packages:
        groups.extend(_distributions(folder, corpus.skipped))
    by_name = {group[0].lower(): group for group in reversed(groups)}  # a package found twice counts once
    for name, version, licence, root, files in (
        by_name[key] for key in sorted(by_name, key=lambda key: (key not in HELD_OUT, key))
    ):
        _take(corpus, hashes, (name, version, licence), root, files, seed)
    random.Random(seed + 1).shuffle(corpus.train)
    return corpus


def from_folder(folder: Path) -> Corpus:
    """Return the texts of every source file in `folder`, deduplicated by content, with a third of the test files.

    Each top-level folder is one source. With a `SOURCES.csv`, each `LANGUAGE/OWNER__NAME` is one, with its commit and
    licence from that file. Without it, the caller is responsible for the licences. Raises EvalError if there is nothing
    to read.
    """
    if not folder.is_dir():
        raise EvalError(f"{folder} is not a folder")
    licences = _listing(folder / LISTING)
    corpus, digests = Corpus(), set[str]()
    depth = 2 if licences else 1
    paths: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder).as_posix()
        parts = relative.split("/")
        if len(parts) > depth and languages.for_path(relative) and path.is_file() and not path.is_symlink():
            paths.setdefault("/".join(parts[:depth]), []).append(relative)
    if not paths:
        raise EvalError(f"{folder} has no source file in a language that dg-lsp knows")
    for name, files in paths.items():
        project = name.rpartition("__")[2].lower()
        version, licence = licences.get(name, ("", "as the folder's owner states"))
        texts = [(file, text) for file in files if (text := _read(folder / file)) is not None]
        texts = [(file, text) for file, text in texts if not TEST.search(file) or _is_drawn(text)]
        _add(corpus, digests, Source(name, version, licence, 0, 0), texts, held=project in HELD_OUT)
    random.Random(1).shuffle(corpus.train)
    return corpus


def save(corpus: Corpus, folder: Path) -> None:
    """Write `train.jsonl`, `valid.jsonl` and `held.jsonl`, with [path, text] on each line, and `sources.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    for use in ("train", "valid", "held"):
        with (folder / f"{use}.jsonl").open("w", encoding="utf-8") as out:
            out.writelines(json.dumps([path, text]) + "\n" for path, text in getattr(corpus, use))
    report = {"sources": [asdict(source) for source in corpus.sources], "skipped": corpus.skipped, "held_out": sorted(HELD_OUT)}
    (folder / "sources.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def load_corpus(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (path, text) for each line of a file that `save` wrote."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            name, text = json.loads(line)
            yield name, text


Group = tuple[str, str, str, Path, list[str]]  # name, version, licence, root, and its files


def _stdlib() -> Iterator[Group]:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*.py") if "site-packages" not in path.parts)
    yield "python-stdlib", sysconfig.get_python_version(), "PSF-2.0", root, files


def _distributions(folder: Path, skipped: list[tuple[str, str]]) -> Iterator[Group]:
    for dist in importlib.metadata.distributions(path=[str(folder)]):
        name, meta = dist.metadata["Name"], cast("Message", dist.metadata)
        licence_lines = [meta.get("License-Expression") or "", (meta.get("License") or "")[:200]]
        licence_lines += [item for item in meta.get_all("Classifier") or [] if item.startswith("License")]
        licence = "; ".join(filter(None, licence_lines))
        if REFUSED.search(licence) or not ALLOWED.search(licence):
            skipped.append((name, licence[:80].replace("\n", " ")))
            continue
        files = sorted(str(item) for item in dist.files or [] if str(item).endswith(".py") and not str(item).startswith(".."))
        short = (
            meta.get("License-Expression")
            or next((c.split(" :: ")[-1] for c in licence_lines if " :: " in c), licence_lines[1])
        )[:60]
        yield name, dist.version, short.replace("\n", " "), folder, files


def _take(corpus: Corpus, digests: set[str], package: tuple[str, str, str], root: Path, files: list[str], seed: int) -> None:
    name, version, licence = package
    limit = STDLIB_CHARS if name == "python-stdlib" else PACKAGE_CHARS
    files = list(files)
    random.Random(seed).shuffle(files)
    texts = ((file, text) for file in files if not LEFT_OUT.search(file) and (text := _read(root / file)) is not None)
    _add(corpus, digests, Source(name, version, licence, 0, 0), texts, held=name.lower() in HELD_OUT, limit=limit)


def _add(
    corpus: Corpus,
    digests: set[str],
    source: Source,
    texts: Iterable[tuple[str, str]],
    *,
    held: bool,
    limit: int = sys.maxsize,
) -> None:
    """Add the new texts of one source to the corpus by use, up to `limit` characters, and record the source."""
    n_files = n_chars = 0
    for file, text in texts:
        if n_chars > limit:
            break
        digest = _digest(text)
        if digest in digests:
            continue
        digests.add(digest)
        if held:
            corpus.held.append((file, text))
        elif int(digest[:8], 16) % HELD_FILE_SHARE == 0:
            corpus.valid.append((file, text))
        else:
            corpus.train.append((file, text))
        n_files, n_chars = n_files + 1, n_chars + len(text)
    if n_files and not held:
        corpus.sources.append(replace(source, files=n_files, chars=n_chars))


def _read(path: Path) -> str | None:
    try:
        return clean(path.read_text(encoding="utf-8"), python=path.suffix in {".py", ".pyi"})
    except (OSError, UnicodeDecodeError):
        return None


def _is_drawn(text: str) -> bool:
    return int(_digest(text)[8:16], 16) % TEST_SHARE == 0


def _digest(text: str) -> str:
    return hashlib.sha256(re.sub(r"\s+", "", text).encode()).hexdigest()


def _listing(file: Path) -> dict[str, tuple[str, str]]:
    """Return the commit and licence of each `LANGUAGE/OWNER__NAME` in the list; empty if there is no list."""
    if not file.exists():
        return {}
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            return {
                f"{row['language']}/{row['repository'].replace('/', '__')}": (row["commit"], row["licence"])
                for row in csv.DictReader(lines)
            }
    except (KeyError, UnicodeDecodeError, csv.Error) as error:
        raise EvalError(f"{file} needs the columns repository, commit, licence and language: {error}") from error
