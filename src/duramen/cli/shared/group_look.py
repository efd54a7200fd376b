"""Asks coordinators about groups, over plain connections, what librdkafka cannot: states, what is pending."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from confluent_kafka.admin import ConsumerGroupDescription

from duramen.cli.shared.connection import ClusterAccess
from duramen.client import Cluster
from duramen.client.protocol.metadata import error_code
from duramen.errors import DuramenError, KafkaError
from duramen.swaps.group_commits import pending_of
from duramen.wire.messages import API

LIST_GROUPS: Final = 16
UNKNOWN: Final = "Unknown"
WITHOUT_MEMBERS: Final = frozenset({"Empty", "Dead"})


def state_names(cluster: ClusterAccess, groups: Iterable[ConsumerGroupDescription]) -> dict[str, str]:
    """By group id, as Kafka names them: Stable, Empty, Assigning, Reconciling, …

    Unknown: where there is TLS or SASL, or a node does not answer.
    """
    names = {group.group_id: state_name(group) for group in groups}
    if UNKNOWN in names.values() and cluster.is_plaintext:
        with suppress(DuramenError), _client(cluster) as client:
            listed = {group.group_id: group.group_state or UNKNOWN for group in _listed(client)}
            names |= {group: listed.get(group, UNKNOWN) for group, name in names.items() if name == UNKNOWN}
    return names


def state_name(group: ConsumerGroupDescription) -> str:
    """The same for one group, as far as librdkafka knows it."""
    return str(group.state.name).replace("_", " ").title().replace(" ", "").replace("Rebalancing", "Rebalance")


def with_consumer_members(client: Cluster) -> list[str]:
    """Names of the groups of the consumer protocol that have members; DuramenError where a node does not say."""
    return sorted(
        group.group_id
        for group in _listed(client, is_strict=True)
        if group.group_type == "consumer" and group.group_state not in WITHOUT_MEMBERS
    )


def pending_in(cluster: ClusterAccess, group: str, places: Iterable[tuple[str, int]]) -> list[tuple[str, int]] | None:
    """Those of the partitions whose offset an open transaction may change; None where that cannot be asked."""
    if not cluster.is_plaintext:
        return None
    try:
        with _client(cluster) as client:
            return sorted(pending_of(client, group, places))
    except DuramenError:
        return None


def _client(cluster: ClusterAccess) -> Cluster:
    return Cluster(cluster.answering(), client_id="duramen-cli", timeout_s=cluster.timeout)


def _listed(client: Cluster, *, is_strict: bool = False) -> list[Any]:
    """Every group, each from its coordinator. is_strict: KafkaError where a node refuses."""
    found: list[Any] = []
    for node in sorted(client.metadata([]).nodes):
        answer = client.call(node, LIST_GROUPS, API[LIST_GROUPS].request.new(), code_of=_top)
        if not answer.error_code:
            found += answer.groups
        elif is_strict:
            code = error_code(answer.error_code)
            raise KafkaError(code, f"node {node} does not list its groups: {code.name}")
    return found


def _top(answer: Any) -> int:
    return int(answer.error_code)
