"""DescribeUserScramCredentials where no user has any: none for all, an error by name for each that is named."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess

from duramen.errors import ErrorCode
from duramen.wire.messages import API


def asked(users: list[str] | None) -> Any:
    named = None if users is None else [API[50].request.UserName(name=name) for name in users]
    return InProcess().connect().call(50, 0, users=named)


@pytest.mark.parametrize("users", [None, []])
def test_all_users_are_none(users: list[str] | None) -> None:
    reply = asked(users)
    assert (reply.error_code, reply.error_message, reply.results) == (0, None, [])


def test_a_named_user_is_not_found_and_one_named_twice_is_refused() -> None:
    reply = asked(["alice", "bob", "alice"])
    assert reply.error_code == 0
    assert [(one.user, one.error_code, one.error_message) for one in reply.results] == [
        (
            "alice",
            ErrorCode.DUPLICATE_RESOURCE,
            "Cannot describe SCRAM credentials for the same user twice in a single request: alice",
        ),
        ("bob", ErrorCode.RESOURCE_NOT_FOUND, "Attempt to describe a user credential that does not exist: bob"),
    ]


def test_the_longest_name_is_answered() -> None:
    (one,) = asked(["x" * 32_767]).results
    assert (len(one.user), one.error_code) == (32_767, ErrorCode.RESOURCE_NOT_FOUND)
