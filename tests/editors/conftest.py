"""Fixtures for tests in real editors. These tests run only if they are named (`make test-editors`)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.editors import machine

if TYPE_CHECKING:
    from tests.editors.neovim import Neovim
    from tests.editors.workbench import Workbench

HERE = Path(__file__).parent
# A function that returns the screen of a test's editor, as text.
SIGHT = pytest.StashKey[Callable[[], str]]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore these tests unless a path on the command line names them."""
    base = config.invocation_params.dir
    named_paths = [(base / str(name).split("::")[0]).resolve() for name in config.args]
    return None if any(path == HERE or HERE in path.parents for path in named_paths) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.editors)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """If a test fails, save the screen of its editor, and add it to the report."""
    report = yield
    if report.when == "call" and report.failed and (look := item.stash.get(SIGHT, None)) is not None:
        try:
            picture = look()
        except Exception as error:
            # The editor may have ended, which must not hide why the test failed.
            picture = f"the screen of the editor can't be read: {error!r}"
        machine.PICTURES.mkdir(parents=True, exist_ok=True)
        path = machine.PICTURES / f"{machine.file_name(item.name)}.failed.txt"
        path.write_text(picture, "utf-8")
        report.sections.append((f"The screen of the editor, saved in {path}", picture))
    return report


Watch = Callable[[Callable[[], str]], None]


@pytest.fixture
def watch(request: pytest.FixtureRequest) -> Watch:
    """Return a function with which an editor's fixture registers how to read its screen."""

    def use(look: Callable[[], str]) -> None:
        request.node.stash[SIGHT] = look

    return use


@pytest.fixture(scope="session")
def environment() -> Iterator[Mapping[str, str]]:
    """Yield an environment with new folders for dg-lsp, and one engine for all editors."""
    # Not below pytest's own folder, whose path is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="dg-") as folder:
        environment_of_session = machine.environment(Path(folder))
        # Start the engine before any editor, so that no test waits for it.
        machine.engine(environment_of_session, "start")
        yield environment_of_session
        machine.engine(environment_of_session, "stop", "--now", "--all")


@pytest.fixture
def nvim(request: pytest.FixtureRequest, environment: Mapping[str, str], tmp_path: Path, watch: Watch) -> Iterator[Neovim]:
    """Yield a Neovim with the plugin. OPTIONS of the test's module are for `setup`, and VARIABLES are in its environment."""
    from tests.editors.neovim import Neovim  # it needs a package that only these tests need

    options, variables = getattr(request.module, "OPTIONS", "{}"), getattr(request.module, "VARIABLES", {})
    with Neovim(machine.program("nvim"), tmp_path, {**environment, **variables}, options) as editor:
        watch(editor.picture)
        yield editor


@pytest.fixture
def photographed(request: pytest.FixtureRequest, code: Workbench, watch: Watch) -> Iterator[None]:
    """Save the last picture of a test in VS Code."""
    name = machine.file_name(request.node.name)
    watch(lambda: code.picture(f"{name}.failed"))
    yield
    code.photograph(name)
