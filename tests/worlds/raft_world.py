"""Replicas of a toy log on toy disks and a toy network, driven by one seed: the quorum's machine as its shell runs it.

A power cut takes what was not synced, a kill nothing of the files, a wipe everything; messages come late, twice, never.
`World` checks what must hold whatever happens, `World.heal` that the quorum goes on when nothing more happens.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from duramen.errors import ErrorCode
from duramen.machines.raft import (
    ANYBODY,
    Answer,
    BecameLeader,
    CommitAdvanced,
    DeadlinePassed,
    Effect,
    ElectionState,
    Event,
    FetchRequest,
    Halt,
    LeaderChanged,
    LoadSnapshot,
    LogMoved,
    LoopWasLate,
    OffsetEpoch,
    PeerDied,
    Raft,
    RaftSettings,
    ReadLog,
    ReadSnapshot,
    Received,
    ReplicaKey,
    Replied,
    Request,
    Response,
    Role,
    SaveState,
    Send,
    SnapshotFailed,
    SnapshotRequest,
    SnapshotResponse,
    Started,
    StateSaved,
    Stopping,
    TakeRecords,
    Truncate,
    Voter,
    VoterEndpoint,
    VoteRequest,
    VoteResponse,
    Voters,
)

SETTINGS = RaftSettings()
NOBODY = Voters()


class Entry(NamedTuple):
    """One record, a batch of its own. `value` is of one append in the whole world; voters: it is a VotersRecord."""

    epoch: int
    value: int
    voters: Voters | None = None


class ToyLog:
    """One replica's log. `entries` begin at `start_offset`; what lies below is in `snapshot`."""

    def __init__(self, formatted: Voters = NOBODY) -> None:
        self.entries: list[Entry] = []
        self.start_offset = 0
        self.durable_end = 0
        self.snapshot: tuple[Entry, ...] = ()
        self.snapshot_id: OffsetEpoch | None = None
        self.formatted = formatted
        self._voters = (-1, -1, -1, formatted)

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def latest_epoch(self) -> int:
        if self.entries:
            return self.entries[-1].epoch
        return self.snapshot[self.start_offset - 1].epoch if self.start_offset else -1

    @property
    def latest_snapshot(self) -> OffsetEpoch | None:
        return self.snapshot_id

    def end_of_epoch(self, epoch: int) -> OffsetEpoch:
        at = len(self.entries)
        while at and self.entries[at - 1].epoch > epoch:
            at -= 1
        if at:
            return OffsetEpoch(self.start_offset + at, self.entries[at - 1].epoch)
        if self.start_offset and (below := self.snapshot[self.start_offset - 1].epoch) <= epoch:
            return OffsetEpoch(self.start_offset, below)
        return OffsetEpoch(self.start_offset, -1)

    @property
    def voters(self) -> Voters:
        end = (self.start_offset, self.end_offset, self.latest_epoch)
        if self._voters[:3] != end:
            self._voters = (*end, self._find_voters())
        return self._voters[3]

    def _find_voters(self) -> Voters:
        for entry in reversed(self.entries):
            if entry.voters is not None:
                return entry.voters
        for entry in reversed(self.snapshot):
            if entry.voters is not None:
                return entry.voters
        return self.formatted

    def all(self) -> list[Entry]:
        """From offset 0 on, what only the snapshot has included."""
        return [*self.snapshot[: self.start_offset], *self.entries]

    def append(self, *entries: Entry) -> None:
        self.entries += entries

    def cut(self, offset: int) -> None:
        assert offset >= self.start_offset
        del self.entries[offset - self.start_offset :]
        self.durable_end = min(self.durable_end, offset)

    def take_snapshot(self, offset: int, start: int) -> None:
        """A snapshot of all below `offset`, which is committed; the log begins at `start` then."""
        whole = self.all()
        self.snapshot = tuple(whole[:offset])
        self.snapshot_id = OffsetEpoch(offset, whole[offset - 1].epoch)
        self.entries = whole[start:]
        self.start_offset = start

    def begin_anew(self, snapshot: OffsetEpoch, content: tuple[Entry, ...]) -> None:
        self.entries = []
        self.start_offset = self.durable_end = snapshot.offset
        self.snapshot, self.snapshot_id = content, snapshot


class QuorumError(AssertionError):
    """What must never be was seen."""


class Node:
    """A node: its disk, and while it runs its process, which is the machine and what its shell has under way."""

    def __init__(self, world: World, id: int, is_controller: bool) -> None:
        self.world = world
        self.id = id
        self.is_controller = is_controller
        self.disk = 0
        self.log = ToyLog(world.voters if is_controller else Voters())
        self.saved: ElectionState | None = ElectionState()
        self.raft: Raft | None = None
        self.life = 0
        self.busy_until = 0.0
        self.halted: str | None = None
        self._saving: list[tuple[int, ElectionState]] = []
        self._is_syncing = False
        self._alarm = -1.0
        self._events: list[Event] = []
        self._is_stepping = False
        self._loading: OffsetEpoch | None = None

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.id, bytes([self.id, self.disk]) * 8)

    # ---- life and death

    def start(self) -> None:
        self.life += 1
        self.busy_until = 0.0
        self._saving, self._events = [], []
        self._is_syncing, self._is_stepping = False, False
        self._alarm = -1.0
        self._loading = None
        self.log.durable_end = self.log.end_offset  # what a start finds it syncs
        jitter = self.world.random.random
        self.raft = Raft(self.key, self.is_controller, self.log, self.saved, SETTINGS, jitter)
        self.step(Started())

    def stop(self, power_cut: bool) -> None:
        """The process is gone; a power cut takes some or all of what was not synced, a kill nothing of the files."""
        self.raft = None
        self.life += 1
        draw = self.world.random
        if power_cut:
            self.log.cut(draw.randint(self.log.durable_end, self.log.end_offset))
            if self._saving and draw.random() < 0.5:
                self.saved = self._saving[draw.randrange(len(self._saving))][1]

    def wipe(self) -> None:
        """An empty disk, formatted without voters."""
        self.disk += 1
        self.log = ToyLog()
        self.saved = ElectionState()

    # ---- the shell

    def step(self, event: Event) -> None:
        """Hand in an event; those that its effects lead to come after all of these."""
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        life = self.life
        while self._events and self.raft is not None and self.life == life:
            for effect in self.raft.step(self._events.pop(0), self.world.now):
                self._execute(effect)
        if self.life == life:
            self._is_stepping = False
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self.raft is not None and self.raft.deadline < float("inf") and self.raft.deadline != self._alarm:
            self._alarm = self.raft.deadline
            self.later(max(0.0, self._alarm - self.world.now), self._ring)

    def _ring(self) -> None:
        self._alarm = -1.0
        if self.raft is not None and self.raft.deadline <= self.world.now:
            self.step(DeadlinePassed())
        self._set_alarm()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Unless the process ends before; not while it pauses."""
        life = self.life

        def run() -> None:
            if self.life != life:
                return
            if self.busy_until > self.world.now:
                self.world.at(self.busy_until, run)
            else:
                call()

        self.world.at(self.world.now + seconds, run)

    def _execute(self, effect: Effect) -> None:
        world = self.world
        match effect:
            case SaveState(version, state):
                self._saving.append((version, state))
                self.later(world.random.choice((0.0005, 0.002, 0.01, 0.05)), lambda: self._saved_up_to(version))
            case Send(to, request, _):
                world.send(self, to, request)
            case Answer(ticket, response):
                world.answer(self, ticket, response)
            case BecameLeader(epoch, granted):
                world.leads(self, epoch, granted)
                self.append(Entry(epoch, world.next_value()))
                if not any(entry.voters for entry in self.log.all()):
                    self.append(Entry(epoch, world.next_value(), world.voters))
            case TakeRecords(response):
                assert isinstance(response.records, tuple)
                self.append(*response.records)
            case Truncate(offset):
                self.log.cut(offset)
                self.step(LogMoved())
            case LoadSnapshot(leader_id, snapshot):
                if self._loading != snapshot:
                    self._loading = snapshot
                    raft = self.raft
                    assert raft is not None
                    world.send(self, leader_id, SnapshotRequest(self.key, raft.epoch, snapshot, 0, 1 << 20))
            case CommitAdvanced(offset):
                world.committed_at(self, offset)
            case LeaderChanged():
                pass
            case ReadLog(ticket, offset, request):
                self.later(world.random.choice((0.0, 0.001)), lambda: self._answer_read(ticket, offset, request))
            case ReadSnapshot(ticket, wanted):
                assert self.raft is not None
                if self.log.snapshot_id == wanted.snapshot:
                    world.answer(self, ticket, self.raft.snapshot_answer(wanted, 1, self.log.snapshot))
                else:
                    error = ErrorCode.SNAPSHOT_NOT_FOUND
                    world.answer(self, ticket, self.raft.snapshot_answer(wanted, error=error))
            case Halt(reason):
                self.halted = reason
                world.halted(self, reason)

    def _saved_up_to(self, version: int) -> None:
        for each, state in self._saving:
            if each <= version:
                self.saved = state
        self._saving = [(each, state) for each, state in self._saving if each > version]
        self.step(StateSaved(version))

    def append(self, *entries: Entry) -> None:
        self.log.append(*entries)
        self._sync()
        self.step(LogMoved())

    def _sync(self) -> None:
        if self._is_syncing or self.log.durable_end >= self.log.end_offset:
            return
        self._is_syncing = True
        end, last = self.log.end_offset, self.log.latest_epoch
        self.later(self.world.random.choice((0.0005, 0.002, 0.01, 0.2)), lambda: self._synced(end, last))

    def _synced(self, end: int, last: int) -> None:
        self._is_syncing = False
        found = self.log.end_of_epoch(last)
        reached = min(end, found.offset) if found.epoch == last else self.log.durable_end  # cut meanwhile: not this
        self.log.durable_end = min(self.log.end_offset, max(self.log.durable_end, reached))
        self._sync()
        self.step(LogMoved())

    def _answer_read(self, ticket: int, offset: int, request: FetchRequest) -> None:
        raft = self.raft
        if raft is None:
            return
        if offset < self.log.start_offset:
            records: tuple[Entry, ...] = ()
        else:
            most = self.world.random.choice((1, 2, 100))
            records = tuple(self.log.entries[offset - self.log.start_offset :][:most])
        self.world.answer(self, ticket, raft.fetch_answer(request, records))

    def replied(self, to: int, request: Request, response: Response | None) -> None:
        self.step(Replied(to, request, response))
        if isinstance(request, SnapshotRequest) and self._loading == request.snapshot:
            seconds = self.world.random.choice((0.0, 0.05, 1.0, 4.0))  # it takes a while to check all of it
            self.later(seconds, partial(self._loaded, request, response))

    def _loaded(self, request: SnapshotRequest, response: Response | None) -> None:
        assert self.raft is not None
        if self._loading != request.snapshot:
            return
        self._loading = None
        if not isinstance(response, SnapshotResponse) or response.error is not ErrorCode.NONE:
            self.step(SnapshotFailed())
        elif self.wants(request.snapshot):
            assert isinstance(response.data, tuple)
            self.log.begin_anew(request.snapshot, response.data)
            self.step(LogMoved())

    def wants(self, snapshot: OffsetEpoch) -> bool:
        """Whether the log is still to begin with it."""
        return self.raft is not None and self.raft.loading == snapshot


class World:
    """A few nodes, their network, and what was seen of them."""

    def __init__(self, seed: int, voters: int = 3, observers: int = 1, is_lossy: bool = True) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.is_lossy = is_lossy
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._value = 0
        self._tickets: dict[int, Callable[[Node, Response], None]] = {}
        self.voters = Voters(
            Voter(id, bytes([id, 0]) * 8, (VoterEndpoint("CONTROLLER", f"node{id}", 9093),))
            for id in range(1, voters + 1)
        )
        self.nodes = {id: Node(self, id, id <= voters) for id in range(1, voters + observers + 1)}
        self.cut_links: set[tuple[int, int]] = set()
        self.leaders: dict[int, tuple[int, int]] = {}
        """Epoch → (node, life) of who led it."""
        self.votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self.committed: list[Entry] = []
        self.elections = 0
        self.story: list[str] = []
        for node in self.nodes.values():
            node.start()

    # ---- time

    def at(self, when: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (when, self._count, call))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._agenda and self._agenda[0][0] <= until:
            when, _, call = heapq.heappop(self._agenda)
            self.now = max(self.now, when)
            call()
        self.now = until

    def next_value(self) -> int:
        self._value += 1
        return self._value

    def tell(self, what: str) -> None:
        self.story.append(f"{self.now:9.4f} {what}")

    # ---- the network

    def _delay(self) -> float:
        draw = self.random.random()
        if self.is_lossy and draw < 0.03:
            return self.random.uniform(0.1, 3.0)
        return 0.0002 + draw * 0.002

    def send(self, sender: Node, to: int, request: Request) -> None:
        """The request, maybe twice, and one reply: what comes of it, or None when that is lost."""
        if to == ANYBODY:
            to = self.random.choice(list(self.voters.by_id))
        life = sender.life
        is_open = [True]

        def close(response: Response | None) -> None:
            if is_open[0] and sender.life == life and sender.raft is not None:
                is_open[0] = False
                sender.later(0.0, lambda: sender.replied(to, request, response))

        def reply(node: Node, response: Response) -> None:
            if (node.id, sender.id) not in self.cut_links:
                self.at(self.now + self._delay(), lambda: close(response))

        node = self.nodes[to]
        self.at(self.now + SETTINGS.request_timeout, lambda: close(None))
        if node.raft is None:
            self.at(self.now + self._delay(), lambda: close(None))
            return
        copies = 2 if self.is_lossy and self.random.random() < 0.05 else 1
        for copy in range(copies):
            delay = self._delay() if copy == 0 else self.random.uniform(0.0, 4.0)
            self.at(self.now + delay, lambda: self._deliver(sender.id, node, request, reply))

    def _deliver(self, sender: int, node: Node, request: Request, reply: Callable[[Node, Response], None]) -> None:
        if node.raft is None or (sender, node.id) in self.cut_links:
            return
        if self.is_lossy and self.random.random() < 0.02:
            return
        ticket = self.next_value()

        def answer(by: Node, response: Response) -> None:
            if isinstance(request, VoteRequest) and isinstance(response, VoteResponse):
                self._vote_seen(by, request, response)
            reply(by, response)

        self._tickets[ticket] = answer
        node.later(0.0, lambda: node.step(Received(ticket, sender, request)))

    def answer(self, node: Node, ticket: int, response: Response) -> None:
        self._tickets.pop(ticket)(node, response)

    # ---- what must hold

    def _vote_seen(self, node: Node, request: VoteRequest, response: VoteResponse) -> None:
        if response.granted and not request.pre_vote:
            if request.voter != node.key:
                raise QuorumError(f"{node.id} votes with disk {node.disk} for another one")
            before = self.votes.setdefault((node.key, request.epoch), request.candidate)
            if before != request.candidate:
                raise QuorumError(f"{node.id} voted for {before.id} and {request.candidate.id} in {request.epoch}")
            saved = node.saved or ElectionState()
            known = (saved.leader_epoch, ReplicaKey(saved.voted_id, saved.voted_directory_id))
            if known != (request.epoch, request.candidate) and known[0] <= request.epoch:
                raise QuorumError(
                    f"{node.id} voted for {request.candidate.id} in {request.epoch}, and its disk has {known}"
                )

    def leads(self, node: Node, epoch: int, granted: tuple[int, ...]) -> None:
        self.elections += 1
        self.tell(f"{node.id} leads {epoch} by {granted} from {node.log.end_offset}")
        if epoch in self.leaders:
            raise QuorumError(f"epoch {epoch} is led by {self.leaders[epoch]} and {(node.id, node.life)}")
        self.leaders[epoch] = (node.id, node.life)

    def committed_at(self, node: Node, offset: int) -> None:
        whole = node.log.all()[:offset]
        if len(whole) < offset:
            raise QuorumError(f"{node.id} has {len(whole)} entries, and {offset} of them committed")
        raft = node.raft
        if raft is not None and raft.role is Role.LEADER and [entry.epoch for entry in whole[-1:]] != [raft.epoch]:
            raise QuorumError(f"{node.id} leads {raft.epoch}, and what it commits ends with {whole[-1:]}")
        both = min(len(whole), len(self.committed))
        if whole[:both] != self.committed[:both]:
            at = next(at for at in range(both) if whole[at] != self.committed[at])
            raise QuorumError(f"{node.id} committed {whole[at]} at {at}, not {self.committed[at]}")
        if offset > len(self.committed):
            self._check_durable(node, whole)
            self.committed = whole

    def _check_durable(self, node: Node, whole: list[Entry]) -> None:
        """What is committed for the first time has to be on the disks of a majority of the voters."""
        disks = 0
        for voter in self.voters:
            other = self.nodes[voter.id]
            durable = other.log.all()[: other.log.durable_end]
            disks += other.key != voter.key or durable[: len(whole)] == whole  # a wiped one may have had it
        if disks < self.voters.majority:
            raise QuorumError(f"{node.id} commits {len(whole)} entries that are on {disks} disks")

    def halted(self, node: Node, reason: str) -> None:
        raise QuorumError(f"{node.id} halts: {reason}")

    # ---- what happens

    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.raft is not None]

    def leader(self) -> Node | None:
        led = [node for node in self.running() if node.raft is not None and node.raft.role is Role.LEADER]
        return max(led, key=lambda node: node.raft.epoch if node.raft else 0, default=None)

    def write(self) -> None:
        for node in self.running():
            assert node.raft is not None
            if node.raft.role is Role.LEADER:
                node.append(Entry(node.raft.epoch, self.next_value()))

    def end_process(self, node: Node, power_cut: bool, restart_in: float) -> None:
        self.tell(f"{node.id} {'loses power' if power_cut else 'is killed'}")
        node.stop(power_cut)
        for other in self.running():
            if self.random.random() < 0.8:
                other.later(self.random.uniform(0.0, 0.1), partial(self._tell_dead, other, node))
        self.at(self.now + restart_in, lambda: self._restart(node))

    @staticmethod
    def _tell_dead(other: Node, node: Node) -> None:
        if node.raft is None:
            other.step(PeerDied(node.id))

    def _restart(self, node: Node) -> None:
        if node.raft is None:
            self.tell(f"{node.id} starts")
            node.start()

    def fault(self) -> None:
        draw = self.random
        kind = draw.choices(
            ["kill", "power", "all", "cut", "one-way", "heal", "pause", "stop", "snapshot", "late", "false-news"],
            [3, 4, 1, 2, 2, 3, 2, 1, 3, 1, 1],
        )[0]
        running = self.running()
        node = draw.choice(list(self.nodes.values()))
        leader = self.leader()
        if leader is not None and draw.random() < 0.5:
            node = leader
        if kind in ("kill", "power") and node.raft is not None:
            self.end_process(node, kind == "power", draw.choice((0.05, 0.5, 3.0)))
        elif kind == "all":
            for each in running:
                self.end_process(each, True, draw.uniform(0.01, 1.0))
        elif kind in ("cut", "one-way"):
            other = draw.choice([each for each in self.nodes.values() if each is not node])
            self.cut_links.add((node.id, other.id))
            if kind == "cut":
                self.cut_links.add((other.id, node.id))
        elif kind == "heal":
            self.cut_links.clear()
        elif kind == "pause":
            self.tell(f"{node.id} pauses")
            node.busy_until = self.now + draw.choice((0.5, 2.5, 6.0))
        elif kind == "late" and node.raft is not None:
            node.step(LoopWasLate(draw.choice((0.2, 1.5))))
        elif kind == "stop" and node.raft is not None:
            self.tell(f"{node.id} stops")
            node.step(Stopping())
            self.at(self.now + 0.1, lambda: node.stop(False) if node.raft is not None else None)
            self.at(self.now + 0.5, lambda: self._restart(node))
        elif kind == "false-news" and node.raft is not None:
            node.step(PeerDied(draw.choice(list(self.nodes))))
        elif kind == "snapshot" and node.raft is not None:
            self._snapshot(node)

    def _snapshot(self, node: Node) -> None:
        assert node.raft is not None
        end = min(node.raft.high_watermark, node.log.durable_end)
        if end > node.log.start_offset:
            start = self.random.randint(node.log.start_offset, end)
            node.log.take_snapshot(end, start)
            node.step(LogMoved())

    def wipe_one(self) -> None:
        """A minority of the voters may come back with empty disks."""
        node = self.nodes[self.random.choice(list(self.voters.by_id))]
        self.tell(f"{node.id} is wiped")
        if node.raft is not None:
            self.end_process(node, True, 0.5)
        node.wipe()
        self.at(self.now + self.random.uniform(0.6, 2.0), self._end_leader)  # now its vote would be asked for

    def _end_leader(self) -> None:
        leader = self.leader()
        if leader is not None:
            self.end_process(leader, False, 3.0)

    def live(self, seconds: float) -> Iterator[None]:
        """Writes and faults, one after the other."""
        end = self.now + seconds
        while self.now < end:
            self.run(self.random.expovariate(8.0))
            if self.random.random() < 0.75:
                self.write()
            else:
                self.fault()
            yield

    def heal(self, seconds: float = 20.0) -> None:
        """Nothing more happens: all have to go on, and to have the same."""
        self.tell("all is well")
        self.cut_links.clear()
        self.is_lossy = False
        for node in self.nodes.values():
            node.busy_until = 0.0
            self._restart(node)
        self.run(seconds)
        if self.leader() is None:
            raise QuorumError(f"nobody leads: {[(n.id, n.raft.role, n.raft.epoch) for n in self.running() if n.raft]}")
        self.write()
        self.run(3.0)
        for node in self.running():
            raft = node.raft
            assert raft is not None
            whole = node.log.all()
            if raft.high_watermark != len(whole) or whole != self.committed:
                raise QuorumError(
                    f"{node.id} ({raft.role.value} in {raft.epoch}) has {len(whole)} entries, "
                    f"knows {raft.high_watermark} to be committed, and {len(self.committed)} are"
                )


def run_seed(seed: int, seconds: float = 30.0) -> World:
    """One life of a quorum, of three or five voters, with all faults."""
    draw = random.Random(seed)
    world = World(seed, voters=draw.choice((3, 3, 3, 5)), observers=draw.choice((0, 1)))
    wipe_at = draw.uniform(5.0, seconds) if draw.random() < 0.4 else float("inf")
    for _ in world.live(seconds):
        if world.now > wipe_at:
            wipe_at = float("inf")
            world.wipe_one()
    world.heal()
    return world
