"""Fill the holes of a code action, one group of holes per request, and keep the fills that leave the syntax valid."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core import confidence, context, importing, polish, values
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.confidence import Confidence, Ranked, Threshold
from dg_lsp.core.repository import EMPTY, Repository
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Edit, Hole, Import, Snippet
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import Answer, Suggestion
from dg_lsp.infill.port import Engine

OnDraft = Callable[[tuple[str, ...], int], None]
# Returns the engine for one group of holes once it is connected; it also sends that group's drafts to the editor.
EngineFor = Callable[[tuple[Hole, ...]], Awaitable[Engine]]


@dataclass(frozen=True, slots=True)
class Fill:
    """An edit, the model's confidence in it, whether it replaces working code by less code, and what it must import."""

    edit: Edit
    confidence: Confidence
    shrinks: bool = False
    imports: tuple[Import, ...] = ()


@dataclass(frozen=True, slots=True)
class FillResult:
    """The fills in document order, the number of holes, and the reasons for holes that were not filled."""

    fills: tuple[Fill, ...] = ()
    n_holes: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits of the fills."""
        return tuple(fill.edit for fill in self.fills)

    def added(self, document: Document) -> Edit | None:
        """Return the edit that adds the imports of all fills to the document."""
        imports = {each for fill in self.fills for each in fill.imports}
        return importing.edit(document.text, document.language, tuple(imports)) if imports else None

    @property
    def shrinks(self) -> bool:
        """Whether a fill replaces working code by less code."""
        return any(fill.shrinks for fill in self.fills)

    def caution(self, threshold: Threshold) -> str:
        """Return a warning about uncertain fills, such as `best guess, 4 %`; "" when every fill reaches the threshold."""
        unsure = [fill.confidence for fill in self.fills if not confidence.is_sure(fill.confidence, threshold)]
        if not unsure:
            return ""
        return f"best guess, {confidence.words(min(unsure, key=confidence.order))}"

    def note(self, threshold: Threshold) -> str:
        """Return the note after a title: the caution or the lowest probability, and whether working code is replaced."""
        least = min((fill.confidence for fill in self.fills), key=confidence.order, default=Ranked())
        sure = "" if isinstance(least, Ranked) else confidence.words(least)
        parts = [self.caution(threshold) or sure, polish.SHRINKS if self.shrinks else ""]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Job:
    """A document and the options for filling its holes.

    `is_file` is False for a notebook cell. With `allow_shrink`, an answer may replace working code by less code.
    """

    document: Document
    syntax: Syntax | None
    settings: pipeline.RequestOptions
    related: Sequence[Snippet] = ()
    files: Repository = EMPTY
    is_file: bool = False
    allow_shrink: bool = False


async def fill(
    attempts: tuple[tuple[Hole, ...], ...],
    job: Job,
    engine_for: EngineFor,
    done: Callable[[int, int], None],
    *,
    repairs: bool = False,
) -> FillResult:
    """Return the result of the first attempt that yields a fill, else of the last one.

    `done` is called with the number of holes that are done and their total. With `repairs`, a fill must reduce the number
    of syntax errors. Raises EngineError.
    """
    result = FillResult(reasons=("there is nothing to fill",))
    for holes in attempts:
        result = await _fill(holes, job, engine_for, done, repairs=repairs)
        if result.fills:
            break
    return result


async def _fill(
    holes: tuple[Hole, ...], job: Job, engine_for: EngineFor, done: Callable[[int, int], None], *, repairs: bool
) -> FillResult:
    all_fills: tuple[Fill, ...] = ()
    reasons: list[str] = []
    n_done = 0
    done(0, len(holes))
    for group in context.group(holes, job.document):
        fills, reason = await _group(group, all_fills, job, engine_for, repairs=repairs)
        if not fills and len(group) > 1 and not repairs:
            for number, hole in enumerate(group):
                done(n_done + number, len(holes))
                more, reason = await _group((hole,), (*all_fills, *fills), job, engine_for, repairs=repairs)
                fills = (*fills, *more)
                reasons += [reason] if reason else []
        elif reason:
            reasons.append(reason)
        all_fills = (*all_fills, *fills)
        n_done += len(group)
        done(n_done, len(holes))
    ordered = tuple(sorted(all_fills, key=lambda fill: fill.edit.span))
    return FillResult(ordered, len(holes), tuple(dict.fromkeys(reasons)))


async def _group(
    group: tuple[Hole, ...], earlier_fills: tuple[Fill, ...], job: Job, engine_for: EngineFor, *, repairs: bool
) -> tuple[tuple[Fill, ...], str]:
    """Return the best fills for one group that are valid together with the earlier fills, or why there are none."""
    answer = await pipeline.infill(
        await engine_for(group),
        job.document,
        group,
        job.settings,
        syntax=job.syntax,
        related=job.related,
        files=job.files,
        is_file=job.is_file,
        allow_shrink=job.allow_shrink,
    )
    for suggestion in _valid(answer, tuple(fill.edit for fill in earlier_fills), job, repairs=repairs):
        certainty = suggestion.candidate.confidence
        return tuple(Fill(edit, certainty, suggestion.shrinks, suggestion.imports) for edit in suggestion.edits), ""
    return (), answer.reason or ("the answer does not repair the syntax" if repairs else "the answer breaks the syntax")


def _valid(answer: Answer, earlier_edits: tuple[Edit, ...], job: Job, *, repairs: bool) -> Iterator[Suggestion]:
    for suggestion in answer.suggestions:
        text = values.apply(job.document.text, (*earlier_edits, *suggestion.edits))
        new_syntax = syntaxes.of(replace(job.document, text=text), job.syntax)
        if new_syntax is None or job.syntax is None:
            is_valid = not repairs
        elif repairs:
            is_valid = syntaxes.adds_errors(job.syntax, new_syntax)
        else:
            is_valid = not syntaxes.adds_errors(new_syntax, job.syntax)
        if is_valid:
            yield suggestion
