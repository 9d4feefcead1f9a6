"""The page of `dg-lsp infill --report` in a real browser without a network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright
from typer.testing import CliRunner

from dg_lsp import cli
from dg_lsp.core.values import Calibrated, Candidate, InfillRequest
from tests.batch.engines import connecting
from tests.editors.machine import PICTURES, program
from tests.editors.workbench import FLAGS

STUB = 'def {name}(prices):\n    """Return the {name} of <b>prices</b>."""\n    raise NotImplementedError\n\n\n'
FILES = {
    "tracker/prices.py": STUB.format(name="total") + "# filler\n" * 300 + STUB.format(name="mean"),
    "board/card.ts": "export function title(card: Card): string {\n  // FILL: the name, or a dash\n}\n",
    "feed/naïve <i>.go": 'package feed\n\nfunc Read() error {\n\tpanic("not implemented")\n}\n',
}
FILLS = {
    "total": ("return sum(prices)", 0.93),
    "mean": ('return "<script>alert(1)</script>"', 0.91),
    "title": ("return card.name || '-'", 0.31),
    "Read": (" ", 0.9),
}


class Scripted:
    """Fills each hole with the text in `FILLS` for its function."""

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        text, probability = next(FILLS[name] for name in FILLS if name in request.prefix[-100:])
        return (Candidate((text,), Calibrated(probability), steps=4),)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run with holes that are filled, one that is unsure, one that fails, and a file that is skipped."""
    folder = tmp_path_factory.mktemp("report")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "latin.py").write_bytes(b"# \xe9\n")
    with contextlib.chdir(folder):
        result = CliRunner().invoke(cli.app, ["infill", ".", "--report", "report.html"], obj=connecting(Scripted()))
    assert result.exit_code == 1, result.output
    return folder / "report.html"


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of a browser that is offline."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(program("chromium")), args=list(FLAGS))
        with contextlib.closing(browser):
            yield browser.new_context(offline=True, viewport={"width": 840, "height": 700}).new_page()


def test_the_report_opens_offline_without_console_messages(report: Path, page: Page) -> None:
    console_lines: list[str] = []
    requested_urls: list[str] = []
    page.on("console", lambda message: console_lines.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: console_lines.append(str(error)))
    page.on("dialog", lambda dialog: console_lines.append(dialog.message))
    page.on("request", lambda request: requested_urls.append(request.url))
    page.goto(report.as_uri(), wait_until="load")
    assert console_lines == []
    assert [url for url in requested_urls if not url.startswith("data:")] == [report.as_uri()]
    assert page.title() == "dg-lsp infill"


def test_each_hole_is_visible(report: Path, page: Page) -> None:
    page.goto(report.as_uri())
    sections = page.locator("section")
    assert sections.count() == 4
    for idx in range(4):
        section = sections.nth(idx)
        section.scroll_into_view_if_needed()
        for part in (section.locator("h2"), section.locator(".status"), section.locator("pre").first):
            assert part.is_visible(), section.inner_text()
            box = part.bounding_box()
            assert box
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 840
    assert page.locator(".status").all_inner_texts() == ["unsure", "failed", "filled", "filled"]
    text = page.inner_text("body")
    for part in ("feed/naïve <i>.go:", "return sum(prices)", "<script>alert(1)</script>", "latin.py: it is not UTF-8"):
        assert part in text, part
    # The style sheet is applied despite the page's strict security policy.
    keyword = page.locator("pre .k").first.evaluate("(each) => getComputedStyle(each).color")
    assert keyword != page.locator("pre").first.evaluate("(each) => getComputedStyle(each).color")
    PICTURES.mkdir(parents=True, exist_ok=True)
    # The documentation shows this picture: cp build/editor-pictures/report.png fixtures/pictures/
    page.screenshot(path=str(PICTURES / "report.png"), full_page=True)
    # Side by side if there is room, below each other on a narrow screen, and never wider than the screen.
    assert _tops(page)[0] == _tops(page)[1]
    page.set_viewport_size({"width": 420, "height": 700})
    assert _tops(page)[0] < _tops(page)[1]
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def _tops(page: Page) -> list[float]:
    return [
        float(top)
        for top in page.locator(".sides")
        .first.locator("> div")
        .evaluate_all("(all) => all.map((each) => each.getBoundingClientRect().top)")
    ]
