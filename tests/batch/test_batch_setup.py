"""`dg-lsp setup`: what it detects, what it offers, and what it does to the user's file."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typer.testing import CliRunner, Result

from dg_lsp.cli import main as cli
from dg_lsp.cli import setup
from dg_lsp.cli.setup import Gpu, Hardware, Offer, served
from dg_lsp.core.calibration import Calibration
from dg_lsp.engine.backends import http_client
from dg_lsp.engine.common import calibration_store
from dg_lsp.engine.common.calibration_store import ModelId
from dg_lsp.wire import extras, laptop
from dg_lsp.wire.config import ConfigError
from dg_lsp.wire.laptop import LaptopModel
from tests import marked
from tests.engine.backends_kit import serving
from tests.patience import PATIENCE_S

ROWS = marked.rows(Path(__file__).with_name("setup.txt"))

GIB = 1 << 30
LAPTOP = Hardware(8, 16 * GIB)


class Fake(NamedTuple):
    """A server on this machine, and the path, the headers and the body of each request to it."""

    url: str
    requests: list[tuple[str, str, bytes]]


@pytest.fixture
def fake() -> Iterator[Callable[[Mapping[str, Any]], Fake]]:
    """A function that starts a server with an answer for each path: a status, bytes, or JSON, perhaps made of the body."""
    with contextlib.ExitStack() as stack:

        def start(answers: Mapping[str, Any]) -> Fake:
            requests: list[tuple[str, str, bytes]] = []

            async def answer(request: Request) -> Response:
                body = await request.body()
                requests.append((request.url.path, str(request.headers), body))
                said = answers[request.url.path]
                said = said(json.loads(body)) if callable(said) else said
                if isinstance(said, int):
                    return Response(status_code=said)
                return Response(said) if isinstance(said, bytes) else JSONResponse(said)

            routes = {f"{method} {path}": answer for path in answers for method in ("GET", "POST")}
            return Fake(stack.enter_context(serving(routes)), requests)

        yield start


Start = Callable[[Mapping[str, Any]], Fake]


def ollama() -> dict[str, Any]:
    can = {"coder:7b": ["completion", "insert"], "chat:8b": ["completion"]}
    return {
        "/api/tags": {"models": [{"name": "coder:7b", "size": 4_683_087_332}, {"name": "chat:8b", "size": 1}, {"name": "a b"}]},
        "/api/show": lambda body: {"capabilities": can[body["model"]]},
    }


LLAMA = {"/v1/models": {"data": [{"id": "/models/qwen-1.5b.gguf", "owned_by": "llamacpp"}]}}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake server on a busy machine may take long to answer."""
    monkeypatch.setattr(setup, "PATIENCE_S", PATIENCE_S)


def offered(monkeypatch: pytest.MonkeyPatch, kind: str, url: str) -> list[Offer]:
    """Return what is offered where only a server of this kind may run."""
    monkeypatch.setattr(setup, "PLACES", ((kind, url),))
    return setup.running()


@pytest.mark.parametrize("kind", ["ollama", "llama"])
@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"/api/tags": 401, "/v1/models": 401},
        {"/api/tags": b"<html>", "/v1/models": b"<html>"},
        {"/api/tags": [], "/v1/models": 3},
        {"/api/tags": {"models": [3]}, "/v1/models": {"data": [{"id": 5, "owned_by": "llamacpp"}]}},
        {"/v1/models": {"data": [{"id": "x", "owned_by": "somebody"}]}},
        {"/api/tags": b" " * (http_client.MAX_ANSWER_BYTES + 1), "/v1/models": b" " * (http_client.MAX_ANSWER_BYTES + 1)},
        {"/api/tags": b"[" * 100_000, "/v1/models": b"[" * 100_000},
    ],
)
def test_another_kind_of_server_and_a_closed_port_are_not_offered(
    kind: str, answers: Mapping[str, Any], fake: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offered(monkeypatch, kind, fake(answers).url) == []
    assert offered(monkeypatch, kind, "http://127.0.0.1:9") == []


@pytest.mark.parametrize(
    ("kind", "answers", "found"),
    [("ollama", ollama(), ("coder:7b", 4_683_087_332)), ("llama", LLAMA, ("qwen-1.5b.gguf",))],
)
def test_a_server_says_which_of_its_models_fill_and_is_sent_no_key_and_no_code(
    kind: str, answers: Mapping[str, Any], found: tuple[str, int], fake: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    server = fake(answers)
    assert offered(monkeypatch, kind, server.url) == [served(kind, server.url, *found)]
    assert "secret" not in str(server.requests)
    assert {body for _, _, body in server.requests} <= {b"", b'{"model": "coder:7b"}', b'{"model": "chat:8b"}'}


def test_gpus_are_read_from_the_output_of_their_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 143000'; echo 'No devices were found'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if platform.system() == "Linux":
        assert setup.detect(tmp_path / "none").gpus == (Gpu("NVIDIA H200", 143771 << 20),)
    (tmp_path / "card0" / "device").mkdir(parents=True)
    (tmp_path / "card0" / "device" / "mem_info_vram_total").write_text("17163091968\n")
    (tmp_path / "card1" / "device").mkdir(parents=True)
    assert setup.detect(tmp_path).gpus[-1] == Gpu("AMD GPU", 17163091968, "AMD")


def models(*arguments: Any, **more: Any) -> list[tuple[str, bool, bool]]:
    return [(offer.model, offer.is_ready, offer.is_recommended) for offer in setup.offers(*arguments, **more)]


@pytest.mark.parametrize(
    ("kind", "url", "value"),
    [
        ("ollama", "http://127.0.0.1:11434", "fim:ollama#a"),
        ("llama", "http://127.0.0.1:8080", "fim:llama"),
        ("llama", "http://127.0.0.1:8012", "fim:llama:http://127.0.0.1:8012"),
    ],
)
def test_the_value_of_a_servers_model_names_its_address_unless_it_is_the_usual_one(kind: str, url: str, value: str) -> None:
    assert served(kind, url, "a").model == value


@pytest.fixture
def pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[LaptopModel], None]:
    """A function that makes a laptop model one that was pulled."""
    monkeypatch.setenv(laptop.STORE_VARIABLE, str(tmp_path))

    def pull(model: LaptopModel) -> None:
        model.folder.mkdir(mode=0o700)
        (model.folder / laptop.CONFIG).touch()

    return pull


@pytest.mark.parametrize(
    ("pulled", "expected"),
    [
        ("", [("auto", True, False), ("large", False, True), ("small", False, False)]),
        ("small", [("small", True, True), ("embedded", True, False), ("large", False, False)]),
        ("large", [("large", True, True), ("embedded", True, False), ("small", False, False)]),
    ],
)
def test_laptop_models_are_offered_where_they_fit_and_the_best_is_recommended(
    pull: Callable[[LaptopModel], None], pulled: str, expected: list[tuple[str, bool, bool]]
) -> None:
    assert models(LAPTOP, (), {}, {}) == [("auto", True, True)]
    sizes = {"huge": 5, "large": 4, "small": 1}
    known = [LaptopModel(name, "", "Apache-2.0", 200_000_000, gib * GIB, "0" * 64) for name, gib in sizes.items()]
    for model in known:
        if model.name == pulled:
            pull(model)
    assert models(LAPTOP, (), {}, {}, laptop_models=known) == expected
    offer = next(each for each in setup.offers(LAPTOP, (), {}, {}, laptop_models=known) if not each.is_ready)
    assert offer.commands == (f"dg-lsp setup --yes {offer.model}",)
    assert "of memory, on the processor, and 0.2 GB to download once, from " in offer.cost
    running = served("ollama", "http://127.0.0.1:11434", "coder:7b", 4 * GIB)
    assert models(LAPTOP, (running,), {}, {}, laptop_models=known)[0] == ("fim:ollama#coder:7b", True, True)


CARD_24 = (Gpu("RTX 4090", 24 * GIB),)
MACHINES = {
    "old laptop": (Hardware(2, 4 * GIB), "smollm2-135m"),
    "laptop": (Hardware(8, 16 * GIB), "qwen2.5-coder-0.5b"),
    "laptop with a GPU of 8 GB": (Hardware(8, 16 * GIB, (Gpu("RTX 4060", 8 * GIB),), 8 * GIB), "qwen2.5-coder-1.5b"),
    "workstation with a GPU of 24 GB": (Hardware(16, 64 * GIB, CARD_24, 24 * GIB), "qwen2.5-coder-14b"),
    "Mac with 48 GB": (
        Hardware(12, 48 * GIB, (Gpu("Apple GPU", 32 * GIB, "Apple"),), 32 * GIB),
        "qwen2.5-coder-7b",
    ),
    "server with an H100": (Hardware(32, 256 * GIB, (Gpu("H100", 80 * GIB),), 80 * GIB), "qwen2.5-coder-14b"),
    "laptop with an AMD GPU": (Hardware(8, 16 * GIB, (Gpu("AMD GPU", 16 * GIB, "AMD"),)), "qwen2.5-coder-0.5b"),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_laptop_model_that_is_recommended_suits_the_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(laptop.STORE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(laptop, "GPU_MAY_NARROW", "Mac" not in name)
    machine, expected = MACHINES[name]
    offer = next(each for each in setup.offers(machine, (), {}, {}, laptop_models=laptop.MODELS) if each.is_recommended)
    assert offer.model == expected
    assert "only its known SHA-256 is trusted" in offer.cost


@pytest.mark.parametrize(
    ("pulled", "machine", "best"),
    [
        ("qwen2.5-coder-0.5b", Hardware(16, 64 * GIB, CARD_24, 24 * GIB), "qwen2.5-coder-14b"),
        ("qwen2.5-coder-7b", LAPTOP, "qwen2.5-coder-0.5b"),
    ],
    ids=["a small one beside a GPU", "one that needs a GPU without one"],
)
def test_a_pulled_model_that_does_not_suit_the_machine_is_listed_and_another_recommended(
    pulled: str, machine: Hardware, best: str, pull: Callable[[LaptopModel], None]
) -> None:
    pull(next(model for model in laptop.MODELS if model.name == pulled))
    listed = models(machine, (), {}, {}, laptop_models=laptop.MODELS)
    assert (pulled, True, False) in listed
    assert (best, False, True) in listed


def test_the_embedded_model_is_chosen_as_auto_so_that_a_better_one_is_used_later(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[engine]\nmodel = "embedded"\n')
    report = json.loads(run(tmp_path, "--json").stdout)
    first = report["offers"][0]
    assert (first["model"], first["title"]) == ("auto", "the small model that comes with dg-lsp")
    assert first["quality"].endswith("calibrate --model 'embedded'")
    completed = run(tmp_path, "--yes", first["model"], "--no-try")
    assert 'sets engine.model = "auto"' in completed.stdout
    assert "That is the embedded model, until you pull a laptop model: dg-lsp engine pull" in completed.stdout
    assert (tmp_path / "config.toml").read_text() == '[engine]\nmodel = "auto"\n'
    # A user who names it wants this one.
    run(tmp_path, "--yes", "embedded", "--no-try")
    assert (tmp_path / "config.toml").read_text() == '[engine]\nmodel = "embedded"\n'


def test_a_chosen_laptop_model_that_can_not_be_pulled_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(FILE)
    completed = run(tmp_path, "--yes", "smollm2-135m")
    assert completed.exit_code == 2
    assert "smollm2-135m is not downloaded, because DG_LSP_NO_PULL is set" in completed.stderr
    assert (tmp_path / "config.toml").read_text() == FILE


def diffusion_offer(machine: Hardware) -> Offer | None:
    return next((offer for offer in setup.offers(machine, (), {}, {}) if offer.model == setup.DIFFUSION), None)


def card(gib: int, maker: Literal["NVIDIA", "AMD", "Apple"] = "NVIDIA", **options: Any) -> Hardware:
    return Hardware(16, 128 * GIB, (Gpu("a card", gib * GIB, maker), Gpu("a small one", 2 * GIB, maker)), **options)


QUANT = extras.install_command("quant")


@pytest.mark.parametrize(
    ("machine", "precision", "first"),
    [
        *((card(gib), None, "") for gib in (8, 16, 18)),
        (card(24), "int4", "dg-lsp engine pull"),
        (card(24, installed=("fp8",)), "int4", QUANT),
        *((card(gib, installed=("fp8",)), "fp8", "dg-lsp engine pull") for gib in (32, 48)),
        *((card(gib), "bfloat16", "dg-lsp engine pull") for gib in (80, 139)),
        # Weights are quantised only on NVIDIA's.
        (card(48, "AMD"), None, ""),
        (card(42, "Apple"), None, ""),
        (card(85, "Apple"), "bfloat16", "dg-lsp engine pull"),
    ],
)
def test_setup_offers_diffusion_where_it_fits_and_in_the_precision_that_fits(
    machine: Hardware, precision: str | None, first: str
) -> None:
    offer = diffusion_offer(machine)
    assert (offer is not None) == (precision is not None)
    if offer is not None:
        assert f"({precision})" in offer.title
        assert (offer.is_ready, offer.is_recommended) == (False, False)
        assert offer.commands[0].startswith(first)
        assert offer.commands[-2:] == (f"dg-lsp engine pull {setup.DIFFUSION}", f"dg-lsp setup --yes {setup.DIFFUSION}")


def test_a_key_offers_its_service_with_what_it_costs() -> None:
    keys = {"CODESTRAL_API_KEY": "k", "OPENAI_API_KEY": "k"}
    offers_by_model = {offer.model: offer for offer in setup.offers(LAPTOP, (), keys, {"fim:codestral": "61% of 90 answers"})}
    offer = offers_by_model["fim:codestral"]
    assert (offer.is_ready, offer.is_recommended, offer.quality) == (True, False, "61% of 90 answers")
    assert "billed" in offer.cost
    assert "receives the code" in offer.where
    assert not any("openai" in model for model in offers_by_model), (
        "a service that needs a model's name can't be offered by its key alone"
    )


def test_measured_quality_is_part_of_the_offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if calibration_store.folder().is_relative_to(tmp_path):
        facts = {"reliability": {"base_rate": 0.42, "n": 100}}
        calibration_store.write(ModelId("embedded", "1"), Calibration(0.0, {}), facts)
        calibration_store.write(ModelId("other"), Calibration(0.0, {}), {})
        (calibration_store.folder() / "broken.json").write_text("[")
        assert calibration_store.shares() == {"embedded": (0.42, 100)}


FILE = """\
# My settings.
[completion]
threshold = 0.3  # rather few

[engine]  # the model
model = "old"  # to be replaced
threads = 2

[keys]
"api.deepseek.com" = "k"
"""


def test_only_the_model_changes_in_the_file() -> None:
    assert setup.with_model(FILE, "fim:ollama#a", "config.toml") == FILE.replace('"old"', '"fim:ollama#a"')


@pytest.mark.parametrize("text", ROWS["files"])
def test_the_model_is_written_into_every_kind_of_file(text: str) -> None:
    new = setup.with_model(text, 'a"b\\c', "config.toml")
    report = tomllib.loads(new.removeprefix("\ufeff"))
    assert report["engine"]["model"] == 'a"b\\c'
    assert new.startswith("\ufeff") == text.startswith("\ufeff")
    for line in text.split("\n"):
        assert "model" in line or "{" in line or line.rstrip("\r") in new


@pytest.mark.parametrize("text", ["engine = 3\n", "[engine\n", '"engine.model" = "x"\n', '[Engine]\nmodel = "x"\n'])
def test_a_file_that_sets_the_model_in_an_unusual_way_is_not_changed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.toml .* by hand"):
        setup.with_model(text, "embedded", "config.toml")


def run(tmp_path: Path, *arguments: str, places: tuple[tuple[str, str], ...] = (), **environ: str) -> Result:
    """Run the command in this process, without looking at the ports where this machine may run servers of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "TMPDIR", laptop.NO_PULL_VARIABLE) if name in os.environ}
    variables = {**kept, "HOME": str(tmp_path), "DG_LSP_CONFIG": str(tmp_path / "config.toml"), **environ}
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.chdir(tmp_path)
        patch.setattr(setup, "PLACES", places)
        return CliRunner().invoke(cli.app, ["setup", *arguments])


def miss(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let a package be missing, on a machine without a GPU."""
    find_spec = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == package else find_spec(name))
    monkeypatch.setattr(extras, "has_useless_cuda", lambda: True)


def test_a_local_model_without_torch_installs_it_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    miss(monkeypatch, "torch")
    chosen = ("--yes", "embedded", "--no-try")
    # pip changes nothing here, because all that the engine requires is installed.
    completed = run(tmp_path, *chosen, DG_LSP_NO_PULL="", PIP_NO_INDEX="1")
    assert completed.exit_code == 0, completed.stderr
    assert "embedded needs torch. Not installed yet: about 250 MB to download and 1.2 GB on the disk" in completed.stderr
    assert "Requirement already satisfied: torch" in completed.stderr
    assert 'model = "embedded"' in (tmp_path / "config.toml").read_text()
    (tmp_path / "config.toml").unlink()
    refused = run(tmp_path, *chosen, DG_LSP_NO_PULL="1")
    assert (refused.exit_code, "nothing was changed; to install it yourself: " in refused.stderr) == (2, True)
    assert not (tmp_path / "config.toml").exists()
    remote = run(tmp_path, "--yes", "fim:ollama#a", "--no-try")
    assert (remote.exit_code, "torch" in remote.stderr) == (0, False)


def test_a_vllm_model_installs_the_missing_package_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[Sequence[str]] = []
    miss(monkeypatch, "tokenizers")
    monkeypatch.setattr(setup, "install", installed.append)
    completed = run(tmp_path, "--yes", "vllm:http://127.0.0.1:9", "--no-try", DG_LSP_NO_PULL="")
    assert completed.exit_code == 0, completed.stderr
    assert [command[-1].partition(">")[0] for command in installed] == ["tokenizers"]
    assert "needs tokenizers. Not installed yet\n" in completed.stderr
    assert "torch" not in completed.output


def test_without_pytorchs_index_the_message_names_it_and_other_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    miss(monkeypatch, "torch")
    # A build that is not installed here, in an index that refuses connections.
    monkeypatch.setattr(extras, "CPU_INDEX", "http://127.0.0.1:9/whl/cpu")
    monkeypatch.setattr(extras, "CPU_TORCH", "torch==0.0.1+cpu")
    own = tmp_path / "own"
    own.mkdir()
    (own / "index.html").write_text("<!DOCTYPE html><html><body></body></html>")
    chosen = ("--yes", "auto", "--no-try")
    completed = run(tmp_path, *chosen, DG_LSP_NO_PULL="", PIP_INDEX_URL=own.as_uri(), PIP_CONFIG_FILE=os.devnull)
    assert completed.exit_code == 2
    problem = completed.stderr.splitlines()[-1]
    assert problem.startswith(
        "dg-lsp: torch could not be installed: ERROR: No matching distribution found for torch==0.0.1+cpu; torch's CPU build "
        "(torch==0.0.1+cpu) is in http://127.0.0.1:9/whl/cpu, or in an index that you add to pip's extra-index-url; "
    )
    assert "; the build with CUDA, about 5 GB on the disk: " in problem
    assert "--extra-index-url" not in problem, "the command that has just failed"
    assert problem.endswith("; then run `dg-lsp setup` again")
    assert not (tmp_path / "config.toml").exists()


def test_scripts_get_one_object_and_write_what_they_choose(tmp_path: Path, fake: Start) -> None:
    (tmp_path / "config.toml").write_text(FILE)
    server = fake(ollama())
    places = (("ollama", server.url),)
    completed = run(tmp_path, "--json", places=places, CODESTRAL_API_KEY="k")
    assert (completed.exit_code, completed.stderr) == (0, "")
    report = json.loads(completed.stdout)
    assert (report["version"], report["model"], report["file"]) == (1, "old", str(tmp_path / "config.toml"))
    model = f"fim:ollama:{server.url}#coder:7b"
    by_model = {offer["model"]: offer for offer in report["offers"]}
    assert by_model[model]["recommended"]
    assert by_model["fim:codestral"]["ready"]
    assert "written" not in report
    assert (tmp_path / "config.toml").read_text() == FILE
    completed = run(tmp_path, "--json", "--yes", model, "--no-try", places=places)
    assert json.loads(completed.stdout)["written"] == model
    assert (tmp_path / "config.toml").read_text() == FILE.replace('"old"', json.dumps(model))


def test_a_sample_that_was_not_filled_is_not_called_filled(tmp_path: Path, fake: Start) -> None:
    (tmp_path / "config.toml").write_text("")
    server = fake({"/infill": {"content": "return unbound_name", "stop": True, "tokens_predicted": 4}})
    completed = run(tmp_path, "--yes", f"fim:llama:{server.url}", DG_LSP_RUNTIME_DIR=str(tmp_path / "run"))
    assert "A sample was not filled" in completed.stdout, completed.stderr
    assert "the answer uses a name that nothing binds" in completed.stdout
    assert "filled in" not in completed.stdout


def test_a_model_that_does_not_respond_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(FILE)
    model = "fim:ollama:http://127.0.0.1:9#x"
    completed = run(tmp_path, "--yes", model, DG_LSP_RUNTIME_DIR=str(tmp_path / "run"))
    assert completed.exit_code == 1
    assert completed.stderr.endswith(
        f"dg-lsp: {tmp_path / 'config.toml'} is unchanged; to choose {model} without a test, add --no-try\n"
    )
    assert "now sets" not in completed.stdout
    assert "Traceback" not in completed.stderr
    completed = run(tmp_path, "--json", "--yes", model, DG_LSP_RUNTIME_DIR=str(tmp_path / "run"))
    report = json.loads(completed.stdout)
    assert (completed.exit_code, report["written"], report["overruled"]) == (1, "", "")
    assert report["trial"]["problem"]
    assert (tmp_path / "config.toml").read_text() == FILE


@pytest.mark.skipif(sys.platform != "linux", reason="no folder is read-only for every user")
def test_a_file_that_cannot_be_written_is_reported_before_the_model_is_tried(tmp_path: Path) -> None:
    completed = run(tmp_path, "--yes", "embedded", DG_LSP_CONFIG="/proc/dg-lsp/config.toml")
    assert (completed.exit_code, completed.stdout) == (2, "")
    assert completed.stderr == "dg-lsp: /proc/dg-lsp/config.toml can't be written: No such file or directory\n"


@pytest.mark.parametrize(("arguments", "sentence"), ROWS["options"])
def test_an_invalid_option_is_refused_in_one_sentence(tmp_path: Path, arguments: str, sentence: str) -> None:
    completed = run(tmp_path, *arguments.split(" | "))
    assert (completed.exit_code, completed.stdout) == (2, "")
    assert sentence in completed.stderr
    assert "secret" not in completed.stderr
    assert completed.stderr.count("\n") == 1
    assert not (tmp_path / "config.toml").exists()


def test_without_a_terminal_it_shows_the_offers_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    completed = run(tmp_path)
    assert completed.exit_code == 0
    assert "1. the small model that comes with dg-lsp (recommended)" in completed.stdout
    assert "choose with --yes MODEL" in completed.stderr
    assert (tmp_path / "config.toml").read_text() == ""


def test_a_setting_that_overrides_the_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    completed = run(tmp_path, "--yes", "fim:llama", "--no-try", DG_LSP_MODEL="embedded")
    assert "DG_LSP_MODEL sets embedded, which overrides it here" in completed.stdout
