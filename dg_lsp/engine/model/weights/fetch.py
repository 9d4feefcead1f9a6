"""Fetch a model from the hub into the local cache, and report the progress in words. Cached files are not fetched again.

The configuration is fetched first, so that neither an unsupported model nor one too large for the disk is downloaded.
Imports no torch.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dg_lsp.core import wording
from dg_lsp.core.wording import size
from dg_lsp.engine.model.fit import type_problem

EVERY_S = 0.5  # the interval between reports


class Meter:
    """Counts bytes, from any thread, and reports the progress at intervals.

    `on_progress` receives a text and a fraction between `low` and `high`. `done` bytes were there before and do not count.
    Its attributes are its parameters, and the counts and times of a report, which one lock guards.
    """

    def __init__(
        self,
        what: str,
        total: int,
        on_progress: Callable[[str, float], None],
        *,
        low: float = 0.0,
        high: float = 1.0,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what, self.total, self.done = what, total, done
        self._on_progress, self._low, self._high, self._clock = on_progress, low, high, clock
        self._lock = threading.Lock()
        self._began, self._before = clock(), done
        self._reported_at: float | None = None

    def add(self, n_bytes: int) -> None:
        """Count more bytes as done, and report if it is time."""
        with self._lock:
            self.done += n_bytes
            now = self._clock()
            if self._reported_at is not None and now - self._reported_at < EVERY_S and self.done < self.total:
                return
            self._reported_at = now
            self._on_progress(self.text(now), self._low + (self._high - self._low) * self.share())

    def share(self) -> float:
        return min(1.0, self.done / self.total) if self.total > 0 else 1.0

    def text(self, now: float) -> str:
        """Return the progress as text, with the rate and the time left if known."""
        text = f"{self.what}: {size(min(self.done, self.total))} of {size(self.total)}"
        took_s = now - self._began
        if took_s <= 0 or self.done <= self._before:
            return text
        rate = (self.done - self._before) / took_s
        return f"{text}, {size(rate)}/s, {duration(max(0, self.total - self.done) / rate)} left"


def duration(seconds: float) -> str:
    """Return a duration as readable text, rounded up to seconds or minutes, or in hours."""
    whole = int(seconds + 0.999)
    if whole < 90:
        return f"{whole} s"
    if whole < 90 * 60:
        return f"{-(-whole // 60)} min"
    return f"{whole / 3600:.1f} h"


CONFIG = "config.json"
# Only the files at the top of the repository: subfolders hold the same weights in other formats.
PATTERNS, IGNORE_PATTERNS = ["*.json", "*.safetensors", "tokenizer*", "merges.txt", "chat_template*"], ["*/*"]
WORKERS = 4
SPARE_BYTES = 1 << 30  # left free on the disk


class PullError(Exception):
    """A model can't be fetched or converted. The message is a sentence, without its full stop."""


def config_values(name: str) -> dict[str, Any]:
    """Return the values of a hub model's `config.json`; only that file is fetched. Raises PullError.

    The name may end with `@REVISION`.
    """
    repository, at = _parts(name)
    file = _hub(name, lambda hub: hub.hf_hub_download(repository, CONFIG, revision=at))
    try:
        values = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PullError(f"the {CONFIG} of {name} can't be read: {error}") from error
    if problem := type_problem(values.get("model_type") if isinstance(values, dict) else None):
        raise PullError(f"{name} is {problem}, so it was not fetched")
    return dict(values)


def snapshot(name: str, on_progress: Callable[[str, float], None] = lambda _text, _share: None) -> Path:
    """Return the complete folder of a hub model, named as in `config_values`. Raises PullError.

    `on_progress` receives the progress.
    """
    config_values(name)
    repository, at = _parts(name)
    options = {"revision": at, "allow_patterns": PATTERNS, "ignore_patterns": IGNORE_PATTERNS}
    files = _hub(name, lambda hub: _files(hub, repository, options))
    missing_bytes = sum(file.file_size or 0 for file in files if file.will_download)
    if missing_bytes:
        _check_disk(name, missing_bytes)
    total = sum(file.file_size or 0 for file in files)
    meter = Meter(f"downloading {name}", total, on_progress, done=total - missing_bytes)
    options_of_progress = {"max_workers": WORKERS, "tqdm_class": bar_for(meter)}
    return Path(_hub(name, lambda hub: hub.snapshot_download(repository, **options, **options_of_progress)))


def _parts(name: str) -> tuple[str, str | None]:
    """Return a hub model's repository and revision, None for its newest."""
    repository, _, at = name.partition("@")
    return repository, at or None


def _files(hub: Any, repository: str, options: dict[str, Any]) -> list[Any]:
    try:
        silent = bar_for(Meter("", 0, lambda _text, _share: None))
        return list(hub.snapshot_download(repository, **options, dry_run=True, tqdm_class=silent))
    except hub.errors.LocalEntryNotFoundError:
        raise
    except Exception as error:
        # Without a network, the list of files is unknown. A complete cached model is used then.
        if isinstance(error, (hub.errors.OfflineModeIsEnabled, OSError)) and not isinstance(error, hub.errors.HfHubHTTPError):
            return []
        raise


def _check_disk(name: str, missing_bytes: int) -> None:
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if missing_bytes + SPARE_BYTES > free:
        raise PullError(
            f"{name} still needs {size(missing_bytes)}, and {size(free)} are free in {folder}; free some space, or set "
            "HF_HUB_CACHE to a folder on another disk"
        )


def _hub(name: str, call: Callable[[Any], Any]) -> Any:
    """Return the result of a call of the hub's library; raise its errors as PullError with one sentence."""
    try:
        import huggingface_hub as hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ModuleNotFoundError as error:
        raise PullError(f"{name} can't be fetched: {error.name} is not installed") from error
    # The library warns about each attempt. Our final sentence says the same.
    huggingface_hub.utils.logging.set_verbosity_error()
    try:
        return call(hub)
    except PullError:
        raise
    except Exception as error:  # an error of the network, the disk or the hub
        reason = wording.reason(error)
        raise PullError(f"{name} can't be fetched from the hub ({reason}); write a folder as a path: ./{name}") from error


def bar_for(meter: Meter) -> type:
    """Return a replacement for the library's progress bar that counts bytes in `meter` and draws nothing."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # the library ships no types
        def __init__(self, *args: Any, **options: Any) -> None:
            # The library counts bytes twice: received ones and written ones. Only the written ones count here.
            self._counts = options.get("unit") == "B" and not str(options.get("desc")).startswith("Downloading")
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts:
                meter.add(int(n or 0))
            return None

        def set_description_str(self, desc: str | None = None, refresh: bool | None = True) -> None:
            """Draw nothing."""

        def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
            """Draw nothing."""

    return Bar
