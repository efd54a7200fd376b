"""Runs many small pieces of blocking work in parallel, as far as they wait: syncs do, reads of cached files do not."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Together = Callable[[Sequence[Callable[[], Any]]], list[Any]]
"""As `ports.Executor.together`."""

THREADS = 8
"""Syncs that are under way at once share the file system's own group commit; more threads gain nothing."""
WORTH_WAIT = 1.25
"""How many times its processor time a piece must take for another thread to be worth it: threads that compute only
hand the interpreter's lock to each other. 1,000 logs from the page cache open on one in two thirds of the time."""
MEASURED_SECONDS = 0.005
"""Over how long that is measured, again and again until there are threads."""


def run_serial(work: Sequence[Callable[[], T]]) -> list[T]:
    """Run all of it in order, on this thread; the results in the order of the work."""
    return [each() for each in work]


def run_parallel(work: Sequence[Callable[[], T]]) -> list[T]:
    """Run all of it, on this thread and, where that waits, on some more; the results in the order of the work.

    After an error nothing more is begun, but what is under way ends before this returns. The first error in that order
    is raised.
    """
    pieces = _Pieces(work)
    threads: list[Thread] = []
    began, computed = time.perf_counter(), time.thread_time()
    try:
        while pieces.run_next():
            if threads or (passed := time.perf_counter() - began) < MEASURED_SECONDS:
                continue
            if (waits := passed / max(time.thread_time() - computed, 1e-9)) >= WORTH_WAIT:
                threads = _start(pieces, min(THREADS - 1, int(2 * waits)))
            began, computed = time.perf_counter(), time.thread_time()
    finally:
        pieces.waiting.clear()
        for thread in threads:
            thread.join()
    if pieces.errors:
        raise pieces.errors[min(pieces.errors)]
    return [pieces.results[number] for number in range(len(work))]


class _Pieces(Generic[T]):
    """What is still to be done, and what came of the rest; any thread takes the next."""

    def __init__(self, work: Sequence[Callable[[], T]]) -> None:
        self.waiting = deque(enumerate(work))
        self.results: dict[int, T] = {}
        self.errors: dict[int, Exception] = {}

    def run_next(self) -> bool:
        """Run one; whether there was one to run."""
        if self.errors:
            return False
        try:
            number, piece = self.waiting.popleft()
        except IndexError:
            return False
        try:
            self.results[number] = piece()
        except Exception as error:  # noqa: BLE001 raised on the thread that asked; a thread that has no memory, too
            self.errors[number] = error
        return True

    def run(self) -> None:
        while self.run_next():
            pass


def _start(pieces: _Pieces[T], most: int) -> list[Thread]:
    threads: list[Thread] = []
    try:
        for _ in range(min(most, len(pieces.waiting))):
            thread = Thread(target=pieces.run, name="start", daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError:  # no more threads: the interpreter ends, or the process has too many
        pass
    return threads
