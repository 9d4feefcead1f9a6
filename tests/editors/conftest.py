"""Tests in real editors run only when they are asked for by name (`make test-editors`): they need editors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors import machine

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave these tests out where they are only met on the way."""
    base = config.invocation_params.dir
    asked = [(base / str(name).split("::")[0]).resolve() for name in config.args]
    return None if any(path == HERE or HERE in path.parents for path in asked) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.editors)


@pytest.fixture(scope="session")
def environment() -> Iterator[Mapping[str, str]]:
    """Yield an environment in which everything of dg-lsp's is new, and one engine serves all editors."""
    # Not below pytest's own folder, whose name is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="dg-") as folder:
        made = machine.environment(Path(folder))
        # Started before any editor, so that no test pays for it.
        machine.engine(made, "start")
        yield made
        machine.engine(made, "stop", "--now", "--all")
