"""Records of `__transaction_state`, against bytes that Kafka 4.3.1's TransactionLog made of the same transactions."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.worlds.message_strategies import sample

from duramen.wire.errors import DecodeError
from duramen.wire.records import transactions
from duramen.wire.records.transactions import TransactionLogValue
from duramen.wire.records.versioned import Unknown

KEY = "0000000673686f702d37"


def value(**fields: Any) -> Any:
    partitions = fields.pop("partitions", None)
    if partitions is not None:
        fields["transaction_partitions"] = [
            TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in partitions.items()
        ]
    return TransactionLogValue.new(transaction_timeout_ms=60_000, **fields)


EMPTY = dict[str, Any](
    producer_id=4001, producer_epoch=0, transaction_status=0,
    transaction_last_update_timestamp_ms=1764000000123, transaction_start_timestamp_ms=-1, transaction_partitions=None,
)  # fmt: skip
ONGOING = dict[str, Any](
    producer_id=4001, producer_epoch=3, transaction_status=1, partitions={"orders": [0, 5]},
    transaction_last_update_timestamp_ms=1764000000300, transaction_start_timestamp_ms=1764000000200,
)  # fmt: skip
PREPARE = dict[str, Any](
    producer_id=4001, producer_epoch=32767, transaction_status=2, partitions={"orders": [0]},
    transaction_last_update_timestamp_ms=1764000000400, transaction_start_timestamp_ms=1764000000200,
)  # fmt: skip
COMPLETE = dict[str, Any](
    producer_id=4002, producer_epoch=0, transaction_status=4, partitions={},
    transaction_last_update_timestamp_ms=1764000000500, transaction_start_timestamp_ms=1764000000200,
)  # fmt: skip

KAFKA = [
    (0, EMPTY, "00000000000000000fa100000000ea6000ffffffff0000019ab697e87bffffffffffffffff"),
    (
        0,
        ONGOING,
        (
            "00000000000000000fa100030000ea60010000000100066f7264657273000000020000000000000005"
            "0000019ab697e92c0000019ab697e8c8"
        ),
    ),
    (
        0,
        PREPARE,
        "00000000000000000fa17fff0000ea60020000000100066f726465727300000001000000000000019ab697e9900000019ab697e8c8",
    ),
    (0, COMPLETE, "00000000000000000fa200000000ea6004000000000000019ab697e9f40000019ab697e8c8"),
    (1, EMPTY, "00010000000000000fa100000000ea6000000000019ab697e87bffffffffffffffff00"),
    (
        1,
        ONGOING | {"previous_producer_id": 4001, "client_transaction_version": 2},
        (
            "00010000000000000fa100030000ea600102076f7264657273030000000000000005000000019ab697e92c0000019ab697e8c8"
            "0200080000000000000fa102020002"
        ),
    ),
    (
        1,
        PREPARE | {"previous_producer_id": 4001, "next_producer_id": 4002, "client_transaction_version": 2},
        (
            "00010000000000000fa17fff0000ea600202076f72646572730200000000000000019ab697e9900000019ab697e8c8"
            "0300080000000000000fa101080000000000000fa202020002"
        ),
    ),
    (
        1,
        COMPLETE | {"previous_producer_id": 4001, "client_transaction_version": 1},
        "00010000000000000fa200000000ea6004010000019ab697e9f40000019ab697e8c80200080000000000000fa102020001",
    ),
]


@pytest.mark.parametrize(("version", "fields", "written"), KAFKA)
def test_values_are_the_bytes_that_kafka_writes(version: int, fields: dict[str, Any], written: str) -> None:
    made = value(**fields)
    assert transactions.encode_value(made, version).hex() == written
    decoded = transactions.decode_record(bytes.fromhex(KEY), bytes.fromhex(written))
    assert decoded.is_known
    assert (decoded.key.transactional_id, decoded.value) == ("shop-7", made)


def test_a_key_is_what_kafka_writes_and_its_tombstone_is_known() -> None:
    assert transactions.encode_key("shop-7").hex() == KEY
    decoded = transactions.decode_record(bytes.fromhex(KEY), None)
    assert decoded.is_known
    assert decoded.value is None


def test_version_0_leaves_out_what_it_has_no_room_for() -> None:
    full = value(**ONGOING, previous_producer_id=4001, client_transaction_version=2)
    assert transactions.encode_value(full, 0) == transactions.encode_value(value(**ONGOING), 0)


def test_what_is_newer_is_unknown_and_tags_that_are_newer_are_read_over() -> None:
    assert transactions.decode_record(b"\0\1abc", b"value") == (Unknown(1, 1, b"\0\1abc"), b"value")
    assert not transactions.decode_record(b"\0\1abc", None).is_known
    newer = transactions.decode_record(bytes.fromhex(KEY), b"\0\2anything")
    assert newer.value == Unknown(-1, 2, b"\0\2anything")
    assert not newer.is_known
    tagged = bytes.fromhex(KAFKA[4][2])[:-1] + b"\x01\x09\x02\xab\xcd"
    assert transactions.decode_record(bytes.fromhex(KEY), tagged).value.producer_id == 4001


@pytest.mark.parametrize("version", [0, 1])
def test_values_round_trip_and_are_refused_when_cut(version: int) -> None:
    for seed in range(20):
        made = sample(TransactionLogValue, version, Random(seed))
        data = transactions.encode_value(made, version)
        assert transactions.decode_record(bytes.fromhex(KEY), data).value == made
        for length in range(len(data)):
            with pytest.raises(DecodeError):
                transactions.decode_record(bytes.fromhex(KEY), data[:length])
