"""The values that a shell offers for an option, and the option that several commands have.

Knows typer and the settings; imports nothing slow before a shell asks.
Where no value begins with the text at the cursor, the shell offers files.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any, get_args

import typer

from dg_lsp.wire import laptop
from dg_lsp.wire.settings import AUTO, DEVICES, EMBEDDED, Precision

Complete = Callable[[str], list[str]]
"""What `typer.Option` takes as `autocompletion`: a function from the text at the cursor to whole values."""


def one_of(values: Callable[[], Iterable[str]]) -> Complete:
    """Return the completion of one of the values that the function returns."""

    def complete(incomplete: str) -> list[str]:
        return [text for text in values() if text.startswith(incomplete)]

    return complete


def several_of(values: Callable[[], Iterable[str]]) -> Complete:
    """Return the completion of a comma-separated list of the values that the function returns, each at most once."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{text}" for text in values() if text.startswith(last) and text not in given]

    return complete


def of(module: str, name: str) -> Callable[[], Iterable[str]]:
    """Return a function that returns a module's values, and imports the module first."""
    return lambda: getattr(importlib.import_module(module), name)


def language(incomplete: str) -> list[str]:
    """Return the languages whose name begins with a text."""
    from dg_lsp.core import languages

    return [each.name for each in languages.TABLE if each.name.startswith(incomplete)]


def model(incomplete: str) -> list[str]:
    """Return the models with a name of their own and the configured one, if the name begins with a text."""
    from dg_lsp.wire import config

    names = dict.fromkeys((AUTO, *(each.name for each in laptop.MODELS), EMBEDDED, config.read()[0].settings.model))
    return [name for name in names if name.startswith(incomplete)]


def model_option(text: str) -> Any:
    """Return the option for a model's name, with this help text."""
    return typer.Option(metavar="ID_OR_PATH", help=text, autocompletion=model)


device = one_of(lambda: DEVICES)
BY_NAME = {
    "model": model,
    "device": device,
    "dtype": one_of(lambda: get_args(Precision)),
    "lang": language,
    "holes": several_of(of("dg_lsp.batch.plan", "KINDS")),
    "fail_on": one_of(of("dg_lsp.batch.report", "FAIL_ON")),
    "ray": one_of(lambda: ("local", "auto")),
}
"""What is offered for the options that `from_options` makes, by their names."""
