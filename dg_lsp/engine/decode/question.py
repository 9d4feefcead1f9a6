"""Build the user's turn that asks a chat model for the missing code, the same for local and remote models.

Pure. Knows text. Knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dg_lsp.core import languages
from dg_lsp.core.values import InfillRequest, Snippet

HOLE_MARK = "<|fim_hole|>"


def fence_name(request: InfillRequest) -> str:
    """Return the language name for a code fence, or "" if the request's language is unknown."""
    language = languages.get(request.language) if request.language else None
    return language.fence if language else ""


def ask(request: InfillRequest, before: str, suffix: str, related: str, fence: str) -> str:
    """Return the user's turn. The parts that change least come first and the prefix last, so that typing appends.

    `before` and `suffix` are the text to show around the holes. The answer starts with the last lines of `before`.
    """
    wish = next((hole.instruction for hole in request.holes if hole.instruction), "")
    behind = "".join(text + HOLE_MARK for text in request.between) + suffix
    others = f" and at each {HOLE_MARK}" if request.between else ""
    introduction = "This stands before it, down to the lines that the answer begins with:"
    return (
        f"{related}Code is missing from {request.path or 'a file'}{others}. "
        f"{f'It should do this: {wish}. ' if wish else ''}"
        "Answer with the lines right before it, the missing code, what follows it, and nothing else.\n"
        + (f"This follows it:\n{fenced(behind, fence)}" if behind else "The file ends behind it.\n")
        + (f"{introduction}\n{fenced(before, fence)}" if before else "")
    ).removesuffix("\n")


def related_files(related: Sequence[Snippet], fence: str, room: int, size: Callable[[str], int]) -> str:
    """Return the best snippets to show that fit in `room`, as measured by `size`, sorted by path.

    Their ranking changes as the user types, and a different order would require encoding the whole prompt again.
    """
    chosen_files = list[tuple[str, str]]()
    for item in related:
        if item.for_copying:
            continue
        text = f"File {item.path}:\n{fenced(item.text, fence)}"
        room -= size(text)
        if room < 0:
            break
        chosen_files.append((item.path, text))
    return "".join(text for _, text in sorted(chosen_files, key=lambda pair: pair[0]))


def fenced(text: str, fence: str) -> str:
    """Return a text as a code block."""
    line_end = "" if text.endswith("\n") else "\n"
    return f"```{fence}\n{text}{line_end}```\n"
