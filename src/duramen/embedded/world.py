"""The ports of an embedded log: the caller's threads take turns as the loop, guarded by one lock.

There is no event loop. Whoever calls in holds the lock and runs what became due; work that blocks (the journal's
sync) happens on lanes without the lock, so that callers that arrive meanwhile share the next group commit.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import Any, TypeVar

from duramen.embedded.threads import (
    Errand,
    Job,
    Lane,
    begin_thread,
    begin_work,
    in_mains_place,
    is_at_work,
    is_main,
    tell_unexpected,
)
from duramen.errors import ClosedError
from duramen.ports import Listener, Timer, Transport, World
from duramen.storage import RealDisk, SystemEntropy, run_parallel

T = TypeVar("T")

MOST_HANDED = 64
"""Jobs of the main thread's that may lie there while it goes on; then it waits for its own."""


class LocalTimer:
    """One scheduled call."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Turn:
    """Clock and executor ports around one lock. `with turn:` is a turn of the loop; its end runs what was queued.

    Threads of our own use it so. Callers' threads, of which one may be the main thread, `take` it and wait for what
    they want to know, or `post` what they want done. What the main thread wants is handed over, in the order of its
    calls; every turn begins with that, so that who comes behind the main thread stays behind it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._depth = 0
        self._owner = 0
        """The thread whose turn it is."""
        self._handed: deque[Job] = deque()
        self._ready: deque[Callable[[], None]] = deque()
        self._last: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, LocalTimer]] = []
        self._number = 0
        self._lanes: dict[str, Lane] = {}
        self._teller = Lane("duramen-teller", works=False)
        self._teller.submit(lambda: None)  # while threads can be begun
        self._told = False
        self._wake = threading.Condition(self.lock)
        self._closed = False
        self._timekeeper = threading.Thread(target=self._keep_time, name="duramen-timers", daemon=True)
        self._timekeeper.start()

    # ---- turns -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Turn:
        self.lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._owner = get_ident()
            while self._handed:
                self._run(self._handed.popleft())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._depth == 1:
                while queue := self._ready or self._last or self._handed:
                    self._run(queue.popleft())
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._owner = 0
            self.lock.release()

    def _run(self, callback: Job) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 it is not the error of whoever's turn this is, and others have to run
            tell_unexpected(error)

    def take(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, done in one turn, whatever signals arrive."""
        self.check_may_wait()
        if not is_main():
            with self:
                return work()
        errand = Errand(work)
        self._hand(errand.run)
        return errand.wait()

    def post(self, work: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Have `work` done in a turn; `failed` gets its error, there. The main thread comes back before it is done."""
        job = partial(self._attempt, work, failed)
        if self._is_within() or is_at_work():
            self._hand(job)  # by a finalizer: behind what is going on
        elif not is_main():
            with self:
                job()
        elif len(self._handed) < MOST_HANDED:
            self._hand(job)
        else:
            self.take(job)

    def _attempt(self, work: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 it travels to who asked, in whoever's turn this is
            failed(error)

    def _hand(self, job: Job) -> None:
        self._handed.append(job)
        in_mains_place(self._take_handed)

    def _take_handed(self) -> None:
        if self._handed:
            with self:
                pass

    def _is_within(self) -> bool:
        return self._owner == get_ident()

    def may_wait(self) -> bool:
        """Not in a finalizer that Python runs in the middle of the log's own work: it would wait for itself."""
        return not self._is_within() and not is_at_work()

    def check_may_wait(self) -> None:
        """RuntimeError where `may_wait` says no."""
        if not self.may_wait():
            raise RuntimeError("a finalizer may close a log and append_async to it, and wait for nothing else")

    # ---- clock -----------------------------------------------------------------------------------------------

    def wall_ms(self) -> int:
        return int(time.time() * 1000)

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.monotonic()  # a log that no other machine knows needs no better one

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._ready.append(callback)

    def call_last(self, callback: Callable[[], None]) -> None:
        self._last.append(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = LocalTimer(callback)
        with self.lock:
            self._number += 1
            heapq.heappush(self._timers, (time.monotonic() + seconds, self._number, timer))
            self._wake.notify()
        return timer

    def _keep_time(self) -> None:
        begin_work()
        while True:
            with self:
                if self._closed:
                    return
                now = time.monotonic()
                while self._timers and self._timers[0][0] <= now:
                    timer = heapq.heappop(self._timers)[2]
                    if timer.callback is not None:
                        self._ready.append(timer.callback)
            with self.lock:
                if self._closed:
                    return
                left = self._timers[0][0] - time.monotonic() if self._timers else None
                if left is None or left > 0:
                    self._wake.wait(left)

    # ---- executor --------------------------------------------------------------------------------------------

    def submit(self, lane: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def run() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 the error travels to the owner, where it is handled
                error = raised
            with self:
                if not self._closed:
                    done(result, error)
            del error  # it keeps this frame, and so the work, whose files would stay open

        thread = self._lanes.get(lane)
        if thread is None:
            thread = self._lanes[lane] = Lane(f"duramen-{lane}")
        try:
            thread.submit(run)
        except RuntimeError:  # no more threads: the interpreter ends, or the process has too many
            self._ready.append(run)

    def tell(self, news: Callable[[], None]) -> None:
        """Run what may call back into the user's code: on a thread of its own that holds no lock and does no work of
        the log's, so that what is called may wait for its own locks, and for the log. In a turn."""
        if not self._told:
            self._teller.submit(news)
        elif not begin_thread(news):  # who posted it saw an open log, and it was closed since
            news()

    def together(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        return run_parallel(work)

    def close(self) -> None:
        """End the threads that work; call it without holding the lock. What a job still brings is nobody's any more."""
        with self.lock:
            self._closed = True
            lanes = list(self._lanes.values())
            self._wake.notify()
        for lane in lanes:
            lane.end()
        self._timekeeper.join()

    def end_telling(self) -> None:
        """Return when everybody has been told, after `close`; the thread that tells does not wait for itself."""
        with self.lock:
            self._told = True
        self._teller.end()


class NoNetwork:
    """An embedded log has no sockets."""

    def listen(self, host: str, port: int, on_accept: Callable[[Transport], None]) -> Listener:
        raise ClosedError("an embedded log does not listen; use `duramen serve` on its directory")

    def connect(self, host: str, port: int) -> Transport:
        raise ClosedError("an embedded log does not connect")


def local_world() -> tuple[World, Turn]:
    """The ports of one embedded log; close the turn when the log is closed."""
    turn = Turn()
    return World(RealDisk(), turn, NoNetwork(), turn, SystemEntropy()), turn
