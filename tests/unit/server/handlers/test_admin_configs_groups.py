"""Settings of groups (resource type 32): stored, described, listed, bounded, and there after a restart."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess, Line, after_power_cut

from duramen.errors import ErrorCode
from duramen.wire.messages import API

GROUP = 32
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
SET, DELETE, APPEND = 0, 1, 2


def alter(line: Line, group: str, *operations: tuple[str, int, str | None], validate_only: bool = False) -> Any:
    kinds = API[44].request
    configs = [kinds.AlterableConfig(name=name, config_operation=kind, value=value) for name, kind, value in operations]
    resource = kinds.AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=configs)
    (answer,) = line.call(44, 1, resources=[resource], validate_only=validate_only).responses
    return answer


def replace(line: Line, group: str, **values: str | None) -> Any:
    kinds = API[33].request
    configs = [kinds.AlterableConfig(name=name.replace("_", "."), value=value) for name, value in values.items()]
    resource = kinds.AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=configs)
    (answer,) = line.call(33, 2, resources=[resource]).responses
    return answer


def described(line: Line, group: str) -> dict[str, tuple[str, int]]:
    kinds = API[32].request
    resource = kinds.DescribeConfigsResource(resource_type=GROUP, resource_name=group, configuration_keys=None)
    (result,) = line.call(32, 4, resources=[resource]).results
    assert result.error_code == 0
    return {each.name: (each.value, each.config_source) for each in result.configs}


def listed(line: Line, *kinds: int) -> list[tuple[str, int]]:
    found = line.call(74, 1, resource_types=list(kinds)).config_resources
    return [(each.resource_name, each.resource_type) for each in found]


@pytest.fixture
def server() -> InProcess:
    return InProcess()


def test_set_described_listed_and_deleted(server: InProcess) -> None:
    line = server.connect()
    assert described(line, "audit")[SESSION] == ("45000", 5)
    assert listed(line, GROUP) == []
    assert alter(line, "audit", (SESSION, SET, "50000"), (HEARTBEAT, SET, "6000")).error_code == 0
    assert alter(line, "billing", (SESSION, SET, "46000")).error_code == 0
    assert described(line, "audit") == {
        "consumer.assignment.interval.ms": ("1000", 5),
        HEARTBEAT: ("6000", 8),
        SESSION: ("50000", 8),
    }
    assert server.broker.image.group_config("audit") == {SESSION: "50000", HEARTBEAT: "6000"}
    assert listed(line, GROUP) == [("audit", GROUP), ("billing", GROUP)]
    assert ("audit", GROUP) in listed(line)
    assert alter(line, "audit", (SESSION, DELETE, None), (HEARTBEAT, DELETE, None)).error_code == 0
    assert server.broker.image.group_config("audit") == {}
    assert listed(line, GROUP) == [("billing", GROUP)]
    told = [fields for event, fields in server.events if event == "group-configured"]
    assert [fields["group"] for fields in told] == ["audit", "billing", "audit"]


def test_the_older_request_replaces_all(server: InProcess) -> None:
    line = server.connect()
    assert replace(line, "audit", consumer_session_timeout_ms="50000").error_code == 0
    assert replace(line, "audit", consumer_heartbeat_interval_ms="6000").error_code == 0
    assert server.broker.image.group_config("audit") == {HEARTBEAT: "6000"}
    assert replace(line, "audit", consumer_session_timeout_ms=None).error_code == ErrorCode.INVALID_REQUEST
    assert replace(line, "").error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("group", "operation", "code", "words"),
    [
        ("", (SESSION, SET, "50000"), ErrorCode.INVALID_REQUEST, "Default group resources are not allowed."),
        ("g", ("no.such", SET, "1"), ErrorCode.INVALID_CONFIG, "Unknown group config name: no.such"),
        ("g", (SESSION, SET, "1"), ErrorCode.INVALID_CONFIG, "must be greater than or equal to group.consumer.min."),
        ("g", (SESSION, SET, "x"), ErrorCode.INVALID_CONFIG, "is not a whole number"),
        ("g", (SESSION, SET, None), ErrorCode.INVALID_REQUEST, "Null value not supported"),
        ("g", (SESSION, APPEND, "1"), ErrorCode.INVALID_CONFIG, "is not a list"),
        ("g", ("no.such", APPEND, "1"), ErrorCode.INVALID_CONFIG, "Unknown group config name: no.such"),
        ("g", (SESSION, 9, "1"), ErrorCode.INVALID_REQUEST, "Unsupported config operation"),
    ],
)
def test_refusals(
    server: InProcess, group: str, operation: tuple[str, int, str | None], code: ErrorCode, words: str
) -> None:
    answer = alter(server.connect(), group, operation)
    assert answer.error_code == code
    assert words in answer.error_message
    assert server.broker.image.group_config(group) == {}


def test_a_question_changes_nothing(server: InProcess) -> None:
    line = server.connect()
    assert alter(line, "audit", (SESSION, SET, "50000"), validate_only=True).error_code == 0
    assert alter(line, "audit", (SESSION, SET, "1"), validate_only=True).error_code == ErrorCode.INVALID_CONFIG
    assert listed(line, GROUP) == []


def test_they_outlive_the_process_and_their_group(server: InProcess) -> None:
    assert alter(server.connect(), "audit", (SESSION, SET, "50000")).error_code == 0
    again = after_power_cut(server)
    line = again.connect()
    assert described(line, "audit")[SESSION] == ("50000", 8)
    line.call(42, 2, groups_names=["audit"])
    assert described(line, "audit")[SESSION] == ("50000", 8)
