"""What the layouts of all models share: cut both sides to a number of tokens, and read finished tokens back as text.

Where a text is cut does not move with every keystroke, so that typing keeps the prefix cache valid. Knows tokens and text.
Knows nothing of any model's order of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dg_lsp.core import context
from dg_lsp.core.place import last_line
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.model.vocabulary import Vocabulary

PREFIX_STEP = 128  # a long prefix is truncated in steps of this many tokens, so that a keystroke keeps the cache valid
PREFIX_CHARS = 2048  # the same in characters, before the text is encoded
STRETCH = 2  # the held suffix may be this many times its limit to include a line with text


@dataclass(frozen=True, slots=True)
class Left:
    """The text before a hole, and the bytes and ids removed from its end, with which the answer begins (token healing)."""

    text: str
    heal: bytes
    heal_ids: tuple[int, ...]


def before_last_word(vocabulary: Vocabulary, request: InfillRequest, *, keeps_lines: bool = False) -> Left:
    """Return a request's prefix without its last pre-token, which the answer begins with, in whichever tokens.

    That is for models that have not seen prefixes that end inside a word. With `keeps_lines`, the answer begins after the last
    line end at the earliest.
    """
    text = context.with_instruction(request)
    cut = max(vocabulary.safe_end(text), len(text) - len(last_line(text)) if keeps_lines else 0)
    return Left(text[:cut], text[cut:].encode(), tuple(vocabulary.encode(text[cut:])))


def next_after_typed(vocabulary: Vocabulary, heal: bytes, ids: Sequence[int]) -> Sequence[int]:
    """Return the tokens that may follow `ids` in an answer that begins with the typed `heal`; empty means any.

    They do not add white space to white space that is already typed, such as an indentation.
    """
    n_written = len(vocabulary.bytes_of(ids)) if ids else 0
    if ids and n_written == len(heal) and heal[-1:] in (b" ", b"\t"):
        return vocabulary.without_blank_start
    rest = heal[n_written:]
    return vocabulary.after_typed(rest) if rest else ()


def answer(vocabulary: Vocabulary, ids: Sequence[int], heal: bytes) -> str:
    """Return the text of a gap's ids, without the bytes that were already typed."""
    raw = vocabulary.bytes_of(ids)
    return "" if heal.startswith(raw) else raw.removeprefix(heal).decode("utf-8", "ignore")


def required_ids(vocabulary: Vocabulary, names: tuple[str, ...]) -> list[int]:
    """Return the ids of tokens by name; raise ValueError with a sentence if the vocabulary lacks one."""
    ids = [vocabulary.id(name) for name in names]
    if None in ids:
        raise ValueError(f"the checkpoint's tokenizer has no token {names[ids.index(None)]}, which its layout needs")
    return [token for token in ids if token is not None]


def suffix_ids(vocabulary: Vocabulary, suffix: str, limit: int) -> tuple[list[int], bool]:
    """Return at most `limit` leading ids of the suffix, and whether that is the whole suffix."""
    # Tokens have at most about twelve characters on average, so the rest of a long file need not be encoded.
    ids = vocabulary.encode(suffix[: limit * 16])
    return ids[:limit], len(suffix) <= limit * 16 and len(ids) <= limit


def whole_lines(vocabulary: Vocabulary, suffix: Sequence[int], limit: int, *, is_end: bool) -> list[int]:
    """Return the whole lines at the start of the suffix that fit in `limit` tokens.

    With `is_end`, the end of `suffix` counts as a line end. If all these lines are empty, the first line with text is added,
    up to `STRETCH` times the limit. The result is empty if no line ends within the limit.
    """
    ends = [index + 1 for index, token in enumerate(suffix) if vocabulary.pieces[token].endswith(b"\n")]
    if is_end:
        ends.append(len(suffix))
    n_held = max((end for end in ends if end <= limit), default=0)
    if not vocabulary.decode(suffix[:n_held]).strip():
        longer = (end for end in ends if n_held < end <= STRETCH * limit)
        n_held = next((end for end in longer if vocabulary.decode(suffix[:end]).strip()), n_held)
    return list(suffix[:n_held])


def recent(text: str, limit: int) -> str:
    """Return the end of a text that may have `limit` tokens; its start does not move with every keystroke."""
    begin = -(-max(len(text) - limit * 16, 0) // PREFIX_CHARS) * PREFIX_CHARS
    if begin:  # start at a line's start
        begin = text.find("\n", begin - 1) + 1 or begin
    return text[begin:]


def truncated(vocabulary: Vocabulary, ids: list[int], limit: int) -> list[int]:
    """Return the last ids within the limit, from a line's start, whose place does not move with every keystroke."""
    if (over := len(ids) - limit) <= 0:
        return ids
    start = -(-over // PREFIX_STEP) * PREFIX_STEP
    newlines = set(vocabulary.with_newline)
    return ids[next((i + 1 for i in range(start, min(start + PREFIX_STEP, len(ids))) if ids[i] in newlines), start) :]
