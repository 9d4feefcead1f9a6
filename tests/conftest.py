"""Fixtures and settings for all tests: the developer's own configuration is not read, and no example has a time limit."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from dg_lsp.wire import config, laptop

# By default, Hypothesis fails an example that takes 200 ms, and a test that is slow to draw its examples.
settings.register_profile("any machine", deadline=None, suppress_health_check=(HealthCheck.too_slow,))
settings.load_profile("any machine")


@pytest.fixture(autouse=True, scope="session")
def _no_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in config.VARIABLES:
            patch.delenv(name, raising=False)
        patch.setenv(config.FILE_VARIABLE, os.devnull)
        # `auto` means the embedded model, and no test downloads another one by accident.
        patch.setenv(laptop.STORE_VARIABLE, str(tmp_path_factory.getbasetemp() / "no models"))
        patch.setenv(laptop.NO_PULL_VARIABLE, "1")
        yield
