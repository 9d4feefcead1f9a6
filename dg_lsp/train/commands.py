"""`dg-lsp train`: each stage alone, and again.

Knows the order of the stages and where each leaves its files. Knows nothing of what they do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dg_lsp.train.shape import Shape

app = typer.Typer(no_args_is_help=True, help="Train the embedded model: corpus, tokenizer, pack, run, export, calibrate, card.")

Folder = Annotated[Path, typer.Option("--run", help="The folder of this training run.")]
Hidden = Annotated[int, typer.Option(help="Width of the model.")]
Layers = Annotated[int, typer.Option(help="Number of layers.")]
Width = Annotated[int, typer.Option(help="Width of the feed-forward layers.")]


@app.command()
def corpus(
    run: Folder,
    site: Annotated[
        list[Path] | None, typer.Option(help="A site-packages folder; this Python's own where none is given.")
    ] = None,
) -> None:
    """Gather permissively licensed sources of installed packages and of the standard library."""
    from dg_lsp.train import corpus as stage

    found = stage.collect(site or [Path(entry) for entry in sys.path if entry.endswith("site-packages")])
    stage.save(found, run / "corpus")
    n_chars = sum(len(text) for _, text in found.train)
    typer.echo(f"{len(found.train)} files, {n_chars / 1e6:.1f} MB to train on; {len(found.held)} files of held-out packages")


@app.command()
def tokenizer(
    run: Folder,
    vocabulary: Annotated[int, typer.Option(help="How many tokens.")] = 8192,
    files: Annotated[int, typer.Option(help="How many files to learn merges from.")] = 3500,
) -> None:
    """Train the byte-level BPE."""
    from itertools import islice

    from dg_lsp.train import corpus as source
    from dg_lsp.train import tokenizer as stage

    texts = (text for _, text in islice(source.load(run / "corpus" / "train.jsonl"), files))
    made = stage.train(texts, vocabulary=vocabulary)
    made.save(str(run / "tokenizer.json"))
    typer.echo(f"{made.get_vocab_size()} tokens")


@app.command()
def pack(run: Folder) -> None:
    """Turn the corpus into compressed token ids: all that a training machine needs."""
    from tokenizers import Tokenizer

    from dg_lsp.train import corpus as source
    from dg_lsp.train import pack as stage

    made = Tokenizer.from_file(str(run / "tokenizer.json"))
    for use in ("train", "valid"):
        packed = stage.pack(source.load(run / "corpus" / f"{use}.jsonl"), made)
        stage.save(packed, run / f"{use}.npz")
        size = (run / f"{use}.npz").stat().st_size
        typer.echo(f"{use}: {len(packed.ids) / 1e6:.2f} M tokens, {size / 1024**2:.1f} MiB")


@app.command(name="run")
def train(
    run: Folder,
    hidden: Hidden = 256,
    layers: Layers = 5,
    feed_forward: Width = 768,
    causal_minutes: Annotated[float, typer.Option(help="Minutes of the causal stage, over all legs.")] = 65.0,
    mixed_minutes: Annotated[float, typer.Option(help="Minutes of the mixed stage, over all legs.")] = 45.0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Threads on a CPU; leave a core to others.")] = 1,
    batch: Annotated[int, typer.Option(help="How many times the CPU's batch a step takes; a GPU wants 32 or more.")] = 1,
    compiled: Annotated[bool, typer.Option(help="Compile the model; pays on a GPU alone.")] = False,
    seed: int = 0,
) -> None:
    """Train, resuming where the last leg stopped; stop it at any time."""
    from dg_lsp.train import curve, loop

    plan = loop.Plan(
        causal_minutes=causal_minutes,
        mixed_minutes=mixed_minutes,
        device=device,
        threads=threads,
        seed=seed,
        tokens_per_step=3840 * batch,
        rows=5 * batch,
        compiled=compiled,
    )
    loop.run(run, shape_of(run, hidden, layers, feed_forward), plan, say=typer.echo)
    lines = curve.read(run / "curve.jsonl")
    (run / "curve.md").write_text(curve.table(lines), encoding="utf-8")
    (run / "curve.svg").write_text(curve.picture(lines), encoding="utf-8")


@app.command()
def export(
    run: Folder,
    out: Annotated[Path, typer.Option(help="The folder of the checkpoint to write.")],
    hidden: Hidden = 256,
    layers: Layers = 5,
    feed_forward: Width = 768,
) -> None:
    """Write the newest state as a checkpoint that transformers loads."""
    from dg_lsp.train import export as stage

    stage.export(run, out, shape_of(run, hidden, layers, feed_forward))
    size = sum(path.stat().st_size for path in out.iterdir())
    typer.echo(f"{out}: {size / 1024**2:.1f} MiB")


@app.command()
def calibrate(
    run: Folder,
    model: Annotated[Path, typer.Option(help="The checkpoint to calibrate; its profile is rewritten.")],
    tasks: Annotated[int, typer.Option(help="How many holes to learn from.")] = 600,
    seed: int = 11,
) -> None:
    """Fit how sure the model may be of an answer, on files of the training packages that it was not trained on."""
    from dg_lsp.evaluate import make
    from dg_lsp.train import calibrate as stage

    holes = make.tasks(run / "corpus" / "valid.jsonl", tasks, seed)
    report = stage.calibrate(holes, model, seed=seed, say=typer.echo)
    typer.echo(json.dumps(report, indent=2))


@app.command()
def card(
    run: Folder,
    model: Annotated[Path, typer.Option(help="The checkpoint that the card describes; its README.md is written.")],
    results: Annotated[Path, typer.Option(help="A Markdown table, as `dg-lsp eval --markdown` prints it.")],
    ablation: Annotated[Path, typer.Option(help="A Markdown table, as `dg-lsp eval --ablation` prints it.")],
) -> None:
    """Write the model card from what the other commands measured."""
    from dg_lsp.train import card as stage

    text = stage.write(run, model, results=results.read_text("utf-8"), ablation=ablation.read_text("utf-8"))
    (model / "README.md").write_text(text, encoding="utf-8")
    typer.echo(f"{model / 'README.md'}: {len(text.splitlines())} lines")


def shape_of(run: Path, hidden: int, layers: int, feed_forward: int) -> Shape:
    """Return the shape that the options and the run's tokenizer give."""
    from tokenizers import Tokenizer

    from dg_lsp.train.shape import Shape

    size = Tokenizer.from_file(str(run / "tokenizer.json")).get_vocab_size()
    return Shape(hidden=hidden, layers=layers, heads=hidden // 64, feed_forward=feed_forward, vocabulary=size)
