"""Compare what `engine.model.fit` says that a model takes with what it takes: random checkpoints of three sizes, on this CPU.

    python tests/benchmarks/what_fits.py [--json]

Each checkpoint is loaded in a process of its own, in each precision; what is measured are the bytes of its weights, of the
keys and values of one encoded prefix, of a pass's rows, and how far the process's memory rose over what it was before the load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib import util
from pathlib import Path
from typing import Any

SIZES = {
    "small": {"hidden_size": 512, "num_experts": 8, "moe_intermediate_size": 256, "vocab_size": 32_768},
    "middle": {"hidden_size": 768, "num_experts": 16, "moe_intermediate_size": 384, "vocab_size": 65_536},
    "large": {"hidden_size": 1024, "num_experts": 32, "moe_intermediate_size": 512, "vocab_size": 65_536},
}
PREFIX, CANVAS, ROWS = 256, 64, 4


def measured(folder: Path, dtype: str) -> dict[str, dict[str, int]]:
    """Return what was predicted and what was measured, in this process."""
    import torch

    from dg_lsp.engine.backends.local import load_model
    from dg_lsp.engine.diffusion.denoising.decoder import LocalDecoder
    from dg_lsp.engine.diffusion.gemma import quantised
    from dg_lsp.engine.model import fit, memory

    torch.set_num_threads(1)
    shape = fit.of_config(json.loads((folder / "config.json").read_text()))
    needs = fit.needs(shape, dtype, fit.Use(PREFIX, CANVAS, ROWS))  # type: ignore[arg-type]
    before = resident()
    loaded = load_model(str(folder), device="cpu", threads=1, dtype=dtype)
    passes, ids = loaded.passes, torch.arange(PREFIX)[None] % 400
    with torch.inference_mode():
        hidden, kv = passes.encode(ids)
        del hidden
        decoder = LocalDecoder(passes, kv)
        decoder.make_room(ROWS, CANVAS)
        logits = passes.logits(passes.decode(ids[:, :CANVAS].repeat(ROWS, 1), kv))
    cache = sum(one.numel() * one.element_size() for pair in kv for one in pair)
    per_token = memory.cost(passes).canvas_token
    n_bytes = {
        "weights": quantised.n_bytes(passes.model),
        "cache": cache,
        # What a step computes with beside the rows' keys and values is bounded, not held: it is taken as predicted.
        "rows": decoder.bytes
        + ROWS * CANVAS * (per_token - shape.kv_per_token * passes.decoder.embed_tokens.weight.element_size()),
    }
    del logits
    expected = {"weights": needs.weights, "cache": needs.cache, "rows": needs.rows}
    held_bytes = sum(n_bytes.values()) - (n_bytes["rows"] - decoder.bytes)
    return {"predicted": expected, "measured": n_bytes, "process": {"held": held_bytes, "rose": resident() - before}}


def resident() -> int:
    """Return the memory that the process has now and that no file backs."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])


def main() -> None:
    """Measure each checkpoint in each precision, and print a table or one JSON object."""
    if len(sys.argv) > 2 and sys.argv[1] == "--one":
        print(json.dumps(measured(Path(sys.argv[2]), sys.argv[3])))
        return
    precisions = ["bfloat16", "float32", "fp8", *(["int4"] if util.find_spec("bitsandbytes") else [])]
    from tests.engine import real_geometry

    rows: list[dict[str, Any]] = []
    for size, changes in SIZES.items():
        with tempfile.TemporaryDirectory() as place:
            real_geometry.save(Path(place), real_geometry.build(**changes))
            for dtype in precisions:
                # A fixed threshold: freed memory goes back at once, so that what is resident is what is held.
                environment = {
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "MALLOC_MMAP_THRESHOLD_": "65536",
                    "PYTHONPATH": str(Path.cwd()),
                }
                command = [sys.executable, __file__, "--one", place, dtype]
                output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
                rows.append({"size": size, "dtype": dtype, **json.loads(output.splitlines()[-1])})
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        parts = ", ".join(
            f"{name} {row['predicted'][name] / 1e6:.1f}/{row['measured'][name] / 1e6:.1f}" for name in row["predicted"]
        )
        held_bytes, rose = row["process"]["held"], row["process"]["rose"]
        print(
            f"{row['size']:7}{row['dtype']:9} MB told/measured: {parts}; held {held_bytes / 1e6:.0f}, rose by {rose / 1e6:.0f}"
        )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
