"""What a model reads of other files, and the user's turn that asks a chat model for the missing code.

What was shown with a file stays, because a model reads it first: another paragraph there makes everything behind it useless
that a model, or a server with a prefix cache, has encoded. Local and remote chat models get the same turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from dg_lsp.core import languages
from dg_lsp.core.values import InfillRequest, Snippet

HOLE_MARK = "<|fim_hole|>"


def fence_name(request: InfillRequest) -> str:
    """Return the language name for a code fence, or "" if the request's language is unknown."""
    language = languages.get(request.language) if request.language else None
    return language.name if language else ""


def ask(request: InfillRequest, before: str, suffix: str, related: str, fence: str) -> str:
    """Return the user's turn. The parts that change least come first and the prefix last, so that typing appends.

    `before` and `suffix` are the text to show around the holes. The answer starts with the last lines of `before`.
    """
    instruction = next((hole.instruction for hole in request.holes if hole.instruction), "")
    after = "".join(text + HOLE_MARK for text in request.between) + suffix
    others = f" and at each {HOLE_MARK}" if request.between else ""
    introduction = "The code before the gap, up to the lines that your answer must start with:"
    return (
        f"{related}Code is missing from {request.path or 'a file'}{others}. "
        f"{f'It should do this: {instruction}. ' if instruction else ''}"
        "Reply with the last lines before the gap, the missing code, and the code that follows it. Write nothing else.\n"
        + (f"The code after the gap:\n{fenced(after, fence)}" if after else "The gap is at the end of the file.\n")
        + (f"{introduction}\n{fenced(before, fence)}" if before else "")
    ).removesuffix("\n")


def related_files(related: Sequence[Snippet], fence: str, room: int, size: Callable[[str], int]) -> str:
    """Return the best snippets to show that fit in `room`, as measured by `size`, sorted by path.

    Their ranking changes as the user types, and a different order would require encoding the whole prompt again.
    """
    chosen_files = list[tuple[str, str]]()
    for item in split(related)[0]:
        text = f"File {item.path}:\n{fenced(item.text, fence)}"
        room -= size(text)
        if room < 0:
            break
        chosen_files.append((item.path, text))
    return "".join(text for _, text in sorted(chosen_files, key=lambda pair: pair[0]))


def fenced(text: str, fence: str) -> str:
    line_end = "" if text.endswith("\n") else "\n"
    return f"```{fence}\n{text}{line_end}```\n"


STALE_SHARE = 0.5  # of the names in what would be shown now: so many are new
MOST_FILES = 64

_NAME = re.compile(r"[^\W\d]\w+")


def is_stale(shown: Sequence[Snippet], best: Sequence[Snippet]) -> bool:
    """Return whether what is shown lacks more than half of the names of what would be shown now."""
    names, known = ({name for each in part for name in _NAME.findall(each.text)} for part in (best, shown))
    return len(names - known) > STALE_SHARE * len(names)


def split(related: Sequence[Snippet]) -> tuple[tuple[Snippet, ...], tuple[Snippet, ...]]:
    """Return the snippets to show to a model, and those that are only copied from."""
    shown = tuple(snippet for snippet in related if not (snippet.for_copying or snippet.was_shown))
    return shown, tuple(snippet for snippet in related if snippet.for_copying)


def may_stay(shown: Sequence[Snippet], request: InfillRequest) -> bool:
    """Return whether the request allows what a model has read of other files.

    Its document may be one of the same name in another project, or the other files may be private now, changed or removed.
    """
    allowed = {(each.path, each.text) for each in request.related if not each.for_copying}
    return all((each.path, each.text) in allowed for each in shown)


class Heads:
    """What was shown last with each file."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[Snippet, ...]] = {}

    def kept(self, request: InfillRequest) -> InfillRequest:
        """Return the request with what was shown before with its file, unless that may not stay or is stale."""
        best, copied = split(request.related)
        before = self._shown.pop(request.path, best)
        shown = before if may_stay(before, request) and not is_stale(before, best) else best
        self._shown[request.path] = shown
        if len(self._shown) > MOST_FILES:
            del self._shown[next(iter(self._shown))]
        return replace(request, related=(*shown, *copied))
