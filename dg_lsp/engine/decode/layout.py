"""Lay a request out as tokens: the encoder's input, and the fixed tokens of the canvas.

The checkpoint's profile selects one of two layouts.

*infill-trained*: the encoder reads `BOS <path> name <suf> S <pre> P`. The suffix comes first, so that typing only extends
the cached tokens (SPM order, arXiv 2207.14255). If the vocabulary has tokens for the kinds of hole, the hole's kind comes
before `<pre>`.

*instruct*: the user's turn holds related files, the suffix and last the prefix. The model's turn starts with an empty
thought channel, a code fence and the last lines before the hole. So the canvas continues the code, and typing appends to
the encoded tokens. The turns are built from token ids, because a chat template would trim the text.

A canvas is `gap | fixed | gap | … | held head of the suffix`. The first gap may start inside a token. Its first token must
then start with the characters that are already typed (token healing, FIM-SE, arXiv 2405.17103). Knows nothing of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dg_lsp.core import context
from dg_lsp.core.values import Hole, InfillRequest
from dg_lsp.engine.decode import question
from dg_lsp.engine.model.profile import Profile
from dg_lsp.engine.model.vocabulary import Vocabulary

PREFIX_STEP = 128  # a long prefix is truncated in steps of this many tokens, so that a keystroke keeps the cache valid
PREFIX_CHARS = 2048  # the same in characters, before the text is encoded
REPEATED_LINES = 8  # the model's turn repeats this many lines of the user's, and adds at most as many new ones
STRETCH = 2  # the held suffix may be this many times its limit to include a line with text


@dataclass(frozen=True, slots=True)
class Sheet:
    """A request as tokens: the encoder's `kv` ids, the fixed ids between gaps, and the held ids after the last gap.

    `heal` are the prefix's last bytes, removed from the encoder's ids; the first gap starts with them. `heal_ids` are their
    ids. `delete` is the token that shrinks a gap, and `end` the token that ends a causal draft, if the checkpoint has them.
    `closing` are the tokens that end the model's turn. `tail` holds whole lines of the suffix if the profile says so. It
    ends with the tokens that end an answer only if the file ends there.
    """

    kv: tuple[int, ...]
    between: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...]
    heal: bytes = b""
    heal_ids: tuple[int, ...] = ()
    delete: int | None = None
    end: int | None = None
    closing: tuple[int, ...] = ()


class Layout(Protocol):
    """Lays out requests of up to `Profile.gaps_per_canvas` holes."""

    def lay_out(self, request: InfillRequest) -> Sheet:
        """Return the request as tokens."""


def for_profile(profile: Profile, vocabulary: Vocabulary) -> Layout:
    """Return the profile's layout; raise ValueError if the vocabulary lacks a token that it needs."""
    return InfillTrained(profile, vocabulary) if profile.layout == "infill-trained" else Instruct(profile, vocabulary)


class InfillTrained:
    """The layout of the embedded model and of fine-tunes: suffix, kind of hole, prefix, and delete tokens.

    It omits related snippets, because no such model was trained with any.
    """

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        self.profile, self.vocabulary = profile, vocabulary
        names = ("<bos>", "<eos>", "<path>", "<suf>", "<pre>", "<eom>", "<delete>")
        self.bos, self.eos, self.path, self.suf, self.pre, self.eom, self.delete = _required_ids(vocabulary, names)
        # Older checkpoints have no tokens for the kinds of hole.
        self.kinds = {kind: vocabulary.id(f"<{kind}>") for kind in ("span", "line", "lines", "block", "body")}

    def lay_out(self, request: InfillRequest) -> Sheet:
        """Return the request as tokens."""
        encode, profile = self.vocabulary.encode, self.profile
        n_read = profile.suffix_tokens + profile.held_tokens
        suffix, is_end = _suffix_ids(self.vocabulary, request.suffix, n_read)
        if is_end and len(suffix) < n_read:
            suffix.append(self.eos)
        name = encode("/".join(request.path.split("/")[-2:]))[:12] if request.path else []
        prefix, heal, heal_ids = _healed(
            self.vocabulary, request.prefix + context.instruction(request), request.holes[0], profile.prefix_tokens
        )
        kind = self.kinds[_kind(request)]
        head = [
            *(self.bos, *([self.path, *name] if name else [])),
            *(self.suf, *suffix[: profile.suffix_tokens]),
            *([kind] if kind is not None else []),
            self.pre,
        ]
        between = tuple(tuple(encode(text)) for text in request.between)
        tail = suffix[: profile.held_tokens]
        if profile.line_ends:
            tail = _whole_lines(self.vocabulary, suffix, profile.held_tokens, is_end=is_end)
        return Sheet((*head, *prefix), between, tuple(tail), heal, heal_ids, self.delete, self.eom)


class Instruct:
    """The layout of `google/diffusiongemma-26B-A4B-it`: a user's turn and the start of the model's turn."""

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        self.profile, self.vocabulary = profile, vocabulary
        names = ("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>")
        self.bos, self.eos, self.turn, self.end_turn, self.channel, self.end_channel = _required_ids(vocabulary, names)

    def lay_out(self, request: InfillRequest) -> Sheet:
        """Return the request as tokens."""
        encode, profile = self.vocabulary.encode, self.profile
        fence = question.fence_name(request)
        prefix, heal, heal_ids = _healed(self.vocabulary, request.prefix, request.holes[0], profile.prefix_tokens)
        suffix, is_end = _suffix_ids(self.vocabulary, request.suffix, profile.suffix_tokens)
        user_lines, opening = _split_prefix(self.vocabulary.decode(prefix))
        kv = [
            # These are the turns of `model.weights.chat_template.turns`.
            *(self.bos, self.turn, *encode(f"user\n{self._question(request, suffix, user_lines, fence)}")),
            *(self.end_turn, *encode("\n"), self.turn, *encode("model\n")),
            *(self.channel, *encode("thought\n"), self.end_channel, *encode(f"```{fence}\n")),
            *encode(opening),
        ]
        tail = _whole_lines(self.vocabulary, suffix, profile.held_tokens, is_end=is_end)
        if is_end and len(tail) == len(suffix):  # the suffix ends here, so the model's turn ends too
            closed = "```" if self.vocabulary.decode(tail).endswith("\n") else "\n```"
            tail = [*tail, *encode(closed), self.end_turn, self.eos]
        between = tuple(tuple(encode(text)) for text in request.between)
        return Sheet(tuple(kv), between, tuple(tail), heal, heal_ids, closing=(self.end_turn, self.eos))

    def _question(self, request: InfillRequest, suffix: Sequence[int], user_lines: str, fence: str) -> str:
        """Return the user's turn with the snippets that fit the profile's budget."""
        room = self.profile.related_tokens
        related = question.related_files(request.related, fence, room, lambda text: len(self.vocabulary.encode(text)))
        return question.ask(request, user_lines, self.vocabulary.decode(suffix), related, fence)


def _kind(request: InfillRequest) -> str:
    """Return the kind of the request's first hole: "body", "block", "lines", "line" (the rest of a line) or "span"."""
    hole = request.holes[0]
    if hole.kind == "body":
        return "body"
    if hole.block:
        return "lines" if request.prefix.endswith("\n") or not request.prefix else "block"
    behind = (*request.between, request.suffix)[0]
    return "line" if not behind or behind[0] in "\r\n" else "span"


def allowed_first(vocabulary: Vocabulary, heal: bytes) -> tuple[int, ...]:
    """Return the ids that a gap may start with if `heal` is already typed; empty means any."""
    return vocabulary.starting_with(heal) if heal else ()


def answer(vocabulary: Vocabulary, ids: Sequence[int], heal: bytes) -> str:
    """Return the text of a gap's ids, without the bytes that were already typed."""
    raw = b"".join(vocabulary.pieces[token] for token in ids)
    return raw.removeprefix(heal).decode("utf-8", "ignore")


def _required_ids(vocabulary: Vocabulary, names: tuple[str, ...]) -> list[int]:
    ids = [vocabulary.id(name) for name in names]
    if None in ids:
        raise ValueError(f"the checkpoint's tokenizer has no token {names[ids.index(None)]}, which its layout needs")
    return [token for token in ids if token is not None]


def _suffix_ids(vocabulary: Vocabulary, suffix: str, limit: int) -> tuple[list[int], bool]:
    """Return at most `limit` leading ids of the suffix, and whether that is the whole suffix."""
    # Tokens have at most about twelve characters on average, so the rest of a long file need not be encoded.
    ids = vocabulary.encode(suffix[: limit * 16])
    return ids[:limit], len(suffix) <= limit * 16 and len(ids) <= limit


def _whole_lines(vocabulary: Vocabulary, suffix: Sequence[int], limit: int, *, is_end: bool) -> list[int]:
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


def _split_prefix(prefix: str) -> tuple[str, str]:
    """Return the lines of the prefix for the user's turn, and the lines that start the model's turn.

    The user's turn grows by several lines at once, so that most keystrokes change only the end of the model's turn.
    """
    lines = prefix.split("\n")
    n_shown = (len(lines) - 1) // REPEATED_LINES * REPEATED_LINES
    user_lines = "".join(f"{line}\n" for line in lines[:n_shown])
    return user_lines, "\n".join(lines[max(0, n_shown - REPEATED_LINES) :])


def _healed(vocabulary: Vocabulary, prefix: str, hole: Hole, limit: int) -> tuple[list[int], bytes, tuple[int, ...]]:
    """Return the prefix's ids within the limit, and the bytes and ids removed from its end for the canvas to rewrite."""
    begin = -(-max(len(prefix) - limit * 16, 0) // PREFIX_CHARS) * PREFIX_CHARS
    if begin:  # start at a line's start, at an offset that does not move with every keystroke
        begin = prefix.find("\n", begin - 1) + 1 or begin
    ids = vocabulary.encode(prefix[begin:])
    heal: tuple[int, ...] = ()
    if ids and hole.kind in ("cursor", "selection", "error") and not _is_seam(vocabulary, ids):
        heal, ids = (ids[-1],), ids[:-1]
    if (over := len(ids) - limit) > 0:
        start = -(-over // PREFIX_STEP) * PREFIX_STEP
        newlines = set(vocabulary.with_newline)
        start = next((index + 1 for index in range(start, min(start + PREFIX_STEP, len(ids))) if ids[index] in newlines), start)
        ids = ids[start:]
    return ids, b"".join(vocabulary.pieces[token] for token in heal), heal


def _is_seam(vocabulary: Vocabulary, ids: list[int]) -> bool:
    """Return whether no token can span the end of the ids, as after a line end or an indent."""
    last = vocabulary.pieces[ids[-1]]
    before = vocabulary.pieces[ids[-2]] if len(ids) > 1 else b"\n"
    return last.endswith(b"\n") or (not last.strip() and before.endswith(b"\n"))


def expected_confidence(length: int) -> float:
    """Return the first step's average confidence for a gap of this length (CAL, arXiv 2602.00476, fitted curve)."""
    return math.exp(-1.77 * length) + 0.56 * math.exp(-0.06 * length) + 0.24
