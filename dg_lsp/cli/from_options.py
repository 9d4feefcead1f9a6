"""Make a command's options of the fields of a dataclass, each of which is `Annotated` with an `Option`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from dg_lsp.batch.options import Option
from dg_lsp.cli.completions import Complete


def command_of(
    run: Callable[[typer.Context, Any], None], kind: type[Any], completions: Mapping[str, Complete], argument: str
) -> Callable[..., None]:
    """Return a command that calls `run` with a `kind` of the options' values. The field `argument` has no option name."""
    hints = get_type_hints(kind, include_extras=True)
    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    lists = []
    for field in fields(kind):
        hint, option = get_args(hints[field.name])
        default: object = field.default
        if get_origin(hint) is tuple:  # typer gives a list, and None without a value
            lists.append(field.name)
            hint, default = Union[list[get_args(hint)[0]], None], None  # type: ignore[misc]  # noqa: UP007 -- made here
        shown = typer.Argument if field.name == argument else typer.Option
        info = shown(*_names(field.name, hint, option), **_about(option, completions.get(field.name)))
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, info])
        )

    @functools.wraps(run)
    def command(context: typer.Context, **values: Any) -> None:
        run(context, kind(**{**values, **{name: tuple(values[name] or ()) for name in lists}}))

    # Typer reads the options from here.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _names(name: str, hint: object, option: Option) -> tuple[str, ...]:
    """Return the option's name if typer would choose another, such as `--write/--no-write`."""
    return (option.name or f"--{name.replace('_', '-')}",) if hint is bool else ()


def _about(option: Option, complete: Complete | None) -> dict[str, Any]:
    limits = {"min": option.low, "max": option.high}
    return {
        "metavar": option.metavar,
        "help": option.help,
        "autocompletion": complete,
        **{name: limit for name, limit in limits.items() if limit is not None},
        **({} if option.default is None else {"show_default": option.default}),
    }
