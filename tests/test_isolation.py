"""No test takes the environment in which the tests were started for its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import platformdirs
import pytest

from dg_lsp.wire import config, discovery, laptop, network
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
MARK = "of-the-reader"
NAMES = """
    http_proxy HTTPS_PROXY ALL_PROXY NO_PROXY SSL_CERT_FILE SSL_CERT_DIR SSLKEYLOGFILE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
    HF_HOME HF_HUB_CACHE HF_ENDPOINT HF_TOKEN TRANSFORMERS_CACHE PIP_INDEX_URL PIP_FIND_LINKS PIP_NO_INDEX PIP_CERT UV_CACHE_DIR
    XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_CACHE_HOME XDG_RUNTIME_DIR GIT_AUTHOR_NAME GIT_DIR OPENAI_API_KEY
    DG_LSP_API_KEY DG_LSP_MODEL DG_LSP_MODELS DG_LSP_CONFIG DG_LSP_RUNTIME_DIR DG_LSP_THREADS DG_LSP_ENGINE_TOKEN
    NO_COLOR FORCE_COLOR COLUMNS LANG LC_ALL TERM CI OMP_NUM_THREADS
"""
READERS = dict.fromkeys(NAMES.split(), f"/{MARK}") | {"HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize("parallel", [(), ("--numprocesses", "1")])
@pytest.mark.e2e
def test_no_variable_of_the_reader_reaches_a_test(parallel: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text(f"[user]\nname = {MARK}\n")
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text(f"[global]\nindex-url = https://{MARK}/\n")
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(parallel or ("-n", "0")), "-k", "seen_by_a_test", __file__],
        cwd=ROOT,
        env={**os.environ, **READERS, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_what_is_seen_by_a_test_is_not_the_readers(readers_own: Mapping[str, str]) -> None:
    import huggingface_hub.constants

    assert not [name for name, value in os.environ.items() if MARK in value]
    assert not [name for name in os.environ if name.upper().endswith(("_PROXY", "_API_KEY")) or name.startswith("SSL")]
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    assert config.read()[0].settings == config.Config().settings
    assert not network.certificate_advice().startswith("is")
    home = Path(os.environ["HOME"])
    for kind in ("config", "data", "state", "cache", "runtime"):
        assert getattr(platformdirs, f"user_{kind}_path")("dg-lsp").is_relative_to(home)
    assert discovery.engine_files(discovery.EngineId()).directory.is_relative_to(home)
    assert laptop.store().is_relative_to(home)
    for command in (["git", "config", "--global", "--list"], [sys.executable, "-m", "pip", "config", "list"]):
        process = subprocess.run(command, capture_output=True, text=True, cwd=home, timeout=PATIENCE_S, check=False)
        # pip lists the variable that takes its files away.
        assert not [line for line in process.stdout.splitlines() if "config-file" not in line]
    assert {"HOME", "PATH"} <= readers_own.keys()


def test_a_test_that_installs_something_gets_the_readers_environment(readers_own: Mapping[str, str]) -> None:
    assert readers_own["HOME"] != os.environ["HOME"]
