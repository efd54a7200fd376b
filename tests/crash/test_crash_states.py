"""Crash states of every write path: opened, held against what was promised; and planted bugs that must be found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from unittest.mock import patch

import pytest
from tests.crash.explore import explore
from tests.crash.repair_paths import HARMS
from tests.crash.states import crash_states
from tests.crash.sweep import REPAIR, check_of, explore_task, record, tasks
from tests.crash.tape import TapeDisk

from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log import markers
from duramen.storage.log.log import Log
from duramen.storage.segment.segment import Segment

ABOUT = 140
"""States of each write path in `make test`, 3,000 distinct ones and more; `make crash-states` opens all of them."""


@pytest.mark.timeout(900)
def test_what_crashes_leave_keeps_every_promise() -> None:
    distinct: set[bytes] = set()
    for task in tasks(seeds=1):
        findings = explore_task(task._replace(about=ABOUT))
        assert findings.violations == []
        assert len(findings.states) > 40, task.path
        distinct |= findings.states
    print(f"{len(distinct):,} distinct states, 0 violations")
    assert len(distinct) >= 3000


@pytest.mark.parametrize("seed", range(1, 1 + len(HARMS)), ids=HARMS)
def test_a_start_refuses_every_kind_of_damaged_journal(seed: int) -> None:
    """`repair_journal` is one seed above, and four in `make crash-states`."""
    tape, first = record(REPAIR, seed)
    assert len(tape.steps) > first


def syncs(part: str) -> Callable[[str], bool]:
    """Whether a call syncs a file with this in its name."""
    return lambda call: call.startswith("sync ") and part in call


def name_syncs(call: str) -> bool:
    """Whether a call syncs a directory's names."""
    return call.startswith("sync_directory ")


FORGOTTEN: list[tuple[str, str, Callable[[str], bool]]] = [
    ("append", "the journal's sync", syncs(".part")),
    ("journal_bypass", "the segment's sync before its extent", syncs(".log")),
    ("checkpoint", "the segments' sync in a checkpoint", syncs(".log")),
    ("recovery", "the sync of what recovery wrote", syncs(".log")),
    ("clean_stop", "the segments' sync at a clean stop", syncs(".log")),
    ("creation_and_deletion", "the sync of new names", name_syncs),
    ("moved_aside", "the sync of new names", name_syncs),
    ("cut_into_what_is_sealed", "the sync of the names beside a file that was cut", name_syncs),
    ("recycle", "every sync of names", name_syncs),
    ("transactions", "the sync of what was rolled back", syncs(".txnindex")),
    ("repair_journal", "the sync of what must not be used again", syncs("duramen-forgone")),
    ("quorum_state", "the sync of a vote", syncs("quorum-state")),
    ("quorum_state", "the sync of a vote's name", name_syncs),
    ("format_directories", "the sync of the sign that it is under way", syncs("duramen-formatting")),
    ("format_directories", "the sync of the first voters", syncs(".checkpoint.part")),
    ("format_directories", "the sync of names", name_syncs),
    ("topics", "the sync of a new topic's names", name_syncs),
    ("group_offsets", "the sync behind a commit's answer", syncs(".part")),
    ("producer_id_blocks", "the sync of a block of producer ids", syncs(".part")),
    ("sink_batches", "the sync behind a commit's answer", syncs(".part")),
]


@pytest.mark.parametrize(("path", "what", "dropped"), FORGOTTEN, ids=[f"{each[0]}: {each[1]}" for each in FORGOTTEN])
def test_a_forgotten_sync_is_found(path: str, what: str, dropped: Callable[[str], bool]) -> None:
    tape, first = record(path, 1)
    states = crash_states(tape.without(dropped), first=min(first, 30), samples=1, about=400)
    findings = explore(path, states, check_of(path), stop_at_first=True)
    assert findings.violations, f"{what} can be left out of {path}, and nobody notices"


FORGOTTEN_AT: list[tuple[str, str, str, int]] = [
    ("merging", "the sync behind the rename that makes a copy count", "stage", 1),
    ("merging", "the sync behind the removal of what was replaced", "remove_replaced", 0),
    ("silent_producer", "the sync of what is kept of producers whose records go", "ProducerSnapshotJob.run", 0),
]
"""Syncs of names by the function that calls them, where others sync the same directory; 1: every second call of it."""


@pytest.mark.parametrize(("path", "what", "function", "which"), FORGOTTEN_AT, ids=[each[1] for each in FORGOTTEN_AT])
def test_a_forgotten_sync_of_a_function_is_found(path: str, what: str, function: str, which: int) -> None:
    sync = TapeDisk.sync_directory
    calls = 0

    def forgetful(disk: TapeDisk, folder: str) -> None:
        nonlocal calls
        if sys._getframe(1).f_code.co_qualname == function:
            calls += 1
            if calls % (which + 1) == 0:
                return
        sync(disk, folder)

    with patch.object(TapeDisk, "sync_directory", forgetful):
        tape, first = record(path, 1)
    assert calls
    findings = explore(path, crash_states(tape, first=first), check_of(path), stop_at_first=True)
    assert findings.violations, f"{what} can be left out of {path}, and nobody notices"


def test_an_order_that_is_not_kept_is_found() -> None:
    """A batch that joins an extent from before the record it rests on is there without that."""
    with patch.object(LogDirectory, "keep_order", lambda directory: None):
        tapes = [record("ordered", seed) for seed in (3, 4, 5)]
    found = [
        explore("ordered", crash_states(tape, first=first, seed=seed), check_of("ordered"), stop_at_first=True)
        for seed, (tape, first) in enumerate(tapes, 3)
    ]
    assert any(findings.violations for findings in found)


def test_a_marker_that_is_not_journaled_is_found() -> None:
    with patch.object(markers, "journal_marker", lambda log, data: 0):
        tape, first = record("transactions", 1)
    findings = explore("transactions", crash_states(tape, first=first), check_of("transactions"), stop_at_first=True)
    assert findings.violations


def test_the_path_that_merges_does() -> None:
    groups: list[int] = []
    replace = Log.replace_segments

    def counted(log: Log, old: list[Segment], new: Segment) -> None:
        groups.append(len(old))
        replace(log, old, new)

    with patch.object(Log, "replace_segments", counted):
        record("merging", 1)
    assert sum(size > 1 for size in groups) >= 2, groups


def test_states_are_everything_while_little_is_unsynced() -> None:
    disk = TapeDisk()
    disk.make_directories("/d")
    disk.sync_directory("/")
    file = disk.open("/d/f", create=True, write=True)
    file.pwritev([b"a" * 512, b"b" * 512], 0)
    found = [state.tree["d"] for state in crash_states(disk.tape, first=len(disk.tape.steps))]
    contents = [tree.get("f") for tree in found if not isinstance(tree, bytes)]
    first, second, hole = b"a" * 512, b"b" * 512, bytes(512)
    for expected in (None, b"", first, hole + second, first + second, hole + hole):
        assert expected in contents
    torn = [content for content in contents if isinstance(content, bytes) and 512 < len(content) < 1024]
    assert torn
    assert len(found) == len(contents)
