"""What goes wrong in a simulation, and when: crashes in and between disk calls, bad and full disks, lost connections.

Every fault ends: a node that died is started again, sometimes to die once more while it recovers.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

from duramen.sim.client import Client, Script
from duramen.sim.disk import Call as DiskCall
from duramen.sim.invariants import InvariantViolated
from duramen.sim.node import Node

POLL_S = 0.005
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 60.0

KINDS = (
    "cut in a call",
    "cut in a call",
    "cut",
    "kill in a call",
    "kill",
    "stop",
    "reset",
    "sync fails",
    "disk full",
)


class Faults:
    """The adversary of one node and its clients."""

    def __init__(
        self, random: Random, node: Node, clients: list[Client], note: Callable[[str], None], now: Callable[[], float]
    ) -> None:
        self.random = random
        self.node = node
        self.clients = clients
        self.finished = False
        self._note = note
        self._now = now

    def script(self, count: int) -> Script:
        """Start the node, then `count` faults one after the other, each repaired before the next."""
        yield from self.started(0.1 if count else 0.0)
        for _ in range(count):
            yield self.random.uniform(0.02, 0.3)
            kind = self.random.choice(KINDS)
            self._note(f"fault: {kind}")
            yield from self._inflict(kind)
            yield from self.started(0.3)
        self.finished = True

    def started(self, cut_chance: float) -> Script:
        """Bring the node up; with this chance power fails once more on the way."""
        node, armed = self.node, False
        while not node.ready:
            if not node.running:
                yield self.random.uniform(0.0, 0.1)
                node.start()
                armed = self.random.random() < cut_chance
                if armed:
                    node.disk.cut_at = node.disk.calls + self.random.randint(1, 200)
                cut_chance /= 2
            deadline = self._now() + START_DEADLINE_S
            while node.running and not node.ready:
                yield POLL_S
                if self._now() > deadline:
                    raise InvariantViolated("Progress", f"{node.name} did not get ready in {START_DEADLINE_S} s")
        if armed:
            node.disk.cut_at = None

    def stopped(self) -> Script:
        """Stop the node cleanly."""
        self.node.stop()
        deadline = self._now() + STOP_DEADLINE_S
        while self.node.running:
            yield POLL_S
            if self._now() > deadline:
                raise InvariantViolated("Progress", f"{self.node.name} did not stop in {STOP_DEADLINE_S} s")

    def _inflict(self, kind: str) -> Script:
        node, disk, random = self.node, self.node.disk, self.random
        if kind == "cut":
            node.power_cut()
        elif kind == "kill":
            node.kill()
        elif kind == "stop":
            yield from self.stopped()
        elif kind == "reset":
            for client in self.clients:
                if random.random() < 0.5:
                    client.drop()
        elif kind == "sync fails":
            yield from self._fail_a_sync()
        elif kind == "disk full":
            yield from self._fill()
        else:
            number = disk.calls + random.randint(1, 60)
            if kind.startswith("cut"):
                disk.cut_at = number
            else:
                disk.kill_at = number
            yield from self._end_within(0.5)

    def _end_within(self, seconds: float) -> Script:
        """Wait for the node to die by itself; help after that time."""
        deadline = self._now() + seconds
        while self.node.running and self._now() < deadline:
            yield POLL_S
        if self.node.running:
            self.node.power_cut()

    def _fail_a_sync(self) -> Script:
        disk, random = self.node.disk, self.random
        skip = random.randint(0, 3)

        def fault(call: DiskCall) -> OSError | None:
            nonlocal skip
            if call.operation != "sync":
                return None
            skip -= 1
            return OSError(errno.EIO, "Input/output error", call.path) if skip == -1 else None

        disk.fault = fault
        yield random.uniform(0.02, 0.2)
        disk.fault = None
        yield from self._replace()

    def _fill(self) -> Script:
        disk, random = self.node.disk, self.random
        capacity = disk.capacity
        disk.capacity = disk.used + random.randint(0, 4000)
        yield random.uniform(0.02, 0.2)
        disk.capacity = capacity
        yield from self._replace()

    def _replace(self) -> Script:
        """A node whose directory failed serves it again only after a restart."""
        how = self.random.choice(("cut", "kill", "stop"))
        self._note(f"then: {how}")
        if self.node.running:
            yield from self._inflict(how)
