"""Watches the replicas of every partition in a cluster: what must hold of them whatever happens, behind every event.

Like `quorum_watch` it looks at what processes have done, and reads their logs without a call that counts. Of each
partition it keeps what some leader has said is committed; what later leaders, and all others, have is compared with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from duramen.errors import DuramenError
from duramen.machines.metadata.image import MetadataImage, PartitionImage
from duramen.model import METADATA_TOPIC, TopicId, TopicPartition
from duramen.partition.host.replay import bytes_of
from duramen.partition.replica.partition import Partition
from duramen.server.broker import Broker
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.check.quorum_watch import READ_BYTES, CommittedBatch, quiet
from duramen.sim.world.loop import Process
from duramen.sim.world.node import SimNode
from duramen.wire.batch import batches, records

REPLICA_INVARIANTS: Final = {
    "OneLeaderAnEpoch": "an epoch of a partition is led by one process of one node",
    "ElectedHasEverything": "who leads has all that was committed before, unless a power cut took it from a page cache",
    "ReplicasEqual": "below its watermark a replica has what every other one has",
    "WatermarkNeverBack": "a process never takes back what it said is committed",
    "WatermarkWaits": "a watermark does not move while fewer are in sync than min.insync.replicas asks for",
    "InSyncHasEverything": "who is in the ISR has all that is committed",
    "OnlyDeadFencedAtOnce": "a broker that is fenced before its session has ended has no process any more",
    "LeaseEndsFirst": "a broker that is fenced for its silence has no lease by then, nor before it is back",
}
"""What is checked, by name."""

Key = tuple[TopicId, int]
State = tuple[int, bool, int, int]
"""Watermark, whether it leads, epoch, log start."""
UNSEEN: Final[State] = (-1, False, -1, 0)


class ReplicaView:
    """What was seen of one replica in one process."""

    __slots__ = ("checked", "state")

    def __init__(self) -> None:
        self.state = UNSEEN
        self.checked = 0
        """Below this offset it has what is committed."""


class BrokerView(NamedTuple):
    """What was seen of one process."""

    node: SimNode
    broker: Broker
    process: str
    replicas: dict[Key, ReplicaView]


class CommittedPartition:
    """What is committed of one partition, and who led it."""

    def __init__(self, tp: TopicPartition, *, is_compacted: bool) -> None:
        self.tp = tp
        self.is_compacted = is_compacted
        """Then a replica may have left out what a younger record replaces."""
        self.batches: list[CommittedBatch] = []
        self.firsts: list[int] = []
        self.end = 0
        self.leaders: dict[int, str] = {}
        self.isr: tuple[int, ...] = ()
        self.cuts: list[tuple[int, int]] = []
        """Where later leaders had lost its end, and their epochs: who was away has the older records until it asks."""
        self.had: dict[int, int] = {}
        """By node, where its log ended when it lost power: so far its page cache may have lacked it afterwards, also
        where its leader counts what it had said before that."""

    def add(self, batch: CommittedBatch) -> None:
        """One more batch."""
        self.batches.append(batch)
        self.firsts.append(batch.first)
        self.end = batch.end

    def may_lack(self, node_ids: Iterable[int]) -> bool:
        """Whether each of the nodes may have lost the end of what is committed with its page cache."""
        return all(self.had.get(node_id, 0) >= self.end for node_id in node_ids)

    def is_old(self, batch: CommittedBatch) -> bool:
        """Whether the batch is of what was lost."""
        epoch = int.from_bytes(batch.data[12:16], "big")
        return any(batch.end > end and epoch < later for end, later in self.cuts)

    def cut(self, end: int, epoch: int) -> None:
        """What a page cache had from `end` on is gone, as the leader of this epoch shows."""
        self.cuts.append((end, epoch))
        self.had = {node_id: min(had, end) for node_id, had in self.had.items()}
        while self.batches and self.batches[-1].end > end:
            self.batches.pop()
            self.firsts.pop()
        self.end = self.batches[-1].end if self.batches else 0

    def at(self, offset: int) -> CommittedBatch | None:
        """The batch in which the offset is."""
        place = bisect_right(self.firsts, offset) - 1
        return self.batches[place] if place >= 0 and offset < self.batches[place].end else None


class ReplicaWatch:
    """Of one world. note: writes a line of the history. states: what was reached."""

    def __init__(self, note: Callable[[str], None], states: Counter[str]) -> None:
        self.facts = 0
        self.views: dict[int, BrokerView] = {}
        self.committed: dict[Key, CommittedPartition] = {}
        self._note = note
        self._states = states
        self._power_failed = False
        self._position = 0
        """Of the latest metadata that was looked at."""
        self._silent: dict[int, int] = {}
        """Brokers that are fenced by that and have not asked for it, with their epochs."""

    def power_failed(self, node_id: int) -> None:
        """What its page cache had is gone."""
        self._power_failed = True
        view = self.views.get(node_id)
        for tp, partition in () if view is None else view.broker.store.partitions.items():
            committed = self.committed.get((partition.topic_id, tp.partition))
            if committed is not None:
                committed.had[node_id] = max(committed.had.get(node_id, 0), partition.log.end_offset)

    def attach(self, node: SimNode, broker: Broker) -> None:
        """The node's process has begun."""
        process = "" if node.process is None else node.process.name
        self.views[node.node_id] = BrokerView(node, broker, process, {})

    def said_dead(self, node_id: int, broker_epoch: int) -> None:
        """The active controller fences this process at once."""
        self.facts += 1
        view = self.views.get(node_id)
        if view is None or view.node.server is not view.broker:
            return
        if view.broker.broker_epoch == broker_epoch and not view.broker.stopping:
            raise InvariantViolated("OnlyDeadFencedAtOnce", f"{view.process} of epoch {broker_epoch} lives")

    def look_behind(self, ran: Process | None) -> None:
        """An event of this process has passed: what another one is, it was before."""
        for view in self.views.values():
            if view.node.process is ran and view.node.server is view.broker:
                self._look(view)
                if view.broker.controller.reader.position > self._position:
                    self._position = view.broker.controller.reader.position
                    self._look_at_image()
        for node_id, broker_epoch in self._silent.items():
            self._check_lease(node_id, broker_epoch)

    def _check_lease(self, node_id: int, broker_epoch: int) -> None:
        view = self.views.get(node_id)
        if view is None or view.node.server is not view.broker or view.broker.broker_epoch != broker_epoch:
            return
        self.facts += 1
        lease = view.broker.publisher.lease
        if lease is not None and lease.holds():
            self._fail("LeaseEndsFirst", f"{view.process} of epoch {broker_epoch} is fenced, and acknowledges")

    def _look(self, view: BrokerView) -> None:
        for tp, partition in view.broker.store.partitions.items():
            if tp.topic == METADATA_TOPIC:
                continue
            key = partition.topic_id, tp.partition
            replica = view.replicas.get(key)
            if replica is None:
                replica = view.replicas[key] = ReplicaView()
            replication = partition.replication
            state = (replication.high_watermark, replication.is_leader, replication.epoch, partition.log.start_offset)
            if state != replica.state:
                before, replica.state = replica.state, state
                self._changed(view, partition, replica, before)

    def _changed(self, view: BrokerView, partition: Partition, replica: ReplicaView, before: State) -> None:
        high, leads, epoch, _ = replica.state
        key = partition.topic_id, partition.tp.partition
        committed = self.committed.get(key)
        if committed is None:
            committed = self.committed[key] = CommittedPartition(
                partition.tp, is_compacted="compact" in partition.config.cleanup_policy
            )
        may_lack = not partition.is_stable and self._power_failed
        if leads and (not before[1] or before[2] != epoch):
            self._leads(view, partition, committed, epoch)
        if high < before[0]:
            if not may_lack:
                self._fail("WatermarkNeverBack", f"{view.process} {partition.tp}: {before[0]}, then {high}")
            self._states["watermark of a page cache fell"] += 1
            replica.checked = min(replica.checked, high)
        if leads and high > max(before[0], 0):
            enough = min(partition.replication.fewest, len(partition.replication.replicas))
            if before[1] and len(partition.replication.isr) < enough:
                self._fail("WatermarkWaits", f"{view.process} {partition.tp}: {high} with {partition.replication.isr}")
        if high > before[0] or leads:
            leads |= before[1]  # it moved, and was deposed, in one event
            if not leads and high > committed.end and not may_lack:
                detail = f"{view.process} {partition.tp}: its watermark is {high}, committed is {committed.end}"
                self._fail("ReplicasEqual", detail)
            before_it = committed.end
            self._compare(view, partition, committed, max(replica.checked, partition.log.start_offset), high, leads)
            replica.checked = max(replica.checked, high)
            if leads and committed.end > before_it:
                self._check_in_sync(self.latest_image(), key, committed)

    def _leads(self, view: BrokerView, partition: Partition, committed: CommittedPartition, epoch: int) -> None:
        self._note(f"{view.process} leads {partition.tp} in epoch {epoch}")
        self._states["partition led"] += 1
        self.facts += 1
        before = committed.leaders.setdefault(epoch, view.process)
        if before != view.process:
            self._fail("OneLeaderAnEpoch", f"{before} and {view.process} lead {partition.tp} in epoch {epoch}")
        if epoch < max(committed.leaders):
            self._states["led in an epoch that is over"] += 1
            return  # it has just read that it was elected, and not yet that another one was, behind it
        end = partition.log.end_offset
        if end < committed.end:
            # Where others in the ISR have it, it should have left that.
            if partition.is_stable or not committed.may_lack({view.node.node_id, *partition.replication.isr}):
                detail = f"{view.process} leads {partition.tp} to {end}, committed is {committed.end}"
                self._fail("ElectedHasEverything", detail)
            self._states["page-cache topic lost a tail"] += 1
            committed.cut(end, epoch)
        self._compare(view, partition, committed, partition.log.start_offset, min(end, committed.end), False)

    def _compare(
        self, view: BrokerView, partition: Partition, committed: CommittedPartition, start: int, end: int, leads: bool
    ) -> None:
        """What the replica has from start to end is what is committed; a leader's becomes it."""
        log, offset = partition.log, start
        lost_some = not partition.is_stable and committed.may_lack((view.node.node_id,))
        with quiet(view.node.disk):
            while offset < end:
                try:
                    found = log.read(offset, READ_BYTES, end, at_least_one=True)
                    data = memoryview(b"".join(map(bytes_of, found.parts)))
                except (OSError, DuramenError):
                    if view.node.excused:
                        return
                    raise
                before = offset
                for place, header in batches(data):
                    if header.next_offset > offset:
                        batch = CommittedBatch(
                            header.base_offset, header.next_offset, bytes(data[place : place + header.size])
                        )
                        if lost_some and header.is_control and committed.at(batch.first) not in (None, batch):
                            # What lay here is gone with a page cache, and the start has appended the marker again.
                            committed.cut(batch.first, partition.replication.epoch)
                            self._states["marker appended again"] += 1
                        self._compare_batch(view, committed, batch, leads)
                        offset = header.next_offset
                if offset <= before and committed.is_compacted:
                    return  # every record of it was replaced by a later one, behind the end
                if offset <= before:
                    self._fail("ReplicasEqual", f"{view.process} {partition.tp} has nothing at {offset} of {end}")

    def _compare_batch(
        self, view: BrokerView, committed: CommittedPartition, batch: CommittedBatch, leads: bool
    ) -> None:
        self.facts += 1
        known = committed.at(batch.first)
        if known is None and leads and batch.first >= committed.end:
            committed.add(batch)
        elif known is None or known == batch or (not leads and committed.is_old(batch)):
            return
        elif not (committed.is_compacted and _has_only(batch, known)):
            self._fail("ReplicasEqual", f"{view.process} {committed.tp} has {batch} where {known} is committed")

    def _check_in_sync(self, image: MetadataImage, key: Key, committed: CommittedPartition) -> None:
        """Whoever may be elected has what any leader said is committed."""
        found = partition_image(image, key)
        if found is None:
            return
        for node_id in found.isr:
            other, registered = self.views.get(node_id), image.brokers.get(node_id)
            if other is None or registered is None or other.node.server is not other.broker:
                continue
            if other.broker.publisher.incarnation != registered.incarnation_id:
                continue  # it may leave the ISR when it is registered
            replica = other.broker.store.partition_by_id(*key)
            if replica is None or replica.durable_end >= committed.end:
                continue
            if replica.is_stable or not committed.may_lack(found.isr):
                detail = f"{committed.tp}: {committed.end} is committed, node {node_id} ends at {replica.durable_end}"
                self._fail("InSyncHasEverything", detail)

    def _look_at_image(self) -> None:
        """Somebody has newer metadata than all had before."""
        image = self.latest_image()
        fenced = [broker for broker in image.brokers.values() if broker.fenced and not broker.in_controlled_shutdown]
        self._silent = {broker.id: broker.epoch for broker in fenced}
        for key, committed in self.committed.items():
            found = partition_image(image, key)
            if found is not None and found.isr != committed.isr:
                committed.isr = found.isr
                self._states["ISR changed"] += 1
                self._check_in_sync(image, key, committed)

    def latest_image(self) -> MetadataImage:
        """The committed metadata, as whoever is furthest has it."""
        latest = max(self.views.values(), key=lambda view: view.broker.controller.reader.position)
        return latest.broker.image

    def has_others(self, node_id: int) -> bool:
        """Whether of each partition somebody else is in the ISR."""
        topics = self.latest_image().topics.values()
        return all(set(partition.isr) != {node_id} for topic in topics for partition in topic.partitions)

    def is_out_of_sync(self, node_id: int) -> bool:
        """Whether it is in the ISR of no partition."""
        topics = self.latest_image().topics.values()
        return all(node_id not in partition.isr for topic in topics for partition in topic.partitions)

    def unsettled(self) -> str:
        """Which partition is not led, or has a replica that lacks something; empty: none."""
        image = self.latest_image()
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                why = self._lacks(image, topic.id, index, partition)
                if why:
                    return f"{topic.name}-{index} {why}"
        return ""

    def _lacks(self, image: MetadataImage, topic_id: TopicId, index: int, partition: PartitionImage) -> str:
        if set(partition.isr) != set(partition.replicas):
            return f"has {partition.isr} of {partition.replicas} in sync"
        ends = set()
        for node_id in partition.replicas:
            replica = self.views[node_id].broker.store.partition_by_id(topic_id, index)
            if replica is None:
                return f"is not open on node {node_id}"
            is_leader = image.leader(partition) == node_id
            if replica.replication.is_leader != is_leader or replica.replication.epoch != partition.leader_epoch:
                return f"is {'not ' if is_leader else ''}led by node {node_id} in {replica.replication.epoch}"
            ends |= {replica.high_watermark, replica.log_end_offset, replica.durable_end}
        return "" if len(ends) == 1 else f"has the ends {sorted(ends)}"

    def check_whole_logs(self) -> None:
        """At rest: every replica from its start to its watermark."""
        for view in self.views.values():
            for tp, partition in view.broker.store.partitions.items():
                committed = self.committed.get((partition.topic_id, tp.partition))
                if committed is not None:
                    committed.cuts.clear()  # by now everybody has asked
                    self._compare(
                        view, partition, committed, partition.log.start_offset, partition.high_watermark, False
                    )

    def _fail(self, invariant: str, detail: str) -> None:
        raise InvariantViolated(invariant, detail)


def _has_only(batch: CommittedBatch, known: CommittedBatch) -> bool:
    """Whether all records of one are in the other."""

    def content(each: CommittedBatch) -> set[tuple[int, int, bytes | None, bytes | None]]:
        found = records(memoryview(each.data), max_bytes=READ_BYTES)
        return {(record.offset, record.timestamp, record.key, record.value) for record in found}

    return content(batch) <= content(known)


def partition_image(image: MetadataImage, key: Key) -> PartitionImage | None:
    """Of the partition in the image, if it is there."""
    topic = image.topic_by_id(key[0])
    return None if topic is None or key[1] >= len(topic.partitions) else topic.partitions[key[1]]
