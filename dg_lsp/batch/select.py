"""Select holes by language, file name, git revision, symbol and number.

For a revision this module runs git; otherwise it does no I/O.
"""

from __future__ import annotations

import difflib
import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dg_lsp.batch.plan import FilePlan, PlanError
from dg_lsp.core import gitignore, languages
from dg_lsp.core.values import Hole
from dg_lsp.wire import config


@dataclass(frozen=True, slots=True)
class Selection:
    """Which holes to fill; an empty or 0 field excludes none."""

    languages: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    changed_since: str = ""
    symbols: tuple[str, ...] = ()
    max_holes: int = 0


def choose(plans: Sequence[FilePlan], selection: Selection) -> tuple[list[FilePlan], dict[str, int]]:
    """Return the plans with only the chosen holes, and how many holes each option left out.

    Raises PlanError for an unknown language or revision, or an invalid pattern.
    """
    for name in selection.languages:
        _check_language(name)
    left_out = Counter[str]()
    try:
        gitignore.covers((*selection.include, *selection.exclude), "any")
    except gitignore.PatternError as error:
        raise PlanError(f"a pattern of --include or --exclude can't be read: {error}") from error
    changed = _changed(plans, selection.changed_since) if selection.changed_since else None
    chosen: list[FilePlan] = []
    for plan in plans:
        path, name = plan.source.path, plan.source.name.lstrip("/")
        option = ""
        if selection.languages and plan.source.document.language not in selection.languages:
            option = "--lang"
        elif selection.include and not gitignore.covers(selection.include, name):
            option = "--include"
        elif gitignore.covers(selection.exclude, name):
            option = "--exclude"
        elif changed is not None and path not in changed:
            option = "--changed-since"
        if option:
            left_out[option] += len(plan.holes)
            continue
        if selection.symbols:
            smaller = _only(plan, [hole for hole in plan.holes if set(symbols_of(plan, hole)) & set(selection.symbols)])
            left_out["--symbol"] += len(plan.holes) - len(smaller.holes)
            plan = smaller
        if plan.groups:
            chosen.append(plan)
    first = _first(chosen, selection.max_holes, left_out) if selection.max_holes else chosen
    return first, {option: n for option, n in left_out.items() if n}


def symbols_of(plan: FilePlan, hole: Hole) -> tuple[str, ...]:
    """Return the names of the functions and classes around the hole, also as dotted names such as `C.f`."""
    if plan.syntax is None:
        return ()
    at = hole.span.start
    names = [owner.name for owner in plan.syntax.facts.owners if owner.name and owner.inside.start <= at <= owner.inside.end]
    return (*names, *(".".join(names[idx:]) for idx in range(len(names) - 1)))


def _first(plans: Sequence[FilePlan], n: int, left_out: Counter[str]) -> list[FilePlan]:
    first: list[FilePlan] = []
    left = n
    for plan in plans:
        first_holes = plan.holes[:left]
        left -= len(first_holes)
        left_out["--max-holes"] += len(plan.holes) - len(first_holes)
        if first_holes:
            first.append(_only(plan, first_holes))
    return first


def _only(plan: FilePlan, holes: Sequence[Hole]) -> FilePlan:
    groups = (tuple(hole for hole in group if hole in holes) for group in plan.groups)
    return replace(plan, groups=tuple(group for group in groups if group))


def _check_language(name: str) -> None:
    names = [language.name for language in languages.TABLE]
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(names)}"
        raise PlanError(f"--lang {name} is not a language that dg-lsp supports; {hint}")


def _changed(plans: Sequence[FilePlan], revision: str) -> set[Path]:
    """Return the files that differ from the revision, including untracked ones."""
    changed: set[Path] = set()
    for root in dict.fromkeys(config.workspace_of(plan.source.path) for plan in plans):
        _git(root, revision, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        for arguments in (
            ("diff", "--name-only", "-z", "--relative", revision, "--"),
            ("ls-files", "-oz", "--exclude-standard"),
        ):
            names = _git(root, revision, *arguments).split(b"\0")
            changed |= {root / os.fsdecode(name) for name in names if name}
    return changed


def _git(root: Path, revision: str, *arguments: str) -> bytes:
    if revision.startswith("-"):
        raise PlanError(f"--changed-since takes a git revision, not {revision!r}")
    command = ["git", "-c", "core.fsmonitor=false", *arguments]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, check=True).stdout  # noqa: S603 -- git's own
    except OSError as error:
        raise PlanError(f"--changed-since needs git, which can't be run: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        raise PlanError(f"--changed-since {revision}: git knows no such revision in {root}") from error
