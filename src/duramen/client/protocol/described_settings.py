"""Settings of topics, as DescribeConfigs asks for them and answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from duramen.client.protocol.metadata import error_code
from duramen.errors import ErrorCode, KafkaError
from duramen.wire.messages import API

DESCRIBE_CONFIGS: Final = 32
TXID: Final = "duramen.txid"
APPLICATION_TXIDS: Final = "application"
"""Of `duramen.txid`: the application gives each record its transaction id, as the timestamp."""

_A_TOPIC: Final = 2
_GONE: Final = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID))


def request(topics: Iterable[str], names: Sequence[str] = ()) -> Any:
    """DescribeConfigs of these topics, for the settings of these names; for all where there is none."""
    message = API[DESCRIBE_CONFIGS].request
    resources = [
        message.DescribeConfigsResource(
            resource_type=_A_TOPIC, resource_name=topic, configuration_keys=list(names) or None
        )
        for topic in topics
    ]
    return message.new(resources=resources)


def parsed(response: Any) -> dict[str, dict[str, str]]:
    """By topic what each setting is, without topics that are not there. KafkaError for other refusals."""
    found = {}
    for result in response.results:
        if not result.error_code:
            texts = {config.name: config.value for config in result.configs if config.value is not None}
            found[result.resource_name] = texts
            continue
        code = error_code(result.error_code)
        if code not in _GONE:
            raise KafkaError(code, f"{result.resource_name}: {result.error_message or code.name}")
    return found


def code_of(response: Any) -> int:
    """The error of an answer about one topic."""
    return int(response.results[0].error_code)
