"""Servers for the conformance tests, and the names they use on them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.worlds.served_node import Served

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    # Some tests write records of 1970, which retention would delete under them.
    "log.retention.ms": "-1",
}
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that all tests of this worker share; nobody stops it."""
    served = Served(tmp_path_factory.mktemp("node"), SETTINGS)
    served.start()
    yield served
    served.kill()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start a server of the test's own: `serve(**{"some.setting": "value"})`. It may be killed and started again."""
    started: list[Served] = []

    def start(folder: str = "own", **settings: str) -> Served:
        (tmp_path / folder).mkdir(exist_ok=True)
        served = Served(tmp_path / folder, {**SETTINGS, **settings})
        started.append(served)
        served.start()
        return served

    yield start
    for served in started:
        served.kill()


@pytest.fixture
def name() -> Callable[[str], str]:
    """Names nobody else uses, for topics and groups: `name("orders")`."""
    return lambda stem: f"{stem}-{os.getpid()}-{next(_NUMBERS)}"
