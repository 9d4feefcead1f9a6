"""A calibration ranks the candidates of a hole by what distinguishes them from each other."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from dg_lsp.evaluate import calibrate
from dg_lsp.evaluate.calibrate import Sample


def sample(number: int, features: list[dict[str, float]], right: list[bool]) -> Sample:
    return Sample(f"file {number % 40}", tuple(features), tuple(right))


def test_what_holds_within_a_hole_decides_and_not_what_holds_between_holes() -> None:
    """Easy holes have long candidates, but of the two candidates of a hole the short one is right."""
    draw, samples = random.Random(3), []
    for number in range(400):
        is_easy = draw.random() < 0.5
        has_right = draw.random() < (0.9 if is_easy else 0.05)
        base = 4.0 if is_easy else 0.0
        pair = [{"length": base + extra + draw.gauss(0, 0.1), "ease": base} for extra in (0.0, 2.0)]
        samples.append(sample(number, pair, [has_right, False]))
    fitted = calibrate.fit(samples)
    assert all(calibrate.best(each, fitted) == 0 for each in samples)


def test_several_candidates_of_a_hole_can_be_right() -> None:
    draw = random.Random(4)
    samples = []
    for number in range(200):
        known = [draw.gauss(0, 1) for _ in range(4)]
        samples.append(sample(number, [{"known": value} for value in known], [value > 0.3 for value in known]))
    fitted = calibrate.fit(samples)
    assert fitted.weights["known"] > 0
    assert all(
        judged.right == (judged.probability > 0.5)
        for judged in calibrate.judge(samples, fitted)
        if abs(judged.probability - 0.5) > 0.4
    )


def test_of_one_candidate_the_choice_is_a_logistic_regression() -> None:
    """The one-dimensional problem has a solution that can be checked: the gradient of the penalised loss is zero there."""
    draw = random.Random(5)
    values = [draw.gauss(0, 1) for _ in range(300)]
    right = [draw.random() < 1 / (1 + math.exp(-(2 * value - 1))) for value in values]
    fitted = calibrate.logistic([{"x": value} for value in values], right)
    weight, spread = fitted.weights["x"], statistics.pstdev(values)
    chances = [1 / (1 + math.exp(-(fitted.intercept + weight * value))) for value in values]
    errors = [chance - is_right for chance, is_right in zip(chances, right, strict=True)]
    assert sum(errors) == pytest.approx(0.0, abs=0.05)
    slope = (
        sum(error * value / spread for error, value in zip(errors, values, strict=True)) + calibrate.PENALTY * weight * spread
    )
    assert slope == pytest.approx(0.0, abs=0.05)


def test_the_order_changes_only_if_that_helps() -> None:
    """Noise helps by chance where it was fitted; what tells right answers from wrong ones helps on other holes too."""
    for helps in (False, True):
        draw, samples = random.Random(6), []
        for number in range(60):
            right = draw.randrange(3) if helps else 0
            joints = sorted((draw.gauss(-8, 3) for _ in range(3)), reverse=True)
            features = [
                {"joint": joint, "clue": float(place == right and helps)} | {f"noise {n}": draw.gauss(0, 1) for n in range(20)}
                for place, joint in enumerate(joints)
            ]
            samples.append(sample(number, features, [place == right and draw.random() < 0.7 for place in range(3)]))
        fitted = calibrate.fit(samples)
        assert fitted.reorders == helps
        assert helps or all(calibrate.best(each, fitted) == 0 for each in samples)
