"""Suggestions that bring the import of a name, as each kind of editor applies them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.editor import CODE, NEOVIM, PLAIN, Editor
from tests.e2e.test_server_suggestions import run, says

pytestmark = pytest.mark.e2e

URI = "file:///work/a.py"
HEAD = '"""Doc."""\n\n'
TEXT = HEAD + "import ast\n\n" + says(text="json.dumps(x)") + "def f(x):\n    return \n"
IMPORT = "import json\n"


def added(change: dict[str, object]) -> tuple[object, object]:
    return change["newText"], change["range"]


EDIT = (IMPORT, {"start": {"line": 3, "character": 0}, "end": {"line": 3, "character": 0}})


@pytest.mark.parametrize("capabilities", [CODE, NEOVIM])
def test_the_command_of_an_accepted_suggestion_adds_its_import(tmp_path: Path, capabilities: dict[str, object]) -> None:
    async def test(client: Editor) -> None:
        client.answers["workspace/applyEdit"] = lambda params: {"applied": True}
        client.open(TEXT, uri=URI)
        (item,) = await client.suggestions(6, 11, uri=URI)
        assert item["insertText"] == "json.dumps(x)"
        assert item["command"]["arguments"][1:] == [URI, ["import json"]]
        # The editor inserts the text, tells the server, and runs the command.
        client.change(2, {"text": TEXT.replace("return ", "return json.dumps(x)")}, uri=URI)
        await client.request("workspace/executeCommand", item["command"])
        (applied,) = [request["params"] for request in client.requests if request["method"] == "workspace/applyEdit"]
        changes = applied["edit"].get("changes", {}).get(URI) or applied["edit"]["documentChanges"][0]["edits"]
        assert [added(change) for change in changes] == [EDIT]
        # A second report of the same suggestion adds nothing.
        await client.request("workspace/executeCommand", item["command"])
        assert sum(request["method"] == "workspace/applyEdit" for request in client.requests) == 1

    run(tmp_path, capabilities, test)


def test_an_import_that_was_added_meanwhile_is_not_added_again(tmp_path: Path) -> None:
    async def test(client: Editor) -> None:
        client.open(TEXT, uri=URI)
        (item,) = await client.suggestions(6, 11, uri=URI)
        client.change(2, {"text": TEXT.replace("import ast\n", "import ast\nimport json\n")}, uri=URI)
        await client.request("workspace/executeCommand", item["command"])
        assert not [request for request in client.requests if request["method"] == "workspace/applyEdit"]

    run(tmp_path, CODE, test)


def test_an_item_of_a_completion_list_has_the_import_as_additional_edit(tmp_path: Path) -> None:
    async def test(client: Editor) -> None:
        client.open(TEXT, uri=URI)
        params = {"textDocument": {"uri": URI}, "position": {"line": 6, "character": 11}}
        answer = await client.request("textDocument/completion", params)
        (item,) = answer["items"]
        assert [added(change) for change in item["additionalTextEdits"]] == [EDIT]

    run(tmp_path, PLAIN, test)


def test_an_action_adds_the_imports_of_its_fills(tmp_path: Path) -> None:
    body = "def g(x):\n    raise NotImplementedError\n"

    async def test(client: Editor) -> None:
        client.answers["workspace/applyEdit"] = lambda params: {"applied": True}
        client.open(HEAD + says(text="return json.dumps(x)") + body, uri=URI)
        menu = await client.menu(4, 4, uri=URI)
        answer = await client.request("workspace/executeCommand", {k: menu[0][k] for k in ("command", "arguments")})
        assert json.dumps(answer["fills"][0]["range"]["start"]) == '{"line": 6, "character": 4}'
        (applied,) = [request["params"] for request in client.requests if request["method"] == "workspace/applyEdit"]
        assert [change["newText"] for change in applied["edit"]["changes"][URI]] == ["\nimport json\n", "return json.dumps(x)"]

    run(tmp_path, PLAIN, test)
