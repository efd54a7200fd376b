"""Files of a log directory: journal, segments, logs, checkpoints, recovery, retention, compaction, repair. Synchronous.

The names below are all that other packages may use. They are imported when they are first asked for, so that a process
loads only what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from duramen.storage.checkpoint.formatter import FormattedDirectory as FormattedDirectory
    from duramen.storage.checkpoint.formatter import Formatter as Formatter
    from duramen.storage.checkpoint.formatter import is_formatted as is_formatted
    from duramen.storage.checkpoint.identity import known_cluster as known_cluster
    from duramen.storage.checkpoint.kafka_files import META_PROPERTIES as META_PROPERTIES
    from duramen.storage.checkpoint.kafka_files import decode_meta as decode_meta
    from duramen.storage.checkpoint.loss_record import LOSS_RECORD as LOSS_RECORD
    from duramen.storage.checkpoint.loss_record import LOST_FOLDER as LOST_FOLDER
    from duramen.storage.checkpoint.loss_record import METADATA_RECREATED as METADATA_RECREATED
    from duramen.storage.checkpoint.loss_record import is_loss_recorded as is_loss_recorded
    from duramen.storage.checkpoint.loss_record import loss_owner as loss_owner
    from duramen.storage.checkpoint.loss_record import read_losses as read_losses
    from duramen.storage.checkpoint.loss_record import record_loss as record_loss
    from duramen.storage.checkpoint.metadata_snapshot import SnapshotId as SnapshotId
    from duramen.storage.checkpoint.metadata_snapshot import WriteSnapshotJob as WriteSnapshotJob
    from duramen.storage.checkpoint.metadata_snapshot import find_snapshots as find_snapshots
    from duramen.storage.checkpoint.metadata_snapshot import last_timestamp as last_timestamp
    from duramen.storage.checkpoint.metadata_snapshot import read_snapshot as read_snapshot
    from duramen.storage.checkpoint.quorum_state import QUORUM_STATE_LANE as QUORUM_STATE_LANE
    from duramen.storage.checkpoint.quorum_state import REMEDY_OF_QUORUM_STATE as REMEDY_OF_QUORUM_STATE
    from duramen.storage.checkpoint.quorum_state import QuorumState as QuorumState
    from duramen.storage.checkpoint.quorum_state import QuorumStateFile as QuorumStateFile
    from duramen.storage.checkpoint.quorum_state import WriteQuorumStateJob as WriteQuorumStateJob
    from duramen.storage.checkpoint.scrub_progress import NO_KEY as NO_KEY
    from duramen.storage.checkpoint.shared_cluster import SHARED_CLUSTER as SHARED_CLUSTER
    from duramen.storage.checkpoint.shared_cluster import is_shared as is_shared
    from duramen.storage.checkpoint.shared_cluster import mark_shared as mark_shared
    from duramen.storage.checkpoint.shared_cluster import spread_sign as spread_sign
    from duramen.storage.checkpoint.snapshot_part import SnapshotPart as SnapshotPart
    from duramen.storage.checkpoint.snapshot_part import read_piece as read_piece
    from duramen.storage.compaction.compaction_pass import CleanerSettings as CleanerSettings
    from duramen.storage.compaction.compaction_pass import CompactionJob as CompactionJob
    from duramen.storage.compaction.compaction_pass import CompactionPass as CompactionPass
    from duramen.storage.directory.housekeeping import HousekeepingJob as HousekeepingJob
    from duramen.storage.directory.log_directory import DirectorySettings as DirectorySettings
    from duramen.storage.directory.log_directory import LogDirectory as LogDirectory
    from duramen.storage.directory.scrubber import Scrubber as Scrubber
    from duramen.storage.files.atomic import read_file as read_file
    from duramen.storage.files.ballast import release_ballast as release_ballast
    from duramen.storage.files.disk_full import NoRoomError as NoRoomError
    from duramen.storage.files.disk_full import as_disk_full as as_disk_full
    from duramen.storage.files.disk_full import is_disk_full as is_disk_full
    from duramen.storage.files.disk_full import lacks_files as lacks_files
    from duramen.storage.files.disk_full import what_lacks as what_lacks
    from duramen.storage.files.disk_full import without_traceback as without_traceback
    from duramen.storage.files.entropy import SystemEntropy as SystemEntropy
    from duramen.storage.files.os_disk import RealDisk as RealDisk
    from duramen.storage.files.parallel import run_parallel as run_parallel
    from duramen.storage.files.parallel import run_serial as run_serial
    from duramen.storage.files.read_buffers import SPAN_BYTES as SPAN_BYTES
    from duramen.storage.journal.format import ENTRY_SIZE as ENTRY_SIZE
    from duramen.storage.journal.format import parse_part_name as parse_part_name
    from duramen.storage.journal.journal import JournalGroup as JournalGroup
    from duramen.storage.journal.reader import read_journal as read_journal
    from duramen.storage.journal.ring import JournalGrowth as JournalGrowth
    from duramen.storage.journal.ring import JournalLimits as JournalLimits
    from duramen.storage.log.config import PlainLogConfig as PlainLogConfig
    from duramen.storage.log.create import NewLog as NewLog
    from duramen.storage.log.create import StrayLog as StrayLog
    from duramen.storage.log.create import Strays as Strays
    from duramen.storage.log.durability import complete_sync as complete_sync
    from duramen.storage.log.durability import configure_log as configure_log
    from duramen.storage.log.durability import give_back_sync as give_back_sync
    from duramen.storage.log.durability import take_sync as take_sync
    from duramen.storage.log.follower import append_as_follower as append_as_follower
    from duramen.storage.log.follower import starts_before as starts_before
    from duramen.storage.log.leases import NEVER_EXPIRES as NEVER_EXPIRES
    from duramen.storage.log.leases import Lease as Lease
    from duramen.storage.log.log import COPIED_BYTES as COPIED_BYTES
    from duramen.storage.log.log import Log as Log
    from duramen.storage.log.markers import journal_marker as journal_marker
    from duramen.storage.log.offline import Offline as Offline
    from duramen.storage.log.retention import PendingRemoval as PendingRemoval
    from duramen.storage.log.retention import RemoveFilesJob as RemoveFilesJob
    from duramen.storage.log.segment_layout import Outline as Outline
    from duramen.storage.log.truncation import truncate_log as truncate_log
    from duramen.storage.read.read_plan import Pending as Pending
    from duramen.storage.read.timestamp_lookup import TimeLookup as TimeLookup
    from duramen.storage.read.timestamp_lookup import Timestamped as Timestamped
    from duramen.storage.read.timestamp_lookup import search_by_timestamp as search_by_timestamp
    from duramen.storage.read.verified_window import Recall as Recall
    from duramen.storage.recovery.open_partition import DIRECTORY_IN_PLACE as DIRECTORY_IN_PLACE
    from duramen.storage.repair.dump import DamagedBytes as DamagedBytes
    from duramen.storage.repair.dump import MissingOffsets as MissingOffsets
    from duramen.storage.repair.dump import walk_batches as walk_batches
    from duramen.storage.repair.journal_reset import JOURNAL as JOURNAL
    from duramen.storage.repair.journal_reset import JournalReset as JournalReset
    from duramen.storage.repair.journal_salvage import JournalLoss as JournalLoss
    from duramen.storage.repair.rebuild_metadata import METADATA_LOG as METADATA_LOG
    from duramen.storage.repair.rebuild_metadata import rebuild_metadata_log as rebuild_metadata_log
    from duramen.storage.repair.repair import DirectoryRepair as DirectoryRepair
    from duramen.storage.repair.repair import repair_directory as repair_directory
    from duramen.storage.repair.repair import reset_journal as reset_journal
    from duramen.storage.repair.repair import survey_journal_reset as survey_journal_reset
    from duramen.storage.repair.report import DirectoryReport as DirectoryReport
    from duramen.storage.repair.report import Finding as Finding
    from duramen.storage.repair.report import PartitionReport as PartitionReport
    from duramen.storage.repair.rewrite_partition import DROPPED as DROPPED
    from duramen.storage.repair.rewrite_partition import MOVED as MOVED
    from duramen.storage.repair.rewrite_partition import PLACED as PLACED
    from duramen.storage.repair.rewrite_partition import RESTORED as RESTORED
    from duramen.storage.repair.verify import verify_directory as verify_directory
    from duramen.storage.repair.verify import verify_path as verify_path
    from duramen.storage.repair.verify_segment import DECODED_BYTES_MAX as DECODED_BYTES_MAX
    from duramen.storage.segment.corruption import Damage as Damage
    from duramen.storage.segment.corruption import as_corruption as as_corruption
    from duramen.storage.segment.corruption import damage_of as damage_of
    from duramen.storage.segment.corruption import disk_advice as disk_advice
    from duramen.storage.segment.corruption import remedy_of as remedy_of
    from duramen.storage.segment.leader_epochs import LARGEST_EPOCH as LARGEST_EPOCH
    from duramen.storage.segment.leader_epochs import latest_epoch as latest_epoch
    from duramen.storage.segment.producer_state import Duplicate as Duplicate
    from duramen.storage.segment.producer_state import ProducerStates as ProducerStates
    from duramen.storage.segment.segment import INDEX as INDEX
    from duramen.storage.segment.segment import LOG as LOG
    from duramen.storage.segment.segment import SEAL as SEAL
    from duramen.storage.segment.segment import TIME_INDEX as TIME_INDEX
    from duramen.storage.segment.segment import TXN_INDEX as TXN_INDEX
    from duramen.storage.segment.segment import file_name as file_name
    from duramen.storage.segment.segment import parse_name as parse_name
    from duramen.storage.segment.transaction_guards import TransactionGuard as TransactionGuard


_PLACES: Final = {
    "checkpoint.formatter": (
        "FormattedDirectory",
        "Formatter",
        "is_formatted",
    ),
    "checkpoint.identity": ("known_cluster",),
    "checkpoint.kafka_files": (
        "decode_meta",
        "META_PROPERTIES",
    ),
    "checkpoint.loss_record": (
        "is_loss_recorded",
        "loss_owner",
        "LOSS_RECORD",
        "LOST_FOLDER",
        "METADATA_RECREATED",
        "read_losses",
        "record_loss",
    ),
    "checkpoint.metadata_snapshot": (
        "find_snapshots",
        "last_timestamp",
        "read_snapshot",
        "SnapshotId",
        "WriteSnapshotJob",
    ),
    "checkpoint.quorum_state": (
        "QUORUM_STATE_LANE",
        "QuorumState",
        "QuorumStateFile",
        "REMEDY_OF_QUORUM_STATE",
        "WriteQuorumStateJob",
    ),
    "checkpoint.scrub_progress": ("NO_KEY",),
    "checkpoint.shared_cluster": (
        "is_shared",
        "mark_shared",
        "SHARED_CLUSTER",
        "spread_sign",
    ),
    "checkpoint.snapshot_part": (
        "SnapshotPart",
        "read_piece",
    ),
    "compaction.compaction_pass": (
        "CleanerSettings",
        "CompactionJob",
        "CompactionPass",
    ),
    "directory.housekeeping": ("HousekeepingJob",),
    "directory.log_directory": (
        "DirectorySettings",
        "LogDirectory",
    ),
    "directory.scrubber": ("Scrubber",),
    "files.atomic": ("read_file",),
    "files.ballast": ("release_ballast",),
    "files.disk_full": (
        "as_disk_full",
        "is_disk_full",
        "lacks_files",
        "what_lacks",
        "NoRoomError",
        "without_traceback",
    ),
    "files.entropy": ("SystemEntropy",),
    "files.os_disk": ("RealDisk",),
    "files.parallel": (
        "run_parallel",
        "run_serial",
    ),
    "files.read_buffers": ("SPAN_BYTES",),
    "journal.format": (
        "ENTRY_SIZE",
        "parse_part_name",
    ),
    "journal.journal": ("JournalGroup",),
    "journal.reader": ("read_journal",),
    "journal.ring": (
        "JournalGrowth",
        "JournalLimits",
    ),
    "log.config": ("PlainLogConfig",),
    "log.create": ("NewLog", "StrayLog", "Strays"),
    "log.durability": (
        "complete_sync",
        "configure_log",
        "give_back_sync",
        "take_sync",
    ),
    "log.follower": ("append_as_follower", "starts_before"),
    "log.markers": ("journal_marker",),
    "log.leases": (
        "Lease",
        "NEVER_EXPIRES",
    ),
    "log.log": (
        "COPIED_BYTES",
        "Log",
    ),
    "log.offline": ("Offline",),
    "log.retention": (
        "PendingRemoval",
        "RemoveFilesJob",
    ),
    "log.segment_layout": ("Outline",),
    "log.truncation": ("truncate_log",),
    "read.read_plan": ("Pending",),
    "read.timestamp_lookup": (
        "search_by_timestamp",
        "TimeLookup",
        "Timestamped",
    ),
    "read.verified_window": ("Recall",),
    "recovery.open_partition": ("DIRECTORY_IN_PLACE",),
    "repair.dump": (
        "DamagedBytes",
        "MissingOffsets",
        "walk_batches",
    ),
    "repair.journal_reset": (
        "JournalReset",
        "JOURNAL",
    ),
    "repair.journal_salvage": ("JournalLoss",),
    "repair.rebuild_metadata": (
        "METADATA_LOG",
        "rebuild_metadata_log",
    ),
    "repair.repair": (
        "DirectoryRepair",
        "repair_directory",
        "reset_journal",
        "survey_journal_reset",
    ),
    "repair.report": (
        "DirectoryReport",
        "Finding",
        "PartitionReport",
    ),
    "repair.rewrite_partition": (
        "DROPPED",
        "MOVED",
        "PLACED",
        "RESTORED",
    ),
    "repair.verify": (
        "verify_directory",
        "verify_path",
    ),
    "repair.verify_segment": ("DECODED_BYTES_MAX",),
    "segment.corruption": (
        "as_corruption",
        "Damage",
        "damage_of",
        "disk_advice",
        "remedy_of",
    ),
    "segment.leader_epochs": (
        "LARGEST_EPOCH",
        "latest_epoch",
    ),
    "segment.producer_state": ("Duplicate", "ProducerStates"),
    "segment.segment": (
        "file_name",
        "INDEX",
        "LOG",
        "parse_name",
        "SEAL",
        "TIME_INDEX",
        "TXN_INDEX",
    ),
    "segment.transaction_guards": ("TransactionGuard",),
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
