"""Signals arrive in the main thread at any point of a call: they break off its waiting, and nothing else."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import duramen
from duramen.embedded import Topic
from duramen.embedded.threads import Lane, ThreadResult
from duramen.embedded.world import MOST_HANDED, Turn

SECONDS = 60.0
"""Nothing here takes a tenth of it."""


class _Interrupt:
    """Raises KeyboardInterrupt at the `number`-th line that this thread runs in duramen."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if f"{os.sep}duramen{os.sep}" in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._line


def _interrupted(number: int, call: Callable[[], object]) -> bool:
    before = sys.gettrace()
    sys.settrace(_Interrupt(number))
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


NUMBERS = itertools.count()
CALLS: dict[str, Callable[[Topic], object]] = {
    "append": lambda topic: topic.append([duramen.Record(value=b"interrupted")]),
    "append_async": lambda topic: topic.append_async([duramen.Record(value=b"interrupted")]),
    "truncate": lambda topic: topic.truncate(0, 1),
    "end_offset": lambda topic: topic.end_offset(0),
    "offset_at": lambda topic: topic.offset_at(0, 0),
    "read": lambda topic: next(topic.read(0)),
    "topic": lambda topic: topic._log.topic(f"new-{next(NUMBERS)}"),
}


# Where the line is one of a generator that is being let go, Python tells of it and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_broken_off_anywhere_leaves_the_log_to_others(tmp_path: Path, name: str) -> None:
    """Broken off in the middle of a turn, the commit that had been planned never came: everybody waited for ever."""
    stored: dict[int, bytes] = {}
    with duramen.open(tmp_path) as log:
        topic = log.topic("events")
        topic.append([duramen.Record(value=b"first")] * 2)
        for number in itertools.count(1):
            value = b"%d" % number
            again = _interrupted(number, lambda: CALLS[name](topic))
            (offset,) = topic.append([duramen.Record(value=value)], timeout=SECONDS)
            stored[offset] = value
            if not again:
                break
        assert number > 5
    with duramen.open(tmp_path) as log:
        found = {row.offset: row.value for row in log.topic("events").read(0)}
    assert {offset: found[offset] for offset in stored} == stored


def test_a_closing_broken_off_anywhere_goes_on(tmp_path: Path) -> None:
    interrupted = 0
    for stored, number in enumerate(itertools.count(1, 3)):
        log = _opened_in_the_end(tmp_path)
        future = log.topic("events").append_async([duramen.Record(value=b"v")])
        again = _interrupted(number, log.close)
        interrupted += again
        log.close()
        assert future.result(SECONDS) == [stored]
        if not again:
            break
    assert interrupted > 3
    with duramen.open(tmp_path) as log:
        assert len(list(log.topic("events").read(0))) == stored + 1


def test_an_interrupted_opening_lets_the_directory_go(tmp_path: Path) -> None:
    with duramen.open(tmp_path) as log:
        log.topic("events").append([duramen.Record(value=b"v")])
    interrupted = 0
    for number in itertools.count(1):
        logs: list[Any] = []
        again = _interrupted(number, lambda: logs.append(duramen.open(tmp_path)))  # noqa: B023
        for log in logs:
            log.close()
        interrupted += again
        _opened_in_the_end(tmp_path).close()
        if not again:
            break
    assert interrupted > 5


def _opened_in_the_end(path: Path) -> Any:
    """What was broken off goes on beside us, and is closed when it is done."""
    for _ in range(600):
        with suppress(duramen.DirectoryLockedError):
            return duramen.open(path)
        threading.Event().wait(0.1)
    raise AssertionError("the directory stays locked")


def test_a_signals_handler_may_append_and_close(tmp_path: Path) -> None:
    """In the middle of a turn of the same thread it entered that turn a second time."""
    code = f"""
import os, signal, threading, duramen
log = duramen.open({str(tmp_path)!r})
topic = log.topic("events")
def handler(*_):
    print(topic.append([duramen.Record(value=b"last words")])[0] > 0, flush=True)
    log.close()
signal.signal(signal.SIGTERM, handler)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
try:
    while True:
        topic.append([duramen.Record(value=b"v")])
except duramen.ClosedError:
    print("closed")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stdout.split() == ["True", "closed"]
    with duramen.open(tmp_path) as log:
        assert [row.value for row in log.topic("events").read(0)][-1] == b"last words"


def test_sigint_in_a_loop_of_appends_ends_the_program_and_loses_nothing(tmp_path: Path) -> None:
    code = f"""
import duramen, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
with duramen.open({str(tmp_path)!r}) as log:
    topic = log.topic("events")
    while True:
        print(topic.append([duramen.Record(value=b"v")])[0], flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        for _ in range(50):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=SECONDS)[0].split()
    with duramen.open(tmp_path) as log:
        assert [row.offset for row in log.topic("events").read(0)][: 50 + len(rest)] == list(range(50 + len(rest)))


def test_the_main_thread_waits_for_nobody_where_it_need_not(tmp_path: Path) -> None:
    """Each append_async and end_offset waited for another thread, for as long as a third one held that up."""
    with duramen.open(tmp_path) as log:
        topic = log.topic("events")
        topic.append([duramen.Record(value=b"first")])
        held, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with log._turn:
                held.set()
                leave.wait(SECONDS)

        holding = threading.Thread(target=hold)
        holding.start()
        held.wait(SECONDS)
        futures = [topic.append_async([duramen.Record(value=b"%d" % number)]) for number in range(MOST_HANDED)]
        assert (topic.start_offset(0), topic.end_offset(0), leave.is_set()) == (0, 1, False)
        # Who is told of it and appends stands behind it, as if it had been done.
        late: list[int] = []
        behind = threading.Thread(target=lambda: late.extend(topic.append([duramen.Record(value=b"behind")])))
        behind.start()
        threading.Timer(0.2, leave.set).start()
        futures.append(topic.append_async([duramen.Record(value=b"too many")]))
        assert leave.is_set(), "the main thread waits when there is much that others have to do for it"
        assert [future.result(SECONDS) for future in futures[:-1]] == [[number + 1] for number in range(MOST_HANDED)]
        behind.join()
        holding.join()
        assert late[0] > MOST_HANDED
        assert sorted([*late, *futures[-1].result(SECONDS)]) == [MOST_HANDED + 1, MOST_HANDED + 2]


def test_a_callback_that_fails_is_told_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_value))
    turn = Turn()
    late, worked = ThreadResult[None](), ThreadResult[None]()

    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    def done(result: Any, error: BaseException | None) -> None:
        worked.give(None)

    turn.take(lambda: turn.call_soon(fails))
    turn.take(lambda: turn.call_later(0.0, fails))
    turn.take(lambda: turn.call_later(0.05, lambda: late.give(None)))
    turn.take(lambda: turn.submit("lane", lambda: None, fails))
    turn.take(lambda: turn.submit("lane", lambda: None, done))
    late.wait(SECONDS)
    worked.wait(SECONDS)
    turn.close()
    turn.end_telling()
    assert [str(error) for error in told] == ["a bug"] * 3


def test_a_hook_of_the_programs_that_fails_ends_no_thread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(threading, "excepthook", fails)
    lane, worked = Lane("a-lane"), threading.Event()
    lane.submit(fails)
    lane.submit(worked.set)
    assert worked.wait(SECONDS)
    lane.end()
    assert "Exception in thread a-lane" in capsys.readouterr().err
