"""Threads of an embedded log, and what they do in the place of the main thread, which signals may break off.

Python runs signal handlers in the main thread, between any two steps of what it does. They raise (KeyboardInterrupt),
or call in here again. A turn of the engine that ends or begins anew half-way leaves what nobody has thought of; so the
main thread never takes one: a thread of its own does that, and what a signal breaks off is the waiting.
"""

from __future__ import annotations

import os
import threading
from _thread import allocate_lock
from collections.abc import Callable
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Thread, get_ident, main_thread
from typing import Generic, TypeVar

T = TypeVar("T")
Job = Callable[[], object]


def tell_unexpected(error: BaseException) -> None:
    """As if the thread had ended with it; but the thread goes on."""
    told = threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
    threading.excepthook(told)


class Answer(Generic[T]):
    """One value from another thread; later ones are ignored. One thread gives at a time, one waits.

    Waiting is a single call of the interpreter, so that a signal leaves nothing locked behind; Future and Event are
    Python code around a lock.
    """

    __slots__ = ("_closed", "is_given", "value")

    def __init__(self) -> None:
        self._closed = allocate_lock()
        self._closed.acquire()
        self.is_given = False
        self.value: T

    def give(self, value: T) -> None:
        if not self.is_given:
            self.value = value
            self.is_given = True
            self._closed.release()

    def wait(self, timeout: float | None = None) -> T:
        """The value. TimeoutError after so many seconds."""
        if not self._closed.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), TIMEOUT_MAX)):
            raise TimeoutError(f"no answer within {timeout} s; what was asked for may still be done")
        return self.value


class Lane:
    """A thread that does one job after the other, begun with the first one. RuntimeError where no thread can be begun.

    It is a daemon: the threads of `concurrent.futures` end with the main thread, and others may append for long after.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: Thread | None = None

    def submit(self, job: Job) -> None:
        if self._thread is None:
            thread = Thread(target=self._serve, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        self._jobs.put(job)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 whatever one job did, the others get their turn
                tell_unexpected(error)
            del job  # an idle lane keeps nothing alive

    def end(self) -> None:
        """Return when all jobs are done; the lane's own thread does not wait for itself."""
        thread = self._thread
        if thread is not None:
            self._jobs.put(None)
            if get_ident() != thread.ident:
                thread.join()


class _Errand(Generic[T]):
    """A piece of work that one thread has done by another. unwanted: gets the result when nobody waits any more."""

    def __init__(self, work: Callable[[], T], unwanted: Callable[[T], None] | None = None) -> None:
        self._work = work
        self._unwanted = unwanted
        self._left = False
        self._done: Answer[tuple[T | None, BaseException | None]] = Answer()

    def run(self) -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = self._work()
        except BaseException as raised:  # noqa: BLE001 the error travels to who waits
            error = raised
        self._done.give((result, error))
        if self._left:
            self._dispose()

    def wait(self) -> T:
        """The result, or the error; at most once."""
        result, error = self._done.wait()
        if error is None:
            return result  # type: ignore[return-value]
        try:
            raise error
        finally:
            del error  # it keeps this frame alive, which would keep it

    def leave(self) -> None:
        """Nobody waits any more."""
        self._left = True
        if self._done.is_given:
            self._dispose()

    def _dispose(self) -> None:
        result, error = self._done.value
        unwanted, self._unwanted = self._unwanted, None
        if unwanted is not None and error is None:
            unwanted(result)  # type: ignore[arg-type]


_main_turns: tuple[int, Lane] = (0, Lane("duramen-main"))
"""(process, the lane that takes the main thread's turns of all logs there)."""


def unbroken(work: Callable[[], T]) -> T:
    """What `work`, which is short, returns; the main thread has it done by another one."""
    global _main_turns
    if get_ident() != main_thread().ident:
        return work()
    process = os.getpid()
    if _main_turns[0] != process:
        _main_turns = process, Lane("duramen-main")
    errand = _Errand(work)
    try:
        _main_turns[1].submit(errand.run)
    except RuntimeError:  # the interpreter ends: no more threads, and no more signals
        return work()
    return errand.wait()


def unbroken_long(work: Callable[[], T], unwanted: Callable[[T], None] | None = None) -> T:
    """The same for work that takes its time. unwanted: gets what it returned after the waiting was broken off."""
    if get_ident() != main_thread().ident:
        return work()
    errand = _Errand(work, unwanted)
    try:
        if not _began(errand.run):
            return work()
        return errand.wait()
    except BaseException:
        errand.leave()
        raise


def _began(job: Job) -> bool:
    try:
        Thread(target=job, name="duramen-long", daemon=True).start()
    except RuntimeError:
        return False
    return True
