"""The log's writer beside the loop: it never waits, keeps the order, and tells how much found no room."""

from __future__ import annotations

import fcntl
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

import pytest

from duramen.server.net.event_log import EventLog
from duramen.server.net.log_writer import LogWriter

LINE = "x" * 99 + "\n"
PATIENCE = 20.0


class Pipe:
    """A pipe that nobody reads until `read` is called, and a stream at its writing end."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        if sys.platform == "linux":
            fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, 4096)
        self.stream: TextIO = os.fdopen(self.writing, "w", encoding="utf-8")

    def read(self, until: Callable[[str], bool]) -> str:
        """What comes until that is so, or for PATIENCE seconds."""
        os.set_blocking(self.reading, False)
        got, end = b"", time.monotonic() + PATIENCE
        while not until(got.decode()) and time.monotonic() < end:
            try:
                got += os.read(self.reading, 65536)
            except BlockingIOError:
                time.sleep(0.005)
        return got.decode()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.reading)  # what still waits to be written ends with it
    made.stream.close()


def test_what_fits_is_written_in_order(pipe: Pipe) -> None:
    writer = LogWriter(pipe.stream)
    for number in range(30):
        writer.write(f"{number} ä\n")
    assert writer.finish(PATIENCE)
    assert pipe.read(lambda text: "29" in text) == "".join(f"{n} ä\n" for n in range(30))


def test_a_reader_that_stopped_keeps_nobody_waiting(pipe: Pipe) -> None:
    writer = LogWriter(pipe.stream, limit=10_000)
    writer.notice = lambda lines: f"dropped {lines}\n"
    counted: list[int] = []
    writer.on_dropped = counted.append
    began = time.monotonic()
    for _ in range(5_000):
        writer.write(LINE)
    assert not writer.finish(0.05), "and a stop does not wait for the reader"
    assert time.monotonic() - began < 5
    lost = sum(counted)
    assert 5_000 - 4096 // 100 - 1 - 100 <= lost < 5_000, "the pipe, one line under way, and the queue"

    text = pipe.read(lambda text: "dropped" in text and text.endswith("\n"))
    assert text == LINE * (5_000 - lost) + f"dropped {lost}\n"


def _accounted(text: str) -> int:
    """Lines that were written or told of as dropped."""
    lines = text.splitlines()
    dropped = sum(int(line.split()[1]) for line in lines if line.startswith("dropped "))
    return dropped + lines.count(LINE.rstrip())


def test_what_was_dropped_is_told_before_what_comes_then(pipe: Pipe) -> None:
    writer = LogWriter(pipe.stream, limit=1_000)
    writer.notice = lambda lines: f"dropped {lines}\n"
    for _ in range(200):
        writer.write(LINE)
    pipe.read(lambda text: text.endswith("\n") and _accounted(text) == 200)  # the thread may have told of them in parts
    writer.write("after\n")
    assert pipe.read(lambda text: text.endswith("after\n")) == "after\n", "told once"


@pytest.mark.parametrize("as_json", [False, True])
def test_the_notice_is_a_line_of_the_log(as_json: bool) -> None:
    line = EventLog(as_json, io.StringIO()).dropped(7)
    assert line.endswith("\n")
    assert ('"event": "log-dropped", "lines": 7' if as_json else " warning log-dropped lines=7") in line


def test_a_pipe_that_was_made_non_blocking_loses_nothing(pipe: Pipe) -> None:
    """Somebody who shares it did that: `write` says EAGAIN instead of waiting."""
    os.set_blocking(pipe.writing, False)
    writer = LogWriter(pipe.stream)
    for _ in range(500):
        writer.write(LINE)
    assert pipe.read(lambda text: len(text) >= 50_000) == LINE * 500


def test_a_reader_that_is_gone_ends_nothing(pipe: Pipe) -> None:
    writer = LogWriter(pipe.stream)
    writer.notice = lambda lines: f"dropped {lines}\n"
    dropped: list[int] = []
    writer.on_dropped = dropped.append
    keep = os.dup(pipe.reading)
    os.close(keep)
    os.close(pipe.reading)
    try:
        for _ in range(3):
            writer.write(LINE)
        assert writer.finish(PATIENCE), "it does not try for ever"
        assert sum(dropped) == 3
    finally:
        pipe.reading = os.open(os.devnull, os.O_RDONLY)


def test_a_full_disk_is_told_when_there_is_room_again(monkeypatch: pytest.MonkeyPatch, pipe: Pipe) -> None:
    writer = LogWriter(pipe.stream)
    writer.notice = lambda lines: f"dropped {lines}\n"
    real, full = os.write, threading.Event()

    def write(descriptor: int, data: memoryview) -> int:
        if descriptor != pipe.writing or not full.is_set():
            return real(descriptor, data)
        if len(data) > 50:  # the half of a line had room
            return real(descriptor, data[:50])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    lost = threading.Event()
    writer.on_dropped = lambda lines: lost.set()
    full.set()
    writer.write(LINE)
    assert lost.wait(PATIENCE)
    full.clear()
    writer.write("after\n")
    assert pipe.read(lambda text: text.endswith("after\n")) == "x" * 50 + "\ndropped 1\nafter\n"
