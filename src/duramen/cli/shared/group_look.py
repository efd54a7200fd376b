"""Names the states of groups; those that librdkafka does not know are asked for over plain connections."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from confluent_kafka.admin import ConsumerGroupDescription

from duramen.cli.shared.connection import ClusterAccess
from duramen.client import Cluster
from duramen.errors import DuramenError
from duramen.wire.messages import API

LIST_GROUPS: Final = 16
UNKNOWN: Final = "Unknown"


def state_names(cluster: ClusterAccess, groups: Iterable[ConsumerGroupDescription]) -> dict[str, str]:
    """By group id, as Kafka names them: Stable, Empty, Assigning, Reconciling, …

    Unknown: where there is TLS or SASL, or a node does not answer.
    """
    names = {group.group_id: state_name(group) for group in groups}
    if UNKNOWN in names.values() and cluster.is_plaintext:
        with suppress(DuramenError):
            listed = _listed(cluster)
            names |= {group: listed.get(group, UNKNOWN) for group, name in names.items() if name == UNKNOWN}
    return names


def state_name(group: ConsumerGroupDescription) -> str:
    """The same for one group, as far as librdkafka knows it."""
    return str(group.state.name).replace("_", " ").title().replace(" ", "").replace("Rebalancing", "Rebalance")


def _listed(cluster: ClusterAccess) -> dict[str, str]:
    """The state of every group, each from its coordinator."""
    found: dict[str, str] = {}
    with Cluster(cluster.bootstrap, client_id="duramen-cli", timeout_s=cluster.timeout) as client:
        for node in sorted(client.metadata([]).nodes):
            answer = client.call(node, LIST_GROUPS, API[LIST_GROUPS].request.new(), code_of=_top)
            if not answer.error_code:
                found |= {group.group_id: group.group_state or UNKNOWN for group in answer.groups}
    return found


def _top(answer: Any) -> int:
    return int(answer.error_code)
