"""The table of settings, and what is generated from it: pages, variables, editors' schema, messages."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.cli.engine import start
from dg_lsp.wire import config
from dg_lsp.wire.config import OF_EDITORS, SETTINGS, Setting
from dg_lsp.wire.settings import DEFAULTS, BadValueError, Settings
from tests.pages import settings as pages
from tests.pages.settings import default_of, schema_of

ROOT = Path(__file__).parents[2]


def by_key(key: str) -> Setting:
    return next(setting for setting in SETTINGS if setting.key == key)


@pytest.mark.skipif(not (ROOT / "editors").exists(), reason="the editors' files are not part of a source distribution")
def test_every_page_shows_the_settings_as_they_are_declared() -> None:
    assert pages.outdated(ROOT) == {}, "run: make settings"


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_that_differs_from_the_settings_is_out_of_date(tmp_path: Path, name: str) -> None:
    for page in pages.PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text((ROOT / page).read_text("utf-8"), "utf-8")
    changed_page = tmp_path / name
    text = changed_page.read_text("utf-8")
    changed_page.write_text(text.replace("900", "901", 1).replace("`engine.unloadAfter`", "`engine.unloadLater`", 1), "utf-8")
    assert pages.outdated(tmp_path) == {changed_page: (ROOT / name).read_text("utf-8")}


def test_every_setting_says_what_it_does_and_when_to_change_it() -> None:
    for setting in SETTINGS:
        for sentence in (setting.about.text, setting.about.change):
            assert sentence[0].isupper()
            assert sentence.endswith(".")
            assert "|" not in sentence.replace("`", "")


def test_keys_and_variables_are_distinct() -> None:
    assert len({config.squeezed(setting.key) for setting in SETTINGS}) == len(SETTINGS)
    variables = [setting.variable for setting in SETTINGS if setting.variable]
    assert len(set(variables)) == len(variables)
    assert {setting.field for setting in SETTINGS} == set(Settings.__slots__)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_default_is_valid_and_parses(setting: Setting) -> None:
    assert setting.parse(default_of(setting)) == getattr(DEFAULTS, setting.field)
    assert setting.parse(None) == getattr(DEFAULTS, setting.field)


@pytest.mark.parametrize("setting", OF_EDITORS, ids=lambda setting: setting.key)
def test_the_editors_schema_accepts_exactly_the_valid_values(setting: Setting) -> None:
    """The schema's bounds are accepted, and the values just outside are not."""
    schema: Any = schema_of(setting)
    for name, step in (("minimum", -1), ("maximum", 1)):
        if name in schema:
            assert setting.parse(schema[name]) == schema[name]
            with pytest.raises(BadValueError, match=r"^must be a (whole )?number from "):
                setting.parse(schema[name] + step)
    for choice in schema.get("enum", ()):
        setting.parse(choice)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("engine.threads", 10**400, "must be a whole number from 0 to 1024, not a huge number"),
        ("engine.threads", 1.5, "must be a whole number from 0 to 1024, not 1.5"),
        ("engine.threads", "\ud800", "must be a whole number from 0 to 1024, not"),
        ("engine.threads", {}, "must be a whole number from 0 to 1024, not a table"),
        ("completion.threshold", float("nan"), "must be a number from 0 to 1, not NaN"),
        ("engine.device", "x" * 0, 'must be a string that is not empty, not ""'),
        ("completion.trigger", "x" * 99, 'must be "auto" or "held" or "manual", not "xxx'),
        ("engine.model", "auto" * 0, "must be a string that is not empty"),
        ("privacy.local_only", [" "], "must be a list of patterns as in .gitignore"),
    ],
)
def test_a_wrong_value_is_reported_with_the_valid_values(key: str, value: object, message: str) -> None:
    with pytest.raises(BadValueError) as error:
        by_key(key).parse(value)
    assert str(error.value).startswith(message)
    assert len(str(error.value)) < 120


@pytest.mark.parametrize("name", ["model", "device", "dtype", "threads", "unload_after", "exit_after"])
def test_an_option_for_a_setting_says_what_its_declaration_says(name: str) -> None:
    parameter = inspect.signature(start).parameters[name]
    [option] = parameter.annotation.__metadata__
    setting = by_key(f"engine.{name}")
    bounds = schema_of(setting).get("minimum"), schema_of(setting).get("maximum")
    assert (option.min, option.max) == bounds
    assert option.help == setting.about.text.replace("`", "")
    assert parameter.default == getattr(DEFAULTS, name)
