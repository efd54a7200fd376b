"""One workload with one failing disk call, and what has to be true afterwards.

Whatever fails: whoever asked hears an OSError or an error of ours, nothing else; nothing that was acknowledged is lost,
whether the machine stays up or power fails next; a directory that is still open goes on serving reads and takes no
write that it could not make durable; every file is closed; and the next start, on a disk that works again, succeeds.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable
from typing import cast

from tests.crash.call_sites import Site
from tests.crash.explore import check_storage
from tests.crash.promises import Promises, read_raw, require
from tests.crash.session import Session, open_directory
from tests.crash.states import State, crash_states, final_states
from tests.crash.watched import Fault, WatchedDisk

from duramen.errors import CorruptLogError, DuramenError, FencedDirectoryError, KafkaError
from duramen.storage.journal.point import Point
from duramen.storage.journal.reader import JournalPart
from duramen.storage.recovery.plan import PlannedWrite, RecoveryPlan
from duramen.storage.recovery.replay import PartitionRecovery
from duramen.storage.segment.seal import CheckedFile, compute_seal
from duramen.storage.segment.segment import log_name
from duramen.wire.batch import build_batch, parse_header


def storage_trial(path: Callable[[Session], None], fault: Fault | None = None) -> Counter[Site]:
    """Run a write path of the storage engine; returns the sites it came through."""
    disk = WatchedDisk(fault=fault)
    session = Session(1, disk)  # type: ignore[arg-type]
    try:
        told = _run(path, session)
        if told is not None:
            require(fault is not None and fault.happened, f"an error that nobody planned: {told}")
            _still_serves(session)
    finally:
        _close(session)
    hits = disk.watch.hits.copy()
    promises = session.promises
    del session
    if disk.open_files:
        gc.collect()  # what only a cycle of dropped objects still holds is closed with it
    require(disk.open_files == 0, f"{disk.open_files} files are open")
    disk.watch.fault = None
    for state in final_states(disk.tape, promises):
        check_storage(state)
    return hits


def start_trial(state: State, fault: Fault | None = None) -> Counter[Site]:
    """Start on what a crash left; the next start, whatever became of this one, keeps every promise."""
    disk = WatchedDisk(state.tree, fault)
    promises = cast(Promises, state.promised or {})
    told = None
    try:
        open_directory(disk, promises).close(clean=False)  # type: ignore[arg-type]
    except (OSError, DuramenError) as error:
        told = f"{type(error).__name__}: {error}"
    if told is not None:
        require(fault is not None and fault.happened, f"an error that nobody planned: {told}")
    gc.collect()
    require(disk.open_files == 0, f"{disk.open_files} files are open")
    for left in final_states(disk.tape, promises):
        check_storage(left)
    return disk.watch.hits


def gap_trial(fault: Fault | None = None) -> Counter[Site]:
    """A journal that leaves a gap in a segment: what it has is written to its place, and the gap is told."""
    disk = WatchedDisk({"log": {log_name(0): b""}, "part": b"a" * 100 + b"b" * 100}, fault)
    start, end = Point(0, 0, 0), Point(2, 0, 300)
    writes = [PlannedWrite(0, 100, 0, 0, 0, False, None), PlannedWrite(200, 100, 1, 0, 100, False, None)]
    plan = RecoveryPlan((bytes(16), 0), trusted=start, end=end, writes={0: writes}, created=True)
    part = disk.open("/part")
    try:
        recovery = PartitionRecovery(disk, "/log", plan, [JournalPart(part)])
        recovery.run()
        found = disk.contents()[f"/log/{log_name(0)}"]
        require(recovery.damage is not None and found == b"a" * 100 + bytes(100) + b"b" * 100, "the gap is not told")
    except OSError:
        require(fault is not None and fault.happened, "an error that nobody planned")
    part.close()
    require(disk.open_files == 0, f"{disk.open_files} files are open")
    return disk.watch.hits


def behind_a_seal_trial(fault: Fault | None = None) -> Counter[Site]:
    """A growing segment is sealed up to a checkpoint; what lies behind is read as it is."""
    batch = bytes(build_batch([(b"k", b"v", (), 0)]))
    disk = WatchedDisk({"f": batch + b"behind"}, fault)
    file = disk.open("/f")
    try:
        checked = CheckedFile(file, compute_seal(file, len(batch), 0, 0), 0)
        require(checked.pread(6, len(batch)) == b"behind", "not what is there")
        require(checked.pread(len(batch) + 6, 0) == batch + b"behind", "not what is there")
    except (OSError, CorruptLogError):
        require(fault is not None and fault.happened, "an error that nobody planned")
    file.close()
    return disk.watch.hits


def telling_states(paths: Iterable[Callable[[Session], None]], about: int = 120) -> list[State]:
    """Of the states that crashes of these paths leave, a few: each makes a start come by sites that no other does."""
    chosen: list[State] = []
    known: set[Site] = set()
    for path in paths:
        session = Session(1)
        path(session)
        for state in crash_states(session.disk.tape, first=session.first_step, about=about):
            disk = WatchedDisk(state.tree)
            open_directory(disk, cast(Promises, state.promised or {})).close(clean=False)  # type: ignore[arg-type]
            if not disk.watch.hits.keys() <= known:
                known |= disk.watch.hits.keys()
                chosen.append(state)
    return chosen


def _run(path: Callable[[Session], None], session: Session) -> str | None:
    """Run it up to its end or its error, whose text is returned: the error itself would keep files open."""
    try:
        path(session)
    except (OSError, DuramenError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _still_serves(session: Session) -> None:
    """A directory that failed while it was in use: acknowledged records are read, a fenced one takes no writes."""
    directory = getattr(session, "directory", None)
    if directory is None or directory.journal.failed is None:
        return
    for log in directory.logs.values():
        promise = session.promises[log.topic_id]
        acknowledged = {} if promise.compacted else promise.acknowledged
        found = dict(read_raw(log))
        for base, data in acknowledged.items():
            if parse_header(data).next_offset > log.start_offset:
                require(found.get(base) == data, f"{log.tp}: the acknowledged batch at {base} cannot be read any more")
        data = bytes(build_batch([(b"k", b"v", (), 0)], base_offset=log.end_offset, leader_epoch=log.epochs.latest))
        try:
            log.append(data, parse_header(data), 0)
        except FencedDirectoryError:
            continue
        except KafkaError as error:
            require(False, f"{log.tp}: a fenced directory says {error}")
        require(False, f"{log.tp}: a directory whose disk failed takes records")


def _close(session: Session) -> None:
    directory = getattr(session, "directory", None)
    if directory is not None:
        directory.close(clean=False)
