"""The index of a workspace on real files: what is in it, and when it changes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import secrets
from dg_lsp.core.values import Hole, InfillRequest, Snippet, Span
from dg_lsp.infill import workspace
from dg_lsp.infill.ignoring import Ignore
from dg_lsp.infill.workspace import RepositoryIndex
from dg_lsp.wire.config import shown
from tests.marked import make


def names(index: RepositoryIndex) -> set[str]:
    return {file.path for file in index.repository.files.values()}


def indexed(root: Path, **limits: int) -> set[str]:
    index = RepositoryIndex(Ignore.for_root(root), **limits)
    assert index.update()
    return names(index)


def test_source_files_of_all_folders_are_indexed(tmp_path: Path) -> None:
    make(tmp_path, {"a.py": "a = 1\n", "b/c.go": "package b\n", "b/d/e.rs": "fn e() {}\n", "notes.xyz": "no source\n"})
    assert indexed(tmp_path) == {"a.py", "b/c.go", "b/d/e.rs"}


def test_ignored_secret_and_foreign_files_are_never_indexed(tmp_path: Path) -> None:
    hidden = ("out/x.py", "private.py", "secrets/key.py", ".git/hook.py", "node_modules/m.js", "venv/lib/site.py")
    foreign = ("lib/site-packages/p.py", "local_settings.py")
    make(tmp_path, dict.fromkeys((*hidden, *foreign, "a.py"), "x = 1\n"))
    make(tmp_path, {".gitignore": "out/\n", ".dgignore": "private.py\n", "venv/pyvenv.cfg": ""})
    assert indexed(tmp_path) == {"a.py"}


def test_files_without_usable_text_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, {"a.py": "a = 1\n", "min.js": "x;" * 2_000, "zero.py": "a\0b\n"})
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    (tmp_path / "big.py").write_text("x = 1\n" * (workspace.MAX_FILE_BYTES // 6 + 1))
    (tmp_path / "link.py").symlink_to("a.py")
    (tmp_path / "folder").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.py")
    assert indexed(tmp_path) == {"a.py"}


def test_the_names_of_what_is_not_indexed_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, {".gitignore": "gen/\n_version.py\n", "gen/a.py": "", "p/_version.py": "", "p/fast.cpython-311.so": ""})
    make(tmp_path, {"b/.dg-lsp.toml": "", "p/keep.py": "", "p/credentials.py": "", "p/zero.py": "a\0b\n"})
    (tmp_path / "p" / "link.py").symlink_to("keep.py")
    index = RepositoryIndex(Ignore.for_root(tmp_path))
    index.update()
    unread = {name.removeprefix(f"{tmp_path}/") for name in index.repository.unread}
    assert unread == {".gitignore", "gen", "p/_version", "p/fast", "b", "p/credentials", "p/zero", "p/link"}
    (tmp_path / "p" / "credentials.py").unlink()
    index.update()
    assert str(tmp_path / "p" / "credentials") not in index.repository.unread
    monkeypatch.setattr(workspace, "MAX_ENTRIES", 6)
    index.update()
    assert index.repository.unread >= {str(tmp_path / "p"), str(tmp_path / "gen")}, "so many names are those of their folder"
    assert index.repository.is_whole


def test_a_link_out_of_the_workspace_is_not_followed(tmp_path: Path) -> None:
    make(tmp_path, {"in/a.py": "", "out/b.py": "b = 1\n"})
    (tmp_path / "in" / "b.py").symlink_to(tmp_path / "out" / "b.py")
    (tmp_path / "in" / "out").symlink_to(tmp_path / "out")
    assert indexed(tmp_path / "in") == {"a.py"}


def test_a_changed_file_is_read_again_and_others_are_not(tmp_path: Path) -> None:
    make(tmp_path, {"a.py": "def one():\n    pass\n", "b.py": "def two():\n    pass\n", "c.py": "x = 1\n"})
    index = RepositoryIndex(Ignore.for_root(tmp_path))
    index.update()
    before = index.repository
    index.update()
    assert index.repository is before
    make(tmp_path, {"a.py": "def three():\n    pass\n", "d.py": "def four():\n    pass\n"})
    (tmp_path / "c.py").unlink()
    index.update()
    assert "three" in index.repository.files[str(tmp_path / "a.py")].text
    assert names(index) == {"a.py", "b.py", "d.py"}
    assert index.repository.files[str(tmp_path / "b.py")] is before.files[str(tmp_path / "b.py")]


def test_files_that_an_update_does_not_reach_leave_the_index(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path, {"a.py": "a = 1\n", "b.py": "b = 1\n"})
    index = RepositoryIndex(Ignore.for_root(tmp_path))
    index.update()
    monkeypatch.setattr(index, "_walk_s", 0.0)
    index.update()
    assert not index.repository.files


def test_an_update_without_time_to_read_is_not_complete(tmp_path: Path) -> None:
    make(tmp_path, {"a.py": "a = 1\n"})
    index = RepositoryIndex(Ignore.for_root(tmp_path), read_s=0)
    assert not index.update()
    assert not index.repository.files


def test_secrets_are_masked_before_they_are_indexed(tmp_path: Path) -> None:
    key = "AKIA" + "QYLPMN5HHHFPZAM2"
    make(tmp_path, {"a.py": f"aws_access_key_id = '{key}'\ndef call(key='{key}'):\n    pass\n"})
    index = RepositoryIndex(Ignore.for_root(tmp_path))
    index.update()
    file = index.repository.files[str(tmp_path / "a.py")]
    assert key not in file.text
    assert secrets.MASK in file.text


@given(st.lists(st.integers(1, 3_000), max_size=12), st.integers(0, 60_000), st.integers(1, 12))
def test_the_index_keeps_to_its_limits(sizes: list[int], max_bytes: int, max_files: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace, "MAX_INDEX_BYTES", max_bytes)
        patch.setattr(workspace, "MAX_FILES", max_files)
        root = make(Path(folder).resolve(), {f"f{n}.py": "x = 1\n" * size for n, size in enumerate(sizes)})
        index = RepositoryIndex(Ignore.for_root(root))
        index.update()
        files = index.repository.files.values()
        assert sum(file.n_bytes for file in files) <= max_bytes
        assert len(files) <= max_files


NAMES = st.sampled_from(["a.py", "b.py", "keep.py", ".env", "id_rsa.py"])
FOLDERS = st.sampled_from(["", "x/", "x/y/", "secrets/", "build/", ".git/"])
PATTERNS = st.sampled_from(["a.py", "*.py", "!keep.py", "x/", "/b.py", "y/", "**/keep.py", "build"])
IGNORES = st.dictionaries(
    st.tuples(st.sampled_from(["", "x/", "x/y/"]), st.sampled_from([".gitignore", ".dgignore"])).map("".join),
    st.lists(PATTERNS, max_size=3).map("\n".join),
    max_size=3,
)


@given(st.sets(st.tuples(FOLDERS, NAMES).map("".join), max_size=12), IGNORES, IGNORES)
def test_exactly_the_allowed_sources_are_indexed_also_after_a_change(
    paths: set[str], first: dict[str, str], then: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        make(root, dict.fromkeys(paths, "x = 1\n"))
        ignore = Ignore.for_root(root)
        index = RepositoryIndex(ignore)
        for ignores in (first, then):
            for name in first:
                (root / name).unlink(missing_ok=True)
            make(root, ignores)
            index.update()
            expected = {path for path in paths if path.endswith(".py") and Ignore.for_root(root).allows(root / path)}
            assert names(index) == expected


def test_a_remote_model_gets_no_passages_and_no_private_text() -> None:
    hole = Hole(Span(0, 0), "cursor")
    related = (Snippet("a.py", "def a(): ..."), Snippet("private/b.py", "def b(): ..."), Snippet("c.py", "c", for_copying=True))
    request = InfillRequest("x = ", "\n", (hole,), path="here.py", related=related)
    assert [snippet.path for snippet in shown(request, ("private/",)).related] == ["a.py"]
    assert [snippet.path for snippet in shown(request, ()).related] == ["a.py", "private/b.py"]
    masked = secrets.mask_request(request)
    assert [snippet.for_copying for snippet in masked.related] == [False, False, True]


def test_a_stopped_index_is_empty_and_reads_nothing(tmp_path: Path) -> None:
    make(tmp_path, {"a.py": "a = 1\n"})
    index = RepositoryIndex(Ignore.for_root(tmp_path))
    index.update()
    index.stop()
    assert index.update()
    assert not index.repository.files


def test_files_with_another_workspaces_settings_are_not_indexed(tmp_path: Path) -> None:
    # Its `privacy.local_only` does not apply to requests of the outer workspace.
    make(
        tmp_path,
        {".dg-lsp.toml": "", "a.py": "x = 1\n", "b/.dg-lsp.toml": "", "b/keep.py": "y = 2\n", "b/c/keep.py": "z = 3\n"},
    )
    assert indexed(tmp_path) == {"a.py"}


def test_an_index_is_whole_if_it_has_all_files_that_may_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, {"a.py": "a = 1\n", "b/c.py": "c = 1\n"})
    index = RepositoryIndex(Ignore.for_root(tmp_path))
    index.update()
    assert index.repository.is_whole
    monkeypatch.setattr(workspace, "MAX_FILES", 1)
    index.update()
    assert not index.repository.is_whole
    monkeypatch.setattr(workspace, "MAX_FILES", 9)
    monkeypatch.setattr(workspace, "MAX_INDEX_BYTES", 1)
    index.update()
    assert not index.repository.is_whole
