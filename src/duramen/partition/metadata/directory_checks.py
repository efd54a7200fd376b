"""What a start checks of all log directories together: whose they are, that each partition is in one, what is away."""

from __future__ import annotations

from collections.abc import Iterable

from duramen.config import BrokerConfig
from duramen.errors import StorageError
from duramen.machines.metadata.image import LOST_DIRECTORY, UNASSIGNED_DIRECTORY, MetadataImage, TopicImage
from duramen.model import METADATA_TOPIC, METADATA_TOPIC_ID, LogKey, TopicId, topic_id_from_text, topic_id_text
from duramen.partition.store.hosted_partitions import HostedPartitions, OfflineCause
from duramen.partition.store.store import Store
from duramen.ports import Disk
from duramen.storage import LogDirectory, known_cluster

UNKNOWN_HOME = (
    "its log is in no directory of log.dirs, and what the metadata log knew of it is lost: name the directory that has "
    "it, too, or delete the topic"
)


def check_formation(disk: Disk, config: BrokerConfig) -> None:
    """Whether a node that starts may make a cluster of its own of what it finds. StorageError where not. OSError."""
    servers = config.strings("controller.quorum.bootstrap.servers")
    metadata = config.metadata_directory
    if servers and known_cluster(disk, [metadata]) is None:
        raise StorageError(
            f"{metadata} is not formatted, and controller.quorum.bootstrap.servers={','.join(servers)} is set: a node "
            "that makes its directory itself could forget what its cluster has committed. Run `duramen cluster init`: "
            "with --standalone for a cluster of this node alone, with --initial-controllers for a new one of several. "
            "Where it had a directory that is lost, with --no-initial-controllers: with the voters of then it would "
            "vote, and have forgotten what for"
        )


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


def assign_metadata_home(store: Store, config: BrokerConfig) -> None:
    """Say which directory the metadata log is made in, and which have no other. All of them are open, in the order of
    the configuration's.

    StorageError where the log is not in the directory that metadata.log.dir names: it would begin anew.
    """
    named, data = config.metadata_directory, config.strings("log.dirs")
    key = METADATA_TOPIC_ID, 0
    for path, directory in zip(config.directories, store.directories, strict=True):
        directory.only_metadata = path not in data and not directory.logs.keys() - {key}
        if path == named:
            store.metadata_directory = directory
        elif config.string("metadata.log.dir") and key in directory.logs:
            raise StorageError(
                f"metadata.log.dir={named}, and this node's metadata log is in {path}: set metadata.log.dir={path}"
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


class ClosedDirectories:
    """Log directories that this node had and that are not open, and the partitions whose logs may be in them.

    Such a partition is offline: none is made in its place, unless others have it and count this copy as lost. So is one
    of which the image says that its directory is unknown, and others that are left out.
    directories: the open ones, a living list.
    """

    def __init__(self, directories: list[LogDirectory], hosted: HostedPartitions, node_id: int) -> None:
        self._directories = directories
        self._hosted = hosted
        self._node_id = node_id
        self.ids: tuple[TopicId, ...] = ()

    @property
    def are_missed(self) -> bool:
        """Whether there are any, and partitions without a log."""
        return bool(self.ids) and self._hosted.without_log() > 0

    def find(self, image: MetadataImage) -> None:
        """At start: while a directory of this node is not open, what is missing is no partition to be made."""
        registered = image.brokers.get(self._node_id)
        present = self.open_ids()
        self.ids = tuple(each for each in (registered.directories if registered else ()) if each not in present)
        for topic in image.topics.values():
            self.mark_missing(topic)

    def mark_missing(self, topic: TopicImage) -> None:
        """Of one topic, after `find`."""
        for index, partition in enumerate(topic.partitions):
            if self._node_id in partition.replicas and not self._is_here((topic.id, index)):
                if partition.directory_of(self._node_id) == LOST_DIRECTORY:
                    self._mark(topic.id, index, UNKNOWN_HOME)
                elif self.ids:
                    ids = ", ".join(map(topic_id_text, self.ids))
                    why = f"its log directory is not open: log.dirs lacks the one with directory.id {ids}"
                    self._mark(topic.id, index, why)

    def make_again(self, image: MetadataImage, topic: TopicImage) -> None:
        """Have made, empty, what this process's registration counts as lost, for others have it: who is not in sync may
        begin anew, and so may whom an unclean election has chosen.
        """
        registered = image.brokers[self._node_id]
        if len(image.brokers) == 1 or not set(self.ids).isdisjoint(registered.directories):
            return
        for index, partition in enumerate(topic.partitions):
            known = self._hosted.get((topic.id, index))
            if known is None or known.cause is not OfflineCause.LOG_MISSING or self._node_id not in partition.replicas:
                continue
            home = partition.directory_of(self._node_id)
            if home == UNASSIGNED_DIRECTORY or (home != LOST_DIRECTORY and self._node_id not in partition.isr):
                self._hosted.mark_creating((topic.id, index))

    def leave_out(self, topic: TopicImage, why: str) -> None:
        """None of the topic's partitions that have no log here is made."""
        for index, partition in enumerate(topic.partitions):
            if self._node_id in partition.replicas and not self._is_here((topic.id, index)):
                self._mark(topic.id, index, why)

    def _is_here(self, key: LogKey) -> bool:
        return any(key in directory.logs or key in directory.offline for directory in self._directories)

    def _mark(self, topic_id: TopicId, index: int, why: str) -> None:
        if self._hosted.get((topic_id, index)) is None or self._hosted.is_offline((topic_id, index)):
            self._hosted.mark_offline((topic_id, index), OfflineCause.LOG_MISSING, why)

    def registered_ids(self) -> tuple[TopicId, ...]:
        """What this node registers: the open directories, and the others while logs are missing."""
        return self.open_ids() + (self.ids if self._hosted.without_log() else ())

    def check(self, topic_id: TopicId, index: int) -> None:
        """StorageError for a partition that is offline and has no damaged log, of which a start says more."""
        known = self._hosted.get((topic_id, index))
        if known is not None and known.cause not in (None, OfflineCause.LOG_DAMAGED):
            raise StorageError(known.reason or "")

    def open_ids(self) -> tuple[TopicId, ...]:
        """Those of the open directories that topics are in."""
        return tuple(topic_id_from_text(each.directory_id) for each in self._directories if not each.only_metadata)
