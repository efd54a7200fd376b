"""Access control lists without an authorizer: the answers Kafka gives; MirrorMaker and kafka-acls know them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess

from duramen.errors import ErrorCode
from duramen.wire.messages import API

ANYTHING = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
RULE = {
    "resource_type": 2,
    "resource_name": "t",
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


def answers(key: int, version: int, **fields: Any) -> list[tuple[int, str]]:
    reply = InProcess().connect().call(key, version, **fields)
    found = reply.filter_results if key == 31 else reply.results if key == 30 else [reply]
    return [(one.error_code, one.error_message) for one in found]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_no_authorizer_is_configured(version: int) -> None:
    refused = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    assert answers(29, version, **ANYTHING) == [refused]
    refused = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    rule = API[30].request.AclCreation(**RULE)
    assert answers(30, version, creations=[rule, rule]) == [refused] * 2
    either = API[31].request.DeleteAclsFilter(**ANYTHING)
    assert answers(31, version, filters=[either, either]) == [refused] * 2
