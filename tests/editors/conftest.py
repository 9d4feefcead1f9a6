"""Tests in real editors run only when they are asked for by name (`make test-editors`): they need editors."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors import machine

HERE = Path(__file__).parent
# How to look at the editor of a test: returns what it shows, as text.
SIGHT = pytest.StashKey[Callable[[], str]]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave these tests out where they are only met on the way."""
    base = config.invocation_params.dir
    named_paths = [(base / str(name).split("::")[0]).resolve() for name in config.args]
    return None if any(path == HERE or HERE in path.parents for path in named_paths) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.editors)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where a test fails, keep what its editor shows, and say where that is."""
    report = yield
    if report.when == "call" and report.failed and (look := item.stash.get(SIGHT, None)) is not None:
        try:
            picture = look()
        except Exception as error:
            # The editor may have gone, which must not hide why the test failed.
            picture = f"the editor can't be looked at: {error!r}"
        machine.PICTURES.mkdir(parents=True, exist_ok=True)
        path = machine.PICTURES / f"{machine.file_name(item.name)}.failed.txt"
        path.write_text(picture, "utf-8")
        report.sections.append((f"What the editor showed, kept in {path}", picture))
    return report


@pytest.fixture
def watch(request: pytest.FixtureRequest) -> Callable[[Callable[[], str]], None]:
    """Return what an editor's fixture calls with the way to look at it."""

    def use(look: Callable[[], str]) -> None:
        request.node.stash[SIGHT] = look

    return use


@pytest.fixture(scope="session")
def environment() -> Iterator[Mapping[str, str]]:
    """Yield an environment in which everything of dg-lsp's is new, and one engine serves all editors."""
    # Not below pytest's own folder, whose name is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="dg-") as folder:
        environment_of_session = machine.environment(Path(folder))
        # Started before any editor, so that no test pays for it.
        machine.engine(environment_of_session, "start")
        yield environment_of_session
        machine.engine(environment_of_session, "stop", "--now", "--all")
