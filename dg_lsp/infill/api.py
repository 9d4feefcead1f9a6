"""Fill holes from a program, with the user's resident engine: at one place of a text, in a whole text, or in a file.

It uses the same code path as every front end (`pipeline`), and the user's configuration. It writes no file. `connect_sync` is
for programs without an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from dg_lsp.client import engine as engines
from dg_lsp.client.port import Engine, EngineError, Guarded
from dg_lsp.core import holes, languages
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Budget, Document, Hole, Snippet, Span
from dg_lsp.infill import workspace
from dg_lsp.infill.fill import Fill, Filling, FillResult, fill, fills_of
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.infill.workspace import ContextReader
from dg_lsp.wire import config, model_names, programs
from dg_lsp.wire.config import LOCAL_ONLY, ConfigError, keeps_file, patterns_of

KINDS = ("bodies", "markers")
Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


@dataclass(frozen=True, slots=True)
class Session:
    """A connection to an engine, created by `connect`.

    `candidates` is the number of candidates for each hole. `deadline_ms` is the time for each hole; 0 means no limit.
    `context` has the context settings for texts that are no files; `reader` reads the contexts of files.
    """

    engine: Engine
    candidates: int = 4
    deadline_ms: int = 0
    seed: int = 0
    context: FileContext = field(default_factory=FileContext)
    reader: ContextReader = field(default_factory=ContextReader)

    async def fill_at(
        self, text: str, start: int, end: int | None = None, *, path: str = "", language: str = "", instruction: str = ""
    ) -> tuple[Fill, ...]:
        """Return the fills for a place, best first.

        The hole is that of a FILL comment or a placeholder at the place. Without one it is the cursor, or the selection up to
        `end`. The language comes from `language`, else from the file name `path`. Raises EngineError when the engine can't
        answer, and ValueError for a place outside the text.
        """
        end = start if end is None else end
        if not 0 <= start <= end <= len(text):
            raise ValueError(f"{start} to {end} is not a valid range in a text of {len(text)} characters")
        document = _document(text, path, language)
        parsed = syntaxes.of(document)
        hole = holes.at_place(document, Span(start, end), parsed, instruction)
        filling = self._filling(document, parsed, replace(self.context, path=path))
        answer = await filling.ask(self.engine, (hole,))
        return tuple(fills_of(suggestion)[0] for suggestion in answer.suggestions)

    async def fill_text(
        self,
        text: str,
        *,
        path: str = "",
        language: str = "",
        kinds: Collection[str] = KINDS,
        min_probability: float = 0.0,
        related: Sequence[Snippet] = (),
    ) -> FillResult:
        """Return the text with its holes filled, where a fill reaches `min_probability` and adds no syntax error.

        `kinds` may contain "bodies", "markers" and "empty". `related` is text from other files for the model.
        Raises EngineError when the engine can't answer, and ValueError for an unknown kind.
        """
        context = replace(self.context, path=path, related=tuple(related))
        return await self._filled(_document(text, path, language), kinds, min_probability, context)

    async def _filled(
        self, document: Document, kinds: Collection[str], min_probability: float, file_context: FileContext
    ) -> FillResult:
        parsed = syntaxes.of(document)
        file_holes = holes.in_document(document, parsed, frozenset(kinds))
        filling = replace(self._filling(document, parsed, file_context), min_probability=min_probability)

        async def engine_for(_group: tuple[Hole, ...]) -> Engine:
            return self.engine

        return await fill((file_holes,), filling, engine_for)

    async def fill_file(self, path: Path, *, kinds: Collection[str] = KINDS, min_probability: float = 0.0) -> FillResult:
        """Return a file's text with its holes filled; the file stays as it is.

        The context is that of `dg-lsp infill`: text from related files, the index of the workspace, and the workspace's
        context settings. Raises OSError or UnicodeDecodeError for a file that can't be read,
        EngineError for a file that a remote model must not see, and the errors of `fill_text`.
        """
        path = path.resolve()
        root = config.workspace_of(path)
        name = workspace.name_of(path.relative_to(root))
        session = self
        if isinstance(self.engine, Guarded):
            # The session's patterns are those of the program's own workspace. Each file has those of its own.
            patterns = patterns_of([path])
            if keeps_file(path, patterns):
                raise EngineError(f"{name} {LOCAL_ONLY}")
            session = replace(self, engine=Guarded(self.engine.inner, patterns))
        # Decode bytes, because reading text would change the line endings.
        document = _document(path.read_bytes().decode(), name, "")
        document = await asyncio.to_thread(workspace.with_indent, document, path)
        file_context = await asyncio.to_thread(self.reader.read, path, document, is_fresh=True)
        return await session._filled(document, kinds, min_probability, file_context)

    def _filling(self, document: Document, parsed: Syntax | None, file_context: FileContext) -> Filling:
        def budget(n_holes: int) -> Budget:
            return Budget(ms=self.deadline_ms * n_holes, candidates=self.candidates)

        return Filling(document, parsed, replace(file_context, seed=self.seed), budget)


@contextlib.asynccontextmanager
async def connect(
    model: str = "",
    *,
    candidates: int | None = None,
    deadline_ms: int | None = None,
    seed: int = 0,
    engine: Engine | None = None,
) -> AsyncIterator[Session]:
    """Yield a session with the user's resident engine, which is started if needed; raise EngineError when that fails.

    `model` takes the same names as `--model`; "" means the configured model. `engine` replaces the resident engine.
    `candidates` and `deadline_ms` are by default the settings `batch.candidates` and `batch.deadline`.
    """
    try:
        configured = config.load_config(config.workspace_of(Path(programs.here())))
    except ConfigError as error:
        raise EngineError(str(error)) from error
    settings = configured.settings
    session_with = functools.partial(
        Session,
        candidates=settings.batch_candidates if candidates is None else candidates,
        deadline_ms=settings.batch_deadline if deadline_ms is None else deadline_ms,
        seed=seed,
        context=FileContext(window_chars=settings.window_chars, related_chars=settings.related_chars),
    )
    if engine is not None:
        yield session_with(engine)
        return
    options = engines.connect_options(configured, model=model, interactive=False)
    async with engines.connect(options) as resident:
        is_remote = model_names.is_remote(options.engine_id.model)
        guarded = Guarded(resident, patterns_of(map(Path, filter(None, [programs.here()])))) if is_remote else resident
        yield session_with(guarded)


def _blocking(
    method: Callable[Concatenate[Session, Parameters], Awaitable[Result]],
) -> Callable[Concatenate[SyncSession, Parameters], Result]:
    """Return a method of `SyncSession` that blocks until this method of its session has ended."""

    @functools.wraps(method)
    def blocking(self: SyncSession, /, *args: Parameters.args, **named: Parameters.kwargs) -> Result:
        async def awaited() -> Result:
            return await method(self.session, *args, **named)

        future = self.portal.start_task_soon(awaited)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the wait was interrupted
            raise

    return blocking


@dataclass(frozen=True, slots=True)
class SyncSession:
    """A `Session` with blocking methods, which run on an event loop in a background thread."""

    session: Session
    portal: BlockingPortal

    fill_at = _blocking(Session.fill_at)
    fill_text = _blocking(Session.fill_text)
    fill_file = _blocking(Session.fill_file)


def _opening(
    connecting: Callable[Parameters, AbstractAsyncContextManager[Session]],
) -> Callable[Parameters, AbstractContextManager[SyncSession]]:
    """Return `connect` for programs without an event loop."""

    @contextlib.contextmanager
    @functools.wraps(connecting, assigned=())
    def connect_sync(*args: Parameters.args, **named: Parameters.kwargs) -> Iterator[SyncSession]:
        """Yield a blocking session (see `connect`). Its event loop also runs between calls, which keeps it connected."""
        with (
            start_blocking_portal(name="dg-lsp-infill") as portal,
            portal.wrap_async_context_manager(connecting(*args, **named)) as session,
        ):
            yield SyncSession(session, portal)

    return connect_sync


connect_sync = _opening(connect)


def _document(text: str, path: str, language: str) -> Document:
    by_name = languages.for_path(path, text)
    return Document(Path("/", path or "text").as_uri(), language or (by_name.name if by_name else ""), text)
