"""Write `reference_prompts.json`: hashes of the prompts that the package `sweep-autocomplete` makes in the sessions below.

    pip install --no-deps sweep-autocomplete==0.1.1; pip install loguru regex requests pydantic
    python -m tests.core.reference_prompts

It runs no model. `test_edits.py` makes the same sessions and compares.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from dg_lsp.core import edits

FIXTURE = Path(__file__).with_name("reference_prompts.json")
N_SESSIONS = 200
WORDS = (
    "total",
    "count",
    "item",
    "naïve",
    "größe",
    "値",
    "return",
    "if",
    "for",
    "x",
    "self.rows",
    "🙂",
    "(a, b)",
    "= 0",
    "# note",
    "{",
    "}",
)


@dataclass(frozen=True)
class Session:
    """A file before and after some edits, and the cursor's offset in it now."""

    path: str
    original: str
    text: str
    cursor: int
    edits: tuple[edits.Edit, ...]


def sessions() -> Iterator[Session]:
    """Yield the sessions, the same ones each time."""
    made = 0
    for seed in range(10_000):
        session = _session(Random(seed))
        if session is not None:
            made += 1
            yield session
        if made == N_SESSIONS:
            return


def digest(prompt: str) -> str:
    """Return the start of the hash of a prompt."""
    return sha256(prompt.encode()).hexdigest()[:16]


def _line(random: Random) -> str:
    if random.random() < 0.2:
        return random.choice(("", "    ", ""))
    long = 200 if random.random() < 0.02 else random.randint(1, 8)
    return "    " * random.randint(0, 3) + " ".join(random.choice(WORDS) for _ in range(long))


def _session(random: Random) -> Session | None:
    lines = [_line(random) for _ in range(random.choice((1, 4, 12, 60, 60, 900)))]
    paths = ["src/rows.py", "lib/other file.ts"]
    texts = {path: "\n".join(lines) + random.choice(("", "\n")) for path in paths}
    path, original, made, at = paths[0], texts[paths[0]], [], 0
    for _ in range(random.randint(0, 9)):
        changed = paths[0] if random.random() < 0.8 else paths[1]
        now = texts[changed].splitlines(keepends=True)
        at = min(len(now), max(0, at + random.randint(-4, 4))) if random.random() < 0.7 else random.randint(0, len(now))
        n_old, n_new = random.choice(((1, 1), (1, 1), (0, 2), (2, 0), (2, 3), (1, 0)))
        new = [_line(random) + "\n" for _ in range(n_new)]
        if random.random() < 0.1:
            new = ["  " + line for line in now[at : at + n_old]]
        after = "".join(now[:at] + new + now[at + n_old :])
        edit = edits.edit_between(changed, texts[changed], after)
        if edit is not None:
            made.append(edit)
            texts[changed] = after
    text = texts[path]
    starts = [0, *(i + 1 for i, c in enumerate(text) if c == "\n")]
    near = min(len(starts) - 1, max(0, at + random.randint(-3, 3)))
    cursor = random.randint(0, len(text)) if random.random() < 0.3 else min(len(text), starts[near] + random.randint(0, 4))
    window = edits.window_around(text, cursor)
    # The reference package looks for the window in the file by its text, and finds another place that has the same.
    if window is None or text.find(window.text) != window.start:
        return None
    return Session(path, original, text, cursor, tuple(made))


def _as_diff(edit: edits.Edit) -> str:
    sides = ((" ", edit.above), ("-", edit.old), ("+", edit.new), (" ", edit.below))
    body = "\n".join(sign + line for sign, lines in sides for line in lines.splitlines())
    n_old = len((edit.above + edit.old + edit.below).splitlines())
    n_new = len((edit.above + edit.new + edit.below).splitlines())
    return f"File: {edit.path}\n@@ -{edit.first + 1},{n_old} +{edit.first + 1},{n_new} @@\n\n{body}"


def _reference_prompt(session: Session) -> str:
    reference: Any = import_module("sweep_autocomplete.autocomplete.next_edit_autocomplete")

    block, before, after, start = reference.get_block_at_cursor(session.text, session.cursor)
    changes = "\n".join(map(_as_diff, session.edits))
    prompts: list[str] = []

    def record(prompt: str, **_: Any) -> tuple[str, int, list[Any], str]:
        prompts.append(prompt)
        return "", 0, [], "stop"

    reference.generate_completion = record
    reference._fetch_next_edits_core(
        session.path, session.text, changes, session.cursor, session.original, block, before, after, "", start, False
    )
    return prompts[0]


def main() -> None:
    """Write the fixture."""
    # What loads weights and what searches the file for another place are replaced, so that their packages need not be there.
    for name, used in (
        ("llm_local", ("generate_completion", "RequestCancelled")),
        ("next_edit_autocomplete_retrieval", ("find_best_matching_block",)),
    ):
        module = ModuleType(f"sweep_autocomplete.autocomplete.{name}")
        vars(module).update(dict.fromkeys(used, RuntimeError))
        sys.modules[module.__name__] = module
    FIXTURE.write_text(json.dumps([digest(_reference_prompt(session)) for session in sessions()], indent=0) + "\n")


if __name__ == "__main__":
    main()
