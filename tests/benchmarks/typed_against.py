"""See what is left of an answer worth, once the user types something else: python tests/benchmarks/typed_against.py [N]

A model's name or folder may follow. At positions in held-out files the engine answers; where it is wrong, the word that
really stood there is typed, and it answers again, once with what the first answer would still write
(`InfillRequest.previous`) and once without, until N answers were typed against. Drafts are corrected on the canvas in two
steps, though the checkpoint's own profile may leave them as they are. A laptop model reads what was left ahead instead,
which saves passes if it is right. It changes answers only by rounding: not at all with --dtype float32.
Milliseconds are without the time to encode the text before the cursor. "kept" is the share of the words of the first
answer's rest that belong there, in order, which the new answer has as well.

`--world` takes holes of the generated language (`worlds/`) and the small checkpoint that is trained on it, without a delete
token and with the profile of a checkpoint that has none. An answer that is wrong in one token, or two, is typed against
at the first; what it would still write is corrected, or forgotten: a fresh start. Prints how much of what was right in it
is kept, how often all is right, and what that takes, with 95 % intervals of the paired differences.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from dg_lsp.core import holes, syntax
from dg_lsp.core.values import Document, Hole, InfillRequest, Span, n_common
from dg_lsp.engine.decode.filler import LocalFiller
from dg_lsp.engine.decode.layout import Layout, Sheet
from dg_lsp.engine.model import loading
from dg_lsp.engine.model.loading import Loaded
from dg_lsp.engine.model.passes import Passes
from dg_lsp.engine.model.profile import Profile
from dg_lsp.evaluate import score
from dg_lsp.infill import pipeline
from dg_lsp.server import decisions
from tests.benchmarks.worlds import language, training
from tests.e2e import positions
from tests.e2e.positions import Position

REFINE_STEPS, SEED = 2, 5
POSITIONS_EACH = 8  # positions for each answer that is typed against; half of them are of other kinds
LEAST_ANSWER = 6  # tokens of an answer that is worth typing against


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", nargs="?", type=int, default=240, help="answers typed against, or holes of each kind of the world")
    parser.add_argument("model", nargs="?", default=loading.EMBEDDED)
    parser.add_argument("--dtype", default="", help="the precision; float32: without the rounding that reading ahead changes")
    parser.add_argument("--world", action="store_true", help="holes of the generated language")
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "dg-lsp-worlds", help="where its checkpoints are kept"
    )
    arguments = parser.parse_args(argv)
    if arguments.world:
        return world(arguments.n, arguments.cache)
    return held_out(arguments.n, loading.load_model(arguments.model, dtype=arguments.dtype))


# Held-out files.


def held_out(n: int, loaded: Loaded) -> int:
    filler = LocalFiller(replace(loaded, profile=replace(loaded.profile, refine_steps=REFINE_STEPS)))
    arms = [LocalFiller(replace(filler.loaded, passes=counted(loaded.passes))) for _ in range(2)]
    cases: list[tuple[Retyped, Retyped]] = []
    n_left_right, began = 0, time.perf_counter()
    for position in positions.positions(n * POSITIONS_EACH, SEED):
        if position.kind not in ("typing", "line", "broken") or len(cases) == n:
            continue
        first = answer(filler, position).text
        typed_text, truth = parted(first, position.truth)
        rest = decisions.left_over(first, typed_text, "")
        if not rest.strip() or not truth.strip():
            continue
        later = replace(position, before=position.before + typed_text, truth=truth)
        # The arms take turns at going first, so that other load on the machine affects both.
        order = (0, 1) if len(cases) % 2 else (1, 0)
        answers = {arm: answer(arms[arm], later, rest if arm else "") for arm in order}
        cases.append((retyped(later, rest, answers[0]), retyped(later, rest, answers[1])))
        n_left_right += positions.is_right(later, rest)
        if not len(cases) % 20:
            print(f"{len(cases)} after {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    n_moved = sum(without.answer.text != with_it.answer.text for without, with_it in cases)
    print(f"{len(cases)} answers typed against; {n_moved} answered otherwise with what was left")
    print(f"what was left is exactly right as it is: {n_left_right / len(cases):.3f}")
    for arm, what in enumerate(("without", "with")):
        print(f"{what:8} {summary([case[arm] for case in cases])}")
    print(f"difference {retyped_differences(cases)}")
    return 0


@dataclass(frozen=True, slots=True)
class Answered:
    """The text that would be shown, in how many passes over new tokens, and in how many milliseconds after the prefix."""

    text: str
    n_passes: int = 0
    milliseconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Retyped:
    """An answer after a word was typed against the first one. `kept` is None if nothing in the first one's rest was right."""

    answer: Answered
    is_right: bool
    similarity: float
    kept: float | None


def retyped(position: Position, rest: str, now: Answered) -> Retyped:
    similarity = score.similarity(now.text, position.truth)
    return Retyped(now, positions.is_right(position, now.text), similarity, kept_share(rest, position.truth, now.text))


def kept_share(rest: str, truth: str, text: str) -> float | None:
    """Return the share of the words of `rest` that are also in the truth, in order, which `text` has; None without any."""
    right = common_words(words(rest), words(truth))
    return len(common_words(right, words(text))) / len(right) if right else None


def words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def common_words(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return words that both sequences have in the same order."""
    blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    return [word for block in blocks for word in one[block.a : block.a + block.size]]


def summary(arm: Sequence[Retyped]) -> str:
    kept = [one.kept for one in arm if one.kept is not None]
    return (
        f"exactly right {statistics.fmean(one.is_right for one in arm):.3f}, "
        f"similarity {statistics.fmean(one.similarity for one in arm):.3f}, kept {statistics.fmean(kept):.3f} of {len(kept)}, "
        f"{statistics.fmean(one.answer.n_passes for one in arm):.2f} passes, "
        f"median {statistics.median(one.answer.milliseconds for one in arm):.0f} ms, "
        f"mean {statistics.fmean(one.answer.milliseconds for one in arm):.0f} ms"
    )


def retyped_differences(cases: Sequence[tuple[Retyped, Retyped]]) -> str:
    """Return the means of "with" less "without", each with its 95 % interval."""
    kept = [two.kept - one.kept for one, two in cases if one.kept is not None and two.kept is not None]
    return (
        f"exactly right {interval([float(two.is_right) - one.is_right for one, two in cases])}, kept {interval(kept)}, "
        f"passes {interval([float(two.answer.n_passes - one.answer.n_passes) for one, two in cases])}, "
        f"ms {interval([two.answer.milliseconds - one.answer.milliseconds for one, two in cases])}"
    )


def counted(passes: Any) -> Any:
    """Return the same passes, which count how often new tokens after a prefix are read, as `n_extended`."""

    class Counted(type(passes)):  # type: ignore[misc]
        def extend(self, *arguments: Any, **options: Any) -> Any:
            self.n_extended += 1
            return super().extend(*arguments, **options)

    same = copy(passes)
    same.__class__, same.n_extended = Counted, 0
    return same


def parted(first: str, truth: str) -> tuple[str, str]:
    """Return what is typed of the truth until it differs from the answer, with the word in which it does, and the rest."""
    same = n_common(first, truth)
    word = re.compile(r"\w+|\s+|[^\w\s]").match(truth, same)
    end = word.end() if word else len(truth)
    return truth[:end], truth[end:]


def answer(filler: LocalFiller, position: Position, previous: str = "") -> Answered:
    document = Document(f"file:///{position.path}", "python", position.before + position.after)
    tree = syntax.of(document)
    hole = holes.at_cursor(document, len(position.before), tree)
    options = pipeline.FileContext(path=position.path, previous=previous)
    request = pipeline.to_request(document, (hole,), options, syntax=tree)
    n_before = getattr(filler.loaded.passes, "n_extended", 0)
    task = filler.start(request)
    while task.step():
        pass
    suggestions = pipeline.to_answer(request, task.candidates(), document, syntax=tree).suggestions
    milliseconds = sum(ms for stage, ms in task.milliseconds.items() if stage != "prefill")
    text = suggestions[0].edits[0].text if suggestions else ""
    task.close()
    return Answered(text, getattr(filler.loaded.passes, "n_extended", 0) - n_before, milliseconds)


# The generated language.


@dataclass(frozen=True, slots=True)
class Against:
    """An answer that was typed against: the hole that is left, what belongs there, and what the answer would still write."""

    request: InfillRequest
    truth: str
    left: str

    def kept(self, text: str) -> float:
        """Return the share of what was right in the rest of the answer that a new answer has as well, at its place."""
        right = [index for index, (a, b) in enumerate(zip(self.left, self.truth, strict=True)) if a == b]
        return sum(text[index : index + 1] == self.left[index] for index in right) / len(right)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one answer: how much of it was kept, whether all is right, what that took.

    An encoder pass reads a draft, verifies what an open canvas reads, or scores answers; the prefix is not counted.
    """

    kept: float
    is_right: bool
    row_passes: int
    encoder_passes: int
    milliseconds: float


class Plain:
    """The layout that the small checkpoint was trained in: no kinds of hole, no token that shrinks a gap or ends a draft."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        layout.kinds = dict.fromkeys(layout.kinds)  # type: ignore[attr-defined]

    def lay_out(self, request: InfillRequest) -> Sheet:
        return replace(self._layout.lay_out(request), delete=None, end=None)


def world(n: int, cache: Path) -> int:
    folder = training.made(cache, delete=False, on_message=lambda text: print(text, file=sys.stderr))
    loaded = loading.load_model(str(folder), device="cpu", threads=1)
    # What a checkpoint without a profile gets, as far as this one was not made for something else.
    usual = Profile()
    profile = replace(
        loaded.profile,
        refine_steps=usual.refine_steps,
        line_ends=usual.line_ends,
        line=usual.line,
        block=usual.block,
        max_canvases=1,
    )
    filler = LocalFiller(replace(loaded, profile=profile))
    filler.resources = replace(filler.resources, layout=Plain(filler.layout))
    chance = random.Random(SEED)
    for kind in ("line", "block"):
        long_holes = (hole for hole in language.holes(SEED, kind) if len(hole.answer) >= LEAST_ANSWER)
        cases = [typed_against(hole, chance) for hole in islice(long_holes, n)]
        # Both arms of a case run in turn, so that other load on the machine affects both.
        pairs = [(outcome(filler, case, previous=True), outcome(filler, case, previous=False)) for case in cases]
        arms = [list(arm) for arm in zip(*pairs, strict=True)]
        print(f"{kind}: {n} answers typed against")
        for what, arm in zip(("corrected", "fresh start"), arms, strict=True):
            print(f"  {what:12} {summed(arm)}")
        refined, fresh = arms
        print(f"  difference   {differences(refined, fresh)}")
    return 0


def typed_against(hole: language.Hole, chance: random.Random) -> Against:
    """Return a hole after its first wrong token was typed against."""
    wrong = list(hole.answer)
    at = chance.randrange(len(wrong) - 4)
    places = [at, *([chance.randrange(at + 1, len(wrong))] if chance.random() < 0.5 else [])]
    for place in places:
        wrong[place] = chance.choice([character for character in language.CYCLES[0] + "AB" if character != wrong[place]])
    typed_text, is_block = hole.answer[: at + 1], hole.kind == "block"
    rest = "".join(wrong[at + 1 :])
    later = Hole(Span(0, 0), "cursor", block=is_block)
    request = InfillRequest(hole.prefix + typed_text, hole.suffix, (later,), previous=rest)
    return Against(request, hole.answer[at + 1 :], rest)


def outcome(filler: LocalFiller, case: Against, previous: bool) -> Outcome:
    filler.cache.clear()
    request = case.request if previous else replace(case.request, previous="")
    task = filler.start(request)
    while not task.cache()["tokens"]:
        task.step()
    n_passes: Counter[str] = Counter()
    began = time.perf_counter()
    with counting(filler.loaded.diffusion, n_passes):
        while task.step():
            pass
    milliseconds = (time.perf_counter() - began) * 1000
    text = task.candidates()[0].texts[0] if task.candidates() else ""
    n_encoder = n_passes["encode"] + n_passes["extend"]
    return Outcome(case.kept(text), text == case.truth, n_passes["decode"], n_encoder, milliseconds)


@contextmanager
def counting(passes: Passes, n_passes: Counter[str]) -> Iterator[None]:
    """Count the model's passes by name, and for the decoder the rows of each."""
    plain = {name: getattr(passes, name) for name in ("decode", "encode", "extend")}

    def counted(name: str, ids: Any, *rest: Any, **options: Any) -> Any:
        n_passes[name] += len(ids) if name == "decode" else 1
        return plain[name](ids, *rest, **options)

    for name in plain:
        setattr(passes, name, partial(counted, name))
    try:
        yield
    finally:
        for name in plain:
            delattr(passes, name)


def summed(outcomes: Sequence[Outcome]) -> str:
    n = len(outcomes)
    return (
        f"kept {sum(one.kept for one in outcomes) / n:.3f}, all right {sum(one.is_right for one in outcomes) / n:.3f}, "
        f"row passes {sum(one.row_passes for one in outcomes) / n:.1f}, "
        f"encoder passes {sum(one.encoder_passes for one in outcomes) / n:.1f}, "
        f"median {statistics.median(one.milliseconds for one in outcomes):.0f} ms"
    )


def differences(refined: Sequence[Outcome], fresh: Sequence[Outcome]) -> str:
    pairs = list(zip(refined, fresh, strict=True))
    speedup = statistics.median(two.milliseconds / max(one.milliseconds, 1e-6) for one, two in pairs)
    return (
        f"kept {interval([one.kept - two.kept for one, two in pairs])}, "
        f"all right {interval([float(one.is_right) - two.is_right for one, two in pairs])}, "
        f"row passes {interval([float(one.row_passes - two.row_passes) for one, two in pairs])}, {speedup:.1f} times as fast"
    )


def interval(values: Sequence[float]) -> str:
    """Return the mean with its 95 % interval."""
    mean, n = statistics.fmean(values), len(values)
    half = 1.96 * statistics.stdev(values) / n**0.5 if n > 1 else 0.0
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
