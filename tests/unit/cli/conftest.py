"""A node for the tests of commands, which all use: topics and groups have names of their own in each.

The node is `duramen serve` in a process of its own; DURAMEN_TEST_BOOTSTRAP names another cluster to use instead, such
as an Apache Kafka, with which the same commands must work.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.served_node import Served

from duramen.cli.main import main


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the node under test."""
    given = os.environ.get("DURAMEN_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "offsets.topic.num.partitions": "4",
    }
    served = Served(tmp_path_factory.mktemp("node"), settings)
    served.start()
    try:
        yield served.bootstrap
        assert served.stop() == 0, served.log()
    finally:
        served.kill()


Run = Callable[..., Any]


@pytest.fixture
def run(bootstrap: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command that must succeed (or end with `code`) and returns what it printed, parsed if it is JSON."""
    monkeypatch.setenv("DURAMEN_BOOTSTRAP", bootstrap)

    def run_command(*arguments: str, code: int = 0) -> Any:
        found = main(arguments)
        said = capsys.readouterr()
        assert found == code, said.err
        if code:
            assert said.err.count("\n") == 1, said.err
            return said.err
        return json.loads(said.out) if "--json" in arguments and arguments[0] != "consume" else said.out

    return run_command


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4()}"


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., str]:
    """Writes lines to a file and returns its path."""

    def write(*content: str) -> str:
        path = tmp_path / f"{uuid.uuid4()}.txt"
        path.write_text("".join(line + "\n" for line in content))
        return str(path)

    return write
