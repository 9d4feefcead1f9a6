"""A chat server's prompt and answers: streamed or not, inside prose, with repeated lines, and with refused fields."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from dg_lsp.core import extent, place
from dg_lsp.core.extent import Bounds
from dg_lsp.core.values import Candidate, Extent, Hole, Ranked, Snippet, Span
from dg_lsp.engine.backends import chat
from dg_lsp.engine.backends.chat import BLOCK_TOKENS, LINE_TOKENS, THOUGHT_TOKENS, locate
from dg_lsp.engine.backends.fim import MAX_ANSWERS, SAMPLING_TEMPERATURE
from dg_lsp.engine.backends.http_client import EventReader, RemoteError
from dg_lsp.engine.common import question
from dg_lsp.engine.diffusion.layout import CanvasProfile, Instruct
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.wire.config import Config
from tests import marked
from tests.checkpoints import gemma_like_tokenizer
from tests.engine.backends_kit import BODY, request, serving
from tests.engine.engine_kit import finish, wait_until

ROWS = marked.rows(Path(__file__).with_name("chat.txt"))

PREFIX, SUFFIX = "import os\n\n\ndef add(a, b):\n    return ", "\n\n\nprint(add(1, 2))\n"
FENCED = "```python\ndef add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n```"


class ChatServer:
    """A chat server that streams each answer in parts of equal length, or sends it whole, and refuses some fields.

    `hold` keeps back all but the first part. `sent` counts the parts that left.
    """

    def __init__(self, *answers: str, refused_fields: Sequence[str] = (), **settings: Any) -> None:
        self.answers, self.refused = answers, tuple(refused_fields)
        self.settings = settings
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.n_sent = self.n_dropped = 0
        self.hold: threading.Event | None = settings.get("hold")

    async def answer(self, http_request: Request) -> Response:
        body = await http_request.json()
        self.bodies.append(body)
        self.headers.append(dict(http_request.headers))
        for name in self.refused:
            if name in body:
                status, refusal = self.settings.get(
                    "refusal", lambda name: (400, error_body(f"Unsupported parameter: {name}"))
                )(name)
                return JSONResponse(refusal, status, self.settings.get("refusal_headers"))
        text = self.answers[min(len(self.bodies), len(self.answers)) - 1]
        if not body.get("stream") or not self.settings.get("streams", True):
            message = {"role": "assistant", "content": self.settings.get("content", lambda text: text)(text)}
            choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": self._logprobs(body, text)}
            return JSONResponse({"choices": [choice], "usage": {"prompt_tokens": 7}})
        return StreamingResponse(self._parts(body, text, http_request), media_type="text/event-stream")

    def _logprobs(self, body: dict[str, Any], text: str) -> Any:
        if not body.get("logprobs") or not self.settings.get("tells"):
            return None
        return {"content": [{"token": letter, "logprob": -0.01 * number} for number, letter in enumerate(text)]}

    async def _parts(self, body: dict[str, Any], text: str, http_request: Request) -> Any:
        size, at = self.settings.get("size", 5), 0
        rows = self._logprobs(body, text)
        line_end = self.settings.get("line_end", "\n")

        def event(value: Any) -> str:
            return f": still here{line_end}{line_end}data: {json.dumps(value)}{line_end}{line_end}"

        try:
            yield event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
            while at < len(text):
                delta = {"index": 0, "delta": {"content": text[at : at + size]}, "finish_reason": None}
                yield event({"choices": [{**delta, "logprobs": rows and {"content": rows["content"][at : at + size]}}]})
                self.n_sent += 1
                at += size
                while self.hold is not None and not self.hold.is_set() and at >= self.settings.get("held_at", 0):
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0)
            finish_reason = self.settings.get("finish_reason", "stop")
            yield event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}], "usage": {"prompt_tokens": 7}})
            if self.settings.get("is_done", True):
                yield f"data: [DONE]{line_end}{line_end}"
        except asyncio.CancelledError:
            self.n_dropped += 1
            raise


def error_body(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


class Served:
    """A chat server and a filler for it."""

    def __init__(self, *answers: str, configured: Config | None = None, **settings: Any) -> None:
        self.server = ChatServer(*answers, **settings)
        self._stack = contextlib.ExitStack()
        self._configured = configured or Config()

    def __enter__(self) -> Served:
        self.url = self._stack.enter_context(serving({"POST /v1/chat/completions": self.server.answer}))
        self.filler = chat.connect(self.url, "a-model", self._configured, {})
        self._stack.callback(self.filler.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fill(self, *arguments: Any, **more: Any) -> tuple[Candidate, ...]:
        return finish(self.filler.start(request(*arguments or (PREFIX, SUFFIX), **more))).candidates()


def test_a_chat_server_gets_the_instruct_layouts_prompt() -> None:
    configured = Config(keys={"127.0.0.1": "secret"})
    with Served(FENCED, configured=configured) as setup:
        related = (Snippet("b.py", "b = 1\n"), Snippet("a.py", "a = 1\n"))
        hole = Hole(Span(0, 0), "cursor", instruction="add them")
        infill_request = request(PREFIX, SUFFIX, hole, path="c.py", language="python", related=related)
        [candidate] = finish(setup.filler.start(infill_request)).candidates()
        [body] = setup.server.bodies
        assert body == {
            "model": "a-model",
            "messages": [{"role": "user", "content": body["messages"][0]["content"]}],
            "max_tokens": LINE_TOKENS,
            "temperature": 0.0,
            "logprobs": True,
            "stream": True,
        }
        assert setup.server.headers[0]["authorization"] == "Bearer secret"
        assert candidate.texts == ("a + b",)
    vocabulary = Vocabulary(gemma_like_tokenizer())
    prompt = Instruct(CanvasProfile(), vocabulary).lay_out(infill_request)
    [user_turn] = [body["messages"][0]["content"]]
    code = question.fenced(PREFIX, "python").removesuffix("\n")
    assert user_turn.endswith(code)
    assert vocabulary.decode(prompt.ids).startswith("user\n" + user_turn.partition("The code before the gap")[0])


def test_a_block_has_more_room() -> None:
    with Served("```\n    return 1\n```") as setup:
        setup.fill("def f():\n    ", "\n", BODY)
        assert setup.server.bodies[0]["max_tokens"] == BLOCK_TOKENS


@pytest.mark.parametrize(
    "settings", [{}, {"streams": False}, {"size": 1}, {"size": 999, "line_end": "\r\n"}, {"is_done": False}]
)
@pytest.mark.parametrize("tells", [True, False])
def test_an_answer_is_read_in_every_format(settings: dict[str, Any], tells: bool) -> None:
    with Served(FENCED, tells=tells, **settings) as setup:
        [candidate] = setup.fill()
        assert (candidate.texts, candidate.finished) == (("a + b",), True)
        assert [len(row) for row in candidate.confidences] == ([len("a + b")] if tells else [])


def test_a_message_in_parts_is_one_text() -> None:
    def parts(text: str) -> list[dict[str, str]]:
        return [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]

    with Served(FENCED, streams=False, content=parts) as setup:
        assert setup.fill()[0].texts == ("a + b",)


LINES = "def add(a, b):\n    return "
AFTER = "\n\n\nprint(add(1, 2))\n"


@pytest.mark.parametrize("answer", ROWS["answers"])
def test_the_missing_code_is_found_in_any_answer(answer: str) -> None:
    with Served(answer) as setup:
        [candidate] = setup.fill()
        assert candidate.texts == ("a + b",)


@pytest.mark.parametrize(("prefix", "answer", "suffix", "expected"), ROWS["blocks"])
def test_a_block_is_cut_where_the_file_goes_on(prefix: str, answer: str, suffix: str, expected: str) -> None:
    code = locate(answer, bounds(prefix, suffix, "block"), is_whole=True)
    assert answer[code.start : code.end] == expected


def bounds(prefix: str, suffix: str, how_far: Extent) -> Bounds:
    return extent.of(Hole(Span(0, 0), "cursor", extent=how_far), place.between(prefix, suffix))


def test_the_rest_of_a_line_is_left_to_the_filters() -> None:
    answer = "```python\nprint(f(x))\nother(1)\n```"
    code = locate(answer, bounds("print(", ")\nother(1)\n", "line"), is_whole=True)
    assert answer[code.start : code.end] == "f(x)"
    answer = "```python\ng(x)\n```"
    code = locate(answer, bounds("f(", ")\n", "line"), is_whole=True)
    assert answer[code.start : code.end].split("\n")[0] == "g(x)"


@pytest.mark.parametrize("answer", ["I can't help with that.", "<think>never ends"])
def test_unmarked_text_is_doubted(answer: str) -> None:
    with Served(answer, FENCED) as setup:
        first, second = setup.fill(n=2)
        assert (first.texts[0], first.confidence) == ("a + b", Ranked(0))
        assert second.confidence == Ranked(1, doubted=True)


def test_reading_ends_where_the_answer_does() -> None:
    long = "def add(first_number, second_number):\n    return "
    answer = f"```python\n{long}first_number{AFTER}" + "print(add(1, 2))\n" * 500
    with Served(answer, hold=threading.Event(), held_at=200) as setup:
        [candidate] = setup.fill(f"import os\n\n\n{long}", SUFFIX)
        assert candidate.texts == ("first_number",)
        wait_until(lambda: setup.server.n_dropped == 1)
        assert setup.server.n_sent < 60


def test_a_closed_fence_ends_the_reading() -> None:
    with Served("```python\n    return 1\n```\n" + "Because. " * 500, hold=threading.Event(), held_at=60) as setup:
        assert setup.fill("def f():\n    ", "\n", BODY)[0].texts == ("return 1",)
        wait_until(lambda: setup.server.n_dropped == 1)


def test_received_text_is_a_draft_until_the_answer_ends() -> None:
    hold = threading.Event()
    answer = "Here it is:\n```python\ndef add(a, b):\n    return a + b"
    with Served(answer, hold=hold, held_at=len(answer) - 2, size=1) as setup:
        task = setup.filler.start(request(PREFIX, SUFFIX))
        drafts = set[str]()

        def has_begun() -> bool:
            task.step()
            drafts.add(task.drafts()[0])
            return "a +" in drafts

        wait_until(has_begun)
        # Neither the prose nor the repeated lines were ever part of a draft.
        assert {each.strip() for each in drafts} <= {"", "a", "a +"}
        [candidate] = task.candidates()
        assert (candidate.texts[0].strip(), candidate.finished) == ("a +", False)
        hold.set()
        assert finish(task).candidates()[0].texts == ("a + b",)
        assert task.cache()["tokens"] == 7


def test_a_task_that_is_closed_closes_its_stream() -> None:
    with Served(FENCED * 50, hold=threading.Event(), held_at=5) as setup:
        task = setup.filler.start(request(PREFIX, SUFFIX, n=2))
        wait_until(lambda: task.step() and setup.server.n_sent == 2)
        task.close()
        wait_until(lambda: setup.server.n_dropped == 2)


@pytest.mark.parametrize("size", [1, 20, 45, 400])
def test_an_answer_that_opens_a_block_ends_with_its_line(size: int) -> None:
    hole = Hole(Span(0, 0), "cursor", indent="\t", extent="lines")
    with Served("```go\n\tif err != nil {\n\t\treturn err\n\t}\n\treturn nil\n```", size=size) as setup:
        [candidate] = setup.fill("func f() error {\n\terr := g()\n\tif", "\n\treturn h()\n}\n", hole, language="go")
        assert candidate.texts == (" err != nil {",)


def test_an_answer_cut_by_the_token_limit_is_doubted() -> None:
    cut_text = "```python\ndef f():\n    a = 1\n    b ="
    with Served(cut_text, "```python\n    a = 1\n```", finish_reason="length") as setup:
        candidates = setup.fill("def f():\n    ", "\n", BODY, n=2)
        assert [candidate.texts[0] for candidate in candidates] == ["a = 1", "a = 1\n    b ="]
        assert candidates[1].confidence == Ranked(1, doubted=True)


def test_several_candidates_have_several_temperatures() -> None:
    with Served(FENCED) as setup:
        setup.fill(n=3)
        assert sorted(body["temperature"] for body in setup.server.bodies) == [0.0, SAMPLING_TEMPERATURE, SAMPLING_TEMPERATURE]
        setup.server.bodies.clear()
        setup.fill(n=64)
        assert len(setup.server.bodies) == MAX_ANSWERS


@pytest.mark.parametrize(
    ("refused_fields", "refusal"),
    [
        (["logprobs"], lambda name: (422, {"detail": f"Unsupported fields in the request: {{'{name}'}}"})),
        (["temperature"], lambda name: (400, error_body(f"Unsupported value: '{name}' does not support 0 with this model."))),
        (["stream"], lambda name: (400, error_body(f"Your organization must be verified to {name} this model."))),
        (["logprobs", "temperature"], lambda name: (422, {"detail": [{"loc": ["body", name], "msg": "Extra inputs"}]})),
        (["temperature"], lambda _: (400, {})),
        (["logprobs", "stream"], lambda _: (400, error_body("Extra inputs are not permitted"))),
    ],
)  # fmt: skip
def test_a_refused_field_is_sent_once(refused_fields: list[str], refusal: Any) -> None:
    with Served(FENCED, refused_fields=refused_fields, refusal=refusal) as setup:
        assert setup.fill()[0].texts == ("a + b",)
        setup.server.bodies.clear()
        assert setup.fill()[0].texts == ("a + b",)
        [body] = setup.server.bodies
        assert not set(refused_fields) & set(body)
        assert {"model", "messages", "max_tokens"} <= set(body)


@pytest.mark.parametrize(("pause_s", "n_bodies"), [("0.001", 2), ("3000", 1)])
def test_a_pause_is_kept_before_another_body_is_sent(pause_s: str, n_bodies: int) -> None:
    with Served(FENCED, refused_fields=["logprobs"], refusal_headers={"Retry-After": pause_s}) as setup:
        with contextlib.nullcontext() if n_bodies > 1 else pytest.raises(RemoteError, match="no requests until"):
            assert setup.fill()[0].texts == ("a + b",)
        assert len(setup.server.bodies) == n_bodies


def test_a_model_that_thinks_first_has_room_for_it() -> None:
    message = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    with Served(FENCED, refused_fields=["max_tokens"], refusal=lambda _: (400, error_body(message))) as setup:
        assert setup.fill()[0].texts == ("a + b",)
        assert setup.server.bodies[-1]["max_completion_tokens"] == THOUGHT_TOKENS


def test_a_refusal_of_no_field_is_final() -> None:
    message = "This model's maximum context length is 512 tokens. However, you requested 900 tokens."
    with Served(FENCED, refused_fields=["model"], refusal=lambda _: (400, error_body(message))) as setup:
        with pytest.raises(RemoteError, match="maximum context length is 512 tokens"):
            setup.fill()
        assert len(setup.server.bodies) == 1


def test_a_field_that_was_not_refused_after_all_is_sent_again() -> None:
    with Served(FENCED, refused_fields=["model"], refusal=lambda _: (400, {})) as setup:
        with pytest.raises(RemoteError, match=r"refuses the request \(400\)"):
            setup.fill()
        assert len(setup.server.bodies) == 2
        setup.server.refused = ()
        setup.fill()
        assert "temperature" in setup.server.bodies[-1]


def raw(data: bytes, media_type: str = "text/event-stream") -> str:
    """Return the error message for a server with this answer."""

    async def answer(_: Request) -> Response:
        return Response(data, media_type=media_type)

    with serving({"POST /v1/chat/completions": answer}) as url:
        filler = chat.connect(url, "m", Config(), {})
        try:
            with pytest.raises(RemoteError) as error:
                finish(filler.start(request("secret_code(", ")")))
            return str(error.value).replace(filler.client.server.host, "HOST")
        finally:
            filler.close()


@pytest.mark.parametrize(("data", "sentence"), ROWS["malformed"])
def test_a_malformed_answer_is_reported(data: str, sentence: str) -> None:
    assert raw(data.encode()) == sentence


def test_an_answer_that_does_not_end_is_reported() -> None:
    assert raw((b": " + b"x" * 4096 + b"\n\n") * 5000) == "HOST answered with more than 16 MB"


def test_one_event_may_come_in_any_pieces() -> None:
    data = b'\xef\xbb\xbf\r\n: hello\r\nevent: x\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata:{"b": 2}\n\ndata: {"c": 3}'
    for size in (1, 2, 7, 999):
        reader = EventReader()
        events = [each for at in range(0, len(data), size) for each in reader.feed(data[at : at + size])]
        assert [event.values for event in [*events, *reader.end()]] == [{"a": 1}, {"b": 2}, {"c": 3}]
        assert reader.is_stream


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        (["only"], ""),
        ([], "serves 0 models; name one at the end, as in chat:URL#MODEL"),
        (list("abcdefg"), "serves 7 models; name one at the end, as in chat:URL#MODEL: a, b, c, d, e, …"),
    ],
)
def test_a_server_with_one_model_needs_no_name(ids: list[str], sentence: str) -> None:
    async def models(_: Request) -> Response:
        return JSONResponse({"data": [{"id": each} for each in ids]})

    with serving({"GET /v1/models": models}) as url:
        if sentence:
            with pytest.raises(RemoteError, match=sentence):
                chat.connect(url, "", Config(), {})
            return
        filler = chat.connect(url, "", Config(), {})
        assert filler.backend.model == "only"
        filler.close()


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").touch()
    monkeypatch.setenv("DG_LSP_CONFIG", str(tmp_path / "config.toml"))
