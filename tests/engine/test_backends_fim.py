"""Each dialect's request and answer as its server documents them, and all failures of a server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, RedirectResponse

from dg_lsp.core import edits, secrets
from dg_lsp.core.values import Candidate, Hole, InfillRequest, Ranked, Snippet, Span
from dg_lsp.engine import backends
from dg_lsp.engine.backends import chat, fim, remote
from dg_lsp.engine.backends.fim import BLOCK_TOKENS, LINE_TOKENS, MAX_ANSWERS, SAMPLING_TEMPERATURE, window
from dg_lsp.engine.backends.http_client import Call, RemoteError, ServerAddress, ServerClient, joined, rest_s
from dg_lsp.engine.backends.remote import RemoteFiller
from dg_lsp.wire.config import Config
from dg_lsp.wire.messages import Fields
from dg_lsp.wire.model_names import USUAL_URLS, is_remote, parse_remote
from dg_lsp.wire.settings import Settings
from tests import marked
from tests.engine.backends_kit import BODY, LINE, Recorder, request, serving
from tests.engine.engine_kit import finish, wait_until
from tests.patience import PATIENCE_S

ROWS = marked.rows(Path(__file__).with_name("servers.txt"))

DOCS = Path(__file__).parents[2] / "docs"
PATHS = {dialect.name: dialect.path for dialect in fim.DIALECTS}
COMPLETION = {"choices": [{"text": "x + y", "finish_reason": "stop"}]}
MESSAGE = {"choices": [{"message": {"role": "assistant", "content": "x + y"}, "finish_reason": "stop"}]}
ANSWERS: dict[str, Any] = {
    "openai": COMPLETION,
    "mercury": COMPLETION,
    "deepseek": COMPLETION,
    "codestral": MESSAGE,
    "llama": {"content": "x + y", "stop": True, "stop_type": "word"},
    "ollama": {"response": "x + y", "done": True, "done_reason": "stop"},
}


class Served:
    """A dialect's server and a filler for it."""

    def __init__(self, name: str, *answers: Any, hold: threading.Event | None = None, **settings: Any) -> None:
        self.recorder = Recorder(answers or (ANSWERS[name],), hold=hold)
        self._serving = serving({f"POST {PATHS[name]}": self.recorder.answer})
        self._name, self._settings = name, settings

    def __enter__(self) -> Served:
        self.url = self._serving.__enter__()
        configured = Config(**self._settings)
        self.filler = fim.connect(self._name, self.url, "a-model", configured, {})
        return self

    def __exit__(self, *_: object) -> None:
        self.filler.close()
        self._serving.__exit__(None, None, None)

    def fill(self, *arguments: Any, **more: Any) -> tuple[Candidate, ...]:
        return finish(self.filler.start(request(*arguments, **more))).candidates()


@pytest.fixture
def openai() -> Iterator[Served]:
    with Served("openai") as served:
        yield served


PROMPT = {"model": "a-model", "prompt": "f(", "suffix": ")\n", "max_tokens": LINE_TOKENS, "stop": ["\n"]}
ASKED: dict[str, dict[str, Any]] = {
    "openai": {**PROMPT, "n": 1, "temperature": 0.0, "logprobs": 1},
    "mercury": {**PROMPT, "presence_penalty": 0},
    "deepseek": {**PROMPT, "temperature": 0.0, "logprobs": 1},
    "codestral": {**PROMPT, "temperature": 0.0, "random_seed": 5},
    "llama": {
        "input_prefix": "f(",
        "input_suffix": ")\n",
        "input_extra": [{"filename": "b.py", "text": "b = 1\n"}],
        "prompt": "",
        "n_predict": LINE_TOKENS,
        "temperature": 0.0,
        "seed": 5,
        "cache_prompt": True,
        "stream": False,
        "stop": ["\n"],
        "t_max_predict_ms": 900,
    },
    "ollama": {
        "model": "a-model",
        "prompt": "f(",
        "suffix": ")\n",
        "stream": False,
        "options": {"num_predict": LINE_TOKENS, "temperature": 0.0, "seed": 5, "stop": ["\n"]},
    },
}


def test_every_dialect_has_a_case_and_is_documented() -> None:
    names = [dialect.name for dialect in fim.DIALECTS]
    assert names == list(ANSWERS) == list(ASKED) == list(USUAL_URLS)
    assert not [name for name in names if f"fim:{name}" not in (DOCS / "servers.md").read_text("utf-8")]
    variables = [dialect.variable for dialect in fim.DIALECTS if dialect.variable]
    assert not [name for name in variables if name not in (DOCS / "setup.md").read_text("utf-8")]


@pytest.mark.parametrize("name", list(ASKED))
def test_each_dialect_sends_only_documented_fields(name: str) -> None:
    with Served(name, keys={"127.0.0.1": "secret"}) as served:
        related = (Snippet("b.py", "b = 1\n"), Snippet("c.py", "c = 1\n", for_copying=True))
        candidates = served.fill("f(", ")\n", seed=5, ms=900, related=related)
        assert served.recorder.bodies == [ASKED[name]]
        assert served.recorder.headers[0]["authorization"] == "Bearer secret"
        assert served.recorder.headers[0]["content-type"] == "application/json"
        assert [candidate.texts for candidate in candidates] == [("x + y",)]


@pytest.mark.parametrize("name", list(ASKED))
def test_a_block_has_more_room_and_no_stop(name: str) -> None:
    with Served(name) as served:
        served.fill("def f():\n    ", "\n", BODY)
        message = served.recorder.bodies[0]
        message = {**message, **message.get("options", {})}
        assert BLOCK_TOKENS in (message.get("max_tokens"), message.get("n_predict"), message.get("num_predict"))
        assert "stop" not in message
        assert "t_max_predict_ms" not in message
        assert "authorization" not in served.recorder.headers[0]


def edit_request(path: str = "a.py", window: str = "size = 1\nprint(area)\n") -> InfillRequest:
    edit = edits.edit_between("secret/b.py", "area = 1\n", f"size = 1  # {edits.SEPARATOR}\n")
    assert edit is not None
    own = edits.edit_between("a.py", "area = 1\nprint(area)\n", window)
    assert own is not None
    asked = edits.question("area = 1\nprint(area)\n", window, len(window) - 2, (edit, own))
    return replace(request("", "", path=path), question=asked)


@pytest.mark.parametrize(
    ("logs", "confidence"),
    [
        ({"token_logprobs": [-0.1, -0.2]}, Ranked(0)),
        ({"token_logprobs": [-0.1, -2.0]}, Ranked(0, doubted=True)),
        ({"content": [{"token": "s", "logprob": -0.1}, {"token": "i", "logprob": -0.2}]}, Ranked(0)),
        ({"content": ["s"]}, Ranked(0, doubted=True)),
        (None, Ranked(0, doubted=True)),
    ],
)
def test_the_next_edit_is_a_completion_of_its_form(logs: dict[str, Any] | None, confidence: Ranked) -> None:
    choice = {"text": f"size = 1\nprint({edits.CURSOR}size)\n", "finish_reason": "stop"}
    answer = {"choices": [{**choice, "logprobs": logs} if logs else choice]}
    with Served("openai", answer, settings=Settings(local_only=("secret/",))) as served:
        (candidate,) = finish(served.filler.start(edit_request())).candidates()
        assert (candidate.texts, candidate.confidence) == (("size = 1\nprint(size)\n",), confidence)
        [body] = served.recorder.bodies
        assert body["prompt"].startswith(f"{edits.SEPARATOR}a.py\narea = 1\n")
        assert "secret/b.py" not in body["prompt"]
        assert body["prompt"].count(edits.SEPARATOR) == 5  # the file, an edit, and the window three times
        assert (body["temperature"], body["stop"]) == (0.0, [edits.SEPARATOR, "<|endoftext|>"])


def test_an_edit_is_asked_for_only_where_server_and_lines_allow_it() -> None:
    with Served("openai") as served:
        for window in (f"print('{edits.SEPARATOR}')\n", "size = 1\npassword = 'hunter22hunter9'\n"):
            with pytest.raises((ValueError, RemoteError), match=r"separates the parts|looks like a secret"):
                finish(served.filler.start(edit_request(window=window)))
        cut = {"choices": [{"text": "size", "finish_reason": "length"}]}
        served.recorder.answers = (cut,)
        assert finish(served.filler.start(edit_request())).candidates() == ()
    with Served("llama") as served, pytest.raises(ValueError, match="name it as fim:openai:URL#MODEL"):
        served.filler.start(edit_request())


@pytest.mark.parametrize(
    ("name", "sent"), [("openai", 1), ("mercury", 1), ("deepseek", 3), ("codestral", 3), ("llama", 3), ("ollama", 3)]
)
def test_several_answers_are_requested_at_once_if_they_can_differ(name: str, sent: int) -> None:
    hold = threading.Event()
    with Served(name, hold=hold) as served:
        task = served.filler.start(request("f(", ")", n=3, seed=5))
        task.step()
        wait_until(lambda: served.recorder.most_at_once == sent)
        hold.set()
        finish(task)
        bodies = [{**body, **body.get("options", {})} for body in served.recorder.bodies]
        if name == "openai":
            assert (bodies[0]["n"], bodies[0]["temperature"]) == (3, SAMPLING_TEMPERATURE)
        elif name != "mercury":
            assert sorted(body["temperature"] for body in bodies) == [0.0, SAMPLING_TEMPERATURE, SAMPLING_TEMPERATURE]


def test_equal_answers_are_one_and_the_surest_comes_first(openai: Served) -> None:
    def choice(text: str, *logprobs: float | None) -> dict[str, Any]:
        return {"text": text, "logprobs": {"tokens": list(text), "token_logprobs": list(logprobs)}}

    openai.recorder.answers = [{"choices": [choice("a", -2.0), choice("b", -0.1), choice("b", -0.5), choice("c", None)]}]
    candidates = openai.fill("f(", ")", n=4)
    assert [candidate.texts for candidate in candidates] == [("b",), ("c",), ("a",)]
    assert candidates[0].confidences[0] == pytest.approx((0.905,), abs=0.001)
    assert candidates[1].confidences == ()
    assert [candidate.confidence for candidate in candidates] == [Ranked(0), Ranked(1), Ranked(2)]


def test_the_number_of_billed_answers_is_limited() -> None:
    with Served("llama") as served:
        served.fill("f(", ")", n=64)
        assert len(served.recorder.bodies) == MAX_ANSWERS


def test_a_hole_in_a_line_ends_with_it(openai: Served) -> None:
    openai.recorder.answers = [{"choices": [{"text": "x)\ny", "logprobs": {"token_logprobs": [-0.1] * 4}}]}]
    [candidate] = openai.fill("f(", ")\n")
    assert (candidate.texts, len(candidate.confidences[0])) == (("x)",), 2)
    assert openai.fill("def f():\n    ", "\n", BODY)[0].texts == ("x)\ny",)


def test_an_answer_cut_by_the_token_limit_ranks_lower(openai: Served) -> None:
    cut = {"text": "a = 1\nb =", "finish_reason": "length"}
    openai.recorder.answers = [{"choices": [cut, {"text": "a = 1\n", "finish_reason": "stop"}]}]
    assert [candidate.texts[0] for candidate in openai.fill("", "", BODY, n=2)] == ["a = 1\n", "a = 1\nb ="]


def test_several_holes_are_filled_one_after_another_each_knowing_the_last(openai: Served) -> None:
    openai.recorder.answers = [{"choices": [{"text": text}]} for text in ("a", "b", "c")]
    [candidate] = openai.fill("f(", ")\n", LINE, LINE, LINE, between=(", ", "; "), seed=9)
    assert candidate.texts == ("a", "b", "c")
    assert candidate.confidence == Ranked(0)
    assert [(body["prompt"], body["suffix"]) for body in openai.recorder.bodies] == [
        ("f(", ", ; )\n"),
        ("f(a, ", "; )\n"),
        ("f(a, b; ", ")\n"),
    ]


def test_an_instruction_stands_before_the_hole_as_a_comment(openai: Served) -> None:
    hole = Hole(Span(0, 0), "marker", indent="    ", extent="block", instruction="add\nthem")
    openai.fill("def f():\n    ", "\n", hole, language="python")
    assert openai.recorder.bodies[0]["prompt"] == "def f():\n    # add them\n    "


def test_a_deadline_leaves_the_holes_that_are_filled() -> None:
    class ForTheFirst(threading.Event):
        def is_set(self) -> bool:
            return len(served.recorder.bodies) < 2

    with Served("llama", hold=ForTheFirst()) as served:
        task = served.filler.start(request("f(", ")\n", LINE, LINE, between=(", ",)))
        wait_until(lambda: task.step() and task.drafts()[0])
        [candidate] = task.candidates()
        assert (candidate.texts, candidate.finished) == (("x + y", ""), False)


@pytest.mark.parametrize(
    ("prefix", "suffix", "most", "expected"),
    [
        ("abc", "def", 100, ("abc", "def")),
        ("a\nb\nc\nd\ne\n", "f\ng\nh\n", 12, ("a\nb\nc\nd\ne\n", "f\n")),
        ("a" * 12, "b" * 12, 12, ("a" * 9, "bbb")),
        ("a", "b\nc\nd\n", 16, ("a", "b\nc\nd\n")),
        ("aaaa", "bbbb", 1, ("", "b")),
    ],
)
def test_a_window_keeps_what_is_near(prefix: str, suffix: str, most: int, expected: tuple[str, str]) -> None:
    assert window(prefix, suffix, most) == expected


def test_the_start_of_a_prefix_moves_once_in_many_keys_and_lines() -> None:
    text = "".join(f"value_{number} = {number}\n" for number in range(100, 400))
    prefixes = [window(text[:end], "", 800)[0] for end in range(2000, 4000)]
    starts = [text.index(prefix) for prefix in prefixes]
    assert len(set(starts)) == 11
    assert all(580 < len(prefix) <= 800 for prefix in prefixes)


def error(status: int, body: Any = None, *, key: str = "") -> str:
    with Served(
        "openai", (status, body if body is not None else {"error": {"message": "no\n such thing"}}), keys={"127.0.0.1": key}
    ) as filler:
        with pytest.raises(RemoteError) as raised:
            filler.fill("secret_code(", ")")
        assert raised.value.status in ((0, 200) if status == 200 else (status,))
        return str(raised.value).replace(filler.filler.client.server.host, "HOST")


@pytest.mark.parametrize(("status", "sentence"), ROWS["refusals"])
def test_a_refusal_gives_advice(status: str, sentence: str) -> None:
    assert error(int(status)) == sentence


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7), ({"Retry-After": "1.5"}, 1.5), ({"Retry-After": "99999"}, 3600),
        ({"Retry-After": "9" * 400}, 3600),
        ({"Retry-After-Ms": "2500"}, 2.5), ({"Retry-After-Ms": "99.9", "Retry-After": "7"}, 0.0999),
        ({"Retry-After-Ms": "soon", "Retry-After": " 7 "}, 7),
        ({"Date": "Sun, 06 Nov 2022 08:49:37 GMT", "Retry-After": "Sun, 06 Nov 2022 08:50:07 GMT"}, 30),
        ({"Date": "Sun, 06 Nov 2022 08:49:37 GMT", "Retry-After": "Sunday, 06-Nov-22 08:50:07 GMT"}, 30),
        ({"Date": "Sun, 06 Nov 2022 08:49:37 GMT", "Retry-After": "Sun Nov  6 08:50:07 2022"}, 30),
        ({"Date": "a day", "Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, 3600),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, 0), ({"Retry-After": "0"}, 0), ({"Retry-After": "-5"}, 0),
        ({"Retry-After": "soon"}, 0), ({"Retry-After": ""}, 0), ({"Retry-After": "²"}, 0), ({"Retry-After": "1e9"}, 0), ({}, 0),
    ],
)  # fmt: skip
def test_how_long_a_server_wants_no_requests(headers: dict[str, str], seconds: float) -> None:
    assert rest_s(httpx.Headers(headers, encoding="utf-8")) == pytest.approx(seconds)


@pytest.mark.parametrize("status", [403, 404, 422, 429, 500, 503])
def test_a_server_that_asks_for_a_pause_gets_no_request_in_it_and_each_refusal_is_the_same(status: int) -> None:
    with Served("openai", JSONResponse({"error": "busy"}, status, {"Retry-After": "30"}), COMPLETION) as served:
        refusals = []
        for _ in range(2):
            with pytest.raises(RemoteError, match=r"busy.*; it gets no requests until \d\d:\d\d:\d\d$") as raised:
                served.fill("a = ", "\n")
            refusals.append((str(raised.value), raised.value.status))
            assert 0 < raised.value.retry_s <= 30
        assert refusals[0] == refusals[1]
        assert len(served.recorder.bodies) == 1


def test_after_the_pause_the_server_is_asked_again() -> None:
    with Served("openai", JSONResponse({"error": "busy"}, 429, {"Retry-After-Ms": "1"}), COMPLETION) as served:

        def is_answered() -> bool:
            with contextlib.suppress(RemoteError):
                return bool(served.fill("a = ", "\n"))
            return False

        assert not is_answered()
        wait_until(is_answered)


def test_the_message_for_a_refused_key_differs_from_that_for_a_missing_one() -> None:
    said = error(403, {"error": {"message": "no credit for secret-key-1234"}}, key="secret-key-1234")
    advice = "set another in DG_LSP_API_KEY or in the configuration's [keys]"
    assert said == f"HOST refuses the API key (403): no credit for {secrets.MASK}; {advice}"


@pytest.mark.parametrize("body", [b"<html>", {"detail": "why"}, {"error": "why"}, {"message": "x" * 999}, b"[" * 99_999])
def test_a_refusal_in_any_shape_is_one_short_line(body: Any) -> None:
    message = error(400, body)
    assert message.startswith("HOST refuses the request (400)")
    assert len(message) < 400
    assert "\n" not in message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"upstream connect error\r\nreset before headers", ": upstream connect error reset before headers"),
        (
            b"<!DOCTYPE html><head><title>Bad Gateway</title><style>h1 {}</style></head>\n<h1 a='b'>nginx &amp; more</h1>",
            ": Bad Gateway nginx & more",
        ),
        (b"if a < b > c", ": if a < b > c"),
        (b"<html>", ""),
        (b"[" * 99_999, ""),
        (b"\xff\x00\x1b[31m", ": [31m"),
        (b"<script" * 99_999, ""),
    ],
)
def test_a_refusal_that_is_no_json_says_what_the_page_says(body: bytes, said: str) -> None:
    assert error(502, body) == f"HOST failed (502){said}"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"<html>", "HOST answered /v1/completions with something other than a JSON object; is the URL right?"),
        (b"[]", "HOST answered /v1/completions with something other than a JSON object; is the URL right?"),
        ({}, "the answer of HOST can't be understood: choices is missing"),
        ({"choices": []}, "the answer of HOST can't be understood: choices is empty"),
        (b'data: {"error": {"message": "no memory"}}\n\n', "HOST answered with an error: no memory"),
        (b'event: error\r\ndata: {"error": "no memory"}\r\n\r\n', "HOST answered with an error: no memory"),
        (
            {"choices": [{"text": 7}]},
            "the answer of HOST can't be understood: choices[0].text must be a string, but is a number",
        ),
        (b"x" * (17 << 20), "HOST answered with more than 16 MB"),
    ],
)
def test_a_malformed_answer_is_reported(body: Any, sentence: str) -> None:
    assert error(200, body) == sentence


def test_one_answer_of_several_is_enough() -> None:
    with Served("llama", (500, {}), ANSWERS["llama"], (500, {})) as served:
        assert [candidate.texts for candidate in served.fill("f(", ")", n=3)] == [("x + y",)]


def test_a_server_that_does_not_run_is_reported() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        filler = fim.connect("llama", f"http://127.0.0.1:{unused.getsockname()[1]}", "", Config(), {})
        with pytest.raises(RemoteError, match=r"can't be reached: .*; is the server running, and is the URL right"):
            finish(filler.start(request("a", "b")))


def test_a_server_that_never_responds_times_out(openai: Served) -> None:
    openai.recorder.hold = threading.Event()
    client = openai.filler.client
    assert isinstance(client, ServerClient)
    client._http.timeout = httpx.Timeout(PATIENCE_S, read=0.05)
    with pytest.raises(RemoteError, match="did not respond within"):
        openai.fill("a", "b")


def test_a_redirect_is_not_followed_with_the_key() -> None:
    elsewhere = RedirectResponse(PATHS["openai"], 307)
    with Served("openai", elsewhere, keys={"127.0.0.1": "secret"}) as served:
        with pytest.raises(RemoteError, match="redirects the request"):
            served.fill("a", "b")
        assert len(served.recorder.bodies) == 1


def test_deepseeks_own_server_is_asked_for_v4_flash() -> None:
    filler = fim.connect("deepseek", "", "", Config(), {})
    assert filler.backend.model == "deepseek-v4-flash"
    filler.close()


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("mercury:", "inception"),
        ("mercury:https://api.inceptionlabs.ai/v1", "inception"),
        ("mercury:https://else.example", ""),
        ("mercury:http://api.inceptionlabs.ai", ""),
        ("chat:https://api.openai.com/v1", "openai"),
        ("chat:https://api.deepseek.com", "deepseek"),
        ("chat:https://else.example", ""),
        ("chat:http://api.openai.com", ""),
    ],
)
def test_a_default_key_goes_only_to_its_default_server(url: str, key: str) -> None:
    environ = {f"{name.upper()}_API_KEY": name for name in ("inception", "openai", "deepseek")}
    kind, _, address = url.partition(":")

    def key_of(configured: Config) -> str:
        if kind == "chat":
            filler: RemoteFiller = chat.connect(address, "m", configured, environ)
        else:
            filler = fim.connect(kind, address, "", configured, environ)
        filler.close()
        return filler.client.server.key

    assert key_of(Config()) == key
    if key:
        host = ServerAddress(address or "https://api.inceptionlabs.ai").host
        assert key_of(Config(keys={host: "mine"})) == "mine"


@pytest.mark.parametrize(("base", "path", "url"), ROWS["endpoints"])
def test_the_end_of_a_url_is_not_repeated(base: str, path: str, url: str) -> None:
    assert joined(base, path) == url


@pytest.mark.parametrize(("url", "is_sent"), ROWS["keys"])
def test_a_key_is_sent_over_http_only_to_this_machine(url: str, is_sent: str) -> None:
    host = ServerAddress(url).host
    configured = Config(keys={host: "sk-hush"})
    if is_sent == "yes":
        filler = fim.connect("openai", url, "m", configured, {})
        assert filler.client.server.key == "sk-hush"
        filler.close()
        return
    with pytest.raises(RemoteError, match=f"the API key of {host} is not sent over http") as raised:
        fim.connect("openai", url, "m", configured, {})
    assert "sk-hush" not in str(raised.value)


@pytest.mark.parametrize(("name", "expected"), ROWS["names"])
def test_a_name_is_a_backend_a_url_and_a_model(name: str, expected: str) -> None:
    remote_name = parse_remote(name)
    assert [remote_name.backend, remote_name.dialect, remote_name.url, remote_name.model] == expected.split(" | ")
    assert is_remote(name)


@pytest.mark.parametrize("name", ["vllm:", "chat:", "chat:#m", "fim:", "fim:http://a", "embedded", "owner/name"])
def test_an_incomplete_name_is_reported(name: str) -> None:
    with pytest.raises(RemoteError, match=r"vllm:URL\[#MODEL\], chat:URL\[#MODEL\], or fim:DIALECT"):
        backends.load_remote(name)


@pytest.mark.parametrize(("name", "sentence"), ROWS["wrong names"])
def test_a_filler_that_cannot_be_created_reports_why(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").touch()
    monkeypatch.setenv("DG_LSP_CONFIG", str(tmp_path / "config.toml"))
    with pytest.raises(RemoteError, match=sentence) as raised:
        backends.load_remote(name)
    assert "word" not in str(raised.value).replace("password", "")


def test_one_tasks_answer_ends_anothers_wait(openai: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "STEP_S", 2 * PATIENCE_S)
    answers: list[Future[Fields]] = []

    def send(_call: Call) -> Future[Fields]:
        answers.append(Future())
        return answers[-1]

    monkeypatch.setattr(openai.filler.client, "send", send)
    one, other, dropped = (openai.filler.start(request("f(", ")", LINE)) for _ in range(3))
    assert one.step()
    assert other.step()
    assert dropped.step()
    dropped.close()  # its answer ends no wait
    thread = threading.Thread(target=one.step)
    thread.start()
    answers[1].set_result(Fields({"choices": [{"text": "x"}]}))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert not other.step()
    assert [candidate.texts for candidate in other.candidates()] == [("x",)]
    monkeypatch.setattr(remote, "STEP_S", 0.01)
    assert one.step()


def test_a_servers_key_is_not_in_its_repr(openai: Served) -> None:
    assert isinstance(openai.filler, RemoteFiller)
    assert openai.filler.about() == {
        "device": openai.url.removeprefix("http://"), "dtype": "", "remote": {"model": "a-model", "dialect": "openai"},
    }  # fmt: skip
    assert openai.filler.client.send(Call("/nowhere")).exception() is not None


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("openai", "JetBrains/Mellum-4b-sft-all", {"prompt": "<fim_suffix>)\n<fim_prefix>f(<fim_middle>"}),
        ("openai", "Qwen/Qwen2.5-Coder-7B", {"prompt": "<|fim_prefix|>f(<|fim_suffix|>)\n<|fim_middle|>"}),
        ("ollama", "qwen3-coder:30b", {"prompt": "<|fim_prefix|>f(<|fim_suffix|>)\n<|fim_middle|>", "raw": True}),
        ("ollama", "qwen2.5-coder:7b-base", {"prompt": "f(", "suffix": ")\n"}),
        ("codestral", "codestral-latest", {"prompt": "f(", "suffix": ")\n"}),
    ],
)
def test_a_server_without_suffix_gets_the_models_own_markers(name: str, model: str, expected: dict[str, Any]) -> None:
    dialect = next(dialect for dialect in fim.DIALECTS if dialect.name == name)
    body = dialect.build(fim.Query(model, "f(", ")\n", 8))
    assert {key: body[key] for key in ("prompt", "suffix", "raw") if key in body} == expected
