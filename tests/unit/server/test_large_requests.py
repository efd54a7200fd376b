"""Requests that would hold the loop for long: whatever their API is, others have their turns in between."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from tests.unit.server.broker_world import InProcess
from tests.wide_requests import wide_requests

from duramen.server.dispatch import MAX_ELEMENTS_OF_ONE_DECISION, TABLE

ELEMENTS = 12_000
MOST_LINES = 3 * ELEMENTS
"""Of Python in one turn of the loop: what a set or a dict of all elements takes, and nothing more."""


class LineCount:
    """Counts the lines of Python that a call executes: what it costs, whatever the machine."""

    def __init__(self) -> None:
        self.most = 0
        self.where = ""

    def __call__(self, work: Callable[[], Any]) -> Any:
        count = 0
        seen: dict[str, int] = {}

        def traced(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal count
            if event == "line":
                count += 1
                name = frame.f_code.co_qualname
                seen[name] = seen.get(name, 0) + 1
            return traced

        before = sys.gettrace()
        sys.settrace(traced)
        try:
            return work()
        finally:
            sys.settrace(before)
            if count > self.most:
                self.most = count
                self.where = ", ".join(f"{n} {seen[n]}" for n in sorted(seen, key=lambda n: -seen[n])[:4])


def run(server: InProcess, lines: LineCount) -> None:
    """As InProcess.run, each callback of the loop counted, and no lane."""
    while True:
        while server.clock.ready:
            lines(server.clock.ready.pop(0))
        for line in server.lines:
            while line._arrived and line._reader is not None and not line.closed:
                lines(line._reader)
        if server.clock.ready:
            continue
        if not server.lanes.waiting:
            return
        _, work, done = server.lanes.waiting.pop(0)
        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001 as the port has it
            error = raised
        lines(lambda done=done, result=result, error=error: done(result, error))


@pytest.fixture(scope="module")
def server() -> InProcess:
    server = InProcess(offsets_topic_num_partitions="3")
    line = server.connect()
    line.create_topic("t")
    line.call(10, 4, key_type=0, coordinator_keys=["g"])
    return server


@pytest.mark.parametrize("path", [wide.path for wide in wide_requests(1)])
def test_no_turn_of_the_loop_grows_with_a_request(server: InProcess, path: str) -> None:
    line = server.connect()
    lines = LineCount()
    (row,) = [row for row in TABLE.values() if row.api.name == path.partition(".")[0]]
    is_bounded = row.most == MAX_ELEMENTS_OF_ONE_DECISION
    line._arrived += next(wide_requests(row.most + 1 if is_bounded else ELEMENTS, path)).frame
    run(server, lines)
    assert line.closed if is_bounded else line._received
    line.close()
    server.lines.remove(line)
    assert lines.most <= MOST_LINES, lines.where
