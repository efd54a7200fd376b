"""A broker that leads partitions with copies elsewhere, and another broker that follows it, seen from its wire."""

from __future__ import annotations

from typing import Any

from tests.worlds.broker_world import InProcess, Line

from duramen.machines.metadata.image import BrokerImage
from duramen.model import TopicPartition
from duramen.partition.replica.partition import Partition
from duramen.wire.batch import parse_header
from duramen.wire.messages import API

VERSION = 18
BROKER_EPOCH = 1000
DIRECTORY = bytes(15) + b"d"


class ReplicatedBroker(InProcess):
    """Node 1, beside which nodes 2 and 3 are registered."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for node_id in (2, 3):
            self.register(node_id)

    @property
    def image(self) -> Any:
        return self.broker.publisher.image

    def register(self, node_id: int, epoch: int = BROKER_EPOCH) -> None:
        """The metadata has this registration of another broker."""
        incarnation = node_id.to_bytes(16, "big")
        self.image.brokers[node_id] = BrokerImage(node_id, epoch, incarnation, (), directories=(DIRECTORY,))

    def partition(self, topic: str = "t", index: int = 0) -> Partition:
        return self.broker.store.partitions[TopicPartition(topic, index)]

    def replicate(
        self, topic: str = "t", index: int = 0, *, replicas: tuple[int, ...] = (1, 2, 3), isr: tuple[int, ...] = ()
    ) -> Partition:
        """The partition has copies on these nodes from now on, in another leader epoch; isr: all, if none is named."""
        partition = self.partition(topic, index)
        partitions = self.image.topic(topic).partitions
        known = partitions[index]._replace(
            replicas=replicas,
            isr=isr or replicas,
            leader_epoch=partition.leader_epoch + 1,
            partition_epoch=partitions[index].partition_epoch + 1,
            directories=(),
        )
        partitions[index] = known
        partition.lead(known.leader_epoch, known.replicas, known.isr, known.partition_epoch)
        return partition

    def copied(self, topic: str = "t", **configs: str) -> Partition:
        """A new topic with copies on all three nodes."""
        self.connect().create_topic(topic, **configs)
        return self.replicate(topic)


class Replica:
    """A follower's fetcher: its connection, its session, and what it has of each partition."""

    def __init__(self, server: ReplicatedBroker, node_id: int = 2, purpose: str = "stable") -> None:
        self.server = server
        self.node_id = node_id
        self.purpose = purpose
        self.broker_epoch = BROKER_EPOCH
        self.session_id = 0
        self.session_epoch = 0
        self.line: Line = server.connect(peer=f"10.0.0.{node_id}:7")
        self.line.client_id = f"duramen-{node_id}-{purpose}"

    def ask(self, *named: Any, wait: int = 60_000, forget: tuple[Any, ...] = (), **fields: Any) -> None:
        """Send a Fetch that names these: (partition, offset), or `place`s."""
        request = API[1].request
        topics: dict[bytes, Any] = {}
        for each in named:
            topic_id, wanted = each if isinstance(each[0], bytes) else self.place(*each)
            if topic_id not in topics:
                topics[topic_id] = request.FetchTopic(topic_id=topic_id, partitions=[])
            topics[topic_id].partitions.append(wanted)
        said: dict[str, Any] = {
            "replica_state": request.ReplicaState(replica_id=self.node_id, replica_epoch=self.broker_epoch),
            "max_wait_ms": wait,
            "min_bytes": 1,
            "session_id": self.session_id,
            "session_epoch": self.session_epoch,
            "topics": list(topics.values()),
            "forgotten_topics_data": [
                request.ForgottenTopic(topic_id=each.topic_id, partitions=[each.tp.partition]) for each in forget
            ],
        }
        self.line.ask(1, VERSION, **{**said, **fields})

    def place(self, partition: Partition, offset: int, epoch: int | None = None, **said: Any) -> tuple[bytes, Any]:
        """How a Fetch names a partition; epoch: of the last record that the follower has."""
        known = partition.log.epochs.epoch_at(offset - 1) if epoch is None else epoch
        fields = {
            "partition": partition.tp.partition,
            "current_leader_epoch": partition.leader_epoch,
            "fetch_offset": offset,
            "last_fetched_epoch": known,
            "log_start_offset": 0,
            "partition_max_bytes": 1 << 20,
            "replica_directory_id": DIRECTORY,
        }
        return partition.topic_id, API[1].request.FetchPartition(**{**fields, **said})

    def answer(self) -> Any:
        """What has been answered, None when nothing is."""
        self.server.run()
        reply = self.line.answer(1, VERSION)
        if reply is not None and reply.error_code == 0:
            self.session_id = reply.session_id
            self.session_epoch += 1
        elif reply is not None:
            self.session_id = self.session_epoch = 0
        return reply

    def told(self) -> dict[tuple[str, int], Any]:
        """What has been answered about each partition; there is an answer."""
        reply = self.answer()
        assert reply is not None, "no answer"
        assert reply.error_code == 0, reply.error_code
        names = {topic.id: topic.name for topic in self.server.image.topics.values()}
        return {
            (names.get(topic.topic_id, "?"), data.partition_index): data
            for topic in reply.responses
            for data in topic.partitions
        }

    def fetch(self, *named: Any, **fields: Any) -> dict[tuple[str, int], Any]:
        """Ask, and what was answered at once."""
        self.ask(*named, **fields)
        return self.told()


def offsets(data: Any) -> list[int]:
    """Of all records that an answer brings."""
    found: list[int] = []
    view = memoryview(data.records or b"")
    while view:
        header = parse_header(view)
        found += range(header.base_offset, header.next_offset)
        view = view[header.size :]
    return found
