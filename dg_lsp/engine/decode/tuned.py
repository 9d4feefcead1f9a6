"""Choose the weights for a file: those tuned on its repository if the user has stored any, otherwise the base model's.

A tuned model is a copy of the base model with other weights. It has its own prefix cache, and shares the base model's
layout, calibration and pace. Knows stored weights and how to load them. Knows nothing of how they were trained.
"""

from __future__ import annotations

import copy
import logging
import os
import shlex
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dg_lsp.engine.calibration_store import ModelId
from dg_lsp.engine.decode.resources import Resources
from dg_lsp.engine.model.loading import Loaded
from dg_lsp.engine.model.weights import tuned_store
from dg_lsp.engine.model.weights.tuned_store import StoreError, Tuned

log = logging.getLogger("dg_lsp.engine")

MAX_MODELS = 2  # tuned models in memory beside the base model; an editor rarely has files of more repositories in use
MAX_BASE_WEIGHTS = 50_000_000  # a copy of a larger model would take too much memory


class TunedModels:
    """The tuned models in memory, at most `MAX_MODELS`; the least recently used one is dropped first.

    `make` returns the shared objects of a model. The store is read again when its folder changes, and a model
    whose entry was removed is dropped.
    """

    def __init__(self, base: Resources, model: ModelId, make: Callable[[Loaded], Resources]) -> None:
        self._base, self._model, self._make = base, model, make
        self._entries: tuple[Tuned, ...] = ()
        self._store_version: tuple[int, int] | None = None
        self._models: OrderedDict[tuple[str, str, int], Resources] = OrderedDict()
        self._failed: set[tuple[str, str, int]] = set()
        self._reported: set[str] = set()

    @property
    def in_memory(self) -> tuple[Resources, ...]:
        """The tuned models in memory, the most recently used one last."""
        return tuple(self._models.values())

    def for_file(self, file: str) -> Resources:
        """Return the objects of the model for a file with this absolute path; "" is an unknown file."""
        self._refresh()
        entry = self._entry(file) if file else None
        if entry is None:
            return self._base
        try:
            version = (entry.folder / tuned_store.WEIGHTS).lstat().st_mtime_ns
        except OSError:
            version = 0  # loading reports the reason
        key = (entry.root, entry.made, version)
        if key in self._failed:  # a retry would fail again
            return self._base
        if key not in self._models:
            resources = self._load(entry)
            if resources is None:
                self._failed.add(key)
                return self._base
            for old in [other for other in self._models if other[0] == entry.root]:
                del self._models[old]
            self._models[key] = resources
            while len(self._models) > MAX_MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        return self._models[key]

    def clear(self) -> None:
        """Drop the tuned models from memory; the next request loads them again."""
        self._models.clear()

    def _entry(self, file: str) -> Tuned | None:
        """Return the entry of the innermost repository that contains the file, or None."""
        if not self._entries:
            return None
        entry = _innermost(self._entries, file)
        # Repositories are stored with their resolved paths, and an editor may have opened the file through a link.
        return entry or _innermost(self._entries, os.path.realpath(file))

    def _refresh(self) -> None:
        try:
            status = tuned_store.folder().stat()
        except OSError:
            self._entries, self._store_version = (), None
            self._models.clear()
            return
        if self._store_version == (version := (status.st_mtime_ns, status.st_ino)):
            return
        self._store_version = version
        try:
            own = [entry for entry in tuned_store.entries() if entry.model.name == self._model.name]
        except StoreError as error:
            self._report(f"tuned weights are not used: {error}")
            own = []
        self._entries = tuple(entry for entry in own if entry.model == self._model)
        stored = {(entry.root, entry.made) for entry in self._entries}
        for key in [key for key in self._models if key[:2] not in stored]:
            del self._models[key]
        current_roots = {entry.root for entry in self._entries}
        for entry in own:
            if entry.root not in current_roots:
                self._report(
                    f"the weights tuned on {entry.root} belong to another version of the model {entry.model.name} and are not "
                    f"used; to tune this version, run: dg-lsp train tune {shlex.quote(entry.root)}"
                )

    def _load(self, entry: Tuned) -> Resources | None:
        base = self._base.loaded
        try:
            model = with_weights(base.diffusion.model, read(entry))
        except StoreError as error:
            self._report(f"the weights tuned on {entry.root} are not used: {error}")
            return None
        resources = self._make(replace(base, passes=type(base.diffusion)(model)))
        log.info("loaded the weights tuned on %s", entry.root)
        return replace(resources, calibrations=self._base.calibrations, pace=self._base.pace)

    def _report(self, sentence: str) -> None:
        """Write a warning to the log, unless it was written before."""
        if sentence not in self._reported:
            self._reported.add(sentence)
            log.warning("%s", sentence)


def suits(loaded: Loaded) -> bool:
    """Return whether a model can have tuned copies: it has at most `MAX_BASE_WEIGHTS` weights, and none are quantised."""
    return 0 < loaded.passes.n_tunable <= MAX_BASE_WEIGHTS


def read(entry: Tuned) -> dict[str, Tensor]:
    """Return the weights of an entry by name; raise StoreError if they can't be used."""
    from safetensors.torch import load

    data = tuned_store.read_weights(entry)
    try:
        return load(data)
    except Exception as error:  # the library's own error is not an OSError
        raise StoreError(f"{entry.folder / tuned_store.WEIGHTS} is not a complete safetensors file ({error})") from error


def with_weights(model: Any, weights: dict[str, Tensor]) -> Any:
    """Return a copy of a model with other values for the named weights; raise StoreError if they do not fit it."""
    adapted = copy.deepcopy(model)
    places = adapted.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, tensor in weights.items():
            place = places.get(name)
            if place is None or place.shape != tensor.shape or not tensor.is_floating_point():
                raise StoreError(f"the weight {name} does not fit the model")
            if not bool(torch.isfinite(tensor).all()):
                raise StoreError(f"the weight {name} holds numbers that are not finite")
            place.copy_(tensor)
    return adapted


def _innermost(entries: tuple[Tuned, ...], file: str) -> Tuned | None:
    covering = [entry for entry in entries if entry.covers(file)]
    return max(covering, key=lambda entry: len(entry.root), default=None)
