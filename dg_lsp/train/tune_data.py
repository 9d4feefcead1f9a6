"""Turn the code in a folder into windows to tune a model on, in the layout that the model reads.

Files that the workspace ignores, or that may hold secrets, are left out, and secrets in the others are masked. This
module knows files and the sampler, and nothing of models.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from dg_lsp.core import languages, secrets
from dg_lsp.engine.model.profile import Profile
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.infill.ignoring import Ignore
from dg_lsp.train import corpus, pack
from dg_lsp.train.objective import CanvasCut, Sampler
from dg_lsp.train.pack import Packed
from dg_lsp.train.windows import Window
from dg_lsp.wire import files

MAX_BYTES = 256_000
HELD_EVERY = 10  # one file in this many is held out
MIN_CUTS = 8
TRIES = 200
INSTRUCT_SHARE = 1 / 3  # of a window: the question contains the text, and the answer repeats its end


def texts(folder: Path, seed: int = 0) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the path and text of each file to train on, and of those held out, in the order of their paths.

    The seed chooses the held-out files. A folder with a single file is trained and measured on it. Text that looks like a
    secret is masked, because a model may repeat what it was trained on. Raises EvalError if there is no file.
    """
    if not folder.is_dir():
        raise EvalError(f"{folder} is not a folder")
    documents: list[tuple[str, str]] = []
    for path in _files(folder.resolve()):
        try:
            raw = files.read_regular(path, MAX_BYTES).decode().replace("\r\n", "\n").replace("\r", "\n")
        except (OSError, UnicodeDecodeError):
            continue
        text = corpus.clean(raw, python=path.suffix in {".py", ".pyi"})
        if text:
            documents.append((path.relative_to(folder.resolve()).as_posix(), secrets.mask(text)))
    if not documents:
        raise EvalError(f"{folder} has no source file in a language that dg-lsp knows, or all of them are ignored")
    n_held = max(1, len(documents) // HELD_EVERY)
    by_chance = sorted(documents, key=lambda document: hashlib.sha256(f"{seed}/{document[0]}".encode()).digest())
    held_names = {name for name, _ in by_chance[:n_held]}
    held = [document for document in documents if document[0] in held_names]
    return [document for document in documents if document[0] not in held_names] or held, held


def _files(folder: Path) -> Iterator[Path]:
    ignore = Ignore.for_root(folder, is_named=True)
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and ignore.allows(Path(here) / name))
        for name in sorted(names):
            path = Path(here) / name
            if languages.for_path(name) and not path.is_symlink() and ignore.allows(path):
                yield path


def packed(documents: list[tuple[str, str]], tokenizer: Tokenizer) -> Packed:
    """Return the documents' tokens and the holes cut from them; raise EvalError if there are too few holes."""
    made = pack.pack(documents, tokenizer)
    if len(made.cut_kinds) < MIN_CUTS:
        raise EvalError(f"only {len(made.cut_kinds)} holes can be cut from these files, and tuning needs at least {MIN_CUTS}")
    return made


def sampler(made: Packed, tokenizer: Tokenizer, profile: Profile, *, seed: int, canvas: int) -> Sampler:
    """Return a sampler for batches in the profile's layout."""
    if profile.layout == "infill-trained":
        return Sampler(made, tokenizer, seed=seed, canvas=canvas)
    return InstructSampler(made, tokenizer, seed=seed, canvas=canvas, instruct=1.0, profile=profile)


class InstructSampler(Sampler):
    """Draws every window in the instruct layout, with gaps exactly as long as their content."""

    def _drawn(self, length: int, per_row: int) -> tuple[Window, list[CanvasCut]]:
        for _ in range(TRIES):
            window = self.windows.draw(max(48, int(length * INSTRUCT_SHARE)))
            if (asked := self._asked(window, length)) is not None:
                return asked[0], [asked[1]] * per_row
        raise EvalError(f"no hole of these files fits in {length - 1} tokens; use longer windows (--length)")
