"""Bodies of requests to a consumer."""

from __future__ import annotations

import pytest

from duramen.gateway.consumers.consumer_bodies import named, offsets_of, partitions_of, subscription_of
from duramen.gateway.edge.problem import ProblemError
from duramen.model import TopicPartition

A, B = (TopicPartition("t", number) for number in range(2))


def test_partitions_and_offsets() -> None:
    twice = b'{"partitions": [{"topic": "t", "partition": 1}, {"topic": "t", "partition": 1}]}'
    assert partitions_of(twice) == [B]
    found = offsets_of(b'{"offsets": [{"topic": "t", "partition": 0, "offset": -1, "metadata": "m"}]}')
    assert (found[A].offset, found[A].metadata) == (-1, "m")
    assert [each.partition for each in named([B, A]).partitions] == [0, 1]


def test_subscriptions() -> None:
    assert subscription_of(b'{"topics": ["a"]}').topics == ["a"]
    assert subscription_of(b'{"topic_pattern": "a.*"}').topic_pattern == "a.*"


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"", 400, "body"),
        (b"{}", 400, "topics"),
        (b'{"topics": []}', 400, "topics"),
        (b'{"topics": [""]}', 400, "topics[0]"),
        (b'{"topics": ["a"], "topic_pattern": "b"}', 409, "mutually exclusive"),
        (b'{"topic_pattern": "%s"}' % (b"x" * 1001), 400, "topic_pattern"),
    ],
)
def test_what_is_no_subscription(body: bytes, status: int, why: str) -> None:
    with pytest.raises(ProblemError) as refused:
        subscription_of(body)
    assert refused.value.status == status
    assert why in refused.value.detail


def test_an_offset_twice() -> None:
    one = b'{"topic": "t", "partition": 0, "offset": 1}'
    with pytest.raises(ProblemError, match="twice"):
        offsets_of(b'{"offsets": [%s, %s]}' % (one, one))
