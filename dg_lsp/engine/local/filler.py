"""The local model as serving knows it: it starts tasks, steps them together, reads ahead, and says where it runs.

Knows what its parts are called. Knows nothing of how they do it.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine import model, room
from dg_lsp.engine.calibration_store import Calibrations, ModelId
from dg_lsp.engine.layout import Layout
from dg_lsp.engine.local import resources, together
from dg_lsp.engine.local.fill import Switches
from dg_lsp.engine.local.resources import MAX_ROWS
from dg_lsp.engine.local.task import InfillTask
from dg_lsp.engine.model import EMBEDDED, Loaded
from dg_lsp.engine.prefix_cache import PrefixCache
from dg_lsp.engine.task import Concurrency, Filler, Say, Task
from dg_lsp.wire import model_names


def load_filler(
    name: str = EMBEDDED,
    *,
    device: str = "auto",
    threads: int = 0,
    revision: str = "",
    dtype: str = "",
    rows: int = MAX_ROWS,
    say: Say = lambda _text, _share: None,
) -> LocalFiller:
    """Return a filler on the model called `name`, which runs here; see `engine.model.load` for what it raises.

    `engine.backends.load` knows models that run elsewhere as well.
    """
    loaded = model.load(name, device=device, threads=threads, revision=revision, dtype=dtype, say=say)
    filler = LocalFiller(loaded, rows=rows)
    place = str(model_names.folder_of(name) or name)
    filler.calibrations.watch(ModelId(place, loaded.fingerprint))
    return filler


class LocalFiller(Filler):
    """A loaded model that fills requests.

    `joins` says whether rows of several requests step in one pass; by default where that was found to pay, which is
    not on a CPU: there a row costs the same wherever it stands. `rows` bounds the rows of a request that step in one
    pass; those that are more step in several.
    """

    def __init__(
        self, loaded: Loaded, switches: Switches | None = None, *, joins: bool | None = None, rows: int = MAX_ROWS
    ) -> None:
        self._joins = loaded.device != "cpu" if joins is None else joins
        self.switches = switches or Switches()
        self.resources = resources.make(loaded, rows)

    @property
    def loaded(self) -> Loaded:
        """The model."""
        return self.resources.loaded

    @property
    def layout(self) -> Layout:
        """How requests are written as tokens."""
        return self.resources.layout

    @property
    def calibrations(self) -> Calibrations:
        """What says how sure a candidate is."""
        return self.resources.calibrations

    @property
    def cache(self) -> PrefixCache:
        """The prefixes that were encoded lately."""
        return self.resources.prefixes.cache

    def start(self, request: InfillRequest) -> InfillTask:
        """Return the request as a task, not yet begun."""
        return InfillTask(request, self.resources, self.switches)

    def concurrency(self) -> Concurrency:
        """Return whether rows of several requests step in one pass, or requests take turns."""
        return "joined" if self._joins else "in turns"

    def predict_together(self, tasks: Sequence[Task], max_rows: int) -> Sequence[int]:
        """Predict the next step of the first task and of those that fit beside it, in one pass of at most `max_rows` rows.

        Return which tasks it was done for; none when the first stands alone or its next unit is no denoising step.
        """
        canvases = [task.asking() if isinstance(task, InfillTask) else None for task in tasks]
        chosen = together.fitting(canvases, self.resources, max_rows)
        if len(chosen) < 2:  # one alone steps as it always does
            return ()
        together.predict([canvas for index in chosen if (canvas := canvases[index]) is not None], self.resources)
        return tuple(chosen)

    def has_room(self) -> bool:
        """Return whether memory admits one more request of the usual size beside those under way."""
        return self.resources.headroom.admits_request()

    def expect(self, request: InfillRequest) -> None:
        """Take a request as the one that will probably come next: `foresee` reads its prefix, and its answer if it has one."""
        self.resources.ahead.expect(request)

    def foresee(self) -> bool:
        """Encode a little of the prefix that is expected next; return whether there is more of it."""
        return self.resources.ahead.read()

    def about(self) -> dict[str, object]:
        """Return where the model runs and what it takes there."""
        loaded = self.loaded
        parameters = loaded.passes.model.parameters()
        size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        return {
            "device": loaded.device,
            "dtype": loaded.dtype,
            "revision": loaded.revision,
            "threads": loaded.threads,
            "why": dict(loaded.why),
            "device_bytes": size + self.cache.bytes,
            "device_free_bytes": room.free_bytes(loaded.device),
        }

    def pieces(self, text: str) -> tuple[str, ...]:
        """Return a text's tokens as text; a character that several tokens share stands with the last of them."""
        vocabulary = self.loaded.vocabulary
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return tuple(decoder.decode(vocabulary.pieces[token]) for token in vocabulary.encode(text))

    def trim(self) -> None:
        """Forget what could be computed again."""
        self.cache.clear()
