"""DiffusionGemma on a vLLM server of version 0.33 or later, whose completions endpoint accepts a canvas with held positions.

A canvas is laid out as for the local model, with our own noise at its free positions. The server denoises several canvases
together, with different gap lengths and seeds. The tokens between the held positions are the answer. The server returns the
model's prediction at every position, also at held ones. The share of held positions that it predicts correctly shows how
well an answer fits.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dg_lsp.core import extent, wording
from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.backends.http_client import Call, RemoteError, ServerClient, server_at
from dg_lsp.engine.backends.remote import (
    Backend,
    RemoteFiller,
    Replies,
    choices,
    compared,
    to_probability,
    token_features,
    trimmed,
)
from dg_lsp.engine.common import layout as common_layout
from dg_lsp.engine.diffusion import layout
from dg_lsp.engine.diffusion.layout import CanvasProfile, CanvasPrompt, Instruct, load_profile
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.wire.config import Config
from dg_lsp.wire.messages import Fields, WireError
from dg_lsp.wire.model_names import folder_of

CLOSING_TOKENS = 8  # the most tokens that end a canvas after the held text
LEAST_AGREEMENT = 0.5
MAX_CANVAS = 1 << 16
# The `max_denoising_steps` of the documented commands. The temperature falls over the server's limit, not over a request's
# own, and no server reports its limit. A request with fewer steps would end at a high temperature. More are cut to the limit.
SERVED_STEPS = 16
MAX_ROWS = 8  # canvases of one request: vLLM's default batch for this model; further ones would have to wait
WIDTH_STEP = 16
FULL_WIDTH = 64  # up to this, the whole canvas is used: a step takes about as long, and only that width has full graphs
LEAST_PREFIX_TOKENS = 64
MAX_WINDOW = 1 << 26  # tokens; for a server that does not report its window
FULL_AGREEMENT = 0.9  # an answer is doubted if the model predicts a smaller share of the held text correctly


def connect(
    url: str, model: str, configured: Config, on_progress: Callable[[str, float], None] = lambda _text, _share: None
) -> RemoteFiller:
    """Return a filler for the server at `url`; raise RemoteError if it can't infill.

    `model` is the folder or hub id of the server's tokenizer; "" means the name that the server reports.
    """
    client = ServerClient(server_at(url, configured))
    try:
        served, vocabulary, profile = probe(client, model, on_progress)
        return RemoteFiller(Vllm(served, vocabulary, profile), client, configured.settings.local_only)
    except BaseException as error:
        client.close()
        if isinstance(error, ValueError):  # the layout can't use the profile or the vocabulary
            raise RemoteError(str(error)) from error
        raise


class Vllm(Backend):
    """The backend for a vLLM server."""

    def __init__(self, served: Served, vocabulary: Vocabulary, profile: CanvasProfile) -> None:
        """Fit the profile to the served canvas; raise ValueError if the vocabulary does not suit the layout."""
        self.served, self.vocabulary, self.model = served, vocabulary, served.model
        self.profile = replace(
            profile,
            canvas_tokens=min(profile.canvas_tokens, served.canvas),
            held_tokens=min(profile.held_tokens, served.canvas // 4),
        )
        Instruct(self.profile, vocabulary)  # fails here rather than at the first request
        eos, pad = vocabulary.id("<eos>"), vocabulary.id("<pad>")
        self._pad = pad if pad is not None else eos if eos is not None else 0

    def takes_together(self, request: InfillRequest) -> bool:
        return layout.fits_one_canvas(request, self.profile, self.vocabulary, CLOSING_TOKENS)

    def about(self) -> Mapping[str, object]:
        served = self.served
        rows = {"rows": served.max_rows} if served.max_rows else {}
        return {"remote": {"model": served.model, "canvas": served.canvas, "vllm": served.version, **rows}}

    def calls(self, request: InfillRequest) -> Sequence[Call]:
        """Return one call for each canvas; raise RemoteError if the request does not fit the server's window."""
        prompt = self._prompt(request)
        sampling, is_block = self.profile.sampling, request.extent == "block"
        usual = sampling.block_steps if is_block else sampling.line_steps
        steps = request.budget.steps or max(usual, SERVED_STEPS)
        return [self._call(prompt, canvas, steps) for canvas in self._canvases(request, prompt)]

    def evidence(self, request: InfillRequest, replies: Replies) -> tuple[Evidence, ...]:
        """Return a candidate with its features for each canvas that came back with most of its held text.

        They are ordered by the mean probability of the answer's tokens times the share of held text that the model predicts
        correctly. Raises RemoteError if no canvas came back with most of its held text.
        """
        canvases = [
            (canvas, self._read(canvas, fields)) for call, fields in replies if isinstance(canvas := call.about, PinnedCanvas)
        ]
        agreeing = [
            (canvas, returned, share)
            for canvas, returned in canvases
            if (share := agreement(canvas, returned)) >= LEAST_AGREEMENT
        ]
        if canvases and not agreeing:
            raise unfit(self.served.host, "returned canvases without their held text")
        items = [evidence_of(request, self.vocabulary, canvas, returned, share) for canvas, returned, share in agreeing]
        return compared(items, request)

    def _prompt(self, request: InfillRequest) -> CanvasPrompt:
        """Return the request as tokens that fit the server's window.

        In a short window, related text is left out first; then the context is halved until it fits. Raises RemoteError if even
        the smallest context does not fit.
        """
        served, profile, alone = self.served, self.profile, replace(request, related=())
        n_free = served.max_tokens - served.canvas if served.max_tokens else MAX_WINDOW
        attempts = [(request, profile), (alone, profile)]
        while profile.prefix_tokens > LEAST_PREFIX_TOKENS:
            profile = replace(profile, prefix_tokens=profile.prefix_tokens // 2, suffix_tokens=profile.suffix_tokens // 2)
            attempts.append((alone, profile))
        for attempt, fitting in attempts:
            prompt = Instruct(fitting, self.vocabulary).lay_out(attempt)
            if len(prompt.ids) <= n_free:
                return prompt
        raise RemoteError(
            f"{served.host} serves windows of {served.max_tokens} tokens, too short for infilling; "
            "start it with a larger --max-model-len"
        )

    def _canvases(self, request: InfillRequest, prompt: CanvasPrompt) -> Iterator[PinnedCanvas]:
        """Yield as many canvases as requested: each gap length once, then again with other noise.

        Raises RemoteError if the served canvas is too short.
        """
        is_block, served = request.extent == "block", self.served
        lengths = self.profile.block_gaps if is_block else self.profile.line_gaps
        n_fixed = len(prompt.heal_ids) + sum(map(len, prompt.between)) + len(prompt.tail)
        longest = (self.profile.canvas_tokens - n_fixed) // len(request.holes)
        if longest < 1:
            raise RemoteError(
                f"{served.host} serves canvases of {served.canvas} tokens, too short for this request; "
                "start it with a larger canvas_length in --diffusion-config"
            )
        most = min(MAX_ROWS, served.max_rows or MAX_ROWS)
        gaps = _spread([length for length in lengths if length <= longest] or [longest], most)
        # All have the same width, because the server's graphs are captured for batches of one width.
        # The served width runs fastest. A narrower canvas is faster only if it is much narrower.
        width, n_filled = served.canvas, n_fixed + max(gaps) * len(request.holes)
        if width > FULL_WIDTH and n_filled <= width // 2:
            width = min(-(-(n_filled + 1) // WIDTH_STEP) * WIDTH_STEP, width)
        for number in range(min(most, max(len(gaps), request.budget.candidates))):
            # A text as the seed gives the same noise in every process, and different noise for each row.
            noise = random.Random(f"{request.seed} {number}")
            yield self._canvas(request, prompt, gaps[number % len(gaps)], width, noise)

    def _canvas(self, request: InfillRequest, prompt: CanvasPrompt, gap: int, width: int, noise: random.Random) -> PinnedCanvas:
        # The server can't constrain a token to begin with certain letters, so the tokens that local models heal are held here.
        ids, gaps = list(prompt.heal_ids), [-1] * len(prompt.heal_ids)
        for index in range(len(request.holes)):
            # Noise comes from the whole vocabulary, as in training. Noise that looks like code is denoised to similar code.
            ids += noise.choices(self.vocabulary.regular, k=gap)
            gaps += [index] * gap
            if index < len(prompt.between):
                ids += prompt.between[index]
                gaps += [-1] * len(prompt.between[index])
        ids += prompt.tail
        n_filled = len(ids)
        # vLLM fills its own canvases in the same way: an end of turn, unless there is one already, then padding.
        ending = prompt.closing[:1] if n_filled < width and ids[-1] not in prompt.closing else ()
        ids += [*ending, *[self._pad] * (width - n_filled - len(ending))]
        return PinnedCanvas(tuple(ids), (*gaps, *[-1] * (width - len(gaps))), n_filled)

    def _call(self, prompt: CanvasPrompt, canvas: PinnedCanvas, steps: int) -> Call:
        # For a diffusion model the server refuses a temperature and a seed.
        width = len(canvas.ids)
        body = {
            "model": self.served.model,
            "prompt": list(prompt.ids),
            "max_tokens": width,
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "vllm_xargs": {
                "diffusion_canvas_length": width,
                "diffusion_seed_canvas": list(canvas.ids),
                "diffusion_pinned": list(canvas.held),
                "diffusion_max_steps": steps,
                "diffusion_read_only": 1,
            },
        }
        return Call(COMPLETIONS, body, canvas)

    def _read(self, canvas: PinnedCanvas, fields: Fields) -> Returned:
        """Return a canvas from a server's answer; raise RemoteError or WireError if it is malformed."""
        choice = choices(fields)[0]
        width = len(canvas.ids)
        logprobs = choice.inner("logprobs")
        if choice.has("token_ids"):
            ids = tuple(_token_id(value) for value in choice.items("token_ids", high=MAX_CANVAS))
        else:
            ids = tuple(_token_id(name.rpartition(":")[2]) for name in logprobs.texts("tokens", (), high=MAX_CANVAS))
        if len(ids) != width:
            raise unfit(self.served.host, f"returned {len(ids)} tokens for a canvas of {width}")
        logs = logprobs.items("token_logprobs", (), high=MAX_CANVAS)
        if len(logs) != width:
            raise WireError(f"token_logprobs has {len(logs)} entries for {width} tokens")
        return tuple(zip(ids, map(to_probability, logs), strict=True))


def _token_id(value: object) -> int:
    """Return a token id; raise WireError if the value is not one."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise WireError("token_ids must be whole numbers")


@dataclass(frozen=True, slots=True)
class PinnedCanvas:
    """A row of token ids, and for each position its gap's index, or -1 if it is held."""

    ids: tuple[int, ...]
    gaps: tuple[int, ...]
    n_filled: int
    """The number of positions that the request uses; the rest is padding."""

    @property
    def held(self) -> tuple[int, ...]:
        """The held positions."""
        return tuple(position for position, gap in enumerate(self.gaps) if gap < 0)


Returned = Sequence[tuple[int, float]]
"""A denoised canvas: the model's prediction at each position, and its probability."""


def _spread(lengths: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most `most` of the lengths, evenly spread. The longest is always among them, then the shortest."""
    if len(lengths) <= most:
        return tuple(lengths)
    last = len(lengths) - 1
    return tuple(lengths[last - round(number * last / max(most - 1, 1))] for number in range(most))[::-1]


def agreement(canvas: PinnedCanvas, returned: Returned) -> float:
    """Return the share of held positions where the model predicts the held token; 1.0 if none is held."""
    held = [position for position in canvas.held if position < canvas.n_filled]
    return sum(canvas.ids[position] == returned[position][0] for position in held) / len(held) if held else 1.0


def evidence_of(
    request: InfillRequest, vocabulary: Vocabulary, canvas: PinnedCanvas, returned: Returned, share: float
) -> Evidence:
    """Return a denoised canvas as a candidate, ordered by the mean probability of its tokens times `share`."""
    texts, confidences = [], []
    for index, hole in enumerate(request.holes):
        gap = [pair for pair, gap in zip(returned, canvas.gaps, strict=True) if gap == index]
        answer = list(answer_tokens(vocabulary, gap))
        text = common_layout.answer(vocabulary, [token for token, _ in answer], b"")
        text, chances = trimmed(text, tuple(chance for _, chance in answer), extent.of(hole, request.place))
        texts.append(text)
        confidences.append(chances)
    features = token_features([chance for row in confidences for chance in row], "".join(texts))
    features |= {"share": share, "gap": math.log1p(len(canvas.gaps) - len(canvas.held))}
    candidate = Candidate(tuple(texts), confidences=tuple(confidences))
    return Evidence(candidate, share * math.exp(features["mean"]), features, doubted=share < FULL_AGREEMENT)


def answer_tokens(vocabulary: Vocabulary, gap: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """Yield a gap's tokens up to a token that ends the answer."""
    for token, chance in gap:
        if token in vocabulary.special or token >= len(vocabulary.pieces):
            return
        yield token, chance


# --- What a server serves: its version, its model and tokenizer, and the length of its canvas


OLDEST = (0, 33)
COMPLETIONS = "/v1/completions"
GENERATE = "/inference/v1/generate"
TOO_MANY_ROWS = 128  # more than vLLM 0.33 accepts for DiffusionGemma, where its limit is 8 by default
WIDTHS = (256, 192, 128, 96, 64, 48, 32, 16)
SAMPLE = "def add(a, b):\n    return a + b  # naïve\n"


@dataclass(frozen=True, slots=True)
class Served:
    """What a server serves. Lengths are in tokens; 0 if the server does not report them.

    `max_rows` is how many requests it denoises together.
    """

    host: str
    model: str
    canvas: int
    max_tokens: int = 0
    version: str = ""
    max_rows: int = 0


def probe(
    client: ServerClient, model: str, on_progress: Callable[[str, float], None]
) -> tuple[Served, Vocabulary, CanvasProfile]:
    """Return what the server serves, and its model's tokenizer and profile; raise RemoteError if it can't infill.

    `model` is the folder or hub id of the server's tokenizer; "" means the name that the server reports.
    """
    version = _version(client)
    name, root, max_tokens = _model(client, model)
    on_progress("reading the tokenizer", 0.5)
    folder = tokenizer_folder(model or root or name)
    try:
        vocabulary, loaded_profile = Vocabulary.from_file(folder / "tokenizer.json"), load_profile(folder)
    # The tokenizers library raises no narrower class.
    except Exception as error:
        raise RemoteError(f"the tokenizer and profile in {folder} can't be read: {error}") from error
    on_progress("querying the canvas", 0.8)
    _compare(client, name, vocabulary)
    canvas = _canvas_length(client, name)
    served = Served(client.host, name, canvas, max_tokens, version, _admitted_rows(client, name))
    return served, vocabulary, loaded_profile


def tokenizer_folder(name: str) -> Path:
    """Return the folder with a model's tokenizer, fetched from the hub if needed; raise RemoteError if there is none."""
    folder = folder_of(name)
    if folder is not None and folder.is_dir():
        if (folder / "tokenizer.json").is_file():
            return folder
        raise RemoteError(f"{folder} has no tokenizer.json")
    advice = "name the served model's folder or hub id at the end, as in vllm:http://HOST:8000#OWNER/NAME"
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise RemoteError(f"the tokenizer of {name} is not available here; {advice}")
    try:
        from huggingface_hub import snapshot_download

        snapshot = Path(snapshot_download(name, allow_patterns=["tokenizer.json", "dg_lsp.json"]))
    # Every failure of the download is reported in the same way.
    except Exception as error:
        raise RemoteError(
            f"the tokenizer of {name} can't be fetched from the hub ({wording.reason(error)}); {advice}"
        ) from error
    if not (snapshot / "tokenizer.json").is_file():
        raise RemoteError(f"{name} has no tokenizer.json; {advice}")
    return snapshot


def unfit(host: str, what: str) -> RemoteError:
    """Return the error for a server that can't infill; `what` is the predicate of its first sentence."""
    return RemoteError(
        f"{host} {what}: it is too old to infill, or serves no DiffusionGemma; "
        "upgrade it to vLLM 0.33 or later, or use it as chat:URL, or as fim:openai:URL if its model fills in the middle"
    )


def _answer(client: ServerClient, path: str, body: Mapping[str, object] | None = None) -> Fields | RemoteError:
    """Return a server's answer, or its refusal; raise RemoteError if it does not respond."""
    try:
        return client.ask(Call(path, body))
    except RemoteError as error:
        if not error.status:
            raise
        return error


def _version(client: ServerClient) -> str:
    """Return the server's version, or "" if it is unknown; raise RemoteError if it is too old."""
    version, answer = "", _answer(client, "/version")
    with contextlib.suppress(WireError):
        version = answer.text("version", "") if isinstance(answer, Fields) else ""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    # Every build from source has the version 0.1.dev…
    if match and ".dev" not in version and (int(match[1]), int(match[2])) < OLDEST:
        raise unfit(client.host, f"runs vLLM {version}")
    return version


def _model(client: ServerClient, name: str) -> tuple[str, str, int]:
    """Return the served model's name, the name it was loaded from, and its window; raise RemoteError if no model is served."""
    try:
        cards = client.ask(Call("/v1/models")).objects("data")
        models = [(card.text("id"), card.text("root", ""), card.integer("max_model_len", 0)) for card in cards]
    except WireError as error:
        raise RemoteError(f"{client.host} did not list its models: {error}") from error
    if not models:
        raise RemoteError(f"{client.host} serves no model")
    named = [model for model in models if name and name in model[:2]]
    return (named or models)[0]


def _compare(client: ServerClient, model: str, vocabulary: Vocabulary) -> None:
    """Raise RemoteError if the server's tokenizer gives other tokens than ours. A server without the endpoint is trusted."""
    body = {"model": model, "prompt": SAMPLE, "add_special_tokens": False}
    answer = _answer(client, "/tokenize", body)
    with contextlib.suppress(WireError):
        if isinstance(answer, Fields) and list(answer.items("tokens", high=1024)) != vocabulary.encode(SAMPLE):
            raise RemoteError(
                f"{client.host} serves {model} with a tokenizer other than the given one; "
                "name the served model's own folder or hub id after the #"
            )


def _canvas_length(client: ServerClient, model: str) -> int:
    """Return the length of the served canvas; raise RemoteError if the server does not support canvases.

    The server refuses a canvas of one token with a message that contains the right length. This costs it no work.
    """
    refusal = _refusal(client, model, {"diffusion_seed_canvas": [0]})
    if refusal is None:
        raise unfit(client.host, "does not accept a canvas")
    if length := re.search(r"exactly (\d{1,6}) ids", refusal.server_message):
        return int(length[1])
    if "diffusion" not in refusal.server_message:
        raise refusal
    # The message has another wording: find the widest canvas that is accepted.
    for width in WIDTHS:
        xargs = {
            "diffusion_canvas_length": width,
            "diffusion_seed_canvas": [0] * width,
            "diffusion_max_steps": 1,
            "diffusion_read_only": 1,
        }
        if _refusal(client, model, xargs, width) is None:
            return width
    raise unfit(client.host, "does not accept a canvas")


def _admitted_rows(client: ServerClient, model: str) -> int:
    """Return how many requests the server denoises together (`--max-num-seqs`); 0 if it does not report this.

    The server refuses a request for more answers with a message that contains the limit. This costs it no work. For
    DiffusionGemma the limit is always below the number requested here.
    """
    body = {"model": model, "token_ids": [0], "sampling_params": {"n": TOO_MANY_ROWS, "max_tokens": 1}}
    answer = _answer(client, GENERATE, body)
    message = answer.server_message if isinstance(answer, RemoteError) else ""
    limit = re.search(r"max_num_seqs \((\d{1,4})\)", message)
    return int(limit[1]) if limit else 0


def _refusal(client: ServerClient, model: str, xargs: Mapping[str, object], max_tokens: int = 1) -> RemoteError | None:
    """Return the server's refusal of a canvas, or None if it accepts it; raise RemoteError for other failures."""
    body = {"model": model, "prompt": [0], "max_tokens": max_tokens, "vllm_xargs": dict(xargs)}
    answer = _answer(client, COMPLETIONS, body)
    if isinstance(answer, Fields):
        return None
    if answer.status != 400:
        raise answer
    return answer
