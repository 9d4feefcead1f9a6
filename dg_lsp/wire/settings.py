"""Every setting, declared once: its type and range, its default, what it does, and when to change it.

`config` derives from it the keys of configuration files, environment variables, editors' settings and the messages about
wrong values. `tests/pages/settings.py` derives VS Code's schema and the tables in the documentation.
"""

# Annotations are not postponed in this module, because `config` reads them as types when a front end starts.

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from dg_lsp.core.confidence import Threshold

AUTO = "auto"
"""The best laptop model that was pulled, or else the embedded one; see `laptop.resolve`."""
EMBEDDED = "embedded"
"""The model that comes with the package. The name never means a folder."""
EVERYTHING = ("*",)
"""The pattern that matches every file; used for `local_only` when the user's patterns can't be read."""
MAX_S = 1_000_000

Trigger = Literal["auto", "held", "manual"]
NextEditTrigger = Literal["off", "pause", "manual"]
DEVICES = ("auto", "cpu", "cuda", "mps")
Precision = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8", "int4"]
Check = Callable[[Any], None]


class BadValueError(ValueError):
    """A value is not allowed. The message completes a sentence that begins with its key."""


def check_patterns(patterns: tuple[str, ...]) -> None:
    """Raise BadValueError if the patterns are not valid for `privacy.local_only`."""
    # A later source must not cancel a pattern of an earlier one.
    if any(pattern.lstrip().startswith("!") for pattern in patterns):
        raise BadValueError("must be a list of patterns that do not begin with !")
    # imported here because most configurations have no pattern, and front ends must start fast
    from dg_lsp.core import gitignore

    try:
        gitignore.covers(patterns, "any")
    except gitignore.PatternError as error:
        raise BadValueError(f"must be a list of patterns as in .gitignore, and {error}") from error


def check_edit_form(model: str) -> None:
    """Raise BadValueError for a model that writes next edits in another form, judged by its name."""
    if other := re.search(r"zeta|mercury|instinct", model.casefold()):
        raise BadValueError(f"must be a model in the form of Sweep's, because dg-lsp does not write that of {other[0].title()}")


@dataclass(frozen=True, slots=True)
class About:
    """The description of a setting, and which sources may set it. `items` names the entries of a list.

    In editors that distinguish them, a `per_machine` setting belongs to the machine, not to a workspace. A wrong value
    is left out, or replaced by `if_wrong` if that is set. A workspace's value for an `is_users_own` setting is ignored, and one
    for a setting that `is_model` counts only if the user allows it.
    """

    key: str
    text: str
    change: str
    items: str = ""
    choices: tuple[str, ...] = ()
    in_editors: bool = True
    is_model: bool = False
    per_machine: bool = False
    check: Check | None = None
    if_wrong: object = None
    is_users_own: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """What the command line shows for a field of a dataclass. `name` is the option's name if it is not that of the field.

    `default` is shown instead of the field's default; "" shows none.
    """

    help: str
    metavar: str | None = None
    name: str = ""
    low: float | None = None
    high: float | None = None
    default: str | None = None
    is_argument: bool = False
    is_hidden: bool = False


Text = Annotated[str, Meta(pattern=r"\S")]
Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[int, Meta(ge=0, le=MAX_S)]


def setting(default: object, *about: Any, **more: Any) -> Any:
    """Return the field of a setting, which `About` describes."""
    return field(default=default, metadata={"about": About(*about, **more)})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, an attribute for each. Times are in milliseconds; the engine's are in seconds."""

    enable: bool = setting(
        True, "enable", "Offer suggestions and code actions.", "Turn it off where only `dg-lsp infill` should fill holes."
    )
    model: Text = setting(
        AUTO,
        "engine.model",
        "The model: `auto` (the best laptop model that you pulled, else the embedded one), `qwen2.5-coder-0.5b` "
        "(`-1.5b` if it is quick, `-7b` and `-14b` for a GPU), `smollm2-135m`, `embedded`, a folder (`./NAME`, `~/NAME`, "
        "`/NAME`) or a GGUF file there, a hub id (`OWNER/NAME`, maybe with `@REVISION`), `vllm:URL[#MODEL]`, "
        "`chat:URL[#MODEL]` or `fim:DIALECT[:URL][#MODEL]`.",
        "Change it when you have a GPU or a model server, or to keep to one model.",
        per_machine=True,
        is_model=True,
    )
    edit_model: Text = setting(
        AUTO,
        "engine.edit_model",
        "The model that writes next edits: a name as in `engine.model`, or `fim:openai:URL#MODEL`. It must have been trained "
        "in the form of Sweep's models. `auto`: `qwen2.5-coder-0.5b-edits`, which `dg-lsp engine pull` fetches.",
        "Set it with `next_edit.trigger`.",
        per_machine=True,
        is_model=True,
        check=check_edit_form,
    )
    device: Text = setting(
        "auto",
        "engine.device",
        "Where the model runs: `auto`, `cpu`, `cuda` or `mps`.",
        "Change it to keep the model off a GPU, or to choose one of several.",
        per_machine=True,
    )
    dtype: Precision = setting(
        "auto",
        "engine.dtype",
        "The precision of the weights: `auto`, `float32`, `bfloat16`, `float16`, `int8`, `fp8` (8 bits) or `int4`.",
        "Change it to save memory for other programs, or to load a model that is refused; `dg-lsp doctor` says what fits.",
        choices=(  # in the order of the schema, which sorts the values
            "the best that fits and that this machine computes fast",
            "16 bits",
            "16 bits, on GPUs without bfloat16",
            "32 bits",
            "8 bits",
            "4 bits (needs dg-lsp[quant])",
            "8-bit integers, for Llama and Qwen2 models on a CPU",
        ),
        per_machine=True,
    )
    allow: tuple[Text, ...] = setting(
        (),
        "engine.allow",
        "Hosts, folders and hub ids that a workspace's file or an editor may name in `engine.model`.",
        "Add one when a project you trust chooses its own model, such as `gpu01:8000` or `~/models`.",
        items="hosts, folders and hub ids",
        in_editors=False,
        is_users_own=True,
    )
    threads: Annotated[int, Meta(ge=0, le=1024)] = setting(
        0,
        "engine.threads",
        "Most CPU threads of the engine, which uses fewer while other programs need the cores; 0 means all physical cores, "
        "at most eight, and at most two for a small model.",
        "Lower it to save energy, or when other programs slow down.",
        per_machine=True,
    )
    unload_after: Seconds = setting(
        900,
        "engine.unload_after",
        "Seconds without a request after which the engine frees the model's memory; 0 means never. On a GPU it keeps the "
        "memory as long as an editor is open; `dg-lsp engine stop --now` frees it.",
        "Lower it when memory is short; raise it when the model takes long to load.",
        per_machine=True,
    )
    exit_after: Seconds = setting(
        600,
        "engine.exit_after",
        "Seconds without a client after which the engine's process ends; 0 means never.",
        "Raise it when you run single commands, minutes apart, with a large model.",
        in_editors=False,
    )
    trigger: Trigger = setting(
        "auto",
        "completion.trigger",
        "When to suggest: `auto` while typing; `held` prepares suggestions while typing and shows them when you press the key "
        "that reveals them (in VS Code and Neovim, elsewhere as `manual`); `manual` only when asked.",
        "Set `held` or `manual` when suggestions distract you, and `manual` when a remote model bills by the request.",
        choices=(
            "while typing",
            "prepared while typing, shown by the command Reveal Suggestion",
            "only when asked for (the command Trigger Inline Suggestion)",
        ),
    )
    debounce: Annotated[int, Meta(ge=0, le=10_000)] | None = setting(
        None,
        "completion.debounce",
        "Milliseconds to wait after a key before the model is asked; `auto` adapts to your typing and to the model.",
        "Raise it when suggestions appear before you have stopped typing, or to send fewer requests.",
    )
    deadline: Annotated[int, Meta(ge=0, le=600_000)] = setting(
        1500,
        "completion.deadline",
        "Milliseconds after which the best answer so far is shown.",
        "Raise it for a slow model; lower it if late suggestions distract you.",
    )
    threshold: Share = setting(
        0.3,
        "completion.threshold",
        "Show an unprompted suggestion only if it is right with at least this probability.",
        "Lower it to see more suggestions, raise it to see fewer and surer ones.",
    )
    uncalibrated_best: Annotated[int, Meta(ge=0, le=16)] = setting(
        1,
        "completion.uncalibrated_best",
        "For an uncalibrated model, whose answers have no probability: how many of its best answers may be shown "
        "unprompted. An answer with signs of an error, such as one that was cut off, is not shown.",
        "Set 0 to see no unprompted suggestion of a model before `dg-lsp calibrate` has measured it.",
    )
    token_threshold: Share = setting(
        0.1,
        "completion.token_threshold",
        "Cut a suggestion before its first token that is less certain than this.",
        "Lower it for longer suggestions, raise it for shorter ones with fewer errors.",
    )
    candidates: Annotated[int, Meta(ge=1, le=16)] = setting(
        3,
        "completion.candidates",
        "How many suggestions to choose from when you ask for them.",
        "Raise it if you often cycle through suggestions.",
    )
    in_comments: bool = setting(
        False, "completion.in_comments", "Suggest in comments while typing.", "Turn it on when you want help with prose."
    )
    in_strings: bool = setting(
        False,
        "completion.in_strings",
        "Suggest in strings while typing. An expression in an interpolated string counts as code.",
        "Turn it on when your strings hold code, such as SQL.",
    )
    disabled_languages: frozenset[str] = setting(
        frozenset(),
        "completion.disabled_languages",
        "Languages in which nothing is suggested while typing, by their id, such as `markdown`.",
        "Add a language whose suggestions do not help you.",
        items="language ids",
    )
    speculate: bool = setting(
        True,
        "completion.speculate",
        "While a suggestion is shown, request in advance what could follow; if the deadline left none, go on until a second.",
        "Turn it off to save power, or when a remote model bills by the request.",
    )
    completion_list: bool | None = setting(
        None,
        "completion.in_lists",
        "Offer suggestions in ordinary completion lists too; `auto` does so in editors without inline completion.",
        "Set `true` if no suggestions appear in your editor; set `false` if you see each suggestion twice.",
    )
    invoked_by_hand: bool = setting(
        False,
        "completion.invoked_by_hand",
        "In completion lists: a request of the trigger kind `Invoked` is one that you made by a key. It gets several "
        "suggestions whatever their probability, also in comments and with `completion.trigger` set to `manual`.",
        "Set `true` if your editor opens lists only when you press a key. Many editors also send this kind for each letter.",
    )
    next_edit: NextEditTrigger = setting(
        "off",
        "next_edit.trigger",
        "When to offer the next edit, a change that you will probably make near the cursor after your last ones: `off`; "
        "`pause` when you pause; `manual` only when asked. Needs `engine.edit_model`, and a client that shows next edits.",
        "Set `pause` if you have a model for it, and `manual` if the offers distract you or a server bills by the request.",
        choices=("only when asked for", "never, and nothing is remembered", "when you pause after a change"),
    )
    action_deadline: Annotated[int, Meta(ge=0, le=3_600_000)] = setting(
        20_000,
        "actions.deadline",
        "Milliseconds that each request of a code action may take.",
        "Raise it for a slow model or long functions.",
    )
    window_chars: Annotated[int, Meta(ge=100, le=1_000_000)] = setting(
        24_000,
        "context.window_chars",
        "How much of the file the model sees on each side of the hole, in characters.",
        "Raise it for a model that reads more; lower it when the first answer in a long file takes too long.",
    )
    related_chars: Annotated[int, Meta(ge=0, le=1_000_000)] = setting(
        6_000,
        "context.related_chars",
        "How much of other files the model sees, in characters.",
        "Set 0 to use one file at a time: no other file is then read, indexed or copied from.",
    )
    batch_deadline: Annotated[int, Meta(ge=0, le=3_600_000)] = setting(
        0,
        "batch.deadline",
        "Milliseconds for each hole of `dg-lsp infill`; 0 means no limit.",
        "Set it when a run must end within a known time.",
        in_editors=False,
    )
    batch_candidates: Annotated[int, Meta(ge=1, le=64)] = setting(
        4,
        "batch.candidates",
        "Answers to choose from for each hole of `dg-lsp infill`.",
        "Raise it when `--check` rejects many answers; lower it for speed.",
        in_editors=False,
    )
    local_only: tuple[Text, ...] = setting(
        (),
        "privacy.local_only",
        "Patterns, as in `.gitignore`, of files that are never sent to a remote model. A later source can add patterns, "
        "but not remove them.",
        "Set it before you use a remote model.",
        items="patterns as in .gitignore",
        in_editors=False,
        check=check_patterns,
        if_wrong=EVERYTHING,
    )

    @property
    def suggestion_threshold(self) -> Threshold:
        """The threshold for an unprompted suggestion and for the wording of a code action."""
        return Threshold(self.threshold, self.uncalibrated_best)


DEFAULTS = Settings()
