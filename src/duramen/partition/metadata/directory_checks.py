"""Partitions of this node that are not served: too damaged, or in a log directory that is not open."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from duramen.errors import DuramenError, KafkaError, StorageError
from duramen.machines.metadata.image import LOST_DIRECTORY, MetadataImage, TopicImage
from duramen.model import METADATA_TOPIC, METADATA_TOPIC_ID, TopicId, topic_id_from_text, topic_id_text
from duramen.partition.store.delete_partitions import RETRY_SECONDS
from duramen.ports import Clock
from duramen.storage import LogDirectory, Offline

if TYPE_CHECKING:
    from duramen.partition.store.store import Store

UNKNOWN_HOME = (
    "its log is in no directory of log.dirs, and what the metadata log knew of it is lost: name the directory that has "
    "it, too, or delete the topic"
)


def offline(directories: Iterable[LogDirectory], topic_id: TopicId, partition: int) -> Offline | None:
    """Why a partition that is on disk here is not served; None when that is not so."""
    for directory in directories:
        left = directory.offline.get((topic_id, partition))
        if left is not None:
            return left
    return None


def delete_offline(directories: Iterable[LogDirectory], unwanted: Callable[[TopicId], bool]) -> None:
    """Delete those whose topic is not wanted any more; commit afterwards."""
    for directory in directories:
        for key in [key for key in directory.offline if unwanted(key[0])]:
            directory.delete_offline(key)


class OfflineDeletions:
    """Deletes what is offline of topics that are gone; again where there is no room for that. Loop thread only."""

    def __init__(self, store: Store, clock: Clock, report: Callable[..., None]) -> None:
        self._store = store
        self._clock = clock
        self._report = report
        self._refused: set[TopicId] = set()

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left: what speaks of a deletion must stay until then."""
        return not self._refused

    def delete(self, name: str, topic_id: TopicId) -> None:
        """All partitions of the topic. What fails for another reason the next start does."""
        try:
            delete_offline(self._store.directories, lambda other: other == topic_id)
            self._store.commit_soon()
        except (OSError, DuramenError) as error:
            if topic_id not in self._refused:
                self._report("partition-not-deleted", topic=name, error=error)
            if isinstance(error, KafkaError):  # the disk or the journal has no room, and nothing was done
                self._refused.add(topic_id)
                self._clock.call_later(RETRY_SECONDS, partial(self.delete, name, topic_id))
                return
        self._refused.discard(topic_id)


def check_apart(directories: Iterable[LogDirectory]) -> None:
    """StorageError when a partition is in two directories: which of them has its records cannot be told.

    Whose directory somebody has moved to another log directory, as Kafka allows, is not missed where it was.
    """
    directories = list(directories)
    moved = {key for directory in directories for key in directory.logs}
    moved |= {key for directory in directories for key, left in directory.offline.items() if not left.absent}
    for directory in directories:
        for key in [key for key, left in directory.offline.items() if left.absent and key in moved]:
            del directory.offline[key]
    homes: dict[tuple[TopicId, int], str] = {}
    for directory in directories:
        for key in (*directory.logs, *directory.offline):
            other = homes.setdefault(key, directory.path)
            if other != directory.path:
                raise StorageError(
                    f"partition {key[1]} of the topic with id {topic_id_text(key[0])} is in {other} and in "
                    f"{directory.path}: move the one that is not to be served out of its log directory"
                )


def check_metadata(directories: Iterable[LogDirectory]) -> None:
    """StorageError when this node's metadata log is missing, and partitions are there: no topic would be known.

    Not of what a Kafka broker without the controller role left: that never had one.
    """
    found = [(key, each) for each in directories for key in each.logs]
    found += [(key, each) for each in directories for key, left in each.offline.items() if not left.absent]
    metadata_key = (METADATA_TOPIC_ID, 0)
    if any(key == metadata_key for key, _ in found):
        return
    for directory in directories:
        if metadata_key in directory.offline:
            raise directory.offline[metadata_key].error
    empty = [each.path for each in directories if not (each.logs or each.offline)]
    for (topic_id, partition), directory in found:
        if not directory.recovery.adopted:
            mounted = "".join(f"{path} is empty: is its disk mounted? " for path in empty)
            raise StorageError(
                f"this node's metadata log, {METADATA_TOPIC}-0, is in no directory of log.dirs, and {directory.path} "
                f"has partition {partition} of the topic with id {topic_id_text(topic_id)}. {mounted}"
                "Name the directory that has it, too, or put it back from a copy; where it is lost for good, "
                f"`duramen log repair {directory.path} --metadata` begins it anew"
            )


class Absence:
    """Partitions whose log may be in a directory that is not open or that failed: none is made in their place.

    So are those of which the image says that nobody knows their directory, and others that are left out.

    closed: ids of directories that this node had and that are not open. directories: the open ones, a living list.
    """

    def __init__(self, directories: list[LogDirectory]) -> None:
        self._directories = directories
        self._keys: dict[tuple[TopicId, int], str | None] = {}
        """And why, where it is not for a directory that is `closed`."""
        self.closed: tuple[TopicId, ...] = ()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, image: MetadataImage, node_id: int) -> None:
        """At start: while a directory of this node is not open, what is missing is no partition to be made."""
        registered = image.brokers.get(node_id)
        present = self._open()
        self.closed = tuple(each for each in (registered.directories if registered else ()) if each not in present)
        for topic in image.topics.values():
            self.look_for(topic, node_id)

    def look_for(self, topic: TopicImage, node_id: int) -> None:
        """Of one topic, behind `find`."""
        for index, partition in enumerate(topic.partitions):
            if node_id in partition.replicas and not self._is_here((topic.id, index)):
                if LOST_DIRECTORY in partition.directories:
                    self.add(topic.id, index, UNKNOWN_HOME)
                elif self.closed:
                    self.add(topic.id, index)

    def leave_out(self, topic: TopicImage, node_id: int, why: str) -> None:
        """None of the topic's partitions that have no log here is made."""
        for index, partition in enumerate(topic.partitions):
            if node_id in partition.replicas and not self._is_here((topic.id, index)):
                self.add(topic.id, index, why)

    def _is_here(self, key: tuple[TopicId, int]) -> bool:
        return any(key in directory.logs or key in directory.offline for directory in self._directories)

    def add(self, topic_id: TopicId, index: int, why: str | None = None) -> None:
        self._keys[topic_id, index] = why

    def remove(self, topic_id: TopicId, index: int) -> None:
        self._keys.pop((topic_id, index), None)

    def forget(self, topic_id: TopicId) -> None:
        """The topic is gone."""
        self._keys = {key: why for key, why in self._keys.items() if key[0] != topic_id}

    def directory_ids(self) -> tuple[TopicId, ...]:
        """What this node registers: the open directories, and the others while logs are missing."""
        return self._open() + (self.closed if self._keys else ())

    def check(self, topic_id: TopicId, index: int) -> None:
        """StorageError for such a partition."""
        if (topic_id, index) in self._keys:
            why = self._keys[topic_id, index]
            if why is not None:
                raise StorageError(why)
            ids = ", ".join(map(topic_id_text, self.closed))
            raise StorageError(f"its log directory is not open: log.dirs lacks the one with directory.id {ids}")

    def _open(self) -> tuple[TopicId, ...]:
        return tuple(topic_id_from_text(directory.directory_id) for directory in self._directories)
