"""What the names of an answer say about it, given the text around its hole."""

from __future__ import annotations

import math

import pytest

from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.engine.common.rank import NamesInText

LINE = Hole(Span(0, 0), "cursor")
BLOCK = Hole(Span(0, 0), "cursor", extent="block")


def features(prefix: str, text: str, suffix: str = "\n", *, hole: Hole = LINE, language: str = "python") -> dict[str, float]:
    return NamesInText(InfillRequest(prefix, suffix, (hole,), language=language)).features(text)


def test_names_that_the_text_around_lacks_are_new() -> None:
    values = features("def area(width, height):\n    return ", "width * hight")
    assert values["new names"] == pytest.approx(math.log(2))
    assert values["new share"] == 0.5
    assert features("def area(width, height):\n    return ", "width * height")["new share"] == 0.0


def test_names_after_the_hole_keywords_and_builtins_are_not_new() -> None:
    assert features("x = ", "len(later) if True else None", "\nlater = 1\n")["new share"] == 0.0
    assert features("x = ", "func(later)", "\nlater := 1\n", language="go")["new share"] == 0.0
    assert features("x = ", "func(later)", "\nlater = 1\n")["new share"] == 0.5, "func is no keyword of Python"


def test_text_of_strings_has_no_names() -> None:
    values = features("print(", '"some words")')
    assert (values["new share"], values["no names"]) == (0.0, 1.0)


def test_an_answer_in_a_name_counts_as_the_whole_name() -> None:
    prefix = "validators = []\nrun(vali"
    whole, wrong, none = (features(prefix, text) for text in ("dators)", "dated)", ", 1)"))
    assert (whole["known name"], whole["continues"], whole["unknown name"]) == (1.0, 1.0, 0.0)
    assert (wrong["known name"], wrong["continues"], wrong["unknown name"]) == (0.0, 1.0, 1.0)
    assert (none["known name"], none["continues"], none["unknown name"]) == (0.0, 0.0, 0.0)


def test_the_part_of_a_name_next_to_the_hole_is_not_known_by_itself() -> None:
    assert features("run(vali", "")["new share"] == 1.0
    assert features("run(", "left", "Side)\n")["joins right"] == 1.0
    assert "joins right" not in features("run(", "left, ", "Side)\n")


def test_brackets_and_quotes_that_stay_open_count() -> None:
    assert features("print(", "a")["open"] == 1.0
    assert features("print(", "a)")["open"] == 0.0
    assert features("print(", "a", ")\n")["open"] == 0.0
    assert features("print(", "'(')")["open"] == 0.0, "a bracket in a string opens nothing"
    assert features("print(", "[a", hole=BLOCK)["open"] == 1.0, "of a block only its own brackets count"
    assert (features("print(", '"a')["quotes"], features("print(", '"a")')["quotes"]) == (1.0, 0.0)


def test_an_unknown_language_and_empty_texts_have_features_too() -> None:
    assert features("", "", "", language="")["no names"] == 1.0
    assert features("", "", "", language="no such language").keys() == features("", "", "").keys()


def test_a_long_word_elsewhere_takes_linear_time() -> None:
    """With a quadratic search, it takes minutes, and the time limit of a test ends it."""
    assert features("a" * 12_000 + " ", "b")["no names"] == 0.0
