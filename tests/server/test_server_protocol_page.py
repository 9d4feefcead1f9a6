"""The page for clients and the code say the same names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidParams

from dg_lsp.client.life import StateName
from dg_lsp.server import configuration, methods, reasons
from dg_lsp.server.methods import DraftHole, DraftParams, FillParams, MoveParams, StatusParams, Versioned
from dg_lsp.wire import config
from dg_lsp.wire.settings import Settings
from tests.pages import settings as settings_page

RANGE = lsp.Range(lsp.Position(1, 2), lsp.Position(3, 4))
PAGE = (Path(__file__).parents[2] / "editors" / "PROTOCOL.md").read_text(encoding="utf-8")


def test_every_message_and_command_is_on_the_page_and_no_other() -> None:
    notifications = re.findall(r"^### `(\S+)`$", PAGE, re.MULTILINE)
    assert tuple(notifications) == (methods.STATUS, methods.DRAFT, methods.REFRESH)
    bullets = re.findall(r"^\* `([\w/.]+)` ", PAGE, re.MULTILINE)
    assert tuple(bullets) == (methods.DID_MOVE, *methods.COMMANDS)
    names = {*notifications, methods.DID_MOVE, *methods.COMMANDS}
    assert set(re.findall(r"`(dgLsp[/.]\w+)`", PAGE)) == names
    assert f"version **{methods.VERSION}**" in PAGE


def test_every_setting_is_on_the_page_and_its_default_counts_as_null_does() -> None:
    listed = PAGE.partition(settings_page.BEGIN)[2].partition(settings_page.END)[0]
    assert re.findall(r"`([\w.]+)`", listed) == list(configuration.KEYS)
    other_settings = replace(Settings(), model="other", threshold=0.9, debounce=1, enable=False)
    for setting in config.OF_EDITORS:
        settings_read, problems = configuration.read({setting.editor_key: settings_page.default_of(setting)}, other_settings)
        assert problems == ()
        assert configuration.read({setting.editor_key: None}, other_settings)[0] == settings_read


def test_the_fields_of_each_message_are_on_the_page() -> None:
    draft = DraftParams("t", Versioned("u", 1), (DraftHole(RANGE, "x"),))
    params = FillParams("body", Versioned("u", 1), RANGE)
    for name, data in (
        ("Status", StatusParams("off", "m").to_json()),
        ("Draft", draft.to_json()),
        ("Refresh", methods.RefreshParams(Versioned("u", 1)).to_json()),
        ("FillParams", params.to_json()),
    ):
        block = re.search(rf"interface {name} \{{\n(.*?)^\}}", PAGE, re.MULTILINE | re.DOTALL)
        assert block is not None
        fields = set(re.findall(r"^  (\w+)\??:", block[1], re.MULTILINE))
        assert fields | {"version"} == set(data)
    assert set(get_args(StateName)) == set(re.findall(r'"(\w+)"', re.search(r"state: (.*);", PAGE)[1]))  # type: ignore[index]
    assert set(methods.KINDS) == set(re.findall(r'"(\w+)"', re.search(r"do: (.*);", PAGE)[1]))  # type: ignore[index]


def test_every_reason_is_on_the_page() -> None:
    listed_codes = set(re.findall(r"`(\w+)`", re.search(r"codes of `suppressed`: (.*)\.", PAGE)[1]))  # type: ignore[index]
    sources = "".join(path.read_text() for path in Path(reasons.__file__).parent.glob("*.py"))
    codes = set(re.findall(r'Reason\(\s*"(\w+)"', sources))
    assert listed_codes == codes - {"superseded", "moved"}


def test_fill_parameters_survive_a_round_trip() -> None:
    params = FillParams("regenerate", Versioned("untitled:a"), RANGE, "shorter")
    assert methods.read(params.to_json(), FillParams) == params
    with pytest.raises(JsonRpcInvalidParams, match="dance"):
        methods.read({**params.to_json(), "do": "dance"}, FillParams)


def at(**position: object) -> dict[str, object]:
    ends = {"start": position, "end": position}
    return {"do": "all", "textDocument": {"uri": "u"}, "range": ends, "position": position}


@pytest.mark.parametrize(
    "data",
    [
        None,
        5,
        [],
        {"do": "all"},
        {**at(line=0, character=0), "textDocument": 1},
        {**at(line=0, character=0), "textDocument": {"uri": None}},
        at(line=0, character=2**31),
        at(line=-1, character=0),
        at(line=float("inf"), character=0),
        at(line=0),
    ],
)
def test_unreadable_parameters_are_refused(data: object) -> None:
    for kind in (FillParams, MoveParams):
        with pytest.raises(JsonRpcInvalidParams):
            methods.read(data, kind)
    assert methods.read(at(line=0, character=2**31 - 1), MoveParams).document.uri == "u"
