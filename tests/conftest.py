"""Fixtures that several tests share: tiny checkpoints, built once and never written to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import HealthCheck, settings

from tests import tiny
from tests.smollm2 import smollm2  # noqa: F401 - a fixture, for tests/real and tests/clients

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
settings.register_profile(
    "ropetool", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("ropetool")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """The directory of a tiny checkpoint by name, shared by all tests and checked at the end to be untouched."""
    built: dict[str, Path] = {}
    taken: dict[str, object] = {}

    def build(name: str) -> Path:
        if name not in built:
            directory = tmp_path_factory.mktemp("tiny") / name
            built[name] = tiny.save(tiny.model_of(name), directory)
            taken[name] = tiny.snapshot(directory)
        return built[name]

    yield build
    for name, directory in built.items():
        assert tiny.snapshot(directory) == taken[name], f"a test changed the shared checkpoint {name}"


@pytest.fixture
def own(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a tiny checkpoint that the test may change."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(checkpoint(name), tmp_path / f"own-{name}"))

    return copy
