"""Kafka's own records: byte layouts written out, round trips of every version, and what is not known is skipped."""

from __future__ import annotations

import importlib
from random import Random
from typing import Any

import pytest
from tests.worlds.message_strategies import kio_fields, kio_read, kio_write, present, sample

from duramen.wire.errors import DecodeError, EncodeError
from duramen.wire.records import cluster_metadata, consumer, control, offsets
from duramen.wire.records.control import ControlType
from duramen.wire.records.versioned import Unknown
from duramen.wire.schema import Message

TOPIC_ID = bytes(range(16))

METADATA = [(m, v) for m in cluster_metadata.TYPES.values() for v in range(m.min_version, m.max_version + 1)]


@pytest.mark.parametrize(("message", "version"), METADATA, ids=[f"{m.name}-{v}" for m, v in METADATA])
def test_metadata_records_round_trip(message: Message, version: int) -> None:
    for seed in range(20):
        value = sample(message, version, Random(seed))
        data = cluster_metadata.encode_value(value, version)
        assert cluster_metadata.decode(data) == (message.name, value)
        for length in range(len(data)):
            with pytest.raises(DecodeError):
                cluster_metadata.decode(data[:length])


def test_a_topic_record_on_disk() -> None:
    value = cluster_metadata.TopicRecord.new(name="foo", topic_id=TOPIC_ID)
    assert cluster_metadata.encode_value(value) == b"\x01\x02\x00" + b"\x04foo" + TOPIC_ID + b"\x00"


def test_a_partition_record_on_disk() -> None:
    value = cluster_metadata.PartitionRecord.new(
        partition_id=1, topic_id=TOPIC_ID, replicas=[1, 2], isr=[2], leader=2, leader_epoch=5, partition_epoch=6,
        leader_recovery_state=1, directories=[bytes(16)], eligible_leader_replicas=[1],
    )  # fmt: skip
    i32 = lambda number: number.to_bytes(4, "big")  # noqa: E731
    expected = (
        b"\x01\x03\x02" + i32(1) + TOPIC_ID + b"\x03" + i32(1) + i32(2) + b"\x02" + i32(2) + b"\x01\x01" + i32(2)
        + i32(5) + i32(6) + b"\x02" + bytes(16) + b"\x02" + b"\x00\x01\x01" + b"\x01\x05\x02" + i32(1)
    )  # fmt: skip
    assert cluster_metadata.encode_value(value) == expected


def test_a_partition_change_says_only_what_changed() -> None:
    value = cluster_metadata.PartitionChangeRecord.new(partition_id=0, topic_id=TOPIC_ID, leader=3)
    assert (
        cluster_metadata.encode_value(value) == b"\x01\x05\x02" + bytes(4) + TOPIC_ID + b"\x01\x01\x04\x00\x00\x00\x03"
    )
    assert cluster_metadata.decode(cluster_metadata.encode_value(value)).value.isr is None


def test_metadata_records_of_newer_types_and_versions_are_unknown() -> None:
    assert cluster_metadata.decode(b"\x01\x63\x00abc") == ("Unknown", Unknown(99, 0, b"\x01\x63\x00abc"))
    assert cluster_metadata.decode(b"\x01\x02\x07abc") == ("Unknown", Unknown(2, 7, b"\x01\x02\x07abc"))
    with pytest.raises(DecodeError, match="frame of version 2"):
        cluster_metadata.decode(b"\x02\x02\x00")
    with pytest.raises(EncodeError):
        cluster_metadata.encode_value(offsets.GroupMetadataKey.new(group="g"))


def test_a_committed_offset_on_disk() -> None:
    key = offsets.OffsetCommitKey.new(group="g", topic="topic", partition=3)
    value = offsets.OffsetCommitValue.new(offset=42, leader_epoch=7, metadata="m", commit_timestamp=1000)
    assert offsets.encode_key(key) == b"\x00\x01" + b"\x00\x01g" + b"\x00\x05topic" + b"\x00\x00\x00\x03"
    encoded = offsets.encode_value(value)
    assert encoded == b"\x00\x03" + (42).to_bytes(8, "big") + b"\0\0\0\x07" + b"\x00\x01m" + (1000).to_bytes(8, "big")
    assert offsets.decode_record(offsets.encode_key(key), encoded) == ("offset", key, value)
    assert offsets.decode_record(offsets.encode_key(key), None) == ("offset", key, None)


@pytest.mark.parametrize("version", range(5))
def test_offsets_values_round_trip(version: int) -> None:
    keys = {
        offsets.OffsetCommitValue: offsets.OffsetCommitKey.new(group="g", topic="t", partition=0),
        offsets.GroupMetadataValue: offsets.GroupMetadataKey.new(group="g"),
    }
    for message, key in keys.items():
        for seed in range(20):
            value = sample(message, version, Random(seed))
            encoded = offsets.encode_value(value, version)
            assert encoded[:2] == bytes([0, version])
            assert offsets.decode_record(memoryview(offsets.encode_key(key)), encoded)[1:] == (key, value)


def test_a_key_of_version_0_is_read_too() -> None:
    record = offsets.decode_record(b"\x00\x00" + b"\x00\x01g" + b"\x00\x01t" + bytes(4), None)
    assert record.key == offsets.OffsetCommitKey.new(group="g", topic="t", partition=0)


def test_offsets_records_of_newer_kinds_are_unknown() -> None:
    assert offsets.decode_record(b"\x00\x0aabc", b"xyz") == ("unknown", Unknown(10, 10, b"\x00\x0aabc"), b"xyz")
    key = offsets.encode_key(offsets.GroupMetadataKey.new(group="g"))
    assert offsets.decode_record(key, b"\x00\x09rest").value == Unknown(2, 9, b"\x00\x09rest")
    for bad in (b"", b"\x00", b"\x00\x01\x00\x09g"):
        with pytest.raises(DecodeError):
            offsets.decode_record(bad, None)
    with pytest.raises(EncodeError):
        offsets.encode_value(offsets.GroupMetadataKey.new())


def test_a_transaction_marker_on_disk() -> None:
    marker = control.EndTxnMarker.new(coordinator_epoch=9)
    key, value = control.encode_key(ControlType.COMMIT), control.encode_value(ControlType.COMMIT, marker)
    assert (key, value) == (b"\0\0\0\x01", b"\0\0\0\0\0\x09")
    assert control.decode(key, value) == (ControlType.COMMIT, marker)
    assert control.encode_key(ControlType.ABORT) == bytes(4)


QUORUM = [
    (ControlType.LEADER_CHANGE, control.LeaderChangeMessage),
    (ControlType.SNAPSHOT_HEADER, control.SnapshotHeaderRecord),
    (ControlType.SNAPSHOT_FOOTER, control.SnapshotFooterRecord),
    (ControlType.KRAFT_VERSION, control.KRaftVersionRecord),
    (ControlType.KRAFT_VOTERS, control.VotersRecord),
]


@pytest.mark.parametrize(("kind", "message"), QUORUM, ids=[message.name for _, message in QUORUM])
def test_quorum_records_round_trip(kind: ControlType, message: Message) -> None:
    for version in range(message.max_version + 1):
        value = sample(message, version, Random(version))
        value.version = version
        data = control.encode_value(kind, value)
        assert control.decode(control.encode_key(kind), data) == (kind, value)
        with pytest.raises(DecodeError):
            control.decode(control.encode_key(kind), data[:-1])


def test_control_records_of_newer_types_are_unknown() -> None:
    assert control.decode(b"\0\0\0\x09", b"\0\0abc") == (9, Unknown(9, 0, b"\0\0abc"))
    assert control.decode(b"\0\0\0\x02", b"\0\x08abc") == (2, Unknown(2, 8, b"\0\x08abc"))
    for bad in (b"\0\0\0", b"\xff\xff\0\0"):
        with pytest.raises(DecodeError):
            control.decode(bad, b"")
    with pytest.raises(EncodeError):
        control.encode_value(ControlType.SNAPSHOT_FOOTER, control.EndTxnMarker.new())


KIO = [
    (control.EndTxnMarker, "end_txn_marker"),
    (control.LeaderChangeMessage, "leader_change_message"),
    (control.SnapshotHeaderRecord, "snapshot_header_record"),
    (control.SnapshotFooterRecord, "snapshot_footer_record"),
    (control.KRaftVersionRecord, "k_raft_version_record"),
    (control.VotersRecord, "voters_record"),
    (consumer.ConsumerProtocolSubscription, "consumer_protocol_subscription"),
    (consumer.ConsumerProtocolAssignment, "consumer_protocol_assignment"),
]


@pytest.mark.parametrize(("message", "module"), KIO, ids=[module for _, module in KIO])
def test_kio_agrees_where_it_has_the_record(message: Message, module: str) -> None:
    for version in range(message.max_version + 1):
        theirs: Any = getattr(importlib.import_module(f"kio.schema.{module}.v{version}.data"), message.name)
        assert [f.name for f in present(message.struct, version)] == [f.name for f in kio_fields(theirs)]
        for seed in range(20):
            data = message.encode(sample(message, version, Random(seed)), version)
            assert kio_write(theirs, kio_read(theirs, data)) == data
