"""What runs and what is written outside of dg-lsp: no file that a path leads to, no program of a repository, no key."""

from __future__ import annotations

import ast
import http.server
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import dg_lsp
from dg_lsp.batch import git as product_git
from dg_lsp.batch import scratch
from dg_lsp.cli import setup
from dg_lsp.engine.model.fit import machine
from dg_lsp.wire import discovery, programs
from tests.batch.conftest import STUB
from tests.batch.test_batch_commands import run
from tests.batch.test_batch_process import SCRIPTED, environment, finish, start
from tests.processes import git

SET_UP_GIT = "git init -q; git config user.name n; git config user.email e@x; git add .; git commit -qm x"
EVIL = """
import contextlib, glob, os
places = [path for name, path in os.environ.items() if name.startswith('OWN_') or name in ('OLDPWD', 'PWD')]
named = [f'{place}/evil' for place in places] + places
for path in [*glob.glob('*'), *glob.glob('*/*'), *glob.glob('*/*/*'), 'new.py', *named]:
    with contextlib.suppress(OSError):
        open(path, 'a').write('# evil')
"""


def tree(*folders: Path) -> dict[str, object]:
    """Return what is in folders: the targets of links, and the bytes of files."""
    paths = (path for folder in folders for path in folder.rglob("*"))
    return {str(path): path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes() for path in paths}


@pytest.fixture
def ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A project with ways that lead out of it, in which commands run, and what is outside."""
    outside, project, alias = tmp_path / "outside", tmp_path / "project", tmp_path / "alias"
    for name in ("a.py", "deep/b.py", "node_modules/c.py", "venv/bin/python3"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text(STUB)
    (project / "sub" / "bin").mkdir(parents=True)
    (project / "own.py").write_text(STUB)
    alias.symlink_to(project)
    links: dict[str, str | Path] = {
        "absolute.py": outside / "a.py", "up.py": "../outside/a.py", "other_name.py": alias / "own.py",
        "hop": "../outside/deep",
        "over.py": "hop/../a.py", "sub/far.py": "../../alias/sub/../../outside/deep/b.py", "folder": outside, "here": ".",
        "other_root": alias, "new.py": outside / "new.py", "chain.py": "up.py", "node_modules": outside / "node_modules",
        "named": outside / "deep", "loop": "loop", "sub/bin/python3": outside / "venv" / "bin" / "python3", "parent": "..",
        "environ.py": "/proc/self/environ", "sub/node_modules": f"/proc/{os.getpid()}/net",
    }  # fmt: skip
    for name, target in links.items():
        (project / name).symlink_to(target)
    (project / "hard.py").hardlink_to(outside / "deep" / "b.py")
    monkeypatch.chdir(alias)
    return project, outside


@pytest.mark.parametrize("has_git", [False, True], ids=["no git", "git"])
def test_a_check_changes_nothing_that_a_path_of_the_copy_leads_to(
    ways: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, has_git: bool
) -> None:
    project, _ = ways
    alias = project.with_name("alias")
    for name in ("", "target", "sub", "other_root/new", "sub/../own.py", ".coverage", "own.py", "up.py", "here/sub", "hop"):
        for number, place in enumerate((project, alias, Path("/proc/self/cwd"), f"/proc/{os.getpid()}/cwd")):
            monkeypatch.setenv(f"OWN_{number}_{name}", f"{place}/{name}")
    monkeypatch.setenv("OLDPWD", str(alias))
    if has_git:
        subprocess.run("git init -q; git add .", shell=True, check=True)
    before = tree(*ways)
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(EVIL)} named parent; test -e named/b.py && ! test -e parent"
    command += "".join(f" && ! test -e {name}" for name in ("fold*r", "environ.py", "sub/node_modules"))
    result = run("own.py", "--check", command, "--all")
    assert "filled 1 of 1 hole in 1 file" in result.stderr, result.stderr
    assert f"lacks {project / 'folder'}: it is a link to a directory elsewhere; name it in the command" in result.stderr
    assert f"lacks {project / 'parent'}: it is a link to a directory elsewhere\n" in result.stderr
    assert tree(*ways) == before
    # A second candidate is put where the first check may have put links.
    here = f"$(echo .{project} | cut -c2-)"  # not a path that the command names
    links = f"rm -r sub; ln -s {here}/sub sub; rm own.py; ln -s {here}/own.py own.py; echo x >>own.py; false"
    (project / "sub" / "s.py").write_text(STUB)
    before = {name: text for name, text in tree(*ways).items() if not name.endswith("own.py")}
    run("sub/s.py", "--check", links.replace("; echo x >>own.py", ""), "--all")
    assert {name: text for name, text in tree(*ways).items() if not name.endswith("own.py")} == before


@pytest.mark.parametrize("options", [("--write",), ("--commit",), ("--patch", "absolute.py"), ("--resume", "new.py")])
def test_no_command_writes_to_what_a_link_leads_to(ways: tuple[Path, Path], options: tuple[str, ...]) -> None:
    project, outside = ways
    subprocess.run(SET_UP_GIT, shell=True, check=True)
    before, links = tree(outside), {path for path in project.iterdir() if path.is_symlink()}
    result = run(".", *options, "--all", "--generated")
    assert tree(outside) == before
    assert {path for path in project.iterdir() if path.is_symlink()} == links
    is_written = options[0] in ("--write", "--commit")
    assert ("return 1" in (project / "own.py").read_text()) is is_written, result.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("temporary", [".", "tmp", "{}", "{}/tmp", "{}/../alias/tmp", "tmp/../tmp"])
@pytest.mark.parametrize("has_git", [False, True], ids=["no git", "git"])
def test_no_copy_contains_copies(ways: tuple[Path, Path], temporary: str, has_git: bool) -> None:
    project, _ = ways
    (project / "tmp").mkdir()
    if has_git:
        subprocess.run("git init -q; git add .", shell=True, check=True)
    for name in ("own.py", "other.py"):
        (project / name).write_text(STUB)
    (project / "tmp" / "dg-lsp-check-old" / "0").mkdir(parents=True)
    (project / "tmp" / "dg-lsp-check-old" / "0" / "left.py").write_text(STUB)
    before = tree(project)
    command = "test -z \"$(find . -name 'dg-lsp-check-*')\""
    process = start("fills", ".", "--check", command, "--jobs", "2", cwd=project, TMPDIR=temporary.format(project))
    code, out, err = finish(process)
    assert (code, out.count("+++ ")) == (0, 3), err
    assert tree(project) == before


@pytest.mark.e2e
@pytest.mark.parametrize("place", ["new", "sub"])
def test_what_a_check_mounts_is_not_changed(tmp_path: Path, place: str) -> None:
    project, own, temporary = tmp_path / "project", tmp_path / "o wn", tmp_path / "t mp"
    temporary.mkdir()
    for path in (project / "sub" / "a.py", own / "kept" / "x"):
        path.parent.mkdir(parents=True)
        path.write_text(STUB)
    (own / "kept").chmod(0o500)
    before = tree(own)
    dg_lsp_infill = shlex.join([sys.executable, "-c", SCRIPTED, "fills", "infill", ".", "--all", "--check"])
    command = f"mkdir -p {place}; mount --bind {shlex.quote(str(own))} {place}"
    mounting = ["unshare", "-rm", "sh", "-c", f"{dg_lsp_infill} {shlex.quote(command)}; {dg_lsp_infill} true"]
    if not shutil.which("unshare") or subprocess.run([*mounting[:2], "true"], check=False).returncode:
        pytest.skip("no mounts without privileges here")
    variables = environment(TMPDIR=str(temporary))
    result = subprocess.run(mounting, cwd=project, env=variables, capture_output=True, text=True, check=False)
    assert (tree(own), (own / "kept").stat().st_mode & 0o777) == (before, 0o500), result.stderr
    assert "can't be removed: unmount what a check has mounted in it" in result.stderr
    assert ("a check has mounted something there" in result.stderr) is (place == "sub")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        with scratch.directory() as folder:
            assert list(temporary.iterdir()) == [folder], "now nothing is mounted there"


# --- Keys

SECRETS = [
    "DG_LSP_API_KEY", "DG_LSP_ENGINE_TOKEN", "OPENAI_API_KEY", "CODESTRAL_API_KEY", "DEEPSEEK_API_KEY",
    "INCEPTION_API_KEY", "ANTHROPIC_APIKEY", "GITHUB_TOKEN", "VAULT_ADDR_TOKENS", "STRIPE_SK", "HTTP_COOKIE", "GH_PAT",
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "NPM_AUTH", "npm_token", "PGPASSWORD", "MYSQL_PWD", "DB_PASS",
    "SECRET_KEY_BASE", "GOOGLE_CREDENTIALS", "SIGNING_PASSPHRASE", "GIT_CONFIG_VALUE_0", "TOKEN1", "MASTERKEY2",
    "SSHPASS", "BEARER", "AUTHORIZATION", "SERVICE_CREDS", "SERVICE_CREDS_PSW", "DB_PW", "WIFI_PSK", "GOOGLE_OAUTH",
    "DBPASS", "USERPWD", "SEED_PHRASE",
]  # fmt: skip
WITH_SECRETS = {
    "DATABASE_URL": "postgres://user:s3cr3t@localhost/db",
    "HTTPS_PROXY": "http://user:s3cr3t@proxy:3128",
    "http_proxy": "user:s3cr3t@proxy:3128",
    "PIP_INDEX_URL": "https://user:s3cr3t@localhost/simple",
    "PIP_EXTRA_INDEX_URL": "https://a/simple https://user:s3cr3t@b/simple",
    "ORIGIN": "https://s3cr3t@github.com/x",
    "BROKER_URL": "amqp://user:s3cr3t/x@localhost",
    "OTHER_MODEL": "vllm:http://user:s3cr3t@localhost/v1",
    "ERRORS_DSN": "https://s3cr3t@localhost/1",
    "EVENTS": "wss://s3cr3t@localhost",
    "CACHE_URL": "redis://:s3cr3t@localhost",
    "REPLICAS": "postgres://me:1s3cr3t@a:5432,b:5432/db",
    "WITH_EXTRA": "git+https://s3cr3t@localhost/x",
    "QUEUE": "nats://s3cr3t@localhost",
    "MIRROR": "HTTPS://s3cr3t@localhost/x",
    "JDBC": "jdbc:postgresql://localhost/db?user=me&password=s3cr3t",
    "STORAGE": "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=s3cr3t;EndpointSuffix=x",
    "PYTEST_ADDOPTS": "--dsn=postgres://user:s3cr3t@localhost/db",
    "DOWNLOAD": "https://localhost/c?sv=1&sig=s3cr3t",
    "BUCKET": "https://localhost/k?X-Amz-Signature=s3cr3t",
    "DB_DSN": "root:s3cr3t@tcp(127.0.0.1:3306)/db",
    "LOGIN": "https://localhost/?client_secret=s3cr3t",
    "SETTINGS": "A=1 DB_PASSWORD=s3cr3t",
    "ARGUMENTS": "mysql -u me --password=s3cr3t",
    "PROXY_URL": "me:s3cr3t@proxy:3128",
    "WEBHOOK": "https://hooks.slack.com/services/" + "s3cr3t" * 4,
    "MAP": "https://localhost/x?key=AIza" + "s3cr3t" * 5 + "12345",
    "GH": "ghp_" + "s3cr3t" * 6,
}
WITHOUT_SECRETS = {
    "MAVEN_OPTS": "-Djavax.net.ssl.trustStorePassword=changeit",
    "GITHUB_SHA": "0123456789abcdef0123456789abcdef01234567",
    "DOCKER_HOST": "ssh://me@host",
    "TEST_DATABASE_URL": "postgres://me@localhost/db",
    "TEST_BROKER": "amqp://guest@localhost:5672/x",
    "TEST_CLUSTER": "mongodb+srv://me@localhost/db",
    "TEST_REPLICAS": "postgres://a:5432,b:5432/db?user=me@localhost",
    "TEST_HOST": "mysql://localhost:3306?user=me@localhost",
    "UPSTREAM": "git+ssh://git@github.com/x",
    "REGISTRY": "https://localhost:80/@scope",
    "E_MAIL": "me@localhost",
    "SKIP_BYPASS": "1",
    "COMPASS2": "north",
    "PARAPHRASE": "no",
}


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "s3cr3t")
    for name, value in (WITH_SECRETS | WITHOUT_SECRETS).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The command that writes its environment into a file; at the end, it was run and saw no secret."""
    file = tmp_path_factory.mktemp("seen") / "environment"
    yield [sys.executable, "-c", f"import json, os; json.dump(dict(os.environ), open({str(file)!r}, 'w'))"]
    seen = json.loads(file.read_text())
    assert not {name for name, value in seen.items() if "s3cr3t" in value}
    assert seen["PATH"]
    assert seen.items() >= WITHOUT_SECRETS.items()


@pytest.mark.usefixtures("secrets")
class TestNoChildButTheEngineSeesAKey:
    def test_a_check(self, stubbed: Path, dumped: list[str]) -> None:
        result = run("a.py", "--check", shlex.join(dumped), "--all")
        assert (
            f"the check does not get {', '.join(sorted([*SECRETS, *WITH_SECRETS]))}: name a variable in its command to pass it"
            in result.stderr
        )

    def test_a_check_gets_what_its_command_names(self, stubbed: Path) -> None:
        assert run("a.py", "--check", 'test "$GH_PAT" = s3cr3t', "--all").exit_code == 0
        # A part of a name does not name it.
        assert run("a.py", "--check", 'test "$(env | grep -c ^GH_P)" = 0 # GH_PATH', "--all").exit_code == 0

    @pytest.mark.parametrize("name", ["pre-commit", "post-commit", "filter"])
    def test_git(self, stubbed: Path, dumped: list[str], name: str) -> None:
        program = stubbed / "program"
        program.write_text(f"#!/bin/sh\n{shlex.join(dumped)}\ncat\n")
        program.chmod(0o755)
        how = "git config filter.x.clean ./program; echo '*.py filter=x' >.gitattributes"
        how = how if name == "filter" else f"mkdir -p .git/hooks; cp program .git/hooks/{name}"
        subprocess.run(f"{SET_UP_GIT}; {how}", shell=True, check=True, stdin=subprocess.DEVNULL)
        assert run("a.py", "--commit").exit_code == 0

    def test_git_that_reads(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "git").write_text('#!/bin/sh\nprintf "$HTTPS_PROXY$DATABASE_URL$http_proxy"\n')
        (tmp_path / "git").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        assert [product_git.read(tmp_path, command) for command in ("diff-index", "ls-files")] == [b"", b""]

    def test_an_installer(self, dumped: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        for name in WITH_SECRETS:
            monkeypatch.delenv(name)  # an installer gets some of them
        assert setup.install(dumped) == ""
        monkeypatch.setenv("UV_INDEX_X_PASSWORD", "of the index")
        assert programs.keys(*programs.DOWNLOADS) == {"UV_INDEX_X_PASSWORD": "of the index"}

    def test_a_program_that_lists_cards(self, tmp_path: Path, dumped: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{shlex.join(dumped)}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        machine.nvidia()


@pytest.mark.usefixtures("secrets")
def test_the_engine_has_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DG_LSP_RUNTIME_DIR", str(tmp_path / "run"))
    file = tmp_path / "seen"
    command = [sys.executable, "-c", f"import os; open({str(file)!r}, 'w').write(os.environ['DG_LSP_API_KEY'])"]
    engine_id = discovery.EngineId()
    discovery.start_engine(command, discovery.engine_files(engine_id), engine_id, discovery.EngineSettings()).wait()
    assert file.read_text() == "s3cr3t"


def test_each_child_gets_variables_that_are_chosen() -> None:
    """A child without `env` would inherit every key."""
    starts = {"run", "Popen", "check_output", "check_call", "call", "create_subprocess_exec", "create_subprocess_shell",
              "popen", "system", "spawnv", "posix_spawn", "getoutput"}  # fmt: skip
    n_children = 0
    for path in Path(dg_lsp.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in starts:
                continue
            owner = ast.unparse(call.func.value)
            if owner in ("subprocess", "asyncio", "os", "asyncio.subprocess") and (owner, call.func.attr) != ("asyncio", "run"):
                n_children += 1
                assert "env" in {keyword.arg for keyword in call.keywords}, f"{path}:{call.lineno}"
    assert n_children >= 7


# --- Git, in a repository that was not cloned but unpacked


PROGRAMS = [
    "filter.e=v.clean", "filter.e=v.smudge", "filter.e=v.process", "diff.e.textconv", "diff.e.command", "diff.external",
    "core.pager", "pager.diff", "core.fsmonitor", "core.editor", "sequence.editor", "core.askPass", "core.sshCommand",
    "core.gitProxy", "core.alternateRefsCommand", "credential.helper", "credential.https://localhost.helper",
    "gpg.program", "gpg.ssh.program", "gpg.ssh.defaultKeyCommand", "merge.e.driver", "interactive.diffFilter",
    "remote.origin.uploadpack", "remote.origin.vcs", "remote.origin.receivepack", "uploadpack.packObjectsHook",
    "alias.diff", "alias.ls-files", "alias.rev-parse", "alias.config", "trailer.e.command", "trailer.e.cmd",
    "difftool.e.cmd", "mergetool.e.cmd", "submodule.sub.update", "tar.e.command",
]  # fmt: skip
URLS = [
    "ext::sh -c {}",
    "file://{}/evil.git",
    "{}/evil.git",
    "ssh://localhost:9/x",
    "git://localhost:9/x",
    "https://localhost:9/x",
]


CHANGED = ("--changed-since", "HEAD")


@pytest.mark.parametrize(
    ("arguments", "url"),
    [*((CHANGED, url) for url in ("", *URLS)), (("--check", "true", "--all"), ""), (("--write",), ""), (("--dry-run",), "")],
)
def test_a_repository_from_an_archive_runs_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], url: str
) -> None:
    ran, evil = project / "ran", project / "evil"
    # The user's own filter obeys the repository's settings, which may name a program.
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(project / "settings"))
    (project / "settings").write_text(f'[filter "lfs"]\nprocess = {evil}\nclean = {evil}\nrequired\n')
    for name in ("a.py", "c.py", "sub/b.py"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(STUB)
    for folder in ("sub", "."):
        git("init", "-q", folder)
        git("-C", folder, "add", ".")
        git("-C", folder, "commit", "-qm", "x")
    git("clone", "-q", "--bare", ".", "evil.git")
    if url:  # a partial clone, to which the old text of a file is missing
        blob = git("rev-parse", "HEAD:a.py")
        (project / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
        shutil.rmtree(project / "evil.git" / "objects")
        (project / "evil.git" / "objects").mkdir()
        for key, value in (("promisor", "true"), ("partialclonefilter", "blob:none"), ("url", url.format(project))):
            git("config", f"remote.origin.{key}", value)
        git("config", "extensions.partialClone", "origin")
        git("config", "--file", "evil.git/config", "remote.origin.uploadpack", str(evil))
    evil.write_text(f"#!/bin/sh\ntouch {ran}\nexit 1\n")
    evil.chmod(0o755)
    for folder in (".", "sub"):
        hooks = project / folder / ".git" / "own hooks"
        hooks.mkdir()
        for name in ("post-index-change", "post-checkout", "reference-transaction", "pre-auto-gc", "fsmonitor-watchman"):
            shutil.copy(evil, hooks / name)
        shutil.copytree(hooks, project / folder / ".git" / "hooks", dirs_exist_ok=True)
        (project / folder / ".git" / "info").mkdir(exist_ok=True)
        (project / folder / ".git" / "info" / "attributes").write_text("*.py filter=e=v diff=e merge=e\nc.py filter=lfs\n")
        git("-C", folder, "config", "core.hooksPath", str(hooks))
        for name in PROGRAMS:
            if name != "remote.origin.vcs" or not url:
                subprocess.run(["git", "config", "--file", f"{folder}/.git/config", name, str(evil)], check=True)
        subprocess.run(["git", "config", "--file", f"{folder}/.git/config", "filter.e=v.required", "true"], check=True)
    (project / "a.py").write_text(STUB + "# mine\n")
    for name in ("c.py", "sub/b.py"):
        os.utime(project / name, (1, 1))
    result = run(".", *arguments)
    assert not ran.exists(), result.stderr
    result = run("sub", "a.py", *arguments)
    assert not ran.exists(), result.stderr
    subprocess.run(["git", "diff", "--stat", "HEAD"], capture_output=True, check=False)
    assert ran.exists(), "git itself would have run one"


class _Server(http.server.BaseHTTPRequestHandler):
    """A server without a repository, which is sent cookies."""

    def do_GET(self) -> None:
        self.server.asked_with.append(self.headers.get("Cookie"))  # type: ignore[attr-defined]
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        pass


@pytest.mark.parametrize(("missing", "n_changed"), [("HEAD:a.py", 1), ("HEAD^{tree}", 0)])
def test_a_repository_from_an_archive_has_no_server_asked(project: Path, tmp_path: Path, missing: str, n_changed: int) -> None:
    cookies = tmp_path / "cookies"
    cookies.write_text("127.0.0.1\tFALSE\t/\tFALSE\t4102444800\tsession\tmine\n")
    (project / "a.py").write_text(STUB)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    number = git("rev-parse", missing)
    (project / ".git" / "objects" / number[:2] / number[2:]).unlink()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        server.asked_with = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        for key, value in (
            ("remote.origin.promisor", "true"),
            ("remote.origin.url", f"{url}/x"),
            ("remote.origin.proxy", url),
            ("fetch.bundleURI", f"{url}/bundle"),
            ("extensions.partialClone", "origin"),
            ("http.cookieFile", str(cookies)),
        ):
            git("config", key, value)
        (project / "a.py").write_text(STUB + "# mine\n")
        result = run(".", "--changed-since", "HEAD")
        assert not server.asked_with, "with what is the user's"  # type: ignore[attr-defined]
        assert (result.stdout.count("+++ a.py") or result.stdout.count("+++ b/a.py")) == n_changed, result.output
        assert ("`git diff --quiet HEAD` in it fetches" in result.stderr) == (not n_changed)
        subprocess.run(["git", "diff", "--stat", "HEAD"], capture_output=True, check=False)
        assert "session=mine" in server.asked_with, "git itself would have sent it"  # type: ignore[attr-defined]
        server.shutdown()
