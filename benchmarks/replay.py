"""Ask the server at positions of real commits, as an editor asks, with the whole repository as workspace.

    python benchmarks/replay.py run OUT --mirror DIR [--set dev|end] [--mode first|typed|request] [--model MODEL]
    python benchmarks/replay.py table OUT…
    python benchmarks/replay.py compare OLD NEW
    python benchmarks/replay.py show OUT --mirror DIR [--number N] [--only wrong|right|silent]

A position is a line that a commit of 2026 added, which no model has read: within the line, the whole line, or two to six
lines. DIR has the git folders of the repositories (`commits.py` names them), as `owner+name/repo`. The file is opened as it
was before the line was written, and the cursor moves to the end of the line above. `--arrival` milliseconds later the author's
text up to the position is typed at once, and 50 ms later, as in VS Code, comes the request. Nothing of that place is cached.

first    the automatic request
typed    the automatic request after up to four more keys, each with a request of its own, as they follow a first one
request  the request by a key or a command, with all its suggestions

A run that was stopped goes on where it ended. All modes use an engine of their own, in a temporary folder, and the deadline
that users have, unless `--deadline` says otherwise. Processor milliseconds are those of the server and the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import commits, replay_table
from benchmarks.commits import Hole, MirrorError, Mirrors, Position
from dg_lsp.core import positions as places
from tests.e2e.editor import CODE, Editor, command
from tests.e2e.rpc import RpcError
from tests.processes import processor_ms

MODES = "first", "typed", "request"
# What VS Code waits for after a key before it asks.
EDITOR_S = 0.05
KEY_S = 0.2
N_KEYS = 4
# An answer that takes longer than the deadline and this counts as none: the server hangs.
PATIENCE_S = 240.0
STOPPED = signal.SIGTERM

_CODE: dict[str, Any] = CODE
VS_CODE = {
    **_CODE,
    "textDocument": {**_CODE["textDocument"], "synchronization": {"didSave": True}},
    "workspace": {**_CODE["workspace"], "workspaceFolders": True, "inlineCompletion": {"refreshSupport": True}},
    "experimental": {"dgLsp": {"status": True, "draft": True, "offer": True, "refresh": True}},
}


async def run(options: argparse.Namespace) -> int:
    """Ask at each position that the result file lacks, and add a line for each."""
    mirrors, out = Mirrors(options.mirror), Path(options.out)
    header = {"mode": options.mode, "set": options.set, "model": options.model, "deadline": options.deadline}
    done = _done(out, {**header, "arrival": options.arrival, "settings": options.settings})
    wanted = [each for each in commits.spread(commits.read(options.set), options.sample) if each.id not in done]
    by_commit = defaultdict[tuple[str, str], list[Position]](list)
    for position in wanted:
        by_commit[position.repository, position.commit].append(position)
    order = list(by_commit.items())
    random.Random(7).shuffle(order)  # so that a part of a run is a sample of all
    ends, n_done = time.monotonic() + 60 * options.minutes, 0
    with tempfile.TemporaryDirectory(prefix="replay-") as name, out.open("a", encoding="utf-8") as rows:
        folder = Path(name)
        try:
            for (repository, commit), own in order:
                if time.monotonic() > ends:
                    print(f"stopped after {options.minutes} minutes; the same command goes on")
                    break
                async for row in _at_commit(mirrors, repository, commit, own, options, folder):
                    print(json.dumps(row), file=rows, flush=True)
                    n_done += 1
                    mark = "=" if row["exact"] else "+" if row["shown"] else row["reason"]
                    print(f"{n_done}/{len(wanted)} {row['id']} {row['kind']} {row['ms']:.0f} ms {mark}", flush=True)
        finally:
            _stop_engines(folder)
    return 0


def _done(out: Path, header: Mapping[str, Any]) -> set[str]:
    """Return the ids that the file has; write its header if it is new. Raises SystemExit if it is of another run."""
    if not out.exists():
        out.write_text(json.dumps({"run": header}) + "\n", encoding="utf-8")
        return set()
    first, *rows = (json.loads(line) for line in out.read_text("utf-8").splitlines())
    if first.get("run") != header:
        raise SystemExit(f"{out} has another run ({first.get('run')}); name another file, or repeat its options")
    return {row["id"] for row in rows}


async def _at_commit(
    mirrors: Mirrors, repository: str, commit: str, positions: Sequence[Position], options: argparse.Namespace, folder: Path
) -> AsyncIterator[dict[str, Any]]:
    """Yield the row of each position of a commit, from one server, or from another one where a server hangs."""
    with tempfile.TemporaryDirectory(prefix="workspace-", dir=folder) as name:
        root = Path(name) / repository.rpartition("/")[2]
        root.mkdir()
        mirrors.checkout(repository, commit, root)
        holes = [mirrors.hole(position) for position in positions]
        for hole in holes:  # on the disk, no hole is filled yet
            (root / hole.position.path).write_text(hole.opened, encoding="utf-8", newline="")
        ended = set[str]()
        while holes:
            async with _server(root, options, folder) as session:
                is_settled = False
                while holes:
                    try:
                        if not is_settled:
                            await session.settle(_another_file(root, holes), holes[0].position.language)
                            is_settled = True
                        yield await session.ask(holes[0])
                    except (TimeoutError, EOFError) as error:
                        at = holes[0].position.id
                        # Something else may have ended the server, so only a second end counts.
                        if isinstance(error, EOFError) and at not in ended:
                            ended.add(at)
                            break
                        reason = "ended" if isinstance(error, EOFError) else "hangs"
                        yield session.row(holes.pop(0)) | {"reason": reason, "ms": 1000 * PATIENCE_S}
                        break
                    del holes[0]


def _another_file(root: Path, holes: Sequence[Hole]) -> Path:
    """Return a file in the language of the holes, but with none of them: what is read ahead there helps none."""
    own = {root / hole.position.path for hole in holes}
    files = sorted(root.rglob(f"*{Path(holes[0].position.path).suffix}"))
    return next((file for file in files if file not in own and file.is_file()), root / holes[0].position.path)


@contextlib.asynccontextmanager
async def _server(root: Path, options: argparse.Namespace, folder: Path) -> AsyncIterator[Session]:
    own = {"XDG_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}
    offline = {"DG_LSP_MODEL": options.model, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    client = Editor(*command("--stdio"), env={**os.environ, **own, **offline})
    settings: dict[str, Any] = json.loads(options.settings)
    settings.setdefault("completion", {})
    if options.deadline is not None:
        settings["completion"]["deadline"] = options.deadline
    async with client:
        await client.hello(VS_CODE, settings=settings, root=root)
        session = Session(client, root, options, folder, settings)
        await session.until_ready()
        yield session
        with contextlib.suppress(TimeoutError, EOFError, RpcError):
            await asyncio.wait_for(client.end(), 10)


class Session:
    """One server with one workspace, and what an editor sends to it."""

    def __init__(self, client: Editor, root: Path, options: argparse.Namespace, folder: Path, settings: dict[str, Any]) -> None:
        self.client, self.root, self.options, self.folder, self.settings = client, root, options, folder, settings

    async def until_ready(self) -> None:
        """Wait until the engine is connected. Raises SystemExit if it fails."""
        while (status := await self._status())["state"] != "ready":
            if status["state"] == "failed":
                raise SystemExit(f"the engine failed: {status['message']}")
            await asyncio.sleep(0.1)

    async def settle(self, file: Path, language: str) -> None:
        """Open a file, and wait until the server has been idle for a second: it has then read the workspace."""
        uri, start = file.as_uri(), {"line": 0, "character": 0}
        self.client.open(file.read_text("utf-8", errors="replace"), uri=uri, language=language)
        await self._move(uri, start)
        ends, idle = time.monotonic() + PATIENCE_S, 0
        while idle < 4 and time.monotonic() < ends:
            before = processor_ms(self.client.process.pid)
            await asyncio.sleep(0.25)
            idle = idle + 1 if processor_ms(self.client.process.pid) - before < 20 else 0
        self._close(uri)

    def row(self, hole: Hole) -> dict[str, Any]:
        """Return the row of a position without an answer."""
        at = hole.position
        row: dict[str, Any] = {
            name: getattr(at, name) for name in ("id", "repository", "commit", "path", "kind", "language", "is_test")
        }
        return row | {"late_ms": None} | replay_table.scored((), hole.truth)

    async def ask(self, hole: Hole) -> dict[str, Any]:
        """Return the row of a position: open the file, move the cursor there, type, and ask."""
        uri, at = self._open(hole), hole.position.line - 1
        await self._move(uri, _point(hole.opened, at))
        await asyncio.sleep(self.options.arrival / 1000)
        text = self._type(uri, hole.opened, at, hole.typed, version=2)
        await asyncio.sleep(EDITOR_S)
        cursor, truth = hole.position.cursor, hole.truth
        if self.options.mode == "typed":
            await self._request(uri, text, cursor)
            text, cursor, truth = await self._keys(uri, text, cursor, truth)
        row = self.row(hole) | {"typed": cursor - hole.position.cursor}
        trigger = 1 if self.options.mode == "request" else 2
        before, n_refreshes = self._spent(), self._refreshes()
        texts, ms = await self._request(uri, text, cursor, trigger)
        row |= {"ms": round(ms, 1), "cpu_ms": round(self._spent() - before), "load": os.getloadavg()[0]}
        status = await self._status()
        suppressed = status.get("suppressed") or {}
        row |= {"reason": suppressed.get("code", ""), "engine_ms": status.get("latencyMs")}
        row["probability"] = _probability(suppressed.get("message", ""))
        if row["reason"] == "deadline" and (late := await self._late(uri, text, cursor, n_refreshes)):
            texts, late_ms = late
            row["late_ms"] = round(late_ms + ms, 1)
        row |= replay_table.scored(texts, truth)
        if self.options.stated and texts:
            row["probability"] = await self._stated(uri, text, cursor)
        self._close(uri)
        return row

    async def _keys(self, uri: str, text: str, cursor: int, truth: str) -> tuple[str, int, str]:
        """Type on in the line, a key at a time, each with a request. Return the text, the cursor and what is left."""
        n_keys, waiting = min(N_KEYS, len(truth.partition("\n")[0]) - commits.LEFT_CHARS), []
        for number in range(n_keys):
            await asyncio.sleep(KEY_S - EDITOR_S)
            text, cursor, truth = self._type(uri, text, cursor, truth[0], version=3 + number), cursor + 1, truth[1:]
            await asyncio.sleep(EDITOR_S)
            if number < n_keys - 1:  # the request of the last key is the one that is measured
                waiting.append(asyncio.ensure_future(self._request(uri, text, cursor)))
        return text, cursor, truth

    async def _stated(self, uri: str, text: str, cursor: int) -> float | None:
        """Return the probability of the best answer, which the server says where no answer reaches the threshold."""
        await self._set({**self.settings, "completion": {**self.settings["completion"], "threshold": 1}})
        texts, _ = await self._request(uri, text, cursor)
        suppressed = (await self._status()).get("suppressed") or {}
        await self._set(self.settings)
        return 1.0 if texts else _probability(suppressed.get("message", ""))

    async def _set(self, settings: dict[str, Any]) -> None:
        """Change the settings, and wait until the server has read them."""
        n_asked = len(self.client.requests)
        self.client.answers["workspace/configuration"] = lambda params: [settings for _ in params["items"]]
        self.client.notify("workspace/didChangeConfiguration", {"settings": None})
        await self.client.until(lambda: len(self.client.requests) > n_asked)

    async def _late(self, uri: str, text: str, cursor: int, n_before: int) -> tuple[list[str], float] | None:
        """Ask again when the server says so; return the texts and the milliseconds after the empty answer."""
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.options.late / 1000):
                await self.client.until(lambda: self._refreshes() > n_before)
                texts, _ = await self._request(uri, text, cursor)
                return (texts, 1000 * (time.monotonic() - began)) if texts else None
        return None

    def _refreshes(self) -> int:
        return sum("refresh" in each["method"].lower() for each in (*self.client.requests, *self.client.notes))

    async def _request(self, uri: str, text: str, cursor: int, trigger: int = 2) -> tuple[list[str], float]:
        """Return the texts that would be inserted at the cursor, and the milliseconds."""
        point = _point(text, cursor)
        began = time.monotonic()
        params = self.client.inline(point["line"], point["character"], uri=uri, trigger=trigger)
        _, future = self.client.start("textDocument/inlineCompletion", params)
        answer = await asyncio.wait_for(future, PATIENCE_S)
        ms = 1000 * (time.monotonic() - began)
        items = answer["items"] if isinstance(answer, dict) else answer or []
        return [inserted(item, text, cursor) for item in items], ms

    def _open(self, hole: Hole) -> str:
        uri = (self.root / hole.position.path).as_uri()
        self.client.open(hole.opened, uri=uri, language=hole.position.language)
        return uri

    async def _move(self, uri: str, point: Mapping[str, int]) -> None:
        """Move the cursor as VS Code reports it: with a request for the actions there."""
        place = {"start": point, "end": point}
        params = {"textDocument": {"uri": uri}, "range": place, "context": {"diagnostics": [], "triggerKind": 2}}
        await asyncio.wait_for(self.client.start("textDocument/codeAction", params)[1], PATIENCE_S)

    def _type(self, uri: str, text: str, at: int, new: str, version: int) -> str:
        point = _point(text, at)
        self.client.change(version, {"range": {"start": point, "end": point}, "text": new}, uri=uri)
        return text[:at] + new + text[at:]

    def _close(self, uri: str) -> None:
        self.client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})

    async def _status(self) -> dict[str, Any]:
        params = {"command": "dgLsp.status", "arguments": []}
        return dict(await asyncio.wait_for(self.client.start("workspace/executeCommand", params)[1], PATIENCE_S))

    def _spent(self) -> float:
        pids = [self.client.process.pid, *_engines(self.folder)]
        return sum(map(processor_ms, pids))


def _point(text: str, at: int) -> dict[str, int]:
    line, character = places.to_position(places.lines(text), at, "utf-16")
    return {"line": line, "character": character}


def inserted(item: Mapping[str, Any], text: str, cursor: int) -> str:
    """Return what the item adds at the cursor; its range may include the rest of the line."""
    new, index = item["insertText"], places.lines(text)
    if isinstance(new, dict):
        new = new["value"]
    place = item.get("range")
    ends = [places.to_offset(index, **place[key], encoding="utf-16") for key in ("start", "end")] if place else [cursor, cursor]
    whole = text[: ends[0]] + new + text[ends[1] :]
    n_after = len(text) - cursor
    is_added = whole.startswith(text[:cursor]) and whole.endswith(text[cursor:]) and len(whole) >= len(text)
    return whole[cursor : len(whole) - n_after] if is_added else str(new)


def _probability(message: str) -> float | None:
    match = re.search(r"probability of (\d\.\d+)", message)
    return float(match[1]) if match else None


def _engines(folder: Path) -> list[int]:
    """Return the processes of the engines of this run."""
    facts = (json.loads(file.read_text("utf-8")) for file in folder.rglob("engine-*.json"))
    return [each["pid"] for each in facts if each.get("pid")]


def _stop_engines(folder: Path) -> None:
    for pid in _engines(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STOPPED)


def _show(options: argparse.Namespace) -> int:
    """Print answers beside what the commits have."""
    header, rows = replay_table.read(options.out)
    by_id, mirrors = {each.id: each for each in commits.read(header["set"])}, Mirrors(options.mirror)
    chosen = {
        "all": rows,
        "wrong": [row for row in rows if row["shown"] and not row["exact"]],
        "right": [row for row in rows if row["exact"]],
        "silent": [row for row in rows if not row["shown"]],
    }[options.only]
    random.Random(options.seed).shuffle(chosen)
    for row in chosen[: options.number]:
        hole = mirrors.hole(by_id[row["id"]])
        above, below = "\n".join(hole.before.split("\n")[-8:]), "\n".join(hole.after.split("\n")[:5])
        print(f"\n===== {row['id']} {row['kind']} {row['repository']} {row['path']} {row['ms']:.0f} ms {row['reason']}")
        print(f"{above}⟦{hole.truth}⟧{below}")
        for text in row.get("texts", ()):
            print("--->", repr(text))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="do", required=True)
    ask = commands.add_parser("run", help="ask at the positions")
    ask.add_argument("out", help="the result file")
    ask.add_argument("--mode", choices=MODES, default="first")
    ask.add_argument("--deadline", type=int, help="milliseconds; 0 means none; by default that of users")
    ask.add_argument("--arrival", type=int, default=500, help="milliseconds from the cursor's arrival to the text")
    ask.add_argument("--late", type=int, default=2_000, help="milliseconds to wait for a refresh after an empty answer")
    ask.add_argument(
        "--settings", default="{}", help='the editor\'s settings as JSON, such as {"context": {"relatedChars": 0}}'
    )
    ask.add_argument("--stated", action="store_true", help="ask again for the probability of what was shown")
    ask.add_argument("--minutes", type=float, default=600.0, help="stop at the next commit after so many")
    table = commands.add_parser("table", help="print the tables of result files")
    table.add_argument("outs", type=Path, nargs="+", metavar="OUT")
    compare = commands.add_parser("compare", help="compare two result files, position by position")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    show = commands.add_parser("show", help="print answers")
    show.add_argument("out", type=Path)
    show.add_argument("--number", type=int, default=20)
    show.add_argument("--only", choices=("all", "wrong", "right", "silent"), default="all")
    show.add_argument("--seed", type=int, default=1)
    ask.add_argument("--set", choices=tuple(commits.REPOSITORIES), default="dev")
    ask.add_argument("--model", default="qwen2.5-coder-0.5b")
    ask.add_argument("--sample", type=int, default=0, metavar="N", help="only N positions, spread evenly")
    for each in (ask, show):
        each.add_argument("--mirror", type=Path, required=True, metavar="DIR", help="the folder of the git folders")
    options = parser.parse_args(arguments)
    try:
        match options.do:
            case "run":
                return asyncio.run(run(options))
            case "table":
                return replay_table.show(options.outs)
            case "compare":
                return replay_table.compare(options.old, options.new)
            case _:
                return _show(options)
    except MirrorError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
