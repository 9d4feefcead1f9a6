"""Fill the holes of a code action: group by group on one canvas each, keeping only what leaves the syntax sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core import confidence, context, values
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.confidence import Confidence, Threshold
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Edit, Hole, Snippet
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import Answer, Suggestion
from dg_lsp.infill.port import Engine

OnDraft = Callable[[tuple[str, ...], int], None]
# Gives the engine for one group, whose drafts are heard of.
EngineFor = Callable[[tuple[Hole, ...]], Engine]


@dataclass(frozen=True, slots=True)
class Filled:
    """The edits that are kept, of so many holes, why the others have none, and how sure the model is of each group's."""

    edits: tuple[Edit, ...] = ()
    n_holes: int = 0
    reasons: tuple[str, ...] = ()
    confidences: tuple[Confidence, ...] = ()

    def caution(self, gate: Threshold) -> str:
        """Return what to tell a user about fills that are not sure: `best guess, 4 %`; "" where all are."""
        unsure = [each for each in self.confidences if not confidence.is_sure(each, gate)]
        if not unsure:
            return ""
        return f"best guess, {confidence.words(min(unsure, key=confidence.order))}"


@dataclass(frozen=True, slots=True)
class Job:
    """A document with what it takes to fill its holes; `is_file` says that it is no cell of a notebook."""

    document: Document
    syntax: Syntax | None
    settings: pipeline.RequestOptions
    related: Sequence[Snippet] = ()
    is_file: bool = False


async def fill(
    attempts: tuple[tuple[Hole, ...], ...],
    job: Job,
    engine_for: EngineFor,
    done: Callable[[int, int], None],
    *,
    mends: bool = False,
) -> Filled:
    """Return what the first attempt that comes to an edit comes to; `done` hears how many holes of how many are done.

    With `mends`, only what leaves fewer stretches that can't be parsed than before counts. Raises EngineError.
    """
    result = Filled(reasons=("there is nothing to fill",))
    for holes in attempts:
        result = await _fill(holes, job, engine_for, done, mends=mends)
        if result.edits:
            break
    return result


async def _fill(
    holes: tuple[Hole, ...], job: Job, engine_for: EngineFor, done: Callable[[int, int], None], *, mends: bool
) -> Filled:
    kept_edits: tuple[Edit, ...] = ()
    reasons: list[str] = []
    confidences: list[Confidence] = []
    n_done = 0
    for group in context.group(holes, job.document):
        edits, stated, reason = await _group(group, kept_edits, job, engine_for, mends=mends)
        confidences += stated
        if not edits and len(group) > 1 and not mends:
            for hole in group:
                more, stated, reason = await _group((hole,), (*kept_edits, *edits), job, engine_for, mends=mends)
                confidences += stated
                edits = (*edits, *more)
                reasons += [reason] if reason else []
        elif reason:
            reasons.append(reason)
        kept_edits = (*kept_edits, *edits)
        n_done += len(group)
        done(n_done, len(holes))
    ordered = tuple(sorted(kept_edits, key=lambda edit: edit.span))
    return Filled(ordered, len(holes), tuple(dict.fromkeys(reasons)), tuple(confidences))


async def _group(
    group: tuple[Hole, ...], kept_edits: tuple[Edit, ...], job: Job, engine_for: EngineFor, *, mends: bool
) -> tuple[tuple[Edit, ...], tuple[Confidence, ...], str]:
    """Return the best edits for one group that go with those that are kept already, or why there are none.

    Beside them, how sure the model is of them: one confidence, or none where there are no edits.
    """
    engine = engine_for(group)
    answer = await pipeline.infill(
        engine, job.document, group, job.settings, syntax=job.syntax, related=job.related, is_file=job.is_file
    )
    for suggestion in _sound(answer, kept_edits, job, mends=mends):
        return suggestion.edits, (suggestion.candidate.confidence,), ""
    return (), (), answer.reason or ("the answer does not mend the syntax" if mends else "the answer breaks the syntax")


def _sound(answer: Answer, kept_edits: tuple[Edit, ...], job: Job, *, mends: bool) -> Iterator[Suggestion]:
    for suggestion in answer.suggestions:
        text = values.apply(job.document.text, (*kept_edits, *suggestion.edits))
        new_syntax = syntaxes.of(replace(job.document, text=text), job.syntax)
        if new_syntax is None or job.syntax is None:
            is_sound = not mends
        elif mends:
            is_sound = syntaxes.adds_errors(job.syntax, new_syntax)
        else:
            is_sound = not syntaxes.adds_errors(new_syntax, job.syntax)
        if is_sound:
            yield suggestion
