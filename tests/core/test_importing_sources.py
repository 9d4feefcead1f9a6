from __future__ import annotations

from pathlib import Path

import pytest

from dg_lsp.core import importing, polish, repository, syntax, values
from dg_lsp.core.importing import Sources
from dg_lsp.core.repository import Repository
from dg_lsp.core.values import Candidate, Document, Import
from tests.fakes import drawn


def indexed(**texts: str) -> Repository:
    """Return a repository of files in `/work`; `__` in a name stands for `/`, and the language is Python by default."""
    files = {}
    for name, text in texts.items():
        path = name.replace("__", "/").replace("/init/", "__init__")
        language = "typescript" if path.endswith("_ts") else "python"
        path = f"{path.removesuffix('_ts')}.ts" if language == "typescript" else f"{path}.py"
        files[f"/repo/{path}"] = repository.index(path, language, text)
    return Repository(files, is_whole=True)


def found(
    answer: str, *names: str, own: str = "/repo/app/main.py", text: str = "", files: Repository | None = None
) -> list[str]:
    language = "typescript" if own.endswith(".ts") else "python"
    sources = Sources(files or repository.EMPTY, own)
    return [importing.statement(each, language) for each in importing.find(names, answer, text, language, sources)]


APP = {"app__/init/": "", "app__main": ""}


def test_a_standard_module_is_found_by_its_attribute() -> None:
    assert found("json.dumps(x)", "json") == ["import json"]
    assert found("json.frobnicate(x)", "json") == []
    # Used as a value, a name is no module.
    assert found("perf_counter()", "perf_counter") == ["from time import perf_counter"]
    assert found("datetime.timedelta(1)", "datetime") == ["import datetime"]
    assert found("datetime.now()", "datetime") == ["from datetime import datetime"]
    assert found("importlib.metadata.version(x)", "importlib") == ["import importlib.metadata"]
    assert found("os.path.join(x)", "os") == ["import os"]
    assert found("os.sep, sys.argv", "os", "sys") == ["import os", "import sys"]


def test_a_name_that_several_modules_offer_is_not_found() -> None:
    assert found("sleep(1)", "sleep") == []
    assert found("Path(x)", "Path") == []
    assert found("defaultdict(list)", "defaultdict") == ["from collections import defaultdict"]
    assert found("json.dumps(nothing)", "json", "nothing") == []


def test_the_way_in_which_the_repository_imports_a_name_decides() -> None:
    one = indexed(**APP, app__a="from pathlib import Path\n", app__b="import numpy as np\n")
    assert found("Path(x)", "Path", files=one) == ["from pathlib import Path"]
    assert found("np.zeros(3)", "np", files=one) == ["import numpy as np"]
    two = indexed(**APP, app__a="from pathlib import Path\n", app__b="from zipfile import Path\n")
    assert found("Path(x)", "Path", files=two) == []


def test_a_definition_of_the_repository_is_found() -> None:
    files = indexed(
        **APP, app__tools="def read_box(path):\n    pass\n\nLIMIT: int = 3\nclass Box: ...\n    \nif x:\n    inner = 1\n"
    )
    assert found("read_box(x)", "read_box", files=files) == ["from app.tools import read_box"]
    assert found("LIMIT", "LIMIT", files=files) == ["from app.tools import LIMIT"]
    assert found("Box()", "Box", files=files) == ["from app.tools import Box"]
    assert found("inner", "inner", files=files) == []
    # A function that is not called is rather a variable.
    assert found("read_box", "read_box", files=files) == []
    assert found("read_box.x", "read_box", files=files) == []
    assert found("tools.read_box(x)", "tools", files=files) == ["from app import tools"]
    assert found("tools.save(x)", "tools", files=files) == []
    # In a file that imports its own package relatively, so does the new import.
    assert found("read_box(x)", "read_box", text="from .other import x\n", files=files) == ["from .tools import read_box"]


def test_a_name_that_two_files_define_is_not_found() -> None:
    files = indexed(**APP, app__a="def read_box(): ...\n", app__b="def read_box(): ...\n")
    assert found("read_box()", "read_box", files=files) == []


def test_a_private_name_is_found_where_others_import_it() -> None:
    files = indexed(**APP, app__tools="def _read_box(): ...\n")
    assert found("_read_box()", "_read_box", files=files) == []
    files = indexed(**APP, app__tools="def _read_box(): ...\n", app__b="from .tools import _read_box\n")
    assert found("_read_box()", "_read_box", files=files) == ["from app.tools import _read_box"]


def test_tests_scripts_and_files_that_import_the_own_one_offer_nothing() -> None:
    files = indexed(**APP, app__test_a="def helper(): ...\n", app__b="from app.main import run\n\ndef back(): ...\n")
    assert found("helper()", "helper", files=files) == []
    assert found("back()", "back", files=files) == []


def test_a_package_is_not_imported_by_a_module_below_it() -> None:
    files = indexed(
        app__main="",
        app__tools="def read_box(): ...\n",
        **{"app__/init/": "from app.tools import read_box\n"},
        use="from app import read_box\n",
    )
    assert found("read_box()", "read_box", files=files) == ["from app.tools import read_box"]
    assert found("read_box()", "read_box", own="/repo/other.py", files=files) == ["from app.tools import read_box"]


def test_a_repository_that_claims_a_standard_modules_name_makes_it_unclear() -> None:
    files = indexed(json="def dumps(x): ...\n", main="", other="import json\nfrom json import loads\n")
    assert found("json.dumps(x)", "json", own="/repo/main.py", files=files) == []
    claimed = indexed(**APP, app__a="from evil import json\n")
    assert found("json.dumps(x)", "json", files=claimed) == []


HOSTILE = ["a b", "x;import os", "a\nimport os", "a'b", 'a"b', "a\\b", "$(id)", "class", "`x`", "a#b"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_path_gets_into_no_import(name: str) -> None:
    python = Repository({f"/repo/app/{name}.py": repository.index(f"app/{name}.py", "python", "def read_box(): ...\n")})
    assert found("read_box()", "read_box", files=python) == []
    package = Repository(
        {
            f"/repo/{name}/__init__.py": repository.index(f"{name}/__init__.py", "python", ""),
            f"/repo/{name}/m.py": repository.index(f"{name}/m.py", "python", "def read_box(): ...\n"),
        }
    )
    assert found("read_box()", "read_box", files=package) == []
    script = Repository({f"/repo/{name}.ts": repository.index(f"{name}.ts", "typescript", "export function read_box() {}\n")})
    allowed = {"class": "./class"}
    lines = [f'import {{ read_box }} from "{allowed[name]}";'] if name in allowed else []
    assert found("read_box()", "read_box", own="/repo/main.ts", files=script) == lines


def test_what_a_hostile_repository_imports_is_not_copied() -> None:
    files = indexed(
        main_ts="",
        a_ts="import { read_box } from 'x\"; evil(); \"';\n",
        b_ts="import evil from 'http://evil.example/x.js';\n",
    )
    assert found("read_box()", "read_box", own="/repo/main.ts", files=files) == []
    files = indexed(**APP, app__a="from os import (\n  read_box; evil()\n)\n")
    assert found("read_box()", "read_box", files=files) in ([], ["from os import read_box"])


def test_exports_of_typescript_are_found() -> None:
    files = indexed(
        app__main_ts="",
        app__lib__tools_ts="export function read_box() {}\nconst own = 1;\nexport { own as shown };\nexport type T = 1;\n",
        app__view_ts="export default class View {}\n",
        lib__index_ts="export const top = 1;\n",
        use_ts="import React from 'react';\nimport { z } from \"zod\";\nimport * as d3 from 'd3';\n",
    )
    own = "/repo/app/main.ts"
    assert found("read_box()", "read_box", own=own, files=files) == ['import { read_box } from "./lib/tools";']
    assert found("shown", "shown", own=own, files=files) == ['import { shown } from "./lib/tools";']
    assert found("own", "own", own=own, files=files) == []
    assert found("new View()", "View", own=own, files=files) == ['import View from "./view";']
    assert found("top", "top", own=own, files=files) == ['import { top } from "../lib";']
    assert found("React.useRef()", "React", own=own, files=files) == ['import React from "react";']
    assert found("z.string()", "z", own=own, files=files) == ['import { z } from "zod";']
    assert found("d3.max(x)", "d3", own=own, files=files) == ['import * as d3 from "d3";']
    with_ending = "import { a } from './a.js';\n"
    lines = found("read_box()", "read_box", own=own, text=with_ending, files=files)
    assert lines == ['import { read_box } from "./lib/tools.js";']


# --- With polish ------------------------------------------------------------------------------------------------------


def filled(text: str, answer: str, *, name: str = "a.py", sources: Sources | None = None) -> tuple[str, tuple[Import, ...]]:
    """Return the text with the polished answer and its imports, and those; "" if the answer is dropped."""
    language = "typescript" if name.endswith(".ts") else "python"
    document, holes = drawn(text, language=language)
    document = Document(Path("/work", name).as_uri(), language, document.text)
    tree = syntax.of(document)
    polished = polish.to_edits(Candidate((answer,)), holes, document, syntax=tree, is_file=True, sources=sources or Sources())
    added = importing.edit(document.text, language, polished.imports) if polished.imports else None
    new = values.apply(document.text, (*((added,) if added else ()), *polished.edits)) if polished.edits else ""
    return new, polished.imports


def test_an_answer_brings_its_import() -> None:
    text = '"""Doc."""\n\n\ndef f(x):\n    return ⟦⟧\n'
    assert filled(text, "json.dumps(x)")[0] == '"""Doc."""\n\nimport json\n\n\ndef f(x):\n    return json.dumps(x)\n'


def test_an_answer_without_a_certain_import_is_dropped_in_python() -> None:
    assert filled("def f(x):\n    return ⟦⟧\n", "sleep(x)") == ("", ())
    assert filled("def f(x):\n    return ⟦⟧\n", "nothing(json.dumps(x))") == ("", ())


def test_a_name_that_is_bound_needs_no_import() -> None:
    assert filled("def f(json):\n    return ⟦⟧\n", "json.dumps(1)") == ("def f(json):\n    return json.dumps(1)\n", ())


def test_an_import_is_not_added_below_or_at_the_hole() -> None:
    assert filled("⟦⟧\n", "json.dumps(1)") == ("", ())
    assert filled("⟦⟧\nimport os\n", "json.dumps(1)") == ("", ())


def test_typescript_answers_bring_their_import() -> None:
    files = indexed(main_ts="", tools_ts="export function read_box() {}\n")
    text = "import { a } from './a';\n\nfunction f() {\n  return ⟦⟧;\n}\n"
    new, imports = filled(text, "read_box()", name="main.ts", sources=Sources(files, "/repo/main.ts"))
    assert imports == (Import("./tools", "read_box", is_local=True),)
    assert new == text.replace("a';\n", "a';\nimport { read_box } from './tools';\n").replace("⟦⟧", "read_box()")


# --- Imports of what the repository lacks


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


def test_an_answer_that_imports_what_is_not_there_is_dropped() -> None:
    sources = Sources(indexed(**APP, app__common="class Task: ...\n"), "/repo/app/a.py")
    text = "from ⟦⟧\nprint(Task)\n"
    assert filled(text, ".common import Task", sources=sources)[0] == "from .common import Task\nprint(Task)\n"
    assert filled(text, ".base import Task", sources=sources)[0] == ""
