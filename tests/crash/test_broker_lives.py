"""Lives of a broker with several log directories keep every promise; and mends taken out, which they must miss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import pytest
from tests.crash import broker_lives
from tests.crash.broker_lives import Life, live
from tests.crash.lives_sweep import DIRECTORIES, Lives
from tests.crash.test_lives import without_syncs_of_names

from duramen.partition.metadata.directory_checks import ClosedDirectories
from duramen.partition.store.delete_partitions import PartitionDeletions
from duramen.partition.store.hosted_partitions import HostedPartitions

LIVES = 35
"""In `make test`; `make crash-lives DIRECTORIES=1` has 4,000."""
FULL_JOURNALS = {"create": 6, "delete": 6, "fill_journal": 3, "run": 10, "pass_time": 2, "rest": 1}


def test_every_promise_is_kept_through_random_lives_of_a_broker() -> None:
    lives = Lives(DIRECTORIES)
    for seed in range(1, 1 + LIVES):
        lives.add(live(seed))
    assert [f"{each.seed}: {each.violation}" for each in lives.broken] == []
    assert lives.missing == []


def test_a_seed_decides_everything_of_a_broker() -> None:
    assert live(8) == live(8)


@contextmanager
def deletions_tried_once() -> Iterator[None]:
    """As it was: a deletion for which one directory's journal had no room was answered and never made. In lives of
    little else than full journals, one in some thirty finds it: at a rest, or at a start that no longer knows the log.
    """
    with (
        patch.object(PartitionDeletions, "_retry", lambda deletions: None),
        patch.object(HostedPartitions, "is_settled", lambda hosted, is_known: True),
        patch.object(Life, "steps", FULL_JOURNALS),
        patch.object(broker_lives, "GENERATIONS", 2),
    ):
        yield


def partitions_begin_anew() -> AbstractContextManager[object]:
    return patch.object(ClosedDirectories, "find", lambda closed, image: None)


PLANTED: dict[str, tuple[Callable[[], AbstractContextManager[object]], range, tuple[str, ...]]] = {
    "a deletion that waits for room": (
        deletions_tried_once,
        range(45, 120),
        ("left of what was deleted", "told for nothing: log-of-unknown-topic"),
    ),
    "a directory that is away": (
        partitions_begin_anew,
        range(1, 30),
        ("is lost", "move the one that is not to be served"),
    ),
    "the syncs of names": (without_syncs_of_names, range(1, 30), ("",)),
}


@pytest.mark.parametrize("forgotten", PLANTED)
def test_what_is_forgotten_of_several_directories_is_found(forgotten: str) -> None:
    plant, seeds, told = PLANTED[forgotten]
    with plant():
        violation = next((each.violation for each in map(live, seeds) if each.violation), None)
    assert violation is not None, f"{forgotten} can be left out, and nobody notices"
    assert any(each in violation for each in told), violation
