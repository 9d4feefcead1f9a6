"""A real server with OpenAI's chat endpoint, and a tiny model that has learned one answer by heart.

`transformers serve` needs what `pip install 'transformers[serving]'` installs; without it these tests are skipped.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.import_utils import is_serve_available

from dg_lsp.engine.backends import chat
from dg_lsp.engine.backends.http_client import RemoteError
from dg_lsp.engine.common import question
from dg_lsp.wire.config import Config
from tests.engine.backends_kit import request
from tests.engine.engine_kit import finish, wait_until
from tests.patience import PATIENCE_S

COMMAND = Path(sys.executable).with_name("transformers")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.skipif(
        not is_serve_available() or not COMMAND.exists(),
        reason="transformers serve is not installed: pip install 'transformers[serving]'",
    ),
]

PREFIX, SUFFIX = "def add(a, b):\n    return ", "\n\n\nprint(add(1, 2))\n"
ANSWER = f"```python\n{PREFIX}a + b{SUFFIX}```"
TEMPLATE = (
    "{% for message in messages %}<turn>{{ message['role'] }}\n{{ message['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model's folder."""
    path = tmp_path_factory.mktemp("chat")
    infill_request = request(PREFIX, SUFFIX, language="python")
    turn = question.ask(infill_request, PREFIX, SUFFIX, "", "python")
    tokenizer = _tokenizer([turn, ANSWER])
    messages = [{"role": "user", "content": turn}]
    prompt = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    _taught(tokenizer, prompt, f"{ANSWER}<end>").save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def _tokenizer(texts: list[str]) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<turn>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", chat_template=TEMPLATE)


def _taught(tokenizer: Any, prompt: str, answer: str) -> Any:
    """A model of random weights, trained until it gives this one answer."""
    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    model: Any = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, bos_token_id=None, **size)
    )
    start = tokenizer(prompt)["input_ids"]
    ids = torch.tensor([start + tokenizer(answer)["input_ids"]])
    labels = ids.clone()
    labels[0, : len(start)] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.tensor(1.0)
    for _ in range(400):
        loss = model(ids, labels=labels).loss
        if loss.item() < 0.01:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.01
    return model.eval()


@pytest.fixture(scope="module")
def server_url(folder: Path) -> Iterator[str]:
    """The URL of `transformers serve` with that model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(COMMAND), "serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    log = folder / "serve.log"
    with log.open("w") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
        url = f"http://127.0.0.1:{port}"

        def is_up() -> bool:
            assert process.poll() is None, log.read_text()[-2000:]
            try:
                return httpx.get(f"{url}/health", trust_env=False).status_code == 200
            except httpx.HTTPError:
                return False

        try:
            wait_until(is_up, 300)
            yield url
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def test_transformers_serve_gives_the_missing_code(server_url: str, folder: Path) -> None:
    filler = chat.connect(server_url, str(folder), Config(), {})
    try:
        task = filler.start(request(PREFIX, SUFFIX, language="python"))
        [candidate] = finish(task).candidates()
        assert (candidate.texts, candidate.finished) == (("a + b",), True)
    finally:
        filler.close()


def test_transformers_serve_answers_several_times_and_what_it_was_not_taught(server_url: str, folder: Path) -> None:
    filler = chat.connect(server_url, str(folder), Config(), {})
    try:
        task = filler.start(request(PREFIX, SUFFIX, language="python", n=2))
        assert ("a + b",) in [candidate.texts for candidate in finish(task).candidates()]
        task = filler.start(request("something = ", "", path="else.py"))
        assert all(candidate.finished for candidate in finish(task).candidates())
        assert task.cache()["tokens"] > 0
    finally:
        filler.close()


def test_transformers_serve_says_that_it_serves_another_model(server_url: str) -> None:
    filler = chat.connect(server_url, "another", Config(), {})
    try:
        with pytest.raises(RemoteError, match=r"refuses the request \(400\): Server is pinned to"):
            finish(filler.start(request(PREFIX, SUFFIX)))
    finally:
        filler.close()
