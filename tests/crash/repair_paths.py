"""`duramen log repair --journal` as a write path: a crash at any point of it, and the same command once more.

The journal is damaged after a power cut, so that the segments lack what it had. Whatever of the repair a crash leaves,
a start refuses or finds it done. When it is done, every log ends behind all that was acknowledged, every record is as
it was written, and each acknowledged one that is not there is in the list of losses.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from tests.crash.promises import LogView, Promises, read_raw, require, view_of
from tests.crash.session import DATA, NOW, Numbers, Session, commit, open_directory
from tests.crash.states import State, final_states
from tests.crash.tape import Tape, TapeDisk, Tree

from duramen.errors import StorageError
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.journal.format import HEADER_BLOCK, EntryKind
from duramen.storage.journal.reader import read_journal
from duramen.storage.repair.journal_reset import begin_reset, finish_reset, read_reset
from duramen.storage.repair.journal_salvage import survey_journal
from duramen.wire.batch import build_batch, parse_header


class Promised(NamedTuple):
    """What a repaired directory has to keep. ends: behind the last acknowledged record of each log."""

    promises: Promises
    ends: dict[bytes, int]


HARMS = ("entry", "header", "torn entry", "killed")
"""What happened to the journal: a batch in the middle; a part's header, both of it; a batch of a log with several
segments and the part's header, too; a batch, while the segments still have what the journal had."""


def repair_journal(seed: int) -> tuple[Tape, int]:
    """A session, a power cut, a damaged journal, and the repair; returns its tape and where the repair begins."""
    harm = HARMS[(seed - 1) % len(HARMS)]
    session = Session(seed)
    session.start()
    for number in (1, 2):
        session.create(number)
    session.create(3, stable=False)
    session.commit()
    session.put(1, 500)
    session.put(3, 300)
    session.commit()
    session.checkpoint()
    for _ in range(5):
        session.put(1, 700, records=2, producer=4)
        session.put(2, 100 + session.random.randrange(300))
        session.commit()
    session.put(3, 200)
    session.commit()
    session.commit()
    session.crash()
    states = list(final_states(session.disk.tape, None))
    disk = TapeDisk(_damaged(states[1 if harm == "killed" else 0].tree, harm, session.random.randrange(3)))
    ends = {
        topic_id: max((parse_header(data).next_offset for data in promise.acknowledged.values()), default=0)
        for topic_id, promise in session.promises.items()
    }
    disk.mark(Promised({topic_id: promise.snapshot() for topic_id, promise in session.promises.items()}, ends))
    repair(disk)
    return disk.tape, 0


def _damaged(tree: Tree, harm: str, which: int) -> Tree:
    """The tree with a damaged journal; which: counted from the third batch."""
    disk = TapeDisk(tree)
    contents = read_journal(disk, DATA)
    batches = [entry for entry in contents.entries if entry.kind == EntryKind.BATCH]
    entry = batches[2 + which]
    files = dict(cast(Tree, tree[DATA.strip("/")]))
    if harm != "header":
        name = contents.names[entry.part]
        _flip(files, name, entry.data_position + 70)
    if harm in ("header", "torn entry"):
        for name in contents.names:
            for copy in (0, HEADER_BLOCK // 2):
                _flip(files, name, copy + 9)
    contents.close()
    return {DATA.strip("/"): files}


def _flip(files: dict[str, bytes | Tree], name: str, position: int) -> None:
    data = bytearray(cast(bytes, files[name]))
    require(position < HEADER_BLOCK or any(data[position : position + 8]), "this is no data")
    data[position] ^= 0x41
    files[name] = bytes(data)


def repair(disk: TapeDisk) -> None:
    """What the command does, first and every time."""
    reset = read_reset(disk, DATA)
    if reset is not None:
        finish_reset(disk, DATA, reset, Numbers(77))
        return
    contents = read_journal(disk, DATA)
    contents.close()
    require(contents.damage is not None, "a start refuses, but the journal is sound")
    begin_reset(disk, DATA, survey_journal(disk, DATA, contents), Numbers(77))


def check_repair(state: State) -> None:
    """Start; if that refuses repair and start; then everything in the module's promise holds, twice."""
    promised = cast(Promised, state.promised)
    disk = TapeDisk(state.tree)
    try:
        directory = open_directory(disk, promised.promises)
    except StorageError as error:
        require("log repair" in str(error), f"a start refuses and does not say what to do: {error}")
        disk.end_process()
        repair(disk)
        disk.end_process()
        directory = open_directory(disk, promised.promises)
    views = _check(directory, promised)
    directory.close(clean=state.key[0] % 2 == 0)
    disk.end_process()
    directory = open_directory(disk, promised.promises, 1000)
    require(_check(directory, promised) == views, "a second start answers something else")
    for log in directory.logs.values():
        end = log.end_offset
        data = bytes(build_batch([(b"k", b"next", (), NOW)], base_offset=end, leader_epoch=log.epochs.latest))
        log.append(data, parse_header(data), NOW)
        commit(directory)
        require(read_raw(log)[-1] == (end, data), f"{log.tp}: what comes next cannot be read")
    directory.close(clean=False)
    require(disk.open_files == 0, f"{disk.open_files} files are still open")


def _check(directory: LogDirectory, promised: Promised) -> dict[bytes, LogView]:
    require(directory.recovery.damage == [], f"damage was reported: {directory.recovery.damage}")
    require(not directory.offline, f"not served: {[left.error for left in directory.offline.values()]}")
    told = read_losses(directory.disk, DATA)
    views = {}
    logs = {log.topic_id: log for log in directory.logs.values()}
    for topic_id, promise in promised.promises.items():
        log = logs[topic_id]
        view = views[topic_id] = view_of(log)
        end = promised.ends[topic_id]
        require(view.end >= end, f"{log.tp} ends at {view.end}: offsets up to {end - 1} were acknowledged")
        gone = [(line["first_offset"], line["last_offset"]) for line in told if line["partition"] == str(log.tp)]
        found = {}
        for base, data in view.batches:
            header = parse_header(data)
            if header.count == 0 and any(first <= base and header.last_offset <= last for first, last in gone):
                continue  # it stands for what is lost
            require(data in [each for _, each in promise.queued.get(base, ())], f"{log.tp}: {base} is another record")
            found[base] = data
        for base in promise.acknowledged:
            is_told = any(first <= base <= last for first, last in gone)
            require(base in found or is_told, f"{log.tp}: {base} is gone, and nobody is told")
    return views
