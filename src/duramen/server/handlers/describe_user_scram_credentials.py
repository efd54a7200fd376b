"""DescribeUserScramCredentials: no user has credentials here, and whoever asks is told so as by Kafka. Version 0."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from duramen.errors import ErrorCode
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

NOT_THERE = "Attempt to describe a user credential that does not exist: "
TWICE = "Cannot describe SCRAM credentials for the same user twice in a single request: "
SHOWN_OF_A_NAME = 200
"""Characters in a message: a name may be as long as any string, and then no string holds both."""


def handle(request: Request) -> None:
    """None for all users; RESOURCE_NOT_FOUND for each that is named, once."""
    if CLUSTER_NAME in request.denied:
        code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        request.reply(DescribeUserScramCredentialsResponse.new(error_code=code, error_message=None, results=[]))
        return
    request.reply_in_steps(_response(request))


def _response(request: Request) -> Steps:
    named: Counter[str] = Counter()
    for number, user in enumerate(request.body.users or (), 1):
        if number % STEP == 0:
            yield
        named[user.name] += 1
    results = []
    for number, (name, times) in enumerate(named.items(), 1):
        if number % STEP == 0:
            yield
        code, told = (ErrorCode.RESOURCE_NOT_FOUND, NOT_THERE) if times == 1 else (ErrorCode.DUPLICATE_RESOURCE, TWICE)
        results.append(
            DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(
                user=name, error_code=int(code), error_message=told + name[:SHOWN_OF_A_NAME], credential_infos=[]
            )
        )
    return DescribeUserScramCredentialsResponse.new(error_message=None, results=results)
