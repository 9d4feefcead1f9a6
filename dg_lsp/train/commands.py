"""`dg-lsp train`: run each stage of training by itself; every stage can be repeated.

This module knows the order of the stages and their files, and nothing of how they work.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dg_lsp import is_interrupt
from dg_lsp.core import wording
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.wire import completions, model_names
from dg_lsp.wire.command_group import command_group
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.visible import visible_message

if TYPE_CHECKING:
    from dg_lsp.train.shape import Shape

# The stage that writes each file that later stages need.
MADE_BY = {
    "corpus/train.jsonl": "corpus",
    "corpus/valid.jsonl": "corpus",
    "tokenizer.json": "tokenizer",
    "train.npz": "pack",
    "valid.npz": "pack",
    "state.pt": "run",
    "curve.jsonl": "run",
}


class Plain(typer.core.TyperGroup):
    """Commands that report expected errors as one sentence."""

    def invoke(self, ctx: Any) -> Any:  # click's context, or that of a newer typer
        """Run the command; on an expected error, print one sentence and exit with 2."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if is_interrupt(error) or not (text := sentence(error)):
                raise
            typer.echo(f"dg-lsp train: {visible_message(text)}", err=True)
            raise typer.Exit(2) from error


app = command_group(
    cls=Plain,
    summary="Train the embedded model (corpus, tokenizer, pack, run, branch, export, average), or a canvas.",
)

Folder = Annotated[Path, typer.Option("--run", help="The folder of this training run.")]
Hidden = Annotated[int, typer.Option(help="Width of the model, a multiple of 64.")]
Layers = Annotated[int, typer.Option(help="Number of layers.", min=1)]
Width = Annotated[int, typer.Option(help="Width of the feed-forward layers.", min=1)]


@app.command()
def corpus(
    run: Folder,
    site: Annotated[list[Path] | None, typer.Option(help="A site-packages folder. Default: those of this Python.")] = None,
    sources: Annotated[
        Path | None, typer.Option(help="A folder of source files in any language, instead of installed packages.")
    ] = None,
) -> None:
    """Collect permissively licensed source code from installed packages and the standard library, or from a folder."""
    from dg_lsp.train import corpus as stage

    if sources:
        texts = stage.from_folder(sources)
    else:
        texts = stage.collect(site or [Path(entry) for entry in sys.path if entry.endswith("site-packages")])
    stage.save(texts, run / "corpus")
    n_chars = sum(len(text) for _, text in texts.train)
    typer.echo(f"{len(texts.train)} files, {n_chars / 1e6:.1f} MB to train on; {len(texts.held)} files of held-out packages")


@app.command()
def tokenizer(
    run: Folder,
    vocabulary: Annotated[int, typer.Option(help="The size of the vocabulary.")] = 8192,
    chars: Annotated[int, typer.Option(help="How many characters of the corpus to learn from.")] = 40_000_000,
) -> None:
    """Train the byte-level BPE tokenizer on a sample of the corpus, with languages mixed as in training."""
    need(run, "corpus/train.jsonl")
    from dg_lsp.train import corpus as source
    from dg_lsp.train import mixture
    from dg_lsp.train import tokenizer as stage

    trained = stage.train(mixture.sample(source.load_corpus(run / "corpus" / "train.jsonl"), chars), vocabulary=vocabulary)
    trained.save(str(run / "tokenizer.json"))
    typer.echo(f"{trained.get_vocab_size()} tokens")


@app.command()
def pack(run: Folder, processes: Annotated[int, typer.Option(help="How many processes cut holes.", min=1)] = 2) -> None:
    """Convert the corpus into compressed token ids and the holes cut from it, which are all that training needs."""
    need(run, "corpus/train.jsonl", "corpus/valid.jsonl", "tokenizer.json")
    from tokenizers import Tokenizer

    from dg_lsp.train import corpus as source
    from dg_lsp.train import pack as stage

    tokenizer_model = Tokenizer.from_file(str(run / "tokenizer.json"))
    for use in ("train", "valid"):
        packed = stage.pack(source.load_corpus(run / "corpus" / f"{use}.jsonl"), tokenizer_model, processes=processes)
        stage.save(packed, run / f"{use}.npz")
        size = (run / f"{use}.npz").stat().st_size
        typer.echo(f"{use}: {len(packed.ids) / 1e6:.2f} M tokens, {len(packed.cut_kinds)} holes, {size / 1024**2:.1f} MiB")


@app.command()
def branch(
    run: Folder, out: Annotated[Path, typer.Option(help="The folder of the new run, which continues from this one's state.")]
) -> None:
    """Copy a run. The copy can be finished and exported as a milestone while the run continues."""
    need(run, "tokenizer.json", "train.npz", "valid.npz", "state.pt", "curve.jsonl")
    out.mkdir(parents=True)
    for name in ("state.pt", "curve.jsonl", "tokenizer.json"):
        shutil.copyfile(run / name, out / name)
    for name in ("train.npz", "valid.npz", "corpus"):  # linked, because these files are never rewritten
        (out / name).symlink_to((run / name).resolve())
    typer.echo(f"{out}: continues from the state of {run}")


@app.command(name="run")
def train(
    run: Folder,
    hidden: Hidden = 256,
    layers: Layers = 6,
    feed_forward: Width = 768,
    causal_tokens: Annotated[float, typer.Option(help="Millions of tokens of the causal stage, over all runs.")] = 100.0,
    mixed_tokens: Annotated[float, typer.Option(help="Millions of tokens of the mixed stage, over all runs.")] = 25.0,
    cool_tokens: Annotated[float, typer.Option(help="Millions of tokens over which the learning rate falls at the end.")] = 8.0,
    device: Annotated[
        str, typer.Option(help="cpu or cuda.", autocompletion=completions.one_of(lambda: ("cpu", "cuda")))
    ] = "cpu",
    threads: Annotated[int, typer.Option(help="Threads on a CPU; 0: one, and a second while another core is idle.")] = 1,
    batch: Annotated[int, typer.Option(help="Factor of the batch size. 1 suits a CPU; use 32 or more on a GPU.")] = 1,
    compiled: Annotated[
        bool, typer.Option(help="Compile the model. This takes minutes; training on a CPU is then a third faster.")
    ] = False,
    seed: Annotated[int, typer.Option(help="It chooses the batches.", min=0)] = 0,
) -> None:
    """Train, and continue where an interrupted run stopped. You can interrupt it at any time."""
    need(run, "tokenizer.json", "train.npz", "valid.npz")
    from dg_lsp.train import loop
    from dg_lsp.train.schedule import Schedule

    schedule = Schedule(int(causal_tokens * 1e6), int(mixed_tokens * 1e6), int(cool_tokens * 1e6))
    plan = loop.Plan(
        schedule=schedule,
        device=device,
        threads=threads,
        seed=seed,
        tokens_per_part=3840 * batch,
        rows=6 * batch,
        compiled=compiled,
    )
    loop.run(run, shape_of(run, hidden, layers, feed_forward), plan, say=typer.echo)


@app.command()
def export(
    run: Folder,
    out: Annotated[Path, typer.Option(help="The folder of the checkpoint to write.")],
    hidden: Hidden = 256,
    layers: Layers = 6,
    feed_forward: Width = 768,
    last: Annotated[
        bool, typer.Option(help="Write the last step's weights, not their average, to measure a run that goes on.")
    ] = False,
) -> None:
    """Write the latest state as a checkpoint that transformers can load."""
    need(run, "tokenizer.json", "state.pt")
    from dg_lsp.train import export as stage

    stage.export(run, out, shape_of(run, hidden, layers, feed_forward), averaged=not last)
    size = sum(path.stat().st_size for path in out.iterdir())
    typer.echo(f"{out}: {size / 1024**2:.1f} MiB")


@app.command()
def average(
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Checkpoints of one run; one that is named twice counts twice.")
    ],
    out: Annotated[Path, typer.Option(help="The folder of the checkpoint to write.")],
) -> None:
    """Write a checkpoint with the mean weights of several milestones of a run, which is better than each of them."""
    from dg_lsp.train import average as stage

    stage.average(checkpoints, out)
    typer.echo(f"{out}: the mean of {wording.counted(len(checkpoints), 'checkpoint')}")


@app.command()
def canvas(
    base: Annotated[
        str, typer.Option(help="The frozen causal model: a folder, or a hub id.", autocompletion=completions.model)
    ],
    sources: Annotated[list[Path], typer.Option(help="A folder of source files; give the option again for more.")],
    state: Annotated[Path, typer.Option(help="The file of the run's state. The run continues from it, if it exists.")],
    minutes: Annotated[float, typer.Option(help="How many minutes to train.", min=0)] = 60.0,
    cool: Annotated[bool, typer.Option("--cool", help="Let the rate fall to zero, for a milestone.")] = False,
    threads: Annotated[int, typer.Option(help="Threads on a CPU.", min=1)] = 1,
    rate: Annotated[float, typer.Option(help="The learning rate.", min=0)] = 1.5e-3,
    order: Annotated[
        float, typer.Option(help="The share of batches that are written in order. The others have masks.", min=0, max=1)
    ] = 1.0,
    rank: Annotated[int, typer.Option(help="The adapter's rank, for a new run.", min=1, max=512)] = 32,
    seed: Annotated[int, typer.Option(help="It chooses the batches.", min=0)] = 1,
    exclude: Annotated[
        Path | None, typer.Option(help="A file of paths below the sources, one a line, that are never read.")
    ] = None,
    start: Annotated[
        Path | None, typer.Option("--from", help="A state or an exported adapter to start a new run from.")
    ] = None,
    export_to: Annotated[
        Path | None, typer.Option("--export", help="Write the adapter to this safetensors file at the end.")
    ] = None,
) -> None:
    """Train a canvas for a causal model that stays as it is. You can interrupt it at any time; it continues from its state."""
    from dg_lsp.train.canvas import loop, states

    mix = states.Mix(order=order)
    plan = loop.Plan(minutes=minutes, rate=rate, cool=cool, rank=rank, threads=threads, seed=seed, mix=mix)
    folder = str(model_names.folder_of(base) or base)
    loop.train(folder, sources, state, plan, excluded=exclude, start=start, export=export_to, say=typer.echo)


def need(run: Path, *files: str) -> None:
    """Raise EvalError if the run's folder is missing, or a file that an earlier stage writes."""
    if not run.is_dir():
        raise EvalError(f"there is no folder {run}; `dg-lsp train corpus --run {run}` creates it")
    if absent := next((file for file in files if not (run / file).exists()), ""):
        raise EvalError(f"{run} has no {absent}; `dg-lsp train {MADE_BY[absent]} --run {run}` writes it")


def sentence(error: Exception) -> str:
    """Return an expected error's message for users; "" for an unexpected error, or one that is reported elsewhere."""
    # Importing the module would import torch. If the error is one of its own, the module is already loaded.
    model = sys.modules.get("dg_lsp.engine.model.loading")
    if isinstance(error, EvalError) or (model is not None and isinstance(error, model.LoadError)):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"training needs {error.name}, which is not installed; install it with: {install_command('engine')}"
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        reason = (error.strerror or str(error)).lower()
        return f"{error.filename}: {reason}" if error.filename else reason
    return ""


def shape_of(run: Path, hidden: int, layers: int, feed_forward: int) -> Shape:
    """Return the shape given by the options and the run's tokenizer."""
    from tokenizers import Tokenizer

    from dg_lsp.train.shape import Shape

    if hidden < 64 or hidden % 64:
        raise EvalError(f"--hidden must be a multiple of 64, the width of one head, not {hidden}")
    size = Tokenizer.from_file(str(run / "tokenizer.json")).get_vocab_size()
    return Shape(hidden=hidden, layers=layers, heads=hidden // 64, feed_forward=feed_forward, vocabulary=size)
