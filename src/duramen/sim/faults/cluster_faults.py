"""What goes wrong in a cluster: with nodes, with several at once, and between them. Every fault ends.

Each is a script of its own, so that the next may begin while it lasts; a node has one of its own at a time, and what is
between nodes another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.faults.faults import POLL_S, START_DEADLINE_S, STOP_DEADLINE_S
from duramen.sim.workload.scripts import Script, Steps
from duramen.sim.world.cluster import ClusterWorld
from duramen.sim.world.disk_faults import Errors
from duramen.sim.world.node import SimNode

NODE_KINDS: Final = {
    "kill": 3,
    "power cut": 3,
    "power cut in a call": 4,
    "kill in a call": 2,
    "clean stop": 2,
    "pause": 3,
    "away": 3,
    "failing calls": 3,
    "failing sync": 2,
    "failing start": 2,
    "full disk": 1,
    "slow disk": 2,
    "clock jump": 1,
    "wiped disk": 1,
}
"""Faults of one node, and how often each is drawn."""
LINK_KINDS: Final = {
    "isolated": 3,
    "cut": 2,
    "one-way cut": 3,
    "stall": 2,
    "one-way stall": 1,
    "slow link": 2,
}
WORLD_KINDS: Final = {"power cut of all": 2, "kill of all": 1}
KINDS: Final = NODE_KINDS | LINK_KINDS | WORLD_KINDS
"""All of them, in every world."""
ENDING_KINDS: Final = {"power cut at an ending": 2, "kill at an ending": 2, "late marker": 2}
"""In worlds with transactions: what happens to the coordinator of one that is decided, as its markers go out."""
FENCED_S: Final = 5.0
"""How long a node whose disk is to be wiped is waited for to leave the ISRs."""
ENDING_S: Final = 4.0
"""How long one is waited for."""
LATE_S: Final = 8.0
"""How long a marker is late at most."""
ENDING_CALLS: Final = (1, 1, 2, 2, 3, 8)
"""Disk calls behind that moment in which the coordinator ends."""
SLOW_S: Final = 1.0
"""So long work that has begun may still take, behind the last fault."""
LEADER_SHARE: Final = 0.5
"""Of the faults of one node, how many are the leader's."""


class Ending(NamedTuple):
    """A coordinator is about to send markers.

    is_unheard: its client has died asking for it, and nobody asks again. leaders: other nodes that get some.
    may_come_late: the epoch of the next transaction is the same, and the coordinator's alone tells them apart.
    is_open: whether its producer has a transaction open in one of its partitions on that node.
    """

    node_id: int
    is_unheard: bool
    leaders: tuple[int, ...]
    may_come_late: bool
    is_open: Callable[[int], bool]


class ClusterFaults:
    """The adversary of a world. spawn: runs a script beside the others. leader: the id of who leads, -1: nobody.

    format_anew: gives the node an empty disk, formatted as one that joins; of three nodes one gets that, once.
    may_wipe: whether others have what is on the node's disk; while it is down, whether only they are in sync.
    """

    def __init__(
        self,
        random: Random,
        world: ClusterWorld,
        spawn: Callable[[str, Script], object],
        leader: Callable[[], int],
        format_anew: Callable[[SimNode], None],
        may_wipe: Callable[[SimNode], bool] = lambda node: True,
    ) -> None:
        self.random = random
        self.world = world
        self.counts: Counter[str] = Counter()
        self.kinds: dict[str, int] = dict(KINDS)
        self.finished = False
        self._on_ending: Callable[[Ending], None] | None = None
        self._spawn = spawn
        self._leader = leader
        self._format_anew = format_anew
        self._may_wipe = may_wipe
        self._wiped = len(world.hosts) - 1 < 3
        self._troubled: set[int] = set()
        self._links_busy = False
        self._running = 0

    def script(self, count: int) -> Script:
        """Start every node; then so many faults, some while others last; and bring everything up again."""
        for node in self.world.nodes.values():
            self._begin(node, self.up(node, 0.05 if count else 0.0))
        yield from self._over()
        for _ in range(count):
            yield self.random.choice((0.0, 0.05, 0.5, 2.0)) * self.random.random()
            (kind,) = self.random.choices(list(self.kinds), list(self.kinds.values()))
            if not self._inflict(kind):
                yield self.random.uniform(0.0, 0.5)
        yield from self._over()
        # What began while a disk was slow may take another minute, and holds up what comes behind it.
        slow_until = max(node.busy_until() for node in self.world.nodes.values())
        while slow_until - self.world.loop.now > SLOW_S:
            yield POLL_S
        self.heal()
        for node in self.world.nodes.values():
            node.set_clock(node.first_wall_ms - node.wall_start_ms)
        self.finished = True

    def heal(self) -> None:
        """Nothing is wrong between the hosts any more."""
        self.world.heal_all()
        for first in self.world.hosts:
            for second in self.world.hosts:
                self.world.slow(first, second, None)

    def _over(self) -> Script:
        while self._running:
            yield POLL_S

    def _inflict(self, kind: str) -> bool:
        """Begin it, unless who it would hit has its trouble already."""
        if kind in ENDING_KINDS:
            needs_links = kind == "late marker"
            if self._on_ending is not None or (needs_links and (self._links_busy or len(self.world.nodes) < 3)):
                return False
            self._links_busy |= needs_links
            self._on_ending = lambda ending: None
            self._count(kind)
            self._run(kind, self._at_an_ending(kind))
        elif kind in LINK_KINDS:
            if self._links_busy or len(self.world.nodes) < 2:
                return False
            self._links_busy = True
            self._count(kind)
            self._run(kind, self._between(kind))
        elif kind in WORLD_KINDS:
            free = [node for node in self.world.nodes.values() if node.node_id not in self._troubled]
            if len(free) < len(self.world.nodes):
                return False
            self._count(kind)
            for node in free:
                self._begin(node, self._end_with_all(node, kind))
        else:
            leader = self._leader()
            node_id = leader if leader > 0 and self.random.random() < LEADER_SHARE else self._anybody()
            node = self.world.nodes[node_id]
            if node_id in self._troubled or (kind == "wiped disk" and (self._wiped or not self._may_wipe(node))):
                return False
            self._count(f"{kind}, leader" if node_id == leader else kind)
            self._begin(node, self._node_fault(node, kind))
        return True

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1
        self.world.history.note(f"fault: {kind}")

    def _anybody(self) -> int:
        return self.random.choice(sorted(self.world.nodes))

    def _begin(self, node: SimNode, script: Script) -> None:
        self._troubled.add(node.node_id)

        def guarded() -> Script:
            yield from script
            self._troubled.discard(node.node_id)

        self._run(node.name, guarded())

    def _run(self, name: str, script: Script) -> None:
        self._running += 1

        def counted() -> Script:
            yield from script
            self._running -= 1

        self._spawn(name, counted())

    # ---- one node

    def up(self, node: SimNode, cut_chance: float = 0.1) -> Script:
        """Start the node until it is ready; with this chance power fails once more on the way."""
        armed = False
        while not node.ready:
            if not node.running:
                yield self.random.uniform(0.0, 0.1)
                node.start()
                armed = self.random.random() < cut_chance
                if armed:
                    self.counts["power cut while starting"] += 1
                    node.disk.cut_at = node.disk.calls + self.random.randint(1, 200)
                cut_chance /= 2
            yield from self._ready_or_down(node)
        if armed:
            node.disk.cut_at = None

    def _ready_or_down(self, node: SimNode) -> Script:
        deadline = self.world.loop.now + START_DEADLINE_S
        while node.running and not (node.ready or (node.excused and node.given_up)):
            yield POLL_S
            if self.world.loop.now > deadline:
                raise InvariantViolated("Progress", f"{node.name} did not get ready in {START_DEADLINE_S} s")

    def stop(self, node: SimNode) -> Script:
        """A clean stop."""
        node.stop()
        deadline = max(self.world.loop.now, node.busy_until()) + STOP_DEADLINE_S
        while node.running:
            yield POLL_S
            if self.world.loop.now > deadline:
                raise InvariantViolated("Progress", f"{node.name} did not stop in {STOP_DEADLINE_S} s")

    def _node_fault(self, node: SimNode, kind: str) -> Script:
        if not node.ready:
            yield from self.up(node)
        random = self.random
        if kind == "pause":
            node.pause(random.choice((0.3, 2.5, 6.0)) * random.uniform(0.5, 1.0))
            yield 0.01
        elif kind == "away":
            yield from self._end(node, random.choice(("power cut", "kill", "clean stop")))
            yield random.uniform(1.0, 8.0)
        elif kind in ("failing calls", "failing sync"):
            node.disk.fault = Errors(random, self.counts, "sync" if kind == "failing sync" else None)
            node.excused = True
            yield random.uniform(0.02, 1.0)
            node.disk.fault = None
            yield from self._replace(node)
            node.excused = False
        elif kind == "failing start":
            yield from self._end(node, random.choice(("power cut", "kill", "clean stop")))
            yield random.uniform(0.0, 0.5)
            node.disk.fault = Errors(random, self.counts)
            node.excused = True
            node.start()
            yield from self._ready_or_down(node)
            yield random.uniform(0.0, 0.05)
            node.disk.fault = None
            yield from self._replace(node)
            node.excused = False
        elif kind == "full disk":
            capacity = node.disk.capacity
            node.disk.capacity = node.disk.used + random.randint(0, 3000)
            node.excused = True
            yield random.uniform(0.1, 1.0)
            node.disk.capacity = capacity
            yield from self._replace(node)
            node.excused = False
        elif kind == "slow disk":
            latency = self.world.latencies[node.node_id]
            latency.slow = random.choice((0.05, 0.3, 2.0))
            latency.dragging = random.choice((0.0, 0.001))
            yield random.uniform(0.5, 3.0)
            latency.slow = latency.dragging = 0.0
        elif kind == "wiped disk":
            self._wiped = True
            yield from self._end(node, "kill")
            # Its disk may be the only one in sync soon: by a change that it had asked for, or since the others are
            # down, too, and fenced first.
            deadline = self.world.loop.now + FENCED_S
            while not self._may_wipe(node) and self.world.loop.now < deadline:
                yield POLL_S
            if self._may_wipe(node):
                self._format_anew(node)
        elif kind == "clock jump":
            node.set_clock(random.choice((-1, 1)) * random.choice((1_000, 600_000)))
        else:
            yield from self._end(node, kind)
        if not node.ready:
            yield random.choice((0.0, 0.2, 3.0)) * random.random()
            yield from self.up(node)

    def _end(self, node: SimNode, how: str) -> Script:
        if not node.running:
            return
        if how == "power cut":
            node.power_cut()
        elif how == "kill":
            node.kill()
        elif how == "clean stop" and node.ready:
            yield from self.stop(node)
        elif how in ("power cut in a call", "kill in a call"):
            number = node.disk.calls + self.random.randint(1, 60)
            if how.startswith("power"):
                node.disk.cut_at = number
            else:
                node.disk.kill_at = number
            deadline = self.world.loop.now + 1.0
            while node.running and self.world.loop.now < deadline:
                yield POLL_S
            if node.running:
                node.power_cut()
        else:
            node.kill()

    def _replace(self, node: SimNode) -> Script:
        """A node whose disk failed it begins anew; sometimes also where it did not notice."""
        yield self.random.uniform(0.0, 0.2)
        if node.running and (node.given_up or self.random.random() < 0.5):
            yield from self._end(node, self.random.choice(("power cut", "kill", "clean stop")))

    def _end_with_all(self, node: SimNode, kind: str) -> Script:
        """At the same moment as all others; they come back one by one."""
        if not node.running:
            yield 0.0
        elif kind.startswith("power"):
            node.power_cut()
        else:
            node.kill()
        yield self.random.choice((0.0, 0.5, 4.0)) * self.random.random()
        yield from self.up(node, 0.2)

    # ---- the coordinator of a transaction

    def ending(self, ending: Ending) -> None:
        """Somebody is about to send markers."""
        if self._on_ending is not None:
            self._on_ending(ending)

    def _at_an_ending(self, kind: str) -> Script:
        """The coordinator ends as its markers go out; half of the time where nobody asks for the end again.

        Of a late marker the way is stalled first. It arrives when another coordinator has ended the transaction, and
        the next one is open.
        """
        world, random = self.world, self.random
        is_late, is_choosy = kind == "late marker", random.random() < 0.5
        calls = random.choice(ENDING_CALLS)
        met: list[tuple[SimNode, Ending]] = []

        def begun(ending: Ending) -> None:
            node = world.nodes[ending.node_id]
            fits = ending.may_come_late and ending.leaders if is_late else ending.is_unheard or not is_choosy
            if met or node.node_id in self._troubled or not node.ready or not fits:
                return
            met.append((node, ending))
            self._troubled.add(node.node_id)
            self.counts[f"{kind}, met"] += 1
            if is_late:
                world.stall(node.node_id, ending.leaders[0], one_way=True)
            elif kind.startswith("power"):
                node.disk.cut_at = node.disk.calls + calls
            else:
                node.disk.kill_at = node.disk.calls + calls

        self._on_ending = begun
        deadline = world.loop.now + ENDING_S
        while not met and world.loop.now < deadline:
            yield POLL_S
        self._on_ending = None
        for node, ending in met:
            if is_late:
                yield random.uniform(0.001, 0.02)  # who has asked for the end is told, and the marker is on its way
                node.kill()
                if (yield from self._reopened(ending)):
                    self.counts["late marker, in the next transaction"] += 1
                world.heal(node.node_id, ending.leaders[0], one_way=True)
            else:
                deadline = world.loop.now + 0.5
                while node.running and world.loop.now < deadline:
                    yield POLL_S
                if node.running:
                    node.kill()
            yield random.choice((0.0, 0.2, 3.0)) * random.random()
            yield from self.up(node)
            self._troubled.discard(node.node_id)
        if is_late:
            self._links_busy = False

    def _reopened(self, ending: Ending) -> Steps[bool]:
        """Wait until the transaction is over where the marker is late, and the next one open; whether it is."""
        deadline = self.world.loop.now + LATE_S
        for wanted in (False, True):
            while ending.is_open(ending.leaders[0]) != wanted and self.world.loop.now < deadline:
                yield POLL_S
        return self.world.loop.now < deadline

    # ---- between nodes

    def _between(self, kind: str) -> Script:
        random, world = self.random, self.world
        leader = self._leader()
        first = leader if leader > 0 and random.random() < LEADER_SHARE else self._anybody()
        second = random.choice([node_id for node_id in sorted(world.nodes) if node_id != first])
        if random.random() < 0.5:
            first, second = second, first
        if kind == "isolated":
            others = None if random.random() < 0.5 else list(world.nodes)
            world.isolate(first, others)
        elif kind == "cut":
            world.cut(first, second)
        elif kind == "one-way cut":
            world.cut(first, second, one_way=True)
        elif kind == "stall":
            world.stall(first, second)
        elif kind == "one-way stall":
            world.stall(first, second, one_way=True)
        else:
            for other in world.hosts:
                if other != first:
                    world.slow(first, other, (0.02, random.choice((0.1, 0.8))))
        yield random.choice((0.3, 3.0, 9.0)) * random.uniform(0.3, 1.0)
        self.heal()
        self._links_busy = False
