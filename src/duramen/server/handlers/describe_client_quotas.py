"""DescribeClientQuotas: no client has a quota here, and whoever asks is told so. Versions 0-1.

`kafka-configs` and consoles ask on their own, and take an API that is not there for an error. Filters are checked as
Kafka checks them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from duramen.errors import ErrorCode, KafkaError
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.wire.messages.describe_client_quotas import DescribeClientQuotasResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

IP: Final = "ip"
TYPES: Final = frozenset({"user", "client-id", IP})
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
SHOWN_OF_A_MESSAGE: Final = 300
"""Characters: it names what was asked for, which may be as long as any string."""


def handle(request: Request) -> None:
    """No entries for every filter that is one."""
    try:
        if CLUSTER_NAME in request.denied:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        _check(request.body.components)
    except KafkaError as error:
        told = error.message[:SHOWN_OF_A_MESSAGE]
        request.reply(DescribeClientQuotasResponse.new(error_code=int(error.code), error_message=told, entries=None))
        return
    request.reply(DescribeClientQuotasResponse.new(error_message=None, entries=[]))


def _check(components: list[Any]) -> None:
    """No type may come twice, so that at most three are looked at before one is refused."""
    seen: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in seen:
            told = f"Entity type {kind} cannot appear more than once in the filter."
            raise KafkaError(ErrorCode.INVALID_REQUEST, told)
        if kind not in TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if component.match_type not in (EXACT, DEFAULT, SPECIFIED):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")
        if component.match_type == EXACT and component.match is None:
            told = "Request specified MATCH_TYPE_EXACT, but set match string to null."
            raise KafkaError(ErrorCode.INVALID_REQUEST, told)
        if component.match_type != EXACT and component.match is not None:
            name = "MATCH_TYPE_DEFAULT" if component.match_type == DEFAULT else "MATCH_TYPE_SPECIFIED"
            told = f"Request specified {name}, but also specified a match string."
            raise KafkaError(ErrorCode.INVALID_REQUEST, told)
        seen.add(kind)
    if IP in seen and len(seen) > 1:
        told = (
            "Invalid entity filter component combination. "
            "IP filter component should not be used with user or clientId filter component."
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, told)
