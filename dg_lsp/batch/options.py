"""The options of `dg-lsp infill`, with their help. Imports nothing that `--help` has no use for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Typer reads these annotations at run time; a default of None needs `Optional` there.
Paths = Annotated[list[Path] | None, typer.Argument(metavar="PATH", help="Files and folders to fill.")]
Holes = Annotated[
    str,
    typer.Option(metavar="KINDS", help="Which holes: bodies, markers, empty; separated by commas."),
]
At = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLACE",
        help="Fill one place: FILE:LINE:COL or FILE:LINE:COL-LINE:COL, counted from 1. Repeatable.",
    ),
]
Languages = Annotated[list[str] | None, typer.Option("--lang", metavar="NAME", help="Only this language. Repeatable.")]
Include = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Only files that match, as in .gitignore. Repeatable."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="No files that match, as in .gitignore. Repeatable."),
]
ChangedSince = Annotated[str, typer.Option(metavar="REV", help="Only files that differ from this git revision.")]
Symbol = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Only holes in this function, method or class. Repeatable."),
]
MaxHoles = Annotated[int, typer.Option(min=0, help="Fill at most so many holes. 0: no limit.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the holes and what is skipped, and fill nothing.")]

Check = Annotated[
    str,
    typer.Option(
        metavar="COMMAND",
        help="Take a fill when this shell command, run in a copy of the project, fails while the hole raises and passes "
        "with the fill; drop what it rejects. {} stands for the file in the copy. The tests of pytest are judged one by one.",
    ),
]
Jobs = Annotated[int, typer.Option(min=1, max=64, help="How many checks run at once, each in its copy.")]
CheckTimeout = Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="End a check that takes longer.")]
CheckMemory = Annotated[
    int,
    typer.Option(
        metavar="MIB",
        min=0,
        help="End a check whose processes take more memory. 0: no limit. Linux only.",
    ),
]
MinConfidence = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        min=0.0,
        max=1.0,
        help="Take a fill that no check proved only if its probability is at least this. "
        "Default: 0.8 for bodies and markers, 0.5 for a cursor or a selection (--at). "
        "A probability of 0.8 means: of ten such fills eight are right.",
        show_default=False,
    ),
]
TakeAll = Annotated[bool, typer.Option("--all", help="Take every fill that parses and that the check does not reject.")]
Candidates = Annotated[int, typer.Option(min=1, max=64, help="How many answers to choose from for each hole.")]
Retries = Annotated[
    int,
    typer.Option(min=0, max=64, help="How many further rounds of answers a hole gets while none is good."),
]
AllowShrink = Annotated[
    bool,
    typer.Option(
        "--allow-shrink",
        help="Let a fill replace working code by a placeholder, by comments or by nothing, which is refused otherwise.",
    ),
]

Write = Annotated[
    bool,
    typer.Option("--write", help="Write the fills into the files instead of printing a diff."),
]
Commit = Annotated[
    str, typer.Option(metavar="UNIT", help="Write the fills and commit them to git: a commit for each `file` or each `hole`.")
]
Interactive = Annotated[
    bool,
    typer.Option("--interactive", help="Decide hole by hole, unsure ones too: accept, reject, next candidate, edit, quit."),
]
Report = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report as one page of HTML, which opens offline.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one report object instead of a diff.")]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep answers in this file, and reuse those that an interrupted run left there.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")]
Model = Annotated[
    str,
    typer.Option(
        metavar="ID_OR_PATH",
        help="The model: embedded, a folder, a hub id, vllm:URL, chat:URL#MODEL, or fim:DIALECT:URL#MODEL. Configurable.",
    ),
]
Ray = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Run on a Ray cluster, an engine in each worker: local, auto, or the cluster's address. Needs dg-lsp[ray].",
    ),
]
RayWorkers = Annotated[int, typer.Option(min=0, help="Workers on the cluster. 0: one for each GPU, or else for each CPU.")]
Deadline = Annotated[
    int, typer.Option(metavar="MS", min=0, help="Milliseconds for each hole; the best so far counts then. 0: no limit.")
]
