"""A new metadata log for a node whose old one is gone with the disk it was on (`duramen log repair --metadata`).

The start refuses a node without one: no topic would be known. Where it is a directory that a checkpoint names, an
ordinary repair makes it again. Where a whole disk is gone, nothing that is left names it, and it may as well be on one
that is not mounted: so the user has to say that it is lost. `partition/metadata/metadata_repair.py` describes what the
node does then.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from duramen.errors import StorageError
from duramen.model import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition, topic_id_text
from duramen.ports import Disk, Entropy
from duramen.storage.checkpoint.kafka_files import LOCK
from duramen.storage.checkpoint.loss_record import LOST_FOLDER, METADATA_RECREATED, record_loss
from duramen.storage.checkpoint.shared_cluster import refuse_shared
from duramen.storage.files.atomic import replace_file
from duramen.storage.repair.journal_reset import recover_and_stop
from duramen.storage.repair.known_logs import repairable
from duramen.storage.repair.rewrite_partition import DROPPED
from duramen.storage.segment.leader_epochs import LARGEST_EPOCH, LEADER_EPOCHS, encode_epochs, latest_epoch
from duramen.storage.segment.partition_metadata import (
    PARTITION_METADATA,
    encode_partition_metadata,
    parse_partition_name,
    partition_names,
)
from duramen.storage.segment.segment import log_name

METADATA_LOG = str(TopicPartition(METADATA_TOPIC, 0))

_A_MINUTE = 16
_SINCE_MINUTES = 26_297_280
"""1 January 2020, from 1970."""
_BEHIND_KNOWN = 1 << 20


def survey_metadata(disk: Disk, path: str) -> bool:
    """Whether the directory has to be recovered first; nothing is changed. The caller has the lock. OSError.

    StorageError where the metadata log is not gone, or `duramen log repair` makes it again, or there is nothing to know
    topics by.
    """
    refuse_shared(disk, path, "its metadata log does not begin anew")
    home = posixpath.join(path, METADATA_LOG)
    if disk.exists(home):
        raise StorageError(f"{home} is there; `duramen log repair {path}` without --metadata takes damage out of it")
    known = repairable(disk, path)
    if METADATA_LOG in known.absent(disk, path):
        raise StorageError(
            f"{home} is known to be missing: `duramen log repair {path}` without --metadata makes it again"
        )
    if not any(map(parse_partition_name, partition_names(disk, path, known.ids))):
        raise StorageError(f"{path} has no partitions; name the directory of log.dirs that has some")
    return not known.clean


def first_offset(disk: Disk, path: str, now_ms: int) -> int:
    """Where a metadata log begins that is begun anew. OSError.

    A leader epoch takes a record of its own, so those that begin behind a loss are above the log's end. How far the old
    log went nobody knows, and an epoch without records is in no file: so it begins by the clock, with 16 for each
    minute since 2020, or a million behind the latest epoch that is known in the directory.
    """
    homes = (posixpath.join(path, name) for name in disk.list_directory(path) if parse_partition_name(name))
    latest = max((latest_epoch(disk, home) for home in homes), default=-1)
    by_clock = max(0, now_ms // 60_000 - _SINCE_MINUTES) * _A_MINUTE
    return min(max(by_clock, latest + _BEHIND_KNOWN), LARGEST_EPOCH)


def make_metadata_log(disk: Disk, path: str, now_ms: int) -> int:
    """Tell the loss, and put an empty log there; the offset that it begins at. OSError; again after a crash is fine.

    The directory was stopped cleanly, and the caller has the lock.
    """
    first = first_offset(disk, path, now_ms)
    topic_id = topic_id_text(METADATA_TOPIC_ID)
    whose = {"partition": METADATA_LOG, "topic_id": topic_id}
    offsets = {"first_offset": 0, "last_offset": first - 1}
    record_loss(disk, path, [{**whose, "kind": DROPPED, **offsets, "what": METADATA_RECREATED}])
    staged = posixpath.join(path, LOST_FOLDER, f"{METADATA_LOG}.new")
    if disk.exists(staged):
        disk.remove(staged)
    disk.make_directories(staged)
    replace_file(disk, posixpath.join(staged, log_name(first)), b"")
    replace_file(disk, posixpath.join(staged, LEADER_EPOCHS), encode_epochs(()))
    replace_file(disk, posixpath.join(staged, PARTITION_METADATA), encode_partition_metadata(topic_id))
    disk.rename(staged, posixpath.join(path, METADATA_LOG))
    disk.sync_directory(posixpath.join(path, LOST_FOLDER))
    disk.sync_directory(path)
    return first


def rebuild_metadata_log(
    disk: Disk, path: str, now_ms: int, entropy: Entropy, approve: Callable[[bool], None], *, dry_run: bool = False
) -> int | None:
    """Put an empty metadata log where the old one is gone; the offset it begins at, None after a dry run.

    approve: called before anything is changed, with whether the directory has to be recovered first; may raise.
    DirectoryLockedError, StorageError, OSError.
    """
    lock = disk.lock(posixpath.join(path, LOCK))
    try:
        recovers = survey_metadata(disk, path)
        approve(recovers)
        if dry_run:
            return None
        if recovers:
            lock.release()  # recovery takes it itself
            recover_and_stop(disk, path, now_ms, entropy)
            lock = disk.lock(posixpath.join(path, LOCK))
            survey_metadata(disk, path)  # a process that had it meanwhile may have changed everything
        return make_metadata_log(disk, path, now_ms)
    finally:
        lock.release()
