"""Random lives of a log directory keep every promise; and planted bugs that they must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import pytest
from tests.crash.lives import live
from tests.crash.lives_steps import STEPS, Steps
from tests.crash.lives_sweep import Lives

from duramen.sim.world.disk import CrashDisk, CrashFile
from duramen.storage.journal.point import Point
from duramen.storage.log import retention
from duramen.storage.log.log import Log
from duramen.storage.recovery.plan import RecoveryPlan

LIVES = 80
"""In `make test`; `make crash-lives` has 4,000."""


def test_every_promise_is_kept_through_random_lives() -> None:
    lives = Lives()
    for seed in range(1, 1 + LIVES):
        lives.add(live(seed))
    assert [f"{each.seed}: {each.violation}" for each in lives.broken] == []
    assert lives.missing == []


def test_a_seed_decides_everything() -> None:
    assert live(8) == live(8)


def without_syncs_of(suffix: str) -> AbstractContextManager[object]:
    sync = CrashFile.sync

    def forgetful(file: CrashFile) -> None:
        if not file.path.endswith(suffix):
            sync(file)

    return patch.object(CrashFile, "sync", forgetful)


def without_syncs_of_names() -> AbstractContextManager[object]:
    return patch.object(CrashDisk, "sync_directory", lambda disk, path: None)


@contextmanager
def start_that_stays_behind_a_cut() -> Iterator[None]:
    """In lives with many cuts and starts: of the ordinary ones one in some hundreds would find it."""
    truncate = RecoveryPlan._truncate

    def forgetful(plan: RecoveryPlan, point: Point) -> None:
        start = plan.start
        truncate(plan, point)
        plan.start = start

    weights = {**STEPS, "cut_end": 12, "raise_start": 12, "begin_log_anew": 0}
    with patch.object(RecoveryPlan, "_truncate", forgetful), patch.object(Steps, "weights", weights):
        yield


def retention_that_keeps(ms: float, length: float) -> AbstractContextManager[object]:
    """Shares of `retention.ms` and `retention.bytes`."""
    limits = retention._limits

    def hasty(log: Log) -> tuple[int, int]:
        retention_ms, retention_bytes = limits(log)
        return max(-1, int(ms * (retention_ms + 1)) - 1), max(-1, int(length * (retention_bytes + 1)) - 1)

    return patch.object(retention, "_limits", hasty)


def retention_without_leases() -> AbstractContextManager[object]:
    return patch.object(Log, "leased_from", lambda log, now_ms: None)


PLANTED: dict[str, tuple[Callable[[], AbstractContextManager[object]], int]] = {
    "the sync behind an acknowledgement": (lambda: without_syncs_of(".part"), 1),
    "the segments' syncs": (lambda: without_syncs_of(".log"), 1),
    "the syncs of names": (without_syncs_of_names, 1),
    "a start that goes back with the end": (start_that_stays_behind_a_cut, 80),
    "a part of retention.ms": (lambda: retention_that_keeps(0.5, 1), 75),
    "a part of retention.bytes": (lambda: retention_that_keeps(1, 0.5), 1),
    "what a lease holds": (retention_without_leases, 25),
}
"""With the seed from which on it is searched for: most lives do not come by it."""
SEARCHED = 140


@pytest.mark.parametrize("forgotten", PLANTED)
def test_what_is_forgotten_is_found(forgotten: str) -> None:
    plant, first = PLANTED[forgotten]
    with plant():
        broken = next((seed for seed in range(first, first + SEARCHED) if live(seed).violation), None)
    assert broken is not None, f"{forgotten} can be left out, and nobody notices"
