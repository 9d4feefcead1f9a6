"""The indentation level of a project: from real `.editorconfig` files, and from the files next to a new one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dg_lsp.core import holes, syntax
from dg_lsp.core.values import Document
from dg_lsp.infill import workspace
from dg_lsp.infill.workspace import indent_of
from tests import marked
from tests.marked import make

ROWS = marked.rows(Path(__file__).with_name("editorconfig.txt"))


@pytest.mark.parametrize(("pattern", "path", "fits"), ROWS["patterns"])
def test_a_section_holds_for_the_files_that_its_pattern_matches(tmp_path: Path, pattern: str, path: str, fits: str) -> None:
    root = make(tmp_path, {".editorconfig": f"root = true\n[{pattern}]\nindent_style = space\nindent_size = 3\n"})
    assert indent_of(root / path) == ("   " if fits == "yes" else "")


def test_tabs_do_not_indent_yaml(tmp_path: Path) -> None:
    root = make(tmp_path, {".editorconfig": "root = true\n[*]\nindent_style = tab\n", "x/a.yml": "a:\n    b: 1\n"})
    assert indent_of(root / "a.py") == "\t"
    assert indent_of(root / "a.yaml") == ""
    assert indent_of(root / "x" / "b.yml") == "    "


@pytest.mark.parametrize(("lines", "level"), ROWS["levels"])
def test_the_style_and_the_size_make_a_level(tmp_path: Path, lines: str, level: str) -> None:
    assert indent_of(make(tmp_path, {".editorconfig": f"root = true\n[*]\n{lines}\n"}) / "a.py") == level


def test_the_nearest_file_counts_up_to_the_root(tmp_path: Path) -> None:
    two, tab = "[*]\nindent_style = space\nindent_size = 2\n", "[*.go]\nindent_style = tab\n"
    root = make(
        tmp_path, {".editorconfig": f"root = true\n{two}", "a/.editorconfig": tab, "b/.editorconfig": f"root=true\n{tab}"}
    )
    assert [indent_of(root / name) for name in ("a/x.go", "a/x.py", "b/x.py")] == ["\t", "  ", ""]


def test_files_of_the_same_kind_in_the_folder_say_it_where_no_setting_does(tmp_path: Path) -> None:
    two, four = "function f() {\n  g();\n}\n", "def f():\n    g()\n"
    others = {"a.js": two, "b.js": two, "c.js": two.replace("  ", "\t"), "a.py": four, "deep/d.js": four}
    root = make(tmp_path, {".editorconfig": "root = true\n", **others})
    assert [indent_of(root / name) for name in ("new.js", "new.py", "new.rs", "deep/new.py")] == ["  ", "    ", "", ""]


def test_ignored_files_and_secrets_say_nothing(tmp_path: Path) -> None:
    two = "a:\n  b: 1\n"
    root = make(tmp_path, {".editorconfig": "root = true\n", ".dgignore": "a.yaml\n", "a.yaml": two, "secrets.yaml": two})
    assert indent_of(root / "new.yaml") == ""


def test_a_file_that_can_not_be_read_says_nothing(tmp_path: Path) -> None:
    root = make(tmp_path, {"x/y.py": ""})
    os.mkfifo(root / "x" / ".editorconfig")
    (root / ".editorconfig").write_bytes(b"\xff\0[*]\n" + b"x" * workspace.MAX_CONFIG_BYTES)
    assert indent_of(root / "x" / "new.rs") == ""


def test_only_a_text_that_shows_no_indentation_takes_the_project_s(tmp_path: Path) -> None:
    root = make(tmp_path, {".editorconfig": "root = true\n[*]\nindent_style = tab\n"})
    path = root / "a.py"

    def hole_in(text: str) -> str:
        document = workspace.with_indent(Document(path.as_uri(), "python", text), path)
        return holes.at_cursor(document, len(text), syntax.of(document)).indent

    assert hole_in("def f():") == "\t"
    assert hole_in("def f():\n  return 1\n\n\ndef g():") == "  "
