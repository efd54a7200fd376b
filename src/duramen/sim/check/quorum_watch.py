"""Watches the nodes of a metadata quorum: what must hold whatever happens, looked at after every event.

It hears nothing but what a node has done: whom it led, what it answered, how far its log is committed, and which bytes
stand there. Its own reads of a disk are no calls of the simulation: they neither fail nor take time.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from duramen.errors import DuramenError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.image import MetadataImage
from duramen.machines.metadata.snapshot import content
from duramen.machines.raft.messages import VoteRequest, VoteResponse
from duramen.machines.raft.voters import ReplicaKey
from duramen.partition.host.replay import bytes_of
from duramen.server.broker import Broker
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.world.disk import CrashDisk
from duramen.sim.world.loop import Process
from duramen.sim.world.node import SimNode
from duramen.storage import QuorumStateFile
from duramen.wire.batch import batches, records

READ_BYTES: Final = 1 << 20

QUORUM_INVARIANTS: Final = {
    "OneLeaderAnEpoch": "an epoch of the quorum is led by one process of one node",
    "OneVoteAnEpoch": "a voter votes for one candidate an epoch, restarts between",
    "CommittedNeverChanges": "what is committed at an offset is the same bytes on every node, for ever",
    "CommittedNeverLost": "who leads has all that was committed before, and so have all in the end",
    "WatermarkNeverBack": "a process never takes back what it said is committed",
    "ImagesEqual": "two nodes that have applied the log up to the same offset have the same image",
    "AnsweredChangesInOrder": "a change that was answered is in the log, in front of those that followed it",
    "NoHaltWithoutReason": "a node stops for a reason that is true",
    "Progress": "within a bound after all is well there is one leader, who decides, and everybody has all of it",
    "NothingLeaks": "a node of which nobody asks anything keeps nothing of what was asked before",
}
"""What is checked, by name."""


class CommittedBatch(NamedTuple):
    """One batch of the log, as some node had it when it was first known to be committed."""

    first: int
    end: int
    data: bytes


class CommittedSetting(NamedTuple):
    """A ConfigRecord that is committed."""

    offset: int
    resource: str
    name: str
    value: str | None


class NodeView:
    """What was seen of one process."""

    def __init__(self, node: SimNode, broker: Broker) -> None:
        self.node = node
        self.broker = broker
        self.process = "" if node.process is None else node.process.name
        self.high_watermark = -1
        self.end = -1
        self.checked = 0
        """Below this offset its log is what is committed."""
        self.position = -1
        self.leads: tuple[int, bool] = (-1, False)
        self.halted = False


class ClusterWatch:
    """Of one world. note: writes a line of the history. states: what was reached, by name."""

    def __init__(self, note: Callable[[str], None], states: Counter[str]) -> None:
        self.facts = 0
        self.batches: list[CommittedBatch] = []
        self.settings: list[CommittedSetting] = []
        self.leaders: dict[int, str] = {}
        self.views: dict[int, NodeView] = {}
        self._note = note
        self._states = states
        self._votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self._digests: dict[int, tuple[Any, str]] = {}

    @property
    def end(self) -> int:
        """All below is committed."""
        return self.batches[-1].end if self.batches else 0

    # ---- what a process does

    def attach(self, node: SimNode, broker: Broker) -> None:
        """The node's process has opened its log and takes part in the quorum."""
        view = self.views[node.node_id] = NodeView(node, broker)
        quorum = broker.controller.quorum
        local = quorum.local
        with quiet(node.disk):
            state = QuorumStateFile(node.disk, broker.controller.partition.log.path).read()
        if state is not None:
            self._restarted(local, state.leader_epoch, ReplicaKey(state.voted_id, state.voted_directory_id))
        receive, send = quorum.received, quorum.network.send

        def received(request: Any, answer: Callable[[Any], None], via: object = None) -> None:
            def answered(response: Any) -> None:
                if isinstance(response, VoteResponse) and response.granted and not request.pre_vote:
                    self._voted(local, request.epoch, request.candidate)
                answer(response)

            receive(request, answered, via)

        def sent(to: int, endpoint: Any, request: Any, seconds: float, on_reply: Callable[[Any], None]) -> None:
            if isinstance(request, VoteRequest) and not request.pre_vote:
                self._voted(local, request.epoch, local)
            send(to, endpoint, request, seconds, on_reply)

        quorum.received = received  # type: ignore[method-assign]
        quorum.network.send = sent  # type: ignore[method-assign]
        self.look(view)

    def _voted(self, voter: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        self.facts += 1
        before = self._votes.setdefault((voter, epoch), candidate)
        if before != candidate:
            self._fail("OneVoteAnEpoch", f"{voter} voted for {before} and {candidate} in epoch {epoch}")

    def _restarted(self, voter: ReplicaKey, epoch: int, voted: ReplicaKey) -> None:
        """What the file knows at a start has to keep the voter from voting anew."""
        for (key, given), candidate in self._votes.items():
            if key == voter and (given > epoch or (given == epoch and voted != candidate)):
                self._fail("OneVoteAnEpoch", f"{voter} voted for {candidate} in {given}; its file: {epoch}, {voted}")

    # ---- what it has come to

    def look_behind(self, ran: Process | None) -> None:
        """An event of this process has passed: what another one is, it was before."""
        for view in self.views.values():
            if view.node.process is ran and view.node.server is view.broker:
                self.look(view)

    def look(self, view: NodeView) -> None:
        """Compare one process with what was seen before."""
        controller = view.broker.controller
        quorum, partition = controller.quorum, controller.partition
        if quorum.halted is not None and not view.halted:
            view.halted = True
            self._halted(view, quorum.halted)
        leads = quorum.epoch, quorum.is_leader
        if leads != view.leads:
            view.leads = leads
            if quorum.is_leader:
                self._leads(view, quorum.epoch)
        end = partition.log.end_offset
        if end < view.end:
            self._states["log cut"] += 1
        view.end = end
        if partition.high_watermark != view.high_watermark:
            if partition.high_watermark < view.high_watermark:
                self._fail("WatermarkNeverBack", f"{view.process}: {view.high_watermark}, {partition.high_watermark}")
            view.high_watermark = partition.high_watermark
            self.compare(view, view.high_watermark)
        if controller.reader.position != view.position:
            view.position = controller.reader.position
            if view.position > 0:  # before that there is what this node's own init wrote
                self._applied(view, view.broker.image)

    def _halted(self, view: NodeView, reason: str) -> None:
        self._note(f"{view.process} halts: {reason}")
        self._states["halted"] += 1
        if not (view.node.excused or view.node.given_up):
            self._fail("NoHaltWithoutReason", f"{view.process}: {reason}")
        view.node.given_up = True

    def _leads(self, view: NodeView, epoch: int) -> None:
        self._note(f"{view.process} leads epoch {epoch}")
        self._states["elected"] += 1
        self.facts += 1
        if view.broker.controller.quorum.is_sole_voter:
            # Its file is not waited for: what a power cut takes of an epoch nobody has seen, and it begins anew.
            self.leaders[epoch] = view.process
        before = self.leaders.setdefault(epoch, view.process)
        if before != view.process:
            self._fail("OneLeaderAnEpoch", f"{before} and {view.process} lead epoch {epoch}")
        if view.broker.controller.partition.log.end_offset < self.end:
            self._fail("CommittedNeverLost", f"{view.process} leads epoch {epoch}, and lacks what is committed")
        self.compare(view, self.end)

    def _applied(self, view: NodeView, image: MetadataImage) -> None:
        """Two that are at the same offset have the same image."""
        self.facts += 1
        found = digest_of(image)
        before, who = self._digests.setdefault(view.position, (found, view.process))
        if before != found:
            detail = f"at {view.position} {who} has {before}, {view.process} {found}"
            self._fail("ImagesEqual", detail)

    def compare(self, view: NodeView, end: int) -> None:
        """The node's log below `end` is what is committed, or becomes it."""
        log = view.broker.controller.partition.log
        offset = max(view.checked, log.start_offset)
        with quiet(view.node.disk):
            while offset < end:
                try:
                    found = log.read(offset, READ_BYTES, end, at_least_one=True)
                    data = memoryview(b"".join(map(bytes_of, found.parts)))
                except (OSError, DuramenError):
                    if view.node.excused:
                        return  # a full disk, say: at rest all of it is compared
                    raise
                before = offset
                for start, header in batches(data):
                    if header.base_offset >= before:
                        batch = CommittedBatch(
                            header.base_offset, header.next_offset, bytes(data[start : start + header.size])
                        )
                        self._compare_batch(view, batch)
                    offset = header.next_offset
                if offset <= before:
                    self._fail("CommittedNeverLost", f"{view.process} has nothing at {offset}, {end} is committed")
        view.checked = max(view.checked, end)

    def _compare_batch(self, view: NodeView, batch: CommittedBatch) -> None:
        self.facts += 1
        if batch.first >= self.end:
            if batch.first > self.end:
                self._fail("CommittedNeverLost", f"{view.process} goes on at {batch.first}, committed is {self.end}")
            self.batches.append(batch)
            self._keep_settings(batch)
            return
        known = self.batches[bisect_left(self.batches, (batch.first,))]
        if known != batch:
            self._fail("CommittedNeverChanges", f"{view.process} has {batch} where {known} is committed")

    def _keep_settings(self, batch: CommittedBatch) -> None:
        data = memoryview(batch.data)
        for start, header in batches(data):
            if header.is_control:
                continue
            for index, record in enumerate(records(data[start:], header, max_bytes=READ_BYTES)):
                name, message = codec.decode(LogRecord(record.key, record.value))
                if name == "ConfigRecord":
                    found = CommittedSetting(batch.first + index, message.resource_name, message.name, message.value)
                    self.settings.append(found)

    def check_whole_logs(self) -> None:
        """At rest: everybody's log from its very start, and all of what is committed."""
        for view in self.views.values():
            view.checked = 0
            if view.high_watermark < self.end:
                self._fail("CommittedNeverLost", f"{view.process} ends at {view.high_watermark}, not {self.end}")
            self.compare(view, self.end)

    def _fail(self, invariant: str, detail: str) -> None:
        raise InvariantViolated(invariant, detail)


def digest_of(image: MetadataImage) -> tuple[Any, ...]:
    """All that a snapshot of it would hold."""
    return (
        *((record.key, record.value) for record in content(image)),
        *((kind, record.key, record.value) for kind, record in sorted(image.quorum.items())),
    )


@contextlib.contextmanager
def quiet(disk: CrashDisk) -> Iterator[None]:
    """In this block calls do not count, do not fail and take no time."""
    before = disk.fault, disk.latency, disk.cut_at, disk.kill_at, disk.short_reads, disk.calls, disk.delay
    disk.fault = disk.latency = disk.cut_at = disk.kill_at = disk.short_reads = None
    try:
        yield
    finally:
        disk.fault, disk.latency, disk.cut_at, disk.kill_at, disk.short_reads, disk.calls, disk.delay = before
