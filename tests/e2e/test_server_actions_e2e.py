"""Code actions as editors run them: resolve, command, progress, cancellation, drafts, stale documents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.editor import CODE, KATE, NEOVIM, PLAIN, URI, editor, says
from tests.e2e.rpc import RpcError

pytestmark = pytest.mark.e2e

TWO = "def f():\n    raise NotImplementedError\n\n\ndef g():\n    raise NotImplementedError\n"


async def test_an_action_is_resolved_to_an_edit_of_that_version(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE) as client:
        client.open(says(text="return 1") + TWO, version=7)
        menu = await client.menu(2, 4)
        assert [action["title"] for action in menu] == ["Fill function body", "Fill all 2 holes in this file"]
        assert [action["tags"] for action in menu] == [[1], [1]]
        assert not any("command" in action or "edit" in action for action in menu)
        assert not client.asked
        resolved = await client.request("codeAction/resolve", menu[0])
        (change,) = resolved["edit"]["documentChanges"]
        assert change["textDocument"] == {"uri": URI, "version": 7}
        (edit,) = change["edits"]
        assert edit["newText"] == "return 1"
        assert edit["range"] == {"start": {"line": 2, "character": 4}, "end": {"line": 2, "character": 29}}
        assert edit["annotationId"] in resolved["edit"]["changeAnnotations"]


@pytest.mark.parametrize(("threshold", "is_sure"), [(0.15, False), (0.03, True)])
async def test_a_fill_below_the_threshold_is_called_a_guess(tmp_path: Path, threshold: float, is_sure: bool) -> None:
    async with editor(tmp_path, CODE, options={"dgLsp": {"completion": {"threshold": threshold}}}) as client:
        client.open(says(text="return 1", probability=0.04) + TWO)
        resolved = await client.request("codeAction/resolve", (await client.menu(2, 4))[0])
        assert resolved["edit"]["documentChanges"][0]["edits"][0]["newText"] == "return 1"
        messages = [each["message"] for each in client.said("window/showMessage")]
        labels = [each["label"] for each in resolved["edit"]["changeAnnotations"].values()]
        if is_sure:
            assert (resolved["title"], messages) == ("Fill function body (4 %)", [])
            assert labels == ["Filling the function body (4 %)"]
        else:
            assert resolved["title"] == "Fill function body (best guess, 4 %)"
            assert labels == ["Filling the function body (best guess, 4 %)"]
            assert messages == ["dg-lsp: best guess, 4 %: check what was filled"]


async def test_progress_and_drafts_are_seen_while_it_runs(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE) as client:
        client.open(says(texts=["return 1", "return 2"]) + TWO)
        menu = await client.menu(2, 4)
        resolved = await client.request("codeAction/resolve", menu[1])
        assert [edit["newText"] for edit in resolved["edit"]["documentChanges"][0]["edits"]] == ["return 1", "return 2"]
        bar = [params["value"] for params in client.said("$/progress")]
        assert [value["kind"] for value in bar] == ["begin", "report", "report", "end"]
        assert bar[0]["title"] == "Filling all holes"
        assert bar[0]["cancellable"]
        assert [value["message"] for value in bar[1:3]] == ["0 of 2", "2 of 2"]
        first, last = client.said("dgLsp/draft")
        assert first["textDocument"] == {"uri": URI, "version": 1}
        assert [hole["text"] for hole in first["holes"]] == ["...", "..."]
        assert first["holes"][0]["range"]["start"] == {"line": 2, "character": 4}
        assert not first["done"]
        assert last["done"]
        assert first["token"] == last["token"]
        assert [params["busy"] for params in client.said("dgLsp/status")][-2:] == [True, False]


@pytest.mark.smoke
async def test_the_user_can_cancel_it(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE) as client:
        client.open(says(gate=str(tmp_path / "never")) + TWO)
        menu = await client.menu(2, 4)
        _, resolving = client.start("codeAction/resolve", menu[0])
        await client.until_asked()
        await client.until(lambda: client.said("$/progress"))
        token = client.said("$/progress")[0]["token"]
        client.notify("window/workDoneProgress/cancel", {"token": token})
        with pytest.raises(RpcError) as error:
            await resolving
        assert error.value.code == -32800
        await client.until_asked(what="cancelled")
        msg_id, resolving = client.start("codeAction/resolve", menu[0])
        await client.until_asked(2)
        client.notify("$/cancelRequest", {"id": msg_id})
        with pytest.raises(RpcError) as error:
            await resolving
        assert error.value.code == -32800
        await client.until_asked(2, "cancelled")
        await client.until(lambda: not client.said("dgLsp/status")[-1]["busy"])


async def test_an_action_for_an_older_version_is_refused(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async with editor(tmp_path, CODE) as client:
        client.open(says(gate=str(gate)) + TWO)
        menu = await client.menu(2, 4)
        _, resolving = client.start("codeAction/resolve", menu[0])
        await client.until_asked()
        client.change(2, {"text": "x = 1\n"})
        # The change has been read when a later request is answered; only then may the engine answer.
        await client.status()
        gate.touch()
        for answer in (resolving, client.start("codeAction/resolve", menu[0])[1]):
            with pytest.raises(RpcError) as error:
                await answer
            assert error.value.code == -32801


# Kate announces nothing, and applies edits all the same.
@pytest.mark.parametrize(("capabilities", "where"), [(NEOVIM, "changes"), (KATE, "changes"), (CODE, "documentChanges")])
async def test_a_command_applies_the_edit(tmp_path: Path, capabilities: Mapping[str, Any], where: str) -> None:
    async with editor(tmp_path, capabilities) as client:
        client.answers["workspace/applyEdit"] = lambda params: {"applied": True}
        client.open(says(text="g(b)") + "x = f(a)\n")
        menu = await client.menu(1, 4, end=(1, 8))
        (action,) = [action for action in menu if action["title"] == "Regenerate selection"]
        call = action.get("command") or {"command": "dgLsp.fill", "arguments": [action["data"]]}
        call["arguments"][0]["instruction"] = "call g"
        assert (await client.request("workspace/executeCommand", call))["applied"] is True
        (workspace_edit,) = [
            request["params"]["edit"] for request in client.requests if request["method"] == "workspace/applyEdit"
        ]
        assert where in workspace_edit


async def test_an_editor_that_knows_only_commands_gets_commands(tmp_path: Path) -> None:
    async with editor(tmp_path, PLAIN) as client:
        client.open(says(text="return 1") + TWO)
        menu = await client.menu(2, 4)
        assert [entry["command"] for entry in menu] == ["dgLsp.fill"] * 2
        answer = await client.request("workspace/executeCommand", {k: menu[0][k] for k in ("command", "arguments")})
        assert not answer["applied"]
        assert answer["edit"]["changes"][URI][0]["newText"] == "return 1"


async def test_an_action_without_an_edit_shows_the_reason(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE) as client:
        client.open(says(text="return (") + TWO)
        resolved = await client.request("codeAction/resolve", (await client.menu(2, 4))[0])
        assert "edit" not in resolved
        await client.until(lambda: client.said("window/showMessage"))
        assert client.said("window/showMessage")[0]["message"].startswith("dg-lsp: nothing was filled: the answer ")


async def test_an_engine_failure_is_shown_once_for_each_action(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE) as client:
        client.open(says(fail="the engine has no memory left") + TWO)
        # Suggestions have reported the error already, but an explicit request reports it again.
        assert await client.suggestions(2, 4, trigger=1) == []
        menu = await client.menu(2, 4)
        for n_told in (2, 3):
            assert "edit" not in await client.request("codeAction/resolve", menu[0])
            await client.status()
            messages = client.said("window/showMessage")
            assert messages == [{"type": 2, "message": "dg-lsp: the engine has no memory left"}] * n_told
        client.stderr = b""


async def test_automatic_menus_list_only_nearby_actions(tmp_path: Path) -> None:
    text = "def far():\n    # FILL\n" + "x = 1\n" * 20_000 + "def near():\n    # FILL: add\n"

    async with editor(tmp_path, CODE) as client:
        client.open(text)
        at = {"line": 20_003, "character": 6}
        params: dict[str, Any] = {
            "textDocument": {"uri": URI},
            "range": {"start": at, "end": at},
            "context": {"diagnostics": []},
        }
        for version in (1, 2):
            for kind, expected in ((2, ["Fill this hole: add"]), (1, ["Fill this hole: add", "Fill all 2 holes in this file"])):
                params["context"]["triggerKind"] = kind
                actions = await client.request("textDocument/codeAction", params)
                assert [action["title"] for action in actions if action["title"].startswith("Fill")] == expected
            client.change(version + 1, {"range": {"start": at, "end": at}, "text": " "})


WORKING = "def f(count):\n    return count + 1\n"
PREVIEW = {**CODE, "experimental": {"dgLsp": {"status": True, "preview": True}}}


def regenerate(text: str) -> dict[str, Any]:
    line = text[: text.index("return")].count("\n")
    ends = {"start": {"line": line, "character": 4}, "end": {"line": line, "character": 20}}
    return {"do": "regenerate", "textDocument": {"uri": URI, "version": 1}, "range": ends}


@pytest.mark.parametrize(("answer", "is_replaced"), [({"title": "Replace"}, True), ({"title": "Keep"}, False), (None, False)])
async def test_working_code_is_shrunk_only_after_confirmation(
    tmp_path: Path, answer: Mapping[str, str] | None, is_replaced: bool
) -> None:
    async with editor(tmp_path, NEOVIM) as client:
        questions: list[Any] = []

        def answered(params: Any) -> Any:
            questions.append(params)
            return answer

        client.answers["window/showMessageRequest"] = answered
        client.answers["workspace/applyEdit"] = lambda params: {"applied": True}
        text = says(text="pass") + WORKING
        client.open(text)
        result = await client.request("workspace/executeCommand", {"command": "dgLsp.fill", "arguments": [regenerate(text)]})
        (question,) = questions
        assert question["message"] == (
            "dg-lsp: this replaces working code by less: `return count + 1` becomes `pass`. Replace it?"
        )
        assert [action["title"] for action in question["actions"]] == ["Replace", "Keep"]
        assert result["applied"] is is_replaced
        if is_replaced:
            (fill,) = result["fills"]
            assert (result["nHoles"], fill["text"], fill["confidence"]) == (1, "pass", "90 %")
            assert fill["range"] == {"start": {"line": 2, "character": 4}, "end": {"line": 2, "character": 8}}
            assert result["note"] == "90 %, replaces working code by less"


async def test_an_editor_that_can_not_ask_keeps_the_working_code(tmp_path: Path) -> None:
    async with editor(tmp_path, KATE) as client:
        text = says(text="pass") + WORKING
        client.open(text)
        result = await client.request("workspace/executeCommand", {"command": "dgLsp.fill", "arguments": [regenerate(text)]})
        assert result == {"applied": False}
        assert client.said("window/showMessage")[-1]["message"] == "dg-lsp: nothing was replaced"


@pytest.mark.parametrize(("answer", "note"), [("return 2", "90 %"), ("pass", "90 %, replaces working code by less")])
async def test_a_regenerated_selection_needs_confirmation_in_a_preview(tmp_path: Path, answer: str, note: str) -> None:
    async with editor(tmp_path, PREVIEW) as client:
        text = says(text=answer) + WORKING
        client.open(text)
        edits: list[Any] = []

        def apply(params: Any) -> Any:
            edits.append(params)
            return {"applied": True}

        client.answers["workspace/applyEdit"] = apply
        action = (await client.menu(2, 4, end=(2, 20)))[-1]
        result = await client.request("workspace/executeCommand", action["command"])
        assert (action["title"], result["note"]) == ("Regenerate selection", note)
        (annotation,) = edits[0]["edit"]["changeAnnotations"].values()
        assert annotation["needsConfirmation"] is True
        assert annotation["label"] == f"Regenerating the selection ({note})"
        assert not client.said("window/showMessageRequest")
        # A body needs none: it replaces a placeholder.
        client.change(2, {"text": says(text="return 1") + TWO})
        resolved = await client.request("codeAction/resolve", (await client.menu(2, 4))[0])
        (annotation,) = resolved["edit"]["changeAnnotations"].values()
        assert "needsConfirmation" not in annotation


async def test_an_action_with_a_command_is_left_to_the_command(tmp_path: Path) -> None:
    async with editor(tmp_path, NEOVIM) as client:
        client.open(says(text="return 1") + TWO)
        action = (await client.menu(2, 4))[0]
        assert action["command"]["command"] == "dgLsp.fill"
        assert await client.request("codeAction/resolve", action) == action
        assert not client.asked


async def test_the_bar_counts_holes_that_are_tried_one_by_one(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE) as client:
        client.open(says(texts=["return ("]) + TWO)
        await client.request("codeAction/resolve", (await client.menu(2, 4))[1])
        reports = [each["value"]["message"] for each in client.said("$/progress") if each["value"]["kind"] == "report"]
        assert reports == ["0 of 2", "0 of 2", "1 of 2", "2 of 2"]
