"""Bodies of version 2: topics, partitions, records and what became of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from duramen.client.protocol.metadata import PartitionMetadata
from duramen.gateway.confluent.v2_media_types import Embedded
from duramen.gateway.edge.problem import bad_request
from duramen.gateway.edge.request_json import decoded_json
from duramen.gateway.writes.topic_records import (
    RECORDS_MAX,
    TXID_MISSING,
    WantedRecord,
    decoded_text,
    raw_null,
)

FINAL: Final = 1
RETRIABLE: Final = 2
"""Of the outcome of a record."""


class BrokersV2(msgspec.Struct):
    """Ids of the nodes."""

    brokers: list[int]


class ReplicaV2(msgspec.Struct):
    """A copy of a partition."""

    broker: int
    leader: bool
    in_sync: bool


class PartitionV2(msgspec.Struct):
    """A partition. leader: -1 while there is none."""

    partition: int
    leader: int
    replicas: list[ReplicaV2]


class TopicV2(msgspec.Struct):
    """A topic. configs: those that are no secret."""

    name: str
    configs: Mapping[str, str]
    partitions: list[PartitionV2]


class OffsetsV2(msgspec.Struct):
    """The first offset that there is, and the one after the last."""

    beginning_offset: int
    end_offset: int


class RecordV2(msgspec.Struct, forbid_unknown_fields=True):
    """A record. key, value: base64 in a binary body, JSON in a JSON body."""

    key: msgspec.Raw = msgspec.field(default_factory=raw_null)
    value: msgspec.Raw = msgspec.field(default_factory=raw_null)
    partition: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] | None = None


class RecordsV2(msgspec.Struct, forbid_unknown_fields=True):
    """Records. The schemas are for types that need some, and are not looked at."""

    records: list[RecordV2]
    key_schema: str | None = None
    key_schema_id: int | None = None
    value_schema: str | None = None
    value_schema_id: int | None = None


class RecordOffsetV2(msgspec.Struct):
    """What became of a record. error_code: null where it is stored, 1 for good, 2: the same may succeed later."""

    partition: int | None = None
    offset: int | None = None
    error_code: int | None = None
    error: str | None = None


class ProducedV2(msgspec.Struct):
    """Of each record, in the order of the body."""

    offsets: list[RecordOffsetV2]
    key_schema_id: int | None = None
    value_schema_id: int | None = None


_BODY: Final = msgspec.json.Decoder(RecordsV2)
_STRING: Final = msgspec.json.Decoder(str)


def partition_v2(partition: PartitionMetadata) -> PartitionV2:
    """A partition as the cluster describes it."""
    leader = partition.leader
    replicas = [ReplicaV2(node, node == leader, node in partition.isr) for node in partition.replicas]
    return PartitionV2(partition.partition, leader, replicas)


def records_v2(body: bytes, embedded: Embedded, partition: int | None, now_ms: int | None) -> list[WantedRecord]:
    """The records of a body. partition: that all of them go to, if the path names one; now_ms: as of `wanted_records`.
    Problem 400.
    """
    given = decoded_json(body, _BODY, "body")
    if not 1 <= len(given.records) <= RECORDS_MAX:
        raise bad_request("records", f"a body has 1 to {RECORDS_MAX} records, not {len(given.records)}")
    if now_ms is None:
        raise bad_request("records[0].timestamp", f"{TXID_MISSING}; version 2 has no field for it, version 3 has")
    found = []
    for number, each in enumerate(given.records):
        where = f"records[{number}]"
        if partition is not None and each.partition is not None:
            raise bad_request(f"{where}.partition", "the path names the partition")
        key, value = (_content(f"{where}.{name}", bytes(raw), embedded) for name, raw in _both(each))
        found.append(WantedRecord((key, value, [], now_ms), each.partition if partition is None else partition))
    return found


def _both(record: RecordV2) -> tuple[tuple[str, msgspec.Raw], ...]:
    return ("key", record.key), ("value", record.value)


def _content(where: str, raw: bytes, embedded: Embedded) -> bytes | None:
    if raw == b"null":
        return None
    if embedded == "json":
        return raw
    return decoded_text(where, decoded_json(raw, _STRING, where), "base64")
