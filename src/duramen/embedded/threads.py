"""Threads of an embedded log, and what they do in the place of the main thread, which signals may break off.

Python runs signal handlers in the main thread, between any two steps of what it does. They raise (KeyboardInterrupt),
or call in here again. A turn of the engine that ends or begins anew half-way leaves what nobody has thought of; so the
main thread never takes one: a thread of its own does that, and what a signal breaks off is the waiting.

Finalizers are as bad, and run in any thread: wherever Python happens to collect garbage. There they may not wait.
"""

from __future__ import annotations

import math
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
    try:
        threading.excepthook(told)
    except Exception:  # noqa: BLE001 the program's own hook failed
        threading.__excepthook__(told)


def waiting_time(seconds: float | None) -> float | None:
    """As a lock takes it. TypeError, ValueError for what is no length of time."""
    if seconds is None:
        return None
    if math.isnan(seconds):
        raise ValueError("nan is no number of seconds")
    return min(max(seconds, 0.0), TIMEOUT_MAX)


class ThreadResult(Generic[T]):
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
        if not self._closed.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError(f"no answer within {timeout} s; what was asked for may still be done")
        return self.value


class _Doing(threading.local):
    """What this thread does. work: the log's own, for which others wait."""

    work = False


_doing = _Doing()


def begin_work() -> None:
    """This thread does the log's work from here on."""
    _doing.work = True


def is_at_work() -> bool:
    """Whether this thread does a log's work: who waits for a log in it, as a finalizer may, waits for itself."""
    return _doing.work


class Lane:
    """A thread that does one job after the other, begun with the first one. RuntimeError where no thread can be begun.

    It is a daemon: the threads of `concurrent.futures` end with the main thread, and others may append for long after.
    works: its jobs are the log's own work.
    """

    def __init__(self, name: str, *, works: bool = True) -> None:
        self._name = name
        self._works = works
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: Thread | None = None

    def submit(self, job: Job) -> None:
        if self._thread is None:
            thread = Thread(target=self._serve, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        self._jobs.put(job)

    def _serve(self) -> None:
        if self._works:
            begin_work()
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


class Errand(Generic[T]):
    """A piece of work that one thread has done by another. unwanted: gets the result when nobody waits any more."""

    def __init__(self, work: Callable[[], T], unwanted: Callable[[T], None] | None = None) -> None:
        self._work = work
        self._unwanted = unwanted
        self._left = False
        self._done: ThreadResult[tuple[T | None, BaseException | None]] = ThreadResult()

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


_in_mains_place: tuple[int, Lane] = (0, Lane("duramen-main"))
"""(process, the lane that takes the main thread's turns of all logs there)."""


def is_main() -> bool:
    """Whether this is the thread in which signal handlers run."""
    return get_ident() == main_thread().ident


def in_mains_place(job: Job) -> None:
    """Have a job of the main thread's done by another one, behind its earlier ones, and do not wait for it."""
    global _in_mains_place
    process = os.getpid()
    if _in_mains_place[0] != process:
        _in_mains_place = process, Lane("duramen-main")
    try:
        _in_mains_place[1].submit(job)
    except RuntimeError:  # the interpreter ends: no more threads, and no more signals
        job()


def unbroken_long(work: Callable[[], T], unwanted: Callable[[T], None] | None = None) -> T:
    """What `work` returns, which the main thread has done by one that is begun for it.

    unwanted: gets what it returned after the waiting was broken off.
    """
    if not is_main():
        return work()
    errand = Errand(work, unwanted)
    try:
        if not begin_thread(errand.run):
            return work()
        return errand.wait()
    except BaseException:
        errand.leave()
        raise


def begin_thread(job: Job) -> bool:
    """Have a job done by a thread of its own; False where none can be begun."""
    try:
        Thread(target=job, name="duramen-long", daemon=True).start()
    except RuntimeError:
        return False
    return True
