"""Any server with a fill-in-the-middle endpoint: each answer is requested in the server's own dialect.

A dialect is a row of `DIALECTS`: the endpoint, how a query is written, how an answer is read, and what the server supports.
Only documented fields are sent, because some servers refuse unknown ones. These models write past the end of a hole;
`core.polish` removes what repeats the suffix, as for every model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core import context, edits, extent, templates
from dg_lsp.core.calibration import Evidence
from dg_lsp.core.edits import Question
from dg_lsp.core.extent import Bounds
from dg_lsp.core.values import Candidate, InfillRequest, Snippet
from dg_lsp.engine.backends.http_client import Call, RemoteError, ServerClient, server_at
from dg_lsp.engine.backends.remote import (
    LEAST_CHANCE,
    Backend,
    RemoteFiller,
    Replies,
    choices,
    compared,
    to_probability,
    token_features,
    trimmed,
)
from dg_lsp.wire.config import Config
from dg_lsp.wire.messages import Fields
from dg_lsp.wire.model_names import USUAL_URLS, address_of

LINE_TOKENS = 96
BLOCK_TOKENS = 512
EDIT_TOKENS = 100  # more than a token for each two characters of the window
MAX_ANSWERS = 8
SAMPLING_TEMPERATURE = 0.6  # of all answers but the first, which is greedy
UNKNOWN_LOG = math.log(0.5)  # ranks an answer without log-probabilities among those with some


@dataclass(frozen=True, slots=True)
class Query:
    """A query, independent of the dialect. `number` counts the requested answers, from 0."""

    model: str
    prefix: str
    suffix: str
    max_tokens: int
    stop: tuple[str, ...] = ()
    n: int = 1
    number: int = 0
    seed: int = 0
    ms: int = 0
    related: tuple[Snippet, ...] = ()

    @property
    def temperature(self) -> float:
        """0 for a single answer, and for the first of several that are requested one by one."""
        return SAMPLING_TEMPERATURE if self.number or self.n > 1 else 0.0


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """One answer: its text, each token's probability if the server sends them, and whether the token limit cut it off."""

    text: str
    chances: tuple[float, ...] = ()
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """One server API. `model` is the default. `variable` is the environment variable with the key for `url`.

    `n`: the server gives several answers to a request. `varies`: repeated requests give different answers. `window_chars`
    limits both sides together, well below the model's window. llama.cpp itself cuts a prefix to its last 1,536 tokens, with its
    default batch, so a longer one would make the whole prompt new with each token.
    """

    name: str
    path: str
    build: Callable[[Query], Mapping[str, object]]
    parse: Callable[[Fields], tuple[RemoteAnswer, ...]]
    n: bool = False
    varies: bool = True
    max_tokens: int = BLOCK_TOKENS
    window_chars: int = 48_000
    needs_model: bool = True
    model: str = ""
    variable: str = ""

    @property
    def url(self) -> str:
        """The usual server's URL."""
        return USUAL_URLS[self.name]


def _completion(query: Query) -> dict[str, object]:
    """Return the fields that all endpoints derived from OpenAI's completions share."""
    body: dict[str, object] = {
        "model": query.model,
        "prompt": query.prefix,
        "suffix": query.suffix,
        "max_tokens": query.max_tokens,
    }
    return {**body, "stop": list(query.stop)} if query.stop else body


def _openai(query: Query) -> dict[str, object]:
    body = {**_completion(query), "n": query.n, "temperature": query.temperature, "logprobs": 1}
    # vLLM and others refuse or ignore a suffix, but pass a prompt with the model's own markers to it.
    if (template := templates.for_model(query.model)) is not None:
        body["prompt"] = template.write(query.prefix, query.suffix)
        del body["suffix"]
    return body


def _mercury(query: Query) -> dict[str, object]:
    # The default penalises names that are already in the prompt. The API has no temperature.
    return {**_completion(query), "presence_penalty": 0}


def _deepseek(query: Query) -> dict[str, object]:
    return {**_completion(query), "temperature": query.temperature, "logprobs": 1}


def _codestral(query: Query) -> dict[str, object]:
    return {**_completion(query), "temperature": query.temperature, "random_seed": (query.seed + query.number) % 2**31}


def _llama(query: Query) -> dict[str, object]:
    body: dict[str, object] = {
        "input_prefix": query.prefix,
        "input_suffix": query.suffix,
        "input_extra": [{"filename": item.path, "text": item.text} for item in query.related],
        "prompt": "",
        "n_predict": query.max_tokens,
        "temperature": query.temperature,
        "seed": (query.seed + query.number) % 2**31,
        "cache_prompt": True,
        "stream": False,
    }
    if query.stop:
        body["stop"] = list(query.stop)
    if query.ms:
        body["t_max_predict_ms"] = query.ms
    return body


def _ollama(query: Query) -> dict[str, object]:
    options: dict[str, object] = {
        "num_predict": query.max_tokens,
        "temperature": query.temperature,
        "seed": (query.seed + query.number) % 2**31,
    }
    if query.stop:
        options["stop"] = list(query.stop)
    body: dict[str, object] = {"model": query.model, "stream": False, "options": options}
    template = templates.for_model(query.model) if re.search(_NO_SUFFIX, query.model.casefold()) else None
    if template is not None:
        return {**body, "prompt": template.write(query.prefix, query.suffix), "raw": True}
    return {**body, "prompt": query.prefix, "suffix": query.suffix}


# Models that fill in the middle, but whose template in Ollama has no place for a suffix.
_NO_SUFFIX = "qwen3-coder|mellum"


def _texts(fields: Fields) -> tuple[RemoteAnswer, ...]:
    """Read `choices[].text`."""
    return tuple(
        RemoteAnswer(choice.text("text"), _chances(choice), choice.text("finish_reason", "") == "length")
        for choice in choices(fields)
    )


def _messages(fields: Fields) -> tuple[RemoteAnswer, ...]:
    """Read `choices[].message.content`."""
    return tuple(
        RemoteAnswer(choice.inner("message").text("content", ""), (), choice.text("finish_reason", "") == "length")
        for choice in choices(fields)
    )


def _content(fields: Fields) -> tuple[RemoteAnswer, ...]:
    """Read llama.cpp's `content`."""
    return (RemoteAnswer(fields.text("content"), (), fields.text("stop_type", "") == "limit"),)


def _response(fields: Fields) -> tuple[RemoteAnswer, ...]:
    """Read Ollama's `response`."""
    return (RemoteAnswer(fields.text("response"), (), fields.text("done_reason", "") == "length"),)


def _chances(choice: Fields) -> tuple[float, ...]:
    """Return each token's probability; () unless the server sends all of them. They are optional."""
    if not isinstance(choice.values.get("logprobs"), dict):
        return ()
    stated = choice.inner("logprobs").values
    logs, content = stated.get("token_logprobs"), stated.get("content")
    if logs is None and isinstance(content, list):  # llama.cpp has the shape of chat answers here
        logs = [each.get("logprob") if isinstance(each, dict) else None for each in content]
    if not isinstance(logs, list) or not all(isinstance(value, (int, float)) for value in logs):
        return ()
    return tuple(map(to_probability, logs))


DIALECTS: tuple[Dialect, ...] = (
    Dialect("openai", "/v1/completions", _openai, _texts, n=True, variable="OPENAI_API_KEY"),
    Dialect(
        "mercury", "/v1/fim/completions", _mercury, _texts, varies=False, model="mercury-edit-2", variable="INCEPTION_API_KEY"
    ),
    Dialect(
        "deepseek",
        "/beta/completions",
        _deepseek,
        _texts,
        max_tokens=4096,
        model="deepseek-v4-flash",
        variable="DEEPSEEK_API_KEY",
    ),
    Dialect("codestral", "/v1/fim/completions", _codestral, _messages, model="codestral-latest", variable="CODESTRAL_API_KEY"),
    Dialect("llama", "/infill", _llama, _content, window_chars=5_600, needs_model=False),
    Dialect("ollama", "/api/generate", _ollama, _response, window_chars=24_000),
)


def connect(name: str, url: str, model: str, configured: Config, environ: Mapping[str, str]) -> RemoteFiller:
    """Return a filler for a server of the named dialect; raise RemoteError if it needs a model, or its key is unsafe.

    Nothing is sent yet, because most of these servers bill by the request.
    """
    dialect = next(dialect for dialect in DIALECTS if dialect.name == name)
    model = model or dialect.model
    if dialect.needs_model and not model:
        raise RemoteError(f"{name} needs a model's name at the end, as in fim:{name}:URL#MODEL")
    url = url or dialect.url
    client = ServerClient(server_at(url, configured, usual_key(url, environ)))
    return RemoteFiller(Fim(dialect, model), client, configured.settings.local_only)


def usual_key(url: str, environ: Mapping[str, str]) -> str:
    """Return the key in a service's usual environment variable if the URL is that of the service; else ""."""
    variables = (each.variable for each in DIALECTS if each.variable and address_of(each.url) == address_of(url))
    return next((key for variable in variables if (key := environ.get(variable, "").strip())), "")


class Fim(Backend):
    """The backend for one dialect."""

    def __init__(self, dialect: Dialect, model: str) -> None:
        self.dialect, self.model = dialect, model

    def about(self) -> Mapping[str, object]:
        return {"remote": {"model": self.model, "dialect": self.dialect.name}}

    def writes_edits(self) -> bool:
        return self.dialect.name == "openai"

    def calls(self, request: InfillRequest) -> Sequence[Call]:
        """Return one call for all answers if the server can send several at once, else one for each."""
        if request.question is not None:
            return [Call(self.dialect.path, edit_body(self.model, request.path, request.question))]
        dialect, [hole] = self.dialect, request.holes
        prefix, suffix = window(context.with_instruction(request), request.suffix, dialect.window_chars)
        n_answers = min(request.budget.candidates, MAX_ANSWERS) if dialect.varies else 1
        bounds = extent.of(hole, request.place)
        query = Query(
            model=self.model,
            prefix=prefix,
            suffix=suffix,
            max_tokens=min(BLOCK_TOKENS if bounds.takes_lines else LINE_TOKENS, dialect.max_tokens),
            stop=bounds.stops,
            n=n_answers if dialect.n else 1,
            seed=request.seed,
            ms=request.budget.ms,
            related=request.related,
        )
        numbers = range(1 if dialect.n else n_answers)
        return [Call(dialect.path, dialect.build(replace(query, number=number))) for number in numbers]

    def evidence(self, request: InfillRequest, replies: Replies) -> tuple[Evidence, ...]:
        answers = [answer for _, fields in replies for answer in self.dialect.parse(fields)]
        if request.question is not None:
            return tuple(edit_evidence(answer) for answer in answers if not answer.is_cut)
        [hole] = request.holes
        bounds = extent.of(hole, request.place)
        return compared([to_evidence(answer, bounds) for answer in answers], request)


def window(prefix: str, suffix: str, most: int) -> tuple[str, str]:
    """Return at most `most` nearby characters, a quarter after the hole or what a short prefix leaves, cut at line ends.

    The suffix is short, because most servers read it again at each key. The start of the prefix moves in steps, because a
    moved start makes the whole prompt new.
    """
    step = max(most // 4, 1)
    n_after = max(step, most - len(prefix))
    if len(suffix) > n_after:
        suffix = suffix[: suffix.rfind("\n", 0, n_after) + 1 or n_after]
    start = -(-(len(prefix) + min(len(suffix), step) - most) // step) * step
    return prefix[prefix.find("\n", start) + 1 or start :] if start > 0 else prefix, suffix


def to_evidence(answer: RemoteAnswer, bounds: Bounds) -> Evidence:
    """Return an answer as a candidate with its features."""
    text, chances = trimmed(answer.text, answer.chances, bounds)
    # A text that reached the token limit is doubtful, unless it was already shortened to its first line.
    is_cut = answer.is_cut and text == answer.text
    features = {**token_features(chances, text), "cut": float(is_cut)}
    candidate = Candidate((text,), confidences=(chances,) if chances else ())
    return Evidence(candidate, features["mean"] if chances else UNKNOWN_LOG, features, doubted=is_cut)


# --- The next edit


def edit_body(model: str, path: str, asked: Question) -> dict[str, object]:
    """Return the completion that asks for the next edit; raise RemoteError if a line would be read as a mark of the form.

    A server makes tokens of the marks in its prompt, wherever they come from.
    """
    if edits.SEPARATOR in asked.window.text:
        raise RemoteError(f"the lines around the cursor contain {edits.SEPARATOR}, which separates the parts of the prompt")
    blocks = [block.replace(edits.SEPARATOR, "<file_sep>") for block in edits.blocks(path, asked, edits.PUBLISHED)]
    return {
        "model": model,
        "prompt": "".join(edits.SEPARATOR + block for block in blocks),
        "max_tokens": EDIT_TOKENS + len(asked.window.text) // 2,
        "temperature": 0.0,
        "logprobs": 1,
        "stop": [edits.SEPARATOR, "<|endoftext|>"],
    }


def edit_evidence(answer: RemoteAnswer) -> Evidence:
    """Return the written window as a candidate. It is doubted if it is too unlikely, or the server says no probabilities."""
    logp = sum(math.log(max(chance, LEAST_CHANCE)) for chance in answer.chances)
    doubted = not answer.chances or logp < edits.LEAST_LOGP
    candidate = Candidate((answer.text.replace(edits.CURSOR, ""),), confidences=(answer.chances,) if answer.chances else ())
    return Evidence(candidate, logp, {}, doubted=doubted)
