"""Which documents get no suggestions because of their names, where no workspace tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from dg_lsp.server.nearby import Nearby


@pytest.mark.parametrize(
    ("uri", "is_refused"),
    [
        ("file:///home/user/.kube/config", True),
        ("file:///home/user/.ssh/keys/work", True),
        ("file:///home/user/.config/tool/settings.py", False),
        ("file:///home/user/secrets/project/main.py", False),
        ("file:///home/user/.env", True),
        ("vscode-remote://ssh-remote+host/home/user/.ssh/config", True),
        ("vscode-remote://ssh-remote+host/home/user/main.py", False),
        ("sftp://host/%2Eenv", True),
        ("git:/work/.env?%7B%22ref%22%3A%22%22%7D", True),
        ("git:/work/main.py?%7B%22path%22%3A%22%2Fwork%2Fmain.py%22%7D", False),
        ("zipfile:///work/all.zip::.env", True),
        ("untitled:.env", True),
        ("untitled:Untitled-1", False),
        ("", False),
    ],
)
def test_what_may_hold_secrets_outside_of_all_folders(uri: str, is_refused: bool) -> None:
    assert bool(Nearby(lambda: 0.0).refused(uri)) == is_refused


def test_a_link_outside_of_all_folders_is_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "notes.py").symlink_to(".env")
    assert Nearby(lambda: 0.0).refused((tmp_path / "notes.py").as_uri()) == "may hold secrets"
