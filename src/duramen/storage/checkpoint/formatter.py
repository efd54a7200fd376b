"""Formats log directories: whose they are, and with which voters and features their cluster begins.

What Kafka's `kafka-storage format` writes, an empty metadata log around it, and `quorum-state`, so that one that is
missing later is known to be lost. A sign in each directory says that this is under way: no start takes such a one, and
the same again completes it, with the ids that were drawn the first time.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from duramen.errors import StorageError
from duramen.model import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition, topic_id_text
from duramen.ports import DirectoryLock, Disk
from duramen.storage.checkpoint.clean_shutdown import encode_clean_shutdown
from duramen.storage.checkpoint.kafka_files import (
    CLEAN_SHUTDOWN,
    FORMATTING,
    LOCK,
    META_PROPERTIES,
    RECOVERY_POINT,
    MetaProperties,
    decode_meta,
    encode_meta,
    encode_offsets,
)
from duramen.storage.checkpoint.metadata_snapshot import SnapshotId, WriteSnapshotJob
from duramen.storage.checkpoint.quorum_state import QUORUM_STATE, QuorumState, encode_quorum_state
from duramen.storage.checkpoint.shared_cluster import SHARED_CLUSTER, mark_shared, unmark_shared
from duramen.storage.files.atomic import read_file, remove_file, replace_file
from duramen.storage.files.crc_lines import decode_lines, encode_lines
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS, encode_epochs
from duramen.storage.segment.partition_metadata import PARTITION_METADATA, encode_partition_metadata
from duramen.storage.segment.segment import log_name

BOOTSTRAP_CHECKPOINT: Final = "bootstrap.checkpoint"
FIRST_SNAPSHOT: Final = SnapshotId(0, 0)
"""Of the metadata log, with the first voters; nothing of the log is in it."""

_PARTITION = TopicPartition(METADATA_TOPIC, 0)
_LOG = str(_PARTITION)
_STAGED = f"{_LOG}.part"
_OURS = {FORMATTING, SHARED_CLUSTER, META_PROPERTIES, BOOTSTRAP_CHECKPOINT, CLEAN_SHUTDOWN, RECOVERY_POINT}
_MAY_BE_THERE = _OURS | {f"{name}.tmp" for name in _OURS} | {_LOG, _STAGED, LOCK, "lost+found"}

Batches = Callable[[], Iterator[bytearray]]


class FormattedDirectory(NamedTuple):
    """A directory that was formatted."""

    path: str
    identity: MetaProperties


def is_formatted(disk: Disk, path: str) -> bool:
    """Whether the directory was formatted, and all of it done: what was interrupted is to be completed."""
    return disk.exists(posixpath.join(path, META_PROPERTIES)) and not disk.exists(posixpath.join(path, FORMATTING))


@dataclass(slots=True)
class Formatter:
    """What to write. metadata: the one of `paths` with the metadata log. node_id: whose they are.

    cluster_id, directory_id (of `metadata`): None draws one with `new_id`, unless an earlier try did. bootstrap: the
    batches of `bootstrap.checkpoint`. voters: those of the first snapshot, by the id of the metadata directory; None
    where others are to tell. is_shared: the cluster has, or may get, other nodes.
    """

    disk: Disk
    paths: Sequence[str]
    metadata: str
    node_id: int
    cluster_id: str | None
    directory_id: str | None
    new_id: Callable[[], str]
    bootstrap: Batches
    voters: Callable[[str], Iterator[bytearray]] | None
    is_shared: bool
    _identities: dict[str, MetaProperties] = field(default_factory=dict)

    def run(self) -> list[FormattedDirectory]:
        """Format them, all of it durable on return. StorageError where one is in use or formatted already. OSError."""
        disk = self.disk
        locks: list[DirectoryLock] = []
        try:
            for path in self.paths:
                disk.make_directories(path)
                disk.sync_directory(posixpath.dirname(path.rstrip("/")) or ".")
                locks.append(disk.lock(posixpath.join(path, LOCK)))
            begun = [path for path in self.paths if disk.exists(posixpath.join(path, FORMATTING))]
            todo = [path for path in self.paths if not self._is_formatted(path, resumed=bool(begun))]
            self._choose_identities(todo)
            for path in todo:
                self._begin(path)
            for path in todo:
                self._write(path)
            for path in sorted(todo, key=lambda path: path == self.metadata):
                remove_file(disk, posixpath.join(path, FORMATTING))
                disk.sync_directory(path)
        finally:
            for lock in locks:
                lock.release()
        return [FormattedDirectory(path, self._identities[path]) for path in self.paths]

    @property
    def _whose(self) -> str:
        return "several-nodes" if self.is_shared else "one-node"

    def _is_formatted(self, path: str, *, resumed: bool) -> bool:
        """Whether an earlier try, which is gone on with, was done with this directory. StorageError: not to be done."""
        disk = self.disk
        name = posixpath.join(path, FORMATTING)
        if (content := read_file(disk, name)) is not None:
            self._identities[path] = self._resumed(name, content)
        elif (content := read_file(disk, posixpath.join(path, META_PROPERTIES))) is not None:
            found = decode_meta(content, posixpath.join(path, META_PROPERTIES))
            if not resumed:
                whose = f"{path} is formatted already, for node {found.node_id} of cluster {found.cluster_id}"
                if not disk.exists(posixpath.join(self.metadata, META_PROPERTIES)):  # lost: no start makes it anew
                    raise StorageError(f"{whose}: --set log.dirs={self.metadata} formats the metadata directory alone")
                raise StorageError(f"{whose}: start the node, or name another directory")
            self._identities[path] = found
            return True
        strangers = [each for each in disk.list_directory(path) if each not in _MAY_BE_THERE]
        if strangers or (path not in self._identities and disk.exists(posixpath.join(path, _LOG))):
            raise StorageError(f"{path} is not empty, it has {(strangers or [_LOG])[0]}: name another directory")
        return False

    def _resumed(self, name: str, content: bytes) -> MetaProperties:
        lines = decode_lines(content, f"{FORMATTING} 1 ")
        if lines is None:
            raise StorageError(f"{name} is damaged, and nothing was started on this directory: remove it")
        _, _, whose, node_id, cluster_id, directory_id = lines[0].split(" ")
        if whose != self._whose:
            raise StorageError(
                f"{posixpath.dirname(name)}: formatting was begun here for {whose}, now it is for {self._whose}; "
                f"ask for the same again, or remove {posixpath.dirname(name)}"
            )
        return MetaProperties(cluster_id, int(node_id), directory_id)

    def _choose_identities(self, todo: list[str]) -> None:
        known = list(self._identities.items())
        drawn = known[0][1].cluster_id if known else self.new_id()
        cluster_id = self.cluster_id or drawn
        for path, found in known:
            wanted = self.directory_id if path == self.metadata and self.directory_id else found.directory_id
            if found != MetaProperties(cluster_id, self.node_id, wanted):
                raise StorageError(
                    f"{path}: formatting was begun here for node {found.node_id} of cluster {found.cluster_id}, "
                    f"directory {found.directory_id}, and interrupted; ask for the same again, or remove {path}"
                )
        for path in todo:
            if path not in self._identities:
                own = self.directory_id if path == self.metadata else None
                self._identities[path] = MetaProperties(cluster_id, self.node_id, own or self.new_id())

    def _begin(self, path: str) -> None:
        """From here on no start takes the directory."""
        if self.is_shared:
            mark_shared(self.disk, path)
        identity = self._identities[path]
        line = f"{FORMATTING} 1 {self._whose} {identity.node_id} {identity.cluster_id} {identity.directory_id}"
        replace_file(self.disk, posixpath.join(path, FORMATTING), encode_lines([line]))
        if not self.is_shared:
            unmark_shared(self.disk, path)

    def _write(self, path: str) -> None:
        disk = self.disk
        replace_file(disk, posixpath.join(path, BOOTSTRAP_CHECKPOINT), b"".join(self.bootstrap()))
        if path == self.metadata:
            self._make_log(path, self._identities[path].directory_id)
        replace_file(disk, posixpath.join(path, CLEAN_SHUTDOWN), encode_clean_shutdown())
        replace_file(disk, posixpath.join(path, META_PROPERTIES), encode_meta(self._identities[path]))

    def _make_log(self, path: str, directory_id: str) -> None:
        disk = self.disk
        staged, home = posixpath.join(path, _STAGED), posixpath.join(path, _LOG)
        for each in (staged, home):
            if disk.exists(each):
                disk.remove(each)
        disk.make_directories(staged)
        replace_file(disk, posixpath.join(staged, log_name(0)), b"", durable_name=False)
        replace_file(disk, posixpath.join(staged, LEADER_EPOCHS), encode_epochs(()), durable_name=False)
        metadata = encode_partition_metadata(topic_id_text(METADATA_TOPIC_ID))
        replace_file(disk, posixpath.join(staged, PARTITION_METADATA), metadata, durable_name=False)
        state = encode_quorum_state(QuorumState(-1, 0, -1))
        replace_file(disk, posixpath.join(staged, QUORUM_STATE), state, durable_name=False)
        voters = self.voters
        if voters is not None:
            WriteSnapshotJob(disk, staged, FIRST_SNAPSHOT, lambda: voters(directory_id)).run()
        disk.sync_directory(staged)
        replace_file(disk, posixpath.join(path, RECOVERY_POINT), encode_offsets({_PARTITION: 0}))  # as behind a stop
        disk.rename(staged, home)
        disk.sync_directory(path)
