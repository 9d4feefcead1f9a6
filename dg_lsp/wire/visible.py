"""Escape control characters in messages and log lines, so that a terminal does not execute them.

File names, setting values and servers' answers are untrusted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

LOG_MARK = "; the end of its log:"
"""The text between a sentence and the log lines that `with_log` adds."""


def visible(text: str, kept: str = "\n\t") -> str:
    """Return the text with its control characters escaped, except those in `kept`: line breaks and tabs."""
    return "".join(
        char if char.isprintable() or char in kept else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text
    )


def visible_line(text: str) -> str:
    """Return the text in one line, with line breaks and all other control characters escaped."""
    return visible(text, kept="")


def one_line(text: str) -> str:
    """Return the text with its line breaks escaped and all else unchanged, so that a pipe gets a file's name by its bytes."""
    return text.replace("\r", "\\r").replace("\n", "\\n")


def visible_message(text: str) -> str:
    """Return a message in one line, apart from the indented log lines that `with_log` added.

    A name in the message can't begin a line of its own, which could look like another message.
    """
    sentence, mark, log = text.partition(f"{LOG_MARK}\n")
    lines = [line.removeprefix("  ") for line in log.split("\n")] if mark else []
    return with_log(visible_line(sentence), lines)


def with_log(sentence: str, lines: Sequence[str]) -> str:
    """Return the sentence with the last lines of an engine's log below it."""
    return "\n  ".join((sentence + LOG_MARK, *map(visible_line, lines))) if lines else sentence


class LogFormatter(logging.Formatter):
    """Log lines with control characters escaped.

    Lines after a line break are indented, so that no text can forge a log line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text with control characters escaped."""
        return visible(super().format(record)).replace("\n", "\n  ")
