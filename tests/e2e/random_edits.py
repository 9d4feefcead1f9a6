"""Run every command at random places of files in 14 languages, as an editor and a shell do, and judge each edit.

The server and the batch run are the real ones; only the engine is another. The judge asks none of the rules that filter
answers: it reads code with regular expressions of its own. Only where the syntax errors of a file are it asks `core`.
"""

from __future__ import annotations

import asyncio
import difflib
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dg_lsp.batch import api, write
from dg_lsp.batch.api import Connect, Job
from dg_lsp.batch.journal import Journal
from dg_lsp.batch.options import Options
from dg_lsp.batch.plan import Location
from dg_lsp.core import languages, positions, syntax
from dg_lsp.core.positions import Encoding
from dg_lsp.core.values import Document, Edit, Span, apply
from tests.e2e.editor import Editor
from tests.e2e.sources import SOURCES

UTF_16: Encoding = "utf-16"


@dataclass(frozen=True, slots=True)
class Trial:
    """What a command did to a text: its edits, the span it was asked for, and whether the user agreed to a question."""

    command: str
    name: str
    text: str
    span: Span
    edits: tuple[Edit, ...]
    is_confirmed: bool = False

    @property
    def new(self) -> str:
        """The text after the edits."""
        return apply(self.text, self.edits)


def faults(trial: Trial) -> list[str]:
    """Return what is wrong with the edits of a trial."""
    problems = []
    if not all(_is_inside(trial, edit) for edit in trial.edits):
        problems.append("outside the hole")
    if not trial.is_confirmed and (damage := _damage(trial)):
        problems.append(f"a placeholder for a working statement: {damage}")
    if _n_errors(trial.name, trial.new) > _n_errors(trial.name, trial.text):
        problems.append("adds a syntax error")
    return problems


def _is_inside(trial: Trial, edit: Edit) -> bool:
    """Return whether an edit changes only what its command may change."""
    old, span = trial.text[edit.span.start : edit.span.end], trial.span
    if not works(_WEAK.sub(" ", old)):
        return True  # an insertion, or a placeholder
    is_selected = span.start < span.end and span.start <= edit.span.start and edit.span.end <= span.end
    if trial.command in ("regenerate", "--at"):
        return is_selected
    if trial.command == "repair":
        index = positions.lines(trial.text)
        broken_lines = {
            line for each in _errors(trial.name, trial.text) for line in range(index.at(each.start), index.at(each.end) + 1)
        }
        return set(range(index.at(edit.span.start), index.at(edit.span.end) + 1)) <= broken_lines
    # A suggestion may state the text that it replaces again: around the cursor, nothing may be lost.
    head, tail = trial.text[edit.span.start : span.start], trial.text[span.start : edit.span.end]
    is_cursor = trial.command == "suggestion" and edit.span.start <= span.start <= edit.span.end
    return is_cursor and edit.text.startswith(head) and edit.text.endswith(tail) and len(edit.text) >= len(old)


def _damage(trial: Trial) -> str:
    """Return the first working lines that the edits replaced with nothing but a placeholder, "" for none."""
    old, new = trial.text.splitlines(), trial.new.splitlines()
    for what, old_start, old_end, new_start, new_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        before, after = "\n".join(old[old_start:old_end]), "\n".join(new[new_start:new_end])
        if what == "replace" and works(before) and not works(after) and PLACEHOLDER.search(after):
            return f"{before!r} became {after!r}"
    return ""


def works(code: str) -> bool:
    """Return whether code has a word left without its comments, placeholders and strings that stand alone."""
    for pattern in (_TRIPLE, _BLOCK_COMMENT, _LINE_COMMENT, PLACEHOLDER, _BLOCK_ENDS):
        code = pattern.sub(" ", code)
    return re.search(r"\w", code) is not None


PLACEHOLDER = re.compile(
    r"\bpass\b|\.\.\.|\braise NotImplementedError(?:\([^)\n]*\))?|\b(?:todo|unimplemented)!\([^)\n]*\)"
    # The text of an error says that it is a placeholder; a file in the middle of a change may have any name before it.
    r"|\bthrow (?:new )?[\w.\\:]*(?:NotImplementedException(?:\([^)\n]*\))?|(?=\(\"(?:not impl|TODO))\([^)\n]*\));?"
    r"|\b(?:panic|error)\(\"not implemented\"\)|^\s*:\s*$",
    re.MULTILINE,
)
# What stands in a body that is still to be written, and may be all that a body needs.
_WEAK = re.compile(r"^\s*return(?: (?:0|nil|null|None|false))?;?\s*$", re.MULTILINE)
_TRIPLE = re.compile(r'"""(?:[^\\]|\\.)*?"""', re.DOTALL)
_BLOCK_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)", re.DOTALL)
_LINE_COMMENT = re.compile(r"(?:^|(?<=\s))(?:#(?!include)|//|--(?!\w)).*")
_BLOCK_ENDS = re.compile(r"\b(?:end|fi|done)\b")


def _errors(name: str, text: str) -> tuple[Span, ...]:
    language = languages.for_path(name, "")
    tree = syntax.of(Document(name, language.name, text)) if language else None
    return tree.errors if tree else ()


def _n_errors(name: str, text: str) -> int:
    return len(_errors(name, text))


def broken(draw: random.Random, text: str) -> str:
    """Return the text as it is, or in the middle of a change, or with other line ends."""
    what = draw.choice(("whole", "whole", "whole", "cut", "line", "crlf"))
    if what == "cut":
        at = draw.randrange(len(text))
        return text[:at] + text[at + draw.randint(1, 8) :]
    if what == "line":
        lines = text.split("\n")
        del lines[draw.randrange(len(lines))]
        return "\n".join(lines)
    return text.replace("\n", "\r\n") if what == "crlf" else text


def span(draw: random.Random, text: str) -> Span:
    """Return a cursor, or a selection of some lines or of a part of a line."""
    index = positions.lines(text)
    line = draw.randrange(len(index))
    start, end = index.start(line), index.end(line)
    what = draw.choice(("cursor", "cursor", "end", "lines", "lines", "part"))
    if what == "cursor":
        at = draw.randint(start, end)
        return Span(at, at)
    if what == "end":
        return Span(end, end)
    if what == "part":
        first, last = sorted((draw.randint(start, end), draw.randint(start, end)))
        return Span(first, last)
    last_line = min(line + draw.randint(0, 5), len(index) - 1)
    first = start + draw.choice((0, len(index.indent(line))))
    return Span(first, max(first, index.end(last_line)))


class Desk:
    """An editor with a server, at which a user runs commands at random."""

    def __init__(self, client: Editor, draw: random.Random, *, agrees: float = 0.2) -> None:
        """Use a client that has said hello; `agrees` is how often the user agrees to a question."""
        self._client, self._draw, self._agrees = client, draw, agrees
        self._applied: list[dict[str, Any]] = []
        self._is_asked = False
        self._number = 0
        self._counts: Counter[str] = Counter()
        client.answers["workspace/applyEdit"] = self._apply
        client.answers["window/showMessageRequest"] = self._ask

    async def trials(self, n: int, sources: Sequence[tuple[str, str, str]] = SOURCES) -> AsyncIterator[Trial]:
        """Yield what each of `n` edits did; commands that change nothing do not count."""
        while n > 0:
            name, language_id, source = self._draw.choice(sources)
            text = broken(self._draw, source)
            self._number += 1
            # The folder makes the document new to the server; the name's end makes it a file of its language.
            uri = f"untitled:{self._number}/{name}"
            self._client.open(text, uri=uri, language=language_id)
            try:
                for trial in await self._run(uri, name, text):
                    if trial.edits and n > 0:
                        n -= 1
                        self._counts[trial.command] += 1
                        yield trial
            finally:
                self._client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})

    async def _run(self, uri: str, name: str, text: str) -> list[Trial]:
        at = span(self._draw, text)
        index = positions.lines(text)
        start, end = (positions.to_position(index, offset, UTF_16) for offset in (at.start, at.end))
        if self._draw.random() < 0.3:
            items = await self._client.suggestions(*end, uri=uri, trigger=self._draw.choice((1, 2)))
            cursor = Span(at.end, at.end)
            return [Trial("suggestion", name, text, cursor, (_to_edit(text, item, cursor),)) for item in items]
        menu = await self._client.menu(*start, end=end, uri=uri)
        self._applied, self._is_asked = [], False
        entries = [each for each in menu if "command" in each or "data" in each]
        if not entries:
            return []
        # The command that has made the fewest edits so far: otherwise most would fill all holes, which is in nearly every menu.
        self._draw.shuffle(entries)
        action = min(entries, key=lambda each: self._counts[_data(each)["do"]])
        data = _data(action)
        if data["do"] == "regenerate":
            data["instruction"] = self._draw.choice(("", "raise an error where it is negative"))
        if action.get("command"):
            call = {"command": action["command"]["command"], "arguments": [data]}
            await self._client.request("workspace/executeCommand", call)
            edits = self._applied
        else:
            resolved = await self._client.request("codeAction/resolve", action)
            edits = [resolved["edit"]] if "edit" in resolved else []
        return [
            Trial(data["do"], name, text, at, _of_workspace_edit(text, each), is_confirmed=self._is_asked) for each in edits
        ]

    def _apply(self, params: dict[str, Any]) -> dict[str, Any]:
        annotations = params["edit"].get("changeAnnotations", {}).values()
        if any(each.get("needsConfirmation") for each in annotations):
            if self._draw.random() >= self._agrees:
                return {"applied": False}
            self._is_asked = True
        self._applied.append(params["edit"])
        return {"applied": True}

    def _ask(self, params: dict[str, Any]) -> dict[str, Any] | None:
        if self._draw.random() >= self._agrees:
            return None
        self._is_asked = True
        return dict(params["actions"][0])


def _data(action: dict[str, Any]) -> dict[str, Any]:
    return dict(action.get("data") or action["command"]["arguments"][0])


def _to_edit(text: str, item: dict[str, Any], cursor: Span) -> Edit:
    return Edit(_to_span(text, item["range"]) if item.get("range") else cursor, item["insertText"])


def _of_workspace_edit(text: str, edit: dict[str, Any]) -> tuple[Edit, ...]:
    changes = [change for document in edit.get("documentChanges", ()) for change in document["edits"]]
    changes += [change for of_file in edit.get("changes", {}).values() for change in of_file]
    return tuple(Edit(_to_span(text, change["range"]), change["newText"]) for change in changes)


def _to_span(text: str, range_: dict[str, dict[str, int]]) -> Span:
    index = positions.lines(text)
    ends = ((range_[end]["line"], range_[end]["character"]) for end in ("start", "end"))
    return Span(*(positions.to_offset(index, *point, UTF_16) for point in ends))


async def in_the_shell(n: int, draw: random.Random, folder: Path, connect: Connect) -> AsyncIterator[Trial]:
    """Yield what each of `n` edits did that a batch run wrote: for all holes of a file, or for one place."""
    while n > 0:
        name, _, source = draw.choice(SOURCES)
        text = broken(draw, source)
        path = folder / name
        path.write_bytes(text.encode())
        at = span(draw, text)
        is_place = draw.random() < 0.6
        places = (Location(str(path), _from_1(text, at.start), _from_1(text, at.end)),) if is_place else ()
        paths = (path,) if not is_place else ()
        options = Options(paths, candidates=3, seed=draw.randrange(1 << 30), retries=0, take_all=True)
        plans, _, _ = await asyncio.to_thread(api.plans, Job(options, places))
        if not plans:
            continue
        with Journal(None) as answers:
            results = await api.fill(options, plans, answers, connect, api.Front())
        for result in results:
            assert result.decisions.keys() == set(result.plan.holes), "every hole has a decision"
            [written] = write.write([result], print, commits=False)
            edits = tuple(fill.edit for fill in written.result.fills.values())
            if not edits:
                continue
            trial = Trial("--at" if is_place else "infill", name, text, at, edits)
            assert path.read_bytes().decode() == trial.new, f"{name} holds something else than its edits make"
            n -= 1
            yield trial


def _from_1(text: str, offset: int) -> tuple[int, int]:
    index = positions.lines(text)
    line = index.at(offset)
    return line + 1, offset - index.start(line) + 1


class Tally:
    """Counts trials by command, and remembers those that are wrong."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.names: Counter[str] = Counter()
        self.wrong: list[tuple[Trial, list[str]]] = []

    def add(self, trial: Trial) -> None:
        self.counts[trial.command] += 1
        self.names[trial.name] += 1
        if problems := faults(trial):
            self.wrong.append((trial, problems))

    def lines(self) -> list[str]:
        """Return a line for each fault: the command, the file, the place and the edits."""
        return [
            f"{trial.command} in {trial.name} at {trial.span}: {'; '.join(problems)}\n"
            + "\n".join(f"    {trial.text[edit.span.start : edit.span.end]!r} -> {edit.text[:300]!r}" for edit in trial.edits)
            for trial, problems in self.wrong
        ]
