"""The report about tree-sitter in README.md, as a test that fails with tree-sitter 0.26.1 and tree-sitter-typescript 0.23.2.

Run: pytest docs/upstream/test_tree_sitter.py. Not collected by `make test`.
"""

from __future__ import annotations

import time

import pytest
import tree_sitter
import tree_sitter_typescript

GAP = b"x\n" * 40
SOURCE = b"[\n" + GAP + b"}\n"
PARTS = (0, 2), (2 + len(GAP), len(SOURCE))
LANGUAGES = {
    "typescript": tree_sitter_typescript.language_typescript,
    "tsx": tree_sitter_typescript.language_tsx,
}


def point(byte: int) -> tuple[int, int]:
    return SOURCE.count(b"\n", 0, byte), byte - 1 - SOURCE.rfind(b"\n", 0, byte)


def ends(language: object, ranges: tuple[tuple[int, int], ...]) -> bool:
    parser = tree_sitter.Parser(tree_sitter.Language(language))
    parser.included_ranges = [tree_sitter.Range(point(start), point(end), start, end) for start, end in ranges]
    limit = time.thread_time() + 2
    try:
        parser.parse(lambda byte, _: SOURCE[byte:], progress_callback=lambda *_: time.thread_time() > limit)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_parse_of_an_open_bracket_before_a_left_out_part_ends(name: str) -> None:
    language = LANGUAGES[name]()
    assert ends(language, ((0, len(SOURCE)),))
    assert ends(language, PARTS)
