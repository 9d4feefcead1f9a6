from __future__ import annotations

import ast

import pytest

from dg_lsp.core import importing, values
from dg_lsp.core.values import Import

PATH, OS, NUMPY = Import("pathlib", "Path"), Import("os"), Import("numpy", alias="np")
OWN = Import("app.tools", "load", is_local=True)


def added(text: str, *imports: Import, language: str = "python") -> str:
    edit = importing.edit(text, language, imports)
    return values.apply(text, (edit,) if edit else ())


PYTHON = [
    ("x = 1\n", (OS,), "import os\n\n\nx = 1\n"),
    ("", (OS,), "import os\n"),
    ("#!/usr/bin/env python\n# Copyright.\n\n# About f.\ndef f(): pass\n", (OS,),
     "#!/usr/bin/env python\n# Copyright.\n\nimport os\n\n\n# About f.\ndef f(): pass\n"),
    ('"""Doc.\n\nimport this\n"""\n\nx = 1\n', (OS,), '"""Doc.\n\nimport this\n"""\n\nimport os\n\nx = 1\n'),
    ('"""Doc."""\nx = 1\n', (OS,), '"""Doc."""\n\nimport os\n\n\nx = 1\n'),
    ("from __future__ import annotations\n\nx = 1\n", (OS,), "from __future__ import annotations\n\nimport os\n\nx = 1\n"),
    ("import ast\nimport sys\n\nx = 1\n", (OS,), "import ast\nimport os\nimport sys\n\nx = 1\n"),
    ("import sys\nimport ast\n\nx = 1\n", (OS,), "import sys\nimport ast\nimport os\n\nx = 1\n"),
    ("import sys\nfrom re import match\n", (PATH,), "import sys\nfrom pathlib import Path\nfrom re import match\n"),
    ("import sys\n\nimport attr\n\nfrom app import x\n", (OWN,),
     "import sys\n\nimport attr\n\nfrom app import x\nfrom app.tools import load\n"),
    ("import sys\n\nx = 1\n", (NUMPY,), "import sys\n\nimport numpy as np\n\nx = 1\n"),
    ("import attr\n\nx = 1\n", (OS,), "import os\n\nimport attr\n\nx = 1\n"),
    ("from pathlib import PurePath\n", (PATH,), "from pathlib import Path, PurePath\n"),
    ("from app.tools import (\n    a,\n    save,\n)\n", (OWN,), "from app.tools import (\n    a,\n    load,\n    save,\n)\n"),
    ("from app.tools import (\n    a,\n)\n", (OWN,), "from app.tools import (\n    a,\n    load,\n)\n"),
    ("from app.tools import (  # these\n    a,\n)\n", (OWN,),
     "from app.tools import (  # these\n    a,\n)\nfrom app.tools import load\n"),
    ("from pathlib import Path\nimport os\n", (PATH, OS), "from pathlib import Path\nimport os\n"),
    ("import ast\r\n\r\nx = 1\r\n", (OS,), "import ast\r\nimport os\r\n\r\nx = 1\r\n"),
    ("import ast\n\nx = 1\n", (OS, PATH), "import ast\nimport os\nfrom pathlib import Path\n\nx = 1\n"),
    ("import ast\n\ndef f():\n    import zlib\n    (\n", (OS,), "import ast\nimport os\n\ndef f():\n    import zlib\n    (\n"),
    ("from .a import b\n", (Import(".tools", "load", is_local=True),), "from .a import b\nfrom .tools import load\n"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "imports", "expected"), PYTHON)
def test_an_import_is_written_where_the_others_are(text: str, imports: tuple[Import, ...], expected: str) -> None:
    assert added(text, *imports) == expected
    # A second time changes nothing.
    assert added(expected, *imports) == expected
    if "(\n" not in text.split("import")[-1]:
        ast.parse(expected)


SCRIPT = [
    ("const x = 1;\n", (Import("./a", "f"),), 'import { f } from "./a";\n\nconst x = 1;\n'),
    ('"use client"\n\nconst x = 1\n', (Import("./a", "f"),), '"use client"\n\nimport { f } from "./a"\n\nconst x = 1\n'),
    ("/** About g. */\nexport function g() {}\n", (Import("./a", "f"),),
     'import { f } from "./a";\n\n/** About g. */\nexport function g() {}\n'),
    ("import { a } from './a'\n\nf()\n", (Import("./b", "f"),), "import { a } from './a'\nimport { f } from './b'\n\nf()\n"),
    ("import { a, g } from './a';\n", (Import("./a", "f"),), "import { a, f, g } from './a';\n"),
    ('import {\n  a,\n} from "./a";\n', (Import("./a", "f"),), 'import {\n  a,\n  f,\n} from "./a";\n'),
    ('import type { A } from "./a";\n', (Import("./a", "f"),), 'import type { A } from "./a";\nimport { f } from "./a";\n'),
    ('import x from "x";\nimport { a } from "./a";\n', (Import("react", "default", "React"),),
     'import React from "react";\nimport x from "x";\nimport { a } from "./a";\n'),
    ('import x from "x";\n', (Import("fs", "*", "fs"),), 'import * as fs from "fs";\nimport x from "x";\n'),
    ('import "./style.css";\n', (Import("./a", "f"),), 'import "./style.css";\nimport { f } from "./a";\n'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "imports", "expected"), SCRIPT)
def test_typescript_keeps_the_files_quotes_and_semicolons(text: str, imports: tuple[Import, ...], expected: str) -> None:
    assert added(text, *imports, language="typescript") == expected
    assert added(expected, *imports, language="typescript") == expected


def test_other_languages_are_refused() -> None:
    with pytest.raises(ValueError, match="imports in go are not supported"):
        importing.edit("package a\n", "go", (OS,))
