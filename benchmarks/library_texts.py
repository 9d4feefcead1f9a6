"""Whether a pulled model's texts are what transformers' own passes write from the same weights, in 16 bits.

    python benchmarks/library_texts.py MODEL [N_HOLES]

The engine writes N_HOLES answers of held-out holes, token by token; the library reads each prompt with its answer in one pass.
For each token where the library has another one first, the table says by how much: a near tie is rounding, more is a fault.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from dg_lsp.core import holes, syntax
from dg_lsp.engine.model import before_torch  # noqa: F401 -- sets threads before torch is imported
from dg_lsp.evaluate import tasks
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.wire import laptop

HELD_OUT = Path(__file__).parents[1] / "fixtures" / "eval" / "heldout.jsonl.gz"
N_TOKENS = 32  # of each answer
NEAR = 0.5  # nats


def library(folder: Path) -> Any:
    """Return the library's model with the weights of a pulled folder, in 16 bits."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    stored = load_file(folder / "model.safetensors")
    weights = {
        name: (weight.float() * stored[f"{name}_scale"][:, None] if weight.dtype == torch.int8 else weight).to(torch.bfloat16)
        for name, weight in stored.items()
        if not name.endswith("_scale")
    }
    del stored
    config = AutoConfig.for_model(**json.loads((folder / "config.json").read_text()))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    if unexpected or [name for name in missing if name != "lm_head.weight"]:
        raise SystemExit(f"{folder} does not have the library's weights: {missing} {unexpected}")
    inverse = model.model.rotary_emb
    fresh = type(inverse)(config)  # its buffers are not among the weights
    inverse.inv_freq, inverse.original_inv_freq = fresh.inv_freq, fresh.inv_freq.clone()
    return model.eval()


def prompts(filler: Any, n_holes: int) -> list[list[int]]:
    """Return the prompts that the engine makes of held-out holes."""
    every = list(tasks.read(HELD_OUT))
    found = []
    for task in every[:: max(1, len(every) // n_holes)][:n_holes]:
        document, tree = task.document, syntax.of(task.document)
        hole = task.hole if task.hole.extent == "block" else holes.at_cursor(document, len(task.prompt), tree)
        request = pipeline.to_request(document, (hole,), FileContext(path=task.path), syntax=tree)
        found.append(list(filler.prompt(request).ids))
    return found


def written(passes: Any, prompt: list[int], ends: set[int]) -> list[int]:
    """Return the tokens that the engine's passes find likeliest, one after another."""
    from dg_lsp.engine.model.room import Room

    room, row, out = Room(passes, len(prompt) + N_TOKENS), prompt, list[int]()
    while len(out) < N_TOKENS and (not out or out[-1] not in ends):
        out.append(int(passes.logits(room.read(row)[-1:])[0].argmax()))
        row = out[-1:]
    return out


def main(name: str, n_holes: int) -> None:
    """Print one line for each token that the library would not have written, and how many are equal."""
    import torch

    from dg_lsp.engine.backends.local import filler_of, load_model

    loaded = load_model(name, threads=1, device="cpu")
    filler = filler_of(loaded)
    end = loaded.vocabulary.tokenizer.token_to_id
    ends = {token for token in map(end, ("<|endoftext|>", "<|im_end|>")) if token is not None}
    asked = prompts(filler, n_holes)
    with torch.inference_mode():
        texts = [written(loaded.passes, prompt, ends) for prompt in asked]
        pulled = laptop.by_name(name)
        model = library(pulled.folder if pulled else Path(name))
        n_tokens, margins = 0, list[float]()
        for prompt, text in zip(asked, texts, strict=True):
            logits = model(torch.tensor([prompt + text[:-1]])).logits[0, len(prompt) - 1 :].float()
            for i, (row, token) in enumerate(zip(torch.log_softmax(logits, -1), text, strict=True)):
                n_tokens += 1
                if (best := int(row.argmax())) != token:
                    margins.append(float(row[best] - row[token]))
                    pair = [loaded.vocabulary.decode([each]) for each in (token, best)]
                    print(
                        f"token {i}: the engine {pair[0]!r}, the library {pair[1]!r}, {margins[-1]:.3f} nats apart", flush=True
                    )
    far = sum(margin > NEAR for margin in margins)
    print(
        f"{name}: {len(asked)} holes, {n_tokens} tokens, {n_tokens - len(margins)} equal, {far} differ by more than {NEAR} nats"
    )


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 20)
