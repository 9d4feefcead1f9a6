"""The status that editors show."""

from __future__ import annotations

from dataclasses import replace

from dg_lsp.server import decisions
from dg_lsp.server.app import Reporter
from dg_lsp.server.decisions import Reason
from dg_lsp.server.methods import StatusParams
from dg_lsp.wire.settings import Settings

MANUAL = replace(Settings(), trigger="manual")


def test_a_pause_in_the_settings_is_reported_before_the_next_request() -> None:
    sent: list[StatusParams] = []
    reporter = Reporter("embedded", sent.append)
    reporter.paused(decisions.paused(MANUAL))
    assert sent[-1].suppressed is not None
    assert sent[-1].suppressed[0] == "manual"
    reporter.paused(decisions.paused(Settings()))
    assert sent[-1].suppressed is None


def test_dg_lsp_being_disabled_is_reported_as_such() -> None:
    reason = decisions.paused(replace(MANUAL, enable=False))
    assert reason is not None
    assert reason.code == "off"


def test_new_settings_keep_a_reason_that_is_no_pause() -> None:
    reporter = Reporter("embedded", lambda status: None)
    reporter.suppressed(Reason("comment", "the cursor is in a comment"))
    reporter.paused(decisions.paused(Settings()))
    assert reporter.status.suppressed == ("comment", "the cursor is in a comment")
