"""DescribeConfigs of resources that have no settings here: the same refusals as Apache Kafka's."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import InProcess

from duramen.errors import ErrorCode
from duramen.wire.messages import API


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (16, "metrics", ErrorCode.NONE),
        (16, "", ErrorCode.INVALID_REQUEST),
        (32, "", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_group_and_client_metrics_have_a_name(kind: int, name: str, code: ErrorCode) -> None:
    line = InProcess().connect()
    resource = API[32].request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    (result,) = line.call(32, 4, resources=[resource]).results
    assert (result.error_code, result.configs) == (code, [])
