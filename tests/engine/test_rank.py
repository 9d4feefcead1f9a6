"""One number for every row, and each text once."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dg_lsp.core import calibration, confidence, place
from dg_lsp.core.calibration import Calibration
from dg_lsp.core.values import Calibrated, Hole, InfillRequest, Ranked, Span
from dg_lsp.engine.common import rank
from dg_lsp.engine.common.rank import NamesInText, Proposal, evidence, features


def test_rows_that_agree_count_for_each_other() -> None:
    copy = Proposal("x", "copy", logps=(-1.0, -3.0), left=9, right=2)
    causal, noise = Proposal("x", "causal", logps=(-1.0, -3.0)), Proposal("y", "noise", entropy=0.5)
    value_by_name = features(causal, [copy, causal, noise])
    assert value_by_name["agree"] == pytest.approx(0.693, abs=1e-3)
    assert (value_by_name["copied"], value_by_name["causal"], value_by_name["noise"]) == (1.0, 1.0, 0.0)
    assert value_by_name["left"] == pytest.approx(2.303, abs=1e-3)
    assert (value_by_name["sum"], value_by_name["mean"], value_by_name["least"]) == (-4.0, -2.0, -3.0)


def test_rows_are_compared_with_the_other_rows_of_their_hole() -> None:
    first = Proposal("x", "copy", logps=(-1.0,), left=9, right=30)
    same = Proposal("x", "causal", logps=(-1.0,))
    second = Proposal("y", "copy", logps=(-2.0,), after=(-1.0,), left=4, right=2)
    rows = [first, same, second]
    values, less = features(first, rows), features(second, rows)
    assert (values["margin"], less["margin"]) == (2.0, -2.0)
    assert values["texts"] == pytest.approx(0.693, abs=1e-3)
    assert math.exp(values["share"]) + math.exp(less["share"]) == pytest.approx(1.0), "each text counts once"
    assert (values["behind left"], values["behind right"]) == (0.0, 0.0)
    assert less["behind left"] == pytest.approx(math.log(10 / 5))
    assert less["behind right"] == pytest.approx(math.log(25 / 3)), "agreement on the right counts up to 24 characters"
    assert "behind left" not in features(same, rows), "only copies agree with the text around them"


def test_rows_are_also_compared_by_the_model_alone() -> None:
    first = Proposal("x", "copy", logps=(-1.0, -1.0), model_logps=(-4.0, -2.0), after=(-0.5,))
    second = Proposal("y", "causal", logps=(-3.0,), model_logps=(-2.5,), after=(-0.5,))
    values = features(first, [first, second])
    assert (values["own joint"], values["own mean"], values["own least"], values["own gain"]) == (-6.5, -3.0, -4.0, 4.0)
    assert (values["margin"], values["own margin"]) == (1.0, -3.5)
    shares = [features(row, [first, second])["own share"] for row in (first, second)]
    assert shares[1] - shares[0] == pytest.approx(3.5)
    assert sum(map(math.exp, shares)) == pytest.approx(1.0)


def test_a_single_text_leads_by_the_most() -> None:
    only = Proposal("x", "causal", logps=(-1.0,))
    assert (features(only, [only])["margin"], features(only, [only])["share"]) == (rank.MOST_MARGIN, 0.0)


def test_only_some_features_depend_on_the_position() -> None:
    values = features(Proposal("x", "copy", position="line"), [])
    assert values["line"] == 1.0
    assert {name.removeprefix("line: ") for name in values if name.startswith("line: ")} <= rank.BY_POSITION


def test_lines_near_the_hole_count_as_repeated() -> None:
    prefix, suffix = "import a\n\n\n\nx = 1\ny = 2\nz = 3\nself.", "\nself.end = 0\n"
    assert rank.repeated_lines(place.between(prefix, suffix), "end = 0") == (1.0, 1.0)
    assert rank.repeated_lines(place.between(prefix, suffix), "end = 1\ny = 2") == (0.5, 0.5)
    assert rank.repeated_lines(place.between("import a\n" + prefix[8:], "\nimport a\n"), "x") == (0.0, 0.0)
    assert rank.repeated_lines(place.between(prefix.removesuffix("self."), suffix), "import a\n") == (0.0, 1.0)
    assert rank.repeated_lines(place.between("", ""), "\n") == (0.0, 0.0)


ITEMS = [Proposal("a", "copy", logps=(-3.0,)), Proposal("b", "causal", logps=(-1.0,)), Proposal("a", "noise", logps=(-2.0,))]


def test_each_text_appears_once_best_first() -> None:
    candidates = calibration.to_candidates(evidence(ITEMS), Calibration(0.0, {"mean": 1.0}))
    assert [(item.texts, item.row) for item in candidates] == [(("b",), "causal"), (("a",), "noise")]
    assert all(isinstance(item.confidence, Calibrated) for item in candidates)
    assert [confidence.probability(item.confidence) for item in candidates] == pytest.approx([0.269, 0.119], abs=1e-3)


def test_long_answers_are_ranked_however_improbable_they_are() -> None:
    """Of a block of sixty tokens, even the likeliest text has a log-probability far below that of a line."""
    texts = [Proposal(text, "causal", logps=(mean,) * 60) for text, mean in (("b", -1.2), ("a", -0.9), ("c", -1.5))]
    best = calibration.to_candidates(evidence(texts), None)
    assert [one.texts for one in best] == [("a",), ("b",), ("c",)]
    assert calibration.probability({"joint": -900.0}, Calibration(0.0, {"joint": 1.0})) == pytest.approx(0.0, abs=1e-9)


def test_answers_that_lack_words_of_the_instruction_rank_lower() -> None:
    texts = ["return self", "raise ValueError(message)", "raise TypeError(message)"]
    assert rank.unsaid("raise ValueError, and not the old one", texts, "python") == [2, 0, 1]
    assert rank.unsaid("check the argument", texts, "python") == [0, 0, 0], "no answer has these words as names"
    assert rank.unsaid("", texts, "") == [0, 0, 0]
    echoes = ["print('raise ValueError')", "pass  # raise ValueError", texts[1]]
    assert rank.unsaid("raise ValueError", echoes, "python") == [2, 2, 0], "only code counts"
    halves = ["total // count", "f'{total / count}'", "total #count"]
    assert rank.unsaid("divide total by count", halves, "python") == [0, 0, 1]
    items = [
        Proposal(text, "causal", logps=(-n * 1.0,), of_text={"missing": lacks})
        for n, (text, lacks) in enumerate(zip(texts, [2, 0, 1], strict=True))
    ]
    best = calibration.to_candidates(evidence(items), None)
    assert [one.texts[0] for one in best] == [texts[1], texts[2], texts[0]]


def test_without_a_calibration_there_is_an_order_and_no_probability() -> None:
    candidates = calibration.to_candidates(evidence(ITEMS), None)
    assert [(item.texts, item.confidence) for item in candidates] == [(("b",), Ranked(0)), (("a",), Ranked(1))]


def test_without_a_calibration_a_sum_ranks_answers_of_different_lengths() -> None:
    repeating = Proposal("abab", "noise", logps=(-1.0, -1.0, -0.1, -0.1), after=(-4.0,))
    short = Proposal("ab", "noise", logps=(-1.0, -1.0), after=(-0.5,))
    candidates = calibration.to_candidates(evidence([repeating, short]), None)
    assert [item.texts for item in candidates] == [("ab",), ("abab",)]


def test_doubted_candidates_rank_last_and_are_marked() -> None:
    first, *rest = evidence(ITEMS[1:])
    candidates = calibration.to_candidates([replace(first, doubted=True), *rest], None)
    assert [(item.texts, item.confidence) for item in candidates] == [(("a",), Ranked(0)), (("b",), Ranked(1, doubted=True))]


def test_a_probability_stays_within_bounds() -> None:
    assert calibration.probability({"sum": 1e9}, Calibration(0.0, {"sum": 1.0})) <= 1.0
    assert calibration.probability({"sum": -1e9}, Calibration(0.0, {"sum": 1.0})) >= 0.0
    assert calibration.probability({"sum": float("nan")}, Calibration(0.0, {"sum": 1.0})) < 1e-9


# The names of an answer


LINE = Hole(Span(0, 0), "cursor")
BLOCK = Hole(Span(0, 0), "cursor", extent="block")


def of_names(prefix: str, text: str, suffix: str = "\n", *, hole: Hole = LINE, language: str = "python") -> dict[str, float]:
    return NamesInText(InfillRequest(prefix, suffix, (hole,), language=language)).features(text)


def test_names_that_the_text_around_lacks_are_new() -> None:
    values = of_names("def area(width, height):\n    return ", "width * hight")
    assert values["new names"] == pytest.approx(math.log(2))
    assert values["new share"] == 0.5
    assert of_names("def area(width, height):\n    return ", "width * height")["new share"] == 0.0


def test_names_after_the_hole_keywords_and_builtins_are_not_new() -> None:
    assert of_names("x = ", "len(later) if True else None", "\nlater = 1\n")["new share"] == 0.0
    assert of_names("x = ", "func(later)", "\nlater := 1\n", language="go")["new share"] == 0.0
    assert of_names("x = ", "func(later)", "\nlater = 1\n")["new share"] == 0.5, "func is no keyword of Python"


def test_text_of_strings_has_no_names() -> None:
    values = of_names("print(", '"some words")')
    assert (values["new share"], values["no names"]) == (0.0, 1.0)


def test_an_answer_in_a_name_counts_as_the_whole_name() -> None:
    prefix = "validators = []\nrun(vali"
    whole, wrong, none = (of_names(prefix, text) for text in ("dators)", "dated)", ", 1)"))
    assert (whole["known name"], whole["continues"], whole["unknown name"]) == (1.0, 1.0, 0.0)
    assert (wrong["known name"], wrong["continues"], wrong["unknown name"]) == (0.0, 1.0, 1.0)
    assert (none["known name"], none["continues"], none["unknown name"]) == (0.0, 0.0, 0.0)


def test_the_part_of_a_name_next_to_the_hole_is_not_known_by_itself() -> None:
    assert of_names("run(vali", "")["new share"] == 1.0
    assert of_names("run(", "left", "Side)\n")["joins right"] == 1.0
    assert "joins right" not in of_names("run(", "left, ", "Side)\n")


def test_brackets_and_quotes_that_stay_open_count() -> None:
    assert of_names("print(", "a")["open"] == 1.0
    assert of_names("print(", "a)")["open"] == 0.0
    assert of_names("print(", "a", ")\n")["open"] == 0.0
    assert of_names("print(", "'(')")["open"] == 0.0, "a bracket in a string opens nothing"
    assert of_names("print(", "[a", hole=BLOCK)["open"] == 1.0, "of a block only its own brackets count"
    assert (of_names("print(", '"a')["quotes"], of_names("print(", '"a")')["quotes"]) == (1.0, 0.0)


def test_an_unknown_language_and_empty_texts_have_features_too() -> None:
    assert of_names("", "", "", language="")["no names"] == 1.0
    assert of_names("", "", "", language="no such language").keys() == of_names("", "", "").keys()


def test_a_long_word_elsewhere_takes_linear_time() -> None:
    """With a quadratic search, it takes minutes, and the time limit of a test ends it."""
    assert of_names("a" * 12_000 + " ", "b")["no names"] == 0.0
