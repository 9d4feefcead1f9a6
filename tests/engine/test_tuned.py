"""Weights tuned on a repository: stored for the user alone, and used only for the files of that repository."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.engine.calibration_store import ModelId
from dg_lsp.engine.decode import tuned as tuned_models
from dg_lsp.engine.decode.filler import LocalFiller, load_local
from dg_lsp.engine.decode.tuned import MAX_MODELS
from dg_lsp.engine.model.weights import tuned_store
from dg_lsp.engine.model.weights.tuned_store import FACTS, WEIGHTS, Figures, StoreError, Tuned
from dg_lsp.wire import files, messages
from dg_lsp.wire.meeting import locks
from dg_lsp.wire.messages import Ask
from tests.engine.engine_kit import Running, home, running

BEFORE, AFTER = Figures(2.5, 3, 20), Figures(2.1, 5, 20)
LINE = Hole(Span(0, 0), "cursor")
REQUEST = InfillRequest("class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.", "\n", (LINE,))


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tuned_store.folder()


@pytest.fixture
def filler(trained_layout: Path) -> LocalFiller:
    return load_local(str(trained_layout), device="cpu")


def model_of(filler: LocalFiller) -> ModelId:
    return ModelId(filler.loaded.name, filler.loaded.fingerprint)


def weights_of(filler: LocalFiller, scale: float) -> bytes:
    name, weight = next(
        (name, weight) for name, weight in filler.loaded.diffusion.model.named_parameters() if "embed_tokens" in name
    )
    return save({name: (weight * scale).to(torch.bfloat16).contiguous()})


def stored(filler: LocalFiller, root: Path, *, scale: float = -1.0, model: ModelId | None = None, made: str = "") -> Tuned:
    made = made or f"2026-01-01T00:00:00 {scale}"
    return tuned_store.write(
        root, model or model_of(filler), weights_of(filler, scale), made=made, before=BEFORE, after=AFTER, facts={}
    )


def texts(filler: LocalFiller, file: str) -> list[tuple[str, ...]]:
    task = filler.start(replace(REQUEST, file=file))
    while task.step():
        pass
    return [candidate.texts for candidate in task.candidates()]


def is_tuned(filler: LocalFiller, file: Path | str) -> bool:
    return filler.start(replace(REQUEST, file=str(file))).resources is not filler.resources


def test_only_files_of_the_repository_get_its_weights(filler: LocalFiller, tmp_path: Path) -> None:
    plain = texts(filler, "")
    entry = stored(filler, tmp_path / "mine")
    assert entry in tuned_store.entries()
    adapted = texts(filler, str(tmp_path / "mine" / "src" / "a.py"))
    assert adapted != plain
    for other in ("", str(tmp_path / "a.py"), str(tmp_path / "mine2" / "a.py"), str(tmp_path / "mine")):
        assert texts(filler, other) == plain
    assert texts(filler, str(tmp_path / "mine" / "src" / "a.py")) == adapted


def test_a_tuned_model_equals_a_model_with_those_weights(filler: LocalFiller, tmp_path: Path) -> None:
    stored(filler, tmp_path / "mine", scale=0.5)
    resources = filler.start(replace(REQUEST, file=str(tmp_path / "mine" / "a.py"))).resources
    plain = filler.loaded.diffusion.model
    name = next(name for name, _ in plain.named_parameters() if "embed_tokens" in name)
    expected = (plain.get_parameter(name) * 0.5).to(torch.bfloat16).float()
    torch.testing.assert_close(resources.loaded.diffusion.model.get_parameter(name), expected, rtol=0, atol=0)
    # The output head shares this weight, and the other weights and the base model stay as they were.
    assert (
        resources.loaded.diffusion.model.lm_head.weight.data_ptr()
        == resources.loaded.diffusion.model.get_parameter(name).data_ptr()
    )
    assert not torch.equal(plain.get_parameter(name), expected)
    assert resources.calibrations is filler.calibrations


def test_a_path_that_leads_out_of_the_repository_is_not_in_it(filler: LocalFiller, tmp_path: Path) -> None:
    stored(filler, tmp_path / "a")
    assert is_tuned(filler, tmp_path / "a" / "x.py")
    assert not is_tuned(filler, f"{tmp_path}/a/../x.py")


def test_an_entry_that_can_not_be_moved_into_place_leaves_the_old_one(
    filler: LocalFiller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = stored(filler, tmp_path / "a")
    rename = Path.rename

    def refused(source: Path, target: Path) -> Path:
        if source.name.startswith(".partial-"):
            raise OSError("the disk is full")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(StoreError):
        stored(filler, tmp_path / "a", scale=-2.0)
    assert tuned_store.entries() == (old,)


@pytest.mark.parametrize("then", ["write", "remove"])
def test_what_a_killed_tuning_left_in_the_store_is_removed(
    filler: LocalFiller, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """The process is killed while it writes the new weights, which contain code of the repository."""
    old = stored(filler, tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        process = os.fork()
        if not process:
            stored(filler, tmp_path / "a", scale=-2.0)
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    assert tuned_store.entries() == (old,)
    assert [place for place in store.iterdir() if place.name.startswith(".partial-")]
    if then == "remove":
        assert tuned_store.remove(tmp_path / "a") == 1
        assert not list(store.iterdir())
    else:
        entry = stored(filler, tmp_path / "b")
        assert set(store.iterdir()) == {old.folder, entry.folder}


def test_what_a_killed_removal_left_in_the_store_is_removed(
    filler: LocalFiller, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed when it has removed the file that says whose weights these are, and not yet the weights."""
    stored(filler, tmp_path / "mine")
    child = os.fork()
    if not child:

        def killed(place: Path, **_: object) -> None:
            (place / FACTS).unlink()
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(shutil, "rmtree", killed)
        tuned_store.remove(tmp_path / "mine")
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert list(store.rglob(WEIGHTS))
    assert tuned_store.entries() == ()
    tuned_store.remove(tmp_path / "mine")
    assert not list(store.rglob(WEIGHTS))


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_with_the_name_of_an_unfinished_entry_is_removed(
    filler: LocalFiller, store: Path, tmp_path: Path, kind: str
) -> None:
    stored(filler, tmp_path / "mine")
    (tmp_path / "else").mkdir()
    if kind == "file":
        (store / ".partial-x").write_text("")
    else:
        (store / ".partial-x").symlink_to(tmp_path / "else")
    assert tuned_store.remove(tmp_path / "mine") == 1
    assert not list(store.iterdir())
    assert (tmp_path / "else").is_dir()


def test_two_processes_do_not_change_the_store_at_once(
    filler: LocalFiller, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(filler, tmp_path / "a")
    monkeypatch.setattr(tuned_store, "LOCK_S", 0.0)
    lock = locks.hold(store / ".lock")
    assert lock is not None
    (store / ".partial-x").mkdir()  # the other process writes it
    with pytest.raises(StoreError, match="is in use by another process"):
        tuned_store.remove(tmp_path / "a")
    assert (store / ".partial-x").exists()
    lock.release()
    assert tuned_store.remove(tmp_path / "a") == 1
    assert not (store / ".partial-x").exists()


def test_the_innermost_repository_counts(filler: LocalFiller, tmp_path: Path) -> None:
    stored(filler, tmp_path / "outer", scale=0.5)
    stored(filler, tmp_path / "outer" / "inner", scale=-1.0)
    outer, inner = (
        filler.start(replace(REQUEST, file=str(tmp_path / place))).resources for place in ("outer/a", "outer/inner/a")
    )
    assert outer is not inner
    assert filler.start(replace(REQUEST, file=str(tmp_path / "outer/inner/b"))).resources is inner


def test_a_file_opened_through_a_link_counts(filler: LocalFiller, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    stored(filler, (tmp_path / "mine").resolve())
    assert is_tuned(filler, tmp_path / "link" / "a.py")


def test_new_replaced_and_removed_weights_count_from_the_next_request(filler: LocalFiller, tmp_path: Path) -> None:
    file = str(tmp_path / "mine" / "a.py")
    plain = texts(filler, file)
    stored(filler, tmp_path / "mine", scale=-1.0)
    first = texts(filler, file)
    stored(filler, tmp_path / "mine", scale=-0.25)
    second = texts(filler, file)
    assert len({str(each) for each in (plain, first, second)}) == 3
    assert len(tuned_store.entries()) == 1
    assert tuned_store.remove(tmp_path / "mine") == 1
    assert texts(filler, file) == plain
    assert tuned_store.remove(tmp_path / "mine") == 0


def test_the_least_recently_used_model_is_dropped(filler: LocalFiller, tmp_path: Path) -> None:
    roots = [tmp_path / f"r{number}" for number in range(MAX_MODELS + 1)]
    for root in roots:
        stored(filler, root)
    in_memory = [filler.start(replace(REQUEST, file=str(root / "a.py"))).resources for root in roots]
    assert filler.about()["tuned_models"] == MAX_MODELS
    assert filler.start(replace(REQUEST, file=str(roots[-1] / "a.py"))).resources is in_memory[-1]
    assert filler.start(replace(REQUEST, file=str(roots[0] / "a.py"))).resources is not in_memory[0]
    filler.trim()
    assert filler.about()["tuned_models"] == 0


def test_a_model_whose_weights_were_removed_leaves_the_memory(filler: LocalFiller, tmp_path: Path) -> None:
    request = replace(REQUEST, file=str(tmp_path / "mine" / "a.py"))
    stored(filler, tmp_path / "mine")
    filler.expect(request)
    model = weakref.ref(filler.start(request).resources.loaded.diffusion.model)
    assert model() is not None
    tuned_store.remove(tmp_path / "mine")
    filler.start(REQUEST)
    gc.collect()
    assert filler.about()["tuned_models"] == 0
    assert model() is None


def test_the_prefix_of_the_next_request_is_encoded_with_the_tuned_weights(filler: LocalFiller, tmp_path: Path) -> None:
    stored(filler, tmp_path / "mine")
    request = replace(REQUEST, file=str(tmp_path / "mine" / "a.py"))
    filler.expect(request)
    while filler.foresee():
        pass
    assert filler.cache.bytes == 0
    task = filler.start(request)
    while task.step():
        pass
    assert task.cache()["reused"] > 0


def test_requests_on_other_weights_share_no_pass(trained_layout: Path, tmp_path: Path) -> None:
    filler = load_local(str(trained_layout), device="cpu")
    filler._joins = True
    stored(filler, tmp_path / "mine")
    alone = {file: texts(filler, file) for file in ("", str(tmp_path / "mine" / "a.py"))}
    tasks = [filler.start(replace(REQUEST, file=file)) for file in (*alone, *alone)]
    for task in tasks:
        while task.asking() is None:
            assert task.step()
    for first in (0, 1):
        order = [first, 1 - first, 2, 3]
        shared = filler.predict_together([tasks[number] for number in order], 64)
        assert [order[place] for place in shared] == [first, first + 2]
        for place in shared:
            tasks[order[place]].step()
    for task, file in zip(tasks, (*alone, *alone), strict=True):
        while task.step():
            pass
        assert [candidate.texts for candidate in task.candidates()] == alone[file]


def test_weights_of_another_version_of_the_model_are_ignored_and_reported_once(
    filler: LocalFiller, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored(filler, tmp_path / "my code", model=ModelId(filler.loaded.name, "older"))
    with caplog.at_level(logging.WARNING, logger="dg_lsp.engine"):
        assert not is_tuned(filler, tmp_path / "my code" / "a.py")
        stored(filler, tmp_path / "other", model=ModelId("another model", "1"))
        assert not is_tuned(filler, tmp_path / "my code" / "a.py")
        assert not is_tuned(filler, tmp_path / "other" / "a.py")
    (line,) = caplog.messages
    assert line == (
        f"the weights tuned on {tmp_path / 'my code'} belong to another version of the model {filler.loaded.name} and are not "
        f"used; to tune this version, run: dg-lsp train tune '{tmp_path / 'my code'}'"
    )


def _open_store(store: Path, _entry: Tuned) -> None:
    store.chmod(0o777)


def _open_entry(_store: Path, entry: Tuned) -> None:
    entry.folder.chmod(0o770)


def _linked_entry(store: Path, entry: Tuned) -> None:
    elsewhere = store.parent / "elsewhere"
    entry.folder.rename(elsewhere)
    entry.folder.symlink_to(elsewhere)


def _linked_weights(store: Path, entry: Tuned) -> None:
    elsewhere = store.parent / "elsewhere"
    (entry.folder / WEIGHTS).rename(elsewhere)
    (entry.folder / WEIGHTS).symlink_to(elsewhere)


def _pipe(_store: Path, entry: Tuned) -> None:
    (entry.folder / WEIGHTS).unlink()
    os.mkfifo(entry.folder / WEIGHTS)


def _renamed(store: Path, entry: Tuned) -> None:
    entry.folder.rename(store / "renamed")


def _other_root(_store: Path, entry: Tuned) -> None:
    values = json.loads((entry.folder / FACTS).read_text())
    (entry.folder / FACTS).write_text(json.dumps({**values, "root": "/"}))


def _truncated(_store: Path, entry: Tuned) -> None:
    (entry.folder / WEIGHTS).write_bytes((entry.folder / WEIGHTS).read_bytes()[:-8])


def _not_json(_store: Path, entry: Tuned) -> None:
    (entry.folder / FACTS).write_text("[" * 30_000)


def _infinite(_store: Path, entry: Tuned) -> None:
    facts = (entry.folder / FACTS).read_text()
    (entry.folder / FACTS).write_text(facts.replace(f'"holes": {AFTER.holes}', '"holes": Infinity'))


@pytest.mark.parametrize(
    "change",
    [_open_store, _open_entry, _linked_entry, _linked_weights, _pipe, _renamed, _other_root, _truncated, _not_json, _infinite],
)
def test_weights_that_others_may_have_written_or_that_are_broken_are_not_used(
    filler: LocalFiller, store: Path, tmp_path: Path, change: object
) -> None:
    entry = stored(filler, tmp_path / "mine")
    assert is_tuned(load_local(filler.loaded.name, device="cpu"), tmp_path / "mine" / "a.py")
    assert callable(change)
    change(store, entry)
    fresh = load_local(filler.loaded.name, device="cpu")
    assert not is_tuned(fresh, tmp_path / "mine" / "a.py")
    assert not is_tuned(fresh, "/etc/a.py")
    assert texts(fresh, str(tmp_path / "mine" / "a.py")) == texts(filler, "")


def test_weights_of_another_user_are_not_used(filler: LocalFiller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(filler, tmp_path / "mine")
    own = os.getuid()
    monkeypatch.setattr("dg_lsp.engine.model.weights.tuned_store.os.getuid", lambda: own + 1)
    with pytest.raises(StoreError, match="belongs to another user"):
        tuned_store.entries()
    assert not is_tuned(filler, tmp_path / "mine" / "a.py")


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"model.nothing": torch.zeros(2)}, "model.nothing does not fit"),
        ({"lm_head.weight": torch.zeros(2)}, "lm_head.weight does not fit"),
        ({"lm_head.weight": None}, "not finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused(filler: LocalFiller, weights: dict[str, torch.Tensor | None], said: str) -> None:
    model = filler.loaded.diffusion.model
    whole = {name: torch.full_like(model.lm_head.weight, torch.nan) if one is None else one for name, one in weights.items()}
    with pytest.raises(StoreError, match=said):
        tuned_models.with_weights(model, whole)


def test_new_weights_change_the_stamps_of_their_files_alone(filler: LocalFiller, store: Path, tmp_path: Path) -> None:
    inside, outside = tmp_path / "mine" / "a.py", tmp_path / "a.py"
    assert tuned_store.stamps([inside]) == ()
    stored(filler, tmp_path / "mine", made="2026-01-01")
    first = tuned_store.stamps([outside, inside])
    stored(filler, tmp_path / "mine", made="2026-01-02")
    assert first != tuned_store.stamps([inside]) != ()
    assert tuned_store.stamps([outside]) == ()
    store.chmod(0o777)
    assert tuned_store.stamps([inside]) == ()


def test_the_store_is_private(filler: LocalFiller, store: Path, tmp_path: Path) -> None:
    entry = stored(filler, tmp_path / "mine")
    for place, mode in ((store, 0o700), (entry.folder, 0o700), (entry.folder / WEIGHTS, 0o600), (entry.folder / FACTS, 0o600)):
        assert place.stat().st_mode & 0o777 == mode
    assert not [place for place in store.iterdir() if place != entry.folder]


def test_nothing_is_written_into_a_store_that_others_can_change(filler: LocalFiller, store: Path, tmp_path: Path) -> None:
    store.mkdir(parents=True)
    store.chmod(0o777)
    with pytest.raises(StoreError, match=r"can be changed by other users; make it private \(chmod 700\)"):
        stored(filler, tmp_path / "mine")
    assert not list(store.iterdir())


@pytest.mark.slow
def test_a_running_engine_uses_new_weights_for_a_request_that_names_its_file(
    filler: LocalFiller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def candidates(engine: Running, file: str) -> list[str]:
        body = messages.encode_ask(Ask(replace(REQUEST, file=file)))
        events = engine.http.post("/v1/infill", json=body).raise_for_status().text.split("\n\n")
        return [event for event in events if event.startswith("event: candidate")]

    with home(monkeypatch), running("--threads=1", model=filler.loaded.name, filler="") as engine:
        inside, outside = str(tmp_path / "mine" / "a.py"), str(tmp_path / "a.py")
        plain = candidates(engine, inside)
        assert plain == candidates(engine, outside)
        stored(filler, tmp_path / "mine")
        assert candidates(engine, inside) != plain
        assert candidates(engine, outside) == plain
        assert engine.info()["tuned_models"] == 1
        tuned_store.remove(tmp_path / "mine")
        assert candidates(engine, inside) == plain


def test_a_failed_write_keeps_the_old_entry(
    filler: LocalFiller, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = stored(filler, tmp_path / "mine")

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dg_lsp.engine.model.weights.tuned_store.files.replace", full)
    with pytest.raises(StoreError, match="can't be written: no space left on device"):
        stored(filler, tmp_path / "mine", scale=0.5)
    assert tuned_store.entries() == (old,)
    assert [place.name for place in store.iterdir()] == [old.folder.name]
    shutil.rmtree(store)
    assert tuned_store.entries() == ()
