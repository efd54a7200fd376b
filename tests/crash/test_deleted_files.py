"""No state lives outside the logs and the journal: every other file may go, and nothing that was promised goes with it.

A history leaves files of every kind; each kind is taken away, after a clean stop, a kill and a power cut, and the
directory opened again. The kinds are read off the directory: a file that somebody adds is taken away here, too.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

import pytest
from tests.crash.node_run import NodeRun, check_node
from tests.crash.odd_paths import rolled_back
from tests.crash.promises import Promises, check_log, require, view_of
from tests.crash.session import NOW, Session, open_directory
from tests.crash.states import State, final_states
from tests.crash.tape import TapeDisk, Tree
from tests.crash.write_paths import compaction

from duramen.errors import DuramenError
from duramen.wire.records.control import ControlType, StreamClosedRecord, build_own, writer_record

DATA_KINDS = {"*.log", "*.part", "*.log.swap", "*.seal.swap"}
"""Records, what was acknowledged of them and is not yet in its place, and compacted segments on their way to theirs."""
KINDS = {
    ".kafka_cleanshutdown",
    ".lock",
    "*.index",
    "*.producers",
    "*.seal",
    "*.sealing",
    "*.snapshot",
    "*.timeindex",
    "*.txnindex",
    "cleaner-offset-checkpoint",
    "duramen-checkpoint",
    "duramen-cleaned",
    "duramen-directory",
    "duramen-scrub",
    "leader-epoch-checkpoint",
    "log-start-offset-checkpoint",
    "meta.properties",
    "partition.metadata",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
}
"""What docs/internals says of each: this is only here so that nobody adds one without saying it."""


def kind_of(path: str) -> str:
    name = posixpath.basename(path)
    found = re.fullmatch(r"(?:\d{20}(?:-\d+)?|duramen-journal-.*)(\.[a-z.]+)", name)
    return name if found is None else f"*{found[1]}"


def kinds(tree: Tree) -> set[str]:
    return {kind_of(path) for path in TapeDisk(tree).contents()}


def without(tree: Tree, kind: str) -> Tree:
    """The tree without files of this kind."""
    return {
        name: without(node, kind) if not isinstance(node, bytes) else node
        for name, node in tree.items()
        if not isinstance(node, bytes) or kind_of(name) != kind
    }


def history() -> Session:
    """Segments, seals, compaction, a scrub, a transaction rolled back, a raised start; then what is only journaled."""
    run = Session(5)
    compaction(run)
    run.create(4, stable=False)
    run.create(6)
    run.say(6, writer_record(77, "w", NOW))
    run.commit()
    for _ in range(5):
        run.put(1, 1300, producer=6)
        run.put(4, 400)
        run.commit()
    rolled_back(run, 60)
    run.checkpoint()
    run.keep_house(NOW)
    run.advance_start(1, 3)
    run.commit()
    now = NOW
    for _ in range(4):
        now += 150_000_000
        job = run.directory.take_scrub(now)
        if job is not None:
            job.run()
            run.directory.complete_scrub(job)
    run.checkpoint()
    rolled_back(run, 61)
    run.put(1, 700, producer=6)
    run.put(3, 500, records=2, producer=8)
    run.put(4, 300)
    run.put(6, 300, producer=77)
    run.say(6, build_own(ControlType.STREAM_CLOSED, StreamClosedRecord.new(version=0), NOW))
    run.epoch(1, 4)
    run.commit()
    return run


def ends(how: str) -> tuple[Tree, Promises]:
    run = history()
    if how == "clean":
        run.stop()
    else:
        run.crash()
    only_synced, everything = final_states(run.disk.tape, None)
    return (only_synced if how == "power cut" else everything).tree, run.promises


def check_without(tree: Tree, promises: Promises, kind: str) -> None:
    """Twice, because the first start makes the file again."""
    disk = TapeDisk(without(tree, kind))
    seen = None
    for clean in (False, True):
        directory = open_directory(disk, promises)
        require(not directory.offline, f"not served: {[left.error for left in directory.offline.values()]}")
        logs = {log.topic_id: log for log in directory.logs.values()}
        require(set(logs) == set(promises), "not the same logs")
        for topic_id, promise in promises.items():
            check_log(logs[topic_id], view_of(logs[topic_id]), promise)
        found = {each: (view_of(log), log.aborted(log.start_offset, log.end_offset)) for each, log in logs.items()}
        require(seen in (None, found), "a second start answers something else")
        seen = found
        directory.close(clean=clean)
        disk.end_process()


@pytest.mark.parametrize("how", ["clean", "kill", "power cut"])
def test_every_file_but_logs_and_journal_can_be_deleted(how: str) -> None:
    tree, promises = ends(how)
    there = kinds(tree)
    if how == "clean":
        assert there - DATA_KINDS == KINDS
    for kind in sorted(there - DATA_KINDS):
        try:
            check_without(tree, promises, kind)
        except (AssertionError, OSError, DuramenError) as error:
            raise AssertionError(f"without {kind}: {error}") from error


def broken(tree: Tree, kind: str) -> Tree:
    """The tree with a flipped bit in the middle of each file of this kind."""
    disk = TapeDisk(tree)
    for path, content in disk.contents().items():
        if kind_of(path) == kind and content:
            file = disk.open(path, write=True)
            file.pwritev([bytes([content[len(content) // 2] ^ 4])], len(content) // 2)
            file.close()
    return next(iter(reversed(list(final_states(disk.tape, None))))).tree


@pytest.mark.parametrize("how", ["kill", "power cut"])
def test_our_checkpoints_can_be_damaged(how: str) -> None:
    tree, promises = ends(how)
    for kind in sorted(each for each in kinds(tree) if each.startswith("duramen-")):
        check_without(broken(tree, kind), promises, "nothing")


def node_states() -> Iterator[State]:
    run = NodeRun()
    run.start()
    run.create("a")
    run.settle()
    run.produce("a", *[b"%d" % number for number in range(5)], producer=(7, 0))
    run.find_coordinator("readers")
    run.settle()
    run.commit("readers", "a", 1)
    run.settle()
    run.server.pass_ms(70_000)
    run.produce("a", b"5")
    run.commit("readers", "a", 4)
    run.settle()
    yield from final_states(run.disk.tape, run.disk.tape.marks[-1][1])


def test_a_node_loses_no_topic_no_position_and_no_record_with_any_of_them() -> None:
    tried = 0
    for state in node_states():
        for kind in sorted(kinds(state.tree) - DATA_KINDS):
            tried += 1
            try:
                check_node(state._replace(tree=without(state.tree, kind)))
            except (AssertionError, OSError, DuramenError) as error:
                raise AssertionError(f"{state.origin}, without {kind}: {error}") from error
    assert tried > 10
