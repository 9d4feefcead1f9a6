"""Any model behind OpenAI's chat endpoint: it gets the instruct layout's prompt, and the missing code is cut from its answer.

The answer is streamed, so that partial text is available at a deadline and reading can stop where the suffix begins.
Servers accept different fields. If one refuses a field, the request is repeated without it, and so are later requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dg_lsp.core import extent, place
from dg_lsp.core.calibration import Evidence
from dg_lsp.core.extent import SOLID, Bounds, before_long_suffix, before_suffix
from dg_lsp.core.place import first_line, last_line
from dg_lsp.core.values import InfillRequest, n_common
from dg_lsp.engine.backends import fim
from dg_lsp.engine.backends.fim import MAX_ANSWERS, SAMPLING_TEMPERATURE, RemoteAnswer, window
from dg_lsp.engine.backends.http_client import Call, RemoteError, ServerClient, server_at
from dg_lsp.engine.backends.remote import Backend, RemoteFiller, Replies, choices, compared, to_probability
from dg_lsp.engine.common import question
from dg_lsp.wire.config import Config
from dg_lsp.wire.messages import Fields, WireError

ENDING = "/chat/completions"
# Includes the lines around the missing code, which the answer repeats.
LINE_TOKENS = 512
BLOCK_TOKENS = 1536
THOUGHT_TOKENS = 8192  # for models that think first: their limit includes the thoughts
WINDOW_CHARS = 24_000
RELATED_CHARS = 6_000
MAX_CONTENT_CHARS = 64_000
MAX_LOGPROBS = 65_536
SHOWN_MODELS = 5
UNFINISHED = "unfinished"  # our own finish reason for an answer that is incomplete so far

OPTIONAL = ("logprobs", "temperature", "stream")
LIMIT, THINKING_LIMIT = "max_tokens", "max_completion_tokens"
REFUSING = (400, 422)
_UNSUPPORTED = re.compile(r"unsupported|not supported|instead|unknown|unrecogni[sz]ed|not permitted|extra", re.IGNORECASE)


def connect(url: str, model: str, configured: Config, environ: Mapping[str, str]) -> RemoteFiller:
    """Return a filler for the chat server at `url`; raise RemoteError if `model` is "" and the server does not serve just one.

    If a model is named, nothing is sent yet.
    """
    base = url.removesuffix(ENDING)
    client = ServerClient(server_at(base, configured, fim.usual_key(base, environ)))
    try:
        path = ENDING if url.endswith(ENDING) else f"/v1{ENDING}"
        return RemoteFiller(Chat(model or _only_model(client), path), client, configured.settings.local_only)
    except BaseException:
        client.close()
        raise


def _only_model(client: ServerClient) -> str:
    """Return the name of the served model; raise RemoteError unless there is exactly one."""
    host = client.host
    try:
        names = [card.text("id") for card in client.ask(Call("/v1/models")).objects("data")]
    except WireError as error:
        raise RemoteError(f"{host} did not list its models: {error}; name one, as in chat:URL#MODEL") from error
    if len(names) == 1:
        return names[0]
    others = ", …" if len(names) > SHOWN_MODELS else ""
    shown = f": {', '.join(names[:SHOWN_MODELS])}{others}" if names else ""
    raise RemoteError(f"{host} serves {len(names)} models; name one at the end, as in chat:URL#MODEL{shown}")


class Chat(Backend):
    """The backend for a chat server."""

    def __init__(self, model: str, path: str) -> None:
        self.model, self.path = model, path
        self._refused: frozenset[str] = frozenset()

    def about(self) -> Mapping[str, object]:
        return {"remote": {"model": self.model, "dialect": "chat"}}

    def calls(self, request: InfillRequest) -> Sequence[Call]:
        """Return one call for each answer. The first is greedy, the others are sampled."""
        [hole] = request.holes
        prefix, suffix = window(request.prefix, request.suffix, WINDOW_CHARS)
        fence = question.fence_name(request)
        related = question.related_files(request.related, fence, RELATED_CHARS, len)
        content = question.ask(request, prefix, suffix, related, fence)
        bounds = extent.of(hole, place.between(prefix, suffix))
        calls = []
        for number in range(min(request.budget.candidates, MAX_ANSWERS)):
            body: dict[str, object] = {
                "model": self.model,
                "messages": [{"role": "user", "content": content}],
                LIMIT: BLOCK_TOKENS if bounds.takes_lines else LINE_TOKENS,
                "temperature": SAMPLING_TEMPERATURE if number else 0.0,
                "logprobs": True,
                "stream": True,
            }
            stream = AnswerStream(bounds, body, self._refused)
            calls.append(Call(self.path, stream.body(), stream, stream))
        return calls

    def evidence(self, request: InfillRequest, replies: Replies) -> tuple[Evidence, ...]:
        items: list[Evidence] = []
        for call, fields in replies:
            assert isinstance(call.about, AnswerStream)
            # The server accepted this request, so the fields left out of it are the ones that it refuses.
            self._refused |= call.about.refused
            items += _answers(fields, call.about.bounds)
        return compared(items, request)


@dataclass(slots=True)
class AnswerStream:
    """One streamed answer: the fields that the server has refused, and the parts received so far."""

    bounds: Bounds
    full_body: Mapping[str, object]
    refused: frozenset[str] = frozenset()
    _contents: list[str] = field(default_factory=list)
    _logprobs: list[object] = field(default_factory=list)
    _n_chars: int = 0
    _finish: str = ""
    _usage: Mapping[str, object] = field(default_factory=dict)
    _has_parts: bool = False

    def body(self) -> dict[str, object]:
        """Return the body to send, without the refused fields."""
        body = {name: value for name, value in self.full_body.items() if name not in self.refused}
        return {**body, THINKING_LIMIT: THOUGHT_TOKENS} if LIMIT in self.refused else body

    def body_after(self, status: int, message: str) -> dict[str, object] | None:
        if status not in REFUSING or self._has_parts:
            return None
        optional = [name for name in OPTIONAL if name not in self.refused]
        new_refusals = {name for name in optional if re.search(rf"\b{name}\b", message)}
        is_unsupported = _UNSUPPORTED.search(message) is not None
        if not new_refusals and LIMIT not in self.refused and is_unsupported and re.search(rf"\b{LIMIT}\b", message):
            new_refusals = {LIMIT}
        # A refusal that names no field may be about any of them.
        if not new_refusals and (is_unsupported or not message):
            new_refusals = set(optional)
        if not new_refusals:
            return None
        self.refused |= new_refusals
        return self.body()

    def add(self, event: Fields) -> bool:
        self._has_parts = True
        if event.has("usage"):
            self._usage = event.inner("usage").values
        new = ""
        for choice in event.objects("choices", ())[:1]:
            new = _content(choice.inner("delta"))
            self._contents.append(new)
            self._n_chars += len(new)
            if isinstance(choice.values.get("logprobs"), dict):
                self._logprobs += choice.inner("logprobs").items("content", (), high=MAX_LOGPROBS)
            self._finish = choice.text("finish_reason", self._finish)
        if self._n_chars > MAX_CONTENT_CHARS or len(self._logprobs) > MAX_LOGPROBS:
            return True
        # Only a line end or a fence can end the missing code, so only then is the whole answer searched.
        return ("\n" in new or "`" in new) and locate("".join(self._contents), self.bounds, is_whole=False).is_closed

    def answer(self, *, is_whole: bool) -> Fields | None:
        if not self._has_parts:
            return None
        choice = {
            "message": {"content": "".join(self._contents)},
            "finish_reason": (self._finish or "stop") if is_whole else UNFINISHED,
            "logprobs": {"content": list(self._logprobs)},
        }
        return Fields({"choices": [choice], "usage": self._usage})


def _answers(fields: Fields, bounds: Bounds) -> list[Evidence]:
    items = []
    for choice in choices(fields):
        content = _content(choice.inner("message"))
        finish = choice.text("finish_reason", "")
        code = locate(content, bounds, is_whole=finish != UNFINISHED)
        chances = _chances(choice, content, code)
        is_cut = finish == "length" and not code.is_closed
        evidence = fim.to_evidence(RemoteAnswer(content[code.start : code.end], chances, is_cut), bounds)
        # Text that nothing marks as code may be a refusal or a question.
        items.append(evidence if code.is_marked else replace(evidence, doubted=True))
    return items


def _content(message: Fields) -> str:
    """Return a message's text, which may be a list of parts; "" if it has none."""
    if isinstance(message.values.get("content"), list):
        parts = message.objects("content")
        return "".join(part.text("text", "") for part in parts if part.text("type", "text") == "text")
    return message.text("content", "")


def _chances(choice: Fields, content: str, code: CodeSpan) -> tuple[float, ...]:
    """Return the probabilities of the tokens that overlap the missing code; () unless the server sends all of them.

    They are optional.
    """
    logprobs = choice.values.get("logprobs")
    rows = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and isinstance(row.get("token"), str) for row in rows):
        return ()
    if not "".join(row["token"] for row in rows).startswith(content):  # the tokens split characters, or belong to another text
        return ()
    chances, at = [], 0
    for row in rows:
        end = at + len(row["token"])
        if at < code.end and end > code.start:
            chances.append(to_probability(row.get("logprob")))
        at = end
    return tuple(chances)


# --- Find the missing code in an answer: after prose, inside a code fence, between repeated lines


MAX_PLACES = 200
MIN_CURSOR_CHARS = 2  # visible characters of the cursor's line that count as a repetition of it
MIN_LINE_CHARS = 4  # visible characters of a whole repeated line at the answer's start: `}` may be part of the answer
CERTAIN = 3 * SOLID  # visible characters that must agree with the file before reading may stop early
_THOUGHT_END = re.compile(r"</think(?:ing)?>[ \t]*\n?")
_THOUGHT = re.compile(r"\s*<think(?:ing)?>")
_FENCE = re.compile(r"^[ \t]*(`{3,}+|~{3,}+)[^\n`]*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CodeSpan:
    """The position of the missing code in an answer.

    `is_marked`: a fence or repeated lines delimit it. `is_closed`: it is complete.
    """

    start: int
    end: int
    is_marked: bool = False
    is_closed: bool = False


def locate(content: str, bounds: Bounds, *, is_whole: bool) -> CodeSpan:
    """Return the position of the missing code in an answer, or in the part received so far; an empty span if there is none.

    Unmarked text counts only in a whole answer: in a part it may be prose before a fence, or the lines before the cursor.
    """
    prefix, suffix, takes_lines = bounds.place.before, bounds.place.after, bounds.takes_lines
    start, end, is_fenced, is_closed = _fenced(content, is_whole=is_whole)
    code = content[start:end]
    n_repeated, n_visible = _repeated(code, prefix)
    is_marked = is_fenced or n_visible > 0
    if not is_whole and not n_visible and (not is_fenced or _is_in(code, prefix)):
        return CodeSpan(end, end)
    text = code[n_repeated:]
    # The answer's last lines may be its own. Only one that repeats the lines before the hole should continue with the suffix.
    repeats_suffix = takes_lines and n_visible > 0 and is_whole
    cut = before_suffix(text, suffix) if repeats_suffix else before_long_suffix(text, suffix, SOLID)
    has_suffix = len(cut) < len(text)
    if takes_lines and is_whole and suffix[:1] in ("", "\r", "\n"):
        cut = cut.rstrip("\r\n")
    begin = start + n_repeated
    # It is complete where its line has ended, or much of the suffix is repeated.
    is_over = (not takes_lines and "\n" in text) or len(before_long_suffix(text, suffix, CERTAIN)) < len(text)
    is_certain = n_visible >= CERTAIN and is_over
    return CodeSpan(begin, begin + len(cut), is_marked, is_closed or is_certain or (has_suffix and is_whole))


def _fenced(content: str, *, is_whole: bool) -> tuple[int, int, bool, bool]:
    """Return the start and end of an answer's first code block, whether there is one, and whether it is closed.

    Without a code block, all text after the model's thoughts counts.
    """
    start = 0
    opening = _FENCE.search(content)
    thought_end = _THOUGHT_END.search(content, 0, opening.start() if opening and not _THOUGHT.match(content) else len(content))
    if thought_end:
        start = thought_end.end()
        opening = _FENCE.search(content, start)
    elif _THOUGHT.match(content):
        return len(content), len(content), False, False
    if opening is None:
        return start, len(content), False, False
    mark = re.escape(opening[1])
    closing = re.compile(rf"^[ \t]*{mark}|{mark}[ \t]*\Z", re.MULTILINE).search(content, opening.end())
    return opening.end(), closing.start() if closing else len(content), True, closing is not None


def _repeated(code: str, prefix: str) -> tuple[int, int]:
    """Return how many characters of the code repeat the text before the cursor, and how many of them are visible.

    The repetition with the longest agreement counts, if it is at the code's start or long enough.
    """
    stripped = prefix.rstrip()
    blank, line = prefix[len(stripped) :], last_line(stripped).strip()
    before = "".join(stripped[: len(stripped) - len(line)].split())
    best, n_places = (0, 0), 0
    at = code.find(line) if len(line) >= MIN_CURSOR_CHARS else -1
    while at >= 0 and n_places < MAX_PLACES:
        n_places += 1
        line_start = at - len(last_line(code[:at]))
        end = at + len(line)
        n_blank = n_common(code[end:], blank)
        # A longer line may begin with the same letters, so the text after the line must agree as well.
        is_complete = n_blank > 0 or not blank or end == len(code)
        if is_complete and not code[line_start:at].strip():
            n_agreeing = _n_agreeing(code[:line_start], before)
            n_visible = extent.n_visible(line) + n_agreeing
            is_start = not code[:line_start].strip() and ("\n" not in blank or n_visible >= MIN_LINE_CHARS)
            is_enough = n_visible >= SOLID or is_start or n_agreeing == len(before)
            if is_enough and n_visible > best[1]:
                best = (end + n_blank, n_visible)
        at = code.find(line, at + 1)
    if best[1]:
        return best
    indent = last_line(prefix)
    return (len(indent) if indent and not indent.strip() and code.startswith(indent) else 0), 0


def _n_agreeing(code: str, before: str) -> int:
    """Return how many visible characters of the code's last whole lines equal the end of `before`."""
    n_agreeing = 0
    for line in reversed(code.split("\n")):
        visible = "".join(line.split())
        if not before.endswith(visible, 0, len(before) - n_agreeing):
            break
        n_agreeing += len(visible)
    return n_agreeing


def _is_in(code: str, prefix: str) -> bool:
    """Return whether the code's first line, as far as it is received, is a line of the prefix."""
    first, lines = first_line(code.strip()), {line.strip() for line in prefix.split("\n")}
    has_end = len(first) < len(code.strip())
    return first.strip() in lines if has_end else any(line.startswith(first.strip()) for line in lines)
