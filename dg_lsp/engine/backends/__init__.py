"""Models that run elsewhere: which backend a model's name means, and its filler with the user's keys and privacy.

Imports no torch, and neither does what it loads for a remote name. Knows names; each backend knows its protocol.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from dg_lsp.engine.calibration_store import ModelId
from dg_lsp.engine.task import Say
from dg_lsp.wire import config, model_names, privacy
from dg_lsp.wire.model_names import Remote, is_remote
from dg_lsp.wire.privacy import LOCAL_ONLY
from dg_lsp.wire.settings import DEFAULTS

if TYPE_CHECKING:
    from dg_lsp.engine.backends.remote import RemoteFiller
    from dg_lsp.engine.task import Filler

__all__ = ["is_remote", "load_filler", "load_remote", "parse"]

log = logging.getLogger("dg_lsp.engine")


def parse(name: str) -> Remote:
    """Return what a remote model's name says; raise RemoteError, with a sentence, when it says nothing of the kind."""
    from dg_lsp.engine.backends.http_client import RemoteError

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
    remote_name = parse(name)
    if privacy.keeps_everything(configured.settings.local_only):
        from dg_lsp.engine.backends.http_client import RemoteError

        # Before the first byte: asking the server how it is would already tell it the key.
        raise RemoteError(f"every file {LOCAL_ONLY}. {' '.join(problems)}".rstrip())
    say("asking the server", 0.2)
    if remote_name.backend == "vllm":
        from dg_lsp.engine.backends import vllm  # reads the model's tokenizer, and needs the library for that

        filler = vllm.connect(remote_name.url, remote_name.model, configured, say)
    elif remote_name.backend == "chat":
        from dg_lsp.engine.backends import chat

        filler = chat.connect(remote_name.url, remote_name.model, configured, os.environ)
    else:
        from dg_lsp.engine.backends import fim

        filler = fim.connect(remote_name.dialect, remote_name.url, remote_name.model, configured, os.environ)
    filler.newer_patterns = lambda: config.read()[0].settings.local_only
    # Which model a server chose is what tells it from the one that it may serve tomorrow.
    filler.calibrations.watch(ModelId(name, filler.backend.model))
    say("ready", 1.0)
    return filler


def load_filler(
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
    from dg_lsp.engine import local

    return local.load_local(name, device=device, threads=threads, revision=revision, dtype=dtype, rows=rows, say=say)
