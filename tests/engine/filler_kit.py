"""What the tests of the models of this process share: an encoded prefix, and recorders of steps."""

from __future__ import annotations

import torch

from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.model.prefix_cache import KV
from dg_lsp.engine.model.recording import Recorder, Work


def a_prefix(passes: Passes, length: int) -> KV:
    return passes.encode(torch.randint(10, 110, (1, length), generator=torch.Generator().manual_seed(length)))[1]


class WorkingRecorder(Recorder):
    """A recorder whose graphs are the functions themselves."""

    def record(self, work: Work) -> Work:
        return work


class FailingRecorder(Recorder):
    """A recorder that fails as CUDA does when a function waits for the device."""

    def record(self, work: Work) -> Work:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with TORCH_USE_CUDA_DSA")
