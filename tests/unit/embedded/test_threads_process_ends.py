"""Threads that outlive the main one, what runs while the interpreter ends, and processes forked beside an open log."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

import duramen
from duramen.embedded import EmbeddedLog, Topic

SECONDS = 60.0

OPENED = """
import atexit, os, sys, threading, time, duramen
log = duramen.open(sys.argv[1])
topic = log.topic("events")
record = duramen.Record(value=b"v")
"""


def _run(code: str, path: Path) -> str:
    """What a program prints."""
    command = [sys.executable, "-c", OPENED + code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout


def test_threads_append_and_close_after_the_main_thread_ended(tmp_path: Path) -> None:
    """The threads of concurrent.futures end with it: the first append failed, everything behind it waited for ever."""
    code = """
def work():
    threading.main_thread().join()
    print(topic.append([record]), topic.append_async([record]).result())
    log.topic("more", partitions=20)
    log.close()
    print("closed")
threading.Thread(target=work).start()
"""
    assert _run(code, tmp_path) == "[0] [1]\nclosed\n"
    with duramen.open(tmp_path) as log:
        assert len(list(log.topic("events").read(0))) == 2


def test_atexit_may_append_and_close(tmp_path: Path) -> None:
    code = """
log.topic("more", partitions=20)
def end():
    print(topic.append([record]))
    log.close()
    print("closed")
atexit.register(end)
"""
    assert _run(code, tmp_path) == "[0]\nclosed\n"


def test_a_program_that_does_not_close_its_log_ends(tmp_path: Path) -> None:
    assert _run("print(topic.append([record]))", tmp_path) == "[0]\n"
    with duramen.open(tmp_path) as log:
        assert len(list(log.topic("events").read(0))) == 1


def test_who_closes_when_the_interpreter_is_gone_does_not_wait_for_its_threads(tmp_path: Path) -> None:
    code = """
class Late:
    def __del__(self):
        for call in (lambda: topic.append([record]), log.topics, log.close):
            try:
                print(call())
            except duramen.ClosedError:
                print("ClosedError")
sys.late = Late()
topic.append([record])
"""
    assert _run(code, tmp_path) in ("ClosedError\nClosedError\nNone\n", "")  # newer ones are not even finalized
    with duramen.open(tmp_path) as log:
        assert len(list(log.topic("events").read(0))) == 1


def _in_child(call: Callable[[], object]) -> bool:
    """Whether it raises ClosedError there, in time."""
    child = os.fork()
    if child == 0:
        threading.Timer(SECONDS, os._exit, (2,)).start()
        try:
            call()
        except duramen.ClosedError:
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


CALLS: dict[str, Callable[[EmbeddedLog, Topic], object]] = {
    "append": lambda log, topic: topic.append([duramen.Record(value=b"v")]),
    "read": lambda log, topic: next(topic.read(0)),
    "read from an offset": lambda log, topic: next(topic.read(0, 0)),
    "start_offset": lambda log, topic: topic.start_offset(0),
    "end_offset": lambda log, topic: topic.end_offset(0),
    "offset_at": lambda log, topic: topic.offset_at(0, 0),
    "truncate": lambda log, topic: topic.truncate(0, 1),
    "topic": lambda log, topic: log.topic("more"),
    "delete_topic": lambda log, topic: log.delete_topic("events"),
    "close": lambda log, topic: log.close(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_fork_in_the_middle_of_a_turn_refuses_the_parents_log(tmp_path: Path, name: str) -> None:
    """The thread that holds the lock is not there in the child: whoever waits for it waits for ever."""
    held, leave = threading.Event(), threading.Event()
    with duramen.open(tmp_path) as log:
        topic = log.topic("events")
        topic.append([duramen.Record(value=b"v")])

        def hold() -> None:
            with log._turn:
                held.set()
                leave.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        try:
            assert _in_child(lambda: CALLS[name](log, topic))
        finally:
            leave.set()
            thread.join()
        assert topic.append([duramen.Record(value=b"v")]) == [1]


def test_a_forked_child_keeps_the_directory_from_nobody(tmp_path: Path) -> None:
    """It inherits the lock's descriptor, and lives on when its parent closed the log, or was killed."""
    code = """
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)  # it has come through its part of the fork
    os.close(1), os.close(2)
    time.sleep(600)
"""
    for end in ("log.close()", "os.kill(os.getpid(), 9)"):
        command = [sys.executable, "-c", OPENED + code + end, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            child = int(process.stdout.readline())
        try:
            duramen.open(tmp_path).close()
        finally:
            os.kill(child, 9)


def test_what_no_thread_can_be_begun_for_is_done_on_the_spot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the interpreter ends, from Python 3.12 on, or beyond the process's limit."""
    log = duramen.open(tmp_path)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    events = log.topic("events", partitions=20)
    events.append([duramen.Record(value=b"v")], partition=7)
    called: Future[list[int]] = Future()  # the other has its result before its callbacks are called
    future = events.append_async([duramen.Record(value=b"v")], partition=7)
    future.add_done_callback(lambda done: called.set_result(events.append([duramen.Record(value=b"v")], partition=7)))
    assert future.result(SECONDS) == [1]
    assert called.result(SECONDS) == [2]
    log.close()
    monkeypatch.undo()
    with duramen.open(tmp_path) as log:
        assert len(list(log.topic("events").read(7))) == 3


def test_a_child_that_is_forked_inside_the_block_may_leave_it(tmp_path: Path) -> None:
    """Its sys.exit(0) became a traceback and a 1."""
    code = """
log.close()
with duramen.open(sys.argv[1]) as log:
    child = os.fork()
    if not child:
        sys.exit(0)
    print(os.waitpid(child, 0)[1], log.topic("events").append([record]))
"""
    assert _run(code, tmp_path) == "0 [0]\n"
