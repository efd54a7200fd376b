"""`duramen cluster init` as a write path: a crash at any point of it, and the same once more.

Whatever a crash leaves, no start makes a cluster of its own of it, and the same again completes it: then the sign, the
identity, the vote and the first voters are there, and the ids that were promised are those that it has.
"""

from __future__ import annotations

from functools import partial

from tests.crash.promises import require
from tests.crash.session import NOW, SETTINGS, Numbers, commit
from tests.crash.states import State
from tests.crash.tape import Tape, TapeDisk

from duramen.errors import StorageError
from duramen.model import METADATA_TOPIC_ID, topic_id_from_text
from duramen.partition.metadata.formation import bootstrap, first_snapshot, new_id
from duramen.storage.checkpoint.formatter import FIRST_SNAPSHOT, FormattedDirectory, Formatter
from duramen.storage.checkpoint.metadata_snapshot import read_snapshot
from duramen.storage.checkpoint.quorum_state import QuorumState, QuorumStateFile
from duramen.storage.checkpoint.shared_cluster import is_shared
from duramen.storage.directory.log_directory import LogDirectory
from duramen.wire.records.control import ControlType, decode

DATA, METADATA = "/data", "/metadata"
LOG = f"{METADATA}/__cluster_metadata-0"
NODE = 3


def formatting(disk: TapeDisk, seed: int) -> Formatter:
    """Of a node with two directories; every second seed for several nodes, the others for one alone."""
    entropy = Numbers(seed)
    return Formatter(
        disk=disk,
        paths=[DATA, METADATA],
        metadata=METADATA,
        node_id=NODE,
        cluster_id=None,
        directory_id=None,
        new_id=partial(new_id, entropy),
        bootstrap=partial(bootstrap, NOW),
        voters=lambda own: first_snapshot([(NODE, own, [("CONTROLLER", "a", 9093)])], NOW),
        is_shared=seed % 2 == 1,
    )


def format_directories(seed: int) -> tuple[Tape, int]:
    """The command, and the first start of what it made; returns the tape, from the beginning."""
    disk = TapeDisk()
    disk.mark(seed)
    formatted = formatting(disk, seed).run()
    disk.mark(formatted)
    for path, _ in formatted:
        directory = _start(disk, path)
        for log in directory.logs.values():
            log.assign_epoch(1)
        commit(directory)
        directory.close(clean=path == DATA)
    return disk.tape, 0


def _start(disk: TapeDisk, path: str) -> LogDirectory:
    return LogDirectory.open(disk, path, SETTINGS._replace(node_id=NODE), now_ms=NOW, entropy=Numbers(999))


def check_format(state: State) -> None:
    """See the module."""
    if state.promised is None:
        return
    done = not isinstance(state.promised, int)
    _no_start_of_half(state)
    disk = TapeDisk(state.tree)
    shared = is_shared(disk, DATA)
    if done:
        formatted = state.promised
        require(disk.exists(f"{METADATA}/meta.properties"), "it is not formatted, and was said to be")
        _refused(disk)
    else:
        seed = state.promised
        assert isinstance(seed, int)
        try:
            formatted = formatting(disk, seed).run()
        except StorageError as error:
            require("is formatted already" in str(error), f"it cannot be completed: {error}")
            formatted = formatting(TapeDisk(), seed).run()  # with the same ids
        else:
            _refused(disk)
        shared = seed % 2 == 1
    assert isinstance(formatted, list)
    _check_formatted(disk, formatted, shared=shared)
    disk.end_process()
    _check_formatted(disk, formatted, shared=shared)
    require(disk.open_files == 0, f"{disk.open_files} files are still open")


def _no_start_of_half(state: State) -> None:
    """Of a directory in which something of it is, and not all, nobody can start but a cluster's node, which asks."""
    for path in (DATA, METADATA):
        disk = TapeDisk(state.tree)
        if not disk.exists(path) or not [name for name in disk.list_directory(path) if name != ".lock"]:
            continue
        whole = disk.exists(f"{path}/meta.properties")
        try:
            _start(disk, path).close(clean=True)
        except StorageError as error:
            require("run it again" in str(error), f"a start refuses and does not say what to do: {error}")
        else:
            only_temporaries = all(name.endswith(".tmp") or name.startswith(".") for name in _names(state, path))
            require(whole or is_shared(disk, path) or only_temporaries, f"a start takes {path}: {_names(state, path)}")


def _names(state: State, path: str) -> list[str]:
    return TapeDisk(state.tree).list_directory(path)


def _refused(disk: TapeDisk) -> None:
    try:
        formatting(disk, 1).run()
    except StorageError as error:
        require("is formatted already" in str(error), str(error))
    else:
        raise AssertionError("what is formatted is formatted again")


def _check_formatted(disk: TapeDisk, formatted: list[FormattedDirectory], *, shared: bool) -> None:
    """Start: it is whose it was said to be, and the log is there with what stands beside it."""
    ids = []
    for path, identity in formatted:
        require(is_shared(disk, path) == shared, f"{path}: the sign is {'not ' * shared}there")
        settings = SETTINGS._replace(node_id=NODE, cluster_id=identity.cluster_id)
        directory = LogDirectory.open(disk, path, settings, now_ms=NOW, entropy=Numbers(500))
        found = directory.cluster_id, directory.directory_id
        require(found == (identity.cluster_id, identity.directory_id), f"{path} is {found}, not {identity}")
        require(not directory.recovery.damage, f"damage: {directory.recovery.damage}")
        require(((METADATA_TOPIC_ID, 0) in directory.logs) == (path == METADATA), f"{path} has {directory.logs}")
        directory.close(clean=True)
        leftovers = [name for name in disk.list_directory(path) if name.endswith((".tmp", ".part-delete"))]
        require(not leftovers and not disk.exists(f"{path}/__cluster_metadata-0.part"), f"left behind: {leftovers}")
        ids.append(identity.directory_id)
    require(QuorumStateFile(disk, LOG).read() == QuorumState(-1, 0, -1), "quorum-state is not what was written")
    records = [decode(record.key or b"", record.value or b"") for _, record in read_snapshot(disk, LOG, FIRST_SNAPSHOT)]
    (voters,) = [message.voters for kind, message in records if kind == ControlType.KRAFT_VOTERS]
    own = [bytes(voter.voter_directory_id) for voter in voters]
    require(own == [topic_id_from_text(ids[1])], "the voter has another directory")
