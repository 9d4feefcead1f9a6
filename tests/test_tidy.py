"""What holds for every file: modules say what they know, and nothing names a registry's host or a path of one machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Written in parts, so that this file does not name what it forbids. PyTorch's index of CPU builds may be named: without it a
# user without a GPU gets gigabytes of CUDA.
HOSTS = (
    "pypi" + ".org",
    "files.python" + "hosted.org",
    "registry.npm" + "js.org",
    "registry.yarn" + "pkg.com",
    "proxy.gol" + "ang.org",
    "static.crates" + ".io",
)
MACHINE_PATHS = re.compile(
    r"(?<![\w.])/(?:" + "|".join(("work", "tmp/venv", "root", "opt/(?:wheels|pypi)", "home/\\w+")) + r")/"
)
# Where a path of this kind is an example of one: line by line, with the reason beside it.
ALLOWED = re.compile(r"#.*\bpath of no machine\b")
BINARY = {".safetensors", ".png", ".gif", ".svg", ".webp", ".ico", ".vsix", ".bin"}


def tracked() -> list[Path]:
    """Return the files of the repository, or of the folder where it is none."""
    try:
        process = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no git checkout")
    return [path for name in process.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def texts() -> list[tuple[str, str]]:
    return [
        (path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8", errors="replace"))
        for path in tracked()
        if path.suffix not in BINARY
    ]


def test_every_module_says_what_it_knows() -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for path in tracked()
        if path.suffix == ".py"
        and path.is_relative_to(ROOT / "dg_lsp")
        and not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert silent == []


SHAPE = re.compile(r"\[[^\[\]`]*[A-Z][^\[\]`]*\]|\bany shape\b")
Functions = dict[tuple[str, str], ast.FunctionDef]


def engine_functions() -> tuple[Functions, dict[str, list[str]]]:
    """Return the public functions of the engine by class ("" for none) and name, and the bases of each class."""
    functions, bases = Functions(), dict[str, list[str]]()
    for path in sorted((ROOT / "dg_lsp" / "engine").rglob("*.py")):
        if "import Tensor" not in (text := path.read_text("utf-8")) and "torch.Tensor" not in text:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(base) for base in node.bases]
            for each in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
                    owner = node.name if isinstance(node, ast.ClassDef) else ""
                    functions[owner or path.relative_to(ROOT).as_posix(), each.name] = each
    return functions, bases


def test_public_functions_with_tensors_state_shapes() -> None:
    """In their docstring, or in that of a base class or a protocol."""
    functions, bases = engine_functions()
    protocols = [name for name, its_bases in bases.items() if "Protocol" in its_bases]
    with_tensors, without_shapes = 0, []
    for (owner, name), function in functions.items():
        annotations = [each.annotation for each in (*function.args.args, *function.args.kwonlyargs)]
        if owner.startswith("_") or not any(
            re.search(r"\bTensor\b", ast.unparse(each)) for each in (*annotations, function.returns) if each
        ):
            continue
        with_tensors += 1
        owners = [owner, *bases.get(owner, ()), *(protocols if owner in bases else ())]
        said = [ast.get_docstring(functions[each, name]) or "" for each in owners if (each, name) in functions]
        if not any(map(SHAPE.search, said)):
            without_shapes.append(f"{owner}.{name}")
    assert with_tensors > 50
    assert without_shapes == []


def test_no_file_has_a_conflict_of_a_merge() -> None:
    assert [name for name, text in texts() if re.search(r"^(<<<<<<< |>>>>>>> )", text, re.MULTILINE)] == []


def test_no_file_names_a_registry() -> None:
    assert [(name, host) for name, text in texts() for host in HOSTS if host in text] == []


def test_no_file_names_a_path_of_one_machine() -> None:
    offending_lines = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in texts()
        for number, line in enumerate(text.split("\n"), 1)
        if MACHINE_PATHS.search(line) and not ALLOWED.search(line)
    ]
    assert offending_lines == []


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["engine"]]
    names = {re.split(r"[^\w.-]", each)[0].lower().replace("_", "-") for each in required}
    for page in (ROOT / "constraints.txt", ROOT / "editors" / "vscode" / "server" / "requirements.txt"):
        if page.exists():
            pinned = re.findall(r"^([\w.-]+)==", page.read_text("utf-8"), re.MULTILINE)
            assert names - {name.lower().replace("_", "-") for name in pinned} == set(), page.name


def test_scripts_can_be_run() -> None:
    for path in tracked():
        if path.read_bytes()[:2] == b"#!" and path.suffix in ("", ".sh"):
            assert path.stat().st_mode & 0o100, f"{path} starts with #! and can't be run"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["everyday", "positions"])
def test_a_benchmark_with_arguments_explains_them(name: str) -> None:
    script = ROOT / "benchmarks" / f"{name}.py"
    process = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith(f"usage: {name}.py [-h]")
