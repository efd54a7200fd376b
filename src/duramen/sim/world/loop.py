"""Virtual time: the agenda of everything that will happen in a simulation, and the clock each process sees of it.

Events run one at a time, earliest first; between events no time passes. Events due at the same instant run in a
seeded order, except that `call_soon` keeps the order of the calls, as every real loop does. Each event belongs to one
`Process`; a dead process's events never run, and a busy one's (a slow disk call) wait until it is free again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from duramen.sim.world.disk import NodeDied

WAKING_S = 0.00003
"""Virtual seconds between the end of a pause and the first timer behind it: a node that wakes looks at its sockets
before its timers (`server/net/loop.py`)."""


class Process:
    """One run of one program: from its start to its end, after which it does nothing any more.

    busy_until: virtual seconds before which none of its events runs. on_death: called when an event raised NodeDied.
    on_error: called when an event raised anything else; without it the simulation ends with that exception.
    cost: seconds the event that just ran kept the process busy (its blocking disk calls), asked after each event.
    """

    def __init__(
        self,
        name: str,
        on_death: Callable[[NodeDied], None] | None = None,
        cost: Callable[[], float] | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self.name = name
        self.on_error = on_error
        self.alive = True
        self.busy_until = 0.0
        self.paused_until = 0.0
        self.on_death = on_death
        self.cost = cost

    def pause(self, until: float) -> None:
        """Nothing of it runs before then, as behind a SIGSTOP; what others send it waits."""
        self.busy_until = self.paused_until = max(self.busy_until, until)


class Event:
    """A call at a time; cancelling makes it none. Also the Timer that `call_later` returns."""

    __slots__ = ("callback", "process")

    def __init__(self, process: Process, callback: Callable[[], None]) -> None:
        self.process = process
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """See ports.Timer."""
        self.callback = None

    def held_until(self) -> float:
        """When it may run, now that its process is busy."""
        return self.process.busy_until


class SimTimer(Event):
    """An event of `call_later`."""

    __slots__ = ()

    def held_until(self) -> float:
        """Behind what the sockets have to say, where the process was paused."""
        process = self.process
        return process.busy_until + (WAKING_S if process.busy_until == process.paused_until else 0.0)


class SimLoop:
    """The agenda. `now` is virtual seconds since the simulation began."""

    def __init__(self, random: Random) -> None:
        self.now = 0.0
        self.events_run = 0
        self.ran: Process | None = None
        """Whose the latest event was."""
        self._random = random
        self._order = 0
        self._agenda: list[tuple[float, float, int, Event]] = []

    def at(self, time: float, process: Process, callback: Callable[[], None]) -> Event:
        """Run the callback at `time` (not before now), among simultaneous events at a seeded place."""
        return self._put(max(time, self.now), self._random.random(), Event(process, callback))

    def timer(self, time: float, process: Process, callback: Callable[[], None]) -> SimTimer:
        """The same for `call_later`."""
        timer = SimTimer(process, callback)
        self._put(max(time, self.now), self._random.random(), timer)
        return timer

    def soon(self, process: Process, callback: Callable[[], None]) -> Event:
        """Run the callback at this instant, after what `soon` was asked before and before anything else."""
        return self._put(self.now, -1.0, Event(process, callback))

    def last(self, process: Process, callback: Callable[[], None]) -> Event:
        """Run the callback at this instant, after everything `soon` was asked for and before anything else."""
        return self._put(self.now, -0.75, Event(process, callback))

    def _put(self, time: float, tie: float, event: Event) -> Event:
        self._order += 1
        heapq.heappush(self._agenda, (time, tie, self._order, event))
        return event

    def _put_again(self, time: float, event: Event) -> None:
        """Hold an event back, in the order in which it would have run: before whatever is due only then."""
        self._order += 1
        heapq.heappush(self._agenda, (time, -0.5, self._order, event))

    def forget(self, process: Process) -> None:
        """End the process: nothing it planned happens, and nothing of it is kept in memory."""
        process.alive = False
        self._agenda = [entry for entry in self._agenda if entry[3].process is not process]
        heapq.heapify(self._agenda)

    def planned(self, process: Process) -> int:
        """How many events of the process are still to come."""
        return sum(entry[3].process is process and entry[3].callback is not None for entry in self._agenda)

    def step(self) -> bool:
        """Run the next event; False when there is none."""
        while self._agenda:
            time, _, _, event = heapq.heappop(self._agenda)
            process, callback = event.process, event.callback
            if callback is None or not process.alive:
                continue
            if process.busy_until > time:
                self._put_again(event.held_until(), event)
                continue
            self.now = time
            self.events_run += 1
            self.ran = process
            try:
                callback()
            except NodeDied as death:
                if process.on_death is None:
                    raise
                process.on_death(death)
            except Exception as error:
                if process.on_error is None:
                    raise
                process.on_error(error)
            else:
                if process.cost is not None:
                    cost = process.cost()
                    if cost:
                        process.busy_until = time + cost
            return True
        return False

    def run(self, until: Callable[[], bool], deadline: float) -> bool:
        """Step until the condition holds or `deadline` (virtual seconds) has passed; returns whether it holds."""
        while not until():
            if not self._agenda or self._agenda[0][0] > deadline:
                self.now = max(self.now, deadline)
                return until()
            self.step()
        return True


class SimClock:
    """The Clock port of one process. Its wall clock has its own start and may be set; monotonic time never jumps.

    rate: its seconds in one second of the simulation.
    """

    def __init__(self, loop: SimLoop, process: Process, wall_start_ms: int, rate: float = 1.0) -> None:
        self._loop = loop
        self._process = process
        self.wall_start_ms = wall_start_ms
        self.rate = rate
        # A timer must not find, for want of a last digit, that it is not due yet.
        self._late = 0.0 if rate == 1.0 else 1e-9

    def wall_ms(self) -> int:
        """See ports.Clock."""
        return self.wall_start_ms + int(self._loop.now * self.rate * 1000)

    def monotonic(self) -> float:
        """See ports.Clock."""
        return self._loop.now * self.rate

    def boottime(self) -> float:
        """See ports.Clock."""
        return self.monotonic()

    def call_soon(self, callback: Callable[[], None]) -> None:
        """See ports.Clock."""
        self._loop.soon(self._process, callback)

    def call_last(self, callback: Callable[[], None]) -> None:
        """See ports.Clock."""
        self._loop.last(self._process, callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> SimTimer:
        """See ports.Clock."""
        time = self._loop.now + max(0.0, seconds) / self.rate + self._late
        return self._loop.timer(time, self._process, callback)
