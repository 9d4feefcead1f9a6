"""The local model's interface to serving: start tasks, step them together, prepare for the next request, report facts.

Knows the parts of `engine.decode` that do this. Knows nothing of how they work.
"""

from __future__ import annotations

from dg_lsp.engine.model import before_torch  # noqa: F401 -- before torch

# isort: split
import codecs
import time
from collections.abc import Callable, Sequence

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.calibration_store import Calibrations, ModelId
from dg_lsp.engine.decode import resources
from dg_lsp.engine.decode.fill import Switches
from dg_lsp.engine.decode.layout import Layout
from dg_lsp.engine.decode.resources import MAX_ROWS
from dg_lsp.engine.decode.task import InfillTask
from dg_lsp.engine.model import loading, room
from dg_lsp.engine.model.loading import EMBEDDED, Loaded
from dg_lsp.engine.model.prefix_cache import PrefixCache
from dg_lsp.engine.task import Concurrency, Filler, OnProgress, Task
from dg_lsp.wire import model_names


def load_local(
    name: str = EMBEDDED,
    *,
    device: str = "auto",
    threads: int = 0,
    revision: str = "",
    dtype: str = "",
    rows: int = MAX_ROWS,
    on_progress: OnProgress = lambda _text, _share: None,
) -> LocalFiller:
    """Load the local model `name` and return its filler; `engine.model.load_model` documents the errors.

    `engine.backends.load_filler` also loads models that run elsewhere.
    """
    loaded = loading.load_model(name, device=device, threads=threads, revision=revision, dtype=dtype, on_progress=on_progress)
    filler = LocalFiller(loaded, rows=rows)
    filler.calibrations.watch(ModelId(str(model_names.folder_of(name) or name), loaded.fingerprint))
    return filler


class LocalFiller(Filler):
    """A loaded model that fills requests.

    `joins` says whether rows of several requests step in one pass. The default is to do so except on a CPU, where a row
    takes the same time alone. `rows` is the maximum number of a request's rows in one pass; more rows take several passes.
    `clock` returns the seconds for planning deadlines.
    """

    def __init__(
        self,
        loaded: Loaded,
        switches: Switches | None = None,
        *,
        joins: bool | None = None,
        rows: int = MAX_ROWS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._joins = loaded.device != "cpu" if joins is None else joins
        self.switches = switches or Switches()
        self.resources = resources.make(loaded, rows, clock)

    @property
    def loaded(self) -> Loaded:
        """The model."""
        return self.resources.loaded

    @property
    def layout(self) -> Layout:
        """The layout of requests as tokens."""
        return self.resources.layout

    @property
    def calibrations(self) -> Calibrations:
        """The calibrations that turn evidence into confidence."""
        return self.resources.calibrations

    @property
    def cache(self) -> PrefixCache:
        """The cache of recently encoded prefixes."""
        return self.resources.prefixes.cache

    def start(self, request: InfillRequest) -> InfillTask:
        """Return a new task for the request."""
        return InfillTask(request, self.resources, self.switches)

    def concurrency(self) -> Concurrency:
        """Return "joined" if rows of several requests step in one pass, otherwise "in turns"."""
        return "joined" if self._joins else "in turns"

    def predict_together(self, tasks: Sequence[Task], max_rows: int) -> Sequence[int]:
        """Run one pass of at most `max_rows` rows for the next step of the first task and of others that fit in it.

        Return the indexes of the tasks it served; none if the first task is alone, or if its next unit is not a denoising
        step.
        """
        if not isinstance(tasks[0], InfillTask):
            return ()
        waiting = [task.asking() if isinstance(task, InfillTask) else None for task in tasks]
        shared_indexes = self.resources.shared.fitting(waiting, max_rows)
        if len(shared_indexes) < 2:  # a task alone steps without this pass
            return ()
        self.resources.shared.predict([steps for index in shared_indexes if (steps := waiting[index]) is not None])
        return tuple(shared_indexes)

    def is_on_gpu(self) -> bool:
        """Return whether the model's weights are on a GPU."""
        return self.loaded.device != "cpu"

    def has_room(self) -> bool:
        """Return whether memory has room for another request of full size beside the running ones."""
        return self.resources.headroom.admits_request()

    def expect(self, request: InfillRequest) -> None:
        """Note the request that will probably come next; `foresee` encodes its prefix."""
        self.resources.ahead.expect(request)

    def foresee(self) -> bool:
        """Encode one chunk of the expected prefix; return whether more remains."""
        return self.resources.ahead.read()

    def about(self) -> dict[str, object]:
        """Return the facts of the model: device, dtype, revision, threads, the reasons for them, and memory."""
        loaded = self.loaded
        return {
            "device": loaded.device,
            "dtype": loaded.dtype,
            "revision": loaded.revision,
            "threads": loaded.threads,
            "why": dict(loaded.why),
            "device_bytes": loaded.passes.n_bytes() + self.cache.bytes,
            "device_free_bytes": room.free_bytes(loaded.device),
        }

    def pieces(self, text: str) -> tuple[str, ...]:
        """Return the texts of a text's tokens. A character split over several tokens belongs to the last of them."""
        vocabulary = self.loaded.vocabulary
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return tuple(decoder.decode(vocabulary.pieces[token]) for token in vocabulary.encode(text))

    def trim(self) -> None:
        """Drop the prefix cache and the buffers of steps."""
        self.cache.clear()
        if self.resources.stepper.fixed is not None:
            self.resources.stepper.fixed.clear()
