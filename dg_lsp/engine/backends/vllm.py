"""DiffusionGemma on a vLLM server of version 0.33 or later: its completions endpoint takes a canvas with held positions.

A canvas is laid out here as for the local model, with our own noise at its free positions; the server denoises it, a few
gap lengths and seeds at the same time, and what it writes between the held positions is the answer. The server emits what
the model reads at every position, held ones too: how far that agrees with what was held there tells how well an answer
fits. Knows vLLM's protocol, layouts and token ids, which come from the model's own tokenizer. Knows nothing of tensors.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine import layout
from dg_lsp.engine.backends.calls import Call, Line, RemoteError, Server
from dg_lsp.engine.backends.remote import Answer, RemoteFiller, merged, to_probability, trimmed
from dg_lsp.engine.layout import Sheet
from dg_lsp.engine.profile import Profile
from dg_lsp.engine.profile import load as load_profile
from dg_lsp.engine.vocabulary import Vocabulary
from dg_lsp.wire.config import Config, expanded
from dg_lsp.wire.fields import Fields, WireError

OLDEST = (0, 33)
COMPLETIONS = "/v1/completions"
MAX_ROWS = 8  # canvases of one request; more would wait for each other in a server's usual batch
WIDTHS = (256, 192, 128, 96, 64, 48, 32, 16)
WIDTH_STEP = 16
CLOSING_TOKENS = 8  # at most so many end a canvas behind the held text
LEAST_AGREEMENT = 0.5
MAX_CANVAS = 1 << 16
SAMPLE = "def add(a, b):\n    return a + b  # naïve\n"


@dataclass(frozen=True, slots=True)
class Served:
    """What a server was found to serve. Lengths are tokens; 0 where it does not tell."""

    host: str
    model: str
    canvas: int
    max_tokens: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class Canvas:
    """A row of token ids, and for each position the gap it belongs to, or -1 where it is held."""

    ids: tuple[int, ...]
    gaps: tuple[int, ...]
    n_filled: int
    """How many positions are the request's; what is right of them only fills the canvas up."""

    @property
    def held(self) -> tuple[int, ...]:
        """The positions that are held."""
        return tuple(place for place, gap in enumerate(self.gaps) if gap < 0)


@dataclass(frozen=True, slots=True)
class Row:
    """What one canvas came to: what the model reads at each position, and how surely."""

    ids: tuple[int, ...]
    chances: tuple[float, ...]


def load(
    url: str, model: str, configured: Config, say: Callable[[str, float], None] = lambda _text, _share: None
) -> RemoteFiller:
    """Return a filler on the server at `url`; raise RemoteError when it can't infill, with a sentence that says why.

    `model` is the folder or hub id whose tokenizer the server uses; "" is what the server names.
    """
    server = Server(url)
    server = replace(server, key=configured.key_for(server.host))
    line = Line(server)
    try:
        version = _version(line)
        name, root, max_tokens = _model(line, model)
        say("reading the tokenizer", 0.5)
        folder = find(model or root or name)
        try:
            vocabulary, profile = Vocabulary.from_file(folder / "tokenizer.json"), load_profile(folder)
        # The tokenizers library raises nothing more telling.
        except Exception as error:
            raise RemoteError(f"{folder} holds no tokenizer and profile that can be read: {error}") from error
        say("asking for the canvas", 0.8)
        _compare(line, name, vocabulary)
        canvas = _canvas_length(line, name)
        served = Served(server.host, name, canvas, max_tokens, version)
        return RemoteFiller(Vllm(served, vocabulary, profile), line, configured.local_only)
    except BaseException as error:
        line.close()
        if isinstance(error, ValueError):  # a profile or vocabulary that the layout can't use
            raise RemoteError(str(error)) from error
        raise


def find(name: str) -> Path:
    """Return a folder with the tokenizer of a model, which is a folder or a hub id; raise RemoteError when there is none."""
    folder = expanded(name)
    if folder.is_dir():
        if (folder / "tokenizer.json").is_file():
            return folder
        raise RemoteError(f"{folder} holds no tokenizer.json")
    advice = "name the served model's folder or hub id at the end, as in vllm:http://HOST:8000#OWNER/NAME"
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise RemoteError(f"the tokenizer of {name} can't be had here; {advice}")
    try:
        from huggingface_hub import snapshot_download

        found = Path(snapshot_download(name, allow_patterns=["tokenizer.json", "dg_lsp.json"]))
    # Whatever goes wrong between here and the hub comes to the same.
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise RemoteError(f"the tokenizer of {name} is not to be had from the hub ({first}); {advice}") from error
    if not (found / "tokenizer.json").is_file():
        raise RemoteError(f"{name} has no tokenizer.json; {advice}")
    return found


class Vllm:
    """How a vLLM server is asked to infill."""

    def __init__(self, served: Served, vocabulary: Vocabulary, profile: Profile) -> None:
        """Fit the profile to the canvas that is served; raise ValueError when the vocabulary does not suit its layout."""
        self.served, self.vocabulary = served, vocabulary
        self.profile = replace(
            profile,
            canvas_tokens=min(profile.canvas_tokens, served.canvas),
            held_tokens=min(profile.held_tokens, served.canvas // 4),
        )
        layout.for_profile(self.profile, vocabulary)  # says what is missing before the first request does
        self.regular = tuple(
            token for token, piece in enumerate(vocabulary.pieces) if piece and token not in vocabulary.special
        )
        eos = vocabulary.id("<eos>")
        pad = vocabulary.id("<pad>")
        self.pad = pad if pad is not None else eos if eos is not None else 0

    def takes_together(self, request: InfillRequest) -> bool:
        """Return whether the holes and the text between them stand on one canvas, each with room for an answer."""
        profile, n_holes = self.profile, len(request.holes)
        gaps = profile.block_gaps if any(hole.block for hole in request.holes) else profile.line_gaps
        fixed = sum(len(self.vocabulary.encode(text)) for text in request.between) + profile.held_tokens + CLOSING_TOKENS
        return n_holes <= profile.gaps_per_canvas and fixed + n_holes * min(gaps) <= profile.canvas_tokens

    def about(self) -> Mapping[str, object]:
        """Return facts about the server by name."""
        served = self.served
        return {"remote": {"model": served.model, "canvas": served.canvas, "vllm": served.version}}

    def calls(self, request: InfillRequest) -> Sequence[Call]:
        """Return one call for each canvas; raise RemoteError when the request does not fit the server's window."""
        sheet = self._fitting(request)
        sampling, block = self.profile.sampling, any(hole.block for hole in request.holes)
        steps = request.budget.steps or (sampling.block_steps if block else sampling.line_steps)
        return [self._call(sheet, canvas, steps) for canvas in self._canvases(request, sheet)]

    def best(self, request: InfillRequest, answers: Sequence[Answer]) -> tuple[Candidate, ...]:
        """Return a candidate for each canvas that came back with most of its held text, best first.

        The score is the mean probability of the answer's tokens, less the share of held text that the model would
        rather read otherwise. Raises RemoteError when no canvas came back so.
        """
        rows = [(canvas, self._read(answer)) for answer in answers if isinstance(canvas := answer.call.about, Canvas)]
        kept = [(canvas, row, share) for canvas, row in rows if (share := agreement(canvas, row)) >= LEAST_AGREEMENT]
        if rows and not kept:
            raise self._unfit("returned canvases without the text that was held on them")
        return merged([self._candidate(request, canvas, row, share) for canvas, row, share in kept])

    def _call(self, sheet: Sheet, canvas: Canvas, steps: int) -> Call:
        # Nothing else is sent: for a diffusion model the server refuses a temperature or a seed.
        width = len(canvas.ids)
        body = {
            "model": self.served.model,
            "prompt": list(sheet.kv),
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

    def _fitting(self, request: InfillRequest) -> Sheet:
        """Return the sheet; without related text, and then with less and less context, where the window is too short."""
        room = self.served.max_tokens - self.served.canvas if self.served.max_tokens else MAX_CANVAS * 1024
        profile = self.profile
        for attempt in (request, replace(request, related=())):
            sheet = layout.for_profile(profile, self.vocabulary).lay_out(attempt)
            if len(sheet.kv) <= room:
                return sheet
        while profile.prefix_tokens > 64:
            profile = replace(profile, prefix_tokens=profile.prefix_tokens // 2, suffix_tokens=profile.suffix_tokens // 2)
            sheet = layout.for_profile(profile, self.vocabulary).lay_out(replace(request, related=()))
            if len(sheet.kv) <= room:
                return sheet
        raise RemoteError(
            f"{self.served.host} serves windows of {self.served.max_tokens} tokens, too short for infilling; "
            "start it with a larger --max-model-len"
        )

    def _canvases(self, request: InfillRequest, sheet: Sheet) -> Iterator[Canvas]:
        """Yield canvases with several gap lengths, and then with other noise, until there are as many as are wanted."""
        gaps = self._gaps(request, sheet)
        n_rows = min(MAX_ROWS, max(len(gaps), request.budget.candidates))
        for number in range(n_rows):
            gap = gaps[number % len(gaps)]
            # A text as seed: the same in every process, and another for each row.
            yield self._canvas(request, sheet, gap, random.Random(f"{request.seed} {number}"))

    def _gaps(self, request: InfillRequest, sheet: Sheet) -> tuple[int, ...]:
        gaps = self.profile.block_gaps if any(hole.block for hole in request.holes) else self.profile.line_gaps
        room = self.profile.canvas_tokens - len(sheet.heal_ids) - len(sheet.tail) - sum(map(len, sheet.between))
        each = room // len(request.holes)
        if each < 1:
            raise RemoteError(
                f"{self.served.host} serves canvases of {self.served.canvas} tokens, too short for this request; "
                "start it with a larger canvas_length in --diffusion-config"
            )
        return tuple(gap for gap in gaps if gap <= each) or (each,)

    def _canvas(self, request: InfillRequest, sheet: Sheet, gap: int, noise: random.Random) -> Canvas:
        # No position can be told to begin with certain letters here, so what is healed elsewhere is held.
        ids, gaps = list(sheet.heal_ids), [-1] * len(sheet.heal_ids)
        for index in range(len(request.holes)):
            # From the whole vocabulary, as in training: noise that looks like code is denoised to more of the kind.
            ids += noise.choices(self.regular, k=gap)
            gaps += [index] * gap
            if index < len(sheet.between):
                ids += sheet.between[index]
                gaps += [-1] * len(sheet.between[index])
        ids += sheet.tail
        n_filled = len(ids)
        # The width that is served runs fastest; narrower ones only pay when they are much narrower.
        served = self.served.canvas
        width = served if n_filled > served // 2 else -(-n_filled // WIDTH_STEP) * WIDTH_STEP
        width = min(max(width, n_filled), served)
        ids += [self.pad] * (width - n_filled)
        return Canvas(tuple(ids), (*gaps, *[-1] * (width - len(gaps))), n_filled)

    def _read(self, answer: Answer) -> Row:
        """Return what a server answered; raise RemoteError when it is no canvas."""
        assert isinstance(answer.call.about, Canvas)
        [choice, *_] = answer.fields.objects("choices") or (None,)
        if choice is None:
            raise WireError("choices is empty")
        width = len(answer.call.about.ids)
        logprobs = choice.inner("logprobs")
        if choice.has("token_ids"):
            ids = tuple(_whole(value) for value in choice.items("token_ids", high=MAX_CANVAS))
        else:
            ids = tuple(_whole(name.rpartition(":")[2]) for name in logprobs.texts("tokens", (), high=MAX_CANVAS))
        if len(ids) != width:
            raise self._unfit(f"returned {len(ids)} tokens for a canvas of {width}")
        told = logprobs.items("token_logprobs", (), high=MAX_CANVAS)
        if len(told) != width:
            raise WireError(f"token_logprobs has {len(told)} entries for {width} tokens")
        return Row(ids, tuple(map(to_probability, told)))

    def _candidate(self, request: InfillRequest, canvas: Canvas, row: Row, share: float) -> Candidate:
        texts, confidences = [], []
        for index, hole in enumerate(request.holes):
            written = [
                (token, chance) for token, chance, gap in zip(row.ids, row.chances, canvas.gaps, strict=True) if gap == index
            ]
            answer = list(self._written(written))
            text = layout.answer(self.vocabulary, [token for token, _ in answer], b"")
            text, sure = trimmed(text, tuple(chance for _, chance in answer), block=hole.block)
            texts.append(text)
            confidences.append(sure)
        chances = [chance for part in confidences for chance in part]
        score = share * math.exp(sum(math.log(max(chance, 1e-9)) for chance in chances) / max(len(chances), 1))
        return Candidate(tuple(texts), score, tuple(confidences))

    def _written(self, gap: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float]]:
        """Yield what counts of a gap: not its delete tokens, and nothing behind a token that ends the answer."""
        delete = self.vocabulary.id("<delete>")
        for token, chance in gap:
            if token == delete:
                continue
            if token in self.vocabulary.special or token >= len(self.vocabulary.pieces):
                return
            yield token, chance

    def _unfit(self, what: str) -> RemoteError:
        return _unfit(self.served.host, what)


def agreement(canvas: Canvas, row: Row) -> float:
    """Return at what share of the held positions the model reads what is held there; 1.0 where none is held."""
    held = [place for place in canvas.held if place < canvas.n_filled]
    return sum(canvas.ids[place] == row.ids[place] for place in held) / len(held) if held else 1.0


def _unfit(host: str, what: str) -> RemoteError:
    return RemoteError(
        f"{host} {what}: it is too old to infill, or serves no DiffusionGemma; "
        "upgrade it to vLLM 0.33 or later, or use it as fim:openai:URL if its model fills in the middle"
    )


def _whole(value: object) -> int:
    """Return a token id; raise WireError when it is none."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise WireError("token_ids must be whole numbers")


def _version(line: Line) -> str:
    """Return the server's version; raise RemoteError when it is too old. One that does not tell is tried."""
    try:
        version = line.ask(Call("/version")).text("version", "")
    except (RemoteError, WireError) as error:
        if isinstance(error, RemoteError) and not error.status:
            raise
        return ""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    # Builds from source call themselves 0.1.dev…, whatever is in them.
    if found and ".dev" not in version and (int(found[1]), int(found[2])) < OLDEST:
        raise _unfit(line.server.host, f"runs vLLM {version}")
    return version


def _model(line: Line, wanted: str) -> tuple[str, str, int]:
    """Return the name of the served model, what it was loaded from, and its window; raise RemoteError when there is none."""
    try:
        cards = line.ask(Call("/v1/models")).objects("data")
        models = [(card.text("id"), card.text("root", ""), card.integer("max_model_len", 0)) for card in cards]
    except WireError as error:
        raise RemoteError(f"{line.server.host} does not say which models it serves: {error}") from error
    if not models:
        raise RemoteError(f"{line.server.host} serves no model")
    named = [found for found in models if wanted and wanted in found[:2]]
    return (named or models)[0]


def _compare(line: Line, model: str, vocabulary: Vocabulary) -> None:
    """Raise RemoteError when the server makes other tokens of a text than we do; one that does not tell is trusted."""
    body = {"model": model, "prompt": SAMPLE, "add_special_tokens": False}
    with contextlib.suppress(WireError):
        try:
            theirs = line.ask(Call("/tokenize", body)).items("tokens", high=1024)
        except RemoteError as error:
            if not error.status:
                raise
            return
        if list(theirs) != vocabulary.encode(SAMPLE):
            raise RemoteError(
                f"{line.server.host} serves {model} with another tokenizer than the one given; "
                "name the served model's own folder or hub id after the #"
            )


def _canvas_length(line: Line, model: str) -> int:
    """Return the length of the canvas that is served; raise RemoteError when the server knows no canvas.

    A canvas of one token is refused with the length that it should have, and no work is done for that.
    """
    refused = _refusal(line, model, {"diffusion_seed_canvas": [0]})
    if refused is None:
        raise _unfit(line.server.host, "takes no canvas")
    if told := re.search(r"exactly (\d{1,6}) ids", refused.said):
        return int(told[1])
    if "diffusion" not in refused.said:
        raise refused
    # Another wording: the widest canvas that is not refused.
    for width in WIDTHS:
        xargs = {
            "diffusion_canvas_length": width,
            "diffusion_seed_canvas": [0] * width,
            "diffusion_max_steps": 1,
            "diffusion_read_only": 1,
        }
        if _refusal(line, model, xargs, width) is None:
            return width
    raise _unfit(line.server.host, "takes no canvas")


def _refusal(line: Line, model: str, xargs: Mapping[str, object], max_tokens: int = 1) -> RemoteError | None:
    """Return how the server refuses a canvas, or None; raise RemoteError when it fails otherwise."""
    try:
        answer: Fields = line.ask(
            Call(COMPLETIONS, {"model": model, "prompt": [0], "max_tokens": max_tokens, "vllm_xargs": dict(xargs)})
        )
    except RemoteError as error:
        if error.status == 400:
            return error
        raise
    del answer  # that there is one says enough
    return None
