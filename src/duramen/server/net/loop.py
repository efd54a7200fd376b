"""The event loop: one thread that polls sockets, keeps timers, and takes in what other threads have finished.

Callbacks only. A turn is one poll and what follows from it: ready sockets, results of threads, timers that are due,
then, so that it sees all of them, what these left to do with `call_soon`, and what waited for all of that with
`call_last`. asyncio's loop costs 2.5 µs more for every socket that is ready, and importing it a tenth of the start.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop, heappush
from time import monotonic
from typing import Any, Protocol

READABLE = 1
WRITABLE = 4
"""EPOLLIN and EPOLLOUT, POLLIN and POLLOUT: the same numbers everywhere."""
READS = READABLE | select.POLLERR | select.POLLHUP
WRITES = WRITABLE | select.POLLERR | select.POLLHUP

MANY_CANCELLED = 100
"""Cancelled timers that are cleared away at once when they are most of all there are."""

Callback = Callable[[], None]


class TurnEnds(Protocol):
    """What `after_others` uses of a Clock."""

    @property
    def call_soon(self) -> Callable[[Callable[[], None]], None]: ...

    @property
    def call_last(self) -> Callable[[Callable[[], None]], None]: ...


def after_others(clock: TurnEnds, callback: Callable[[], None]) -> None:
    """Run after all that this turn has been asked to do so far, and after the readers which that wakes (decision 0008).

    Asked for at the end of a turn: in the next one, after a look at the sockets.
    """
    clock.call_soon(partial(clock.call_last, callback))


class LoopTimer:
    """A scheduled call."""

    __slots__ = ("_loop", "callback", "due")

    def __init__(self, loop: EventLoop, due: float, callback: Callback) -> None:
        self._loop = loop
        self.due = due
        self.callback: Callback | None = callback

    def __lt__(self, other: LoopTimer) -> bool:
        return self.due < other.due

    def cancel(self) -> None:
        """Not to be called any more; nothing happens when it was."""
        if self.callback is not None:
            self.callback = None
            self._loop.cancelled()


class EventLoop:
    """See the module. Everything but `call_from_thread` belongs to the thread that runs it.

    on_error is told of every exception that leaves a callback; the loop goes on.
    """

    def __init__(self) -> None:
        self.on_error: Callable[[Exception], None] = lambda error: None
        self._poll, self._poller, self._unit = _poller()
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._soon: deque[Callback] = deque()
        self.call_soon: Callable[[Callback], None] = self._soon.append
        """Run at the end of this turn, or of the next one when asked for at the end of a turn."""
        self._last: deque[Callback] = deque()
        self.call_last: Callable[[Callback], None] = self._last.append
        """Run behind those in the same turn; in the next one when asked for by one of its own kind."""
        self._timers: list[tuple[float, int, LoopTimer]] = []
        self._timers_made = 0
        self._timers_cancelled = 0
        self._arrived: deque[Callback] = deque()
        self._asleep = False
        self._stopped = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._signals: dict[int, Any] = {}
        self._wakeup_before = -1
        self.set_reader(self._wake_read, self._drain)

    # ---- what to wait for ------------------------------------------------------------------------------------

    def set_reader(self, descriptor: int, callback: Callback | None) -> None:
        """Call back whenever there is something to read or the other side is gone; None ends it."""
        self._watch(self._readers, descriptor, callback)

    def set_writer(self, descriptor: int, callback: Callback | None) -> None:
        """Call back whenever the descriptor takes bytes or the other side is gone; None ends it."""
        self._watch(self._writers, descriptor, callback)

    def _watch(self, callbacks: dict[int, Callback], descriptor: int, callback: Callback | None) -> None:
        before = self._wanted(descriptor)
        if callback is not None:
            callbacks[descriptor] = callback
        else:
            callbacks.pop(descriptor, None)
        wanted = self._wanted(descriptor)
        if wanted == before:
            return
        if not before:
            self._poller.register(descriptor, wanted)
        elif wanted:
            self._poller.modify(descriptor, wanted)
        else:
            # Not left in with nothing to wait for: the kernel would report a hang-up for ever.
            self._poller.unregister(descriptor)

    def _wanted(self, descriptor: int) -> int:
        return (READABLE if descriptor in self._readers else 0) | (WRITABLE if descriptor in self._writers else 0)

    def call_later(self, seconds: float, callback: Callback) -> LoopTimer:
        """Run once, at the earliest after so many seconds."""
        timer = LoopTimer(self, monotonic() + seconds, callback)
        self._timers_made += 1
        heappush(self._timers, (timer.due, self._timers_made, timer))
        return timer

    def cancelled(self) -> None:
        """A timer was cancelled: it stays in the heap until it is due, unless there are many of them."""
        self._timers_cancelled += 1
        if self._timers_cancelled > MANY_CANCELLED and self._timers_cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapify(self._timers)
            self._timers_cancelled = 0

    def call_from_thread(self, callback: Callback) -> None:
        """Run in the loop's thread; from any thread. The loop is woken only when it sleeps or is about to."""
        self._arrived.append(callback)
        if self._asleep:
            self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # a full pipe wakes as well; a closed one has nobody to wake
            os.write(self._wake_write, b"\0")

    def _drain(self) -> None:
        os.read(self._wake_read, 4096)  # what is left makes the next poll return at once

    def on_signal(self, number: int, callback: Callback) -> None:
        """Call back in the loop when the signal comes. Main thread only."""
        if not self._signals:
            self._wakeup_before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        previous = signal.signal(number, lambda *_: self.call_from_thread(callback))
        self._signals.setdefault(number, previous)

    # ---- running ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn until `stop`."""
        self._stopped = False
        while not self._stopped:
            self.turn()

    def stop(self) -> None:
        """Let `run` return after this turn."""
        self._stopped = True

    def turn(self) -> None:
        """One poll and everything that follows from it."""
        readers, writers = self._readers, self._writers
        for descriptor, events in self._wait():
            try:
                if events & READS and (reader := readers.get(descriptor)) is not None:
                    reader()
                if events & WRITES and (writer := writers.get(descriptor)) is not None:
                    writer()
            except Exception as error:  # noqa: BLE001 whatever one callback did, the others get their turn
                self.on_error(error)
        if self._arrived:
            self._run_queue(self._arrived)
        if self._timers:
            self._run_timers()
        if self._soon:
            self._run_queue(self._soon)
        if self._last:
            self._run_queue(self._last)

    def _wait(self) -> list[tuple[int, int]]:
        if self._soon or self._last:
            return self._poll(0)
        # First said, then looked: a thread that finishes in between finds us asleep and wakes us.
        self._asleep = True
        try:
            if self._arrived:
                return self._poll(0)
            if not self._timers:
                return self._poll(None)
            # Once more: a process that was stopped, or a machine that slept, is told that its time is over and not what
            # came meanwhile. A heartbeat that was sent in time must be seen before the timer that it moves.
            return self._poll(max(0.0, self._timers[0][0] - monotonic()) * self._unit) or self._poll(0)
        finally:
            self._asleep = False

    def _run_queue(self, queue: deque[Callback]) -> None:
        """Run what is in the queue now; what comes meanwhile waits for the next turn."""
        for _ in range(len(queue)):
            try:
                queue.popleft()()
            except Exception as error:  # noqa: BLE001 as above
                self.on_error(error)

    def _run_timers(self) -> None:
        now = monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heappop(self._timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is None:
                self._timers_cancelled -= 1
                continue
            try:
                callback()
            except Exception as error:  # noqa: BLE001 as above
                self.on_error(error)

    def close(self) -> None:
        """Give signals and descriptors back."""
        for number, previous in self._signals.items():
            signal.signal(number, previous)
        if self._signals:
            signal.set_wakeup_fd(self._wakeup_before)
            self._signals.clear()
        self.set_reader(self._wake_read, None)
        os.close(self._wake_read)
        os.close(self._wake_write)
        if hasattr(self._poller, "close"):
            self._poller.close()


def _poller() -> tuple[Callable[..., list[tuple[int, int]]], Any, float]:
    """epoll where there is one, else poll: its waiting function, the object, and what a second is to it."""
    if hasattr(select, "epoll"):
        poller = select.epoll()
        return poller.poll, poller, 1.0
    plain = select.poll()
    return plain.poll, plain, 1000.0
