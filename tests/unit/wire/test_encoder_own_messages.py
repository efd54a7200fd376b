"""Messages of our own key range: what goes in comes out, and Kafka's keys stay Kafka's."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.message_strategies import CASES, OWN, sample

from duramen.wire import messages
from duramen.wire.errors import UnsupportedVersionError
from duramen.wire.messages.conditional_append import ConditionalAppendRequest, ConditionalAppendResponse
from duramen.wire.schema import Message


@pytest.mark.parametrize("message", sorted(OWN, key=lambda each: each.name), ids=lambda each: each.name)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    for seed in range(50):
        for version in range(message.min_version, message.max_version + 1):
            value = sample(message, version, Random(seed))
            assert message.decode(message.encode(value, version), version) == value


def test_a_conditional_append_without_an_epoch_is_what_it_was() -> None:
    request = ConditionalAppendRequest.new(
        topic_name="t", partition=1, expected_offset=5, close=True, records=b"xy", producer_id=9
    )
    first = "0274" + "00" * 16 + "00000001ffff00007530000000000000000501" + "037879" + "01" + "00080000000000000009"
    assert ConditionalAppendRequest.encode(request, 0).hex() == first
    with pytest.raises(UnsupportedVersionError):
        ConditionalAppendRequest.encode(ConditionalAppendRequest.new(expected_epoch=0), 0)
    answer = ConditionalAppendResponse.new(base_offset=1, end_offset=7, leader_epoch=3, last_txid=4, end_epoch=3)
    assert ConditionalAppendResponse.encode(answer, 1)[:-5] == ConditionalAppendResponse.encode(answer, 0)[:-1]


def test_own_messages_are_flexible_from_the_start() -> None:
    assert {m.flexible_from for m, _ in CASES if m in OWN} == {0}


def test_own_keys_fit_the_protocol_and_lie_far_above_kafkas() -> None:
    own = [key for key in messages.API if key >= messages.OWN_KEYS]
    assert own
    assert max(own) < 1 << 15
    assert max(key for key in messages.API if key < messages.OWN_KEYS) < 1000
