"""Test and measure dg-lsp on a GPU in ten minutes: python benchmarks/on_gpu.py [--parts tests,causal] [--model FOLDER]

The parts, what matters most first: `tests` for correctness; `causal`, passes of laptop models; `full`, all stages of the 26B
model with random weights; `fills`, the product with the model of --model or the embedded one; `same`, 200 fills there and on
the processor; `full8`, as `full` in 8 bits. Each has its own time limit, and its table is printed when it ends, so that a later
failure loses nothing. Needs no network. Ends with 1 if a part failed.

`--small --device cpu` runs the same parts on tiny models.

With `--pack DIR` it runs nothing: it makes a folder to carry to a machine that has a GPU, Python 3.12, torch and triton, but no
network. `sh DIR/run.sh` there installs the packages that DIR holds and runs the parts. `--model` is then a folder of weights,
which is cut into DIR/model-*/; `sh DIR/join.sh PIECES FOLDER` joins what was carried into one folder PIECES.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import pack  # noqa: E402

HELD_OUT = "fixtures/eval/heldout.jsonl.gz"
SHOWN = ("exact_match", "first_line_match", "parse_rate", "edit_similarity", "ms_p50", "ms_p95")
MOST_LINES = 120


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its command, and the seconds that it may take."""

    name: str
    command: tuple[str, ...]
    seconds: int


def parts(device: str, model: str, *, is_small: bool) -> list[Part]:
    """Return the parts in their order."""
    python = (sys.executable, "-u")
    size = "tiny" if is_small else "full"
    folder = ROOT / "tests" / "engine"
    tests = [str(path.relative_to(ROOT)) for path in (*sorted(folder.glob("test_gpu*.py")), folder / "test_fused.py")]
    # Without the settings of pyproject.toml, which ask for plugins that only the project's own environment has.
    pytest = (
        "-m", "pytest", "-c", os.devnull, "--rootdir", str(ROOT), "-p", "no:cacheprovider", "-q", "-W", "ignore",
        "--durations", "5",
    )  # fmt: skip
    causal = ("--device", device, *(["--small"] if is_small else []))
    limit = "3" if is_small else "60"
    fills = (
        "benchmarks/evaluate.py", HELD_OUT, "--device", device, "--limit", limit, "--json",
        *(["--model", model] if model else []),
    )  # fmt: skip
    same = ("benchmarks/candidates.py", HELD_OUT, model or "embedded", device, "3" if is_small else "200")
    return [
        Part("tests", (*python, *pytest, *tests), 90),
        Part("causal", (*python, "benchmarks/gpu_causal.py", *causal), 60),
        Part("full", (*python, "benchmarks/stages.py", size, device, "0", "wide"), 120),
        Part("fills", (*python, *fills), 60),
        Part("same", (*python, *same), 100),
        Part("full8", (*python, "benchmarks/stages.py", size, device, "0", "fp8"), 90),
    ]


def run(part: Part, folder: Path, seconds: float) -> bool:
    """Run a part for at most some seconds, print what it printed, and return whether it ended well."""
    out, err = folder / f"{part.name}.out", folder / f"{part.name}.err"
    print(f"\n== {part.name}: {' '.join(part.command[1:])}", flush=True)
    began, why = time.monotonic(), ""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
    }
    with out.open("w") as opened, err.open("w") as errors:
        process = subprocess.Popen(
            part.command,
            cwd=ROOT,
            stdout=opened,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        try:
            if process.wait(seconds):
                why = f"ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            why = f"was stopped after {seconds:.0f} s"
        with contextlib.suppress(ProcessLookupError):  # also what the part started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    print("\n".join(_table(part.name, out, err)))
    if why:
        print("\n".join(_last(err, 25)))
    print(f"== {part.name}: {why or 'done'} ({time.monotonic() - began:.0f} s)", flush=True)
    return not why


def _table(name: str, out: Path, err: Path) -> list[str]:
    """Return the lines of a part's output to print."""
    if name.startswith("full"):  # its lines are on stderr, and stdout has all of it as JSON
        figures = [line for line in _last(out, MOST_LINES) if ":" in line and not line.startswith("      ")]
        return [*_last(err, MOST_LINES), *figures]
    if name == "fills":
        with contextlib.suppress(ValueError, KeyError):
            return [f"{method}: {_figures(figures)}" for method, figures in json.loads(out.read_text())["methods"].items()]
    return _last(out, MOST_LINES)


def _figures(figures: dict[str, object]) -> str:
    """Return the figures of an evaluation in one line."""
    shown = {name: figures[name] for name in SHOWN if name in figures}
    return ", ".join(f"{name} {value['value'] if isinstance(value, dict) else value}" for name, value in shown.items())


def _last(path: Path, most: int) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-most:]


def _machine(device: str) -> str:
    """Return the date, the device and the versions that the figures belong to."""
    import torch

    name = device
    if device.startswith("cuda"):
        facts = torch.cuda.get_device_properties(0)
        name = f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, compute capability {facts.major}.{facts.minor}"
    versions = [f"torch {torch.__version__}"]
    for package in ("triton", "transformers"):
        found = subprocess.run(
            [sys.executable, "-c", f"import importlib.metadata as m; print(m.version({package!r}))"],
            capture_output=True,
            text=True,
            check=False,
        )
        versions.append(f"{package} {found.stdout.strip() or 'missing'}")
    return f"{date.today()}: {name}; {', '.join(versions)}; Python {sys.version.split()[0]}"  # noqa: DTZ011 -- the reader's day


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="", help="names of parts, separated by commas; all by default")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models")
    parser.add_argument("--model", default="", help="a folder or a name, as `evaluate.py --model` takes it")
    parser.add_argument("--minutes", type=float, default=9.5, help="the time for all parts")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "on-gpu", help="the folder for what the parts print")
    parser.add_argument("--pack", type=Path, metavar="DIR", help="make a folder to carry, and run nothing")
    parser.add_argument("--python", default="3.12", help="the version of Python on the machine with the GPU")
    given = parser.parse_args(arguments)
    if given.pack is not None:
        return pack.pack(given.pack, given.python, Path(given.model) if given.model else None)
    known = parts(given.device, given.model, is_small=given.small)
    names = given.parts.split(",") if given.parts else [part.name for part in known]
    if unknown := set(names) - {part.name for part in known}:
        parser.error(f"unknown part {min(unknown)}; choose from {', '.join(part.name for part in known)}")
    import torch

    if given.device.startswith("cuda") and not torch.cuda.is_available():  # the tests would be skipped, and count as ended well
        print("torch finds no GPU; nothing was run")
        return 1
    print(_machine(given.device), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    end, failed = time.monotonic() + given.minutes * 60, []
    for part in known:
        left = end - time.monotonic()
        if part.name in names and (left < 5 or not run(part, given.out, min(part.seconds, left))):
            failed.append(part.name)
    print(f"\nfailed: {', '.join(failed) or 'nothing'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
