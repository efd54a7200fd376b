"""Records of consumer groups: the bytes that Kafka 4.3.1's own classes make, round trips, and cut ones are refused."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.worlds.message_strategies import sample

from duramen.wire.errors import DecodeError
from duramen.wire.records import consumer_groups as schema
from duramen.wire.records import offsets

ID = bytes(range(16))

_Protocol = schema.ConsumerGroupMemberMetadataValue.ClassicProtocol
_Classic = schema.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata
_Topic = schema.ConsumerGroupPartitionMetadataValue.TopicMetadata
_Partition = schema.ConsumerGroupPartitionMetadataValue.PartitionMetadata
_Target = schema.ConsumerGroupTargetAssignmentMemberValue.TopicPartition
_Current = schema.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions

KAFKA = {
    "group": (
        schema.ConsumerGroupMetadataKey.new(group="g"),
        schema.ConsumerGroupMetadataValue.new(epoch=7, metadata_hash=0x1122334455667788),
        "0003000167",
        "0000000000070100081122334455667788",
    ),
    "group without a hash": (
        schema.ConsumerGroupMetadataKey.new(group="g"),
        schema.ConsumerGroupMetadataValue.new(epoch=7),
        "0003000167",
        "00000000000700",
    ),
    "partition metadata": (
        schema.ConsumerGroupPartitionMetadataKey.new(group="g"),
        schema.ConsumerGroupPartitionMetadataValue.new(
            topics=[
                _Topic(
                    topic_id=ID,
                    topic_name="t",
                    num_partitions=2,
                    partition_metadata=[_Partition(partition=0, racks=["r"])],
                )
            ]
        ),
        "0004000167",
        "000002000102030405060708090a0b0c0d0e0f0274000000020200000000020272000000",
    ),
    "member": (
        schema.ConsumerGroupMemberMetadataKey.new(group="g", member="m"),
        schema.ConsumerGroupMemberMetadataValue.new(
            instance_id="i",
            rack_id="r",
            client_id="c",
            client_host="/127.0.0.1",
            subscribed_topic_names=["t", "u"],
            subscribed_topic_regex="^x",
            rebalance_timeout_ms=300_000,
            server_assignor="range",
        ),
        "000500016700016d",
        "00000269027202630b2f3132372e302e302e310302740275035e78000493e00672616e676501000100",
    ),
    "classic member": (
        schema.ConsumerGroupMemberMetadataKey.new(group="g", member="m"),
        schema.ConsumerGroupMemberMetadataValue.new(
            instance_id="",
            rack_id="",
            client_id="c",
            client_host="h",
            subscribed_topic_regex="",
            server_assignor="",
            classic_member_metadata=_Classic(
                session_timeout_ms=45_000, supported_protocols=[_Protocol(name="range", metadata=b"\1\2\3")]
            ),
        ),
        "000500016700016d",
        "00000101026302680101ffffffff01010012010000afc8020672616e6765040102030000",
    ),
    "target": (
        schema.ConsumerGroupTargetAssignmentMetadataKey.new(group="g"),
        schema.ConsumerGroupTargetAssignmentMetadataValue.new(assignment_epoch=5, assignment_timestamp=1000),
        "0006000167",
        "00000000000501000800000000000003e8",
    ),
    "target of a member": (
        schema.ConsumerGroupTargetAssignmentMemberKey.new(group="g", member="m"),
        schema.ConsumerGroupTargetAssignmentMemberValue.new(topic_partitions=[_Target(topic_id=ID, partitions=[0, 3])]),
        "000700016700016d",
        "000002000102030405060708090a0b0c0d0e0f0300000000000000030000",
    ),
    "current assignment": (
        schema.ConsumerGroupCurrentMemberAssignmentKey.new(group="g", member="m"),
        schema.ConsumerGroupCurrentMemberAssignmentValue.new(
            member_epoch=5,
            previous_member_epoch=4,
            state=1,
            assigned_partitions=[_Current(topic_id=ID, partitions=[0, 3], assignment_epochs=[2, 5])],
            partitions_pending_revocation=[_Current(topic_id=ID, partitions=[1])],
        ),
        "000800016700016d",
        (
            "000000000005000000040102000102030405060708090a0b0c0d0e0f03000000000000000301000903000000020000000502"
            "000102030405060708090a0b0c0d0e0f02000000010000"
        ),
    ),
    "expression": (
        schema.ConsumerGroupRegularExpressionKey.new(group="g", regular_expression="^x"),
        schema.ConsumerGroupRegularExpressionValue.new(topics=["xa", "xb"], version=9, timestamp=1000),
        "001000016700025e78",
        "000003037861037862000000000000000900000000000003e800",
    ),
}


@pytest.mark.parametrize("name", KAFKA)
def test_the_bytes_are_those_of_kafkas_classes(name: str) -> None:
    key, value, key_bytes, value_bytes = KAFKA[name]
    assert offsets.encode_key(key).hex() == key_bytes
    assert offsets.encode_value(value).hex() == value_bytes
    read = offsets.decode_record(bytes.fromhex(key_bytes), bytes.fromhex(value_bytes))
    assert read == ("consumer-group", key, value)
    assert offsets.decode_record(bytes.fromhex(key_bytes), None) == ("consumer-group", key, None)


@pytest.mark.parametrize("kind", schema.MESSAGES)
def test_values_round_trip_and_cut_ones_are_refused(kind: int) -> None:
    key_message, value_message = schema.MESSAGES[kind]
    for seed in range(20):
        key: Any = sample(key_message, kind, Random(seed))
        value = sample(value_message, 0, Random(seed))
        data = offsets.encode_value(value)
        encoded_key = offsets.encode_key(key)
        assert offsets.decode_record(encoded_key, data) == ("consumer-group", key, value)
        for length in range(len(data)):
            with pytest.raises(DecodeError):
                offsets.decode_record(encoded_key, data[:length])
