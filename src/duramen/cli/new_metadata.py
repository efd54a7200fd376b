"""`duramen log repair --metadata`: begin the metadata log anew, whose directory is gone with the disk it was on.

The start refuses a node without one: no topic would be known. Where it is a directory that a checkpoint names, an
ordinary repair makes it again. Where a whole disk is gone, nothing that is left names it, and it may as well be on one
that is not mounted: so somebody has to say that it is lost. What the node does then, `partition/lost_metadata.py` says.
"""

from __future__ import annotations

import posixpath
from contextlib import closing

import click

from duramen.cli.known import known_logs
from duramen.cli.output import print_json
from duramen.cli.topic import confirm
from duramen.errors import StorageError
from duramen.model import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition, topic_id_text
from duramen.ports import Disk, Entropy
from duramen.storage.checkpoints import (
    LEADER_EPOCHS,
    LOCK,
    PARTITION_METADATA,
    encode_epochs,
    encode_partition_metadata,
    parse_partition_name,
    partition_names,
    replace_file,
)
from duramen.storage.directory_start import refuse_earlier_stop, refuse_half_done
from duramen.storage.forgoing import identity, settle
from duramen.storage.losses import LOST, write_down
from duramen.storage.repairing import DROPPED
from duramen.storage.segment import log_name
from duramen.storage.vouching import held_journal

METADATA_LOG = str(TopicPartition(METADATA_TOPIC, 0))

FIRST_OFFSET = 1 << 20
"""Where it begins. A leader epoch takes a record of its own, so those that begin behind a loss are above its end; how
far the old log went nobody knows, but a node does not start a million times."""

WHAT = "the whole log is gone; it was begun anew"


def survey(disk: Disk, path: str) -> bool:
    """Whether the directory has to be recovered first; nothing is changed. The caller has the lock. OSError.

    StorageError where the metadata log is not gone, or `duramen log repair` makes it again, or there is nothing to know
    topics by.
    """
    identity(disk, path)
    refuse_half_done(disk, path)
    home = posixpath.join(path, METADATA_LOG)
    if disk.exists(home):
        raise StorageError(f"{home} is there; `duramen log repair {path}` without --metadata takes damage out of it")
    with closing(held_journal(disk, path)) as journal:
        refuse_earlier_stop(disk, path, journal)
        known = known_logs(disk, path, journal)
    if not known.clean and journal.damage is not None:
        raise StorageError(f"the journal is damaged: `duramen log repair {path} --journal` first ({journal.damage})")
    if METADATA_LOG in known.absent(disk, path):
        raise StorageError(
            f"{home} is known to be missing: `duramen log repair {path}` without --metadata makes it again"
        )
    if not any(map(parse_partition_name, partition_names(disk, path, known.ids))):
        raise StorageError(f"{path} has no partitions; name the directory of log.dirs that has some")
    return not known.clean


def make(disk: Disk, path: str, now_ms: int, entropy: Entropy, *, recovers: bool) -> None:
    """Recover the directory, tell the loss, and put an empty log there. OSError; again after a crash is fine."""
    if recovers:
        settle(disk, path, now_ms, entropy)
    topic_id = topic_id_text(METADATA_TOPIC_ID)
    whose = {"partition": METADATA_LOG, "topic_id": topic_id}
    offsets = {"first_offset": 0, "last_offset": FIRST_OFFSET - 1}
    write_down(disk, path, [{**whose, "kind": DROPPED, **offsets, "what": WHAT}])
    staged = posixpath.join(path, LOST, f"{METADATA_LOG}.new")
    if disk.exists(staged):
        disk.remove(staged)
    disk.make_directories(staged)
    replace_file(disk, posixpath.join(staged, log_name(FIRST_OFFSET)), b"")
    replace_file(disk, posixpath.join(staged, LEADER_EPOCHS), encode_epochs(()))
    replace_file(disk, posixpath.join(staged, PARTITION_METADATA), encode_partition_metadata(topic_id))
    disk.rename(staged, posixpath.join(path, METADATA_LOG))
    disk.sync_directory(posixpath.join(path, LOST))
    disk.sync_directory(path)


def begin_anew(disk: Disk, path: str, entropy: Entropy, *, dry_run: bool, yes: bool, as_json: bool) -> int:
    """The command; its exit code."""
    lock = disk.lock(posixpath.join(path, LOCK))
    try:
        recovers = survey(disk, path)
    finally:
        lock.release()  # a recovery takes it itself
    if not as_json:
        if recovers:
            click.echo(f"{path} was not stopped cleanly: its journal is recovered first")
        click.echo(
            f"{METADATA_LOG} begins anew in {path}. Topics are known again by their partitions' directories, with\n"
            "the settings that keep all records; their own settings and other dynamic ones are lost."
        )
    if not dry_run:
        confirm("Is the old metadata log lost for good, and on no disk that is only not mounted?", yes)
        make(disk, path, 0, entropy, recovers=recovers)
        if not as_json:
            click.echo("done; start the node with all directories that are left in log.dirs")
    if as_json:
        print_json({"path": path, "done": not dry_run, "partition": METADATA_LOG, "begins_at": FIRST_OFFSET})
    return 1
