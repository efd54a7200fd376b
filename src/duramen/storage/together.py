"""Runs many small pieces of blocking work side by side: what a start does for a partition mostly waits for a disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any, TypeVar

from duramen.errors import DuramenError

T = TypeVar("T")
Together = Callable[[Sequence[Callable[[], Any]]], list[Any]]
"""As `ports.Executor.together`."""

THREADS = 8
"""Syncs that are under way at once share the file system's own group commit; more threads gain nothing."""
WORTH_THREADS = 16


def one_by_one(work: Sequence[Callable[[], T]]) -> list[T]:
    """Run all of it in order, on this thread; the results in the order of the work."""
    return [each() for each in work]


def side_by_side(work: Sequence[Callable[[], T]]) -> list[T]:
    """Run all of it on some threads; the results in the order of the work. The first error in that order is raised.

    After an error nothing more is begun, but what is under way ends before this returns.
    """
    if len(work) < WORTH_THREADS:
        return one_by_one(work)
    waiting = deque(range(len(work)))
    results: dict[int, T] = {}
    errors: dict[int, Exception] = {}

    def run() -> None:
        while not errors:
            try:
                number = waiting.popleft()
            except IndexError:
                return
            try:
                results[number] = work[number]()
            except (OSError, DuramenError) as error:
                errors[number] = error  # raised below, on the thread that asked

    threads: list[Thread] = []
    try:
        for _ in range(THREADS):
            thread = Thread(target=run, name="start", daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError:  # no more threads: the interpreter ends, or the process has too many
        run()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(work))]
