"""What may be read of a workspace, on real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dg_lsp.core import holes, syntax
from dg_lsp.core.values import Document
from dg_lsp.infill import workspace
from dg_lsp.infill.ignoring import Ignore
from dg_lsp.infill.workspace import indent_of
from tests import marked
from tests.marked import make

ROWS = marked.rows(Path(__file__).with_name("imports.txt"))


# --- Ignored files ----------------------------------------------------------------------------------------------------


GIT, OWN = "is ignored by .gitignore", "is ignored by .dgignore"


def check_reason(root: Path, path: str, reason: str) -> None:
    ignore = Ignore.for_root(root)
    assert ignore.reason(root / path) == reason
    assert ignore.allows(root / path) == (reason == "")


@pytest.mark.parametrize(
    ("files", "root", "reasons"),
    [
        ({".gitignore": "*.log\n", "b/c.py": ""}, "", {"a.py": "", "b": "", "b/c.py": "", ".": "", "not/there.py": ""}),
        (
            {".gitignore": "*.log\nbuild/\n/top.py\n", ".dgignore": "private/**\n", "build/x.py": "", "sub/top.py": ""},
            "",
            dict.fromkeys(("a.log", "sub/a.log", "build", "build/x.py", "top.py"), GIT)
            | {"sub/top.py": "", "private/a.py": OWN},
        ),
        (  # the nearest ignore file decides
            {".gitignore": "*.gen.py\n", "keep/.gitignore": "!*.gen.py\n", "keep/no/.gitignore": "a.gen.py\n"},
            "",
            {"a.gen.py": GIT, "keep/a.gen.py": "", "keep/no/a.gen.py": GIT, "keep/no/b.gen.py": ""},
        ),
        ({".gitignore": "a.py\n", ".dgignore": "!a.py\n"}, "", {"a.py": GIT}),
        ({".gitignore": "out/\n!out/a.py\n", "out/.gitignore": "!a.py\n", "out/a.py": ""}, "", {"out/a.py": GIT}),
        (
            {".git/config": "", "node_modules/x/a.js": "", ".env": ""},
            "",
            {
                ".env": "may hold secrets",
                ".git/config": "belongs to version control",
                "node_modules/x/a.js": "is in a folder that tools fill",
            },
        ),
        ({"node_modules/x/a.js": ""}, "node_modules/x", {"a.js": ""}),
        ({"secrets/b/a.py": ""}, "secrets/b", {"a.py": ""}),
        ({"in/a.py": "", "out/b.py": ""}, "in", {"../out/b.py": "is outside in"}),
        (  # a repository's rules hold in its folders
            {".git/info/exclude": "mine.py\n", ".gitignore": "*.log\n!keep.log\n", "sub/a.py": ""},
            "sub",
            {"a.log": GIT, "keep.log": "", "mine.py": GIT},
        ),
        # Ours also hold without a repository, from the highest folder that has some.
        *(
            ({mark: "", "a/.dgignore": "b/private/\n", ".gitignore": "*\n"}, root, {"x.py": reason})
            for mark in (".dgignore", ".dg-lsp.toml")
            for root, reason in (("a/b/private", OWN), ("a/b", ""))
        ),
        ({".dgignore": "*.py\n", "a/.dgignore": "!keep.py\n"}, "a/b", {"x.py": OWN, "keep.py": ""}),
        *(  # an invalid ignore file closes its folder
            (
                {"a.py": "", "sub/.dgignore": text, "sub/b.py": "", "sub/deep/c.py": ""},
                "",
                {"a.py": "", "sub": ""} | dict.fromkeys(("sub/b.py", "sub/deep/c.py"), f"is below a .dgignore that {why}"),
            )
            for text, why in (
                ("ok\n!\n", "has a ! without a pattern"),
                ("[z-a]\n", "has a pattern with the range z-a, which is empty"),
            )
        ),
    ],
)
def test_what_may_be_read(tmp_path: Path, files: dict[str, str], root: str, reasons: dict[str, str]) -> None:
    make(tmp_path, files)
    for path, reason in reasons.items():
        check_reason(tmp_path / root, path, reason)


def test_a_named_folder_is_read_unless_our_own_file_ignores_it(tmp_path: Path) -> None:
    make(tmp_path, {".git/x": "", ".gitignore": "out/\n", ".dgignore": "out/private/\n", "out/.gitignore": "*.log\n"})
    ignore = Ignore.for_root(tmp_path / "out", is_named=True)
    reasons = [ignore.reason(tmp_path / "out" / name) for name in ("", "a.py", "a.log", "private/a.py")]
    assert reasons == ["", "", "is ignored by .gitignore", "is ignored by .dgignore"]


def test_patterns_need_not_be_utf_8(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes(b"\xef\xbb\xbfa.py\r\n\xff.py\n")
    check_reason(tmp_path, "a.py", "is ignored by .gitignore")
    check_reason(tmp_path, os.fsdecode(b"\xff.py"), "is ignored by .gitignore")
    check_reason(tmp_path, "b.py", "")


def test_an_ignore_file_that_changes_is_read_again(tmp_path: Path) -> None:
    make(tmp_path, {"a.py": "", ".gitignore": ""})
    ignore = Ignore.for_root(tmp_path)
    assert ignore.allows(tmp_path / "a.py")
    (tmp_path / ".gitignore").write_text("a.py\n")
    assert not ignore.allows(tmp_path / "a.py")
    (tmp_path / ".gitignore").unlink()
    assert ignore.allows(tmp_path / "a.py")


def test_a_link_is_judged_by_its_name_and_its_target(tmp_path: Path) -> None:
    make(tmp_path, {"in/.env": "", "in/a.py": "", "out/b.py": ""})
    root = tmp_path / "in"
    (root / "key.py").symlink_to(".env")
    (root / "away.py").symlink_to("../out/b.py")
    (root / "x.pem").symlink_to("a.py")
    (root / "fine.py").symlink_to("a.py")
    (root / "loop.py").symlink_to("loop.py")
    check_reason(root, "key.py", "may hold secrets")
    check_reason(root, "away.py", "is outside in")
    check_reason(root, "x.pem", "may hold secrets")
    check_reason(root, "fine.py", "")
    # From Python 3.13 on, a link to itself resolves to itself, and is then never a file.
    assert Ignore.for_root(root).reason(root / "loop.py") in ("leads nowhere", "")


def test_an_invalid_path_may_not_be_read(tmp_path: Path) -> None:
    check_reason(tmp_path, "a/\0/b", "leads nowhere")
    assert workspace.related(tmp_path, "a\0b", Document("", "python", "value")) == ()


# --- Related files ----------------------------------------------------------------------------------------------------


def related(root: Path, path: str, language: str = "python") -> list[str]:
    text = (root / path).read_text()
    snippets = workspace.related(root, root / path, Document("", language, text))
    return [snippet.path for snippet in snippets]


def test_imported_files_come_before_siblings(tmp_path: Path) -> None:
    make(
        tmp_path,
        {
            "pkg/a.py": "from pkg.core.queue import Queue\nfrom . import near\nimport os\nvalue = Queue(items)\n",
            "pkg/core/queue.py": "class Queue:\n    items = value\n",
            "pkg/near.py": "def near(value): ...\n",
            "pkg/sibling.py": "value = items\n",
            "pkg/notes.txt": "value items\n",
            "pkg/far/away.py": "value = items\n",
        },
    )
    snippets = related(tmp_path, "pkg/a.py")
    assert snippets[-1] == "pkg/sibling.py"
    assert sorted(snippets[:-1]) == ["pkg/core/queue.py", "pkg/near.py"]


def test_forbidden_files_are_no_context(tmp_path: Path) -> None:
    make(
        tmp_path,
        {
            "a.py": "import secrets, generated, binary, pipe\nvalue = items\n",
            "secrets.py": "value = items\n",
            "generated.py": "value = items\n",
            ".gitignore": "generated.py\n",
        },
    )
    (tmp_path / "binary.py").write_bytes(b"value = \xff items")
    (tmp_path / "nul.py").write_bytes(b"value = items \0")
    (tmp_path / "link.py").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe.py")  # opening it would never end
    assert related(tmp_path, "a.py") == []


@pytest.mark.parametrize(("language", "path", "text", "other"), ROWS["imports"])
def test_imports_are_found_in_each_language(tmp_path: Path, language: str, path: str, text: str, other: str) -> None:
    make(tmp_path, {path: text, other: "unrelated\n"})
    assert related(tmp_path, path, language=language) == [other]
    (tmp_path / other).unlink()  # an editor has it open, and never saved it
    root, document = tmp_path.resolve(), Document("", language, text)
    found = workspace.related(root, root / path, document, opened={root / other: "unrelated\n"})
    assert [each.path for each in found] == [other]


def test_related_text_is_bounded(tmp_path: Path) -> None:
    make(tmp_path, {"a.py": "value = items\n", **{f"b{idx}.py": "value = items\n" * 9_000 for idx in range(40)}})
    document = Document("", "python", "value = items\n")
    snippets = workspace.related(tmp_path, tmp_path / "a.py", document)
    assert len(snippets) == workspace.MAX_RELATED
    assert max(len(snippet.text) for snippet in snippets) <= workspace.RELATED_BYTES


def test_siblings_with_similar_names_come_first(tmp_path: Path) -> None:
    make(
        tmp_path,
        {"queue.py": "", **{f"a{idx}.py": "value\n" for idx in range(workspace.MAX_RELATED)}, "test_queue.py": "value\n"},
    )
    snippets = workspace.related(tmp_path, tmp_path / "queue.py", Document("", "python", "value"))
    assert "test_queue.py" in {snippet.path for snippet in snippets}


def test_a_file_without_a_language_has_siblings_of_its_ending(tmp_path: Path) -> None:
    make(tmp_path, {"a.conf": "value\n", "b.conf": "value\n", "c.txt": "value\n"})
    assert related(tmp_path, "a.conf", language="") == ["b.conf"]


def test_a_file_outside_the_root_has_no_related_text(tmp_path: Path) -> None:
    make(tmp_path, {"in/a.py": "value\n", "b.py": "value\n"})
    document = Document("", "python", "import \0x\nvalue\n")
    assert workspace.related(tmp_path / "in", tmp_path / "b.py", document) == ()
    assert workspace.related(tmp_path / "in", tmp_path / "in/none/b.py", document) == ()
    assert workspace.related(tmp_path / "none", tmp_path / "none/b.py", document) == ()


def test_a_file_with_another_workspaces_settings_is_not_related(tmp_path: Path) -> None:
    names = {".dg-lsp.toml": "", "main.py": "", "b/.dg-lsp.toml": "", "b/keep.py": "secret = 1\n", "b/own.py": "other = 1\n"}
    root = make(tmp_path, names)
    text = "import b.keep\nfrom b import keep\nsecret = keep.secret\n"
    assert workspace.related(root, root / "main.py", Document("", "python", text)) == ()
    near = workspace.related(root, root / "b" / "own.py", Document("", "python", "import keep\nsecret\n"))
    assert [snippet.path for snippet in near] == ["b/keep.py"]


# Indentation: from .editorconfig, and from the files next to a new one


SECTIONS = marked.rows(Path(__file__).with_name("editorconfig.txt"))


@pytest.mark.parametrize(("pattern", "path", "fits"), SECTIONS["patterns"])
def test_a_section_holds_for_the_files_that_its_pattern_matches(tmp_path: Path, pattern: str, path: str, fits: str) -> None:
    root = make(tmp_path, {".editorconfig": f"root = true\n[{pattern}]\nindent_style = space\nindent_size = 3\n"})
    assert indent_of(root / path) == ("   " if fits == "yes" else "")


def test_tabs_do_not_indent_yaml(tmp_path: Path) -> None:
    root = make(tmp_path, {".editorconfig": "root = true\n[*]\nindent_style = tab\n", "x/a.yml": "a:\n    b: 1\n"})
    assert indent_of(root / "a.py") == "\t"
    assert indent_of(root / "a.yaml") == ""
    assert indent_of(root / "x" / "b.yml") == "    "


@pytest.mark.parametrize(("lines", "level"), SECTIONS["levels"])
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
