"""Generate the report of a run as one HTML page that loads nothing, runs no scripts and works offline. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound

from dg_lsp.batch.discover import Skipped
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.report import ReportRow, counts
from dg_lsp.core import positions
from dg_lsp.core.values import Hole, apply

N_LINES = 4  # of context on each side of a hole

_STYLE = """
:root { color-scheme: light; font: 15px/1.5 system-ui, sans-serif; color: #1f2328; background: #fff; }
body { max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem 1rem .2rem 0; vertical-align: top; }
section { border-top: 1px solid #d0d7de; margin-top: 1.5rem; padding-top: .5rem; }
h2 { font-size: 1rem; font-family: ui-monospace, monospace; margin: .5rem 0; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; } .sides > div { min-width: 0; }
pre { background: #f6f8fa; padding: .75rem; overflow-x: auto; font: 13px/1.45 ui-monospace, monospace; margin: .25rem 0; }
.filled { color: #116329; } .unsure { color: #7d4e00; } .failed { color: #a40e26; } .status { font-weight: 600; }
@media (max-width: 50rem) { .sides { grid-template-columns: 1fr; } }
"""


def write(
    files: Sequence[tuple[FileResult, Sequence[ReportRow]]], skipped: Iterable[Skipped], facts: Mapping[str, object]
) -> str:
    """Return the page; the rows of each file are in the order of the text."""
    total = counts([row for _, rows in files for row in rows])
    summary = {
        "filled": f"{total['filled']} of {total['holes']} holes in {total['files']} files ({total['verified']} verified)",
        "unsure": total["unsure"],
        "failed": total["failed"],
        **facts,
    }
    head = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in summary.items())
    skipped_items = "".join(f"<li>{_text(skip.name)}: it {_text(skip.reason)}</li>" for skip in skipped)
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # data: allows an empty icon
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>dg-lsp infill</title><style>{_STYLE}{HtmlFormatter().get_style_defs('pre')}</style></head>\n"
        f"<body><h1>dg-lsp infill</h1><table>{head}</table>\n"
        + (f"<h2>Skipped</h2><ul>{skipped_items}</ul>\n" if skipped_items else "")
        + "".join(
            _section(result, hole, row) for result, rows in files for hole, row in zip(result.plan.holes, rows, strict=True)
        )
        + "</body></html>\n"
    )


def _section(result: FileResult, hole: Hole, row: ReportRow) -> str:
    """Return one hole: its facts, and the surrounding text before and after the fill."""
    text, language = result.plan.source.document.text, result.plan.source.document.language
    lines = positions.lines(text)
    start = lines.starts[max(lines.at(hole.span.start) - N_LINES, 0)]
    end = lines.ends[min(lines.at(hole.span.end) + N_LINES, len(lines) - 1)]
    sure = "not calibrated" if row.probability is None else f"probability {row.probability:.2f}"
    about = [row.kind, *([sure, f"{row.steps} steps"] if row.status == "filled" else []), f"{row.ms:.0f} ms"]
    if row.verified:
        about.append(f"verified by {row.verified}")
    if row.status == "filled":
        right = _code(apply(text[:end], (result.fills[hole].edit,))[start:], language)
    else:
        right = f"<p>{_text(row.reason)}</p>" + "".join(_candidate(one, language) for one in row.candidates)
    return (
        f"<section><h2>{_text(row.path)}:{row.line}:{row.column}</h2>"
        f'<p><span class="status {row.status}">{row.status}</span> · {_text(" · ".join(about))}</p>'
        f'<div class="sides"><div>before{_code(text[start:end], language)}</div>'
        f"<div>{'after' if row.status == 'filled' else 'candidates'}{right}</div></div></section>\n"
    )


def _candidate(candidate: Mapping[str, object], language: str) -> str:
    probability = candidate["probability"]
    title = "not calibrated" if probability is None else f"probability {probability:.2f}"
    return f"<p>{title}</p>{_code(str(candidate['text']), language)}"


def _code(text: str, language: str) -> str:
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    return f"<pre>{highlight(_printable(text), lexer, HtmlFormatter(nowrap=True))}</pre>"


def _text(text: str) -> str:
    return escape(_printable(text))


def _printable(text: str) -> str:
    """Return the text with escapes for lone surrogates and control characters, which a page can't contain."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return "".join(
        char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in text.replace("\r\n", "\n")
    )
