"""Any model behind OpenAI's chat endpoint: the instruct layout's question, and the missing code cut out of what it answers.

The answer is streamed, so that a deadline finds what has come, and reading ends where the suffix begins. Servers differ in
the fields that they take: one that refuses a field is asked again without it, and not sent it any more. Knows the chat
protocol. Knows nothing of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine import calibration, question
from dg_lsp.engine.backends import chat_answer, fim
from dg_lsp.engine.backends.chat_answer import Place
from dg_lsp.engine.backends.fim import MAX_ANSWERS, WARMTH, Written, window
from dg_lsp.engine.backends.http_client import Call, RemoteError, Server, ServerClient
from dg_lsp.engine.backends.remote import RemoteFiller, Reply, to_probability, with_agreement
from dg_lsp.engine.calibration import Evidence
from dg_lsp.wire.config import Config
from dg_lsp.wire.fields import Fields, WireError
from dg_lsp.wire.model_names import address_of

ENDING = "/chat/completions"
# With room for the lines around the missing code, which the answer repeats.
LINE_TOKENS = 512
BLOCK_TOKENS = 1536
THOUGHT_TOKENS = 8192  # for models that think first, whose limit counts their thoughts as well
WINDOW_CHARS = 24_000
RELATED_CHARS = 6_000
MAX_CONTENT_CHARS = 64_000
MAX_LOGPROBS = 65_536
SHOWN_MODELS = 5
UNFINISHED = "unfinished"  # the finish reason of an answer that is still coming

OPTIONAL = ("logprobs", "temperature", "stream")
LIMIT, THINKING_LIMIT = "max_tokens", "max_completion_tokens"
REFUSING = (400, 422)
_UNSUPPORTED = re.compile(r"unsupported|not supported|instead|unknown|unrecogni[sz]ed|not permitted|extra", re.IGNORECASE)


def connect(url: str, model: str, configured: Config, environ: Mapping[str, str]) -> RemoteFiller:
    """Return a filler on the chat server at `url`; raise RemoteError, with a sentence, where it serves no model of that name.

    Nothing is asked where a model is named. A key that the environment has under the usual name of a service goes to that
    service alone.
    """
    server = Server(url.removesuffix(ENDING))
    key = configured.key_for(server.host) or _usual_key(server.url, environ)
    client = ServerClient(replace(server, key=key))
    try:
        path = ENDING if url.endswith(ENDING) else f"/v1{ENDING}"
        return RemoteFiller(Chat(model or _only_model(client), path), client, configured.settings.local_only)
    except BaseException:
        client.close()
        raise


def _usual_key(url: str, environ: Mapping[str, str]) -> str:
    variables = [each.variable for each in fim.DIALECTS if each.variable and address_of(each.url) == address_of(url)]
    return next((key for variable in variables if (key := environ.get(variable, "").strip())), "")


def _only_model(client: ServerClient) -> str:
    """Return the name of the model that is served; raise RemoteError where there is none, or a choice."""
    host = client.server.host
    try:
        names = [card.text("id") for card in client.ask(Call("/v1/models")).objects("data")]
    except WireError as error:
        raise RemoteError(f"{host} does not say which models it serves: {error}; name one, as in chat:URL#MODEL") from error
    if len(names) == 1:
        return names[0]
    others = ", …" if len(names) > SHOWN_MODELS else ""
    shown = f": {', '.join(names[:SHOWN_MODELS])}{others}" if names else ""
    raise RemoteError(f"{host} serves {len(names)} models; name one at the end, as in chat:URL#MODEL{shown}")


@dataclass(frozen=True, slots=True)
class Text:
    """What is known of the text around a hole, and whether the hole is a block."""

    prefix: str
    suffix: str
    block: bool

    def locate(self, content: str, *, is_whole: bool) -> Place:
        """Return where the missing code stands in an answer."""
        return chat_answer.locate(content, self.prefix, self.suffix, block=self.block, is_whole=is_whole)


class Chat:
    """How a chat server is asked."""

    def __init__(self, model: str, path: str) -> None:
        """Hold the model's name and the endpoint's path."""
        self.model, self.path = model, path
        self._refused: frozenset[str] = frozenset()

    def takes_together(self, request: InfillRequest) -> bool:
        """Never: an answer is one text."""
        return False

    def about(self) -> Mapping[str, object]:
        """Return facts about the server by name."""
        return {"remote": {"model": self.model, "dialect": "chat"}}

    def calls(self, request: InfillRequest) -> Sequence[Call]:
        """Return one call for each answer: the first is the likeliest, the others are drawn."""
        [hole] = request.holes
        prefix, suffix = window(request.prefix, request.suffix, WINDOW_CHARS)
        fence = question.fence_name(request)
        related = question.related_files(request.related, fence, RELATED_CHARS, len)
        content = question.ask(request, prefix, suffix, related, fence)
        text = Text(prefix, suffix, hole.block)
        calls = []
        for number in range(min(request.budget.candidates, MAX_ANSWERS)):
            body: dict[str, object] = {
                "model": self.model,
                "messages": [{"role": "user", "content": content}],
                LIMIT: BLOCK_TOKENS if hole.block else LINE_TOKENS,
                "temperature": WARMTH if number else 0.0,
                "logprobs": True,
                "stream": True,
            }
            asked = Asked(text, body, self._refused)
            calls.append(Call(self.path, asked.body(), asked, asked))
        return calls

    def evidence(self, request: InfillRequest, replies: Sequence[Reply]) -> tuple[Evidence, ...]:
        """Return a candidate for each answer with what is known of it; raise WireError when an answer has another shape."""
        known = []
        for reply in replies:
            assert isinstance(reply.call.about, Asked)
            # It has answered, so what it was not sent this time is what it refuses.
            self._refused |= reply.call.about.refused
            known += _answers(reply.fields, reply.call.about.text)
        return with_agreement(known, calibration.position(request))


@dataclass(slots=True)
class Asked:
    """One answer on its way: the fields that the server has refused, and the parts that have come."""

    text: Text
    full_body: Mapping[str, object]
    refused: frozenset[str] = frozenset()
    _contents: list[str] = field(default_factory=list)
    _logprobs: list[object] = field(default_factory=list)
    _n_chars: int = 0
    _finish: str = ""
    _usage: Mapping[str, object] = field(default_factory=dict)
    _has_parts: bool = False

    def body(self) -> dict[str, object]:
        """Return what to send, without the fields that are refused."""
        body = {name: value for name, value in self.full_body.items() if name not in self.refused}
        return {**body, THINKING_LIMIT: THOUGHT_TOKENS} if LIMIT in self.refused else body

    def body_after(self, status: int, said: str) -> dict[str, object] | None:
        """Return what to send after a refusal that is about a field; None after one that is not."""
        if status not in REFUSING or self._has_parts:
            return None
        left = [name for name in OPTIONAL if name not in self.refused]
        named = {name for name in left if re.search(rf"\b{name}\b", said)}
        is_unsupported = _UNSUPPORTED.search(said) is not None
        if not named and LIMIT not in self.refused and is_unsupported and re.search(rf"\b{LIMIT}\b", said):
            named = {LIMIT}
        # A refusal without a name may be about any of them.
        if not named and (is_unsupported or not said):
            named = set(left)
        if not named:
            return None
        self.refused |= named
        return self.body()

    def add(self, event: Fields) -> bool:
        """Take the next part of the answer; return whether the missing code is all there. Raises WireError for nonsense."""
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
        # An answer ends with a line or a fence: nothing else is worth a look at all of it.
        return ("\n" in new or "`" in new) and self.text.locate("".join(self._contents), is_whole=False).is_closed

    def answer(self, *, is_whole: bool) -> Fields | None:
        """Return the parts so far as an answer that was not streamed; None where there are none."""
        if not self._has_parts:
            return None
        choice = {
            "message": {"content": "".join(self._contents)},
            "finish_reason": (self._finish or "stop") if is_whole else UNFINISHED,
            "logprobs": {"content": list(self._logprobs)},
        }
        return Fields({"choices": [choice], "usage": self._usage})


def _answers(fields: Fields, text: Text) -> list[Evidence]:
    choices = fields.objects("choices")
    if not choices:
        raise WireError("choices is empty")
    known = []
    for choice in choices:
        content = _content(choice.inner("message"))
        finish = choice.text("finish_reason", "")
        place = text.locate(content, is_whole=finish != UNFINISHED)
        chances = _chances(choice, content, place)
        is_cut = finish == "length" and not place.is_closed
        evidence = fim.to_evidence(Written(content[place.start : place.end], chances, is_cut), block=text.block)
        # What nothing marks as code may be a refusal, or a question.
        known.append(evidence if place.is_marked else replace(evidence, doubted=True))
    return known


def _content(message: Fields) -> str:
    """Return a message's text, which may come as a list of parts; "" for none."""
    if isinstance(message.values.get("content"), list):
        parts = message.objects("content")
        return "".join(part.text("text", "") for part in parts if part.text("type", "text") == "text")
    return message.text("content", "")


def _chances(choice: Fields, content: str, place: Place) -> tuple[float, ...]:
    """Return the probabilities of the tokens that the missing code has a part of; none where they are not told in full.

    Nothing depends on them.
    """
    logprobs = choice.values.get("logprobs")
    rows = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and isinstance(row.get("token"), str) for row in rows):
        return ()
    if not "".join(row["token"] for row in rows).startswith(content):  # tokens of parts of characters, or of other texts
        return ()
    chances, at = [], 0
    for row in rows:
        end = at + len(row["token"])
        if at < place.end and end > place.start:
            chances.append(to_probability(row.get("logprob")))
        at = end
    return tuple(chances)
