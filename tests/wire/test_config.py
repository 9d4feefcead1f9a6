"""Configurations drawn as files, and what is read of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dg_lsp.client.engine import ConnectOptions, connect_options
from dg_lsp.wire import config
from dg_lsp.wire.config import Config, ConfigError, keeps_file, stays_local
from dg_lsp.wire.settings import Settings
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("config.txt"))


def read(tmp_path: Path, user: str = "", workspace: str | None = None, **environ: str) -> tuple[Config, tuple[str, ...]]:
    """What is read of these files, and the problems with the places of the files left out."""
    file, folder = tmp_path / "config.toml", tmp_path / "project"
    folder.mkdir(exist_ok=True)
    file.write_text(user, encoding="utf-8")
    if workspace is not None:
        (folder / ".dg-lsp.toml").write_text(workspace, encoding="utf-8")
    configured, problems = config.read(folder, {"DG_LSP_CONFIG": str(file), **environ})
    return configured, tuple(problem.replace(f"{tmp_path}/", "") for problem in problems)


def problem(tmp_path: Path, user: str = "", workspace: str | None = None, **environ: str) -> str:
    _, [configured] = read(tmp_path, user, workspace, **environ)
    return configured


def joining(configured: Config, *, model: str = "", interactive: bool = True) -> ConnectOptions:
    return connect_options(configured, model=model, interactive=interactive)


def test_a_file_sets_what_it_names(tmp_path: Path) -> None:
    configured, problems = read(
        tmp_path,
        """
        enable = false
        [engine]
        model = "vllm:http://gpu01:8000"
        device = "cpu"
        threads = 3
        unload_after = 60
        exitAfter = 0
        [batch]
        deadline = 2000
        candidates = 2
        [privacy]
        local_only = ["vault/", "*.pem"]
        [completion]
        inComments = true
        threshold = 0.5
        """,
    )
    assert problems == ()
    assert (configured.settings.model, configured.settings.device, configured.settings.threads) == (
        "vllm:http://gpu01:8000",
        "cpu",
        3,
    )
    assert (configured.settings.unload_after, configured.settings.exit_after) == (60, 0)
    assert (configured.settings.enable, configured.settings.in_comments) == (False, True)
    assert (configured.settings.batch_deadline, configured.settings.batch_candidates) == (2000, 2)
    assert configured.settings.local_only == ("vault/", "*.pem")
    assert (configured.settings.in_comments, configured.settings.threshold) == (True, 0.5)


@pytest.mark.parametrize(("text", "sentence"), ROWS["problems"])
def test_a_problem_names_the_file_the_key_and_the_valid_values(tmp_path: Path, text: str, sentence: str) -> None:
    assert problem(tmp_path, text).startswith(sentence)
    variable, [said] = read(tmp_path, "engine.device = 'cpu'", DG_LSP_THREADS="-1")
    assert said == 'DG_LSP_THREADS in the environment must be a whole number from 0 to 1024, not "-1".'
    assert (variable.settings.device, variable.settings.threads) == ("cpu", 0)


def test_loading_raises_all_problems_in_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text("a = 1\nb = 2")
    monkeypatch.setenv("DG_LSP_CONFIG", str(file))
    with pytest.raises(ConfigError, match=r"Unknown key a in .* Unknown key b in "):
        config.load_config()


@pytest.mark.parametrize("data", [b"\xff", b"x" * (1 << 20) + b"= 1"])
def test_a_file_that_is_no_text_or_no_configuration_is_named(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(data)
    _, [sentence] = config.read(environ={"DG_LSP_CONFIG": str(file)})
    assert str(file) in sentence


def test_a_file_that_the_environment_names_must_be_there(tmp_path: Path) -> None:
    _, [sentence] = config.read(environ={"DG_LSP_CONFIG": str(tmp_path / "absent.toml")})
    assert sentence == f"{tmp_path / 'absent.toml'}, which DG_LSP_CONFIG names, does not exist."


def test_keys_are_told_apart_by_host(tmp_path: Path) -> None:
    configured, problems = read(tmp_path, "[keys]\n'Api.One.example' = 'one'\n'gpu01:8000' = 'two'\nlocal.host = 'three'")
    assert problems == ()
    hosts = ("api.one.example", "api.one.example:444", "gpu01:8000", "gpu01", "local.host", "other")
    assert [configured.key_for(host) for host in hosts] == ["one", "one", "two", "", "three", ""]
    configured, _ = read(tmp_path, "[keys]\n'a' = 'one'\n'b' = 'one'", DG_LSP_API_KEY="a=two==")
    assert (configured.key_for("a"), configured.key_for("b")) == ("two==", "one")
    assert not {"one", "two"} & set(re.findall(r"\w+", repr(configured)))


@pytest.mark.parametrize(
    ("user", "environ", "host"),
    [
        ("engine.model = 'vllm:https://gpu01:8000'", {}, "gpu01:8000"),
        ("engine.model = 'fim:mercury'", {}, "api.inceptionlabs.ai"),
        ("", {"DG_LSP_MODEL": "fim:openai:https://one.example#m"}, "one.example"),
        ("engine.model = 'fim:mercury'", {"DG_LSP_MODEL": "fim:openai:https://one.example#m"}, "one.example"),
        ("", {}, ""),
    ],
)
def test_a_key_without_a_host_is_for_the_users_own_model_alone(
    tmp_path: Path, user: str, environ: dict[str, str], host: str
) -> None:
    configured, problems = read(
        tmp_path, user, "engine.model = 'fim:openai:https://evil#m'", DG_LSP_API_KEY="sk-x==", **environ
    )
    assert dict(configured.keys) == ({host: "sk-x=="} if host else {})
    assert len(problems) == 1


def test_local_only_patterns_of_all_sources_are_combined(tmp_path: Path) -> None:
    configured, _ = read(
        tmp_path, "[privacy]\nlocal_only = ['a.py']", "[privacy]\nlocal_only = ['b.py']", DG_LSP_LOCAL_ONLY="c.py, d/"
    )
    assert configured.settings.local_only == ("a.py", "b.py", "c.py", "d/")


@pytest.mark.parametrize(
    ("user", "workspace"),
    [("[engine", None), ("", "[privacy"), ("[privacy]\nlocal_only = [1]", None), ("", "privacy.local_only = 'a\\n!b'\n[")],
)
def test_an_invalid_local_only_keeps_everything_local(tmp_path: Path, user: str, workspace: str | None) -> None:
    configured, problems = read(tmp_path, user, workspace)
    assert len(problems) == 1
    assert stays_local("any/file.py", configured.settings.local_only)


@pytest.mark.parametrize(
    ("path", "keeps_here"),
    [("vault/a.py", True), ("src/vault/a.py", True), ("src/a.py", False), ("a.pem", True), ("docs/x/y.md", True)],
)
def test_patterns_are_those_of_gitignore(path: str, keeps_here: bool) -> None:
    assert stays_local(path, ("vault/", "*.pem", "/docs/**")) == keeps_here
    assert stays_local(f"x/../{path}", ("vault/", "*.pem", "/docs/**")) == keeps_here


@pytest.mark.parametrize("path", ["", ".", "..", "../a.py", "/a.py", "a/../../a.py"])
def test_an_unclear_path_stays_local_if_there_is_a_pattern(path: str) -> None:
    assert stays_local(path, ("vault/",))
    assert not stays_local(path, ())


def test_a_model_folder_becomes_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    options = joining(Config(Settings(model="./model", device="cpu", threads=2, unload_after=5, exit_after=6)))
    assert (options.engine_id.model, options.engine_id.device, options.settings.threads) == (str(tmp_path / "model"), "cpu", 2)
    assert (options.settings.unload_after_s, options.settings.exit_after_s, options.interactive) == (5.0, 6.0, True)
    assert joining(Config(), model="owner/name", interactive=False).engine_id.model == "owner/name"


def test_no_folder_is_meant_by_the_names_of_other_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Least of all by a hub id: the current folder may be a clone that has a folder of that name."""
    monkeypatch.chdir(tmp_path)
    names = ("embedded", "vllm:x", "model", "owner/name")
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / "project" / name).mkdir(parents=True)
    for name in names:
        assert joining(Config(), model=name).engine_id.model == name
        assert joining(Config(Settings(model=name))).engine_id.resolved_model == name
        assert read(tmp_path, f"[engine]\nmodel = '{name}'")[0].settings.model == name
        assert read(tmp_path, DG_LSP_MODEL=name)[0].settings.model == name
    assert read(tmp_path, "[engine]\nmodel = './model'")[0].settings.model == str(tmp_path / "model")
    assert read(tmp_path, "[engine]\nmodel = 'embedded'", "[engine]\nmodel = 'embedded'")[0].settings.model == "embedded"


def test_an_unknown_home_folder_is_an_ordinary_name(tmp_path: Path) -> None:
    options = joining(Config(), model="~nosuch/x")
    assert options.engine_id.model == options.engine_id.resolved_model == "~nosuch/x"
    assert read(tmp_path, "[engine]\nmodel = '~nosuch/x'") == (
        Config(Settings(model="~nosuch/x")),
        (),
    )
    _, [sentence] = config.read(environ={"DG_LSP_CONFIG": "~nosuch/x.toml"})
    assert sentence == "~nosuch/x.toml, which DG_LSP_CONFIG names, does not exist."


def test_a_workspace_is_the_nearest_repository_or_configured_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / ".git").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    file = tmp_path / "a" / "b" / "c" / "x.py"
    assert config.workspace_of(file) == tmp_path / "a"
    (tmp_path / "a" / "b" / ".dg-lsp.toml").touch()
    assert config.workspace_of(file) == tmp_path / "a" / "b"


def test_a_file_outside_of_all_workspaces_is_judged_by_its_full_path(tmp_path: Path) -> None:
    (tmp_path / "vault").mkdir()
    private_file, other = tmp_path / "vault" / "a.py", tmp_path / "a.py"
    for pattern in ("vault/", f"{tmp_path}/vault/"):
        patterns = (pattern,)
        assert (keeps_file(private_file, patterns), keeps_file(other, patterns)) == (True, False)


def test_a_private_pattern_that_names_the_workspace_keeps_every_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "above" / "vault" / ".git").mkdir(parents=True)
    file = tmp_path / "above" / "vault" / "src" / "a.py"
    for pattern in ("vault/", "vault", "va*", "vault/src"):
        assert keeps_file(file, (pattern,))
    assert config.private_names(Path("/a.py"), Path("/")) == ("a.py",)
    # The names of the folders above it mean nothing.
    for pattern in ("above/", "src/vault", "vault/lib", f"{tmp_path}/above/"):
        assert not keeps_file(file, (pattern,))


@pytest.mark.parametrize("rest", ["https://b.example", "http://b.example/v1", "https://user:secret@b.example"])
def test_a_name_of_several_servers_is_refused_and_allows_nothing(rest: str) -> None:
    model = f"vllm:https://a.example/x,y,{rest}#m"
    assert config.unallowed(model, ("a.example", "b.example")) == ""
    with pytest.raises(ConfigError) as refused:
        config.check_model(model)
    assert "secret" not in str(refused.value)
    if "@" not in rest:
        assert str(refused.value) == (f"{model} names several servers; name one, such as a load balancer in front of them")
    # A comma in the path of a URL names one server.
    assert config.unallowed("vllm:https://a.example/x,y", ("a.example",)) is None
    assert config.unallowed("vllm:https://a.example,evil.example", ("a.example",)) == ""
