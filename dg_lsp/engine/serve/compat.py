"""Requests and responses in the shapes of other APIs: OpenAI's and Mistral's completions, and llama.cpp's infill.

Pure: converts JSON fields to an ask, and an outcome to a JSON value. Parameters that a canvas can't use (temperature,
samplers, penalties) are accepted and ignored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dg_lsp.core import fim, holes, languages, local, polish, syntax
from dg_lsp.core.fim import Parts
from dg_lsp.core.languages import GrammarError
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import MAX_CANDIDATES, Budget, Candidate, Document, Hole, InfillRequest, Ranked, Snippet, Span
from dg_lsp.engine.serve import guess
from dg_lsp.wire.messages import Ask, Done, Fields, WireError

SEED_RANGE = {"low": -(2**63), "high": 2**63 - 1}
MAX_LOGPROBS = 1024
# Ask for at least this many candidates, because polishing may reject some. A local model does not work longer for more.
CHOICE = 3
# The suffix that Continue sends to Inception's models when only whitespace follows the cursor.
NO_SUFFIX = "<|endoftext|>"
Pieces = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request of another client: our ask, and the options of the response."""

    ask: Ask
    n: int = 1
    stream: bool = False
    stops: tuple[str, ...] = ()
    max_tokens: int | None = None
    logprobs: bool = False
    echo: str = ""
    with_usage: bool = False
    fields: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The candidates of a request, and the event that ended it."""

    candidates: tuple[Candidate, ...]
    done: Done


@dataclass(frozen=True, slots=True)
class Cut:
    """A text truncated as the client asked, and why it ends there: `stop`, `length` or `end`."""

    text: str
    why: str
    n_tokens: int
    stop: str = ""


def from_openai(fields: Fields, choice: int = CHOICE) -> CompletionRequest:
    """Return the request in the body of `POST /v1/completions` or `POST /v1/fim/completions`; raise WireError.

    It asks for at least `choice` candidates.
    """
    prompt = fields.values.get("prompt", "")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise WireError("prompt must be one string; token lists and several prompts are not supported")
    stops, logprobs = _stops(fields), fields.values.get("logprobs")
    # OpenAI defines a number here, but newer clients and other servers use a flag.
    if not isinstance(logprobs, bool):
        logprobs = fields.has("logprobs") and fields.integer("logprobs", high=MAX_LOGPROBS) >= 0
    options = fields.inner("stream_options")
    max_tokens = fields.integer("max_tokens", -1, low=-1)
    n = fields.integer("n", 1, low=1, high=MAX_CANDIDATES)
    suffix = fields.text("suffix", "")
    # Clients that know the model's template, such as Zed, write both sides of the cursor into the prompt.
    parts = (None if suffix else fim.read(prompt)) or Parts(prompt, "" if suffix == NO_SUFFIX else suffix)
    request = _request(
        parts.prefix,
        parts.suffix,
        stops,
        Budget(candidates=max(n, choice)),
        seed=fields.integer("seed" if fields.has("seed") else "random_seed", 0, **SEED_RANGE),
        related=parts.related,
        path=parts.path,
    )
    return CompletionRequest(
        ask=Ask(request, client="openai"),
        n=n,
        stream=fields.flag("stream", default=False),
        stops=stops,
        max_tokens=None if max_tokens < 0 else max_tokens,
        logprobs=logprobs,
        echo=prompt if fields.flag("echo", default=False) else "",
        with_usage=options.flag("include_usage", default=False),
    )


def from_llama(fields: Fields, choice: int = CHOICE) -> CompletionRequest:
    """Return the request in the body of `POST /infill`; raise WireError.

    `prompt` is the text between the prefix and the cursor. The request asks for `choice` candidates.
    """
    stops = _stops(fields)
    extra = fields.objects("input_extra", ())
    n_predict = fields.integer("n_predict", -1, low=-2)
    seed = fields.integer("seed", 0, **SEED_RANGE)
    # llama.cpp has one limit for reading and one for writing. Our deadline is their sum.
    ms = sum(max(0, fields.integer(name, 0, low=-1)) for name in ("t_max_prompt_ms", "t_max_predict_ms"))
    request = _request(
        fields.text("input_prefix", "") + fields.text("prompt", ""),
        fields.text("input_suffix", ""),
        stops,
        Budget(ms=ms, candidates=choice),
        seed=max(0, seed),
        related=tuple(Snippet(item.text("filename", ""), item.text("text")) for item in extra),
    )
    return CompletionRequest(
        ask=Ask(request, client="llama.cpp"),
        stream=fields.flag("stream", default=False),
        stops=stops,
        max_tokens=None if n_predict < 0 else n_predict,
        fields=fields.texts("response_fields") if fields.has("response_fields") else None,
    )


def cut(candidate: Candidate, completion: CompletionRequest) -> Cut:
    """Return a candidate's text, truncated at the first stop and at the maximum number of tokens.

    Truncation by tokens is proportional in characters, because a candidate does not carry its tokens' texts. A truncated
    line before the code of another line is empty, because without its line end it would join that line.
    """
    text = "".join(candidate.texts)
    n_tokens = sum(map(len, candidate.confidences)) or math.ceil(len(text) / 4)
    short, why = text, "end"
    if completion.max_tokens is not None and n_tokens > completion.max_tokens:
        short, why = text[: len(text) * completion.max_tokens // n_tokens], "length"
    stops = [(at, stop) for stop in completion.stops if stop and (at := short.find(stop)) >= 0]
    end, stop = min(stops, default=(len(short), ""))
    if stops:
        short, why = short[:end], "stop"
    if len(short) < len(text):
        short = "" if completion.ask.request.holes[0].trail else short
        n_tokens = math.ceil(n_tokens * len(short) / len(text))
    return Cut(short, why, n_tokens, stop)


def to_openai(
    completion: CompletionRequest, outcome: Outcome, facts: Mapping[str, object], pieces: Pieces
) -> dict[str, object]:
    """Return the body of a completion; `facts` are its id, time and model."""
    cuts = _cuts(completion, outcome)
    choices = [
        {
            "index": idx,
            "text": completion.echo + cut_text.text,
            "finish_reason": "length" if cut_text.why == "length" else "stop",
            "logprobs": _logprobs(candidate, cut_text, len(completion.echo), pieces) if completion.logprobs else None,
        }
        for idx, (candidate, cut_text) in enumerate(cuts)
    ]
    return {**facts, "object": "text_completion", "choices": choices, "usage": _usage(outcome, cuts)}


def to_openai_chunks(
    completion: CompletionRequest, outcome: Outcome, facts: Mapping[str, object], pieces: Pieces
) -> list[dict[str, object]]:
    """Return the completion as chunks, one per choice, because a canvas is final only when it is complete."""
    whole = to_openai(completion, outcome, facts, pieces)
    choices = whole["choices"]
    assert isinstance(choices, list)
    chunks: list[dict[str, object]] = [{**facts, "object": "text_completion", "choices": [choice]} for choice in choices]
    if completion.with_usage:
        chunks.append({**facts, "object": "text_completion", "choices": [], "usage": whole["usage"]})
    return chunks


def to_mistral(body: dict[str, object], place: Literal["message", "delta"]) -> dict[str, object]:
    """Return a completion in OpenAI's shape, or one chunk of it, in Mistral's shape: the text is an assistant's message.

    `text` stays in each choice, because Inception uses OpenAI's shape on the same path.
    """
    choices = body["choices"]
    assert isinstance(choices, list)
    messages = [{**choice, place: {"role": "assistant", "content": choice["text"]}} for choice in choices]
    return {**body, "object": "chat.completion" if place == "message" else "chat.completion.chunk", "choices": messages}


def to_llama(completion: CompletionRequest, outcome: Outcome, model: str) -> dict[str, object]:
    """Return the body of an infill; with `response_fields`, only those fields, under the requested names."""
    cut_text = _cuts(completion, outcome)[0][1]
    done = outcome.done
    n_prompt = done.cache.tokens - done.cache.reused
    writing_ms = done.timings.draft_ms + done.timings.denoise_ms + done.timings.score_ms
    body: dict[str, object] = {
        "index": 0,
        "content": cut_text.text,
        "tokens": [],
        "id_slot": -1,
        "stop": True,
        "model": model,
        "tokens_predicted": cut_text.n_tokens,
        "tokens_evaluated": done.cache.tokens,
        "tokens_cached": done.cache.reused,
        "generation_settings": {"seed": completion.ask.request.seed},
        "prompt": "",
        "has_new_line": "\n" in cut_text.text,
        "truncated": False,
        "stop_type": {"end": "eos", "stop": "word", "length": "limit"}[cut_text.why],
        "stopping_word": cut_text.stop,
        "timings": {
            "cache_n": done.cache.reused,
            "prompt_n": n_prompt,
            "prompt_ms": done.timings.prefill_ms,
            "prompt_per_token_ms": done.timings.prefill_ms / max(n_prompt, 1),
            "prompt_per_second": 1000 * n_prompt / done.timings.prefill_ms if done.timings.prefill_ms else 0.0,
            "predicted_n": cut_text.n_tokens,
            "predicted_ms": writing_ms,
            "predicted_per_token_ms": writing_ms / max(cut_text.n_tokens, 1),
            "predicted_per_second": 1000 * cut_text.n_tokens / writing_ms if writing_ms else 0.0,
        },
    }
    if completion.fields is None:
        return body
    values = ((path, _at(body, path.split("/"))) for path in completion.fields)
    return {path: value for path, value in values if value is not None}


def _request(
    prefix: str,
    suffix: str,
    stops: tuple[str, ...],
    budget: Budget,
    *,
    seed: int,
    related: tuple[Snippet, ...] = (),
    path: str = "",
) -> InfillRequest:
    # None of these APIs has a field for the language.
    by_path = languages.for_path(path) if path else None
    language = by_path.name if by_path else guess.language(prefix, suffix, [snippet.path for snippet in related])
    line, code = prefix.rpartition("\n")[2], suffix.partition("\n")[0].strip()
    if code and not line.strip():
        # As for our own clients, what is written before the first code of a line is a line of its own.
        document = Document("", language, prefix + suffix)
        hole = holes.at_cursor(document, len(prefix), _syntax(document, len(prefix)))
    else:
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        # With code right of the cursor, or a line end as a stop, the client wants one line only.
        hole = Hole(Span(len(prefix), len(prefix)), "cursor", indent=indent, block=not code and "\n" not in stops)
    prefix, suffix = prefix + hole.lead, hole.trail + suffix
    return InfillRequest(prefix, suffix, (hole,), language=language, path=path, related=related, budget=budget, seed=seed)


def _stops(fields: Fields) -> tuple[str, ...]:
    if isinstance(stop := fields.values.get("stop"), str):
        return (stop,)
    return fields.texts("stop", (), high=64)


def _cuts(completion: CompletionRequest, outcome: Outcome) -> list[tuple[Candidate, Cut]]:
    request, hole = completion.ask.request, completion.ask.request.holes[0]
    # The request's texts have the fixed text around the answer; the document is what the client sent.
    text = request.prefix.removesuffix(hole.lead) + request.suffix.removeprefix(hole.trail)
    document = Document("", request.language, text)
    tree = _syntax(document, hole.span.start) if outcome.candidates else None
    # Other clients do not polish, so the engine does it for them.
    each_polished = ((each, polish.to_edits(each, request.holes, document, syntax=tree)) for each in outcome.candidates)
    texts = ((each, "".join(edit.text for edit in own.edits)) for each, own in each_polished if own.edits)
    polished = itertools.starmap(_with_text, texts)
    candidates = tuple(itertools.islice(polished, completion.n))
    # These clients read the first choice without checking that there is one.
    return [
        (candidate, cut(candidate, completion))
        for candidate in candidates or (Candidate(("",), Ranked(doubted=True), finished=False),)
    ]


def _syntax(document: Document, offset: int) -> Syntax | None:
    """Return the syntax of the document, or of the lines around the offset if it is long."""
    language, text = languages.get(document.language), document.text
    if language is None:
        return None
    parts: tuple[Span, ...] = ()
    if len(text) > local.LONG_CHARS:
        start, end = max(0, offset - local.TAKEN_CHARS[0]), min(len(text), offset + local.TAKEN_CHARS[1])
        parts = (Span(text.rfind("\n", 0, start) + 1, text.find("\n", end) + 1 or len(text)),)
    try:
        return syntax.parse(text, language, parts=parts)
    except GrammarError:
        return None  # the same as for an unknown language


def _with_text(candidate: Candidate, text: str) -> Candidate:
    """Return the candidate with its polished text and the confidences of that text's tokens."""
    whole = "".join(candidate.texts)
    if text == whole:
        return candidate
    chances = [chance for row in candidate.confidences for chance in row]
    lengths = [length for row in candidate.lengths for length in row]
    start = whole.find(text)
    if start < 0 or len(lengths) != len(chances):
        # Which tokens are left is unknown. Only their number can be estimated.
        token_indexes = range(math.ceil(len(chances) * min(1.0, len(text) / max(len(whole), 1))))
        return replace(candidate, texts=(text,), confidences=(tuple(chances[idx] for idx in token_indexes),), lengths=())
    ends = list(itertools.accumulate(lengths))
    tokens = [idx for idx, end in enumerate(ends) if end > start and end - lengths[idx] < start + len(text)]
    return replace(
        candidate,
        texts=(text,),
        confidences=(tuple(chances[idx] for idx in tokens),),
        lengths=(tuple(min(ends[idx], start + len(text)) - max(ends[idx] - lengths[idx], start) for idx in tokens),),
    )


def _usage(outcome: Outcome, cuts: list[tuple[Candidate, Cut]]) -> dict[str, object]:
    n_prompt, n_written = outcome.done.cache.tokens, sum(cut_text.n_tokens for _, cut_text in cuts)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_written,
        "total_tokens": n_prompt + n_written,
        "prompt_tokens_details": {"cached_tokens": outcome.done.cache.reused},
    }


def _logprobs(candidate: Candidate, cut_text: Cut, offset: int, pieces: Pieces) -> dict[str, object]:
    """Return a log-probability for each token, or one for the whole text if its tokens are not known."""
    chances = [chance for row in candidate.confidences for chance in row]
    tokens = pieces("".join(candidate.texts))
    if len(tokens) != len(chances) or not chances:
        if not chances:
            # A model that reports no probabilities: the text is one token without one.
            return {"tokens": [cut_text.text], "token_logprobs": [None], "top_logprobs": None, "text_offset": [offset]}
        tokens, chances = (cut_text.text,), [math.prod(chances)]
    offsets, at, n_tokens = [], 0, 0
    for token in tokens:
        if at + len(token) > len(cut_text.text):
            break
        offsets.append(offset + at)
        at, n_tokens = at + len(token), n_tokens + 1
    logs = [math.log(min(max(chance, 1e-30), 1.0)) for chance in chances[:n_tokens]]
    return {"tokens": list(tokens[:n_tokens]), "token_logprobs": logs, "top_logprobs": None, "text_offset": offsets}


def _at(value: object, path: list[str]) -> object:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value
