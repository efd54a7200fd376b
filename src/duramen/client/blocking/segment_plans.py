"""Plans of a log's segments, asked of the leaders of its partitions, and leases on those that are sealed.

Apache Kafka serves none of this: `Cluster.api_versions().serves(DESCRIBE_SEGMENTS)` says whether a node does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from duramen.client.blocking.cluster import Cluster
from duramen.client.protocol import segments
from duramen.client.protocol.metadata import error_code, only
from duramen.client.protocol.segments import (
    DESCRIBE_SEGMENTS,
    EXTEND_SEGMENT_LEASE,
    DescribedPartition,
    HeldLease,
    SegmentPlan,
)
from duramen.errors import KafkaError, LeaseLostError
from duramen.model import TopicPartition

DEFAULT_MAX_ENTRIES: Final = 50_000


def describe_segments(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, tuple[int, int]],
    *,
    target_bytes: int = 0,
    lease_ms: int = 0,
    isolation: int = 0,
    max_entries: int = DEFAULT_MAX_ENTRIES,
    timeout_s: float | None = None,
) -> SegmentPlan:
    """The segments of each partition between two offsets (-1: the log start; -1: all that may be read).

    target_bytes: how far the `boundaries` are apart (at least 64 KiB), 0 for none, which needs no file at all.
    lease_ms: for how long to keep the sealed segments; the broker may grant less. max_entries: of one reply; what does
    not fit is asked for again.
    """
    ranges = dict(wanted)
    plan = SegmentPlan({}, [])
    while ranges:
        page: dict[TopicPartition, tuple[int, int]] = {}

        def ask(tps: list[TopicPartition], ranges: Mapping[TopicPartition, tuple[int, int]] = ranges) -> Any:
            return segments.request({tp: ranges[tp] for tp in tps}, target_bytes, lease_ms, isolation, max_entries)

        def parse(
            response: Any,
            tps: list[TopicPartition],
            ranges: Mapping[TopicPartition, tuple[int, int]] = ranges,
            page: dict[TopicPartition, tuple[int, int]] = page,
        ) -> dict[TopicPartition, DescribedPartition | KafkaError]:
            if response.error_code:
                raise KafkaError(error_code(response.error_code), response.error_message or "DescribeSegments")
            if response.lease_id >= 0:
                plan.leases.append(HeldLease(cluster.leader(tps[0]), response.lease_id, response.lease_ms))
            return segments.parsed(response, ranges, page)

        found = cluster.call_leaders(DESCRIBE_SEGMENTS, ranges, ask, parse, timeout_s=timeout_s)
        for tp, each in found.items():
            known = plan.partitions.get(tp)
            if isinstance(known, DescribedPartition) and isinstance(each, DescribedPartition):
                each = each._replace(segments=known.segments + each.segments)
            plan.partitions[tp] = each
        ranges = page
    return plan


def extend_leases(cluster: Cluster, leases: list[HeldLease], lease_ms: int) -> list[HeldLease]:
    """Keep the segments for `lease_ms` from now on (or less); LeaseLostError when a lease does not hold any more."""
    kept = []
    for lease in leases:
        answer = _extend(cluster, lease, lease_ms)
        if answer.error_code:
            raise LeaseLostError(f"lease {lease.lease_id} of node {lease.node}: plan again")
        kept.append(lease._replace(lease_ms=answer.lease_ms))
    return kept


def release_leases(cluster: Cluster, leases: list[HeldLease]) -> None:
    """Let the segments go; what is gone already is no error."""
    for lease in leases:
        _extend(cluster, lease, 0)


def _extend(cluster: Cluster, lease: HeldLease, lease_ms: int) -> Any:
    response = cluster.call(lease.node, EXTEND_SEGMENT_LEASE, segments.extension(lease, lease_ms))
    return only(response.leases, f"lease {lease.lease_id}")
