"""Requests of the cluster that ask for one thing: its answer out of the response."""

from __future__ import annotations

from typing import Any

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.metadata import error_code, only
from duramen.client.protocol.routes import Route
from duramen.errors import ErrorCode, KafkaError
from duramen.wire.messages import API


async def single_answer(
    cluster: AsyncCluster, route: Route, key: int, request: Any, field: str, allowed: tuple[ErrorCode, ...] = ()
) -> Any:
    """The one answer in `field` of the response; KafkaError unless it is granted, or refused by a code of `allowed`."""
    name = API[key].name

    def code_of(response: Any) -> int:
        code = int(only(getattr(response, field), name).error_code)
        return 0 if error_code(code) in allowed else code

    response = await cluster.call(route, key, request, code_of=code_of)
    answer = only(getattr(response, field), name)
    if answer.error_code and error_code(answer.error_code) not in allowed:
        raise KafkaError(error_code(answer.error_code), answer.error_message or name)
    return answer
