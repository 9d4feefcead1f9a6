"""What each rule of polishing is worth: python benchmarks/rules.py [N] [SEED] [MODEL] [FOLDER]

Takes N positions in the held-out files, or in files of FOLDER (code that no model has read). At each, MODEL makes its
candidates; without one, they are what stood there as models and chat servers spoil it: in a fence, with the typed text before
it, with the lines that follow, with a bracket too many, cut short, twice in a row, with typographic characters, and lines of
the file. Each candidate is
polished with all rules, and once more without each rule that changed or dropped it. Prints a row for each rule: its lines, how
often it fired, how many exact answers are lost and won without it, how many wrong answers are offered more, and how many
of those break a file that parsed.
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import arguments
from dg_lsp.core import holes, languages, polish, syntax
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Candidate, Document, Hole, apply
from dg_lsp.evaluate import make
from dg_lsp.infill import pipeline
from tests.e2e import positions
from tests.e2e.positions import Position

ENDS = (")", "}", "]", ");", "})", " {", "(", "; ", "\\", " &&", "<|endoftext|>", "# so", " // so")
NOTHING = ("pass", "...", "return None", "// TODO", "# TODO: implement", "/* later */", '"""Words."""', "def f():\n    pass")
TYPOGRAPHIC = tuple(map(str.maketrans, ("\"'", "-", " "), ("”’", "−", "\N{NO-BREAK SPACE}")))
COLUMNS = ("fired", "exact lost", "exact won", "more wrong", "more broken")


def in_folder(folder: Path, n: int, seed: int) -> Iterator[Position]:
    """Yield positions in the files of a folder, as many of each language."""
    draw = random.Random(seed)
    by_language: dict[str, list[Path]] = {}
    for name, path in sorted(make.source_files(folder).items()):
        language = languages.for_path(name)
        if language is not None:
            by_language.setdefault(language.name, []).append(path)
    for _ in range(n // len(by_language) + 1):
        for paths in by_language.values():
            path = draw.choice(paths)
            source = make.read(path.name, make.text_of(path))
            places = positions._places(source, draw.choice(positions.KINDS[:-1]), draw) if source else []
            if places:
                yield draw.choice(places)


def spoiled(position: Position, draw: random.Random) -> Iterator[str]:
    """Yield what stood there, as models and chat servers spoil it."""
    truth, after = position.truth, position.after
    head, rest = position.before.rpartition("\n")[2], after.partition("\n")[0]
    following = [line for line in after.split("\n")[1:] if line.strip()] or [""]
    lines = [line for line in (position.before + after).split("\n") if line.strip()] or [""]
    last = truth.rstrip().rpartition("\n")[2]
    yield truth
    yield f"```\n{truth}\n```"
    yield f"{head}{truth}{rest}"
    yield f"{truth}{rest}\n" + "\n".join(following[:2])
    yield f"{truth}\n{following[0]}"
    yield truth + draw.choice(ENDS)
    yield truth[: max(1, len(truth) * 2 // 3)]
    yield truth.replace("    ", "\t") if "    " in truth else f"   {truth}  "
    yield "\n".join([truth, *[last] * 3])
    yield f"{truth}\n\n{draw.choice(lines).lstrip()}"
    yield draw.choice((following[0].strip(), lines[-1].strip(), draw.choice(lines).strip(), draw.choice(lines)))
    yield draw.choice(NOTHING)
    yield from (truth.translate(each) for each in TYPOGRAPHIC)


def proposer(model: str) -> Callable[[Position, Document, Hole, Syntax], list[str]]:
    """Return what proposes texts at a position."""
    draw = random.Random(1)
    if not model:
        return lambda position, _document, _hole, _tree: list(spoiled(position, draw))
    from benchmarks import candidates

    filler = candidates.filler(model, "cpu", 1)

    def propose(_position: Position, document: Document, hole: Hole, tree: Syntax) -> list[str]:
        request = pipeline.to_request(document, [hole], pipeline.FileContext(), syntax=tree)
        return [texts[0] for texts, _, _ in candidates.answers(filler, request)]

    return propose


def recorded(rule: Callable[..., object], fired: set[str]) -> Callable[..., Any]:
    """Return the rule, which adds its name to a set when it changes a text, or drops a candidate."""

    @functools.wraps(rule)
    def apply_rule(*args: object) -> object:
        result = rule(*args)
        if result is not True and result != args[0]:
            fired.add(rule.__name__)
        return result

    return apply_rule


def outcome(text: str, position: Position, document: Document, hole: Hole, tree: Syntax) -> str:
    """Return what is offered: "exact", "wrong", "broken", or "" for nothing."""
    polished = polish.to_edits(Candidate((text,)), (hole,), document, syntax=tree, is_file=True)
    if not polished.edits:
        return ""
    after = apply(document.text, polished.edits)
    # As bytes, because only ASCII white space is the same.
    if after.encode().split() == f"{position.before}{position.truth}{position.after}".encode().split():
        return "exact"
    whole = syntax.of(Document(document.uri, document.language, after))
    return "broken" if not tree.errors and (whole is None or whole.errors) else "wrong"


def main(n: int, seed: int, model: str, folder: str) -> int:
    filters, checks, propose = polish.FILTERS, polish.CHECKS, proposer(model)
    counts: dict[str, Counter[str]] = {rule.__name__: Counter() for rule in (*filters, *checks)}
    fired: set[str] = set()
    watched = tuple({recorded(rule, fired): reason for rule, reason in rules.items()} for rules in (filters, checks))
    total, outcomes = 0, Counter[str]()
    for position in in_folder(Path(folder), n, seed) if folder else positions.positions(n, seed):
        language = languages.for_path(position.path)
        if language is None:
            continue
        document = Document(f"file:///{position.path}", language.name, position.before + position.after)
        tree = syntax.of(document)
        if tree is None:
            continue
        hole = holes.at_cursor(document, len(position.before), tree)
        for text in dict.fromkeys(propose(position, document, hole, tree)):
            fired.clear()
            polish.FILTERS, polish.CHECKS = watched
            now = outcome(text, position, document, hole, tree)
            total += 1
            outcomes[now or "nothing"] += 1
            for name in sorted(fired):
                polish.FILTERS = {rule: reason for rule, reason in filters.items() if rule.__name__ != name}
                polish.CHECKS = {rule: reason for rule, reason in checks.items() if rule.__name__ != name}
                other = outcome(text, position, document, hole, tree)
                counts[name]["fired"] += 1
                if other != now:
                    counts[name]["exact lost"] += now == "exact"
                    counts[name]["exact won"] += other == "exact"
                    counts[name]["more wrong"] += other in ("wrong", "broken")
                    counts[name]["more broken"] += other == "broken"
    print(f"{total} candidates of {model or 'a script'}: {dict(outcomes)}\n")
    print("| rule | lines |", " | ".join(COLUMNS), "|\n| --- |", "---: |" * (len(COLUMNS) + 1))
    for rule in (*filters, *checks):
        row = counts[rule.__name__]
        cells = (len(inspect.getsource(rule).splitlines()), *(row[each] for each in COLUMNS))
        print(f"| `{rule.__name__}` |", " | ".join(map(str, cells)), "|")
    return 0


if __name__ == "__main__":
    sys.exit(main(*arguments.parsed(__doc__, n=300, seed=1, model="", folder="")))
