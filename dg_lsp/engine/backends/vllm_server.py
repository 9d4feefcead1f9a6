"""What a vLLM server serves: its version, its model and tokenizer, and the length of its canvas.

Knows vLLM's protocol and the hub. Knows nothing of requests.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.engine import profile
from dg_lsp.engine.backends.http_client import UNLIKE, Call, RemoteError, ServerClient
from dg_lsp.engine.profile import Profile
from dg_lsp.engine.vocabulary import Vocabulary
from dg_lsp.wire.fields import Fields, WireError
from dg_lsp.wire.model_names import folder_of

OLDEST = (0, 33)
COMPLETIONS = "/v1/completions"
GENERATE = "/inference/v1/generate"
TOO_MANY_ROWS = 128  # vLLM 0.33 makes 8 of this and more where the model is a DiffusionGemma
WIDTHS = (256, 192, 128, 96, 64, 48, 32, 16)
SAMPLE = "def add(a, b):\n    return a + b  # naïve\n"


@dataclass(frozen=True, slots=True)
class Served:
    """What a server was found to serve. Lengths are tokens; 0 where it does not tell.

    `max_rows` is how many requests it steps together.
    """

    host: str
    model: str
    canvas: int
    max_tokens: int = 0
    version: str = ""
    max_rows: int = 0


def probe(client: ServerClient, model: str, say: Callable[[str, float], None]) -> tuple[Served, Vocabulary, Profile]:
    """Return what the server serves, with the tokenizer and profile of its model; raise RemoteError when it can't infill.

    `model` is the folder or hub id whose tokenizer the server uses; "" is what the server names.
    """
    version = _version(client)
    name, root, max_tokens = _model(client, model)
    say("reading the tokenizer", 0.5)
    folder = find(model or root or name)
    try:
        vocabulary, loaded_profile = Vocabulary.from_file(folder / "tokenizer.json"), profile.load_profile(folder)
    # The tokenizers library raises nothing more telling.
    except Exception as error:
        raise RemoteError(f"{folder} holds no tokenizer and profile that can be read: {error}") from error
    say("asking for the canvas", 0.8)
    _compare(client, name, vocabulary)
    canvas = _canvas_length(client, name)
    served = Served(client.server.host, name, canvas, max_tokens, version, _admitted_rows(client, name))
    return served, vocabulary, loaded_profile


def check_alike(client: ServerClient, model: str, served: Served, vocabulary: Vocabulary) -> None:
    """Raise RemoteError when a server does not serve what another was found to serve."""
    _version(client)
    name, _, _ = _model(client, model)
    _compare(client, name, vocabulary)
    canvas = _canvas_length(client, name)
    if (name, canvas) != (served.model, served.canvas):
        raise RemoteError(
            f"{client.host} serves {name} with a canvas of {canvas} tokens, but {served.host} serves {served.model} with "
            f"{served.canvas}; replicas must serve the same",
            UNLIKE,
        )


def find(name: str) -> Path:
    """Return a folder with the tokenizer of a model, which is a folder or a hub id; raise RemoteError when there is none."""
    folder = folder_of(name)
    if folder is not None and folder.is_dir():
        if (folder / "tokenizer.json").is_file():
            return folder
        raise RemoteError(f"{folder} holds no tokenizer.json")
    advice = "name the served model's folder or hub id at the end, as in vllm:http://HOST:8000#OWNER/NAME"
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise RemoteError(f"the tokenizer of {name} can't be had here; {advice}")
    try:
        from huggingface_hub import snapshot_download

        snapshot = Path(snapshot_download(name, allow_patterns=["tokenizer.json", "dg_lsp.json"]))
    # Whatever goes wrong between here and the hub comes to the same.
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise RemoteError(f"the tokenizer of {name} is not to be had from the hub ({first}); {advice}") from error
    if not (snapshot / "tokenizer.json").is_file():
        raise RemoteError(f"{name} has no tokenizer.json; {advice}")
    return snapshot


def unfit(host: str, what: str) -> RemoteError:
    """Return the error for a server that can't infill."""
    return RemoteError(
        f"{host} {what}: it is too old to infill, or serves no DiffusionGemma; "
        "upgrade it to vLLM 0.33 or later, or use it as chat:URL, or as fim:openai:URL if its model fills in the middle"
    )


def _version(client: ServerClient) -> str:
    """Return the server's version; raise RemoteError when it is too old. One that does not tell is tried."""
    try:
        version = client.ask(Call("/version")).text("version", "")
    except (RemoteError, WireError) as error:
        if isinstance(error, RemoteError) and not error.status:
            raise
        return ""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    # Builds from source call themselves 0.1.dev…, whatever is in them.
    if match and ".dev" not in version and (int(match[1]), int(match[2])) < OLDEST:
        raise unfit(client.server.host, f"runs vLLM {version}")
    return version


def _model(client: ServerClient, name: str) -> tuple[str, str, int]:
    """Return the name of the served model, what it was loaded from, and its window; raise RemoteError when there is none."""
    try:
        cards = client.ask(Call("/v1/models")).objects("data")
        models = [(card.text("id"), card.text("root", ""), card.integer("max_model_len", 0)) for card in cards]
    except WireError as error:
        raise RemoteError(f"{client.server.host} does not say which models it serves: {error}") from error
    if not models:
        raise RemoteError(f"{client.server.host} serves no model")
    named = [model for model in models if name and name in model[:2]]
    return (named or models)[0]


def _compare(client: ServerClient, model: str, vocabulary: Vocabulary) -> None:
    """Raise RemoteError when the server makes other tokens of a text than we do; one that does not tell is trusted."""
    body = {"model": model, "prompt": SAMPLE, "add_special_tokens": False}
    with contextlib.suppress(WireError):
        try:
            theirs = client.ask(Call("/tokenize", body)).items("tokens", high=1024)
        except RemoteError as error:
            if not error.status:
                raise
            return
        if list(theirs) != vocabulary.encode(SAMPLE):
            raise RemoteError(
                f"{client.server.host} serves {model} with another tokenizer than the one given; "
                "name the served model's own folder or hub id after the #"
            )


def _canvas_length(client: ServerClient, model: str) -> int:
    """Return the length of the canvas that is served; raise RemoteError when the server knows no canvas.

    A canvas of one token is refused with the length that it should have, and no work is done for that.
    """
    refused = _refusal(client, model, {"diffusion_seed_canvas": [0]})
    if refused is None:
        raise unfit(client.server.host, "takes no canvas")
    if length := re.search(r"exactly (\d{1,6}) ids", refused.said):
        return int(length[1])
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
        if _refusal(client, model, xargs, width) is None:
            return width
    raise unfit(client.server.host, "takes no canvas")


def _admitted_rows(client: ServerClient, model: str) -> int:
    """Return how many requests the server steps together (`--max-num-seqs`), 0 where it does not tell.

    It says so where it refuses more answers to a request than that, and does no work for it. For DiffusionGemma it never
    admits as many as are asked for here.
    """
    body = {"model": model, "token_ids": [0], "sampling_params": {"n": TOO_MANY_ROWS, "max_tokens": 1}}
    try:
        client.ask(Call(GENERATE, body))
    except RemoteError as error:
        if not error.status:
            raise
        said = re.search(r"max_num_seqs \((\d{1,4})\)", error.said)
        return int(said[1]) if said else 0
    return 0


def _refusal(client: ServerClient, model: str, xargs: Mapping[str, object], max_tokens: int = 1) -> RemoteError | None:
    """Return how the server refuses a canvas, or None; raise RemoteError when it fails otherwise."""
    try:
        answer: Fields = client.ask(
            Call(COMPLETIONS, {"model": model, "prompt": [0], "max_tokens": max_tokens, "vllm_xargs": dict(xargs)})
        )
    except RemoteError as error:
        if error.status == 400:
            return error
        raise
    del answer  # that there is one says enough
    return None
