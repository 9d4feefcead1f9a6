"""Find out what a vLLM server serves: its version, its model and tokenizer, and the length of its canvas."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.engine.backends.http_client import UNLIKE, Call, RemoteError, ServerClient
from dg_lsp.engine.model import profile
from dg_lsp.engine.model.profile import Profile
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.wire.fields import WireError
from dg_lsp.wire.model_names import folder_of

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


def probe(client: ServerClient, model: str, on_progress: Callable[[str, float], None]) -> tuple[Served, Vocabulary, Profile]:
    """Return what the server serves, and its model's tokenizer and profile; raise RemoteError if it can't infill.

    `model` is the folder or hub id of the server's tokenizer; "" means the name that the server reports.
    """
    version = _version(client)
    name, root, max_tokens = _model(client, model)
    on_progress("reading the tokenizer", 0.5)
    folder = tokenizer_folder(model or root or name)
    try:
        vocabulary, loaded_profile = Vocabulary.from_file(folder / "tokenizer.json"), profile.load_profile(folder)
    # The tokenizers library raises no narrower class.
    except Exception as error:
        raise RemoteError(f"the tokenizer and profile in {folder} can't be read: {error}") from error
    on_progress("querying the canvas", 0.8)
    _compare(client, name, vocabulary)
    canvas = _canvas_length(client, name)
    served = Served(client.server.host, name, canvas, max_tokens, version, _admitted_rows(client, name))
    return served, vocabulary, loaded_profile


def check_alike(client: ServerClient, model: str, served: Served, vocabulary: Vocabulary) -> None:
    """Raise RemoteError if a server does not serve the same as `served`."""
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
        reason = str(error).strip().partition("\n")[0]
        raise RemoteError(f"the tokenizer of {name} can't be fetched from the hub ({reason}); {advice}") from error
    if not (snapshot / "tokenizer.json").is_file():
        raise RemoteError(f"{name} has no tokenizer.json; {advice}")
    return snapshot


def unfit(host: str, what: str) -> RemoteError:
    """Return the error for a server that can't infill; `what` is the predicate of its first sentence."""
    return RemoteError(
        f"{host} {what}: it is too old to infill, or serves no DiffusionGemma; "
        "upgrade it to vLLM 0.33 or later, or use it as chat:URL, or as fim:openai:URL if its model fills in the middle"
    )


def _version(client: ServerClient) -> str:
    """Return the server's version, or "" if it is unknown; raise RemoteError if it is too old."""
    try:
        version = client.ask(Call("/version")).text("version", "")
    except (RemoteError, WireError) as error:
        if isinstance(error, RemoteError) and not error.status:
            raise
        return ""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    # Every build from source has the version 0.1.dev…
    if match and ".dev" not in version and (int(match[1]), int(match[2])) < OLDEST:
        raise unfit(client.server.host, f"runs vLLM {version}")
    return version


def _model(client: ServerClient, name: str) -> tuple[str, str, int]:
    """Return the served model's name, the name it was loaded from, and its window; raise RemoteError if no model is served."""
    try:
        cards = client.ask(Call("/v1/models")).objects("data")
        models = [(card.text("id"), card.text("root", ""), card.integer("max_model_len", 0)) for card in cards]
    except WireError as error:
        raise RemoteError(f"{client.server.host} did not list its models: {error}") from error
    if not models:
        raise RemoteError(f"{client.server.host} serves no model")
    named = [model for model in models if name and name in model[:2]]
    return (named or models)[0]


def _compare(client: ServerClient, model: str, vocabulary: Vocabulary) -> None:
    """Raise RemoteError if the server's tokenizer gives other tokens than ours. A server without the endpoint is trusted."""
    body = {"model": model, "prompt": SAMPLE, "add_special_tokens": False}
    with contextlib.suppress(WireError):
        try:
            server_tokens = client.ask(Call("/tokenize", body)).items("tokens", high=1024)
        except RemoteError as error:
            if not error.status:
                raise
            return
        if list(server_tokens) != vocabulary.encode(SAMPLE):
            raise RemoteError(
                f"{client.server.host} serves {model} with a tokenizer other than the given one; "
                "name the served model's own folder or hub id after the #"
            )


def _canvas_length(client: ServerClient, model: str) -> int:
    """Return the length of the served canvas; raise RemoteError if the server does not support canvases.

    The server refuses a canvas of one token with a message that contains the right length. This costs it no work.
    """
    refusal = _refusal(client, model, {"diffusion_seed_canvas": [0]})
    if refusal is None:
        raise unfit(client.server.host, "does not accept a canvas")
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
    raise unfit(client.server.host, "does not accept a canvas")


def _admitted_rows(client: ServerClient, model: str) -> int:
    """Return how many requests the server denoises together (`--max-num-seqs`); 0 if it does not report this.

    The server refuses a request for more answers with a message that contains the limit. This costs it no work. For
    DiffusionGemma the limit is always below the number requested here.
    """
    body = {"model": model, "token_ids": [0], "sampling_params": {"n": TOO_MANY_ROWS, "max_tokens": 1}}
    try:
        client.ask(Call(GENERATE, body))
    except RemoteError as error:
        if not error.status:
            raise
        limit = re.search(r"max_num_seqs \((\d{1,4})\)", error.server_message)
        return int(limit[1]) if limit else 0
    return 0


def _refusal(client: ServerClient, model: str, xargs: Mapping[str, object], max_tokens: int = 1) -> RemoteError | None:
    """Return the server's refusal of a canvas, or None if it accepts it; raise RemoteError for other failures."""
    try:
        client.ask(Call(COMPLETIONS, {"model": model, "prompt": [0], "max_tokens": max_tokens, "vllm_xargs": dict(xargs)}))
    except RemoteError as error:
        if error.status == 400:
            return error
        raise
    return None
