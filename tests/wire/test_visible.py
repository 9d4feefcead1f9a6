"""Control characters are escaped in messages and in logs."""

from __future__ import annotations

import io
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.engine.serve.daemon import Discreet
from dg_lsp.wire.visible import LogFormatter, visible, visible_line, visible_message, with_log


@given(st.text())
def test_all_control_characters_are_escaped(text: str) -> None:
    escaped = visible(text)
    assert all(char.isprintable() or char in "\n\t" for char in escaped)
    if text.isprintable():
        assert escaped == text


@pytest.mark.parametrize("make", [LogFormatter, Discreet])
@pytest.mark.parametrize("text", ["a\x1b]0;owned\x07.py", "a\x9b2J", "a\rb", "a\u202eb", "a\udcff"])
def test_a_log_line_has_no_terminal_escape_sequences(make: type[logging.Formatter], text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        record = logging.LogRecord("name", logging.ERROR, "", 0, "can't read %s", (text,), sys.exc_info())
    line = make("%(levelname)s %(message)s").format(record)
    assert line == visible(line)
    assert "a\\" in line


@pytest.mark.parametrize("make", [LogFormatter, Discreet])
def test_a_name_cannot_forge_a_log_line(make: type[logging.Formatter]) -> None:
    log, log_text = logging.Logger("test"), io.StringIO()
    handler = logging.StreamHandler(log_text)
    handler.setFormatter(make("%(levelname)s %(message)s"))
    log.addHandler(handler)
    log.warning("skipped %s", "a\nERROR b")
    assert log_text.getvalue() == "WARNING skipped a\n  ERROR b\n"


@given(st.text())
def test_a_name_stays_in_its_line(text: str) -> None:
    assert visible_line(text).isprintable()
    assert visible_message(text).count("\n") <= text.count("\n")
    assert all(line.startswith("  ") for line in visible_message(text).split("\n")[1:])


def test_a_message_keeps_the_log_lines_that_were_added_to_it() -> None:
    message = with_log("the engine ended", ("one", "two\tthree"))
    assert visible_message(message) == message == "the engine ended; the end of its log:\n  one\n  two\\tthree"
    assert visible_message(with_log("a\nb", ("c",))) == "a\\nb; the end of its log:\n  c"
    assert with_log("nothing to show", ()) == "nothing to show"
