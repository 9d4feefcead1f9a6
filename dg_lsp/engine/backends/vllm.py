"""DiffusionGemma on a vLLM server of version 0.33 or later, whose completions endpoint accepts a canvas with held positions.

A canvas is laid out as for the local model, with our own noise at its free positions. The server denoises several canvases
together, with different gap lengths and seeds. The tokens between the held positions are the answer. The server returns the
model's prediction at every position, also at held ones. The share of held positions that it predicts correctly shows how
well an answer fits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.backends import vllm_canvas
from dg_lsp.engine.backends.http_client import Call, RemoteError, ServerClient, server_at
from dg_lsp.engine.backends.remote import RemoteFiller, Reply, compared, to_probability
from dg_lsp.engine.backends.replicas import Replicas
from dg_lsp.engine.backends.vllm_canvas import CanvasWriter, PinnedCanvas, ReturnedCanvas, agreement
from dg_lsp.engine.backends.vllm_server import COMPLETIONS, Served, check_alike, probe, unfit
from dg_lsp.engine.decode import layout, sequence
from dg_lsp.engine.decode.layout import Sheet
from dg_lsp.engine.model.profile import Profile
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.wire.config import Config
from dg_lsp.wire.fields import WireError
from dg_lsp.wire.model_names import urls_of

CLOSING_TOKENS = 8  # the most tokens that end a canvas after the held text
LEAST_AGREEMENT = 0.5
MAX_CANVAS = 1 << 16
# The `max_denoising_steps` of the documented commands. The temperature falls over the server's limit, not over a request's
# own, and no server reports its limit. A request with fewer steps would end at a high temperature. More are cut to the limit.
SERVED_STEPS = 16


def connect(
    url: str, model: str, configured: Config, on_progress: Callable[[str, float], None] = lambda _text, _share: None
) -> RemoteFiller:
    """Return a filler for the server at `url`; raise RemoteError if it can't infill.

    `url` may list several servers of the same model, separated by commas. Unavailable ones are used once they are back.
    `model` is the folder or hub id of the server's tokenizer; "" means the name that the server reports.
    """
    servers = [server_at(each, configured) for each in urls_of(url) or (url,)]
    client = ServerClient(servers[0]) if len(servers) == 1 else Replicas(servers)
    try:
        if isinstance(client, Replicas):
            served, vocabulary, profile = client.first(lambda each: probe(each, model, on_progress))
            client.check = lambda each: check_alike(each, model, served, vocabulary)
            client.check_others()
        else:
            served, vocabulary, profile = probe(client, model, on_progress)
        return RemoteFiller(Vllm(served, vocabulary, profile), client, configured.settings.local_only)
    except BaseException as error:
        client.close()
        if isinstance(error, ValueError):  # the layout can't use the profile or the vocabulary
            raise RemoteError(str(error)) from error
        raise


class Vllm:
    """The backend for a vLLM server."""

    def __init__(self, served: Served, vocabulary: Vocabulary, profile: Profile) -> None:
        """Fit the profile to the served canvas; raise ValueError if the vocabulary does not suit the layout."""
        self.served, self.vocabulary, self.model = served, vocabulary, served.model
        self.profile = replace(
            profile,
            canvas_tokens=min(profile.canvas_tokens, served.canvas),
            held_tokens=min(profile.held_tokens, served.canvas // 4),
        )
        layout.for_profile(self.profile, vocabulary)  # fails here rather than at the first request
        self._writer = CanvasWriter(served, self.profile, vocabulary)

    def takes_together(self, request: InfillRequest) -> bool:
        """Return whether the holes and the text between them fit on one canvas, each with room for an answer."""
        return sequence.fits_one_canvas(request, self.profile, self.vocabulary, CLOSING_TOKENS)

    def about(self) -> Mapping[str, object]:
        """Return facts about the server by name."""
        served = self.served
        rows = {"rows": served.max_rows} if served.max_rows else {}
        return {"remote": {"model": served.model, "canvas": served.canvas, "vllm": served.version, **rows}}

    def calls(self, request: InfillRequest) -> Sequence[Call]:
        """Return one call for each canvas; raise RemoteError if the request does not fit the server's window."""
        sheet = vllm_canvas.fitting_sheet(request, self.served, self.profile, self.vocabulary)
        sampling, is_block = self.profile.sampling, any(hole.block for hole in request.holes)
        usual = sampling.block_steps if is_block else sampling.line_steps
        steps = request.budget.steps or max(usual, SERVED_STEPS)
        return [self._call(sheet, canvas, steps) for canvas in self._writer.canvases(request, sheet)]

    def evidence(self, request: InfillRequest, replies: Sequence[Reply]) -> tuple[Evidence, ...]:
        """Return a candidate with its features for each canvas that came back with most of its held text.

        They are ordered by the mean probability of the answer's tokens times the share of held text that the model predicts
        correctly. Raises RemoteError if no canvas came back with most of its held text.
        """
        canvases = [(canvas, self._read(reply)) for reply in replies if isinstance(canvas := reply.call.about, PinnedCanvas)]
        agreeing = [
            (canvas, returned, share)
            for canvas, returned in canvases
            if (share := agreement(canvas, returned)) >= LEAST_AGREEMENT
        ]
        if canvases and not agreeing:
            raise unfit(self.served.host, "returned canvases without their held text")
        items = [
            vllm_canvas.evidence(request, self.vocabulary, canvas, returned, share) for canvas, returned, share in agreeing
        ]
        return compared(items, request)

    def _call(self, sheet: Sheet, canvas: PinnedCanvas, steps: int) -> Call:
        # For a diffusion model the server refuses a temperature and a seed.
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

    def _read(self, reply: Reply) -> ReturnedCanvas:
        """Return the canvas in a server's answer; raise RemoteError or WireError if it is malformed."""
        assert isinstance(reply.call.about, PinnedCanvas)
        [choice, *_] = reply.fields.objects("choices") or (None,)
        if choice is None:
            raise WireError("choices is empty")
        width = len(reply.call.about.ids)
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
        return ReturnedCanvas(ids, tuple(map(to_probability, logs)))


def _token_id(value: object) -> int:
    """Return a token id; raise WireError if the value is not one."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise WireError("token_ids must be whole numbers")
