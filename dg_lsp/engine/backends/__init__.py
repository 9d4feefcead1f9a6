"""Models that run elsewhere: which backend a model's name means, and its filler with the user's keys and privacy.

Imports no torch, and neither does what it loads for a remote name. Knows names; each backend knows its protocol.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from dg_lsp.wire import config, model_names, privacy
from dg_lsp.wire.model_names import Remote, is_remote
from dg_lsp.wire.privacy import LOCAL_ONLY
from dg_lsp.wire.settings import DEFAULTS

if TYPE_CHECKING:
    from dg_lsp.engine.backends.remote import RemoteFiller
    from dg_lsp.engine.task import Filler

__all__ = ["is_remote", "load", "load_remote", "parse"]

log = logging.getLogger("dg_lsp.engine")

Say = Callable[[str, float], None]


def parse(name: str) -> Remote:
    """Return what a remote model's name says; raise RemoteError, with a sentence, when it says nothing of the kind."""
    from dg_lsp.engine.backends.calls import RemoteError

    try:
        return model_names.parse_remote(name)
    except model_names.ModelNameError as error:
        raise RemoteError(str(error)) from error


def load_remote(name: str, *, say: Say = lambda _text, _share: None) -> RemoteFiller:
    """Return a filler on a remote model; raise RemoteError, with a sentence, when there is none to be had.

    Keys and privacy come from the user's configuration and the environment, never from a workspace.
    """
    configured, problems = config.read()
    for problem in problems:
        log.warning("%s", problem)
    stated = parse(name)
    if privacy.keeps_everything(configured.settings.local_only):
        from dg_lsp.engine.backends.calls import RemoteError

        # Before the first byte: asking the server how it is would already tell it the key.
        raise RemoteError(f"every file {LOCAL_ONLY}. {' '.join(problems)}".rstrip())
    say("asking the server", 0.2)
    if stated.backend == "vllm":
        from dg_lsp.engine.backends import vllm  # reads the model's tokenizer, and needs the library for that

        made = vllm.load(stated.url, stated.model, configured, say)
    else:
        from dg_lsp.engine.backends import fim

        made = fim.load(stated.dialect, stated.url, stated.model, configured, os.environ)
    made.newer_patterns = lambda: config.read()[0].settings.local_only
    say("ready", 1.0)
    return made


def load(
    name: str,
    *,
    device: str = "auto",
    threads: int = 0,
    revision: str = "",
    dtype: str = "",
    rows: int = DEFAULTS.rows,
    say: Say = lambda _text, _share: None,
) -> Filler:
    """Return a filler on any model, here or elsewhere; torch is imported for one that runs here."""
    if is_remote(name):
        return load_remote(name, say=say)
    from dg_lsp.engine import filler

    return filler.load(name, device=device, threads=threads, revision=revision, dtype=dtype, rows=rows, say=say)
