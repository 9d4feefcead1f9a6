"""What a shell offers as the value of an option: models, languages, devices and precisions; elsewhere it offers files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import typer

from dg_lsp.wire import laptop
from dg_lsp.wire.settings import AUTO, DEVICES, EMBEDDED, Precision


def model(incomplete: str) -> list[str]:
    """Return the models with a name of their own and the configured one, if the name begins with a text."""
    from dg_lsp.wire import config

    names = dict.fromkeys((AUTO, *(each.name for each in laptop.MODELS), EMBEDDED, config.read()[0].settings.model))
    return [name for name in names if name.startswith(incomplete)]


def model_option(text: str) -> Any:
    """Return the option for a model's name, with this help text."""
    return typer.Option(metavar="ID_OR_PATH", help=text, autocompletion=model)


def _language(incomplete: str) -> list[str]:
    from dg_lsp.core import languages

    return [each.name for each in languages.TABLE if each.name.startswith(incomplete)]


BY_NAME: dict[str, Callable[[str], list[str]]] = {
    "model": model,
    "device": lambda incomplete: [each for each in DEVICES if each.startswith(incomplete)],
    "dtype": lambda incomplete: [each for each in get_args(Precision) if each.startswith(incomplete)],
    "lang": _language,
}
"""What is offered for the options that `from_options` makes, by their names."""
