"""Any server that fills in the middle from text: one request for each answer, written in the server's own dialect.

A dialect is a row of `DIALECTS`: where to ask, how a query is written and an answer read, and what the server can do.
Nothing is sent that a server does not document, as some refuse what they do not know. Such models write past the end of a
hole; what repeats the suffix is cut by `core.polish`, as for every model. Knows dialects. Knows nothing of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dg_lsp.core import context
from dg_lsp.core.values import Candidate, InfillRequest, Snippet
from dg_lsp.engine import calibration
from dg_lsp.engine.backends.http_client import Call, RemoteError, ServerClient, server_at
from dg_lsp.engine.backends.remote import RemoteFiller, Reply, to_probability, token_features, trimmed, with_agreement
from dg_lsp.engine.backends.replicas import Replicas
from dg_lsp.engine.calibration import Evidence
from dg_lsp.wire.config import Config
from dg_lsp.wire.fields import Fields, WireError
from dg_lsp.wire.model_names import USUAL_URLS, address_of, urls_of

LINE_TOKENS = 96
BLOCK_TOKENS = 512
MAX_ANSWERS = 8
WARMTH = 0.6  # the temperature of all answers but the first, which is the likeliest
LEAST_CHANCE = 1e-9
UNTOLD = math.log(0.5)  # where an answer without log-probabilities ranks among those that have some


@dataclass(frozen=True, slots=True)
class Query:
    """What every dialect says in its own way. `number` counts the answers that are asked for, from 0."""

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
        """Nothing but the likeliest for one answer, and the first of several that are asked for one by one."""
        return WARMTH if self.number or self.n > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Written:
    """One answer: its text, the probability of each token where the server tells, and whether it ran out of room."""

    text: str
    chances: tuple[float, ...] = ()
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Caps:
    """What a server can do. Where answers can't be varied, more than one would only cost more.

    `window_chars` bounds both sides together, well below the model's window.
    """

    n: bool = False
    varies: bool = True
    max_tokens: int = BLOCK_TOKENS
    window_chars: int = 48_000
    needs_model: bool = True


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to ask. `url` and `model` are the usual ones, `variable` names the usual key, which only `url` is given."""

    name: str
    path: str
    build: Callable[[Query], Mapping[str, object]]
    parse: Callable[[Fields], tuple[Written, ...]]
    caps: Caps = field(default_factory=Caps)
    url: str = ""
    model: str = ""
    variable: str = ""


def _completion(query: Query) -> dict[str, object]:
    """Return what all relatives of OpenAI's older endpoint have in common."""
    body: dict[str, object] = {
        "model": query.model,
        "prompt": query.prefix,
        "suffix": query.suffix,
        "max_tokens": query.max_tokens,
    }
    return {**body, "stop": list(query.stop)} if query.stop else body


def _openai(query: Query) -> dict[str, object]:
    return {**_completion(query), "n": query.n, "temperature": query.temperature, "logprobs": 1}


def _mercury(query: Query) -> dict[str, object]:
    # Its default would punish a name for standing in the prompt already. A temperature is not its to choose.
    return {**_completion(query), "presence_penalty": 0}


def _deepseek(query: Query) -> dict[str, object]:
    return {**_completion(query), "temperature": query.temperature, "logprobs": 1}


def _codestral(query: Query) -> dict[str, object]:
    return {
        **_completion(query),
        "temperature": query.temperature,
        "random_seed": (query.seed + query.number) % 2**31,
    }


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
    # Left to itself it would answer in many lines.
    return {
        "model": query.model,
        "prompt": query.prefix,
        "suffix": query.suffix,
        "stream": False,
        "options": options,
    }


def _texts(fields: Fields) -> tuple[Written, ...]:
    """Read `choices[].text`."""
    return tuple(
        Written(choice.text("text"), _chances(choice), choice.text("finish_reason", "") == "length")
        for choice in _choices(fields)
    )


def _messages(fields: Fields) -> tuple[Written, ...]:
    """Read `choices[].message.content`."""
    return tuple(
        Written(choice.inner("message").text("content", ""), (), choice.text("finish_reason", "") == "length")
        for choice in _choices(fields)
    )


def _content(fields: Fields) -> tuple[Written, ...]:
    """Read llama.cpp's `content`."""
    return (Written(fields.text("content"), (), fields.text("stop_type", "") == "limit"),)


def _response(fields: Fields) -> tuple[Written, ...]:
    """Read Ollama's `response`."""
    return (Written(fields.text("response"), (), fields.text("done_reason", "") == "length"),)


def _choices(fields: Fields) -> tuple[Fields, ...]:
    choices = fields.objects("choices")
    if not choices:
        raise WireError("choices is empty")
    return choices


def _chances(choice: Fields) -> tuple[float, ...]:
    """Return the probability of each token; none where they are not told in full, as nothing depends on them."""
    if not isinstance(choice.values.get("logprobs"), dict):
        return ()
    logs = choice.inner("logprobs").values.get("token_logprobs")
    if not isinstance(logs, list) or not all(isinstance(value, (int, float)) for value in logs):
        return ()
    return tuple(map(to_probability, logs))


DIALECTS: tuple[Dialect, ...] = (
    Dialect("openai", "/v1/completions", _openai, _texts, Caps(n=True), variable="OPENAI_API_KEY", url=USUAL_URLS["openai"]),
    Dialect(
        "mercury", "/v1/fim/completions", _mercury, _texts, Caps(varies=False),
        url=USUAL_URLS["mercury"], model="mercury-edit-2", variable="INCEPTION_API_KEY",
    ),
    Dialect(
        "deepseek", "/beta/completions", _deepseek, _texts, Caps(max_tokens=4096),
        url=USUAL_URLS["deepseek"], model="deepseek-v4-flash", variable="DEEPSEEK_API_KEY",
    ),
    Dialect(
        "codestral", "/v1/fim/completions", _codestral, _messages,
        url=USUAL_URLS["codestral"], model="codestral-latest", variable="CODESTRAL_API_KEY",
    ),
    Dialect("llama", "/infill", _llama, _content, Caps(window_chars=24_000, needs_model=False), url=USUAL_URLS["llama"]),
    Dialect("ollama", "/api/generate", _ollama, _response, Caps(window_chars=24_000), url=USUAL_URLS["ollama"]),
)  # fmt: skip


def connect(name: str, url: str, model: str, configured: Config, environ: Mapping[str, str]) -> RemoteFiller:
    """Return a filler on a server that speaks the dialect of that name; raise RemoteError, with a sentence, if there is none.

    `url` may name several that serve the same, with commas between them.
    Nothing is asked yet: most of these servers bill by the request. A key that the environment has under the dialect's
    usual name is given to the usual server alone, not to whoever is named instead of it.
    """
    dialect = next((dialect for dialect in DIALECTS if dialect.name == name.casefold()), None)
    if dialect is None:
        known = ", ".join(dialect.name for dialect in DIALECTS)
        raise RemoteError(f"there is no dialect {name}; there are {known}")
    model = model or dialect.model
    if dialect.caps.needs_model and not model:
        raise RemoteError(f"{name} needs a model's name at the end, as in fim:{name}:URL#MODEL")
    usual = environ.get(dialect.variable, "").strip() if dialect.variable else ""
    servers = [
        server_at(url, configured, usual if address_of(url) == address_of(dialect.url) else "")
        for url in urls_of(url) or (dialect.url,)
    ]
    client = ServerClient(servers[0]) if len(servers) == 1 else Replicas(servers)
    return RemoteFiller(Fim(dialect, model), client, configured.settings.local_only)


class Fim:
    """How a server is asked in one dialect."""

    def __init__(self, dialect: Dialect, model: str) -> None:
        """Hold the dialect and the model's name."""
        self.dialect, self.model = dialect, model

    def takes_together(self, request: InfillRequest) -> bool:
        """Never: there is one text before and one after."""
        return False

    def about(self) -> Mapping[str, object]:
        """Return facts about the server by name."""
        return {"remote": {"model": self.model, "dialect": self.dialect.name}}

    def calls(self, request: InfillRequest) -> Sequence[Call]:
        """Return one call for all answers where the server gives several at a time, else one for each."""
        caps, [hole] = self.dialect.caps, request.holes
        prefix, suffix = window(request.prefix + context.instruction(request), request.suffix, caps.window_chars)
        n_answers = min(request.budget.candidates, MAX_ANSWERS) if caps.varies else 1
        query = Query(
            model=self.model,
            prefix=prefix,
            suffix=suffix,
            max_tokens=min(BLOCK_TOKENS if hole.block else LINE_TOKENS, caps.max_tokens),
            stop=() if hole.block else ("\n",),
            n=n_answers if caps.n else 1,
            seed=request.seed,
            ms=request.budget.ms,
            related=request.related,
        )
        numbers = range(1 if caps.n else n_answers)
        return [Call(self.dialect.path, self.dialect.build(replace(query, number=number))) for number in numbers]

    def evidence(self, request: InfillRequest, replies: Sequence[Reply]) -> tuple[Evidence, ...]:
        """Return a candidate for each answer with what is known of it; raise WireError when an answer has another shape."""
        written = [each for reply in replies for each in self.dialect.parse(reply.fields)]
        [hole] = request.holes
        return with_agreement([to_evidence(each, block=hole.block) for each in written], calibration.position(request))


def window(prefix: str, suffix: str, most: int) -> tuple[str, str]:
    """Return the nearest text on both sides, two thirds of it before, cut where lines begin and end."""
    room_after = max(most // 3, most - len(prefix))
    if len(suffix) > room_after:
        suffix = suffix[: suffix.rfind("\n", 0, room_after) + 1 or room_after]
    room_before = most - len(suffix)
    if len(prefix) > room_before:
        start = len(prefix) - room_before
        prefix = prefix[prefix.find("\n", start) + 1 or start :]
    return prefix, suffix


def to_evidence(written: Written, *, block: bool) -> Evidence:
    """Return an answer as a candidate with what is known of it."""
    text, chances = trimmed(written.text, written.chances, block=block)
    logs = [math.log(max(chance, LEAST_CHANCE)) for chance in chances]
    # An answer that ran out of room is none; the end of a line that was cut from a longer answer is one.
    is_cut = written.is_cut and text == written.text
    features = {**token_features(logs, text), "cut": float(is_cut)}
    candidate = Candidate((text,), confidences=(chances,) if chances else ())
    return Evidence(candidate, features["mean"] if logs else UNTOLD, features, doubted=is_cut)
