"""What one node's metrics tell of the cluster: quorum, brokers, who leads, who is in sync, and how far followers are.

Names follow Kafka's of JMX: UnderReplicatedPartitions, UnderMinIsrPartitionCount, OfflinePartitionsCount,
ActiveControllerCount, FencedBrokerCount, LeaderCount, IsrShrinksPerSec, and those of its raft-metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from duramen.machines.metadata.image import NO_LEADER, PartitionImage
from duramen.model import METADATA_TOPIC, TopicId, TopicPartition
from duramen.server.metrics.scrape import FOLDED_PARTITION, FOLDED_TOPICS, pieces_of

if TYPE_CHECKING:
    from duramen.partition.metadata.publisher import MetadataPublisher
    from duramen.partition.replica.partition import Partition
    from duramen.server.api.services import Services


class ClusterChanges:
    """Counts what changes in the committed metadata: leaders, in-sync replicas, fenced brokers. Loop thread only.

    Of partitions that have a replica here, in-sync changes of those that are led here, as Kafka's leaders count them.
    """

    def __init__(self, publisher: MetadataPublisher, node_id: int) -> None:
        self._publisher = publisher
        self._node_id = node_id
        image = publisher.image
        self._known: dict[TopicId, list[PartitionImage]] = {
            topic.id: topic.partitions[:] for topic in image.topics.values()
        }
        self._fenced = {broker.id: broker.fenced for broker in image.brokers.values()}
        self.elections = 0
        self.shrinks = 0
        self.expansions = 0
        self.fencings: dict[int, int] = {}
        """By the broker's id."""
        publisher.on_leaders.append(self._leaders_changed)
        publisher.on_deleted.append(self._deleted)
        publisher.on_brokers.append(self._brokers_changed)

    def _leaders_changed(self, name: str) -> None:
        topic = self._publisher.image.topic(name)
        if topic is None:
            return
        before = self._known.get(topic.id, [])
        for old, new in zip(before, topic.partitions, strict=False):
            if old is new or self._node_id not in new.replicas:
                continue
            self.elections += new.leader not in (old.leader, NO_LEADER)
            if self._node_id in (old.leader, new.leader):
                self.shrinks += not set(old.isr) <= set(new.isr)
                self.expansions += not set(new.isr) <= set(old.isr)
        self._known[topic.id] = topic.partitions[:]

    def _deleted(self, _name: str, topic_id: TopicId) -> None:
        self._known.pop(topic_id, None)

    def _brokers_changed(self) -> None:
        now = {broker.id: broker.fenced for broker in self._publisher.image.brokers.values()}
        for node_id, fenced in now.items():
            if fenced and self._fenced.get(node_id) is False:
                self.fencings[node_id] = self.fencings.get(node_id, 0) + 1
        self._fenced = now


def cluster_families(services: Services, changes: ClusterChanges) -> Iterator[Metric]:
    """All of them, a long family in pieces."""
    yield from _quorum(services)
    yield from _brokers(services, changes)
    yield from _leaders(services, changes)
    yield from _followers(services)


def _quorum(services: Services) -> Iterator[Metric]:
    quorum = services.controller.quorum
    for name, text, value in (
        ("duramen_quorum_leader", "Node that leads the metadata quorum, as this one knows; -1 none.", quorum.leader_id),
        ("duramen_quorum_epoch", "Epoch of the quorum: each election begins a new one.", quorum.epoch),
        ("duramen_quorum_voters", "Nodes that vote.", len(tuple(quorum.voters))),
        (
            "duramen_metadata_applied_offset",
            "What is committed of the metadata log, and known here, ends there.",
            services.image.next_offset,
        ),
        ("duramen_active_controller", "1 on the node that decides about metadata.", int(services.controller.is_active)),
    ):
        yield GaugeMetricFamily(name, text, value)
    lag = GaugeMetricFamily(
        "duramen_quorum_lag_records", "Metadata that a voter or observer lacks; told by the leader.", labels=["replica"]
    )
    states = quorum.replica_states()
    end = max((state.log_end for state in states if state.id == services.node.id), default=0)
    for state in states:
        lag.add_metric([str(state.id)], max(0, end - max(0, state.log_end)))
    yield lag


def _brokers(services: Services, changes: ClusterChanges) -> Iterator[Metric]:
    brokers = services.image.brokers.values()
    yield GaugeMetricFamily("duramen_brokers", "Registered brokers.", len(brokers))
    yield GaugeMetricFamily(
        "duramen_fenced_brokers", "Of them those that are fenced.", sum(broker.fenced for broker in brokers)
    )
    fencings = CounterMetricFamily(
        "duramen_broker_fencings", "How often a broker was fenced while this node looked.", labels=["broker"]
    )
    for node_id, count in sorted(changes.fencings.items()):
        fencings.add_metric([str(node_id)], count)
    yield fencings


def _leaders(services: Services, changes: ClusterChanges) -> Iterator[Metric]:
    led = under_replicated = under_minimum = at_minimum = leaderless = 0
    present = [each for tp, each in services.store.partitions.items() if tp.topic != METADATA_TOPIC]
    for partition in present:
        replication = partition.replication
        if replication.is_leader:
            in_sync, copies = len(replication.isr), len(replication.replicas)
            led += 1
            under_replicated += in_sync < copies
            under_minimum += in_sync < replication.fewest
            at_minimum += in_sync == replication.fewest < copies
    image = services.image
    if services.controller.is_active:
        leaderless = sum(
            image.leader(each) == NO_LEADER for topic in image.topics.values() for each in topic.partitions
        )
    for name, text, value in (
        ("duramen_replicas_here", "Partitions with a replica on this node.", len(present)),
        ("duramen_led_partitions", "Of them those that it leads.", led),
        ("duramen_under_replicated_partitions", "Led here, and a replica is not in sync.", under_replicated),
        ("duramen_under_min_isr_partitions", "Led here, fewer in sync than min.insync.replicas.", under_minimum),
        ("duramen_at_min_isr_partitions", "Led here, just as many in sync as that, and not all.", at_minimum),
        (
            "duramen_leaderless_partitions",
            "Of the cluster, without a leader; told by the active controller.",
            leaderless,
        ),
    ):
        yield GaugeMetricFamily(name, text, value)
    for name, text, count in (
        ("duramen_leader_elections", "Changes of leader of partitions with a replica here.", changes.elections),
        ("duramen_isr_shrinks", "Times a replica fell out of sync with a leader here.", changes.shrinks),
        ("duramen_isr_expands", "Times a replica came back in sync with it.", changes.expansions),
    ):
        yield CounterMetricFamily(name, text, count)


def _followers(services: Services) -> Iterator[Metric]:
    """Of partitions that are led here, and have other replicas."""
    present = services.store.partitions
    led = sorted(
        tp for tp, each in present.items() if each.replication.is_leader and len(each.replication.replicas) > 1
    )
    folded: dict[str, int] = {}
    for piece in pieces_of(led):
        family = GaugeMetricFamily(
            "duramen_in_sync_replicas", "Of a partition that is led here.", labels=["topic", "partition"]
        )
        for tp, partition in _still_led(present, piece):
            in_sync = len(partition.replication.isr)
            if tp.topic in FOLDED_TOPICS:
                folded[tp.topic] = min(in_sync, folded.get(tp.topic, in_sync))
            else:
                family.add_metric([tp.topic, str(tp.partition)], in_sync)
        yield family
    labels = ["topic", "partition", "follower"]
    if folded:
        family = GaugeMetricFamily("duramen_in_sync_replicas", "", labels=labels[:2])
        for topic, fewest in folded.items():
            family.add_metric([topic, FOLDED_PARTITION], fewest)
        yield family
    text = "What a follower has not fetched of a partition that is led here."
    together: dict[tuple[str, int], int] = {}
    for piece in pieces_of(led):
        family = GaugeMetricFamily("duramen_follower_lag_records", text, labels=labels)
        for tp, partition in _still_led(present, piece):
            for node_id, lag in partition.replication.lags(partition.log_start_offset, partition.log_end_offset):
                if tp.topic in FOLDED_TOPICS:
                    together[tp.topic, node_id] = together.get((tp.topic, node_id), 0) + lag
                else:
                    family.add_metric([tp.topic, str(tp.partition), str(node_id)], lag)
        yield family
    if together:
        family = GaugeMetricFamily("duramen_follower_lag_records", text, labels=labels)
        for (topic, node_id), lag in sorted(together.items()):
            family.add_metric([topic, FOLDED_PARTITION, str(node_id)], lag)
        yield family


def _still_led(
    present: dict[TopicPartition, Partition], piece: list[TopicPartition]
) -> Iterator[tuple[TopicPartition, Partition]]:
    """Those of them that are led here now: the scrape takes many turns."""
    for tp in piece:
        partition = present.get(tp)
        if partition is not None and partition.replication.is_leader:
            yield tp, partition
