"""How much of each language a model is trained on.

Knows the names of languages. Knows nothing of files or tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from dg_lsp.core import languages

# Most users write Python or TypeScript; the rest shares what is left, each as much as the corpus has of it.
SHARES = {"python": 0.75, "typescript": 0.075, "javascript": 0.045}
OTHERS = 0.13


def shares(sizes: dict[str, int]) -> dict[str, float]:
    """Return the share of each language in `sizes` (tokens or characters by language); they add up to 1.

    What a missing language would have had goes to the others in proportion.
    """
    named = {name: SHARES[name] for name in sizes if name in SHARES and sizes[name]}
    others = {name: size for name, size in sizes.items() if name not in SHARES and size}
    total = sum(others.values())
    stated = named | {name: OTHERS * size / total for name, size in others.items()}
    whole = sum(stated.values())
    return {name: share / whole for name, share in stated.items()}


def language_of(path: str) -> str:
    """Return the name of a file's language, or "" where its name does not tell."""
    language = languages.for_path(path)
    return language.name if language else ""


def sample(texts: Iterable[tuple[str, str]], n_chars: int, seed: int = 0) -> list[str]:
    """Return texts of about `n_chars` characters in all, mixed by language; each text once."""
    by_language: dict[str, list[str]] = {}
    for path, text in texts:
        by_language.setdefault(language_of(path), []).append(text)
    sizes = {name: sum(map(len, group)) for name, group in by_language.items()}
    draw, chosen = random.Random(seed), []
    for name, share in shares(sizes).items():
        group, left = by_language[name], share * n_chars
        draw.shuffle(group)
        for text in group:
            if left <= 0:
                break
            chosen.append(text)
            left -= len(text)
    draw.shuffle(chosen)
    return chosen
