"""Every promise of SECURITY.md names tests in guarantees.toml, and they exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "SECURITY.md").read_text("utf-8")
NAMED: dict[str, list[str]] = tomllib.loads((TESTS / "hostile" / "guarantees.toml").read_text("utf-8"))


def test_every_promise_names_its_tests() -> None:
    promised = PAGE.partition("\n## A repository\n")[2].partition("\n## What is not guaranteed\n")[0]
    lines = [line for line in promised.split("\n") if line.startswith("- ")]
    promises = [match[1] for line in lines if (match := re.match(r"- \*\*([A-Z]\d+)\*\* ", line))]
    assert len(promises) == len(lines) > 15
    assert list(NAMED) == promises
    assert all(NAMED.values())


def test_every_test_that_is_named_exists() -> None:
    texts = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    there = set(re.findall(r"^(?:async )?def (test_\w+)\(", texts, re.MULTILINE))
    assert sorted({name for names in NAMED.values() for name in names} - there) == []
