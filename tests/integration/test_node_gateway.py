"""A gateway that a node runs beside itself: there when the node is, back when it dies, gone with the node."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.worlds.served_gateway import HttpAnswer, ServedGateway
from tests.worlds.served_node import DURAMEN, Served, only_duramen

pytestmark = only_duramen
WAIT_SECONDS = 30.0
SHOWS_MODULES = (
    "import sys; from duramen.cli.main import main; code = main(sys.argv[1:]); "
    "print('MODULES', *sorted(sys.modules)); sys.exit(code)"
)


class NodeWithGateway(Served):
    """A node that says at its end what it has imported."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", SHOWS_MODULES, *super().command()[1:]]


def until(found: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


def answer_of(gateway: ServedGateway) -> HttpAnswer:
    answers: list[HttpAnswer] = []

    def ready() -> bool:
        with contextlib.suppress(OSError, AssertionError):
            answers.append(gateway.ask("PUT", "/v1/stream/a/b", content_type="text/plain"))
        return bool(answers) and answers[-1].status != 503

    until(ready)
    return answers[-1]


def child_of(process: subprocess.Popen[bytes] | None) -> int:
    assert process is not None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    found = [int(word) for task in children.parents[1].iterdir() for word in (task / "children").read_text().split()]
    assert len(found) == 1
    return found[0]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    served = NodeWithGateway(tmp_path)
    yield served
    served.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
def test_it_lives_and_ends_with_the_node(node: Served) -> None:
    gateway = ServedGateway(node.folder, node.bootstrap)
    node.settings["gateway.listener"] = gateway.url
    node.start()
    assert answer_of(gateway).status == 201
    first = child_of(node.process)
    os.kill(first, signal.SIGKILL)
    until(lambda: "gateway-ended how=SIGKILL again_in_s=0.5" in node.log())
    assert answer_of(gateway).status == 200
    second = child_of(node.process)
    assert second != first
    assert node.stop() == 0
    assert is_gone(second)
    loaded = (node.folder / "server.log").read_text().partition("MODULES ")[2].split()
    assert "duramen.server.main" in loaded
    assert not {"asyncio", "uvicorn", "duramen.gateway", "duramen.streams"} & set(loaded)


def test_it_ends_by_itself_when_nobody_holds_its_stdin(tmp_path: Path) -> None:
    """Which is what a node that is killed leaves behind."""
    with subprocess.Popen(
        [DURAMEN, "gateway", "--until-eof", "--listen", "http://127.0.0.1:0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert b"is ready" in process.stdout.readline()
        process.stdin.close()
        assert process.wait(WAIT_SECONDS) == 0
