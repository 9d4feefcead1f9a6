"""When to ask, how long to wait, what to reuse, whether to show: tables of what is decided."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dg_lsp.core.polish import Suggestion
from dg_lsp.core.values import Calibrated, Candidate, Confidence, Edit, Ranked, Span
from dg_lsp.server import answers, configuration, cursor, reasons
from dg_lsp.server import rhythm as rhythms
from dg_lsp.server.answers import Answer, Answers, Result
from dg_lsp.server.cursor import Cursor
from dg_lsp.server.reasons import Reason, Scope
from dg_lsp.server.rhythm import Rhythm
from dg_lsp.server.session import Reporter
from dg_lsp.server.unwanted import MAX_UNWANTED, Unwanted
from dg_lsp.wire.settings import Settings
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("outcomes.txt"))

# When to ask


@pytest.mark.parametrize(
    ("facts", "settings", "code"),
    [
        ({"automatic": True}, Settings(), None),
        ({"automatic": True}, Settings(enable=False), "off"),
        ({"automatic": False}, Settings(enable=False), "off"),
        ({"automatic": True, "refused": "may hold secrets"}, Settings(), "ignored"),
        ({"automatic": False, "refused": "may hold secrets"}, Settings(), "ignored"),
        ({"automatic": False, "lost": True}, Settings(), "lost"),
        (
            {"automatic": True, "language_id": "markdown"},
            Settings(disabled_languages=frozenset({"markdown"})),
            "language",
        ),
        ({"automatic": False, "language_id": "markdown"}, Settings(disabled_languages=frozenset({"markdown"})), None),
        ({"automatic": True, "n_chars": reasons.MAX_FILE_CHARS + 1}, Settings(), "large"),
        ({"automatic": False, "n_chars": reasons.MAX_FILE_CHARS + 1}, Settings(), None),
        ({"automatic": True}, Settings(trigger="manual"), "manual"),
        ({"automatic": False}, Settings(trigger="manual"), None),
        ({"automatic": True, "engine": "the engine is starting"}, Settings(), "engine"),
        ({"automatic": False, "engine": "the engine is starting"}, Settings(), None),
        ({"automatic": True, "after": "foo"}, Settings(), "midWord"),
        ({"automatic": True, "after": ")"}, Settings(), None),
        ({"automatic": True, "after": " + b"}, Settings(), None),
    ],
)
def test_when_not_to_suggest(facts: dict[str, Any], settings: Settings, code: str | None) -> None:
    reason = next(reasons.reasons(settings, **facts), None)
    assert (reason.code if reason else None) == code


@pytest.mark.parametrize(
    ("scope", "is_unparsed", "settings", "code"),
    [
        ("code", True, Settings(), "unparsed"),
        ("code", False, Settings(), None),
        ("comment", False, Settings(), "comment"),
        ("comment", False, Settings(in_comments=True), None),
        ("string", False, Settings(), "string"),
        ("string", False, Settings(in_strings=True), None),
    ],
)
def test_where_not_to_suggest(scope: Scope, is_unparsed: bool, settings: Settings, code: str | None) -> None:
    reason = reasons.reason_of_scope(scope, settings, is_unparsed=is_unparsed)
    assert (reason.code if reason else None) == code


# How long to wait


def rhythm(*at: float) -> Rhythm:
    typing = Rhythm()
    for now in at:
        typing = typing.typed(now)
    return typing


def test_pauses_and_bursts_do_not_change_the_typing_speed() -> None:
    assert rhythm(0.0, 0.1, 5.0, 5.001, 5.101).gaps == pytest.approx((0.1, 0.1))


def wait_ms(typing: Rhythm, before: str, after: str = "", *, now: float = 0.0, client_ms: float = 0) -> float:
    return rhythms.wait_ms(typing, now, before, after, client_ms=client_ms, fixed=None)


TYPED = Rhythm(last=0.0)


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [
        pytest.param(wait_ms(TYPED, before, after), wait_ms(TYPED, "word"), id=f"after {before}")
        for before, after in (("x = ", ""), ("f(", ")"), ("    ", ""), ("return ", ""))
    ]
    + [
        (wait_ms(rhythm(*(0.06 * n for n in range(10))), "x", now=0.54), wait_ms(rhythm(0, 0.4, 0.8, 1.2, 1.6, 2), "x", now=2)),
        (wait_ms(TYPED.answered(900.0), "x"), wait_ms(TYPED, "x")),
        (wait_ms(TYPED, "x = ", client_ms=50), wait_ms(TYPED, "x = ")),
        (wait_ms(TYPED, "x = ", now=0.2, client_ms=200), 1),
    ],
)
def test_a_wait_follows_the_place_the_typist_the_engine_and_the_editor(shorter: float, longer: float) -> None:
    assert shorter < longer
    assert wait_ms(TYPED, "foo") == wait_ms(TYPED, "f(", "x, y)") == wait_ms(TYPED, "word")
    # The user's own setting is used unchanged.
    assert rhythms.wait_ms(Rhythm(), 0.0, "x", "", client_ms=200, fixed=75) == 75


@given(
    st.lists(st.floats(0, 1000), max_size=20).map(sorted),
    st.lists(st.floats(0, 1e5), max_size=5),
    st.floats(0, 2000),
    st.floats(0, 500),
)
def test_a_wait_is_never_negative_nor_long(at: list[float], latencies: list[float], now: float, client_ms: float) -> None:
    typing = rhythm(*at)
    for latency in latencies:
        typing = typing.answered(latency)
    assert 0 <= rhythms.wait_ms(typing, max([now, *at]), "x", "", client_ms=client_ms, fixed=None) <= rhythms.MAX_WAIT_MS


# What to reuse


def offer(text: str, confidence: Confidence) -> Suggestion:
    return Suggestion(Candidate((text,), confidence), (Edit(Span(0, 0), text),))


def at_cursor(text: str, uri: str = "a") -> Cursor:
    return cursor.at(uri, text.replace("$0", ""), text.index("$0"))


def left(then: Cursor, text: str, now: Cursor) -> str:
    typing = cursor.typed(then, now)
    rests = cursor.rests((offer(text, Calibrated(0.9)),), typing) if typing else ()
    return rests[0].text if rests else "none"


@pytest.mark.parametrize(("then", "text", "now", "rest"), ROWS["typed"])
def test_typed_through(then: str, text: str, now: str, rest: str) -> None:
    assert left(at_cursor(then), text, at_cursor(now)) == rest
    assert left(at_cursor(then), text, at_cursor(now, uri="b")) == "none"


PERIODIC = ("-" * 40, "    [0, 0, 0],\n", "a\n")


@pytest.mark.parametrize("row", PERIODIC)
@pytest.mark.parametrize("n", [3, 60, 1000])
def test_in_text_that_repeats_itself_a_typed_row_is_typed(row: str, n: int) -> None:
    then, typed = f"x = [\n{row * n}$0]", f"x = [\n{row * (n + 1)}$0]"
    assert left(at_cursor(then), f"{row}done", at_cursor(typed)) == "done"
    assert left(at_cursor(then), f"{row}done", at_cursor(then)) == f"{row}done"
    # When the text above has changed too, nothing says which row is which.
    moved = left(at_cursor(then), f"{row}done", at_cursor(f"import os\n{typed}"))
    assert moved == "none"


def kept(*texts: str) -> Result:
    return Result(1, tuple(offer(text, Calibrated(0.9)) for text in texts), is_kept=True)


async def answered(table: Answers, text: str, result: Result) -> Answer:
    async def work() -> Result:
        return result

    answer = table.start(at_cursor(text), 1, work())
    await answer.task
    await asyncio.sleep(0)
    return answer


async def test_the_answers_are_bounded_and_expire() -> None:
    now = 0.0
    table = Answers(lambda: now)
    for n in range(answers.MAX_ANSWERS + 20):
        await answered(table, f"x{n} = $0", kept("1"))
    assert len(table) == answers.MAX_ANSWERS
    assert table.find(at_cursor("x0 = $0")) is None
    assert table.find(at_cursor("x99 = $0"))
    now = answers.FRESH_S + 1
    assert table.find(at_cursor("x99 = $0")) is None
    table.forget("a")
    assert len(table) == 0


async def test_an_empty_answer_is_used_at_its_exact_place_only() -> None:
    table = Answers(lambda: 0.0)
    answer = await answered(table, "x = $0", kept())
    assert table.find(at_cursor("x = $0")) == kept()
    assert table.find(at_cursor("x = y$0")) is None
    assert answer.result == kept()


@pytest.mark.parametrize(
    ("text", "texts", "stays"),
    [("x = $0", (), False), ("x = $0", ("1",), True), ("from a import $0", ("b",), False), ("$0", ("import a",), False)],
)
async def test_a_refusal_and_an_import_are_for_the_files_that_they_were_judged_by(
    text: str, texts: tuple[str, ...], stays: bool
) -> None:
    table, now = Answers(lambda: 0.0), at_cursor(text)
    await answered(table, text, kept(*texts))
    assert table.find(now) == kept(*texts)
    assert table.find(replace(now, others="changed")) == (kept(*texts) if stays else None)


async def test_a_second_answer_for_a_place_replaces_the_first_and_one_that_is_not_kept_is_for_who_waited() -> None:
    table = Answers(lambda: 0.0)
    await answered(table, "x = $0", kept("1"))
    await answered(table, "x = $0", kept("2"))
    own = await answered(table, "x = $0", replace(kept("3"), is_kept=False))
    assert [len(table), table.find(at_cursor("x = $0"))] == [1, kept("2")]
    fit = table.find(at_cursor("x = $0"), own=own)
    assert fit is not None
    assert fit.suggestions[0].text == "3"


TEXT = st.text("ab(\n", max_size=6)


@given(TEXT, TEXT, TEXT, TEXT)
def test_typed_text_and_rest_together_are_the_offer(before: str, after: str, typed: str, more: str) -> None:
    then, now = (
        cursor.at("a", before + after, len(before)),
        cursor.at("a", before + typed + after, len(before + typed)),
    )
    rest = left(then, typed + more, now)
    assert rest == "none" or before + typed + rest + after == before + typed + more + after


@pytest.mark.parametrize(("now", "expected"), ROWS["outcomes"])
def test_what_a_change_means_for_an_offer(now: str, expected: str) -> None:
    # Offered in `x = $0`.
    assert cursor.outcome("x = \n", 4, "ab", now) == expected
    # A bracket that the editor closed is none of the user's.
    assert cursor.outcome("x = \n", 4, "a(b)", "x = a()\n") == "typing"


@pytest.mark.parametrize(
    ("now", "expected"),
    [("x = \n", [4]), ("x = f\n", [5]), ("x = f)\n", [6]), ("x = f(a)\n", [8, 7]), ("y = 1\nx = \n", []), ("x = \ny", [])],
)
def test_a_request_goes_on_where_its_text_was_typed_on(now: str, expected: list[int]) -> None:
    assert list(cursor.followed("x = \n", 4, now)) == expected


# Whether to show


def shown(
    *offers: Suggestion, automatic: bool = True, unwanted: Unwanted | None = None, settings: Settings | None = None
) -> list[str]:
    at, known = at_cursor("x = $0"), unwanted or Unwanted()
    to_show, reason = reasons.visible(
        offers,
        lambda each: known.holds(at.before, len(at.before), each.text, 10.0),
        settings or Settings(),
        automatic=automatic,
    )
    return [offer.text for offer in to_show] if reason is None else [reason.code]


SURE, UNSURE, FIRST, SECOND = Calibrated(0.9), Calibrated(0.1), Ranked(0), Ranked(1)


@pytest.mark.parametrize(
    ("confidences", "settings", "unprompted", "asked"),
    [
        ((), Settings(), ["noAnswer"], ["noAnswer"]),
        ((SURE, Calibrated(0.8), UNSURE), Settings(), ["0"], ["0", "1", "2"]),
        ((UNSURE,), Settings(), ["unsure"], ["0"]),
        ((UNSURE,), Settings(threshold=0.05), ["0"], ["0"]),
        # A model without a probability shows its best answer, whatever the threshold.
        *(((FIRST,), Settings(threshold=threshold), ["0"], ["0"]) for threshold in (0.0, 0.15, 1.0)),
        ((SECOND,), Settings(threshold=0.0), ["unsure"], ["0"]),
        ((Ranked(0, doubted=True),), Settings(threshold=0.0), ["unsure"], ["0"]),
        ((FIRST,), Settings(uncalibrated_best=0), ["unsure"], ["0"]),
    ],
)
def test_what_is_shown(
    confidences: tuple[Confidence, ...], settings: Settings, unprompted: list[str], asked: list[str]
) -> None:
    offers = [offer(str(number), each) for number, each in enumerate(confidences)]
    assert shown(*offers, settings=settings) == unprompted
    assert shown(*offers, settings=settings, automatic=False) == asked


@pytest.mark.parametrize(
    ("rejected_at", "text", "code"),
    [(0.0, "f(a)", "rejected"), (-200.0, "f(a)", "f(a)"), (0.0, "f(b)", "f(b)")],
)
def test_a_rejected_suggestion_is_not_offered_again_at_once(rejected_at: float, text: str, code: str) -> None:
    unwanted = Unwanted()
    unwanted.reject(4, "f(a)", rejected_at)
    assert shown(offer(text, Calibrated(0.9)), unwanted=unwanted) == [code]
    assert shown(offer(text, Calibrated(0.9)), unwanted=unwanted, automatic=False) == [text]


@pytest.mark.parametrize(
    ("second", "code"), [(Calibrated(0.05), "f(b)"), (Calibrated(0.01), "unsure"), (Ranked(1), "f(b)"), (Ranked(2), "unsure")]
)
def test_without_a_rejected_suggestion_the_others_are_likelier(second: Confidence, code: str) -> None:
    unwanted, first = Unwanted(), Calibrated(0.9) if isinstance(second, Calibrated) else Ranked(0)
    unwanted.reject(4, "f(a)", 0.0)
    assert shown(offer("f(a)", first), offer("f(b)", second), unwanted=unwanted) == [code]


def holds(unwanted: Unwanted, text: str, suggestion: str) -> bool:
    return unwanted.holds(text, len(text), suggestion, 1.0)


def test_a_rejection_holds_a_few_characters_later_and_not_elsewhere() -> None:
    unwanted = Unwanted()
    unwanted.reject(4, "f(a)", 0.0)
    assert holds(unwanted, "x = f", "(a)")
    assert not holds(unwanted, "x = 1\ny = ", "f(a)")


def test_of_many_equal_tokens_all_and_the_rest_are_held() -> None:
    unwanted, removed = Unwanted(), "w " * 250
    for _ in range(MAX_UNWANTED):
        unwanted.change(f"w = {removed}", "w = ", 0.0)
    assert holds(unwanted, "w = ", removed)
    assert holds(unwanted, f"w = {'w ' * 5}", "w w")
    # Who has typed so many of them again wants the rest.
    assert not holds(unwanted, f"w = {'w ' * 200}", "w w")
    assert not holds(unwanted, "w = ", "x")


# What can be chosen


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*configuration.KEYS, "completion", "engine", "x", ""]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(JSON)
@example([])
def test_whatever_an_editor_sends_as_settings_is_read(data: object) -> None:
    result, problems = configuration.read(data, Settings())
    assert isinstance(result, Settings)
    assert all("\n" not in problem for problem in problems)


def test_only_engine_settings_restart_the_engine() -> None:
    assert configuration.has_other_engine(Settings(), Settings(model="other"))
    assert configuration.has_other_engine(Settings(), Settings(unload_after=1))
    # An editor can't set this one.
    assert not configuration.has_other_engine(Settings(), Settings(exit_after=1))
    assert not configuration.has_other_engine(Settings(), Settings(threshold=0.9))


def test_every_reason_is_a_sentence_for_people() -> None:
    all_off = Settings(enable=False, trigger="manual", disabled_languages=frozenset({""}))
    engine = "the engine is starting"
    found = list(
        reasons.reasons(all_off, automatic=True, after="x", n_chars=10**9, refused="is ignored", engine=engine, lost=True)
    )
    assert [reason.code for reason in found] == [
        *("off", "lost", "ignored", "language", "large", "manual", "engine", "midWord")
    ]
    assert all(" " in reason.message for reason in found)


# The status that editors show


MANUAL, COMMENT = Settings(trigger="manual"), Reason("comment", "the cursor is in a comment")


def test_new_settings_report_a_pause_at_once_and_keep_a_reason_that_is_none() -> None:
    reporter = Reporter("embedded", lambda _status: None)
    for settings, is_said in ((MANUAL, True), (replace(MANUAL, invoked_by_hand=True), False)):
        reason = reasons.paused(settings)
        assert reason is not None
        assert ("invoked_by_hand" in reason.message) == is_said
    for settings, code in ((MANUAL, "manual"), (replace(MANUAL, enable=False), "off"), (Settings(), None)):
        reporter.paused(reasons.paused(settings))
        assert (reporter.status.suppressed.code if reporter.status.suppressed else None) == code
    reporter.suppressed(COMMENT)
    reporter.paused(reasons.paused(Settings()))
    assert reporter.status.suppressed == COMMENT
