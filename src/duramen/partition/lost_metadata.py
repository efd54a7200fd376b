"""What a node does where a repair took records out of the metadata log: it serves, and makes nothing worse.

A setting that is lost may have kept a topic's records from being deleted or compacted, a registration the leader
epochs from being used twice, a block of producer ids its ids. While the list of losses names the metadata log, or the
journal, nothing expires and nothing is compacted, leader epochs and producer ids begin behind what the logs know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from duramen.machines.metadata.machine import MetadataMachine
from duramen.model import FIRST_SINK_PRODUCER_ID, METADATA_TOPIC, TopicPartition
from duramen.ports import Disk
from duramen.storage.forgoing import JOURNAL
from duramen.storage.losses import LOSSES, LOST, losses

if TYPE_CHECKING:
    from duramen.partition.store import Store

_WITH_METADATA = (str(TopicPartition(METADATA_TOPIC, 0)), JOURNAL)


class LostMetadata:
    """Of one store. Without such a loss it does nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found = False

    def look(self, disk: Disk, machine: MetadataMachine, report: Callable[..., None]) -> None:
        """Before the metadata log is replayed: is such a loss on the list of a directory? OSError."""
        told = [loss for directory in self._store.directories for loss in losses(disk, directory.path)]
        self._found = any(loss.get("partition") in _WITH_METADATA for loss in told)
        if self._found:
            report("metadata-incomplete", remedy=f"look at the topics' settings, then remove {LOST}/{LOSSES}")
            machine.forgive()
            for directory in self._store.directories:
                directory.hold()

    @property
    def is_behind(self) -> bool:
        """Whether a partition is led in an epoch in which its log has records: the node has to register once more."""
        return self._found and any(
            partition.replication.is_leader and partition.replication.epoch <= partition.log.epochs.latest
            for partition in self._store.partitions.values()
            if partition.tp.topic != METADATA_TOPIC
        )

    @property
    def least_producer_id(self) -> int:
        """The first id above all that clients' producers have in the logs; 0 where the metadata log knows."""
        logs = [partition.log for partition in self._store.partitions.values()] if self._found else []
        found = (producer.id for log in logs for producer in log.producers.active())
        return max((each for each in found if each < FIRST_SINK_PRODUCER_ID), default=-1) + 1
