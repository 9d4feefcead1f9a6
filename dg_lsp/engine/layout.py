"""How a request is written as tokens: what the encoder reads, and what stands on the canvas.

Two layouts, chosen by the checkpoint. *infill-trained*: the encoder reads `BOS <path> name <suf> S <pre> P`, suffix
first, so that typing only extends the cache (SPM order, arXiv 2207.14255); where the vocabulary has tokens for the kinds of
hole, that of the hole stands before `<pre>`. *instruct*: a chat turn that shows the
file with a hole marker, then the model's turn opened with an empty thought channel, a code fence and the last lines
before the hole, so that the canvas continues the code. Token ids are built here: a chat template trims the text it is
given. Knows nothing of tensors.

A canvas is `gap | fixed | gap | … | held head of the suffix`. The first gap may begin inside a token: its first
token then has to begin with the characters already typed (token healing, FIM-SE, arXiv 2405.17103).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dg_lsp.core import context, languages
from dg_lsp.core.values import Hole, InfillRequest
from dg_lsp.engine.profile import Profile
from dg_lsp.engine.vocabulary import Vocabulary

PREFIX_STEP = 128  # a long prefix is cut at multiples of so many tokens: the cache survives a keystroke
PREFIX_CHARS = 2048  # the same, before the text is made into tokens at all
INSTRUCT_LINES = 12  # how many lines before the hole the model's own turn repeats
HOLE_MARK = "<|fim_hole|>"


@dataclass(frozen=True, slots=True)
class Sheet:
    """A request as tokens: the encoder's `kv` ids, the fixed ids between gaps, and the held ids after the last.

    `heal` are bytes at the end of the prefix that were taken off the encoder's ids; the first gap starts with them.
    `delete` is the token that shrinks a gap, where the checkpoint has one.
    """

    kv: tuple[int, ...]
    between: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...]
    heal: bytes = b""
    heal_ids: tuple[int, ...] = ()
    delete: int | None = None
    end: int | None = None  # closes a causal draft


class Layout(Protocol):
    """Writes requests of up to `Profile.gaps_per_canvas` holes."""

    def lay_out(self, request: InfillRequest) -> Sheet:
        """Return the request as tokens."""


def for_profile(profile: Profile, vocabulary: Vocabulary) -> Layout:
    """Return the layout that the profile names; raise ValueError when the vocabulary lacks a token it needs."""
    return InfillTrained(profile, vocabulary) if profile.layout == "infill-trained" else Instruct(profile, vocabulary)


class InfillTrained:
    """Suffix first, then the kind of hole, prefix last, delete tokens; the layout of the embedded model and of fine-tunes.

    Has no place for related snippets: no such model has been trained with any.
    """

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        self.profile, self.vocabulary = profile, vocabulary
        names = ("<bos>", "<eos>", "<path>", "<suf>", "<pre>", "<eom>", "<delete>")
        self.bos, self.eos, self.path, self.suf, self.pre, self.eom, self.delete = _needed(vocabulary, names)
        # A checkpoint from before the kinds of hole had tokens has none of them.
        self.kinds = {kind: vocabulary.id(f"<{kind}>") for kind in ("span", "line", "lines", "block", "body")}

    def lay_out(self, request: InfillRequest) -> Sheet:
        """Return the request as tokens."""
        encode, profile = self.vocabulary.encode, self.profile
        suffix = _suffix_ids(self.vocabulary, request.suffix, profile.suffix_tokens + profile.held_tokens)
        if len(suffix) < profile.suffix_tokens + profile.held_tokens:
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
        return Sheet((*head, *prefix), between, tuple(suffix[: profile.held_tokens]), heal, heal_ids, self.delete, self.eom)


class Instruct:
    """A chat turn and an opened answer; the layout of `google/diffusiongemma-26B-A4B-it`."""

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        self.profile, self.vocabulary = profile, vocabulary
        names = ("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>")
        self.bos, self.eos, self.turn, self.end_turn, self.channel, self.end_channel = _needed(vocabulary, names)

    def lay_out(self, request: InfillRequest) -> Sheet:
        """Return the request as tokens."""
        encode, profile = self.vocabulary.encode, self.profile
        language = languages.get(request.language) if request.language else None
        fence = language.fence if language else ""
        prefix, heal, heal_ids = _healed(self.vocabulary, request.prefix, request.holes[0], profile.prefix_tokens)
        suffix = _suffix_ids(self.vocabulary, request.suffix, profile.suffix_tokens)
        lines = self.vocabulary.decode(prefix).split("\n")
        shown = self.vocabulary.decode(prefix) + heal.decode("utf-8", "ignore")
        window = shown + HOLE_MARK + "".join(text + HOLE_MARK for text in request.between) + self.vocabulary.decode(suffix)
        related = self._related(request, fence)
        wish = next((hole.instruction for hole in request.holes if hole.instruction), "")
        asked = (
            f"{related}Write the code that belongs at {HOLE_MARK} in {request.path or 'this file'}. "
            f"{f'It should do this: {wish}. ' if wish else ''}"
            f"Answer with the code around the hole, the hole filled, and nothing else.\n```{fence}\n{window}\n```"
        )
        opening = "\n".join(lines[-INSTRUCT_LINES:])
        kv = [
            *(self.bos, self.turn, *encode(f"user\n{asked}"), self.end_turn, *encode("\n")),
            *(self.turn, *encode("model\n"), self.channel, *encode("thought\n"), self.end_channel),
            *encode(f"```{fence}\n"),
            *encode(opening),
        ]
        held = suffix[: profile.held_tokens]
        closing = [*encode("\n```"), self.end_turn, self.eos]
        between = tuple(tuple(encode(text)) for text in request.between)
        return Sheet(tuple(kv), between, (*held, *closing), heal, heal_ids)

    def _related(self, request: InfillRequest, fence: str) -> str:
        """Return the snippets that fit the profile's budget, in their order."""
        shown, left = "", self.profile.related_tokens
        for item in request.related:
            text = f"File {item.path}:\n```{fence}\n{item.text}\n```\n"
            left -= len(self.vocabulary.encode(text))
            if left < 0:
                break
            shown += text
        return shown


def _kind(request: InfillRequest) -> str:
    """Return what the first hole of a request is: a function's body, an indented block, whole lines, a line's rest, a span."""
    hole = request.holes[0]
    if hole.kind == "body":
        return "body"
    if hole.block:
        return "lines" if request.prefix.endswith("\n") or not request.prefix else "block"
    behind = (*request.between, request.suffix)[0]
    return "line" if not behind or behind[0] in "\r\n" else "span"


def allowed_first(vocabulary: Vocabulary, heal: bytes) -> tuple[int, ...]:
    """Return the ids that a gap may start with when `heal` is already typed; empty when anything may."""
    return vocabulary.starting_with(heal) if heal else ()


def answer(vocabulary: Vocabulary, ids: Sequence[int], heal: bytes) -> str:
    """Return the text of a gap's ids without what was already typed."""
    raw = b"".join(vocabulary.pieces[token] for token in ids)
    return raw.removeprefix(heal).decode("utf-8", "ignore")


def _needed(vocabulary: Vocabulary, names: tuple[str, ...]) -> list[int]:
    found = [vocabulary.id(name) for name in names]
    if None in found:
        raise ValueError(f"the checkpoint's tokenizer has no token {names[found.index(None)]}, which its layout needs")
    return [token for token in found if token is not None]


def _suffix_ids(vocabulary: Vocabulary, suffix: str, limit: int) -> list[int]:
    # Tokens are at most a dozen characters long on average: there is no need to encode the rest of a long file.
    return vocabulary.encode(suffix[: limit * 16])[:limit]


def _healed(vocabulary: Vocabulary, prefix: str, hole: Hole, limit: int) -> tuple[list[int], bytes, tuple[int, ...]]:
    """Return the prefix's ids within the limit, and what was taken off its end for the canvas to write again."""
    begin = -(-max(len(prefix) - limit * 16, 0) // PREFIX_CHARS) * PREFIX_CHARS
    if begin:  # as below: a cut that does not move with every keystroke, at a line's start
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
    """Return whether no token could reach across the end: after a line end, and after an indent."""
    last = vocabulary.pieces[ids[-1]]
    before = vocabulary.pieces[ids[-2]] if len(ids) > 1 else b"\n"
    return last.endswith(b"\n") or (not last.strip() and before.endswith(b"\n"))


def expected_confidence(length: int) -> float:
    """Return how sure the first step is of a gap of that length on average (CAL, arXiv 2602.00476, fitted curve)."""
    return math.exp(-1.77 * length) + 0.56 * math.exp(-0.06 * length) + 0.24
