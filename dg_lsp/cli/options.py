"""What all commands share: groups of commands, messages to the user, and options that are declared elsewhere.

A command has an option for each field of those of its parameters that are dataclasses. A field is `Annotated` with an `Option`,
or it has the name of a setting, whose declaration has the help text, the limits and the default. A unit at the end of a field's
name is not part of the option's. A shell completes models, languages, devices and precisions.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin, get_type_hints

import msgspec
import typer

from dg_lsp import is_interrupt
from dg_lsp.wire import config, laptop
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.settings import AUTO, DEFAULTS, DEVICES, EMBEDDED, Option, Precision
from dg_lsp.wire.visible import visible_message


def command_group(
    *,
    name: str | None = None,
    cls: type[typer.core.TyperGroup] | None = None,
    summary: str | None = None,
    completes: bool = False,
) -> typer.Typer:
    """Return an empty group of commands. A group with a `summary` prints its help if it is run without arguments.

    `completes` adds the options that install the shell's completion; only the outermost group has them.
    """
    return typer.Typer(
        name=name,
        cls=cls,
        help=summary,
        no_args_is_help=summary is not None,
        add_completion=completes,
        rich_markup_mode=None,
        # Our own handlers turn an exception into one sentence.
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def print_message(text: str, who: str = "dg-lsp") -> None:
    """Print a message to standard error, so that it is not part of the results."""
    typer.echo(f"{who}: {visible_message(text)}", err=True)


def fail(text: str, who: str = "dg-lsp", code: int = 2) -> NoReturn:
    """Print a message to standard error, and end the command with this exit status."""
    print_message(text, who)
    raise typer.Exit(code)


@contextlib.contextmanager
def reports(*errors: type[Exception], who: str = "dg-lsp", doing: str = "") -> Iterator[None]:
    """End a command with status 2 and one sentence if one of these errors is raised; used as a decorator.

    With `doing`, such as "measuring", so does a missing package of the engine.
    """
    try:
        yield
    except errors as error:
        fail(str(error), who)
    except ModuleNotFoundError as error:
        if not doing or is_interrupt(error):
            raise
        fail(f"{doing} needs {error.name}, which is not installed; install it with: {install_command('engine')}", who)


# --- Options

_SETTINGS = {setting.field: setting for setting in config.SETTINGS}


def with_options(
    command: Callable[..., None], made: Mapping[type[Any], Callable[[Any], object]] | None = None
) -> Callable[..., None]:
    """Return the command with an option for each field of its dataclasses.

    `made` has functions that turn a dataclass of these kinds into the command's argument.
    """
    own = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: each.annotation for name, each in own.items() if is_dataclass(each.annotation)}
    parameters = [each for name, one in own.items() for each in (_options_of(groups[name]) if name in groups else [one])]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, kind in groups.items():
            given = {field.name: values.pop(_name(field.name)) for field in fields(kind)}
            # typer gives a list for a tuple, and None for an empty one
            one = kind(**{name: tuple(given[name] or ()) if _is_tuple(hint) else given[name] for name, hint in _hints(kind)})
            finish = (made or {}).get(kind)
            values[name] = finish(one) if finish else one
        command(**values)

    # Typer reads the options from here.
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _options_of(kind: type[Any]) -> Iterator[inspect.Parameter]:
    for field, hint in zip(fields(kind), dict(_hints(kind)).values(), strict=True):
        name, default = _name(field.name), field.default
        if get_origin(hint) is Annotated:
            hint, option = get_args(hint)
        else:
            option, default = _of_setting(name), getattr(DEFAULTS, name)
        names = (option.name or f"--{name.replace('_', '-')}",) if hint is bool or option.name else ()
        if _is_tuple(hint):
            hint, default = Union[list[get_args(hint)[0]], None], None  # type: ignore[misc]  # noqa: UP007 -- made here
        info = _info(typer.Argument if option.is_argument else typer.Option, name, option, *names)
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, info])


def _of_setting(name: str) -> Option:
    setting = _SETTINGS[name]
    kind = msgspec.inspect.type_info(setting.kind)
    return Option(setting.about.text.replace("`", ""), low=getattr(kind, "ge", None), high=getattr(kind, "le", None))


def _info(shown: Callable[..., Any], name: str, option: Option, *names: str) -> Any:
    about = {"metavar": option.metavar, "help": option.help, "autocompletion": _COMPLETIONS.get(name)}
    limits = {name: limit for name, limit in (("min", option.low), ("max", option.high)) if limit is not None}
    default = {} if option.default is None else {"show_default": option.default}
    parser = {"parser": named_path} if option.is_argument else {}
    return shown(*names, **about, **limits, **default, **parser, hidden=option.is_hidden, callback=_with_value)


def named_path(value: str | Path) -> Path:
    """Return a named path; refuse an empty one, which as a `Path` is the current folder, and one of spaces."""
    if not str(value).strip():
        fail("a path is empty; give it a value, or leave it out")
    return Path(value)


def _with_value(context: typer.Context, option: typer.CallbackParam, value: Any) -> Any:
    """Return the value; refuse an empty one or one of spaces, which a variable of a script may be that is not set."""
    is_given = (source := context.get_parameter_source(option.name or "")) is not None and source.name == "COMMANDLINE"
    values = value if isinstance(value, list) else [value]
    if is_given and any(isinstance(each, str | Path) and not str(each).strip() for each in values):
        fail(f"{option.opts[0]} is empty; give it a value, or leave it out")
    return value


def _hints(kind: type[Any]) -> list[tuple[str, Any]]:
    return list(get_type_hints(kind, include_extras=True).items())


def _is_tuple(hint: Any) -> bool:
    return get_origin(get_args(hint)[0] if get_origin(hint) is Annotated else hint) is tuple


def _name(field: str) -> str:
    return field.removesuffix("_s")


def complete_model(incomplete: str) -> list[str]:
    """Return the models with a name of their own and the configured one, if the name begins with a text."""
    names = dict.fromkeys((AUTO, *(each.name for each in laptop.MODELS), EMBEDDED, config.read()[0].settings.model))
    return [name for name in names if name.startswith(incomplete)]


def model_option(text: str) -> Any:
    """Return the option for a model's name, with this help text."""
    return typer.Option(metavar="ID_OR_PATH", help=text, autocompletion=complete_model, callback=_with_value)


def _language(incomplete: str) -> list[str]:
    from dg_lsp.core import languages

    return [each.name for each in languages.TABLE if each.name.startswith(incomplete)]


_COMPLETIONS: dict[str, Callable[[str], list[str]]] = {
    "model": complete_model,
    "device": lambda incomplete: [each for each in DEVICES if each.startswith(incomplete)],
    "dtype": lambda incomplete: [each for each in get_args(Precision) if each.startswith(incomplete)],
    "lang": _language,
}
"""What a shell offers as the value of an option, by its name; elsewhere it offers files."""
