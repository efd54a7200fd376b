"""The cluster's metadata as the log says it is now: topics, partitions, brokers, configurations, features.

There are two of them: the machine decides by the one that has every applied record, everybody else reads the one that
has only committed records (`committed_image.py`). Partitions and brokers are immutable, so that copies share them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from duramen.machines.contract import LogRecord
from duramen.model import NO_EPOCH, NO_TOPIC_ID, TopicId, TopicPartition

NO_LEADER: Final = -1
UNASSIGNED_DIRECTORY: Final = bytes(15) + b"\1"
"""A new partition's, which no broker has chosen a directory for yet (Kafka's DirectoryId.UNASSIGNED)."""
LOST_DIRECTORY: Final = bytes(15) + b"\2"
"""One that nobody knows, and that may have the partition's log: none is made anew in another (DirectoryId.LOST)."""

BROKER_RESOURCE: Final = 4
TOPIC_RESOURCE: Final = 2
GROUP_RESOURCE: Final = 32
"""Resource types as DescribeConfigs and ConfigRecord number them (ConfigResource.Type)."""


class PartitionImage(NamedTuple):
    """One partition. Epochs only grow; node ids are in order of preference."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    directories: tuple[bytes, ...] = ()
    leader_recovery_state: int = 0

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0] if self.replicas else NO_LEADER

    def directory_of(self, node_id: int) -> TopicId:
        """Id of the log directory that this replica is in, as far as the log says."""
        place = self.replicas.index(node_id)
        return self.directories[place] if place < len(self.directories) else UNASSIGNED_DIRECTORY


@dataclass(slots=True)
class TopicImage:
    """One topic and its partitions by index."""

    name: str
    id: TopicId
    partitions: list[PartitionImage] = field(default_factory=list)

    @property
    def replication_factor(self) -> int:
        """Copies of partition 0, which Kafka reports for the topic."""
        return len(self.partitions[0].replicas) if self.partitions else 0


class Endpoint(NamedTuple):
    """Where a broker listens; security_protocol as in Kafka (0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL)."""

    name: str
    host: str
    port: int
    security_protocol: int


class BrokerImage(NamedTuple):
    """One registered broker. epoch: the offset of its last registration in the metadata log."""

    id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    fenced: bool = False
    in_controlled_shutdown: bool = False
    directories: tuple[bytes, ...] = ()
    features: tuple[tuple[str, int, int], ...] = ()

    @property
    def active(self) -> bool:
        """Whether it may lead, and be in sync."""
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener: str) -> Endpoint | None:
        """Its address on the listener of this name."""
        for endpoint in self.endpoints:
            if endpoint.name == listener:
                return endpoint
        return None


class MetadataImage:
    """Everything the metadata log holds, indexed for reading."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[TopicId, TopicImage] = {}
        self.brokers: dict[int, BrokerImage] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.features: dict[str, int] = {}
        self.carried: list[bytes] = []
        """Records that mean nothing here (Kafka's ACLs, quotas, credentials), kept for whoever reads a snapshot."""
        self.quorum: dict[int, LogRecord] = {}
        """The newest control record of each type that Kafka's quorum needs (its version, its voters), likewise kept."""
        self.next_producer_id = 0
        self.next_offset = 0
        """Offset behind the last applied record."""
        self.version = 0
        """Grows with every applied record; whoever caches a rendering of the image compares it."""
        self.partition_count = 0
        self._sorted_names: list[str] = []
        self._colliding: dict[str, list[str]] = {}

    def copy(self) -> MetadataImage:
        """An image of its own with the same content; O(topics + settings), for what is immutable is shared."""
        other = MetadataImage()
        other.topics = {name: TopicImage(name, topic.id, topic.partitions[:]) for name, topic in self.topics.items()}
        other.topics_by_id = {topic.id: topic for topic in other.topics.values()}
        other.brokers = dict(self.brokers)
        other.configs = {resource: dict(settings) for resource, settings in self.configs.items()}
        other.features = dict(self.features)
        other.carried = self.carried[:]
        other.quorum = dict(self.quorum)
        other.next_producer_id = self.next_producer_id
        other.next_offset = self.next_offset
        other.version = self.version
        other.partition_count = self.partition_count
        other._sorted_names = self._sorted_names[:]
        other._colliding = {key: names[:] for key, names in self._colliding.items()}
        return other

    # ------------------------------------------------------------------ reading

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        return self.topics_by_id.get(topic_id)

    def topic_name(self, topic_id: TopicId) -> str | None:
        """The name behind an id; None when no topic has it."""
        topic = self.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def topic_id(self, name: str) -> TopicId:
        """The id behind a name; NO_TOPIC_ID when there is no such topic."""
        topic = self.topics.get(name)
        return NO_TOPIC_ID if topic is None else topic.id

    def partition(self, tp: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]

    def names(self) -> list[str]:
        """All topic names, sorted; not to be changed by the caller."""
        return self._sorted_names

    def config(self, resource_type: int, name: str) -> dict[str, str]:
        """What was set on this resource by name; not to be changed by the caller."""
        return self.configs.get((resource_type, name), _NOTHING_SET)

    def topic_config(self, name: str) -> dict[str, str]:
        return self.configs.get((TOPIC_RESOURCE, name), _NOTHING_SET)

    def group_config(self, group_id: str) -> dict[str, str]:
        """What was set on this group; a group need not be there to have settings."""
        return self.configs.get((GROUP_RESOURCE, group_id), _NOTHING_SET)

    def broker_config(self, node_id: int | None) -> dict[str, str]:
        """Dynamic settings of one broker; of all brokers (the cluster-wide default) when None."""
        return self.configs.get((BROKER_RESOURCE, "" if node_id is None else str(node_id)), _NOTHING_SET)

    def serving_brokers(self) -> list[BrokerImage]:
        """Brokers that clients may be sent to, by ascending id. One that stops serves until nobody needs it."""
        return [self.brokers[node_id] for node_id in sorted(self.brokers) if not self.brokers[node_id].fenced]

    def active_ids(self) -> frozenset[int]:
        """Brokers that can lead and be in sync."""
        return frozenset(broker.id for broker in self.brokers.values() if broker.active)

    def leader(self, partition: PartitionImage) -> int:
        """Who leads now; NO_LEADER while the broker that the log names is fenced, or not registered.

        A fenced broker stays in the record of what nobody else can lead, and leads it again when it is back.
        """
        broker = self.brokers.get(partition.leader)
        return NO_LEADER if broker is None or broker.fenced else broker.id

    def colliding_topic(self, name: str) -> str | None:
        """A topic whose name differs only in `.` and `_`, which metric names cannot tell apart."""
        if "." not in name and "_" not in name:
            return None
        names = self._colliding.get(name.replace(".", "_"))
        return min(names) if names else None

    # ------------------------------------------------------------------ changing (apply only)

    def add_topic(self, topic: TopicImage) -> None:
        name = topic.name
        self.topics[name] = topic
        self.topics_by_id[topic.id] = topic
        insort(self._sorted_names, name)
        if "." in name or "_" in name:
            self._colliding.setdefault(name.replace(".", "_"), []).append(name)

    def remove_topic(self, topic: TopicImage) -> None:
        """Forget the topic and its configuration (Kafka's RemoveTopicRecord implies the latter)."""
        name = topic.name
        del self.topics[name]
        del self.topics_by_id[topic.id]
        del self._sorted_names[bisect_left(self._sorted_names, name)]
        self.configs.pop((TOPIC_RESOURCE, name), None)
        self.partition_count -= len(topic.partitions)
        if "." in name or "_" in name:
            key = name.replace(".", "_")
            self._colliding[key].remove(name)
            if not self._colliding[key]:
                del self._colliding[key]

    def set_config(self, resource_type: int, name: str, key: str, value: str | None) -> None:
        resource = (resource_type, name)
        if value is not None:
            self.configs.setdefault(resource, {})[key] = value
        elif resource in self.configs:
            self.configs[resource].pop(key, None)
            if not self.configs[resource]:
                del self.configs[resource]

    def start_broker(self, broker: BrokerImage) -> None:
        """Take over a registration; every partition this broker leads begins a new leader epoch.

        A restarted leader never resumes its old epoch. The one registration record says so for all its partitions,
        which keeps a start O(1) in records.
        """
        self.brokers[broker.id] = broker
        for topic in self.topics.values():
            for index, partition in enumerate(topic.partitions):
                if partition.leader == broker.id:
                    topic.partitions[index] = partition._replace(
                        leader_epoch=max(partition.leader_epoch, NO_EPOCH) + 1,
                        partition_epoch=partition.partition_epoch + 1,
                    )


_NOTHING_SET: Final[dict[str, str]] = {}
