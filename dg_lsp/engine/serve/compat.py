"""Requests and responses in the shapes of other APIs: OpenAI's completions, and llama.cpp's infill.

Pure: converts JSON fields to an ask, and an outcome to JSON values. Fields that our models can't use (temperature, samplers,
penalties, logprobs) are accepted and ignored. Most clients do not say which language they send. A wrong one would reject
correct answers, so nothing is guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dg_lsp.core import holes, languages, place, polish, syntax, templates
from dg_lsp.core.languages import Language
from dg_lsp.core.place import first_line
from dg_lsp.core.values import MAX_CANDIDATES, Budget, Candidate, Document, Extent, Hole, InfillRequest, Snippet, Span
from dg_lsp.wire.messages import Ask, Done, Fields, WireError

SEED_RANGE = {"low": -(2**63), "high": 2**63 - 1}
# Ask for at least this many candidates, because polishing may reject some. A local model does not work longer for more.
CHOICE = 3
# The suffix that Continue sends when only whitespace follows the cursor.
NO_SUFFIX = "<|endoftext|>"
LEAD_CHARS = 20_000  # of comments above the text: clients put other files there, then the path of this one

# Before the first marker, only the beginning of the text and the name of the repository may stand.
_BEGINNING = re.compile(
    r"(?:<s>|<\|begin_of_text\|>|<｜begin▁of▁sentence｜>)?(?:(?:<\|repo_name\|>|<reponame>|<repo_name>)[^\n<]*\n?)?"
)
_FILE = re.compile(r"<(?:\|file_sep\||file_sep|filename)>[ \t]*([^\s<]+)")
_COMMENT = re.compile(r"[ \t]*(?:#|//|--|/\*|<!--|;|%|\")+[ \t]*(.*?)[ \t]*(?:\*/|-->)?[ \t]*")
_LANGUAGE = re.compile(r"language[ \t]*:[ \t]*([\w+#.-]+)", re.IGNORECASE)
_PATH = re.compile(r"(?i:(?:file[ _]?)?(?:path|name|file)[ \t]*:[ \t]*)([^\s*]*\.\w+)|([\w.-]+(?:[/\\][\w.-]+)*\.\w+)")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a prompt contains: both sides of the cursor, the path of their file ("" if unknown), and other files."""

    prefix: str
    suffix: str
    path: str = ""
    related: tuple[Snippet, ...] = ()


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request of another client: our ask, and the options of the response."""

    ask: Ask
    n: int = 1
    stream: bool = False
    stops: tuple[str, ...] = ()
    max_tokens: int = -1
    with_usage: bool = False
    fields: tuple[str, ...] | None = None


class Cut(NamedTuple):
    """A text truncated as the client asked, and why it ends there: `stop`, `length` or `end`."""

    text: str = ""
    why: str = "end"
    n_tokens: int = 0
    stop: str = ""


def from_openai(fields: Fields, choice: int = CHOICE) -> CompletionRequest:
    """Return the request in the body of `POST /v1/completions`, with at least `choice` candidates; raise WireError."""
    prompt = fields.values.get("prompt", "")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise WireError("prompt must be one string; token lists and several prompts are not supported")
    n, suffix = fields.integer("n", 1, low=1, high=MAX_CANDIDATES), fields.text("suffix", "")
    # Clients that know the model's template, such as Zed, write both sides of the cursor into the prompt.
    parts = (None if suffix else read_prompt(prompt)) or Parts(prompt, "" if suffix == NO_SUFFIX else suffix)
    request = _request(parts, _stops(fields), Budget(candidates=max(n, choice)), fields.integer("seed", 0, **SEED_RANGE))
    max_tokens, options = fields.integer("max_tokens", -1, low=-1), fields.inner("stream_options")
    stream, usage = fields.flag("stream", default=False), options.flag("include_usage", default=False)
    return CompletionRequest(Ask(request, client="openai"), n, stream, _stops(fields), max_tokens, usage)


def from_llama(fields: Fields, choice: int = CHOICE) -> CompletionRequest:
    """Return the request in the body of `POST /infill`, with `choice` candidates; raise WireError."""
    extra = tuple(Snippet(item.text("filename", ""), item.text("text")) for item in fields.objects("input_extra", ()))
    # llama.cpp has one limit for reading and one for writing. Our deadline is their sum.
    ms = sum(max(0, fields.integer(name, 0, low=-1)) for name in ("t_max_prompt_ms", "t_max_predict_ms"))
    # `prompt` is the text between the prefix and the cursor.
    prefix, suffix = fields.text("input_prefix", "") + fields.text("prompt", ""), fields.text("input_suffix", "")
    seed, budget = max(0, fields.integer("seed", 0, **SEED_RANGE)), Budget(ms=ms, candidates=choice)
    return CompletionRequest(
        Ask(_request(Parts(prefix, suffix, related=extra), _stops(fields), budget, seed), client="llama.cpp"),
        stream=fields.flag("stream", default=False),
        stops=_stops(fields),
        max_tokens=fields.integer("n_predict", -1, low=-2),
        fields=fields.texts("response_fields") if fields.has("response_fields") else None,
    )


def _stops(fields: Fields) -> tuple[str, ...]:
    stop = fields.values.get("stop")
    return (stop,) if isinstance(stop, str) else fields.texts("stop", (), high=64)


def _request(parts: Parts, stops: tuple[str, ...], budget: Budget, seed: int) -> InfillRequest:
    prefix, suffix, path, related = parts.prefix, parts.suffix, parts.path, parts.related
    by_path = languages.for_path(path, prefix + suffix) if path else None
    language = by_path.name if by_path else declared_language(prefix)
    here = place.between(prefix, suffix)
    if here.starts_line and not here.ends_line:
        # As for our own clients, what is written before the first code of a line is a line of its own.
        document = Document("", language, prefix + suffix)
        hole = holes.at_cursor(document, len(prefix), syntax.of(document))
    else:
        # With code right of the cursor, or a line end as a stop, the client wants one line only.
        extent: Extent = "block" if here.ends_line and "\n" not in stops else "line"
        hole = Hole(Span(len(prefix), len(prefix)), "cursor", indent=here.indent, extent=extent)
    prefix, suffix = prefix + hole.lead, hole.trail + suffix
    return InfillRequest(prefix, suffix, (hole,), language=language, path=path, related=related, budget=budget, seed=seed)


def answers(
    completion: CompletionRequest, candidates: Sequence[Candidate], done: Done, facts: Mapping[str, object]
) -> list[dict[str, object]]:
    """Return the body of the response; of a stream, the bodies of its events. `facts` are its id, time and model.

    A choice is one event, because a canvas is final only when it is complete.
    """
    cuts = _cuts(completion, candidates)
    if completion.ask.client == "llama.cpp":
        body = _of_llama(completion, done, cuts[0], facts["model"])
        first = {"index": 0, "content": body.get("content", ""), "tokens": [], "stop": False}
        return [first, {**body, "content": "", "stop": True}] if completion.stream else [body]
    n_written = sum(one.n_tokens for one in cuts)
    n_read = done.prompt_tokens
    usage = {"prompt_tokens": n_read, "completion_tokens": n_written, "total_tokens": n_read + n_written}
    usage_sent = {"usage": {**usage, "prompt_tokens_details": {"cached_tokens": done.cached_tokens}}}
    base = {**facts, "object": "text_completion"}
    reasons = ["length" if one.why == "length" else "stop" for one in cuts]
    choices = [
        {"index": index, "text": one.text, "finish_reason": reason, "logprobs": None}
        for index, (one, reason) in enumerate(zip(cuts, reasons, strict=True))
    ]
    if not completion.stream:
        return [{**base, "choices": choices, **usage_sent}]
    events: list[dict[str, object]] = [{**base, "choices": [choice]} for choice in choices]
    return [*events, {**base, "choices": [], **usage_sent}] if completion.with_usage else events


def _of_llama(completion: CompletionRequest, done: Done, one: Cut, model: object) -> dict[str, object]:
    """Return the body of an infill; with `response_fields`, only those fields, under the requested names."""
    n_read, n_cached = done.prompt_tokens, done.cached_tokens
    spent = {"prompt": (n_read - n_cached, done.prompt_ms), "predicted": (one.n_tokens, done.answer_ms)}
    timings: dict[str, object] = {"cache_n": n_cached}
    for name, (n, ms) in spent.items():
        each, per_second = ms / max(n, 1), 1000 * n / ms if ms else 0.0
        timings |= {f"{name}_n": n, f"{name}_ms": ms, f"{name}_per_token_ms": each, f"{name}_per_second": per_second}
    body: dict[str, object] = {
        "index": 0, "content": one.text, "tokens": [], "id_slot": -1, "stop": True, "model": model, "prompt": "",
        "tokens_predicted": one.n_tokens, "tokens_evaluated": n_read, "tokens_cached": n_cached,
        "generation_settings": {"seed": completion.ask.request.seed}, "has_new_line": "\n" in one.text, "truncated": False,
        "stop_type": {"end": "eos", "stop": "word", "length": "limit"}[one.why], "stopping_word": one.stop, "timings": timings,
    }  # fmt: skip
    if completion.fields is None:
        return body
    flat = body | {f"timings/{name}": value for name, value in timings.items()}
    return {name: flat[name] for name in completion.fields if name in flat}


def _cuts(completion: CompletionRequest, candidates: Sequence[Candidate]) -> list[Cut]:
    """Return the polished texts of the best candidates, because other clients do not polish; at least an empty one."""
    request, hole = completion.ask.request, completion.ask.request.holes[0]
    # The request's texts have the fixed text around the answer; the document is what the client sent.
    text = request.prefix.removesuffix(hole.lead) + request.suffix.removeprefix(hole.trail)
    document = Document("", request.language, text)
    cuts = list[Cut]()
    for candidate in candidates:
        edits = polish.to_edits(candidate, request.holes, document, syntax=syntax.of(document)).edits
        if edits and len(cuts) < completion.n:
            cuts.append(_cut(candidate, "".join(edit.text for edit in edits), completion))
    return cuts or [Cut()]  # these clients read the first choice without checking that there is one


def _cut(candidate: Candidate, text: str, completion: CompletionRequest) -> Cut:
    """Return a candidate's polished text, truncated at the first stop and at the maximum number of tokens.

    Tokens are counted in proportion to characters, because a candidate does not carry its tokens' texts. A truncated line
    before the code of another line is empty, because without its line end it would join that line.
    """
    per_char = sum(map(len, candidate.confidences)) / max(len("".join(candidate.texts)), 1) or 1 / 4
    short, why, stop = text, "end", ""
    if 0 <= completion.max_tokens < math.ceil(len(text) * per_char):
        short, why = text[: int(completion.max_tokens / per_char)], "length"
    if stops := [(at, stop) for stop in completion.stops if stop and (at := short.find(stop)) >= 0]:
        end, stop = min(stops)
        short, why = short[:end], "stop"
    if len(short) < len(text) and completion.ask.request.holes[0].trail:
        short = ""
    return Cut(short, why, math.ceil(len(short) * per_char), stop)


def read_prompt(prompt: str) -> Parts | None:
    """Return the parts of a prompt in one of the templates of models; None for text that merely contains their markers."""
    for template in templates.TEMPLATES:
        first, second, last = re.split(r"\{(?:prefix|suffix)\}", template.format)
        head, is_there, rest = prompt.partition(first)
        one, is_two, other = rest.removesuffix(last).partition(second)
        if not (is_there and is_two and rest.endswith(last)):
            continue
        sides = (one, other) if template.format.find("{prefix}") < template.format.find("{suffix}") else (other, one)
        if not (head := _BEGINNING.sub("", head, count=1)):
            return Parts(*sides)
        if template.path_mark and head.startswith(template.path_mark):
            *others, (path, _, left) = [part.partition("\n") for part in head.split(template.path_mark)[1:]]
            if not left:
                return Parts(*sides, path, tuple(Snippet(name, text) for name, _, text in others))
    return None


def declared_language(before: str) -> str:
    """Return the name of the language that the text before a cursor declares, "" if it declares none or an unknown one."""
    before = before.replace("\r\n", "\n")
    # Other files may come before the one with the cursor.
    before = before[max((match.start() for match in _FILE.finditer(before)), default=0) :]
    found = _declared(before)
    return found.name if found else ""


def _declared(before: str) -> Language | None:
    first, path = first_line(before), match[1] if (match := _FILE.match(before)) else ""
    if first.lstrip("\ufeff").startswith("#!"):
        return languages.for_path("", first)
    for line in before[:LEAD_CHARS].split("\n")[:-1] if not path else ():
        comment = _COMMENT.fullmatch(line)
        if line.strip() and not comment:
            break
        said = comment[1] if comment else ""
        if match := _LANGUAGE.fullmatch(said):
            return languages.by_id(match[1]) or languages.for_path(f".{match[1].lower()}")
        if match := _PATH.fullmatch(said):
            path = match[1] or match[2]
    return languages.for_path(path, before) if path else None
