"""Lives with jobs interleaved at every disk call keep every promise; and a fault of that kind that they must find."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from random import Random
from unittest.mock import patch

import pytest
from tests.crash import interleaved
from tests.crash.interleaved import live
from tests.crash.lives_sweep import Kind, Lives
from tests.crash.stepping import DeadlockError, SteppedDisk, TurnLock, stepped

from duramen.sim.world.disk import Killed, PowerCut
from duramen.storage.files import disk_full
from duramen.storage.files.ballast import Ballast
from duramen.storage.log import sidecars
from duramen.storage.segment.segment import PRODUCERS, SNAPSHOT

LIVES = 16
"""In `make test`; `make crash-lives INTERLEAVED=1` has 4,000."""
ROLLS_AND_CHECKPOINTS = {"make_topic": 1, "append": 6, "roll": 8, "commit_some": 2, "go_on_with_checkpoint": 12}
FOCUSED = range(42, 100)
"""Lives of nothing but these, each checkpoint with a snapshot of producers; one in fifteen finds the fault."""
FULL_VOLUMES = {
    "make_topic": 2,
    "append_some": 6,
    "take_group": 2,
    "end_group": 6,
    "commit_some": 3,
    "fill_disk": 4,
    "raise_start": 4,
    "keep_house_some": 6,
    "go_on_with_checkpoint": 8,
    "checkpoint_some": 2,
}


def test_every_promise_is_kept_while_jobs_are_interleaved() -> None:
    lives = Lives(Kind(live, interleaved.COVERED, ""))
    for seed in range(1, 1 + LIVES):
        lives.add(live(seed))
    assert [f"{each.seed}: {each.violation}" for each in lives.broken] == []
    assert lives.missing == []


def test_a_seed_decides_who_makes_which_disk_call() -> None:
    """Each with its checksum of all calls, as the last line of its trace."""
    first, again = live(3), live(3)
    assert first.trace[-1].startswith("history ")
    assert first == again
    assert live(4).trace[-1] != first.trace[-1]


@contextmanager
def looking_before_removing() -> Iterator[None]:
    """As it was: whether a snapshot of producers is there was asked, and then it was removed."""
    remove = SteppedDisk.remove

    def careful(disk: SteppedDisk, path: str) -> None:
        if not path.endswith((SNAPSHOT, PRODUCERS)) or disk.exists(path):
            remove(disk, path)

    with patch.object(SteppedDisk, "remove", careful), patch.object(sidecars, "suppress", lambda error: nullcontext()):
        yield


def test_two_that_remove_the_same_file_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A roll and a checkpoint drop the same older snapshots. When one came between the other's look and its removal,
    the directory was fenced. Seeds 9, 25, 29, 42 and 43 of the first 60 of these lives find it; no life whose jobs run
    whole does.
    """
    monkeypatch.setattr(interleaved, "SNAPSHOT_BYTES", (0,))
    with looking_before_removing():
        violations = (live(seed, ROLLS_AND_CHECKPOINTS).violation for seed in FOCUSED)
        found = next(filter(None, violations), "")
    assert "FileNotFoundError" in found


def test_a_reserve_that_does_not_give_way_is_found() -> None:
    with patch.object(Ballast, "release", lambda ballast: False):
        violations = (live(seed, FULL_VOLUMES).violation for seed in range(9, 40))
        assert "the reserve is not enough" in next(filter(None, violations), "")


def test_a_full_volume_that_fences_is_found() -> None:
    with patch.object(disk_full, "as_disk_full", lambda error: error):
        violations = (live(seed, FULL_VOLUMES).violation for seed in range(1, 40))
        assert "on a full disk" in next(filter(None, violations), "")


def three_calls(disk: SteppedDisk, name: str) -> None:
    for call in range(3):
        disk.make_directories(f"/{name}{call}")


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_a_job_goes_on_one_call_at_a_time() -> None:
    with stepped(Random(1)) as turns:
        turns.stops_behind = False
        disk = SteppedDisk(turns, Random(1), torn=False)
        jobs = [turns.begin(name, partial(three_calls, disk, name)) for name in ("a", "b")]
        assert [job.advance(3) for job in jobs] == [False, False]
        assert disk.list_directory("/") == ["a0", "a1", "b0", "b1"]
        assert [job.has_begun and not job.mixed for job in jobs] == [True, True]
        jobs[0].finish()
        assert jobs[0].mixed
        assert {"a", "b"} & threads() == {"b"}
    assert not {"a", "b"} & threads()
    assert not jobs[1].mixed
    assert isinstance(jobs[1].error, Killed)


@pytest.mark.parametrize("how", ["cut_at", "kill_at"])
def test_when_the_node_dies_everybody_ends(how: str) -> None:
    with stepped(Random(2)) as turns:
        disk = SteppedDisk(turns, Random(2), torn=False)
        setattr(disk, how, 4)
        jobs = [turns.begin(name, partial(three_calls, disk, name)) for name in ("a", "b")]
        turns.finish()
        assert [job.over for job in jobs] == [True, True]
        assert {type(job.error) for job in jobs} <= {type(None), PowerCut if how == "cut_at" else Killed}
        assert not disk.powered
        assert not {"a", "b"} & threads()


def hold(disk: SteppedDisk, first: TurnLock, second: TurnLock) -> None:
    with first:
        disk.exists("/")
        with second:
            disk.exists("/")


def test_who_waits_for_a_lock_lets_the_holder_go_on() -> None:
    with stepped(Random(3)) as turns:
        disk = SteppedDisk(turns, Random(3), torn=False)
        locks = TurnLock(turns), TurnLock(turns)
        jobs = [turns.begin(name, partial(hold, disk, *locks)) for name in ("a", "b")]
        jobs[0].advance(1)
        jobs[1].finish()
        hold(disk, *locks)
        turns.finish()
        assert [job.error for job in jobs] == [None, None]


def test_two_that_wait_for_each_other_are_told_and_end() -> None:
    with stepped(Random(4)) as turns:
        disk = SteppedDisk(turns, Random(4), torn=False)
        locks = TurnLock(turns), TurnLock(turns)
        turns.begin("a", partial(hold, disk, *locks)).advance(1)
        turns.begin("b", partial(hold, disk, *reversed(locks))).advance(1)
        with pytest.raises(DeadlockError, match="a waits for b waits for a"):
            turns.finish()
    assert not {"a", "b"} & threads()
