"""Groups of KIP-848 are not served: what a member is told, and that the API is there to be told by."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import InProcess

from duramen.errors import ErrorCode


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_is_told_to_use_the_classic_protocol(version: int) -> None:
    joining = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 300_000}
    client = InProcess().connect()
    reply = client.call(68, version, **joining, subscribed_topic_names=["t"], topic_partitions=[])
    assert reply.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "group.protocol=classic" in reply.error_message
    assert (reply.member_id, reply.assignment) == (None, None)


def test_the_api_is_advertised_as_kafka_does_with_these_groups_switched_off() -> None:
    apis = {api.api_key: (api.min_version, api.max_version) for api in InProcess().connect().call(18, 3).api_keys}
    assert apis[68] == (0, 1)
