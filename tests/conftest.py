"""Fixtures for all tests: the developer's own configuration is not read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dg_lsp.wire import config


@pytest.fixture(autouse=True, scope="session")
def _no_configuration() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in config.VARIABLES:
            patch.delenv(name, raising=False)
        patch.setenv(config.FILE_VARIABLE, os.devnull)
        yield
