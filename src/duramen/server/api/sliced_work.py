"""Work for one client that would hold the loop for long: in steps, each in a turn of the loop, and beside the loop.

One such work goes on at a time, and until it is over its client's next requests wait: what it is made of, objects of
each element of a request or of a reply, takes a hundred times the memory of their bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from duramen.ports import Clock, Executor
from duramen.server.net.connection import ClientConnection

Job = Callable[[], Any]
Work = Generator[Job | None, Any, None]
"""Each step ends with None, or with a job that is done beside the loop: its result, or its error, begins the next step.
It catches its own errors, and is closed in between when its connection is."""

LANE = "large"


class SlicedWork:
    """The queue of one broker: who comes first is done first, and what a work adds is done behind it, before others.

    What belongs to a request that was decoded is done before the next one is, for until then its objects stay.
    """

    def __init__(self, clock: Clock, executor: Executor) -> None:
        self._clock = clock
        self._executor = executor
        self._begun: deque[tuple[ClientConnection, Work]] = deque()
        self._waiting: deque[tuple[ClientConnection, Work]] = deque()
        self._current: tuple[ClientConnection, Work] | None = None
        self._held: dict[ClientConnection, int] = {}
        """Those whose requests wait, with how many works of theirs are not over."""
        self._added: list[tuple[ClientConnection, Work]] | None = None
        """By the step that is being done, if one is."""

    def add(self, connection: ClientConnection, work: Work, *, begun: bool = False) -> None:
        """Do it when its turn comes, never at once. `work` is to be stopped at a `yield`; it may have begun.

        begun: it ends a request that was decoded here, and so comes first.
        """
        self._held[connection] = self._held.get(connection, 0) + 1
        connection.mute("large")
        if self._added is not None:
            self._added.append((connection, work))
            return
        (self._begun if begun else self._waiting).append((connection, work))
        if self._current is None:
            self._begin()

    def _release(self, connection: ClientConnection) -> None:
        left = self._held[connection] - 1
        if left:
            self._held[connection] = left
        else:
            del self._held[connection]
            connection.unmute("large")

    def _begin(self) -> None:
        queue = self._begun or self._waiting
        self._current = queue.popleft() if queue else None
        if self._current is not None:
            self._clock.call_soon(self._step)

    def _step(self, result: Any = None, error: BaseException | None = None) -> None:
        assert self._current is not None
        connection, work = self._current
        self._added = []
        is_over = True
        try:
            if connection.closed:
                work.close()
                return
            job = work.send(result) if error is None else work.throw(error)
            is_over = False
        except StopIteration:
            return
        finally:
            added, self._added = self._added, None
            self._begun.extendleft(reversed(added))
            if is_over:
                self._release(connection)
                self._begin()
        if job is None:
            self._clock.call_soon(self._step)
        else:
            self._executor.submit(LANE, job, self._step)
