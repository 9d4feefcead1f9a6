"""Imports of what the repository lacks are found in an answer, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dg_lsp.core import importing, polish, repository, syntax
from dg_lsp.core.importing import Sources
from dg_lsp.core.repository import Repository
from dg_lsp.core.values import Candidate, Document
from tests.fakes import drawn


def indexed(**texts: str) -> Repository:
    """Return a repository of files in `/work`; `__` in a name stands for `/`, and the language is Python by default."""
    files = {}
    for name, text in texts.items():
        path = name.replace("__", "/").replace("/init/", "__init__")
        language = "typescript" if path.endswith("_ts") else "python"
        path = f"{path.removesuffix('_ts')}.ts" if language == "typescript" else f"{path}.py"
        files[f"/repo/{path}"] = repository.index(path, language, text)
    return Repository(files, is_whole=True, root="/repo")


APP = {"app__/init/": "", "app__main": ""}


def invented(line: str, own: str = "/repo/app/main.py", text: str = "", files: Repository | None = None) -> str:
    language = "typescript" if own.endswith(".ts") else "python"
    here = indexed(**APP, app__common="class Task: ...\n", app__sub__x="", app__lazy="def __getattr__(name): ...\n")
    return importing.invented(text, f"{text}{line}\n", language, Sources(files or here, own))


def test_a_module_that_the_repository_lacks_is_invented() -> None:
    assert invented("from .base import Task") == ".base"
    assert invented("from app.base import Task") == "app.base"
    assert invented("import app.base.more") == "app.base.more"
    assert invented("from ..base import Task", own="/repo/app/sub/x.py") == "..base"
    for line in ("from .common import Task", "from app import common", "import app.common", "from . import common, sub"):
        assert invented(line) == ""


def test_a_name_that_its_module_does_not_have_is_invented() -> None:
    assert invented("from .common import (\n    Task,\n    Job,\n)") == ".common.Job"
    assert invented("from . import base") == "..base"
    # A module may have names that no pattern finds.
    assert invented("from .lazy import anything") == ""


def test_modules_of_others_and_what_the_file_has_already_are_not_judged() -> None:
    assert invented("from django.base import Task") == ""
    assert invented("from .generated import b", text="from .generated import a\n") == ""
    assert invented("x = 1", text="from .base import Task\n") == ""
    # A folder without `__init__.py` may get modules from other distributions.
    assert invented("from space.other import x", files=indexed(space__one="", app__main="")) == ""


def test_an_index_that_is_not_whole_judges_no_import() -> None:
    files = indexed(**APP)
    assert invented("from .base import Task", files=files) == ".base"
    assert invented("from .base import Task", files=Repository(files.files)) == ""
    assert invented("from .base import Task", own="") == ""


def test_relative_modules_of_typescript_are_judged() -> None:
    files = indexed(src__main_ts="", src__tools_ts="export const box = 1\n", src__ui__index_ts="export * from './a'\n")

    def check(line: str) -> str:
        return invented(line, own="/repo/src/main.ts", files=files)

    assert check("import { box } from './tools'") == check("import { box } from './tools.js'") == ""
    assert check("import { any } from './ui'") == check("import React from 'react'") == check("import './style.css'") == ""
    assert check("import { box } from './base'") == "./base"
    assert check("import { bag } from './tools'") == "./tools.bag"


@pytest.mark.parametrize(
    ("line", "own"),
    [
        ("from ._version import v", "app/main.py"),
        ("from . import _version", "app/main.py"),
        ("from app._version import v", "app/main.py"),
        ("from app.gen.deep.api_pb2 import Message", "app/main.py"),
        ("import { api } from './gen/types'", "app/main.ts"),
        ("import { api } from './ui'", "app/main.ts"),
        ("from ..common import x", "main.py"),
        ("from .. import common", "main.py"),
        ("import { s } from '../../shared/x'", "app/main.ts"),
    ],
)
def test_what_was_not_read_may_be_there(line: str, own: str) -> None:
    files = indexed(**APP, app__main_ts="", main="", app__ui__index_ts="")
    unread = frozenset(("/repo/app/_version", "/repo/app/gen", "/repo/app/ui/index"))
    assert invented(line, own=f"/repo/{own}", files=replace(files, unread=unread)) == ""
    assert bool(invented(line, own=f"/repo/{own}", files=files)) == (".." not in line)


@pytest.mark.parametrize(("answer", "dropped"), [(".common import Task", False), (".base import Task", True)])
def test_an_answer_that_imports_what_is_not_there_is_dropped(answer: str, dropped: bool) -> None:
    document, holes = drawn("from ⟦⟧\nprint(Task)\n", language="python")
    document = Document(Path("/repo/a.py").as_uri(), "python", document.text)
    sources = Sources(indexed(**APP, app__common="class Task: ...\n"), "/repo/app/a.py")
    tree = syntax.of(document)
    polished = polish.to_edits(Candidate((answer,)), holes, document, syntax=tree, is_file=True, sources=sources)
    assert (polished.dropped == "imports what the repository does not have") == dropped
