"""What a follower makes of its leader's answers, without a log or a network."""

from __future__ import annotations

from random import Random

import pytest

from duramen.errors import ErrorCode
from duramen.machines.replication.follower import (
    APPEND,
    IGNORE,
    MOST_PAUSE,
    BeginAnew,
    Cut,
    FetchedPartition,
    FollowerState,
    Following,
    GiveUp,
    Pause,
    cut_offset,
)

BACKOFF = 0.05


class FakeLog:
    """Epochs of a log, one for each offset."""

    def __init__(self, *epochs: int, start: int = 0, high: int = 0) -> None:
        self.epochs = list(epochs)
        self.start_offset = start
        self.high_watermark = high

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.epochs)

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1] if self.epochs else -1

    @property
    def latest_epoch_start(self) -> int:
        return self.start_offset + self.epochs.index(self.latest_epoch) if self.epochs else -1

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        if epoch < 0 or epoch > self.latest_epoch:
            return -1, -1
        older = [each for each in self.epochs if each <= epoch]
        if not older:
            return epoch, self.start_offset
        return older[-1], self.start_offset + len(older)

    def cut(self, offset: int) -> None:
        del self.epochs[offset - self.start_offset :]


def asked(log: FakeLog, epoch: int = 9) -> Following:
    """It follows in this epoch, and has named its end in Fetch 1."""
    following = Following(BACKOFF)
    assert following.follow(2, epoch, log) is None
    following.name(log, 1)
    return following


def answer(error: ErrorCode = ErrorCode.NONE, **fields: int) -> FetchedPartition:
    return FetchedPartition(error, **fields)


def hear(following: Following, log: FakeLog, told: FetchedPartition, number: int = 1, may_lose: bool = False) -> object:
    return following.hear(number, told, log, may_lose=may_lose)


def test_what_follows_is_appended() -> None:
    log = FakeLog(1, 1, 2)
    following = asked(log)
    assert (following.named, following.state) == ((9, 3, 2), FollowerState.COMPARING)
    assert hear(following, log, answer(high_watermark=2, log_start=0)) is APPEND
    assert following.state is FollowerState.FETCHING
    assert hear(following, log, answer(high_watermark=3, log_start=0), number=2) is APPEND  # in a session it stands


@pytest.mark.parametrize(
    "told", [answer(), answer(ErrorCode.OFFSET_OUT_OF_RANGE, log_start=9), answer(diverging_end=0)]
)
def test_an_answer_counts_for_what_was_named(told: FetchedPartition) -> None:
    log = FakeLog(1, 1, 2)
    assert hear(Following(BACKOFF), log, told) is IGNORE
    following = asked(log)
    assert hear(following, log, told, number=0) is IGNORE  # of a Fetch before
    log.epochs.append(2)
    assert hear(following, log, told) is IGNORE
    following = asked(log)
    log.epochs[-1] = 3
    assert hear(following, log, told) is IGNORE
    following = asked(log)
    following.follow(2, 10, log)
    assert hear(following, log, told) is IGNORE
    following.name(log, 2)
    assert hear(following, log, told, number=1) is IGNORE
    following.forget()
    assert hear(following, log, told, number=2) is IGNORE


def test_where_histories_part_the_log_is_cut() -> None:
    log = FakeLog(1, 1, 3, 3, 3, high=2)
    following = asked(log)
    assert hear(following, log, answer(diverging_epoch=3, diverging_end=4)) == Cut(4)
    assert following.state is FollowerState.CUTTING
    assert hear(following, log, answer()) is IGNORE  # until it is named anew
    log = FakeLog(1, 1, 3, 3, 3, high=2)
    assert hear(asked(log), log, answer(diverging_epoch=2, diverging_end=40)) == Cut(2)  # it does not have 2
    assert hear(asked(log), log, answer(diverging_epoch=1, diverging_end=40)) == Cut(2)


def test_what_is_committed_stays_unless_it_may_be_lost() -> None:
    told = answer(diverging_epoch=1, diverging_end=1)
    log = FakeLog(1, 1, 3, high=2)
    following = asked(log)
    given_up = hear(following, log, told)
    assert isinstance(given_up, GiveUp)
    assert "committed up to 2" in given_up.reason
    assert following.is_offline
    following.wake()
    assert following.is_offline
    assert hear(following, log, answer(), number=5) is IGNORE
    assert hear(asked(log), log, told, may_lose=True) == Cut(1)
    assert following.follow(3, 10, log) is None  # the next leader may have it
    assert not following.is_offline


def test_a_leader_that_has_only_younger_records_is_begun_with() -> None:
    log = FakeLog(1, 1, 3, high=2)
    assert hear(asked(log), log, answer(diverging_epoch=-1, diverging_end=2)) == BeginAnew(2)
    assert isinstance(hear(asked(log), log, answer(diverging_epoch=-1, diverging_end=1)), GiveUp)
    assert hear(asked(log), log, answer(diverging_epoch=-1, diverging_end=1), may_lose=True) == BeginAnew(1)


def test_a_leader_that_begins_above_the_end_is_begun_with() -> None:
    log = FakeLog(1, 1, start=3, high=4)
    error = ErrorCode.OFFSET_OUT_OF_RANGE
    assert hear(asked(log), log, answer(error, high_watermark=20, log_start=6)) == BeginAnew(6)
    for start in (-1, 0, 3, 5):  # at the end, or below: epochs decide, and nothing goes by this
        assert isinstance(hear(asked(log), log, answer(error, high_watermark=20, log_start=start)), Pause)
    empty = FakeLog(start=9, high=9)
    assert isinstance(hear(asked(empty), empty, answer(error, log_start=0)), Pause)
    assert hear(asked(empty), empty, answer(error, log_start=0), may_lose=True) == BeginAnew(0)


def test_an_epoch_without_records_is_cut_alone() -> None:
    log = FakeLog(1, 1)
    log.__class__ = type("Led", (FakeLog,), {"latest_epoch": 4, "latest_epoch_start": 2})
    following = asked(log)
    assert hear(following, log, answer(diverging_epoch=1, diverging_end=7)) == Cut(2)


def test_nothing_to_cut_is_a_pause() -> None:
    log = FakeLog(1, 1)
    for told in (answer(diverging_epoch=1, diverging_end=7), answer(diverging_epoch=5, diverging_end=1)):
        paused = hear(asked(log), log, told)
        assert isinstance(paused, Pause)
        assert paused.reason


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
    ],
)
def test_errors_are_pauses_that_grow(error: ErrorCode) -> None:
    log = FakeLog(1)
    following = asked(log)
    seconds = []
    for number in range(1, 9):
        following.name(log, number)
        paused = hear(following, log, answer(error), number=number)
        assert isinstance(paused, Pause)
        assert bool(paused.reason) == (
            number == 1 and error in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE)
        )
        seconds.append(paused.seconds)
        assert following.state is FollowerState.WAITING
        following.wake()
    assert seconds[:3] == [BACKOFF, 2 * BACKOFF, 4 * BACKOFF]
    assert seconds[-1] == MOST_PAUSE
    following.name(log, 20)
    assert hear(following, log, answer(), number=20) is APPEND
    assert following.pause().seconds == BACKOFF


def test_a_log_that_is_ahead_of_the_metadata_is_left_alone() -> None:
    following = Following(BACKOFF)
    log = FakeLog(5)
    assert isinstance(following.follow(2, 4, log), GiveUp)
    assert following.is_offline
    assert following.follow(2, 5, log) is None


def test_histories_agree_behind_a_few_cuts() -> None:
    """Two logs of any epochs: what is left is their common beginning, never less."""
    random = Random(7)
    for _ in range(500):
        mine = FakeLog(*sorted(random.choices(range(6), k=random.randrange(12))))
        theirs = FakeLog(*sorted(random.choices(range(6), k=random.randrange(12))))
        # One leader wrote the records of an epoch: where both have one at an offset they began it at the same place.
        common = 0
        for own, other in zip(mine.epochs, theirs.epochs, strict=False):
            if own != other:
                break
            common += 1
        for epoch in set(mine.epochs[common:]) & set(theirs.epochs[common:]):
            if epoch not in mine.epochs[:common]:
                mine.epochs = [each if each != epoch else each + 10 for each in mine.epochs]
        mine.epochs.sort()
        cuts = 0
        while mine.epochs:
            last, end = mine.latest_epoch, mine.end_offset
            found, found_end = theirs.end_of_epoch(last) if last <= theirs.latest_epoch else _latest(theirs)
            if found == last and end <= found_end:
                break
            offset = 0 if found < 0 or found < min(theirs.epochs, default=99) else cut_offset(mine, found, found_end)
            assert offset is not None
            assert offset < end
            mine.cut(offset)
            cuts += 1
        assert mine.epochs == theirs.epochs[: len(mine.epochs)]
        assert len(mine.epochs) >= common or not common, (mine.epochs, theirs.epochs, common)
        assert cuts <= 6


def _latest(log: FakeLog) -> tuple[int, int]:
    return log.latest_epoch, log.end_offset
