"""Escape control characters in messages and log lines, so that a terminal does not execute them.

File names, setting values and servers' answers are untrusted. This module knows texts and log records.
"""

from __future__ import annotations

import logging


def visible(text: str) -> str:
    """Return the text with its control characters escaped; line breaks and tabs stay."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text
    )


class LogFormatter(logging.Formatter):
    """Log lines with control characters escaped.

    Lines after a line break are indented, so that no text can forge a log line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text with control characters escaped."""
        return visible(super().format(record)).replace("\n", "\n  ")
