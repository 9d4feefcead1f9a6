"""The options of `dg-lsp infill`. Each is declared here only: its type, its default, and what the command line says of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dg_lsp.wire.settings import DEFAULTS, Option


@dataclass(frozen=True, slots=True)
class Options:
    """What to fill, with which model, and what to do with the fills. None means the configured value."""

    paths: Annotated[tuple[Path, ...], Option("Files and folders to fill.", "PATH", is_argument=True)] = ()
    holes: Annotated[str, Option("The kinds of holes to fill: bodies, markers, empty; separated by commas.", "KINDS")] = (
        "bodies,markers"
    )
    at: Annotated[
        tuple[str, ...],
        Option("Fill the hole at a place: FILE:LINE:COL or FILE:LINE:COL-LINE:COL, counted from 1. Repeatable.", "PLACE"),
    ] = ()
    places: Annotated[
        str,
        Option(
            "Fill the holes at the places in this file, or in standard input with -: one on each line, as for --at, with "
            "a colon and a comment of what to write after it.",
            "FILE",
        ),
    ] = ""
    lang: Annotated[tuple[str, ...], Option("Only files in this language. Repeatable.", "NAME")] = ()
    include: Annotated[tuple[str, ...], Option("Only files that match, as in .gitignore. Repeatable.", "GLOB")] = ()
    exclude: Annotated[tuple[str, ...], Option("Skip files that match, as in .gitignore. Repeatable.", "GLOB")] = ()
    generated: Annotated[bool, Option("Also files that tools or others write: generated, minified, in vendor, dist.")] = False
    changed_since: Annotated[str, Option("Only files that differ from this git revision.", "REV")] = ""
    symbol: Annotated[tuple[str, ...], Option("Only holes in this function, method or class. Repeatable.", "NAME")] = ()
    max_holes: Annotated[int, Option("Maximum number of holes to fill. 0: no limit.", low=0)] = 0
    dry_run: Annotated[bool, Option("List the holes and the skipped files, and fill nothing.")] = False
    check: Annotated[
        str,
        Option(
            "Accept a fill if this shell command proves it. The command runs in a copy of the project. It must fail while "
            "the hole raises an error, and pass with the fill. A fill with which it fails is dropped. {} is the path of the "
            "file in the copy. If the command runs pytest, each test is judged by its own result.",
            "COMMAND",
        ),
    ] = ""
    jobs: Annotated[int, Option("Number of checks that run at once, each in its own copy.", low=1, high=64)] = 1
    check_timeout: Annotated[
        float | None,
        Option(
            "Stop a check that takes longer. Default: ten times as long as those before it, at least 60 and at most 600.",
            "SECONDS",
            low=0.1,
        ),
    ] = None
    check_memory: Annotated[
        int, Option("Stop a check whose processes use more memory. 0: no limit. Linux only.", "MIB", low=0)
    ] = 0
    min_confidence: Annotated[
        float | None,
        Option(
            "Accept a fill that no check proves only if its probability is at least this. "
            "Default: 0.8 for bodies, 0.5 for a place or a selection (--at) and for a marker, 0.8 if that gets several lines. "
            "A probability of 0.8 means that eight of ten such fills are right.",
            "P",
            low=0.0,
            high=1.0,
        ),
    ] = None
    take_all: Annotated[bool, Option("Accept every fill that parses and that the check does not reject.", name="--all")] = False
    candidates: Annotated[
        int | None,
        Option("Number of answers to choose from for each hole.", low=1, high=64, default=str(DEFAULTS.batch_candidates)),
    ] = None
    retries: Annotated[int, Option("Number of further rounds for a hole without an acceptable answer.", low=0, high=64)] = 2
    allow_shrink: Annotated[
        bool, Option("Allow a fill to replace working code with a placeholder, comments or nothing. Refused by default.")
    ] = False
    write: Annotated[bool, Option("Write the fills into the files instead of printing a diff.")] = False
    commit: Annotated[bool, Option("Write the fills and commit them to git, in one commit.")] = False
    fail_on: Annotated[
        str,
        Option(
            "Which holes let the command exit with 1: open (unsure or failed), failed, any (filled ones too), or never.",
            "HOLES",
        ),
    ] = "open"
    patch: Annotated[Path | None, Option("Write the diff into this file instead of printing it.", "FILE")] = None
    as_json: Annotated[bool, Option("Print the report as one JSON object instead of a diff.", name="--json")] = False
    resume: Annotated[Path | None, Option("Store answers in this file, and reuse those of an interrupted run.", "FILE")] = None
    seed: Annotated[int, Option("The same seed gives the same text.", low=0)] = 0
    model: Annotated[
        str,
        Option(
            "The model: embedded, a folder, a hub id, vllm:URL, chat:URL#MODEL, or fim:DIALECT:URL#MODEL. Configurable.",
            "ID_OR_PATH",
            default=DEFAULTS.model,
        ),
    ] = ""
    deadline: Annotated[
        int | None,
        Option(
            "Milliseconds for each hole; then the best answer so far is used. 0: no limit.",
            "MS",
            low=0,
            default=str(DEFAULTS.batch_deadline),
        ),
    ] = None
    ray: Annotated[
        str,
        Option(
            "Run on a Ray cluster with an engine in each worker: local, auto, or the cluster's address. Needs dg-lsp[ray].",
            "ADDRESS",
        ),
    ] = ""
    ray_workers: Annotated[int, Option("Number of workers on the cluster. 0: one per GPU, or else one per CPU.", low=0)] = 0

    @property
    def writes(self) -> bool:
        """Whether the fills are written into the files."""
        return self.write or self.commit

    @property
    def outputs(self) -> dict[Path, str]:
        """The files that options name to be written, with these options."""
        named = {"--patch": self.patch, "--resume": self.resume}
        return {Path(os.path.realpath(path)): option for option, path in named.items() if path}

    @property
    def n_candidates(self) -> int:
        """The number of answers to choose from, the default if none is configured."""
        return DEFAULTS.batch_candidates if self.candidates is None else self.candidates

    @property
    def deadline_ms(self) -> int:
        """The milliseconds for each hole, the default if none are configured; 0: no limit."""
        return DEFAULTS.batch_deadline if self.deadline is None else self.deadline

    @property
    def of_answers(self) -> tuple[object, ...]:
        """The options on which an answer depends, besides its request."""
        return self.model, self.n_candidates, self.seed, self.deadline_ms, self.allow_shrink
