"""What an unclean stop leaves in doubt: page-cache topics whose last in-sync replica this node is (KIP-966)."""

from __future__ import annotations

from typing import Final

from duramen.model import TopicPartition
from duramen.partition.metadata.publisher import MetadataPublisher
from duramen.storage import LogDirectory

UNCLEAN: Final = -1


def previous_epoch(directories: list[LogDirectory]) -> int:
    """The broker epoch that all directories name: its process closed them cleanly; UNCLEAN where one differs."""
    epochs = {directory.stopped_epoch for directory in directories}
    return epochs.pop() if len(epochs) == 1 else UNCLEAN


def in_doubt(publisher: MetadataPublisher, node_id: int) -> list[TopicPartition]:
    """Partitions that others have copies of, and only this node led or followed in sync.

    It leads them again, for nobody has more; what a power cut took of them is gone, whoever had acknowledged it.
    """
    return [
        TopicPartition(topic.name, index)
        for topic in publisher.image.topics.values()
        if publisher.topic_config(topic.name).durability == "page-cache"
        for index, partition in enumerate(topic.partitions)
        if partition.isr == (node_id,) and len(partition.replicas) > 1
    ]
