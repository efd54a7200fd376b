"""The event loop and the threads beside it: order within a turn, timers, wake-ups, errors that stop nobody."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from duramen.errors import DuramenError
from duramen.server.net.loop import MANY_CANCELLED, EventLoop, after_others
from duramen.server.net.os_ports import LoopClock, ThreadExecutor

LONG = 20.0


@pytest.fixture(params=["epoll", "poll"])
def loop(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventLoop]:
    if request.param == "poll":
        monkeypatch.delattr(select, "epoll", raising=False)
    made = EventLoop()
    made.on_error = pytest.fail  # type: ignore[assignment]
    yield made
    made.close()


def test_what_a_turn_left_to_do_runs_last_and_sees_all_of_it(loop: EventLoop) -> None:
    near, far = socket.socketpair()
    seen: list[str] = []
    with near, far:

        def readable() -> None:
            loop.call_last(lambda: seen.append("last"))
            loop.call_soon(lambda: loop.call_last(lambda: seen.append("last of all")))
            loop.call_soon(lambda: seen.append("soon"))
            seen.append(near.recv(10).decode())

        loop.set_reader(near.fileno(), readable)
        loop.call_from_thread(lambda: seen.append("thread"))
        loop.call_later(0, lambda: seen.append("timer"))
        far.send(b"bytes")
        loop.turn()
        assert seen == ["bytes", "thread", "timer", "soon", "last", "last of all"]
        loop.call_last(lambda: loop.call_last(lambda: seen.append("in the next turn")))
        loop.turn()
        assert seen[-1] == "last of all"
        loop.turn()
        assert seen[-1] == "in the next turn"
        loop.set_reader(near.fileno(), None)


def test_what_old_data_leads_to_is_behind_readers_that_the_turn_wakes(loop: EventLoop) -> None:
    near, far = socket.socketpair()
    seen: list[str] = []
    with near, far:

        def commit() -> None:
            seen.append("commit")
            loop.call_last(lambda: seen.append("woken reader"))

        def readable() -> None:
            near.recv(10)
            loop.call_soon(commit)

        loop.set_reader(near.fileno(), readable)
        loop.call_from_thread(lambda: after_others(loop, lambda: seen.append("old data")))
        far.send(b"bytes")
        loop.turn()
        assert seen == ["commit", "woken reader", "old data"]
        loop.set_reader(near.fileno(), None)


def test_what_came_while_the_process_was_stopped_goes_before_timers(loop: EventLoop) -> None:
    near, far = socket.socketpair()
    seen: list[str] = []
    poll = loop._poll

    def stopped(timeout: float | None) -> list[tuple[int, int]]:
        """As Python's own when SIGCONT ends the wait and its time is over."""
        loop._poll = poll
        far.send(b"bytes")
        time.sleep(0.05)
        return []

    with near, far:
        loop.set_reader(near.fileno(), lambda: seen.append(near.recv(10).decode()))
        loop.call_later(0.01, lambda: seen.append("timer"))
        loop._poll = stopped
        loop.turn()
        assert seen == ["bytes", "timer"]
        loop.set_reader(near.fileno(), None)


def test_what_the_end_of_a_turn_asks_for_waits_until_sockets_had_their_turn(loop: EventLoop) -> None:
    seen: list[int] = []

    def again() -> None:
        seen.append(len(seen))
        loop.call_soon(again)

    loop.call_soon(again)
    loop.turn()
    assert seen == [0]
    loop.turn()  # does not sleep
    assert seen == [0, 1]


def test_timers_run_when_they_are_due_in_order_and_not_when_cancelled(loop: EventLoop) -> None:
    seen: list[str] = []
    started = time.monotonic()
    loop.call_later(0.03, loop.stop)
    loop.call_later(0.02, lambda: seen.append("second"))
    loop.call_later(0.01, lambda: seen.append("first"))
    dropped = loop.call_later(0.015, lambda: seen.append("never"))
    dropped.cancel()
    dropped.cancel()
    loop.run()
    assert seen == ["first", "second"]
    assert time.monotonic() - started >= 0.03


def test_cancelled_timers_do_not_pile_up(loop: EventLoop) -> None:
    kept: list[int] = []
    loop.call_later(0, lambda: kept.append(1))
    for _ in range(50 * MANY_CANCELLED):
        loop.call_later(LONG, lambda: kept.append(2)).cancel()
    assert len(loop._timers) <= 2 * MANY_CANCELLED + 2
    loop.turn()
    assert kept == [1]


def test_a_callback_that_fails_stops_nobody(loop: EventLoop) -> None:
    errors: list[Exception] = []
    loop.on_error = errors.append
    seen: list[str] = []
    near, far = socket.socketpair()
    with near, far:
        for end in (near, far):
            loop.set_writer(end.fileno(), lambda: 1 // 0)
        loop.call_from_thread(lambda: 1 // 0)
        loop.call_from_thread(lambda: seen.append("thread"))
        loop.call_later(0, lambda: 1 // 0)
        loop.call_later(0, lambda: seen.append("timer"))
        loop.call_soon(lambda: 1 // 0)
        loop.call_soon(lambda: seen.append("soon"))
        loop.turn()
        for end in (near, far):
            loop.set_writer(end.fileno(), None)
    assert seen == ["thread", "timer", "soon"]
    assert [type(error) for error in errors] == [ZeroDivisionError] * 5


def test_a_thread_wakes_a_loop_that_sleeps(loop: EventLoop) -> None:
    loop.call_later(LONG, loop.stop)
    started = time.monotonic()
    thread = threading.Thread(target=lambda: (time.sleep(0.02), loop.call_from_thread(loop.stop)))
    thread.start()
    loop.run()
    thread.join()
    assert time.monotonic() - started < LONG / 2


def test_a_hang_up_reaches_reader_and_writer_and_nobody_when_nobody_waits(loop: EventLoop) -> None:
    near, far = socket.socketpair()
    seen: list[str] = []
    with near:
        loop.set_reader(near.fileno(), lambda: seen.append("read"))
        far.close()
        loop.turn()
        loop.set_reader(near.fileno(), None)
        loop.set_writer(near.fileno(), lambda: seen.append("write"))
        loop.turn()
        loop.set_writer(near.fileno(), None)
        loop.set_writer(near.fileno(), None)
        loop.call_later(0.01, loop.stop)
        loop.run()
    assert seen == ["read", "write"]


def test_a_signal_wakes_the_loop_and_its_handler_is_given_back() -> None:
    loop = EventLoop()
    before = signal.getsignal(signal.SIGUSR1)
    loop.on_signal(signal.SIGUSR1, loop.stop)
    loop.call_later(LONG, loop.stop)
    started = time.monotonic()
    threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    loop.run()
    assert time.monotonic() - started < LONG / 2
    loop.close()
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_lane_keeps_its_order_and_hands_results_and_errors_to_the_loop(loop: EventLoop) -> None:
    executor = ThreadExecutor(loop)
    seen: list[object] = []
    here = threading.get_ident()

    def done(result: object, error: BaseException | None) -> None:
        assert threading.get_ident() == here
        seen.append(result if error is None else type(error))
        if len(seen) == 4:
            loop.stop()

    def fail() -> None:
        raise SystemExit("a lane survives this")

    executor.submit("a", lambda: time.sleep(0.01), done)
    executor.submit("a", threading.get_ident, done)
    executor.submit("a", fail, done)
    executor.submit("a", lambda: 7, done)
    loop.call_later(LONG, loop.stop)
    loop.run()
    assert seen[0] is None
    assert seen[1] != here
    assert seen[2:] == [SystemExit, 7]
    executor.close()


def test_lanes_that_were_reserved_begin_where_no_thread_can(loop: EventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ulimit -v`, `-u`: the first checkpoint found no thread, and the node neither answered nor stopped."""
    executor = ThreadExecutor(loop)
    executor.reserve(2)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    seen: list[object] = []

    def done(result: object, error: BaseException | None) -> None:
        seen.append(result)
        if len(seen) == 3:
            loop.stop()

    for lane in "abc":  # the third shares a thread
        executor.submit(lane, threading.get_ident, done)
    loop.call_later(LONG, loop.stop)
    loop.run()
    assert len(set(seen)) == 2
    assert threading.get_ident() not in seen
    with pytest.raises(DuramenError, match=r"^a node needs at least 2 threads, and only 0 can begin"):
        executor.reserve(2)
    executor.close()


def test_a_closing_executor_ends_what_runs_and_drops_what_does_not(loop: EventLoop) -> None:
    executor = ThreadExecutor(loop)
    begun, may_end = threading.Event(), threading.Event()
    ran: list[int] = []

    def long() -> None:
        begun.set()
        may_end.wait(LONG)
        ran.append(1)

    executor.submit("a", long, lambda result, error: None)
    executor.submit("a", lambda: ran.append(2), lambda result, error: None)
    assert begun.wait(LONG)
    threading.Timer(0.02, may_end.set).start()
    executor.close()
    assert ran == [1]


def test_the_clock_is_the_loops(loop: EventLoop) -> None:
    clock = LoopClock(loop)
    seen: list[float] = []
    started = clock.monotonic()
    clock.call_later(0.01, lambda: (seen.append(clock.monotonic()), loop.stop()))  # type: ignore[func-returns-value]
    clock.call_soon(lambda: seen.append(0.0))
    loop.run()
    assert seen[0] == 0.0
    assert seen[1] - started >= 0.01
