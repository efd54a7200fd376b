"""The metadata as far as it is committed: what handlers read, and what changed for those who follow it.

A power cut can take back what is applied and not yet committed. So nobody outside the machine sees that: not a client,
not the partitions on disk, not a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.application import Application
from duramen.machines.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from duramen.model import TopicId


@dataclass(slots=True)
class Changes:
    """What committed records changed, for those who follow the image. Lists are in log order, without repetition."""

    created: list[TopicId] = field(default_factory=list)
    removed: list[tuple[str, TopicId]] = field(default_factory=list)
    partitions: list[TopicId] = field(default_factory=list)
    """Topics with partitions that are new or have another leader, epoch or replica set; created ones included."""
    topic_configs: list[str] = field(default_factory=list)
    broker_configs: list[str] = field(default_factory=list)
    """Resource names: a node id, or "" for the cluster-wide default."""
    brokers: list[int] = field(default_factory=list)


class Follower:
    """Applies committed records to an image of its own, which begins as what was loaded."""

    def __init__(self, loaded: MetadataImage) -> None:
        self.image = loaded
        self._application = Application(loaded)

    def follow(self, records: Iterable[LogRecord], end: int) -> Changes:
        """Take over records that are now committed, in log order; `end`: the offset behind them."""
        image = self.image
        created: dict[TopicId, None] = {}
        partitions: dict[TopicId, None] = {}
        configured: dict[tuple[int, str], None] = {}
        registered: dict[int, None] = {}
        removed: list[tuple[str, TopicId]] = []
        for record in records:
            kind, message = codec.decode(record)
            if kind == "RemoveTopicRecord":
                removed.append((image.topics_by_id[message.topic_id].name, message.topic_id))
            self._application.apply(kind, message)
            image.version += 1
            if kind == "TopicRecord":
                created[message.topic_id] = None
            elif kind in ("PartitionRecord", "PartitionChangeRecord"):
                partitions[message.topic_id] = None
            elif kind == "ConfigRecord":
                configured[(message.resource_type, message.resource_name)] = None
            elif kind in ("RegisterBrokerRecord", "BrokerRegistrationChangeRecord", "UnregisterBrokerRecord"):
                registered[message.broker_id] = None
                if kind == "RegisterBrokerRecord":
                    partitions.update((topic.id, None) for topic in image.topics.values())
        image.next_offset = end
        return Changes(
            created=list(created),
            removed=removed,
            partitions=list(partitions),
            topic_configs=[name for kind, name in configured if kind == TOPIC_RESOURCE],
            broker_configs=[name for kind, name in configured if kind == BROKER_RESOURCE],
            brokers=list(registered),
        )
