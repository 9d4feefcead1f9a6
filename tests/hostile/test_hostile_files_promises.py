"""Every promise of SECURITY.md names tests, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
NAMED = re.compile(r"`(test_\w+)`")


def test_every_promise_names_its_tests() -> None:
    promised, _, rest = PAGE.partition("\n## A repository\n")[2].partition("\n## What is not guaranteed\n")
    lines = [line for line in promised.split("\n") if line.startswith("- ")]
    promises = [match[1] for line in lines if (match := re.match(r"- \*\*([A-Z]\d+)\*\* ", line))]
    assert len(promises) == len(lines) > 15
    rows = re.findall(r"^\| ([A-Z]\d+) \| (.*) \|$", rest.partition("\n## The tests of each guarantee\n")[2], re.MULTILINE)
    assert [number for number, _ in rows] == promises
    assert [number for number, tests in rows if not NAMED.search(tests)] == []


def test_every_test_that_is_named_exists() -> None:
    texts = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^(?:async )?def (test_\w+)\(", texts, re.MULTILINE))
    assert sorted(set(NAMED.findall(PAGE)) - there) == []
