"""Published models of masks: their pass against transformers, their algorithms against plain ones, and whole fills."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from tokenizers import Tokenizer, trainers
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from dg_lsp.core import placeholders, values
from dg_lsp.core.values import Hole, InfillRequest, Ranked, Span
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.common.loading import LoadError
from dg_lsp.engine.common.local import LocalTask
from dg_lsp.engine.common.pace import Pace
from dg_lsp.engine.diffusion.masked import (
    DREAMON,
    OPEN_DCODER,
    Gap,
    MaskedFiller,
    MaskedProfile,
    MaskTokens,
    Unmasker,
    Unmasking,
    mask_tokens,
)
from dg_lsp.engine.model.fit import GeometryError, llama_sizes, of_config
from dg_lsp.engine.model.llama import Llama
from dg_lsp.engine.model.vocabulary import Vocabulary, tokenizer_values
from dg_lsp.engine.model.weights import checkpoint
from tests import marked
from tests.checkpoints import dump_profile
from tests.engine import reference_published as reference
from tests.engine.engine_kit import finish

ROWS = marked.rows(Path(__file__).with_name("published.txt"))

TEXT = "def area(width, height):\n    return width * height\n\n\nclass Point:\n    x = 1\n" * 4
CURSOR, BODY = Hole(Span(0, 0), "cursor"), Hole(Span(0, 0), "body", indent="    ", extent="block")
SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1}
DREAM = ("<|beginoftext|>", "<|mask|>", "<|expand|>")
MASK, EXPAND, EOS = 20, 21, 22  # of the model without a tokenizer


def tiny(n_vocabulary: int, *, tied: bool = True, seed: int = 3) -> Any:
    """Return a tiny random model with changed norms and biases, and probabilities that are not all the same."""
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, vocab_size=n_vocabulary, tie_word_embeddings=tied))
    with torch.no_grad():
        for parameter in model.parameters():
            _ = parameter.add_(0.3 * torch.randn_like(parameter)) if parameter.ndim == 1 else parameter.mul_(5)
    return model.eval().requires_grad_(False)


def in_both_directions(model: Any, ids: Sequence[int]) -> Tensor:
    """Return the library's logits [L, V] where every token sees every other."""
    with torch.inference_mode():
        visible = torch.zeros(1, 1, len(ids), len(ids))
        logits: Tensor = model(torch.tensor([list(ids)]), attention_mask=visible).logits[0]
        return logits


def passes_of(model: Any) -> Llama:
    return Llama(llama_sizes(model.config.to_dict()), dict(model.state_dict()), "plain")


@pytest.mark.parametrize("tied", [True, False])
def test_whole_canvas_equals_the_library_in_both_directions(tied: bool) -> None:
    model = tiny(300, tied=tied)
    ids = torch.randint(0, 300, (37,), generator=torch.Generator().manual_seed(5))
    passes = passes_of(model)
    found = passes.logits(passes.read_both_ways(ids))
    torch.testing.assert_close(found, in_both_directions(model, ids.tolist()), atol=2e-4, rtol=1e-4)
    causal = model(ids[None]).logits[0]
    assert not torch.allclose(causal[:-1], found[:-1], atol=1e-2)


# The algorithms, without a tokenizer.


def written(
    order: str, left: list[int], right: list[int], length: int, seed: int, steps: int, *, model: Any = None, **tokens: Any
) -> list[list[int]]:
    """Return the gap after each pass of the engine's sampler on a tiny model."""
    passes = passes_of(model or tiny(24))

    def predict(ids: Sequence[int], places: Sequence[int]) -> Tensor:
        hidden = passes.read_both_ways(torch.tensor([*left, *ids, *right]))
        return passes.logits(hidden[[max(len(left) + place - 1, 0) for place in places]])

    settings = Unmasking("entropy" if order == "entropy" else "remasking", "", 0.7, 0.9, steps, most_tokens=12)
    gap, history = Gap([MASK] * length, [0.0] * length), []
    noise = torch.Generator().manual_seed(seed)
    for _ in Unmasker(predict, MaskTokens(MASK, **tokens), settings, noise).steps(gap, steps):
        history.append(list(gap.ids))
        assert len(gap.ids) == len(gap.logps)
    return history


@pytest.mark.parametrize(("left", "right"), [([1, 2, 3], [4, 5, 6, 7]), ([], [4, 5]), ([1], [])])
def test_open_dcoder_writes_what_its_published_algorithm_writes(left: list[int], right: list[int]) -> None:
    model = tiny(24)
    for seed in range(8):
        length, steps = 3 + seed, 64 if seed < 4 else 4 + seed % 3
        expected = reference.open_dcoder(
            lambda text: in_both_directions(model, text).tolist(),
            left,
            right,
            length=length,
            mask=MASK,
            steps=min(steps, length),
            temperature=0.7,
            top_p=0.9,
            noise=torch.Generator().manual_seed(seed),
        )
        history = written("remasking", left, right, length, seed, steps)
        assert history[-1] == expected
        n_steps = min(steps, length)
        assert len(history) == n_steps
        # The model may write the mask itself.
        assert all(gap.count(MASK) >= length * (n_steps - step) // n_steps for step, gap in enumerate(history, 1))


def test_open_dcoder_masks_improbable_tokens_again() -> None:
    histories = [written("remasking", [1, 2], [3], 10, seed, 10) for seed in range(6)]
    assert any(
        before != MASK and after == MASK
        for history in histories
        for first, second in pairwise(history)
        for before, after in zip(first, second, strict=True)
    )


def test_dreamon_writes_what_its_published_algorithm_writes() -> None:
    left, right, changes = [1, 2, 3], [4, 5, EOS], list[int]()
    for model, seed in product((tiny(24, seed=1), tiny(24, seed=5)), range(24)):
        length = (1, 3, 6, 12)[seed % 4]

        def logits(text: list[int], model: Any = model) -> list[list[float]]:
            found: list[list[float]] = in_both_directions(model, text).tolist()
            return found

        noise = torch.Generator().manual_seed(seed)
        limits: Any = {"most": 12, "steps": 64, "temperature": 0.7, "top_p": 0.9}
        expected, history = reference.dreamon(
            logits, left, right, length=length, mask=MASK, expand=EXPAND, eos=EOS, noise=noise, **limits
        )
        own = written("entropy", left, right, length, seed, 64, model=model, expand=EXPAND, delete=EOS)
        assert own == history
        assert [token for token in own[-1] if token != MASK] == expected
        lengths = [length, *map(len, history)]
        assert max(lengths) <= 12
        changes += [after - before for before, after in pairwise(lengths)]
    assert max(changes) == 1  # an expanded mask
    assert {-1, -2} <= set(changes)  # a deleted mask, alone and with others after it


def test_dreamon_expands_at_most_as_often_as_a_gap_may_have_tokens() -> None:
    """A model that only wants to expand must end."""

    def predict(_ids: Sequence[int], places: Sequence[int]) -> Tensor:
        logits = torch.zeros(len(places), 24)
        logits[:, EXPAND], logits[:, EOS] = 50.0, 20.0
        return logits

    settings = Unmasking("entropy", "", 0.2, 0.9, 256, most_tokens=12)
    gap = Gap([MASK] * 3, [0.0] * 3)
    unmasker = Unmasker(predict, MaskTokens(MASK, EXPAND, EOS), settings, torch.Generator().manual_seed(1))
    lengths = [len(gap.ids) for _ in unmasker.steps(gap, 256)]
    assert max(lengths) == 12
    assert not gap.ids  # at the limit, the next likely token deletes the first mask and those after it


def test_banned_tokens_are_never_written_and_a_gap_begins_as_it_must() -> None:
    def begins(ids: Sequence[int]) -> Sequence[int]:
        return () if ids else (7, 8)

    for seed in range(6):
        gap = written("entropy", [1], [4], 4, seed, 64, expand=EXPAND, delete=EOS, banned=(*range(5), MASK), allowed=begins)[-1]
        assert gap[0] in (7, 8)
        assert not set(gap) & {*range(5), MASK}


def test_temperature_zero_writes_the_likeliest_token() -> None:
    logits = torch.randn(5, 24, generator=torch.Generator().manual_seed(2))
    settings = Unmasking("remasking", "", 0.0, 0.9, 1)
    gap = Gap([MASK] * 5, [0.0] * 5)
    list(Unmasker(lambda _ids, _places: logits.clone(), MaskTokens(MASK), settings, torch.Generator()).steps(gap, 1))
    assert gap.ids == logits.argmax(-1).tolist()
    torch.testing.assert_close(torch.tensor(gap.logps), logits.log_softmax(-1).max(-1).values)


# Whole fills.


def write(folder: Path, model_type: str, *special: str, in_parts: bool = False) -> Path:
    """Write a folder as such models are published: with the configuration of a Qwen2 model under another name."""
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=_alphabet(), show_progress=False)
    trained = Tokenizer.from_str(json.dumps(tokenizer_values("qwen2", {}, [], {})))
    trained.train_from_iterator([TEXT], trainer)
    learnt = json.loads(trained.to_str())["model"]
    names = ("<|endoftext|>", *special)
    added = {name: (len(learnt["vocab"]) + number, True) for number, name in enumerate(names)}
    whole = json.dumps(tokenizer_values("qwen2", learnt["vocab"], learnt["merges"], added))
    if in_parts:
        (folder / "vocab.json").write_text(json.dumps(learnt["vocab"]))
        (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{' '.join(pair)}\n" for pair in learnt["merges"]))
        decoder = {str(number): {"content": name, "special": True} for name, (number, _) in list(added.items())[:-1]}
        (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
        (folder / "added_tokens.json").write_text(json.dumps({name: number for name, (number, _) in added.items()}))
    else:
        (folder / "tokenizer.json").write_text(whole)
    # The published models also have more rows than tokens.
    model = tiny(len(learnt["vocab"]) + len(added) + 7, tied=model_type == "qwen2", seed=5)
    model.save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text())
    own = {"architectures": ["DreamModel"], "auto_map": {"AutoModel": "modeling_dream.DreamModel"}, "mask_token_id": 1}
    (folder / "config.json").write_text(
        json.dumps(values | {"model_type": model_type} | (own if model_type == "Dream" else {}))
    )
    return folder


def _alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return list(ByteLevel.alphabet())


@pytest.fixture(scope="module")
def dcoder(tmp_path_factory: pytest.TempPathFactory) -> MaskedFiller:
    folder = write(tmp_path_factory.mktemp("dcoder"), "qwen2", "<M>")
    return MaskedFiller(load_model(str(folder), device="cpu", dtype="float32"))


@pytest.fixture(scope="module")
def dream(tmp_path_factory: pytest.TempPathFactory) -> MaskedFiller:
    folder = write(tmp_path_factory.mktemp("dream"), "Dream", *DREAM, in_parts=True)
    return MaskedFiller(load_model(str(folder), device="cpu", dtype="float32"))


def request(prefix: str, suffix: str, *holes: Hole, **more: Any) -> InfillRequest:
    return InfillRequest(prefix, suffix, holes or (CURSOR,), language="python", **more)


def finished(filler: MaskedFiller, asked: InfillRequest) -> LocalTask:
    task = filler.start(asked)
    return finish(task)


def test_published_models_are_recognised(dcoder: MaskedFiller, dream: MaskedFiller) -> None:
    assert dcoder.loaded.profile == OPEN_DCODER
    assert dream.loaded.profile == DREAMON


def test_qwen2_model_without_a_mask_token_stays_a_causal_model(tmp_path: Path) -> None:
    assert load_model(str(write(tmp_path, "qwen2", "<other>")), device="cpu").profile.layout == "left"


@pytest.mark.parametrize(("model_type", "sentence"), ROWS["refused"])
def test_models_of_the_kind_that_do_not_fill_holes_are_refused(tmp_path: Path, model_type: str, sentence: str) -> None:
    folder = write(tmp_path, model_type, "<|beginoftext|>", "<|mask|>")
    with pytest.raises(LoadError, match=r"a Dream model|a Fast-dLLM v2 model") as refusal:
        MaskedFiller(load_model(str(folder), device="cpu"))
    assert str(refusal.value).endswith(sentence)


def test_memory_of_a_model_that_does_not_fill_holes_is_not_computed() -> None:
    with pytest.raises(GeometryError, match="it is a Fast-dLLM v2 model"):
        of_config({**SIZES, "model_type": "Fast_dLLM_Qwen", "vocab_size": 300})


def test_profile_of_masks_needs_a_model_and_a_token_for_them(tmp_path: Path, instruct_layout: Path) -> None:
    own = {"unmasking": asdict(OPEN_DCODER.unmasking) | {"mask": "<nope>"}}
    settings = {"layout": "masked", "line_gaps": [4], "block_gaps": [8], **own}
    folder = write(tmp_path, "qwen2")
    (folder / checkpoint.PROFILE).write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="the checkpoint's tokenizer has no token <nope>"):
        MaskedFiller(load_model(str(folder), device="cpu"))
    other = tmp_path / "other"
    shutil.copytree(instruct_layout, other)
    (other / checkpoint.PROFILE).write_text(json.dumps(settings))
    with pytest.raises(LoadError, match="unknown layout 'masked'; known for this model: instruct"):
        MaskedFiller(load_model(str(other), device="cpu"))


def test_tokenizer_of_parts_encodes_as_the_whole_file(dream: MaskedFiller, tmp_path: Path) -> None:
    whole = Vocabulary.from_file(write(tmp_path, "Dream", *DREAM) / "tokenizer.json")
    for text in (TEXT, "naïve = 'été'  \n\t12345 <|mask|>", "x\r\n  y"):
        assert dream.loaded.vocabulary.encode(text) == whole.encode(text)
    assert dream.loaded.vocabulary.special == whole.special


def test_a_tokenizer_that_cuts_or_fills_up_texts_does_neither(tmp_path: Path) -> None:
    file = write(tmp_path, "Dream", *DREAM) / "tokenizer.json"
    expected = Vocabulary.from_file(file).encode(TEXT)
    values = json.loads(file.read_text())
    sides = {"strategy": "LongestFirst", "direction": "Right"}
    values["truncation"] = {"max_length": 1, "stride": 5, **sides}  # the library panics at each text
    values["padding"] = {"strategy": {"Fixed": 9999}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    values["padding"] |= {"pad_type_id": 0, "pad_token": "a"}
    file.write_text(json.dumps(values))
    assert Vocabulary.from_file(file).encode(TEXT) == expected


@pytest.mark.parametrize("place", [(Vocabulary, "from_file"), (safetensors, "safe_open")])
@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), RuntimeError("can't start new thread")], ids=str
)
def test_too_little_memory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[object, str], error: Exception
) -> None:
    def fail(*_: object, **_options: object) -> None:
        raise error

    # What a limit of memory hits first depends on the system.
    monkeypatch.setattr(*place, fail)
    with pytest.raises(
        LoadError, match=r"there is too little memory to load .*; close other programs, or choose a smaller model"
    ):
        MaskedFiller(load_model(str(write(tmp_path, "Dream", *DREAM)), device="cpu"))


def test_damaged_parts_of_a_tokenizer_are_one_sentence(tmp_path: Path) -> None:
    folder = write(tmp_path, "Dream", *DREAM, in_parts=True)
    (folder / "vocab.json").write_text("{")
    with pytest.raises(LoadError, match="has no tokenizer that can be read"):
        MaskedFiller(load_model(str(folder), device="cpu"))


def says_nothing(asked: InfillRequest, text: str) -> bool:
    return placeholders.says_nothing(text) if asked.holes[0].kind == "body" else not text.strip()


def test_everything_is_on_the_canvas(dream: MaskedFiller) -> None:
    prompt = dream.layout.lay_out(request("x = 1\ny = wid", "\nz = 2\n"))
    vocabulary = dream.loaded.vocabulary
    assert prompt.left[0] == vocabulary.id("<|beginoftext|>")
    assert vocabulary.decode(prompt.left) + prompt.heal.decode() == "x = 1\ny = wid"
    assert prompt.right == (*vocabulary.encode("\nz = 2\n"), vocabulary.id("<|endoftext|>"))
    cut = dream.layout.lay_out(request("x = ", "\nz = 2\n" * 400))  # the text goes on, so no token ends it
    assert len(cut.right) <= 192
    assert vocabulary.decode(cut.right).endswith("2\n\n")
    assert vocabulary.id("<|endoftext|>") not in cut.right


@pytest.mark.parametrize(
    ("which", "hole"),
    [("dcoder", CURSOR), ("dream", CURSOR), ("dream", BODY), pytest.param("dcoder", BODY, marks=pytest.mark.slow)],
)
def test_fill_is_what_the_published_algorithm_writes(which: str, hole: Hole, model_pair: Any) -> None:
    filler, model = model_pair(which)
    loaded = filler.loaded
    asked = request("def area(width):\n", "\n\nclass Point:\n", hole, seed=3, budget=values.Budget(candidates=1))
    inputs = filler.inputs(asked)
    settings, left, right = loaded.profile.unmasking, list(inputs.prompt.left), list(inputs.prompt.right)
    tokens = mask_tokens(inputs)

    def logits(text: list[int]) -> Any:
        found = in_both_directions(model, text).clone()
        found[:, list(tokens.banned)] = -torch.inf
        return found.tolist()

    texts = []
    for number, length in enumerate(inputs.gap_lengths()):
        both: Any = {
            "length": length,
            "mask": tokens.mask,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "noise": torch.Generator().manual_seed(inputs.seed(number)),
        }
        if which == "dcoder":
            ids = reference.open_dcoder(logits, left, right, **both, steps=min(settings.steps, length))
        else:
            both |= {"expand": tokens.expand, "eos": tokens.delete, "most": settings.most_tokens, "steps": settings.steps}
            ids, _ = reference.dreamon(logits, left, right, **both)
        texts.append(inputs.bounds.of_canvas(loaded.vocabulary.decode(ids), is_held=bool(right)))
    task = finished(filler, asked)
    assert [proposal.text for proposal in task.progress.proposals] == [text for text in texts if not says_nothing(asked, text)]


@pytest.fixture
def model_pair(dcoder: MaskedFiller, dream: MaskedFiller) -> Any:
    """Return a filler by its name, and the library's model with the same weights."""

    def found(which: str) -> tuple[MaskedFiller, Any]:
        filler = dcoder if which == "dcoder" else dream
        return filler, tiny(filler.loaded.passes.n_vocabulary, tied=which == "dcoder", seed=5)

    return found


@pytest.mark.parametrize("which", ["dcoder", "dream"])
def test_same_seed_gives_the_same_text_and_nothing_is_cached(which: str, model_pair: Any) -> None:
    filler, _ = model_pair(which)
    asked = request("def area(width):\n    return wid", "\n\nclass Point:\n", seed=2, budget=values.Budget(candidates=3))
    first, second = finished(filler, asked), finished(filler, asked)
    assert [each.texts for each in first.candidates()] == [each.texts for each in second.candidates()]
    other = finished(filler, request(asked.prefix, asked.suffix, seed=5, budget=values.Budget(candidates=3)))
    assert {each.texts for each in other.candidates()} != {each.texts for each in first.candidates()}
    assert first.candidates()
    filler.expect(asked)
    assert filler.foresee() is None
    assert not filler.cache.bytes


def test_each_pass_is_a_unit_between_which_the_queue_may_interrupt(
    dcoder: MaskedFiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    read = Llama.read_both_ways

    def counted(self: Llama, *args: Any, **more: Any) -> Tensor:
        passes.append(1)
        return read(self, *args, **more)

    monkeypatch.setattr(Llama, "read_both_ways", counted)
    task = dcoder.start(request("x = ", "\n", budget=values.Budget(candidates=1)))
    n_units, before = 0, 0
    while task.step():
        assert len(passes) - before <= 1
        n_units, before = n_units + 1, len(passes)
    assert len(passes) == sum(OPEN_DCODER.line_gaps)
    assert task.candidates()[0].steps == len(passes)


def test_typed_start_of_a_word_begins_the_answer(dream: MaskedFiller) -> None:
    pieces, answers = dream.loaded.vocabulary.pieces, list[str]()
    for seed in range(4):
        asked = request("def area(width):\n    return wid", "\n", seed=seed, budget=values.Budget(candidates=1))
        inputs = dream.inputs(asked)
        assert inputs.prompt.heal == b" wid"
        allowed = mask_tokens(inputs).allowed(())
        assert allowed
        assert all(b" wid".startswith(pieces[token]) or pieces[token].startswith(b" wid") for token in allowed)
        answers += [proposal.text for proposal in finished(dream, asked).progress.proposals]
    assert answers
    assert not any(answer.startswith(" wid") for answer in answers)


def test_answers_rank_by_their_mean_log_probability(dcoder: MaskedFiller) -> None:
    task = finished(
        dcoder, request("def area(width):\n    return ", "\n\nclass Point:\n", seed=4, budget=values.Budget(candidates=4))
    )
    means = {proposal.text: sum(proposal.logps) / len(proposal.logps) for proposal in reversed(task.progress.proposals)}
    ranked = [candidate.texts[0] for candidate in task.candidates()]
    assert ranked == sorted(ranked, key=lambda text: -means[text])
    assert [candidate.confidence for candidate in task.candidates()] == [Ranked(index) for index in range(len(ranked))]
    assert len(ranked) > 1


def test_deadline_ends_a_gap_with_all_its_masks_written(dcoder: MaskedFiller, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request("def area(width):\n    return ", "\n", seed=1, budget=values.Budget(candidates=1))
    monkeypatch.setattr(Pace, "expected_ms", lambda *_args: 1000.0)
    task = MaskedFiller(dcoder.loaded, clock=lambda: 0.0).start(asked)
    task.finish_in(1500.0)
    finish(task)
    [candidate] = task.candidates()
    assert candidate.steps == 1
    assert candidate.texts[0]


# Profiles.


def test_profile_of_masks_survives_its_file() -> None:
    assert checkpoint.parse_profile(MaskedProfile, json.loads(dump_profile(DREAMON))) == DREAMON


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"layout": "masked"}, "missing required field `unmasking`"),
        ({"layout": "left", "unmasking": {}}, "unknown layout 'left'; known for this model: masked"),
        ({"branches": 3}, "unknown setting 'branches'"),
    ],
)
def test_profile_that_mixes_masks_with_others_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        checkpoint.parse_profile(MaskedProfile, settings)
