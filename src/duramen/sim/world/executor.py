"""The Executor port without threads: lanes whose work happens at later moments of virtual time.

A piece of work runs at one instant, a seeded moment after its turn came; the lane is then occupied for as long as its
disk calls took, and only afterwards does `done` run on the loop. Events of the loop fall in between, as with threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from duramen.sim.world.loop import Process, SimLoop
from duramen.storage import run_serial

Work = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]


class SimExecutor:
    """Lanes of one process; they die with it. start_s: bounds of the seeded wait before a piece of work starts.

    busy_until: when the last piece of work that has begun will be done.
    """

    def __init__(
        self,
        loop: SimLoop,
        process: Process,
        random: Random,
        start_s: tuple[float, float] = (0.00001, 0.001),
    ) -> None:
        self._loop = loop
        self._threads = Process(f"{process.name}-threads", process.on_death, on_error=process.on_error)
        self._process = process
        self._random = random
        self._start_s = start_s
        self._lanes: dict[str, deque[tuple[Work, Done]]] = {}
        self._cost = process.cost
        self.busy_until = loop.now

    def submit(self, lane: str, work: Work, done: Done) -> None:
        """See ports.Executor."""
        waiting = self._lanes.setdefault(lane, deque())
        waiting.append((work, done))
        if len(waiting) == 1:
            self._next(waiting)

    def together(self, work: Sequence[Work]) -> list[Any]:
        """See ports.Executor: here one after the other."""
        return run_serial(work)

    def pause(self, until: float) -> None:
        """No thread goes on before then."""
        self._threads.pause(until)

    def die(self) -> None:
        """The process has ended: no work runs any more."""
        self._loop.forget(self._threads)
        self._lanes.clear()

    def _next(self, waiting: deque[tuple[Work, Done]]) -> None:
        wait = self._random.uniform(*self._start_s)
        self._loop.at(self._loop.now + wait, self._threads, lambda: self._run(waiting))

    def _run(self, waiting: deque[tuple[Work, Done]]) -> None:
        work, done = waiting[0]
        result: Any = None
        error: BaseException | None = None
        try:
            result = work()
        except Exception as caught:  # noqa: BLE001 - every error of the work goes to `done`
            error = caught
        took = self._cost() if self._cost is not None else 0.0
        self.busy_until = max(self.busy_until, self._loop.now + took)
        self._loop.at(self._loop.now + took, self._threads, lambda: self._finish(waiting, done, result, error))

    def _finish(self, waiting: deque[tuple[Work, Done]], done: Done, result: Any, error: BaseException | None) -> None:
        self._loop.soon(self._process, lambda: done(result, error))
        waiting.popleft()
        if waiting:
            self._next(waiting)
