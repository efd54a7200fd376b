"""One machine of the simulation: a disk that outlives its processes, and at most one process running the server.

A process gets five ports of its own at every start. However it ends (stop, kill, power cut), everything it had planned
is dropped with it, and nothing of it may touch the disk again.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from duramen.errors import BugError, CorruptLogError, DuramenError
from duramen.ports import World
from duramen.sim.world.disk import CrashDisk, NodeDied, PowerCut
from duramen.sim.world.entropy import SimEntropy
from duramen.sim.world.executor import SimExecutor
from duramen.sim.world.loop import Process, SimClock, SimLoop
from duramen.sim.world.network import SimNetwork, SimPort

WALL_START_MS = 1_767_225_600_000
"""2026-01-01T00:00Z: when every simulation begins."""

HOST = "127.0.0.1"
FIRST_PORT = 9092
"""Of node 1; every other node listens on a port of its own above it."""


def node_address(node_id: int) -> tuple[str, int]:
    """Where clients find the node."""
    return HOST, FIRST_PORT - 1 + node_id


class Server(Protocol):
    """What a node runs; server.broker.Broker is one."""

    def start(self, on_ready: Callable[[], None]) -> None: ...

    def stop(self, on_stopped: Callable[[], None]) -> None: ...


class SimNode:
    """The machine of one node. boot builds the server on a World; note writes a line of the history.

    excused: what is wrong with the disk is reason enough not to start; refusals: how often that happened.
    given_up: the running server has stopped serving something, until it is started again.
    wall_start_ms: what its wall clock, which `set_clock` moves, showed at the beginning (first_wall_ms: before it was
    moved); latest_wall_ms: the latest it has shown when it was moved; leapt_ms: by how much it was moved ahead, in all.
    host: its name in the network. rate: its clocks' seconds in one second of the simulation.
    """

    def __init__(
        self,
        node_id: int,
        loop: SimLoop,
        network: SimNetwork,
        random: Random,
        disk: CrashDisk,
        boot: Callable[[World], Server],
        note: Callable[[str], None],
        host: str = "",
        rate: float = 1.0,
    ) -> None:
        self.node_id = node_id
        self.host = host
        self.rate = rate
        self.name = f"n{node_id}"
        self.disk = disk
        self.starts = 0
        self.deaths = 0
        self.refusals = 0
        self.excused = False
        self.given_up = False
        self.ready = False
        self.wall_start_ms = self.first_wall_ms = self.latest_wall_ms = WALL_START_MS
        self.leapt_ms = 0
        self.lane_start_s = random.choice(((0.00001, 0.001), (0.0001, 0.02)))
        self.on_down: Callable[[], None] | None = None
        self.on_error: Callable[[Exception], None] | None = None
        self.on_state: Callable[[str], None] = lambda state: None
        self.server: Server | None = None
        self.process: Process | None = None
        self._loop = loop
        self._network = network
        self._random = random
        self._boot = boot
        self._note = note
        self._port: SimPort | None = None
        self._executor: SimExecutor | None = None
        self._clock: SimClock | None = None
        self._has_served = False

    @property
    def running(self) -> bool:
        """Whether a process exists, ready or not."""
        return self.process is not None

    def start(self) -> None:
        """Start the server's process now; `ready` tells when it serves."""
        if self.process is not None:
            raise ValueError(f"{self.name} runs already")
        self._network.links.set_power(self.host, on=True)
        self.disk.power_on()
        self.disk.take_delay()
        self.starts += 1
        self._has_served = self.given_up = False
        process = Process(f"{self.name}#{self.starts}", self._died, self.disk.take_delay, self._failed)
        seed = self._random.getrandbits(64)
        self.process = process
        self._port = SimPort(self._network, process, self.host)
        self._executor = SimExecutor(self._loop, process, Random(seed), self.lane_start_s)
        self._clock = SimClock(self._loop, process, self.wall_start_ms, self.rate)
        world = World(
            self.disk,
            self._clock,
            self._port,
            self._executor,
            SimEntropy(Random(seed + 1)),
        )
        self._note(f"{process.name} start")
        self._loop.soon(process, lambda: self._start(world))

    def _start(self, world: World) -> None:
        self.server = self._boot(world)
        self.server.start(self._is_ready)

    def wall_ms(self) -> int:
        """What the machine's wall clock shows now."""
        return self.wall_start_ms + int(self._loop.now * self.rate * 1000)

    def passed_ms(self) -> int:
        """How far the wall clock has gone ahead, jumps included; that it was set back is not counted."""
        return self.leapt_ms + int(self._loop.now * self.rate * 1000)

    def busy_until(self) -> float:
        """When the work off its loop that has begun will be done."""
        return self._loop.now if self._executor is None else self._executor.busy_until

    def set_clock(self, by_ms: int) -> None:
        """Move the wall clock, forwards or backwards; monotonic time goes on."""
        self.latest_wall_ms = max(self.latest_wall_ms, self.wall_ms())
        self.wall_start_ms += by_ms
        self.leapt_ms += max(0, by_ms)
        if self._clock is not None:
            self._clock.wall_start_ms = self.wall_start_ms

    def _failed(self, error: Exception) -> None:
        """An exception reached the loop: before the node serves, that is how a start is refused (as server/main.py)."""
        refused = isinstance(error, (OSError, DuramenError)) and not isinstance(error, BugError)
        if refused and self.excused and not self._has_served:
            self.refusals += 1
            damaged = isinstance(error, CorruptLogError)
            self.on_state("damage stopped a start" if damaged else "start failed with the disk")
            self.disk.end_process()
            self._end(f"does not start ({error})", 0.0, deliver=True)
        elif self.on_error is not None:
            self.on_error(error)
        else:
            raise error

    def _is_ready(self) -> None:
        self.ready = self._has_served = True
        if self.process is not None:
            self._note(f"{self.process.name} ready after {self.disk.calls} disk calls")

    def stop(self) -> None:
        """Ask the server to stop cleanly; the process ends when it has."""
        process, server = self.process, self.server
        if process is None or server is None:
            raise ValueError(f"{self.name} does not run")
        self.ready = False
        self._note(f"{process.name} stop")

        def on_stopped() -> None:
            self._loop.soon(process, self._stopped)

        self._loop.soon(process, lambda: server.stop(on_stopped))

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT so many seconds later: it answers nothing, and its connections stay."""
        process, executor = self.process, self._executor
        if process is None or executor is None:
            raise ValueError(f"{self.name} does not run")
        self._note(f"{process.name} pauses for {seconds:.6f} s")
        process.pause(self._loop.now + seconds)
        executor.pause(self._loop.now + seconds)

    def kill(self) -> None:
        """kill -9, now."""
        self.disk.kill()
        self._end("killed", 0.0, deliver=True)

    def power_cut(self) -> None:
        """The machine loses power, now."""
        self.disk.power_cut()
        self._lose_power("power cut")

    def _lose_power(self, how: str, *, deliver: bool | None = None) -> None:
        """Its peers hear of it late; where hosts are silent, only when it has power again."""
        silence_s = self._random.uniform(0.0, 0.5)
        deliver = self._random.random() < 0.5 if deliver is None else deliver
        if self._network.conditions.silent:
            self._network.links.set_power(self.host, on=False)
        self._end(how, silence_s, deliver=deliver)

    def _died(self, death: NodeDied) -> None:
        """A disk call was the last one."""
        cut = isinstance(death, PowerCut)
        if cut and not self._has_served:
            self.on_state("power cut while starting")
        if cut:
            self._lose_power(str(death), deliver=self._random.random() < 0.5)
        else:
            self._end(str(death), 0.0, deliver=True)

    def _stopped(self) -> None:
        self.disk.end_process()
        self._end("stopped", 0.0, deliver=True)

    def _end(self, how: str, silence_s: float, *, deliver: bool) -> None:
        process = self.process
        if process is None:
            return
        self._note(f"{process.name} {how} at disk call {self.disk.calls}")
        self.deaths += how != "stopped" and not how.startswith("does not start")
        self.ready = False
        self._loop.forget(process)
        if self._executor is not None:
            self._executor.die()
        if self._port is not None:
            self._port.die(silence_s, deliver=deliver)
        self.server = self.process = self._port = self._executor = self._clock = None
        if self.on_down is not None:
            self.on_down()
