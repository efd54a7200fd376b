"""Topics for benchmarks whose client is ours; benchmarks.run makes its own through librdkafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duramen.client import CONTROLLER, Cluster
from duramen.wire.messages import API

CREATE_TOPICS = 19
WAIT_SECONDS = 120
KEEPS_OLD_RECORDS: Final = {"retention.ms": "-1"}
"""Whatever the timestamps of its records are."""


def create_topic(cluster: Cluster, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
    """Create it; SystemExit with the reason if that fails."""
    message = API[CREATE_TOPICS].request
    settings = [message.CreatableTopicConfig(name=name, value=value) for name, value in (config or {}).items()]
    wanted = message.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1, configs=settings)
    request = message.new(topics=[wanted], timeout_ms=WAIT_SECONDS * 1000)
    reply = cluster.call(
        CONTROLLER, CREATE_TOPICS, request, wait_s=WAIT_SECONDS, timeout_s=WAIT_SECONDS + 30, resend=False
    )
    if reply.topics[0].error_code:
        raise SystemExit(f"{topic}: error {reply.topics[0].error_code} {reply.topics[0].error_message or ''}")
