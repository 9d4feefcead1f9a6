"""Models that run elsewhere: choose the backend from the model's name, and apply the user's keys and privacy settings.

This module knows names, and each backend knows its protocol. Nothing here imports torch for a remote name.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from dg_lsp.engine.common.calibration_store import ModelId
from dg_lsp.engine.common.task import OnProgress
from dg_lsp.wire import config, model_names
from dg_lsp.wire.config import LOCAL_ONLY
from dg_lsp.wire.model_names import is_remote

if TYPE_CHECKING:
    from dg_lsp.engine.backends.remote import RemoteFiller
    from dg_lsp.engine.common.task import Filler

log = logging.getLogger("dg_lsp.engine")


def load_remote(name: str, *, on_progress: OnProgress = lambda _text, _share: None) -> RemoteFiller:
    """Return a filler for a remote model; raise RemoteError if the server can't be used.

    Keys and privacy come from the user's configuration and the environment, never from a workspace.
    """
    from dg_lsp.engine.backends.http_client import RemoteError

    configured, problems = config.read()
    for problem in problems:
        log.warning("%s", problem)
    try:
        remote_name = model_names.parse_remote(name)
    except model_names.ModelNameError as error:
        raise RemoteError(str(error)) from error
    if config.keeps_everything(configured.settings.local_only):
        # Checked before anything is sent: the first request would already reveal the key.
        raise RemoteError(f"every file {LOCAL_ONLY}. {' '.join(problems)}".rstrip())
    on_progress("querying the server", 0.2)
    if remote_name.backend == "vllm":
        from dg_lsp.engine.backends import vllm  # needs the tokenizers library, which the other backends don't

        filler = vllm.connect(remote_name.url, remote_name.model, configured, on_progress)
    elif remote_name.backend == "chat":
        from dg_lsp.engine.backends import chat

        filler = chat.connect(remote_name.url, remote_name.model, configured, os.environ)
    else:
        from dg_lsp.engine.backends import fim

        filler = fim.connect(remote_name.dialect, remote_name.url, remote_name.model, configured, os.environ)
    filler.newer_patterns = lambda: config.read()[0].settings.local_only
    # A server may serve another model tomorrow, so its choice is part of the model's identity.
    filler.calibrations.watch(ModelId(name, filler.backend.model))
    on_progress("ready", 1.0)
    return filler


def load_filler(
    name: str, *, device: str = "auto", threads: int = 0, dtype: str = "", on_progress: OnProgress = lambda _text, _share: None
) -> Filler:
    """Return a filler for a local or remote model; only a local one imports torch. `local.load_model` documents its errors."""
    if is_remote(name):
        return load_remote(name, on_progress=on_progress)
    from dg_lsp.engine.model import before_torch  # noqa: F401, I001 -- before torch
    from dg_lsp.engine.backends import local

    loaded = local.load_model(name, device=device, threads=threads, dtype=dtype, on_progress=on_progress)
    filler = local.filler_of(loaded)
    filler.calibrations.watch(ModelId(model_names.full(name), loaded.fingerprint))
    return filler
