"""How errors of the GPU are told from others, and how unused memory is returned. Imports no torch itself."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

from dg_lsp import is_out_of_memory
from dg_lsp.engine.model.fit import machine


def is_gpu_lost(error: BaseException) -> bool:
    """Return whether the error came from the GPU or its driver, and no later call in this process can succeed."""
    is_from_gpu = type(error).__name__ == "AcceleratorError" or (isinstance(error, RuntimeError) and "CUDA error" in str(error))
    return is_from_gpu and not is_out_of_memory(error)


def return_freed_memory() -> None:
    """Return what the process has freed to the system; do nothing where the C library has no function for it.

    Tensors of many sizes leave holes that no later one fits. They were a third of the engine's memory. It takes a few ms.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # musl, macOS; Windows has no handle of the process
        ctypes.CDLL(None).malloc_trim(0)


def give_back_memory() -> None:
    """Collect garbage, and return unused memory to the system, and the GPU allocator's to the device unless it is lost."""
    gc.collect()
    return_freed_memory()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and not machine.lost_gpu():
        torch.cuda.empty_cache()
