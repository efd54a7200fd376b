"""DescribeClientQuotas where there are none: Kafka's answers, and its refusals of filters that are none."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess

from duramen.errors import ErrorCode
from duramen.wire.messages import API

EXACT, DEFAULT, SPECIFIED = 0, 1, 2


def asked(version: int, *filters: tuple[str, int, str | None], strict: bool = False) -> Any:
    components = [
        API[48].request.ComponentData(entity_type=kind, match_type=match_type, match=match)
        for kind, match_type, match in filters
    ]
    return InProcess().connect().call(48, version, components=components, strict=strict)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "filters",
    [
        [],
        [("user", SPECIFIED, None)],
        [("user", EXACT, "alice"), ("client-id", DEFAULT, None)],
        [("ip", DEFAULT, None)],
    ],
)
def test_no_entity_has_a_quota(version: int, filters: list[tuple[str, int, str | None]]) -> None:
    for strict in (False, True):
        reply = asked(version, *filters, strict=strict)
        assert (reply.error_code, reply.error_message, reply.entries) == (0, None, [])


@pytest.mark.parametrize(
    ("filters", "code", "words"),
    [
        ([("", SPECIFIED, None)], ErrorCode.INVALID_REQUEST, "Invalid empty entity type."),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST, "MATCH_TYPE_EXACT, but set match string to null"),
        ([("user", DEFAULT, "a")], ErrorCode.INVALID_REQUEST, "MATCH_TYPE_DEFAULT, but also specified a match"),
        ([("user", SPECIFIED, "a")], ErrorCode.INVALID_REQUEST, "MATCH_TYPE_SPECIFIED, but also specified a match"),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST, "Unknown match type 3"),
        ([("user", EXACT, "a"), ("user", EXACT, "b")], ErrorCode.INVALID_REQUEST, "cannot appear more than once"),
        ([("ip", DEFAULT, None), ("user", DEFAULT, None)], ErrorCode.INVALID_REQUEST, "Invalid entity filter"),
        ([("topic", SPECIFIED, None)], ErrorCode.UNSUPPORTED_VERSION, "Unsupported entity type topic"),
        ([("x" * 32_767, SPECIFIED, None)], ErrorCode.UNSUPPORTED_VERSION, "Unsupported entity type xxx"),
    ],
)
def test_what_is_no_filter_is_refused(filters: list[tuple[str, int, str | None]], code: ErrorCode, words: str) -> None:
    reply = asked(1, *filters)
    assert reply.error_code == code
    assert words in reply.error_message
    assert reply.entries is None
