"""Fetch sessions by KIP-227: epochs, incremental changes, forgotten topics, eviction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from duramen.errors import ErrorCode, KafkaError
from duramen.server.reads import fetch_sessions
from duramen.server.reads.fetch_sessions import MIN_EVICTION_SECONDS, FetchSessions
from duramen.wire.messages.fetch import FetchRequest


class Counting:
    """Entropy whose ids are easy to tell apart."""

    def __init__(self) -> None:
        self.number = 0

    def random_bytes(self, length: int) -> bytes:
        self.number += 1
        return self.number.to_bytes(length, "big")

    def uniform(self, low: float, high: float) -> float:
        return low


def request(session_id: int, epoch: int, offsets: dict[str, int], forgotten: tuple[str, ...] = ()) -> Any:
    topics = [
        FetchRequest.FetchTopic(
            topic=name,
            partitions=[FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=100)],
        )
        for name, offset in offsets.items()
    ]
    return FetchRequest.new(
        session_id=session_id,
        session_epoch=epoch,
        topics=topics,
        forgotten_topics_data=[FetchRequest.ForgottenTopic(topic=name, partitions=[0]) for name in forgotten],
    )


def test_a_session_remembers_its_partitions() -> None:
    sessions = FetchSessions(10, Counting())
    first = sessions.plan(request(0, 0, {"a": 1, "b": 2}), 12, 0.0)
    assert first.session_id == 1
    assert not first.incremental
    second = sessions.plan(request(1, 1, {"b": 7}), 12, 1.0)
    assert second.incremental
    assert {t.key.name: t.fetch_offset for t in second.targets} == {"a": 1, "b": 7}
    third = sessions.plan(request(1, 2, {}, forgotten=("a",)), 12, 2.0)
    assert [t.key.name for t in third.targets] == ["b"]


@pytest.mark.parametrize("name", ["x" * 250, "\U0001f600"])
def test_no_session_keeps_a_name_that_no_topic_can_have(name: str) -> None:
    """Sessions outlive their connections: names of 32 KB took 95 MB for each of a thousand sessions."""
    sessions = FetchSessions(10, Counting())
    plan = sessions.plan(request(0, 0, {"a": 1, name: 2}), 12, 0.0)
    assert (plan.session, plan.session_id, len(plan.targets), len(sessions)) == (None, 0, 2, 0)
    assert sessions.plan(request(0, 0, {"a": 1}), 12, 0.0).session_id == 1
    with pytest.raises(KafkaError) as refused:
        sessions.plan(request(1, 1, {name: 2}), 12, 0.0)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 0


def test_a_partition_that_is_wanted_and_forgotten_at_once_is_forgotten() -> None:
    sessions = FetchSessions(10, Counting())
    sessions.plan(request(0, 0, {"a": 1, "b": 2}), 12, 0.0)
    plan = sessions.plan(request(1, 1, {"a": 7, "c": 3}, forgotten=("a", "c")), 12, 1.0)
    assert {t.key.name: t.fetch_offset for t in plan.targets} == {"b": 2}


def test_wrong_epochs_and_unknown_sessions_are_refused() -> None:
    sessions = FetchSessions(10, Counting())
    sessions.plan(request(0, 0, {"a": 1}), 12, 0.0)
    with pytest.raises(KafkaError) as wrong:
        sessions.plan(request(1, 5, {}), 12, 0.0)
    assert wrong.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    with pytest.raises(KafkaError) as unknown:
        sessions.plan(request(99, 1, {}), 12, 0.0)
    assert unknown.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    with pytest.raises(KafkaError) as mixed:
        sessions.plan(request(1, 1, {}), 13, 0.0)
    assert mixed.value.code is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_final_epoch_closes_a_session() -> None:
    sessions = FetchSessions(10, Counting())
    sessions.plan(request(0, 0, {"a": 1}), 12, 0.0)
    closing = sessions.plan(request(1, -1, {}), 12, 0.0)
    assert closing.session is None
    assert len(sessions) == 0


def test_full_caches_decline_new_sessions_until_an_old_one_is_idle() -> None:
    sessions = FetchSessions(1, Counting())
    assert sessions.plan(request(0, 0, {"a": 1}), 12, 0.0).session_id == 1
    assert sessions.plan(request(0, 0, {"b": 1}), 12, 1.0).session_id == 0
    assert sessions.plan(request(0, 0, {"b": 1}), 12, MIN_EVICTION_SECONDS + 1).session_id != 0
    assert sessions.evictions == 1


def test_a_partition_that_had_data_is_served_last_next_time() -> None:
    sessions = FetchSessions(10, Counting())
    plan = sessions.plan(request(0, 0, {"a": 1, "b": 2}), 12, 0.0)
    assert plan.session is not None
    plan.session.rotate(plan.targets[0].key)
    assert [t.key.name for t in sessions.plan(request(1, 1, {}), 12, 0.0).targets] == ["b", "a"]


def test_all_sessions_together_hold_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_PARTITIONS", 6)
    sessions = FetchSessions(1000, Counting())
    for number in range(3):
        assert sessions.plan(request(0, 0, {"a": 0, "b": 0}), 12, float(number)).session is not None
    assert sessions.plan(request(0, 0, {"c": 0}), 12, 3.0).session is None, "this client goes without"
    with pytest.raises(KafkaError) as grown:
        sessions.plan(request(3, 1, {"c": 0}), 12, 3.0)
    assert grown.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.plan(request(1, 1, {}, forgotten=("a",)), 12, 3.0).session is not None
    assert sessions.plan(request(0, 0, {"a": 0, "b": 0, "c": 0}), 12, 4.0).session is not None
    sessions.plan(request(2, -1, {}), 12, 5.0)
    assert sessions.plan(request(0, 0, {"a": 0, "b": 0}), 12, 6.0).session is not None
    late = 6.0 + MIN_EVICTION_SECONDS
    assert sessions.plan(request(0, 0, dict.fromkeys("abcde", 0)), 12, late).session is not None
    assert len(sessions) == 1


# ---------------------------------------------------------------------- many partitions


def named(indexes: list[int]) -> list[Any]:
    partition = FetchRequest.FetchPartition
    return [
        FetchRequest.FetchTopic(
            topic="t", partitions=[partition(partition=n, fetch_offset=7, partition_max_bytes=100) for n in indexes]
        )
    ]


def wide(epoch: int, wanted: list[int], forgotten: list[int]) -> Any:
    """A request of session 1, or for a new session."""
    leaving = [FetchRequest.ForgottenTopic(topic="t", partitions=forgotten)]
    return FetchRequest.new(
        session_id=1 if epoch > 0 else 0, session_epoch=epoch, topics=named(wanted), forgotten_topics_data=leaving
    )


class Plans:
    """What is planned in steps, each of which is looked at."""

    def __init__(self) -> None:
        self.sessions = FetchSessions(10, Counting())
        self.steps = 0

    def whole(self, body: Any) -> Any:
        work = self.sessions.plan_in_steps(body, 12, 0.0)
        self.steps = 0
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value
            self.steps += 1

    def partitions(self) -> int:
        return self.sessions._partitions


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_partition_that_is_named_again_and_again_is_planned_in_steps(epoch: int) -> None:
    plans = Plans()
    plan = plans.whole(wide(epoch, [5] * 1_000 + [6], []))
    assert [target.key.partition for target in plan.targets] == [5, 6]
    assert plans.steps == 10


def test_many_partitions_are_forgotten_in_steps() -> None:
    plans = Plans()
    assert len(plans.whole(wide(0, [*range(1_500)], [])).targets) == 1_500
    plan = plans.whole(wide(1, [0, 1_499, 2_000], [*range(1_000), *range(500), 2_000]))
    assert plans.steps >= 16
    assert [target.key.partition for target in plan.targets] == [*range(1_000, 1_500)], "what is wanted, too, as well"
    assert plans.partitions() == 500


@pytest.mark.parametrize("wanted", [[], [5_000]])
@pytest.mark.parametrize("steps", [1, 5, 12])
def test_a_session_that_ends_between_the_steps_of_forgetting_is_not_found(wanted: list[int], steps: int) -> None:
    plans = Plans()
    plans.whole(wide(0, [*range(3_000)], []))
    work: Iterator[None] = plans.sessions.plan_in_steps(wide(1, wanted, [*range(1_200)]), 12, 0.0)
    for _ in range(steps):
        next(work)
    plans.sessions.plan(request(1, -1, {}), 12, 0.0)
    assert (len(plans.sessions), plans.partitions()) == (0, 0)
    with pytest.raises(KafkaError) as refused:
        list(work)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert plans.partitions() == 0


def test_a_session_that_somebody_else_went_on_with_between_the_steps_has_another_epoch() -> None:
    plans = Plans()
    plans.whole(wide(0, [*range(3_000)], []))
    work: Iterator[None] = plans.sessions.plan_in_steps(wide(1, [], [*range(1_200)]), 12, 0.0)
    next(work)
    plans.sessions.plan(request(1, 1, {}), 12, 0.0)
    with pytest.raises(KafkaError) as refused:
        list(work)
    assert refused.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
