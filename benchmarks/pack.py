"""Make a folder from which `on_gpu.py` runs on a machine without a network: the project, and wheels of missing packages."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
MOST_BYTES = 62 << 20
PIECE = 60 << 20
# What comes with torch there, and pip.
PRESENT = frozenset(
    {
        "torch", "triton", "numpy", "pip", "setuptools", "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx",
        "sympy", "hf-xet",
    }
)  # fmt: skip
TESTS = ("pytest", "pytest-timeout", "hypothesis", "packaging", "openai")
TAGS = ("2_28", "2_27", "2_17", "2_26", "2_24", "2_31", "2_34", "2_35")
# Adapters, and lists of what weights were trained on: no part reads them.
LEFT_OUT = ("fim.safetensors", "sources.csv")
FOLDERS = ("dg_lsp/", "tests/engine/", "benchmarks/", "tests/pages/", "fixtures/eval/")

RUN = """#!/bin/sh
# Install the packages of this folder beside it, and run the parts of on_gpu.py with the given arguments.
set -e
here=$(cd "$(dirname "$0")" && pwd)
site=${DG_LSP_SITE:-${TMPDIR:-/tmp}/dg-lsp-site}
: "${PYTHON:=python3}"
"$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$here"/wheels/*.whl
export PYTHONPATH="$here/project:$site" HF_HUB_OFFLINE=1
cd "$here/project"
exec "$PYTHON" benchmarks/on_gpu.py "$@"
"""
JOIN = """#!/bin/sh
# Join the pieces of a model, in the folder $1, into the folder $2.
set -e
umask 077
mkdir -p "$2"
(cd "$1" && sha256sum -c --quiet model.sha256)
cat "$1"/model.tar.* | tar -x --no-same-owner -C "$2"
"""


def pack(folder: Path, python: str, model: Path | None) -> int:
    """Make the folder, and folders of a model's pieces beside it in `model-*`; return 1 if it is too large to be carried."""
    folder.mkdir(parents=True, exist_ok=True)
    _project(folder / "project")
    _wheels(folder / "wheels", python)
    for name, text in (("run.sh", RUN), ("join.sh", JOIN)):
        (folder / name).write_text(text)
    n_bytes = sum(
        path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.parent.name.startswith("model-")
    )
    print(f"{folder}: {n_bytes / 2**20:.1f} MiB without models")
    if model is not None:
        print(f"{model}: {_cut(model, folder)} pieces in {folder}/model-*")
    return int(n_bytes > MOST_BYTES)


def _project(folder: Path) -> None:
    """Copy the files of the working tree that the parts read."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        path = ROOT / name
        is_used = name.startswith(FOLDERS) or name == "pyproject.toml" or (name.startswith("tests/") and name.count("/") == 1)
        if is_used and not name.endswith(LEFT_OUT) and path.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())


def needed() -> dict[str, str]:
    """Return the version of each package that the project's engine and the tests need here, without those that are there."""
    versions: dict[str, str] = {}
    waiting = [*_of("dg-lsp", "engine"), *(Requirement(name) for name in TESTS)]
    while waiting:
        one = waiting.pop()
        name = one.name.lower().replace("_", "-")
        if name not in PRESENT and name not in versions:
            versions[name] = metadata.version(name)
            waiting += _of(name, *one.extras)
    return versions


def _of(name: str, *extras: str) -> list[Requirement]:
    """Return the requirements of an installed package, with those of some extras."""
    every = [Requirement(line) for line in metadata.requires(name) or []]
    environments = [{"extra": extra, "python_version": "3.12"} for extra in ("", *extras)]
    return [one for one in every if one.marker is None or any(one.marker.evaluate(each) for each in environments)]


def _wheels(folder: Path, python: str) -> None:
    """Download the packages' wheels for a version of Python on Linux."""
    folder.mkdir(exist_ok=True)
    versions = needed()
    there = {path.name.split("-")[0].lower().replace("_", "-"): path for path in folder.glob("*.whl")}
    for name, path in there.items():
        if path.name.split("-")[1] == versions.get(name) and ("-cp" not in path.name or _is_for(path, python)):
            del versions[name]
        else:
            path.unlink()
    if not versions:
        return
    tags = [f"manylinux_{tag}_x86_64" for tag in TAGS] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
    platforms = [item for tag in tags for item in ("--platform", tag)]
    wanted = [f"{name}=={version}" for name, version in sorted(versions.items())]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary=:all:", "--python-version", python,
         "--implementation", "cp", *platforms, "-d", str(folder), *wanted],
        check=True,
    )  # fmt: skip


def _is_for(wheel: Path, python: str) -> bool:
    """Return whether a wheel with compiled code runs on a version of Python."""
    return f"-cp{python.replace('.', '')}-" in wheel.name or "-abi3-" in wheel.name


def _cut(model: Path, folder: Path) -> int:
    """Write a model's folder as pieces, each in a folder of its own with the checksums of all; return their number."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        with os.fdopen(writer, "wb") as opened, tarfile.open(fileobj=opened, mode="w|") as archive:
            archive.add(model, ".")
        os._exit(0)
    os.close(writer)
    sums, places = list[str](), list[Path]()
    with os.fdopen(reader, "rb") as whole:
        while piece := whole.read(PIECE):
            place = folder / f"model-{len(places):02}"
            place.mkdir(exist_ok=True)
            (place / f"model.tar.{len(places):02}").write_bytes(piece)
            sums.append(f"{hashlib.sha256(piece).hexdigest()}  model.tar.{len(places):02}\n")
            places.append(place)
    os.waitpid(child, 0)
    for place in places:
        (place / "model.sha256").write_text("".join(sums))
    return len(places)
