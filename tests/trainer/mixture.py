"""Choose the fraction of each language in the training data.

This module knows the names of languages, and nothing of files or tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from dg_lsp.core import languages

# Most users write Python or TypeScript. The other languages divide the rest in proportion to their size in the corpus.
SHARES = {"python": 0.75, "typescript": 0.075, "javascript": 0.045}
OTHERS = 0.13


def shares(sizes: dict[str, int]) -> dict[str, float]:
    """Return the fraction of each language in `sizes` (tokens or characters by language); the fractions add up to 1.

    The fraction of a missing language goes to the others in proportion.
    """
    main_shares = {name: SHARES[name] for name in sizes if name in SHARES and sizes[name]}
    others = {name: size for name, size in sizes.items() if name not in SHARES and size}
    total = sum(others.values())
    all_shares = main_shares | {name: OTHERS * size / total for name, size in others.items()}
    whole = sum(all_shares.values())
    return {name: share / whole for name, share in all_shares.items()}


def language_of(path: str) -> str:
    """Return the name of a file's language, or "" if its path does not determine it."""
    language = languages.for_path(path)
    return language.name if language else ""


def sample(texts: Iterable[tuple[str, str]], n_chars: int, seed: int = 0) -> list[str]:
    """Return texts with about `n_chars` characters in total, mixed by language, without duplicates."""
    by_language: dict[str, list[str]] = {}
    for path, text in texts:
        by_language.setdefault(language_of(path), []).append(text)
    sizes = {name: sum(map(len, group)) for name, group in by_language.items()}
    draw, texts_drawn = random.Random(seed), []
    for name, share in shares(sizes).items():
        group, left = by_language[name], share * n_chars
        draw.shuffle(group)
        for text in group:
            if left <= 0:
                break
            texts_drawn.append(text)
            left -= len(text)
    draw.shuffle(texts_drawn)
    return texts_drawn
