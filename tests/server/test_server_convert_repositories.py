"""Files of repositories on a server: whether a workspace folder is a copy of their repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from dg_lsp.server import convert, on_server


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    "uri",
    [
        "vscode-vfs://github/acme/payroll/README.md",
        "vscode-vfs://github/other/acme/payroll/README.md",
        "octo://acme/payroll/pull/1/file/RIGHT/tests/conftest.py",
        "vscode-vfs://github/acme/app/README.md",
    ],
)
def test_a_file_of_the_same_name_makes_no_folder_a_copy_of_a_repository(tmp_path: Path, uri: str) -> None:
    folder = tmp_path / "app"
    write(folder / "README.md", "")
    write(folder / "tests" / "conftest.py", "")
    write(
        folder / ".git" / "config",
        '[remote "origin"]\n\turl = https://github.com/me/app\n[submodule "p"]\nurl = x/acme/payroll\n',
    )
    assert on_server.is_elsewhere(uri, [folder])
    # Ignore rules for such a path still count.
    assert "README" not in uri or folder / "README.md" in convert.to_paths(uri, [folder])


@pytest.mark.parametrize("url", ["https://github.com/Me/app.git", "git@github.com:me/App.git", "ssh://git@host:22/me/app/"])
@pytest.mark.parametrize(
    "uri",
    ["vscode-vfs://github/me/app/new.py", "vscode-vfs://github%2Bab/me/app/new.py", "octo://me/app/pull/1/file/LEFT/a.py"],
)
def test_a_remote_makes_a_folder_and_its_worktrees_copies_of_a_repository(tmp_path: Path, url: str, uri: str) -> None:
    git, worktree = tmp_path / "clone" / ".git", tmp_path / "tree"
    write(git / "config", f'[core]\n\tbare = false\n[remote "origin"]\n\turl = {url}\n')
    write(git / "worktrees" / "tree" / "commondir", "../..\n")
    write(worktree / ".git", f"gitdir: {git}/worktrees/tree\n")
    assert not on_server.is_elsewhere(uri, [tmp_path / "clone"])
    assert not on_server.is_elsewhere(uri, [worktree])
    assert on_server.is_elsewhere(uri, [tmp_path])


def test_owner_and_name_at_the_end_of_a_path_make_a_folder_a_copy(tmp_path: Path) -> None:
    (tmp_path / "me" / "app").mkdir(parents=True)
    assert not on_server.is_elsewhere("vscode-vfs://github/me/app/new.py", [tmp_path / "me" / "app"])
    assert on_server.is_elsewhere("vscode-vfs://github/you/app/new.py", [tmp_path / "me" / "app"])


def test_a_malformed_uri_of_a_repository_is_elsewhere_and_has_no_path(tmp_path: Path) -> None:
    uri = "vscode-vfs://[x/a.py"
    assert convert.to_paths(uri, [tmp_path]) == ()
    assert on_server.is_elsewhere(uri, [tmp_path])
