"""Fixtures that several tests share: tiny checkpoints, built once and never written to."""

from __future__ import annotations

import gc
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

# Each time that a model is let go, all objects are looked through, and most of these are modules of models: that was
# half of a run's time. What is no garbage after this many tests is not looked at again.
TESTS_A_FREEZE = 40
RAN = pytest.StashKey[int]()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Exempt from the collection of garbage, now and then, what is none."""
    ran = item.session.stash.get(RAN, 0)
    if ran % TESTS_A_FREEZE == 0:
        gc.collect()
        gc.freeze()
    item.session.stash[RAN] = ran + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The real model first: its tests take minutes, and at the end one process would wait for them."""
    items.sort(key=lambda item: item.get_closest_marker("real") is None)


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
