"""`dg-lsp train`: each stage alone, and again.

Knows the order of the stages and where each leaves its files. Knows nothing of what they do.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dg_lsp import ENGINE_INSTALL
from dg_lsp.evaluate.tasks import EvalError

if TYPE_CHECKING:
    from dg_lsp.train.shape import Shape

# Which stage leaves what the later ones need.
MADE_BY = {
    "corpus/train.jsonl": "corpus",
    "corpus/valid.jsonl": "corpus",
    "corpus/sources.json": "corpus",
    "tokenizer.json": "tokenizer",
    "train.npz": "pack",
    "valid.npz": "pack",
    "state.pt": "run",
    "curve.jsonl": "run",
}


class Plain(typer.core.TyperGroup):
    """Commands whose foreseeable errors are one sentence."""

    def invoke(self, ctx: Any) -> Any:  # click's own context, or the one that a newer typer brings
        """Run the command that was named; end with 2 and a sentence when it can't be done as asked."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if not (text := sentence(error)):
                raise
            typer.echo(f"dg-lsp train: {text}", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=Plain,
    no_args_is_help=True,
    help="Train the embedded model: corpus, tokenizer, pack, (start,) run, branch, export, card.",
)

Folder = Annotated[Path, typer.Option("--run", help="The folder of this training run.")]
Hidden = Annotated[int, typer.Option(help="Width of the model, a multiple of 64.")]
Layers = Annotated[int, typer.Option(help="Number of layers.", min=1)]
Width = Annotated[int, typer.Option(help="Width of the feed-forward layers.", min=1)]


@app.command()
def corpus(
    run: Folder,
    site: Annotated[
        list[Path] | None, typer.Option(help="A site-packages folder; this Python's own where none is given.")
    ] = None,
    sources: Annotated[
        Path | None, typer.Option(help="A folder of source files in any language, to use instead of installed packages.")
    ] = None,
) -> None:
    """Gather permissively licensed sources of installed packages and of the standard library, or a folder of sources."""
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
    vocabulary: Annotated[int, typer.Option(help="How many tokens.")] = 8192,
    chars: Annotated[int, typer.Option(help="How many characters of the corpus to learn merges from.")] = 40_000_000,
) -> None:
    """Train the byte-level BPE on a sample of the corpus, its languages mixed as in training."""
    need(run, "corpus/train.jsonl")
    from dg_lsp.train import corpus as source
    from dg_lsp.train import mixture
    from dg_lsp.train import tokenizer as stage

    made = stage.train(mixture.sample(source.load(run / "corpus" / "train.jsonl"), chars), vocabulary=vocabulary)
    made.save(str(run / "tokenizer.json"))
    typer.echo(f"{made.get_vocab_size()} tokens")


@app.command()
def pack(run: Folder, processes: Annotated[int, typer.Option(help="How many processes look for holes.", min=1)] = 2) -> None:
    """Turn the corpus into compressed token ids and the holes cut from it: all that a training machine needs."""
    need(run, "corpus/train.jsonl", "corpus/valid.jsonl", "tokenizer.json")
    from tokenizers import Tokenizer

    from dg_lsp.train import corpus as source
    from dg_lsp.train import pack as stage

    made = Tokenizer.from_file(str(run / "tokenizer.json"))
    for use in ("train", "valid"):
        packed = stage.pack(source.load(run / "corpus" / f"{use}.jsonl"), made, processes=processes)
        stage.save(packed, run / f"{use}.npz")
        size = (run / f"{use}.npz").stat().st_size
        typer.echo(f"{use}: {len(packed.ids) / 1e6:.2f} M tokens, {len(packed.cut_kinds)} holes, {size / 1024**2:.1f} MiB")


@app.command()
def start(
    run: Folder,
    init: Annotated[str, typer.Option(help="The checkpoint whose weights to begin with: a folder, a hub id, or embedded.")],
    hidden: Hidden = 256,
    layers: Layers = 6,
    feed_forward: Width = 768,
) -> None:
    """Begin a run with the weights of an existing checkpoint; its vocabulary may differ, and it may have fewer layers."""
    need(run, "tokenizer.json")
    from dg_lsp.train import warm

    warm.start(run, init, shape_of(run, hidden, layers, feed_forward))
    typer.echo(f"{run / 'state.pt'}: begins as {init}")


@app.command()
def branch(
    run: Folder, out: Annotated[Path, typer.Option(help="The folder of the new run, which continues this one's state.")]
) -> None:
    """Copy a run, so that a milestone can be cooled down and exported while the run itself goes on."""
    need(run, "tokenizer.json", "train.npz", "valid.npz", "state.pt", "curve.jsonl")
    out.mkdir(parents=True)
    for name in ("state.pt", "curve.jsonl", "plan.json", "tokenizer.json"):
        if (run / name).exists():
            shutil.copyfile(run / name, out / name)
    for name in ("train.npz", "valid.npz", "corpus"):  # never written again: no need for a second copy
        (out / name).symlink_to((run / name).resolve())
    typer.echo(f"{out}: continues {run}")


@app.command(name="run")
def train(
    run: Folder,
    hidden: Hidden = 256,
    layers: Layers = 6,
    feed_forward: Width = 768,
    causal_tokens: Annotated[float, typer.Option(help="Millions of tokens of the causal stage, over all legs.")] = 100.0,
    mixed_tokens: Annotated[float, typer.Option(help="Millions of tokens of the mixed stage, over all legs.")] = 25.0,
    cool_tokens: Annotated[float, typer.Option(help="Over how many millions of tokens the rate falls at the end.")] = 8.0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Threads on a CPU; 0 takes one, and a second while a core is idle.")] = 1,
    batch: Annotated[int, typer.Option(help="How many times the CPU's batch a step takes; a GPU wants 32 or more.")] = 1,
    compiled: Annotated[bool, typer.Option(help="Compile the model: a third faster on a CPU, after some minutes.")] = False,
    seed: int = 0,
) -> None:
    """Train, resuming where the last leg stopped; stop it at any time."""
    need(run, "tokenizer.json", "train.npz", "valid.npz")
    from dg_lsp.train import curve, loop
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
    lines = curve.read(run / "curve.jsonl")
    (run / "curve.md").write_text(curve.table(lines), encoding="utf-8")
    (run / "curve.svg").write_text(curve.picture(lines), encoding="utf-8")


@app.command()
def export(
    run: Folder,
    out: Annotated[Path, typer.Option(help="The folder of the checkpoint to write.")],
    hidden: Hidden = 256,
    layers: Layers = 6,
    feed_forward: Width = 768,
) -> None:
    """Write the newest state as a checkpoint that transformers loads."""
    need(run, "tokenizer.json", "state.pt")
    from dg_lsp.train import export as stage

    stage.export(run, out, shape_of(run, hidden, layers, feed_forward))
    size = sum(path.stat().st_size for path in out.iterdir())
    typer.echo(f"{out}: {size / 1024**2:.1f} MiB")


@app.command()
def card(
    run: Folder,
    model: Annotated[Path, typer.Option(help="The checkpoint that the card describes; its README.md is written.")],
    results: Annotated[Path, typer.Option(help="A Markdown table, as `dg-lsp eval --markdown` prints it.")],
    ablation: Annotated[Path, typer.Option(help="A Markdown table, as `dg-lsp eval --ablation` prints it.")],
) -> None:
    """Write the model card from what the other commands measured."""
    need(run, "corpus/sources.json", "curve.jsonl")
    from dg_lsp.train import card as stage

    text = stage.write(run, model, results=results.read_text("utf-8"), ablation=ablation.read_text("utf-8"))
    (model / "README.md").write_text(text, encoding="utf-8")
    typer.echo(f"{model / 'README.md'}: {len(text.splitlines())} lines")


def need(run: Path, *files: str) -> None:
    """Raise EvalError when the run has no folder, or lacks a file that an earlier stage writes."""
    if not run.is_dir():
        raise EvalError(f"there is no folder {run}; `dg-lsp train corpus --run {run}` makes it")
    if absent := next((file for file in files if not (run / file).exists()), ""):
        raise EvalError(f"{run} has no {absent}; `dg-lsp train {MADE_BY[absent]} --run {run}` writes it")


def sentence(error: Exception) -> str:
    """Return what an error says to users; "" for one that nobody foresaw, or that is said elsewhere."""
    # Its module brings torch, and is there already if the error is one of its own.
    model = sys.modules.get("dg_lsp.engine.model")
    if isinstance(error, EvalError) or (model is not None and isinstance(error, model.LoadError)):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"training needs {error.name}, which is not installed; {ENGINE_INSTALL} brings it"
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        reason = (error.strerror or str(error)).lower()
        return f"{error.filename}: {reason}" if error.filename else reason
    return ""


def shape_of(run: Path, hidden: int, layers: int, feed_forward: int) -> Shape:
    """Return the shape that the options and the run's tokenizer give."""
    from tokenizers import Tokenizer

    from dg_lsp.train.shape import Shape

    if hidden < 64 or hidden % 64:
        raise EvalError(f"--hidden takes multiples of 64, the width of one head, not {hidden}")
    size = Tokenizer.from_file(str(run / "tokenizer.json")).get_vocab_size()
    return Shape(hidden=hidden, layers=layers, heads=hidden // 64, feed_forward=feed_forward, vocabulary=size)
