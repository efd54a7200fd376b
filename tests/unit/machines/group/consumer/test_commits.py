"""Who may commit and fetch in a consumer group, epoch by epoch."""

from __future__ import annotations

from typing import Any

import pytest

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.group.commands import NewOffset
from duramen.machines.group.consumer.commits import check_commit, check_fetch
from duramen.machines.group.consumer.state import ClassicTag, ConsumerGroup, ConsumerMember

T = b"t" * 16


@pytest.fixture
def group() -> ConsumerGroup:
    made = ConsumerGroup("g")
    made.put(ConsumerMember("m", epoch=5, previous_epoch=4, assigned={T: {0: 3, 1: 5}}, revoking={T: {2: 2}}))
    made.put(ConsumerMember("classic", epoch=5, assigned={T: {3: 5}}, classic=ClassicTag(1000, ())))
    return made


def refusal(group: ConsumerGroup, member_id: str, epoch: int, *partitions: int, **options: Any) -> ErrorCode | None:
    offsets = [NewOffset("t", partition, 1, topic_id=T) for partition in partitions]
    try:
        check_commit(group, member_id, None, epoch, offsets, **options)
    except KafkaError as error:
        return error.code
    return None


def test_at_its_epoch_it_commits_what_it_likes(group: ConsumerGroup) -> None:
    assert refusal(group, "m", 5, 0, 9) is None


@pytest.mark.parametrize(
    ("epoch", "partitions", "code"),
    [
        (4, (0,), None),
        (3, (0, 2), None),
        (2, (2,), None),
        (2, (0,), ErrorCode.STALE_MEMBER_EPOCH),
        (4, (1,), ErrorCode.STALE_MEMBER_EPOCH),
        (4, (0, 1), ErrorCode.STALE_MEMBER_EPOCH),
        (4, (9,), ErrorCode.STALE_MEMBER_EPOCH),
        (6, (0,), ErrorCode.STALE_MEMBER_EPOCH),
        (-1, (0,), ErrorCode.STALE_MEMBER_EPOCH),
    ],
)
def test_at_another_epoch_what_it_had_then(
    group: ConsumerGroup, epoch: int, partitions: tuple[int, ...], code: ErrorCode | None
) -> None:
    assert refusal(group, "m", epoch, *partitions) is code
    in_transaction = ErrorCode.ILLEGAL_GENERATION if code else None
    assert refusal(group, "m", epoch, *partitions, is_transactional=True) is in_transaction


def test_who_is_no_member(group: ConsumerGroup) -> None:
    assert refusal(group, "x", 5, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(group, "", -1, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(group, "", -1, 0, is_transactional=True) is None
    assert refusal(ConsumerGroup("g"), "", -1, 0) is None


def test_old_requests_are_for_members_of_the_classic_protocol(group: ConsumerGroup) -> None:
    assert refusal(group, "m", 5, 0, knows_epochs=False) is ErrorCode.UNSUPPORTED_VERSION
    assert refusal(group, "classic", 5, 3, knows_epochs=False) is None
    assert refusal(group, "classic", 6, 3) is ErrorCode.ILLEGAL_GENERATION


def test_fetching(group: ConsumerGroup) -> None:
    check_fetch(group, None, -1)
    check_fetch(group, "m", 5)
    for member_id, epoch, code in [
        ("m", 4, ErrorCode.STALE_MEMBER_EPOCH),
        ("classic", 4, ErrorCode.ILLEGAL_GENERATION),
        ("x", 5, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, 5, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        with pytest.raises(KafkaError) as refused:
            check_fetch(group, member_id, epoch)
        assert refused.value.code is code
