"""Files of a log directory: journal, segments, logs, checkpoints, recovery, retention, compaction, repair. Synchronous.

The names below are all that other packages may use. They are imported when they are first asked for, so that a process
loads only what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from duramen.storage.checkpoint.identity import known_cluster as known_cluster
    from duramen.storage.checkpoint.kafka_files import META_PROPERTIES as META_PROPERTIES
    from duramen.storage.checkpoint.kafka_files import decode_meta as decode_meta
    from duramen.storage.checkpoint.loss_record import BEGUN_ANEW as BEGUN_ANEW
    from duramen.storage.checkpoint.loss_record import LOSSES as LOSSES
    from duramen.storage.checkpoint.loss_record import LOST as LOST
    from duramen.storage.checkpoint.loss_record import is_listed as is_listed
    from duramen.storage.checkpoint.loss_record import losses as losses
    from duramen.storage.checkpoint.loss_record import whose_loss as whose_loss
    from duramen.storage.checkpoint.loss_record import write_down as write_down
    from duramen.storage.checkpoint.metadata_snapshot import SnapshotId as SnapshotId
    from duramen.storage.checkpoint.metadata_snapshot import WriteSnapshot as WriteSnapshot
    from duramen.storage.checkpoint.metadata_snapshot import find_snapshots as find_snapshots
    from duramen.storage.checkpoint.metadata_snapshot import last_timestamp as last_timestamp
    from duramen.storage.checkpoint.metadata_snapshot import read_snapshot as read_snapshot
    from duramen.storage.compaction.compaction_pass import CleanerSettings as CleanerSettings
    from duramen.storage.compaction.compaction_pass import CompactionPass as CompactionPass
    from duramen.storage.compaction.compaction_pass import Job as Job
    from duramen.storage.directory.log_directory import DirectorySettings as DirectorySettings
    from duramen.storage.directory.log_directory import LogDirectory as LogDirectory
    from duramen.storage.files.atomic import read_file as read_file
    from duramen.storage.files.ballast import spend as spend
    from duramen.storage.files.disk_full import NoRoomError as NoRoomError
    from duramen.storage.files.disk_full import is_no_room as is_no_room
    from duramen.storage.files.disk_full import to_keep as to_keep
    from duramen.storage.files.disk_full import told as told
    from duramen.storage.files.entropy import SystemEntropy as SystemEntropy
    from duramen.storage.files.os_disk import RealDisk as RealDisk
    from duramen.storage.files.parallel import side_by_side as side_by_side
    from duramen.storage.files.read_buffers import SPAN_BYTES as SPAN_BYTES
    from duramen.storage.journal.journal import Group as Group
    from duramen.storage.journal.ring import Growth as Growth
    from duramen.storage.log.create import NewLog as NewLog
    from duramen.storage.log.leases import NEVER as NEVER
    from duramen.storage.log.leases import Lease as Lease
    from duramen.storage.log.log import COPIED_BYTES as COPIED_BYTES
    from duramen.storage.log.log import Log as Log
    from duramen.storage.log.offline import Offline as Offline
    from duramen.storage.log.retention import Removal as Removal
    from duramen.storage.log.retention import RemoveFiles as RemoveFiles
    from duramen.storage.log.segment_layout import Outline as Outline
    from duramen.storage.read.read_plan import Pending as Pending
    from duramen.storage.read.timestamp_lookup import TimeLookup as TimeLookup
    from duramen.storage.read.timestamp_lookup import Timestamped as Timestamped
    from duramen.storage.read.timestamp_lookup import look_through as look_through
    from duramen.storage.read.verified_window import Recall as Recall
    from duramen.storage.recovery.open_partition import IN_THE_WAY as IN_THE_WAY
    from duramen.storage.repair.journal_reset import JOURNAL as JOURNAL
    from duramen.storage.repair.rewrite_partition import DROPPED as DROPPED
    from duramen.storage.segment.corruption import Damage as Damage
    from duramen.storage.segment.corruption import damage_of as damage_of
    from duramen.storage.segment.corruption import remedy_of as remedy_of
    from duramen.storage.segment.corruption import unreadable as unreadable
    from duramen.storage.segment.corruption import way_out as way_out
    from duramen.storage.segment.leader_epochs import LARGEST_EPOCH as LARGEST_EPOCH
    from duramen.storage.segment.leader_epochs import latest_epoch as latest_epoch
    from duramen.storage.segment.producer_state import ProducerStates as ProducerStates

_PLACES: Final = {
    "checkpoint.kafka_files": (
        "META_PROPERTIES",
        "decode_meta",
    ),
    "checkpoint.loss_record": (
        "BEGUN_ANEW",
        "LOSSES",
        "LOST",
        "is_listed",
        "losses",
        "whose_loss",
        "write_down",
    ),
    "checkpoint.identity": ("known_cluster",),
    "checkpoint.metadata_snapshot": (
        "SnapshotId",
        "WriteSnapshot",
        "find_snapshots",
        "last_timestamp",
        "read_snapshot",
    ),
    "compaction.compaction_pass": (
        "CleanerSettings",
        "CompactionPass",
        "Job",
    ),
    "directory.log_directory": (
        "DirectorySettings",
        "LogDirectory",
    ),
    "files.atomic": ("read_file",),
    "files.ballast": ("spend",),
    "files.disk_full": (
        "NoRoomError",
        "is_no_room",
        "to_keep",
        "told",
    ),
    "files.entropy": ("SystemEntropy",),
    "files.os_disk": ("RealDisk",),
    "files.parallel": ("side_by_side",),
    "files.read_buffers": ("SPAN_BYTES",),
    "journal.journal": ("Group",),
    "journal.ring": ("Growth",),
    "log.create": ("NewLog",),
    "log.leases": (
        "Lease",
        "NEVER",
    ),
    "log.log": (
        "COPIED_BYTES",
        "Log",
    ),
    "log.offline": ("Offline",),
    "log.retention": (
        "Removal",
        "RemoveFiles",
    ),
    "log.segment_layout": ("Outline",),
    "read.read_plan": ("Pending",),
    "read.timestamp_lookup": (
        "TimeLookup",
        "Timestamped",
        "look_through",
    ),
    "read.verified_window": ("Recall",),
    "recovery.open_partition": ("IN_THE_WAY",),
    "repair.journal_reset": ("JOURNAL",),
    "repair.rewrite_partition": ("DROPPED",),
    "segment.corruption": (
        "Damage",
        "damage_of",
        "remedy_of",
        "unreadable",
        "way_out",
    ),
    "segment.leader_epochs": (
        "LARGEST_EPOCH",
        "latest_epoch",
    ),
    "segment.producer_state": ("ProducerStates",),
}
"""Module below this package → the names that others use of it."""
_MODULE_OF: Final = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"duramen.storage has no {name!r}")
    value = getattr(import_module(f"duramen.storage.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
