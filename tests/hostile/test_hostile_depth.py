"""Code that is nested a thousand levels deep is judged like any other, and still deeper code gets a reason instead."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

import dg_lsp
from dg_lsp.core import excerpt, holes, syntax
from dg_lsp.core.syntax import MOST_AROUND
from dg_lsp.core.values import Budget, Calibrated, Candidate, Document
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.server.sync import OpenDocument
from tests import marked, naive

N = 1_000
ROWS = marked.rows(Path(__file__).with_name("depth.txt"))["code"]
CODE = {name: code for name, *code in (row.values for row in ROWS)}
COMMENTS = {"python": "#", "ruby": "#", "bash": "#", "lua": "--"}


def nested(name: str, n: int, n_chars: int = 0) -> tuple[Document, int]:
    """Return a document with nested code and comments after it, and the place of the cursor in the code."""
    language, before, opener, closer, after = CODE[name]
    head = before + "".join(opener.replace("#", str(number)) for number in range(n))
    comment = f"{COMMENTS.get(language, '//')} nothing\n"
    text = head + closer * n + after + comment * (n_chars // len(comment) + 1)
    return Document(f"untitled:{name}", language, text), len(head)


@pytest.mark.parametrize("name", CODE)
@pytest.mark.parametrize("n_chars", [0, excerpt.LONG_CHARS], ids=["short", "long"])
def test_deep_code_is_parsed_near_the_cursor_and_judged(name: str, n_chars: int) -> None:
    document, at = nested(name, N, n_chars)
    opened = OpenDocument(document.uri, document.language, 1, document.text)
    near = opened.near(at)
    assert (near is None) == opened.is_unparsed
    holes.in_document(document, asyncio.run(opened.syntax()), holes.KINDS)
    hole = holes.at_cursor(document, at, near)
    request = pipeline.to_request(document, (hole,), FileContext("a", budget=Budget(candidates=2)), syntax=near)
    answer = asyncio.run(pipeline.to_answer(request, [Candidate(("a(1)",), Calibrated(0.5))], document, syntax=near))
    assert answer.suggestions or answer.reason
    row = document.text.count("\n", 0, at)
    opened.change(2, [naive.edit("x", (row, 0), (row, 0))], "utf-16")
    opened.near(at + 1)


@pytest.mark.parametrize("name", ["js blocks", "js else if", "tsx elements"])
def test_code_that_is_nested_too_deeply_counts_as_without_a_grammar(name: str) -> None:
    document, at = nested(name, MOST_AROUND)
    opened = OpenDocument(document.uri, document.language, 1, document.text)
    assert opened.near(at) is None
    assert opened.is_unparsed
    tree, hole = syntax.of(document), holes.at_cursor(document, at, None)
    request = pipeline.to_request(document, (hole,), FileContext("a"), syntax=None)
    answer = asyncio.run(pipeline.to_answer(request, [Candidate(("a(1)",), Calibrated(0.5))], document, syntax=tree))
    assert answer.reason == "the answer is in code that is nested too deeply to be checked"


# Functions that call themselves, and why that ends early.
RECURSIVE = {
    "batch/scratch.py contents": "once for each repository within another",
    "batch/verify.py by_halves": "half as many each time",
    "core/lexing.py tokens": "a language that is embedded embeds no other",
    "infill/workspace.py _alternatives": "a pattern has at most 256 characters",
}


def test_no_function_that_reads_a_repository_calls_itself() -> None:
    root, found = Path(dg_lsp.__file__).parent, set[str]()
    for part in ("batch", "core", "infill", "server"):
        for path in (root / part).rglob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
                    if any(isinstance(call, ast.Name) and call.id == node.name for call in calls):
                        found.add(f"{path.relative_to(root).as_posix()} {node.name}")
    assert found - RECURSIVE.keys() == set()
