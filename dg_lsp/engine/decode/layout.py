"""Lay a request out as tokens: the encoder's input, and the fixed tokens of the canvas.

The checkpoint's profile selects one of five layouts.

*infill-trained*: the encoder reads `BOS <path> name <suf> S <pre> P`. The suffix comes first, so that typing only extends
the cached tokens (SPM order, arXiv 2207.14255). If the vocabulary has tokens for the kinds of hole, the hole's kind comes
before `<pre>`.

*instruct*: the user's turn holds related files, the suffix and last the prefix. The model's turn starts with an empty
thought channel, a code fence and the last lines before the hole. So the canvas continues the code, and typing appends to
the encoded tokens. The turns are built from token ids, because a chat template would trim the text.

*left* and *fim*: what pretrained causal models read. *left* has the path and the prefix, *fim* also the suffix, between the
checkpoint's own fill-in-the-middle tokens. Such a model has not seen prefixes that end inside a word. So the prefix is cut
before its last pre-token, which the answer must begin with, in whichever tokens.

*masked*: what published models of masks read, in both directions and in every step: the prefix, the gap and the suffix. So
everything is on the canvas, and nothing is encoded before.

A canvas is `gap | fixed | gap | … | held head of the suffix`. The first gap may start inside a token. Its first token must
then start with the characters that are already typed (token healing, FIM-SE, arXiv 2405.17103). Knows nothing of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dg_lsp.core import calibration, context
from dg_lsp.core.values import Hole, InfillRequest
from dg_lsp.engine.decode import question
from dg_lsp.engine.model.profile import LayoutName, Profile
from dg_lsp.engine.model.vocabulary import Vocabulary

PREFIX_STEP = 128  # a long prefix is truncated in steps of this many tokens, so that a keystroke keeps the cache valid
PREFIX_CHARS = 2048  # the same in characters, before the text is encoded
REPEATED_LINES = 8  # the model's turn repeats this many lines of the user's, and adds at most as many new ones
FILE_TOKENS = ("<|file_sep|>", "<file_sep>")  # what pretrained models have between files
START_TOKENS = ("<|endoftext|>", "<s>", "<bos>")  # and before a text
READS_RIGHT: tuple[calibration.HolePosition, ...] = ("line", "block")  # where the canvas adapter adds right answers
STRETCH = 2  # the held suffix may be this many times its limit to include a line with text


@dataclass(frozen=True, slots=True)
class Sheet:
    """A request as tokens: the encoder's `kv` ids, the fixed ids between gaps, and the held ids after the last gap.

    Each attribute is one part of some layout; a layout leaves the parts empty that it does not have.

    `heal` are the prefix's last bytes, removed from the encoder's ids; the first gap starts with them: with one token, or if
    `heals_by_parts`, with any tokens. `heal_ids` are their ids. `delete` is the token that shrinks a gap, and `end` the token
    that ends a causal draft, if the checkpoint has them. `left` are the tokens before the gap if there are no `kv` ids, because
    all tokens are on the canvas. `right` are the first tokens of the suffix if a canvas adapter reads
    them before the model drafts an answer. If the suffix comes after the prefix in `kv`, the first `n_plain` ids of `kv` are
    those before it, and `follow` are the suffix's first ids. `closing` are the tokens that end the model's turn. `tail` holds
    whole lines of the suffix if the profile says so. It ends with the tokens that end an answer only if the file ends there.
    """

    kv: tuple[int, ...]
    between: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...]
    heal: bytes = b""
    heal_ids: tuple[int, ...] = ()
    delete: int | None = None
    end: int | None = None
    closing: tuple[int, ...] = ()
    heals_by_parts: bool = False
    left: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    n_plain: int = 0
    follow: tuple[int, ...] = ()


class Layout(Protocol):
    """Lays out requests of up to `Profile.gaps_per_canvas` holes."""

    def lay_out(self, request: InfillRequest) -> Sheet:
        """Return the request as tokens."""


def for_profile(profile: Profile, vocabulary: Vocabulary) -> Layout:
    """Return the profile's layout; raise ValueError if the vocabulary lacks a token that it needs."""
    return LAYOUTS[profile.layout](profile, vocabulary)


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
            self.vocabulary, context.with_instruction(request), request.holes[0], profile.prefix_tokens
        )
        hole, behind = request.holes[0], (*request.between, request.suffix)[0]
        if hole.kind == "body":
            name_of_kind = "body"
        elif hole.block:
            name_of_kind = "lines" if request.prefix.endswith("\n") or not request.prefix else "block"
        else:  # the rest of a line, or a part of it
            name_of_kind = "line" if not behind or behind[0] in "\r\n" else "span"
        kind = self.kinds[name_of_kind]
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
        # The user's turn grows by several lines at once, so that most keystrokes change only the end of the model's turn.
        lines = self.vocabulary.decode(prefix).split("\n")
        n_shown = (len(lines) - 1) // REPEATED_LINES * REPEATED_LINES
        before = "".join(f"{line}\n" for line in lines[:n_shown])
        related = question.related_files(request.related, fence, profile.related_tokens, lambda text: len(encode(text)))
        asked = question.ask(request, before, self.vocabulary.decode(suffix), related, fence)
        kv = [
            # These are the turns of `model.weights.chat_template.turns`.
            *(self.bos, self.turn, *encode(f"user\n{asked}")),
            *(self.end_turn, *encode("\n"), self.turn, *encode("model\n")),
            *(self.channel, *encode("thought\n"), self.end_channel, *encode(f"```{fence}\n")),
            *encode("\n".join(lines[max(0, n_shown - REPEATED_LINES) :])),
        ]
        tail = _whole_lines(self.vocabulary, suffix, profile.held_tokens, is_end=is_end)
        if is_end and len(tail) == len(suffix):  # the suffix ends here, so the model's turn ends too
            closed = "```" if self.vocabulary.decode(tail).endswith("\n") else "\n```"
            tail = [*tail, *encode(closed), self.end_turn, self.eos]
        between = tuple(tuple(encode(text)) for text in request.between)
        return Sheet(tuple(kv), between, tuple(tail), heal, heal_ids, closing=(self.end_turn, self.eos))


class Left:
    """The layout of causal models that were not trained to fill in the middle: other files, the path and the prefix.

    The suffix is only held, and read by the pass that scores the answers. A canvas adapter reads it before it writes an answer,
    and ends that with the token that starts a text.
    """

    end: int | None = None  # no token ends an answer

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        self.profile, self.vocabulary = profile, vocabulary
        self.start, self.file = vocabulary.first_known(START_TOKENS), vocabulary.first_known(FILE_TOKENS)

    def lay_out(self, request: InfillRequest) -> Sheet:
        """Return the request as tokens."""
        prefix, heal, heal_ids = self._prefix(request)
        between = tuple(tuple(self.vocabulary.encode(text)) for text in request.between)
        suffix, is_end = _suffix_ids(self.vocabulary, request.suffix, self.profile.held_tokens * STRETCH)
        tail = _whole_lines(self.vocabulary, suffix, self.profile.held_tokens, is_end=is_end)
        if not request.holes[0].block and not tail:  # a long line: the hole's own rest decides where the answer ends
            tail = suffix[: self.profile.held_tokens]
        # What the canvas adapter reads: nothing without one or without a suffix, or where it adds nothing.
        n_right, hole = self.profile.right_tokens if self.start is not None else 0, request.holes[0]
        is_one_line = len(request.holes) == 1 and hole.kind not in ("body", "marker")
        adds = n_right and is_one_line and calibration.position(request) in READS_RIGHT
        right = tuple(_suffix_ids(self.vocabulary, request.suffix, n_right)[0]) if adds else ()
        end, read = self.start if right else self.end, self._read(request, prefix)
        return Sheet(read, between, tuple(tail), heal, heal_ids, end=end, heals_by_parts=True, right=right)

    def _read(self, request: InfillRequest, prefix: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that the model reads before it writes the answer."""
        return (*self._head(request), *prefix)

    def _prefix(self, request: InfillRequest, *, keeps_lines: bool = False) -> tuple[list[int], bytes, tuple[int, ...]]:
        """Return the prefix's ids, and the bytes and ids of its last pre-token, which the answer begins with.

        With `keeps_lines`, the answer begins after the last line end at the earliest.
        """
        text = context.with_instruction(request)
        cut = max(self.vocabulary.safe_end(text), text.rfind("\n") + 1 if keeps_lines else 0)
        heal, limit = text[cut:], self.profile.prefix_tokens
        ids = _truncated(self.vocabulary, self.vocabulary.encode(_recent(text[:cut], limit)), limit)
        return ids, heal.encode(), tuple(self.vocabulary.encode(heal))

    def _head(self, request: InfillRequest) -> list[int]:
        """Return the tokens before the prefix: other files and the path, as such models have seen repositories."""
        encode, files = self.vocabulary.encode, list[int]()
        if self.file is not None:
            room = self.profile.related_tokens
            for snippet in request.related:
                own = [self.file, *encode(f"{snippet.path}\n{snippet.text.rstrip()}\n")]
                if not snippet.for_copying and len(own) <= room:
                    room, files = room - len(own), [*files, *own]
            if request.path:
                files = [*files, self.file, *encode(f"{request.path}\n")]
        return files if files or self.start is None else [self.start]


class Fim(Left):
    """The layout of causal models with fill-in-the-middle tokens: prefix, suffix, middle.

    The suffix is encoded again after each keystroke, so it is short, and ends with a paragraph.
    """

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        super().__init__(profile, vocabulary)
        if vocabulary.fim_tokens is None:
            raise ValueError("the checkpoint's tokenizer lacks a fill-in-the-middle token, which its layout needs")
        self.before, self.after, self.middle, self.end = vocabulary.fim_tokens

    def lay_out(self, request: InfillRequest) -> Sheet:
        """Return the request as tokens."""
        sheet = super().lay_out(request)
        follow, _ = _suffix_ids(self.vocabulary, request.suffix, self.profile.follow_tokens)
        return replace(sheet, n_plain=sheet.kv.index(self.after), follow=tuple(follow))

    def _read(self, request: InfillRequest, prefix: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that the model reads before it writes the answer."""
        suffix, is_end = _suffix_ids(self.vocabulary, request.suffix, self.profile.suffix_tokens)
        whole = suffix if is_end else _paragraphs(self.vocabulary, suffix)
        head = [] if (head := self._head(request)) == [self.start] else head
        return (*head, self.before, *prefix, self.after, *whole, self.middle)


class Masked(Left):
    """The layout of published models of masks: the whole text, with the token before a text and the one after it."""

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        assert profile.unmasking is not None
        self.profile, self.vocabulary, own = profile, vocabulary, profile.unmasking
        names = (own.start, own.delete, own.mask, own.expand)
        self.before, self.after, *_ = (_required_ids(vocabulary, (name,) if name else ()) for name in names)

    def lay_out(self, request: InfillRequest) -> Sheet:
        """Return the request as tokens."""
        # These models learnt to fill whole lines after a line end, and their indentation is part of that.
        prefix, heal, heal_ids = self._prefix(request, keeps_lines=True)
        suffix, is_end = _suffix_ids(self.vocabulary, request.suffix, self.profile.suffix_tokens)
        if not is_end:
            suffix = _whole_lines(self.vocabulary, suffix, len(suffix), is_end=False) or suffix
        tail, delete = (*suffix, *(self.after if is_end else ())), next(iter(self.after), None)
        return Sheet((), (), tail, heal, heal_ids, delete, heals_by_parts=True, left=(*self.before, *prefix))


LAYOUTS: dict[LayoutName, Callable[[Profile, Vocabulary], Layout]] = {
    "infill-trained": InfillTrained,
    "instruct": Instruct,
    "left": Left,
    "fim": Fim,
    "masked": Masked,
}


def allowed(vocabulary: Vocabulary, heal: bytes, *, by_parts: bool) -> tuple[int, ...]:
    """Return the ids that may come next if a gap must still write `heal`; empty means any.

    With `by_parts`, they do not add white space to white space that is already typed, such as an indentation.
    """
    if not heal:
        return ()
    if not by_parts:
        return vocabulary.starting_with(heal)
    agreeing = vocabulary.agreeing_with(heal)
    if heal[-1:] not in (b" ", b"\t"):
        return agreeing
    pieces = vocabulary.pieces
    return tuple(token for token in agreeing if len(pieces[token]) <= len(heal) or pieces[token][len(heal) :].strip())


def answer(vocabulary: Vocabulary, ids: Sequence[int], heal: bytes) -> str:
    """Return the text of a gap's ids, without the bytes that were already typed."""
    raw = vocabulary.bytes_of(ids)
    return "" if heal.startswith(raw) else raw.removeprefix(heal).decode("utf-8", "ignore")


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


def _paragraphs(vocabulary: Vocabulary, suffix: list[int]) -> list[int]:
    """Return the suffix up to its last blank line after some text; without one, up to its last line end.

    A model that reads a suffix which is cut within a block writes the rest of that block instead of an answer.
    """
    lines = vocabulary.decode(suffix).split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), len(lines))
    blank = max((index for index in range(first, len(lines) - 1) if not lines[index].strip()), default=0)
    n_whole = blank or len(lines) - 1
    return vocabulary.encode("\n".join([*lines[:n_whole], ""])) if n_whole > first else suffix


def _healed(vocabulary: Vocabulary, prefix: str, hole: Hole, limit: int) -> tuple[list[int], bytes, tuple[int, ...]]:
    """Return the prefix's ids within the limit, and the bytes and ids removed from its end for the canvas to rewrite."""
    ids, pieces = vocabulary.encode(_recent(prefix, limit)), vocabulary.pieces
    heal: tuple[int, ...] = ()
    if ids and hole.kind in ("cursor", "selection", "error"):
        last, before = pieces[ids[-1]], pieces[ids[-2]] if len(ids) > 1 else b"\n"
        # No token can span the end of the ids after a line end or an indent.
        if not last.endswith(b"\n") and (last.strip() or not before.endswith(b"\n")):
            heal, ids = (ids[-1],), ids[:-1]
    return _truncated(vocabulary, ids, limit), vocabulary.bytes_of(heal), heal


def _recent(text: str, limit: int) -> str:
    """Return the end of a text that may have `limit` tokens; its start does not move with every keystroke."""
    begin = -(-max(len(text) - limit * 16, 0) // PREFIX_CHARS) * PREFIX_CHARS
    if begin:  # start at a line's start
        begin = text.find("\n", begin - 1) + 1 or begin
    return text[begin:]


def _truncated(vocabulary: Vocabulary, ids: list[int], limit: int) -> list[int]:
    """Return the last ids within the limit, from a line's start, whose place does not move with every keystroke."""
    if (over := len(ids) - limit) <= 0:
        return ids
    start = -(-over // PREFIX_STEP) * PREFIX_STEP
    newlines = set(vocabulary.with_newline)
    return ids[next((i + 1 for i in range(start, min(start + PREFIX_STEP, len(ids))) if ids[i] in newlines), start) :]
