"""One look at a cluster: nodes, topics, groups, damage. Looks that go on beside who shows them, whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import NamedTuple

import click
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from duramen.cli.commands import damage
from duramen.cli.commands.group import GroupPosition, group_positions, lag_of
from duramen.cli.shared.connection import ClusterAccess, call, ends_of, failed, internal_topics, wait
from duramen.cli.shared.group_look import state_names
from duramen.cli.shared.node_look import KnownNode, look_at_nodes
from duramen.cli.shared.output import human_bytes, plural
from duramen.cli.shared.quorum_look import QuorumAnswer, look_at_quorum, replicas_of
from duramen.cli.shared.settings import fewest_in_sync, topic_resource
from duramen.cli.shared.sizes import sizes_of
from duramen.errors import DuramenError

PATIENCE_SECONDS = 5.0
"""For a look, at first, while the node can be reached; then it is made anew, and twice as long."""

_QUORUM_SECONDS = 1.0
"""For a controller to answer."""
_SILENT_SECONDS = 5.0
"""For the groups, while a node does not answer that may have some."""
_NAMES_SHOWN = 3

_ERRORS = (KafkaException, DuramenError, OSError, RuntimeError, ValueError)
"""What comes out of the client libraries where a node goes away under them."""


class PartitionStatus(NamedTuple):
    """One partition; without a leader and offsets where it is offline. bytes: of all copies, None where not known."""

    partition: int
    leader: int | None
    start_offset: int | None
    end_offset: int | None
    bytes: int | None
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()


class TopicStatus(NamedTuple):
    """One topic; rate is records a second since the last look, None at the first. lag: of the group that has most.

    fewest_in_sync: min.insync.replicas, asked for where some replica is not in sync.
    """

    topic: str
    partitions: tuple[PartitionStatus, ...]
    rate: float | None
    lag: int | None
    fewest_in_sync: int | None = None

    @property
    def records(self) -> int:
        """In the partitions that are online."""
        return sum((part.end_offset or 0) - (part.start_offset or 0) for part in self.partitions)

    @property
    def end_offsets(self) -> int:
        """All of them together: how many records were ever written."""
        return sum(part.end_offset or 0 for part in self.partitions)

    @property
    def offline(self) -> int:
        """Partitions that are."""
        return sum(part.end_offset is None for part in self.partitions)

    @property
    def under_replicated(self) -> int:
        """Partitions of which a replica is not in sync."""
        return sum(len(part.isr) < len(part.replicas) for part in self.partitions)

    @property
    def under_min_isr(self) -> int:
        """Partitions that take no acks=all, for too few replicas are in sync."""
        return sum(len(part.isr) < (self.fewest_in_sync or 0) for part in self.partitions)

    @property
    def bytes(self) -> int | None:
        """Of all partitions; None where they are not known."""
        known = [part.bytes for part in self.partitions if part.bytes is not None]
        return sum(known) if known else None


class GroupStatus(NamedTuple):
    """One group, and where it is in each partition."""

    group: str
    state: str
    members: int
    lag: int | None
    positions: tuple[GroupPosition, ...]


class Status(NamedTuple):
    """What one look at the cluster found. taken: on the clock that only runs forward, told: on that of the wall.

    groups_trouble, bytes_trouble: why there are none in it, although there may be some. quorum: None where nobody
    leads it, or that cannot be asked.
    """

    cluster_id: str
    controller: int
    nodes: list[KnownNode]
    topics: list[TopicStatus]
    groups: list[GroupStatus]
    groups_trouble: str | None
    bytes_trouble: str | None
    damage: list[damage.NodeDamage]
    taken: float
    told: float
    quorum: QuorumAnswer | None = None


def headline(status: Status) -> str:
    """Two lines about the whole of it."""
    records = plural(sum(topic.records for topic in status.topics), "record")
    groups = plural(len(status.groups), "group") if status.groups_trouble is None else status.groups_trouble
    sizes = [topic.bytes for topic in status.topics if topic.bytes is not None]
    size = f", {human_bytes(sum(sizes))}" if sizes else ""
    first = f"cluster {status.cluster_id or '?'}, controller {status.controller}"
    if len(status.nodes) == 1:
        node = status.nodes[0]
        first += f", nodes {node.id} ({node.host}:{node.port})"
    elif status.quorum is not None:
        first += f", epoch {status.quorum.leader_epoch}"
    nodes = f"{plural(len(status.nodes), 'node')}, " if len(status.nodes) > 1 else ""
    return f"{first}\n{nodes}{plural(len(status.topics), 'topic')}, {records}{size}, {groups}"


def attention(status: Status) -> list[str]:
    """What is wrong with nodes and replicas: who does not answer, what is not in sync, what nobody leads."""
    lines = []
    for node in status.nodes:
        if node.trouble is not None:
            lines.append(f"{node} does not answer: {node.trouble}")
        elif node.fenced:
            lines.append(f"{node} is fenced: it answers, and no controller hears its heartbeats")
    told = [node for node in status.nodes if node.trouble is None]
    if len(status.nodes) > 1 and status.quorum is None and told:
        lines.append("nobody leads the quorum, or it cannot be asked: `duramen cluster status`")
    if status.quorum is not None:
        present = replicas_of(status.quorum)
        lines += [
            f"node {each.id} does not vote in the metadata quorum: its metadata directory is not the voter's"
            for each in status.quorum.voters
            if not present[each.id][1]
        ]
    lines += [
        f"{each.topic}: {each.offline} of {plural(len(each.partitions), 'partition')} offline"
        for each in status.topics
        if each.offline
    ]
    for count, what in (
        ("under_min_isr", "with fewer in sync than min.insync.replicas: acks=all is refused"),
        ("under_replicated", "under-replicated"),
    ):
        ill = [each.topic for each in status.topics if getattr(each, count)]
        if ill:
            partitions = plural(sum(getattr(each, count) for each in status.topics), "partition")
            names = ", ".join(ill[:_NAMES_SHOWN]) + (", ..." if len(ill) > _NAMES_SHOWN else "")
            lines.append(f"{partitions} {what} ({names})")
    return lines


def look(cluster: ClusterAccess, admin: AdminClient, before: Status | None) -> Status:
    """The cluster's state now; rates are relative to `before`."""
    nodes = look_at_nodes(cluster)
    silent = {node.id for node in nodes if node.trouble is not None}
    metadata = call(cluster, "cannot read the metadata", lambda: admin.list_topics(timeout=cluster.timeout))
    told = wait(cluster, "cannot describe the cluster", admin.describe_cluster(request_timeout=cluster.timeout))
    if not nodes:
        nodes = [KnownNode(node.id, node.host, node.port) for node in sorted(told.nodes, key=lambda node: node.id)]
    quorum = _quorum(cluster, nodes)
    names = sorted(metadata.topics.keys() - internal_topics(cluster, admin, metadata.topics))
    led = [
        (name, partition)
        for name in names
        for partition, state in sorted(metadata.topics[name].partitions.items())
        if state.leader >= 0 and state.leader not in silent
    ]
    deleted: set[tuple[str, int]] = set()  # since the names were read
    online = ends_of(cluster, admin, led, deleted)
    names = [name for name in names if (name, 0) not in deleted]
    taken = time.monotonic()
    sizes = sizes_of(cluster, [node for node in nodes if node.trouble is None])
    # Until a node that is gone is fenced, the client library waits for it.
    groups, trouble = _groups(
        cluster._replace(timeout=min(cluster.timeout, _SILENT_SECONDS)) if silent else cluster, admin
    )
    lags = _lags(groups)
    earlier = {} if before is None else {topic.topic: topic.end_offsets for topic in before.topics}
    topics = []
    for name in names:
        partitions = []
        for number, state in sorted(metadata.topics[name].partitions.items()):
            start, end = online.get((name, number), (None, None))
            leader = state.leader if state.leader >= 0 else None
            copies = tuple(state.replicas), tuple(state.isrs)
            partitions.append(PartitionStatus(number, leader, start, end, sizes.of(name, number), *copies))
        topic = TopicStatus(name, tuple(partitions), None, lags.get(name))
        if before is not None and name in earlier:
            written = topic.end_offsets - earlier[name]
            topic = topic._replace(rate=max(0.0, written / max(taken - before.taken, 0.001)))
        topics.append(topic)
    fewest = _fewest_in_sync(cluster, admin, [topic for topic in topics if topic.under_replicated])
    controller = told.controller.id if told.controller else -1
    return Status(
        told.cluster_id or "",
        controller if quorum is None else quorum.leader_id,
        nodes,
        [topic._replace(fewest_in_sync=fewest.get(topic.topic)) for topic in topics],
        groups,
        trouble,
        sizes.trouble,
        damage.ask_nodes(cluster, nodes) if cluster.is_plaintext else [],
        taken,
        time.time(),
        quorum,
    )


def _quorum(cluster: ClusterAccess, nodes: Iterable[KnownNode]) -> QuorumAnswer | None:
    """What the leader of the metadata quorum says; None where nobody leads, or nobody can be asked."""
    places = [node.address for node in nodes if node.trouble is None]
    return look_at_quorum(places, _QUORUM_SECONDS).leader if cluster.is_plaintext and places else None


def _fewest_in_sync(cluster: ClusterAccess, admin: AdminClient, topics: list[TopicStatus]) -> dict[str, int]:
    """min.insync.replicas of these topics, as far as they are told."""
    if not topics:
        return {}
    copies = {topic.topic: max(len(part.replicas) for part in topic.partitions) for topic in topics}
    resources = [topic_resource(name) for name in copies]
    told = call(cluster, "cannot describe", lambda: admin.describe_configs(resources, request_timeout=cluster.timeout))
    return {
        resource.name: fewest_in_sync(future.result().values(), copies[resource.name])
        for resource, future in told.items()
        if failed(cluster, resource.name, future) is None
    }


def _groups(cluster: ClusterAccess, admin: AdminClient) -> tuple[list[GroupStatus], str | None]:
    """The groups, or why they cannot be told: whoever looks for what is wrong has to see the rest all the same."""
    try:
        found = group_positions(cluster, admin)
        states = state_names(cluster, [group for group, _ in found])
        return [
            GroupStatus(group.group_id, states[group.group_id], len(group.members), lag_of(positions), tuple(positions))
            for group, positions in found
        ], None
    except click.ClickException as error:
        return [], error.message


def _lags(groups: Iterable[GroupStatus]) -> dict[str, int]:
    """The largest lag of a group in each topic."""
    found: dict[str, int] = {}
    for group in groups:
        for topic in {position.topic for position in group.positions}:
            lag = lag_of(position for position in group.positions if position.topic == topic)
            if lag is not None:
                found[topic] = max(lag, found.get(topic, 0))
    return found


class Looks:
    """Looks at the cluster again and again, on a thread of its own, also while nobody answers.

    The client library keeps what it knew of a node that was killed: after a look that failed it is made anew.
    """

    def __init__(self, cluster: ClusterAccess, admin: AdminClient, status: Status, interval: float) -> None:
        self._cluster = cluster
        self._admin: AdminClient | None = admin
        self._interval = interval
        self._patience = PATIENCE_SECONDS
        self.status = status
        self.trouble: str | None = None
        """Why the last look found nothing."""

    def start(self, *, forever: Callable[[], bool] = lambda: True) -> None:
        """Begin, and go on for as long as this is so, and the process lives."""
        threading.Thread(target=self._run, args=[forever], name="looks", daemon=True).start()

    def away(self, now: float) -> str | None:
        """Since when nothing is known, and why, where that is longer than looks take. now: on the wall's clock."""
        seconds = now - self.status.told
        if self.trouble is None and seconds < self._interval + self._patience:
            return None
        since = time.strftime("%H:%M:%S", time.localtime(self.status.told))
        why, _, _ = (self.trouble or "the node does not answer").partition(". ")
        return f"no answer since {since} ({seconds:.0f} s): {why.rstrip('.')}"

    def _run(self, forever: Callable[[], bool]) -> None:
        while forever():
            time.sleep(self._interval)
            self.again()

    def again(self) -> None:
        """One more look, whatever comes of it."""
        try:
            self._admin, self.status = self._look()
        except click.ClickException as error:
            self._admin, self.trouble = None, error.message
        except _ERRORS as error:
            self._admin, self.trouble = None, str(error) or type(error).__name__
        else:
            self.trouble = None
            self._patience = PATIENCE_SECONDS
            if self.status.groups_trouble is not None:  # it may look for them where they were
                self._admin = None

    def _look(self) -> tuple[AdminClient, Status]:
        """A look that is given up as soon as the node is gone: the library would wait for its time-outs."""
        results: SimpleQueue[tuple[AdminClient, Status] | Exception] = SimpleQueue()
        before, known = self.status, self._admin

        def work() -> None:
            try:
                admin = known or self._cluster.admin()
                results.put((admin, look(self._cluster, admin, before)))
            except (click.ClickException, *_ERRORS) as error:
                results.put(error)

        self._cluster.probe()
        threading.Thread(target=work, name="look", daemon=True).start()
        until = time.monotonic() + self._patience
        while True:
            try:
                found = results.get(timeout=min(1.0, self._patience))
            except Empty:
                self._cluster.probe()
                if time.monotonic() > until:
                    self._patience = min(2 * self._patience, max(self._cluster.patience, PATIENCE_SECONDS))
                    raise click.ClickException("the node takes connections and does not answer in time") from None
                continue
            if isinstance(found, Exception):
                raise found
            return found
