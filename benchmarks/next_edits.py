"""What a model offers as the next edit, at places between the edits of real commits.

    python benchmarks/next_edits.py ask MIRROR MODEL ANSWERS.jsonl [N_EACH] [SECONDS]
    python benchmarks/next_edits.py table ANSWERS.jsonl

`ask` takes N_EACH commits of each set-aside repository (`edit_sessions.py`) in the folder MIRROR, and writes each answer of the
model, a folder or a pulled one. It continues a file that is there, and stops after SECONDS.

`table`: an offer is the hunk of an answer that is nearest to the cursor. It is right if it makes hunks of the commit in the
window, one or several beside each other; white space within a line does not count. A threshold on the answer's log-probability
says what is shown, of all changes and of those that repeat one of the last edits. Intervals (.95) are by commit. After each
curve: thresholds fitted on half of the repositories, measured on the others.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import edit_sessions
from benchmarks.edit_sessions import Row
from dg_lsp.core import edits
from dg_lsp.core.edits import Question, Window
from dg_lsp.core.values import Hole, InfillRequest, Span

SEED = 3
LEAST_RIGHT, LEAST_COVERED, LEAST_QUIET = 0.70, 0.12, 0.97
SHARES = (0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
_TOKEN = re.compile(r"\w+|[^\w\s]|\n[ \t]*")

Answer = dict[str, Any]


class Model:
    """The answers of a model, as the engine writes them."""

    def __init__(self, name: str) -> None:
        from dg_lsp.engine.backends.local import filler_of, load_model

        self.filler = filler_of(load_model(name, threads=1, device="cpu"))

    def answer(self, row: Row, window: Window) -> tuple[str | None, float]:
        """Return the written window, and its log-probability; None where it does not end."""
        hole = Hole(Span(0, len(window.text)), "cursor", extent="lines")
        task = self.filler.start(InfillRequest("", "", (hole,), path=row.path, question=_question(row, window)))
        while task.step():
            pass
        candidates = task.candidates()
        task.close()
        if not candidates:
            return None, -math.inf
        [chances] = candidates[0].confidences
        return candidates[0].texts[0], sum(math.log(max(chance, 1e-9)) for chance in chances)


def ask(folder: Path, name: str, file: Path, n_each: int, seconds: float) -> None:
    """Write the model's answer at each place, one commit after another in an order that mixes the repositories."""
    rows = list(edit_sessions.rows(folder, n_each, SEED, lambda text: print(text, flush=True)))
    random.Random(SEED).shuffle(rows)
    done = {json.loads(line)["commit"] for line in file.read_text().splitlines()} if file.exists() else set()
    model, began = Model(name), time.monotonic()
    for row in rows:
        if row.commit in done or time.monotonic() - began > seconds:
            continue
        answers = []
        for place in row.places:
            text, logp = model.answer(row, place.window)
            written = {"logp": round(logp, 3), "answer": text}
            window = {"window": place.window.text, "goal": place.goal}
            repeats = {"repeats": text is not None and edits.repeats(_question(row, place.window), text)}
            answers.append(_facts(row, place) | written | judged(place, text) | repeats | window)
        with file.open("a") as opened:
            opened.writelines(json.dumps(answer) + "\n" for answer in answers)


def _question(row: Row, window: Window) -> Question:
    return Question(row.shown, 0, row.edits, window)


def _facts(row: edit_sessions.Row, place: edit_sessions.Place) -> Answer:
    where = {"repository": row.repository, "commit": row.commit, "kind": place.kind}
    return where | {"known": place.known, "echo": place.echo, "quiet": place.is_quiet}


def judged(place: edit_sessions.Place, text: str | None) -> dict[str, bool]:
    """Return whether the answer offers a hunk, whether that is right, and whether the whole window is."""
    old = place.window.text
    hunks = edits.hunks(Window(0, old, place.window.cursor), text) if text is not None else []
    hunks = [hunk for hunk in hunks if _tokens(old[hunk.start : hunk.end]) != _tokens(hunk.text)]
    if not hunks:
        return {"offers": False, "right": False, "whole": False}
    offered = _tokens(old[: hunks[0].start] + hunks[0].text + old[hunks[0].end :])
    whole = _tokens((text or "").strip("\n")) == _tokens(place.goal.strip("\n"))
    return {"offers": True, "right": any(offered == _tokens(want) for want in place.wants), "whole": whole}


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall("\n" + text)


def figures(answers: Sequence[Answer], threshold: float, kind: str = "there") -> dict[str, float]:
    """Return what is shown at a threshold: the shares of right offers, of hunks that they cover, and of quiet places."""
    shown = [each for each in answers if each["offers"] and each["logp"] >= threshold]
    hunks = [each for each in answers if each["kind"] == kind and not each["quiet"]]
    at_hunks = [each for each in shown if each["kind"] == kind and not each["quiet"]]
    n_right, n_quiet = sum(each["right"] for each in at_hunks), sum(each["quiet"] for each in answers)
    quiet = 1 - sum(each["quiet"] for each in shown) / n_quiet if n_quiet else 1.0
    precision = n_right / len(at_hunks) if at_hunks else 0.0
    covered = n_right / max(1, len(hunks))
    return {"shown": len(at_hunks), "right": n_right, "precision": precision, "covered": covered, "quiet": quiet}


def interval(answers: Sequence[Answer], figure: Callable[[Sequence[Answer]], float]) -> str:
    """Return the .95 interval of a figure over draws of commits."""
    commits = defaultdict(list)
    for each in answers:
        commits[each["commit"]].append(each)
    draw, names = random.Random(0), list(commits)
    draws = (draw.choices(names, k=len(names)) for _ in range(300))
    values = sorted(figure([each for name in names_ for each in commits[name]]) for names_ in draws)
    return f"{values[7]:.2f}–{values[-8]:.2f}"


def fitted(answers: Sequence[Answer]) -> float:
    """Return the lowest threshold at which enough offers are right and enough places stay quiet; 1 if there is none."""
    for threshold in sorted(each["logp"] for each in answers if each["offers"]):
        found = figures(answers, threshold)
        if found["precision"] >= LEAST_RIGHT and found["quiet"] >= LEAST_QUIET and found["shown"] >= 5:
            return threshold
    return 1.0


def _line(answers: Sequence[Answer], threshold: float) -> str:
    found = figures(answers, threshold)
    shares = [
        f"{found[key]:.2f} ({interval(answers, lambda some, key=key: figures(some, threshold)[key])})"
        for key in ("precision", "covered", "quiet")
    ]
    return f"| {threshold:.1f} | {found['shown']} | {found['right']} | {' | '.join(shares)} |"


def _curve(answers: Sequence[Answer], n_hunks: int) -> None:
    scores = sorted(
        (each["logp"] for each in answers if each["offers"] and each["kind"] == "there" and not each["quiet"]), reverse=True
    )
    for n in dict.fromkeys(min(len(scores), max(1, int(share * n_hunks))) for share in SHARES if scores):
        print(_line(answers, scores[n - 1]))
    names = sorted({each["repository"] for each in answers})
    for half in (0, 1):
        ours = [each for each in answers if names.index(each["repository"]) % 2 == half]
        others = [each for each in answers if names.index(each["repository"]) % 2 != half]
        print("fitted on the other half:", _line(others, fitted(ours)))


def table(file: Path) -> None:
    """Print the curve, the fitted thresholds on the other repositories, and the kinds of places."""
    answers = [json.loads(line) for line in file.read_text().splitlines()]
    hunks = [each for each in answers if each["kind"] == "there" and not each["quiet"]]
    n_quiet = sum(each["quiet"] for each in answers)
    print(f"{len(hunks)} hunks, {n_quiet} quiet places, {len({each['commit'] for each in answers})} commits")
    repeating = [each | {"offers": each["offers"] and each["repeats"]} for each in answers]
    for title, some in (("all changes", answers), ("those that repeat one of the last edits", repeating)):
        print(title, "| threshold | shown | right | precision | covered | quiet |", "|" + " ---: |" * 6, sep="\n")
        _curve(some, len(hunks))
    answers = [each | {"change": _kind_of_change(each["window"], each["goal"])} for each in answers]
    for key in ("kind", "known", "echo", "change"):
        for value in sorted({each[key] for each in answers}, key=str):
            some = [each for each in answers if each[key] == value]
            changes = [each for each in some if not each["quiet"]]
            counts = sum(each["offers"] for each in changes), sum(each["right"] for each in changes)
            n_wrong = sum(each["offers"] for each in some if each["quiet"])
            print(
                f"{key} {value}: {len(changes)} hunks, {counts[0]} offers, {counts[1]} right; {n_wrong} offers at quiet places"
            )


def _kind_of_change(old: str, new: str) -> str:
    opcodes = SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False).get_opcodes()
    tags = {tag for tag, *_ in opcodes} - {"equal"}
    return tags.pop() if len(tags) == 1 else "several" if tags else "none"


def main() -> None:
    """Run one of the two commands."""
    command, *values = sys.argv[1:] or ["--help"]
    if command == "ask" and 3 <= len(values) <= 5:
        folder, name, file, n_each, seconds = [*values, *("30", "1e9")[len(values) - 3 :]]
        ask(Path(folder), name, Path(file), int(n_each), float(seconds))
    elif command == "table" and len(values) == 1:
        table(Path(values[0]))
    else:
        print(__doc__)


if __name__ == "__main__":
    main()
