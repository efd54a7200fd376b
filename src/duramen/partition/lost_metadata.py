"""What a node does where a repair took records out of the metadata log: it serves, and makes nothing worse.

A setting that is lost may have kept a topic's records from being deleted or compacted, a registration the leader
epochs from being used twice, a block of producer ids its ids. While the list of losses names the metadata log, or the
journal, nothing expires and nothing is compacted, leader epochs and producer ids begin behind what the logs know.
A topic that is lost has its name and id in its partitions' directories: it is known again, and keeps its records for
ever until somebody says otherwise.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from duramen.errors import DuramenError
from duramen.machines.metadata.commands import LostTopic, RegainTopics
from duramen.machines.metadata.image import TopicImage
from duramen.machines.metadata.machine import MetadataMachine
from duramen.model import (
    FIRST_SINK_PRODUCER_ID,
    METADATA_TOPIC,
    OFFSETS_TOPIC,
    SINK_TOPICS,
    TopicId,
    TopicPartition,
    topic_id_text,
)
from duramen.ports import Disk
from duramen.storage.checkpoints import LEADER_EPOCHS, read_epochs
from duramen.storage.forgoing import JOURNAL
from duramen.storage.losses import LOSSES, LOST, losses

if TYPE_CHECKING:
    from duramen.partition.host import Host
    from duramen.partition.store import Store

Settings = tuple[tuple[str, str | None], ...]

KEPT: Final[Settings] = (("retention.ms", "-1"), ("retention.bytes", "-1"))
"""Settings of a topic whose own are lost."""

_MADE_WITH_SETTINGS: Final = (OFFSETS_TOPIC, *SINK_TOPICS)
_WITH_METADATA = (str(TopicPartition(METADATA_TOPIC, 0)), JOURNAL)


def told(topic: TopicImage) -> dict[str, Any]:
    """What a report says of a topic that is new."""
    return {"topic": topic.name, "id": topic_id_text(topic.id), "partitions": len(topic.partitions)}


class LostMetadata:
    """Of one store. Without such a loss it does nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.found = False
        """Whether there is such a loss."""
        self.regained: set[TopicId] = set()
        """Topics that are about to be known again."""

    def look(self, disk: Disk, machine: MetadataMachine, report: Callable[..., None]) -> None:
        """Before the metadata log is replayed: is such a loss on the list of a directory? OSError."""
        self._disk, self._report = disk, report
        told = [loss for directory in self._store.directories for loss in losses(disk, directory.path)]
        self.found = any(loss.get("partition") in _WITH_METADATA for loss in told)
        if self.found:
            report("metadata-incomplete", remedy=f"look at the topics' settings, then remove {LOST}/{LOSSES}")
            machine.forgive()
            for directory in self._store.directories:
                directory.hold()

    def regain(self, host: Host, machine: MetadataMachine, node_id: int, made_with: Callable[[str], Settings]) -> None:
        """Topics, or partitions of them, that logs on disk name and the machine, which is loaded, does not know.

        made_with: settings of topics that are made with some. OSError.
        """
        lost = self._topics(machine)
        if not lost:
            return
        wanted = [
            each._replace(configs=made_with(each.name) if each.name in _MADE_WITH_SETTINGS else KEPT) for each in lost
        ]
        self.regained.update(each.topic_id for each in lost)

        def answered(answer: Any) -> None:
            for each in lost:
                if isinstance(answer, DuramenError) or each.topic_id not in answer:
                    self._report("log-of-unknown-topic", topic=each.name, id=topic_id_text(each.topic_id))

        host.submit(RegainTopics(node_id, tuple(wanted)), answered)

    def is_back(self, topic: TopicImage) -> bool:
        """Whether the topic, whose records are committed, is one of those; tells it once."""
        if topic.id not in self.regained:
            return False
        self.regained.discard(topic.id)
        self._report("topic-regained", **told(topic))
        return True

    def _topics(self, machine: MetadataMachine) -> list[LostTopic]:
        """Not what the log says was deleted. OSError."""
        logs: dict[TopicId, dict[TopicPartition, int]] = {}
        for directory in self._store.directories if self.found else ():
            for (topic_id, _), log in directory.logs.items():
                logs.setdefault(topic_id, {})[log.tp] = log.epochs.latest
            for (topic_id, _), left in directory.offline.items():
                known = read_epochs(self._disk, posixpath.join(left.path, LEADER_EPOCHS)) or ()
                logs.setdefault(topic_id, {})[left.tp] = max((epoch for epoch, _ in known), default=0)
        lost = []
        for topic_id, partitions in logs.items():
            topic = machine.image.topic_by_id(topic_id)
            name, count = max((tp.topic, tp.partition + 1) for tp in partitions)
            if name == METADATA_TOPIC or topic_id in machine.removed:
                continue
            if topic is None or len(topic.partitions) < count:
                epochs = (max(partitions.get(TopicPartition(name, index), 0), 0) for index in range(count))
                lost.append(LostTopic(name, topic_id, tuple(epochs)))
        return lost

    @property
    def is_behind(self) -> bool:
        """Whether a partition is led in an epoch in which its log has records: the node has to register once more."""
        return self.found and any(
            partition.replication.is_leader and partition.replication.epoch <= partition.log.epochs.latest
            for partition in self._store.partitions.values()
            if partition.tp.topic != METADATA_TOPIC
        )

    @property
    def least_producer_id(self) -> int:
        """The first id above all that clients' producers have in the logs; 0 where the metadata log knows."""
        logs = [partition.log for partition in self._store.partitions.values()] if self.found else []
        found = (producer.id for log in logs for producer in log.producers.active())
        return max((each for each in found if each < FIRST_SINK_PRODUCER_ID), default=-1) + 1
