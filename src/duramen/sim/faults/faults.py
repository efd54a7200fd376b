"""What goes wrong in a simulation, and when: crashes in and between disk calls, disks that fail or lie, clock jumps.

Every fault ends: a node that died or whose directory failed is started again, sometimes to die once more while it
recovers, and a flipped bit is put back as from a copy. `counts` says how often each kind of fault was inflicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random

from duramen.client.loop.node_client import NodeClient
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.workload.scripts import Script
from duramen.sim.world.disk_faults import Errors, Latency, ShortReads, flip_a_bit, restore, take_pages
from duramen.sim.world.node import SimNode

POLL_S = 0.005
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 60.0
DATA, SECOND = "/data", "/second"

KINDS = {
    "power cut in a call": 3,
    "end at a moment": 3,
    "power cut": 2,
    "kill in a call": 2,
    "kill": 1,
    "clean stop": 2,
    "lost connections": 1,
    "full disk": 2,
    "failing calls": 4,
    "failing sync": 2,
    "failing calls at the start": 2,
    "failing calls at the stop": 1,
    "lying sync": 2,
    "flipped bit": 2,
    "short reads": 1,
    "pages taken": 2,
    "slow disk": 1,
    "clock jump": 2,
}
"""The kinds of fault and how often each is drawn."""

MOMENTS = {
    "compaction swap": 30,
    "journal went on in its next part": 4,
    "metadata snapshot begun": 12,
    "metadata log cut at a snapshot": 12,
    "segment sealed": 12,
    "checkpoint during group commit": 30,
    "checkpoint began beside an open extent": 150,
}
"""States behind which a node is worth losing, and how many disk calls later that happens at most."""
TRANSACTION_MOMENTS = {
    "transaction decided": 12,
    "transaction completed": 6,
    "client died with its EndTxn on the way": 25,
}
"""In worlds with transactions, those alone."""
MOMENT_S = 4.0
"""How long one is waited for."""

EARLIEST_CLOCK_MS, LATEST_CLOCK_MS = -45 * 60_000, 6 * 3_600_000
"""How far the wall clock may be off: less than what makes batches "from the future" or forgets producers."""


def iter_nothing() -> Script:
    """A script that does nothing."""
    yield 0.0


class DiskLiedError(Exception):
    """Power failed while a lying disk owed something: from here on only what survives any disk can be asked for."""


class Faults:
    """The adversary of one node and its clients. suspicious: whether the running node has given something up.

    before_start: called before each start but the last one of all. look: reads everything while a bit is flipped.
    on_damage: called when it is.
    """

    def __init__(
        self,
        random: Random,
        node: SimNode,
        clients: list[NodeClient],
        note: Callable[[str], None],
        now: Callable[[], float],
        latency: Latency,
    ) -> None:
        self.random = random
        self.node = node
        self.clients = clients
        self.finished = False
        self.counts: Counter[str] = Counter()
        self.kinds = KINDS
        self.directories: Sequence[str] = (DATA,)
        self.suspicious: Callable[[], bool] = lambda: True
        self.on_damage: Callable[[], None] = lambda: None
        self.look: Callable[[], Script] = lambda: iter_nothing()
        self.worth: Mapping[str, int] = MOMENTS
        """Of this world, where it has some of its own."""
        self.moments: dict[str, Callable[[], None]] = {}
        """Called when a state is reached next (`Coverage.moments`)."""
        self.before_start: Callable[[], None] = lambda: None
        self._latency = latency
        self._note = note
        self._now = now

    def script(self, count: int) -> Script:
        """Start the node, then `count` faults one after the other, each repaired before the next."""
        yield from self.started(0.1 if count else 0.0)
        for _ in range(count):
            yield self.random.uniform(0.02, 0.3)
            (kind,) = self.random.choices(list(self.kinds), list(self.kinds.values()))
            self.counts[kind] += 1
            self._note(f"fault: {kind}")
            yield from self._inflict(kind)
            yield from self.started(0.3)
        self.node.set_clock(self.node.first_wall_ms - self.node.wall_start_ms)
        self.finished = True

    def started(self, cut_chance: float) -> Script:
        """Bring the node up; with this chance power fails once more on the way."""
        node, armed = self.node, False
        while not node.ready:
            if not node.running:
                yield self.random.uniform(0.0, 0.1)
                self._start()
                armed = self.random.random() < cut_chance
                if armed:
                    self.counts["power cut while starting"] += 1
                    node.disk.cut_at = node.disk.calls + self.random.randint(1, 200)
                cut_chance /= 2
            yield from self._ready_or_down()
        if armed:
            node.disk.cut_at = None

    def _start(self) -> None:
        if self.node.disk.betrayed:
            raise DiskLiedError
        self.before_start()
        self.node.start()

    def _ready_or_down(self) -> Script:
        node = self.node
        deadline = self._now() + START_DEADLINE_S
        while node.running and not node.ready:
            yield POLL_S
            if self._now() > deadline:
                raise InvariantViolated("Progress", f"{node.name} did not get ready in {START_DEADLINE_S} s")

    def stopped(self) -> Script:
        """Stop the node cleanly. It waits for what it began while its disk was slow; that is not held against it."""
        self.node.stop()
        deadline = max(self._now(), self.node.busy_until()) + STOP_DEADLINE_S
        while self.node.running:
            yield POLL_S
            if self._now() > deadline:
                raise InvariantViolated("Progress", f"{self.node.name} did not stop in {STOP_DEADLINE_S} s")

    def _inflict(self, kind: str) -> Script:
        node, disk, random = self.node, self.node.disk, self.random
        if kind == "power cut":
            node.power_cut()
        elif kind == "kill":
            node.kill()
        elif kind == "clean stop":
            yield from self.stopped()
        elif kind == "lost connections":
            for client in self.clients:
                if random.random() < 0.5:
                    client.drop()
        elif kind in ("power cut in a call", "kill in a call"):
            number = disk.calls + random.randint(1, 60)
            if kind.startswith("power"):
                disk.cut_at = number
            else:
                disk.kill_at = number
            yield from self._end_within(0.5)
        else:
            trouble: dict[str, Callable[[], Script]] = {
                "end at a moment": self._end_at_a_moment,
                "full disk": self._fill,
                "failing calls": self._fail_calls,
                "failing sync": self._fail_a_sync,
                "failing calls at the start": self._fail_start,
                "failing calls at the stop": self._fail_stop,
                "lying sync": self._lie,
                "flipped bit": self._flip,
                "short reads": self._read_short,
                "pages taken": self._take_pages,
                "slow disk": self._dawdle,
                "clock jump": self._jump,
            }
            yield from trouble[kind]()

    def _end_at_a_moment(self) -> Script:
        """Power fails, or the process is killed, soon after a certain state is reached; nothing, if it is not."""
        disk, random = self.node.disk, self.random
        moment, most = random.choice(list(self.worth.items()))
        power, calls = random.random() < 0.7, random.randint(1, most)
        reached = False

        def arm() -> None:
            nonlocal reached
            reached = True
            self.counts[f"{'power cut' if power else 'kill'} after: {moment}"] += 1
            if power:
                disk.cut_at = disk.calls + calls
            else:
                disk.kill_at = disk.calls + calls

        self.moments[moment] = arm
        deadline = self._now() + MOMENT_S
        while not reached and self._now() < deadline:
            yield POLL_S
        self.moments.pop(moment, None)
        if reached:
            yield from self._end_within(0.5)

    def _end_within(self, seconds: float) -> Script:
        """Wait for the node to die by itself; help after that time."""
        deadline = self._now() + seconds
        while self.node.running and self._now() < deadline:
            yield POLL_S
        if self.node.running:
            self.node.power_cut()

    def _replace(self) -> Script:
        """A node whose directory failed serves it again only after a restart."""
        how = self.random.choice(("power cut", "kill", "clean stop"))
        if self.node.running and (self.suspicious() or self.random.random() < 0.5):
            self._note(f"then: {how}")
            yield from self._inflict(how)

    # -- what the disk does wrong

    def _fail_calls(self) -> Script:
        yield from self._failing(self._errors())

    def _fail_a_sync(self) -> Script:
        yield from self._failing(self._errors("sync"))

    def _errors(self, operation: str | None = None) -> Errors:
        """Of every directory, or of one of several: then the node goes on with the others."""
        errors = Errors(self.random, self.counts, operation)
        if len(self.directories) > 1 and self.random.random() < 0.7:
            errors.below = self.random.choice(self.directories)
        return errors

    def _failing(self, errors: Errors) -> Script:
        self._arm(errors)
        yield self.random.uniform(0.02, 0.2)
        self._disarm()
        yield from self._replace()

    def _arm(self, errors: Errors) -> None:
        self.node.disk.fault = errors
        self.node.excused = True

    def _disarm(self) -> None:
        self.node.disk.fault = None
        self.node.excused = False

    def _fail_start(self) -> Script:
        """Stop the node somehow, and let calls fail while it starts."""
        yield from self._inflict(self.random.choice(("power cut", "kill", "clean stop")))
        yield self.random.uniform(0.0, 0.1)
        self._arm(self._errors())
        self._start()
        yield from self._ready_or_down()
        yield self.random.uniform(0.0, 0.05)
        self._disarm()
        yield from self._replace()

    def _fail_stop(self) -> Script:
        """Let calls fail while the node stops."""
        self._arm(self._errors())
        yield from self.stopped()
        self._disarm()

    def _fill(self) -> Script:
        disk, random = self.node.disk, self.random
        capacity = disk.capacity
        disk.capacity = disk.used + random.randint(0, 4000)
        yield random.uniform(0.02, 0.2)
        disk.capacity = capacity
        yield from self._replace()

    def _lie(self) -> Script:
        """Syncs do nothing for a while. Then the disk keeps its word late, or a crash comes first."""
        disk, random = self.node.disk, self.random
        disk.lying = True
        yield random.uniform(0.02, 0.3)
        if random.random() < 0.5:
            yield from self._inflict(random.choice(("power cut", "power cut in a call", "kill", "clean stop")))
        disk.lying = False
        disk.settle()

    def _flip(self) -> Script:
        """While the node is down, one bit of a file changes; later the file is put back, unless it was written anew."""
        node, disk = self.node, self.node.disk
        yield from self._inflict(self.random.choice(("power cut", "clean stop")))
        disk.power_on()
        flip = flip_a_bit(disk, self.random, self.random.choice(self.directories))
        if flip is None:
            return
        self._note(f"flipped {flip}")
        self.on_damage()
        node.excused = True
        self._start()
        yield from self._ready_or_down()
        if node.ready:
            yield from self.look()
            yield self.random.uniform(0.0, self.random.choice((0.3, 4.0)))  # time for the scrubber to find it
            if node.running:
                yield from self._inflict(self.random.choice(("power cut", "clean stop")))
        self.counts["flipped bit, put back" if restore(disk, flip) else "flipped bit, overwritten"] += 1
        node.excused = False

    def _read_short(self) -> Script:
        self.node.disk.short_reads = ShortReads(self.random, self.counts)
        yield self.random.uniform(0.1, 0.5)
        self.node.disk.short_reads = None

    def _take_pages(self) -> Script:
        """The machine takes pages of segments out of memory, though nobody needs the room."""
        end = self._now() + self.random.uniform(0.1, 0.8)
        while self._now() < end:
            take_pages(self.node.disk, self.random)
            yield self.random.uniform(0.0, 0.02)

    def _dawdle(self) -> Script:
        self._latency.slow = self.random.choice((0.05, 0.3, 2.0))
        self._latency.dragging = self.random.choice((0.0, 0.0, 0.001))
        yield self.random.uniform(0.2, 1.0)
        self._latency.slow = self._latency.dragging = 0.0

    def _jump(self) -> Script:
        by = self.random.choice((-1, 1)) * self.random.choice((1_000, 20_000, 600_000, 3_600_000))
        off = self.node.wall_start_ms - self.node.first_wall_ms
        by = max(EARLIEST_CLOCK_MS - off, min(LATEST_CLOCK_MS - off, by))
        self._note(f"the wall clock jumps by {by} ms")
        self.counts["clock jump back" if by < 0 else "clock jump ahead"] += 1
        self.node.set_clock(by)
        yield 0.0
