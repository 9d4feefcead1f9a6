"""Secrets in a workspace: files that hold them are never read, and what looks like one in other text is masked.

The keys are made up by this file: scanners of other people's repositories need not report them.
"""

from __future__ import annotations

import random
import string
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import edits, secrets
from dg_lsp.core.values import Document, Hole, InfillRequest, Snippet, Span
from dg_lsp.engine.backends import fim
from dg_lsp.infill import ignoring, workspace
from dg_lsp.wire.config import Config
from tests import marked
from tests.engine.backends_kit import Recorder, serving
from tests.engine.engine_kit import finish

ROWS = marked.rows(Path(__file__).with_name("secrets.txt"))

LETTERS = random.Random(5)


def some(length: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    """Return a random text that has a digit early on."""
    return "7" + "".join(LETTERS.choices(alphabet, k=length - 1))


UPPER = string.ascii_uppercase + "234567"
HEX = "0123456789abcdef"
TOKENS = [
    "AKIA" + some(16, UPPER), "ghp_" + some(36), "github_pat_" + some(82), "glpat-" + some(20),
    "xoxb-" + some(12, string.digits) + "-" + some(24), "sk-" + some(48), "sk-proj-" + some(64), "sk-ant-api03-" + some(90),
    "sk_live_" + some(24), "AIza" + some(35), "SG." + some(22) + "." + some(43), "npm_" + some(36), "hf_" + some(34),
    "dop_v1_" + some(64, HEX), "eyJ" + some(20) + ".eyJ" + some(40) + "." + some(43),
]  # fmt: skip
BODY = "\n".join(some(64, string.ascii_letters + string.digits + "+/") for _ in range(5))
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n-----END RSA PRIVATE KEY-----\n"


SECRET_FILES = """
    .env .env.local prod.env a/b/server.PEM x.key id_rsa id_ed25519.bak .netrc .npmrc cert.pfx cert.p12 credentials
    credentials.json secrets.yaml Secrets.toml .ssh/config home/.aws/config .gnupg/a.txt terraform.tfstate
    client_secret_1234.json token.json auth.json passwords.txt private_key.der private_key.txt .gitconfig .bash_history
    .python_history psql_history me/.config/gh/hosts.yml me/.m2/settings.xml .vault_pass .vault_pass.txt site/wp-config.php
    app/local_settings.py LocalSettings.php config/master.key me/.cargo/credentials.toml
    me/.config/gcloud/application_default_credentials.json .password-store/mail.gpg backup/rclone.conf
    group_vars/all/vault.yml host_vars/db/vault.yaml server/shop-1a2b3-firebase-adminsdk-x1y2z-0123456789.json
    gha-creds-0123456789abcdef.json prod.kubeconfig kubeconfig kubeconfig.yaml .pgpass .s3cfg .pypirc secrets.yml store.kdbx
    release.jks debug.keystore terraform.tfvars prod.auto.tfvars terraform.tfstate.backup .dbeaver-data-sources.xml
    jenkins.plugins.publish_over_ssh.BapSshPublisherPlugin.xml etc/krb5.keytab .databrickscfg .kaggle/kaggle.json .Renviron
    me/.oci/config me/.snowsql/config me/.dbt/profiles.yml shop/.vscode/sftp.json me/.cache/huggingface/token .dbshell
"""


@pytest.mark.parametrize("path", SECRET_FILES.split())
def test_files_that_hold_secrets_are_known_by_name(path: str) -> None:
    assert ignoring.is_secret(path)
    assert ignoring.is_secret(path.upper())
    # The same outside of all folders of a workspace, where only hidden folders count.
    assert ignoring.is_secret_outside(f"file:///people/{path}")


def test_a_folder_of_secrets_counts_in_a_workspace_alone() -> None:
    assert ignoring.is_secret("secrets/db.py")
    assert not ignoring.is_secret_outside("file:///people/secrets/db.py")


OTHER_FILES = """
    a.py environment.py keys.py src/keyboard.ts ssh/client.go . settings.py vault.py vault.go rclone.py firebase.json
    kube_config.go hosts.yml tokenizer.json history.py PrivateKey.java auth.py token.py private_key_test.go settings.xml
    password_field.dart config/gh.yml api_key.rb client_secret.py
"""


@pytest.mark.parametrize("path", ["", *OTHER_FILES.split()])
def test_files_of_code_are_not_taken_for_secrets(path: str) -> None:
    assert not ignoring.is_secret(path)


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("text", ['call("{}")\n', "header: {}\n", "# it is {}, really\n", "x = f({})"])
def test_tokens_are_masked(token: str, text: str) -> None:
    masked_text = secrets.mask(text.format(token))
    assert masked_text == text.format(secrets.MASK)


VALUE = some(32)


@pytest.mark.parametrize("text", ROWS["masked"])
def test_random_values_of_telling_names_are_masked(text: str) -> None:
    masked_text = secrets.mask(text.format(VALUE))
    assert VALUE not in masked_text
    assert masked_text == text.format(secrets.MASK)


@pytest.mark.parametrize("text", ROWS["ordinary"])
def test_ordinary_code_is_left_alone(text: str) -> None:
    assert secrets.mask(text) == text


def test_this_very_program_holds_nothing_to_mask() -> None:
    texts = [path.read_text() for path in sorted(Path(secrets.__file__).parents[1].rglob("*.py"))]
    assert sum(len(secrets.spans(text)) for text in texts) == 0


@pytest.mark.parametrize(
    "kind", ["RSA PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY", "PRIVATE KEY", "PGP PRIVATE KEY BLOCK"]
)
def test_private_keys_are_masked_and_what_is_around_them_is_not(kind: str) -> None:
    text = f"before = 1\nKEY = '''-----BEGIN {kind}-----\n{BODY}\n-----END {kind}-----'''\nafter = 2\n"
    masked_text = secrets.mask(text)
    assert masked_text == f"before = 1\nKEY = '''-----BEGIN {kind}-----{secrets.MASK}-----END {kind}-----'''\nafter = 2\n"


def test_half_a_private_key_is_masked() -> None:
    begin, end = PEM[: len(PEM) // 2], PEM[len(PEM) // 2 :]
    for part in (begin, "x = 1\n" + begin, end, end + "x = 1\n", begin.replace("\n", "\\n")):
        masked_text = secrets.mask(part)
        assert not any(line in masked_text for line in BODY.split("\n"))
    assert secrets.mask(begin + "def f(x):\n    return g(x)[0]\n").endswith("[0]\n")


@given(cut_at=st.integers(0, len(PEM)), other=st.sampled_from(TOKENS), at=st.floats(0, 1))
def test_a_hole_in_a_secret_hides_neither_half(cut_at: int, other: str, at: float) -> None:
    line = f'value = "{other}"\n'
    middle = len('value = "') + round(at * len(other))
    for text, place, secret in ((PEM, cut_at, BODY), (line, middle, other)):
        left_part, right_part = secrets.mask_pieces((text[:place], text[place:]))
        whole = {secret[i : i + 12] for i in range(len(secret) - 12)}
        assert not any(part in left_part or part in right_part for part in whole)


@given(pieces=st.lists(st.text(alphabet=string.printable, max_size=40), min_size=1, max_size=4))
def test_pieces_stay_pieces_and_a_mask_is_not_masked_again(pieces: list[str]) -> None:
    masked_pieces = secrets.mask_pieces(pieces)
    assert len(masked_pieces) == len(pieces)
    assert secrets.mask("".join(pieces)) == secrets.mask(secrets.mask("".join(pieces)))


def test_every_text_of_a_request_is_masked() -> None:
    token = TOKENS[1]
    two = (Hole(Span(0, 0), "cursor", instruction=token), Hole(Span(1, 1), "cursor"))
    edit = edits.Edit("b.py", 0, f"old {token}", f"new {token}", token, token)
    question = edits.Question(token, 0, (edit,), edits.Window(0, "x = 1", 0))
    related = (Snippet("b.py", token),)
    request = InfillRequest(f"a {token} ", f" {token}\n", two, (f" {token} ",), related=related, question=question)
    masked_request = secrets.mask_request(request)
    assert token not in repr(masked_request)
    assert {field.name for field in fields(InfillRequest)} == {
        # What follows the comment has no text of the user's file; a new field has to be looked at here.
        "prefix", "suffix", "holes", "between", "related", "question",
        # names and numbers
        "language", "path", "budget", "seed",
    }  # fmt: skip
    # An answer writes the text of the window anew, so a mask in it would replace the user's text.
    with pytest.raises(ValueError, match="the lines around the cursor hold what looks like a secret"):
        secrets.mask_request(replace(request, question=replace(question, window=edits.Window(0, token, 0))))


def test_no_ignored_file_and_no_file_of_secrets_is_read_as_context(tmp_path: Path) -> None:
    (tmp_path / ".git" / "info").mkdir(parents=True)
    (tmp_path / ".git" / "info" / "exclude").write_text("excluded.py\n")
    (tmp_path / ".gitignore").write_text("hidden.py\n")
    (tmp_path / ".dgignore").write_text("closed.py\n")
    names = ("excluded", "hidden", "closed", "secrets", "local_settings", "secret_keys", "helper")
    for name in names:
        (tmp_path / f"{name}.py").write_text("value = items\n")
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "store.py").write_text("value = items\n")
    text = "".join(f"import {name}\n" for name in (*names, "credentials.store")) + "value = items\n"
    snippets = workspace.related(tmp_path, tmp_path / "a.py", Document("", "python", text))
    assert [snippet.path for snippet in snippets] == ["helper.py"]


def test_related_text_is_masked(tmp_path: Path) -> None:
    (tmp_path / "keys.py").write_text(f"value = items\nKEY = '''{PEM}'''\nTOKEN = '{TOKENS[0]}'\n" + "value = items\n" * 200)
    document = Document("", "python", "import keys\nvalue = items\n")
    [snippet] = workspace.related(tmp_path, tmp_path / "a.py", document)
    assert "value = items" in snippet.text
    assert not any(line in snippet.text for line in (*BODY.split("\n"), TOKENS[0]))


def test_no_remote_model_sees_a_secret_and_the_hole_is_still_filled() -> None:
    recorder = Recorder([{"content": "(value)", "stop": True}])
    request = InfillRequest(
        f'TOKEN = "{TOKENS[1]}"\nx = call', f"\nKEY = '''{PEM}'''\n", (Hole(Span(0, 0), "cursor"),),
        related=(Snippet("b.py", f"password = '{VALUE}'\nother = 1\n"),),
    )  # fmt: skip
    with serving({"POST /infill": recorder.answer}) as url:
        filler = fim.connect("llama", url, "", Config(), {})
        try:
            task = finish(filler.start(request))
            assert [candidate.texts for candidate in task.candidates()] == [("(value)",)]
        finally:
            filler.close()
    sent = repr(recorder.bodies)
    assert "x = call" in sent
    assert "other = 1" in sent
    assert not any(secret in sent for secret in (TOKENS[1], TOKENS[2], VALUE, *BODY.split("\n")))
