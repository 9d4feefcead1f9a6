"""Which laptop model is offered, and how the user's choice is stored."""

from __future__ import annotations

import asyncio
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dg_lsp.engine.model.fit import machine
from dg_lsp.server import offers
from dg_lsp.server.session import DgLanguageServer
from dg_lsp.wire import laptop

GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "card", "name"),
    [
        (6 * GIB, 0, "qwen2.5-coder-0.5b"),
        (4 * GIB, 0, "smollm2-135m"),
        (0, 0, ""),
        (8 * GIB, 8 * GIB, "qwen2.5-coder-1.5b"),
        (32 * GIB, 12 * GIB, "qwen2.5-coder-7b"),
        (32 * GIB, 24 * GIB, "qwen2.5-coder-14b"),
        (64 * GIB, 80 * GIB, "qwen2.5-coder-14b"),
    ],
)
def test_the_offered_model_suits_the_processor_or_the_gpu(
    memory: int, card: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laptop, "machine_memory", lambda: memory)
    monkeypatch.delenv(laptop.NO_PULL_VARIABLE, raising=False)
    model = laptop.offered("auto", card)
    assert (model.name if model else "") == name
    assert laptop.offered("embedded", card) is None


SMALL, MIDDLE, LARGE = "smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"


@pytest.mark.parametrize(
    ("measured", "pulled", "used", "offered"),
    [
        # A line of the 1.5B takes 3.1 times as long as one of the 0.5B.
        ({MIDDLE: (200, 400)}, (MIDDLE,), MIDDLE, LARGE),
        ({MIDDLE: (230, 400)}, (MIDDLE,), MIDDLE, None),
        ({MIDDLE: (200, 500)}, (MIDDLE,), MIDDLE, None),
        ({}, (MIDDLE,), MIDDLE, None),
        ({SMALL: (40, 100)}, (SMALL,), SMALL, LARGE),
        ({SMALL: (100, 300)}, (SMALL,), SMALL, MIDDLE),
        # What was measured of a model itself counts for more than an estimate.
        ({MIDDLE: (200, 400), LARGE: (900, 900)}, (MIDDLE, LARGE), MIDDLE, None),
        ({MIDDLE: (900, 900), LARGE: (600, 900)}, (MIDDLE, LARGE), LARGE, None),
        # A model that was pulled by name is used until it is known to be slow, or if there is no smaller one.
        ({}, (MIDDLE, LARGE), LARGE, None),
        ({LARGE: (2000, 4000)}, (LARGE,), LARGE, None),
    ],
)
def test_the_largest_quick_model_is_used_and_offered(
    measured: dict[str, tuple[float, float]],
    pulled: tuple[str, ...],
    used: str,
    offered: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(laptop.STORE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(laptop, "machine_memory", lambda: 16 * GIB)
    monkeypatch.delenv(laptop.NO_PULL_VARIABLE, raising=False)
    for name in pulled:
        folder = tmp_path / name
        folder.mkdir(mode=0o700)
        (folder / laptop.CONFIG).touch()
    for name, times in measured.items():
        laptop.note(name, laptop.Times(*times))
    assert laptop.resolve("auto") == used
    best = laptop.offered("auto", 0)
    assert (best.name if best else None) == offered
    if best is not None:
        assert f"estimated from {used}" in best.promise


def test_a_gpu_needs_the_bytes_of_8_bits_where_16_do_not_fit_and_it_computes_in_8(monkeypatch: pytest.MonkeyPatch) -> None:
    model = laptop.by_name("qwen2.5-coder-7b")
    assert model is not None
    assert model.bytes_on(24 * GIB) == model.card_bytes
    assert model.bytes_on(12 * GIB) == model.narrow_card_bytes
    assert model.fits(0, 12 * GIB)
    monkeypatch.setattr(laptop, "GPU_MAY_NARROW", False)  # as on a Mac
    assert model.bytes_on(12 * GIB) == model.card_bytes
    assert not model.fits(0, 12 * GIB)


def test_a_cpu_build_of_torch_uses_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA RTX 4090, 24564, 24000'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(metadata, "version", lambda _name: "2.13.0+cpu")
    assert machine.usable_card() == 0
    monkeypatch.setattr(metadata, "version", lambda _name: "2.13.0")
    assert machine.usable_card() == 24564 << 20


def test_a_choice_that_can_not_be_read_is_no_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "choice_file", lambda: tmp_path / "new" / "choice.json")
    assert offers.read_choice() == {}
    assert offers.write_choice({"never": True})
    assert offers.read_choice() == {"never": True}
    for text in ("[1]", "{", "\xff"):
        offers.choice_file().write_text(text)
        assert offers.read_choice() == {}
    offers.choice_file().unlink()
    offers.choice_file().mkdir()
    assert offers.read_choice() == {}
    assert not offers.write_choice({"never": True})


def test_never_stays_when_a_download_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "choice_file", lambda: tmp_path / "choice.json")
    assert offers.write_choice({"accepted": "smollm2-135m"})
    assert offers.write_choice({"never": True})
    assert offers.write_choice({"not_before": "2026-12-01"})
    assert offers.read_choice() == {"never": True, "not_before": "2026-12-01"}


async def test_a_download_that_is_asked_for_twice_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    messages: list[str] = []

    async def accepted(_server: object, model: laptop.LaptopModel) -> None:
        begun.append(model.name)

    monkeypatch.setattr(offers, "_accept", accepted)
    monkeypatch.setattr(laptop, "offered", lambda _model, _card: laptop.MODELS[0])
    tasks: list[asyncio.Task[None]] = []
    server = SimpleNamespace(
        is_pulling=False,
        model="embedded",
        card_bytes=0,
        settings=SimpleNamespace(model="auto"),
        show_message=messages.append,
        spawn=lambda work: tasks.append(asyncio.ensure_future(work)),
    )

    await offers.execute(cast("DgLanguageServer", server), "download")
    await offers.execute(cast("DgLanguageServer", server), "download")
    await asyncio.gather(*tasks)
    assert (begun, messages) == ([laptop.MODELS[0].name], ["a model is being downloaded already"])


def test_a_name_means_another_model_only_for_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(laptop.STORE_VARIABLE, str(tmp_path))
    small = laptop.MODELS[-1]
    assert laptop.resolve("auto") == "embedded"
    small.folder.mkdir(mode=0o700)
    # A folder without a configuration is not a model.
    assert laptop.resolve("auto") == "embedded"
    (small.folder / laptop.CONFIG).touch()
    assert laptop.resolve("auto") == small.name
    assert laptop.resolve("embedded") == "embedded"
    assert laptop.resolve("owner/name") == "owner/name"
    laptop.MODELS[0].folder.symlink_to(small.folder)
    assert laptop.resolve("auto") == small.name
