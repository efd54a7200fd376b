"""Refusals have the numbers that clients of Confluent's API look at, and only below its paths."""

from __future__ import annotations

import pytest

from duramen.errors import ErrorCode, KafkaError
from duramen.gateway.confluent.rest_errors import rest_error, version_of
from duramen.gateway.confluent.rest_failures import rest_problem
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.refusals import refusal_form


@pytest.mark.parametrize(
    ("path", "version"),
    [("/v3", 3), ("/v3/clusters", 3), ("/v3/a\nb", 3), ("/v30", 0), ("/topics", 2), ("/topics/a/b", 2), ("/topicsx", 0),
     ("/consumers/g", 2), ("/brokers", 2), ("/v1/topics/t/records", 0)],
)  # fmt: skip
def test_paths(path: str, version: int) -> None:
    assert version_of(path) == version


@pytest.mark.parametrize(
    ("version", "status", "code", "kafka_error", "number"),
    [
        (3, 404, "no-such-topic", None, 40403),
        (2, 404, "no-such-topic", None, 40401),
        (2, 404, "no-such-partition", None, 40402),
        (3, 404, "not-found", None, 404),
        (3, 400, "bad-request", None, 400),
        (3, 400, "bad-request", "INVALID_CONFIG", 40002),
        (3, 400, "topic-exists", "TOPIC_ALREADY_EXISTS", 40002),
        (3, 503, "overloaded", None, 50003),
        (2, 502, "refused", "UNKNOWN_SERVER_ERROR", 50002),
        (3, 502, "refused", "UNKNOWN_MEMBER_ID", 50002),
        (2, 500, "bug", None, 500),
        (2, 422, "key-schema-needed", None, 42201),
        (3, 422, "key-schema-needed", None, 422),
        (3, 401, "login-needed", None, 40101),
        (2, 403, "not-allowed", None, 40301),
        (3, 413, "record-too-large", "MESSAGE_TOO_LARGE", 413),
    ],
)
def test_numbers(version: int, status: int, code: str, kafka_error: str | None, number: int) -> None:
    found = rest_error(version, ProblemError(status, code, "why", kafka_error=kafka_error))
    assert (found.error_code, found.message) == (number, "why")


def test_forms() -> None:
    problem = ProblemError(503, "overloaded", "why", {"retry-after": "1"})
    status, body, headers = refusal_form("/v3/clusters", problem)
    assert status == 503
    assert body == b'{"error_code":50003,"message":"why"}'
    assert headers == {"retry-after": "1", "content-type": "application/json"}
    assert refusal_form("/topics", problem).headers["content-type"] == "application/vnd.kafka.v2+json"
    assert refusal_form("/v1/stream/a", problem).headers["content-type"] == "application/problem+json"


def test_what_the_cluster_refuses_for_another_reason_has_the_status_of_its_number() -> None:
    refused = rest_problem(KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "no such member"))
    for path in ("/consumers/g/instances/c/offsets", "/v3/clusters/c/topics"):
        form = refusal_form(path, refused)
        assert form.status == 500
        assert form.body.startswith(b'{"error_code":50002,')
    assert refusal_form("/v1/stream/a", refused).status == 502
