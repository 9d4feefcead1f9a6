"""The options of `dg-lsp infill` and their help texts. Imports nothing that `--help` does not need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dg_lsp.wire import completions

# Typer reads these annotations at run time; a default of None needs `| None` there.
Paths = Annotated[list[Path] | None, typer.Argument(metavar="PATH", help="Files and folders to fill.")]
Holes = Annotated[
    str,
    typer.Option(
        metavar="KINDS",
        help="The kinds of holes to fill: bodies, markers, empty; separated by commas.",
        autocompletion=completions.several_of(completions.of("dg_lsp.batch.plan", "KINDS")),
    ),
]
At = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLACE",
        help="Fill the hole at a place: FILE:LINE:COL or FILE:LINE:COL-LINE:COL, counted from 1. Repeatable.",
    ),
]
Places = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="Fill the holes at the places in this file, or in standard input with -: one on each line, as for --at, with a "
        "colon and a comment of what to write after it. Also reads ast-grep's --json=stream.",
    ),
]
Languages = Annotated[
    list[str] | None,
    typer.Option(
        "--lang",
        metavar="NAME",
        help="Only files in this language. Repeatable.",
        autocompletion=completions.language,
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Only files that match, as in .gitignore. Repeatable."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Skip files that match, as in .gitignore. Repeatable."),
]
ChangedSince = Annotated[str, typer.Option(metavar="REV", help="Only files that differ from this git revision.")]
Symbol = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Only holes in this function, method or class. Repeatable."),
]
MaxHoles = Annotated[int, typer.Option(min=0, help="Maximum number of holes to fill. 0: no limit.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the holes and the skipped files, and fill nothing.")]

Check = Annotated[
    str,
    typer.Option(
        metavar="COMMAND",
        help="Accept a fill if this shell command proves it. The command runs in a copy of the project. It must fail while the "
        "hole raises an error, and pass with the fill. A fill with which it fails is dropped. {} is the path of the file in "
        "the copy. If the command runs pytest, each test is judged by its own result.",
    ),
]
Jobs = Annotated[int, typer.Option(min=1, max=64, help="Number of checks that run at once, each in its own copy.")]
CheckTimeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.1,
        help="Stop a check that takes longer. Default: ten times as long as those before it, at least 60 and at most 600.",
    ),
]
CheckMemory = Annotated[
    int,
    typer.Option(
        metavar="MIB",
        min=0,
        help="Stop a check whose processes use more memory. 0: no limit. Linux only.",
    ),
]
MinConfidence = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        min=0.0,
        max=1.0,
        help="Accept a fill that no check proves only if its probability is at least this. "
        "Default: 0.8 for bodies, 0.5 for a place or a selection (--at) and for a marker, 0.8 if that gets several lines. "
        "A probability of 0.8 means that eight of ten such fills are right.",
        show_default=False,
    ),
]
TakeAll = Annotated[bool, typer.Option("--all", help="Accept every fill that parses and that the check does not reject.")]
Candidates = Annotated[int, typer.Option(min=1, max=64, help="Number of answers to choose from for each hole.")]
Retries = Annotated[
    int,
    typer.Option(min=0, max=64, help="Number of further rounds for a hole without an acceptable answer."),
]
AllowShrink = Annotated[
    bool,
    typer.Option(
        "--allow-shrink",
        help="Allow a fill to replace working code with a placeholder, comments or nothing. Refused by default.",
    ),
]

Write = Annotated[
    bool,
    typer.Option("--write", help="Write the fills into the files instead of printing a diff."),
]
Commit = Annotated[
    str,
    typer.Option(
        metavar="UNIT",
        help="Write the fills and commit them to git: a commit for each `file` or each `hole`.",
        autocompletion=completions.one_of(completions.of("dg_lsp.batch.write", "UNITS")),
    ),
]
Interactive = Annotated[
    bool,
    typer.Option("--interactive", help="Review each hole, unsure ones too: accept, reject, next candidate, edit, quit."),
]
Report = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report as one HTML page that works offline.")]
Patch = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the diff into this file instead of printing it.")]
FailOn = Annotated[
    str,
    typer.Option(
        metavar="HOLES",
        help="Which holes let the command exit with 1: open (unsure or failed), failed, any (filled ones too), or never.",
        autocompletion=completions.one_of(completions.of("dg_lsp.batch.report", "FAIL_ON")),
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as one JSON object instead of a diff.")]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Store answers in this file, and reuse those of an interrupted run.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")]
Model = Annotated[
    str,
    completions.model_option(
        "The model: embedded, a folder, a hub id, vllm:URL, chat:URL#MODEL, or fim:DIALECT:URL#MODEL. Configurable."
    ),
]
Ray = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Run on a Ray cluster with an engine in each worker: local, auto, or the cluster's address. Needs dg-lsp[ray].",
        autocompletion=completions.one_of(lambda: ("local", "auto")),
    ),
]
RayWorkers = Annotated[int, typer.Option(min=0, help="Number of workers on the cluster. 0: one per GPU, or else one per CPU.")]
Deadline = Annotated[
    int, typer.Option(metavar="MS", min=0, help="Milliseconds for each hole; then the best answer so far is used. 0: no limit.")
]
