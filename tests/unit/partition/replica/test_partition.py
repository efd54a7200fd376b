"""One partition: what it refuses, when it answers, what whom it shows."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import pytest
from tests.worlds.partition_world import NOW, TP, Bench, marker, plain, transactional

from duramen.config import load_broker_config
from duramen.errors import ErrorCode, KafkaError
from duramen.partition.replica.batch_rules import RecordsRefusedError, rewrite
from duramen.partition.replica.offset_lookup import delete_records, epoch_end, list_offset
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import READ_COMMITTED, READ_UNCOMMITTED
from duramen.sim.world.disk import CrashDisk
from duramen.wire.batch import ABORT, COMMIT, HEADER_SIZE, build_batch, check_crc, replace_payload
from duramen.wire.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress


def code(answer: Appended | KafkaError) -> ErrorCode:
    return answer.code if isinstance(answer, KafkaError) else ErrorCode.NONE


def appended(answer: Appended | KafkaError) -> Appended:
    assert isinstance(answer, Appended), answer
    return answer


# ---- acknowledgements --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_stable_topic_answers_and_shows_only_what_is_synced(acks: int) -> None:
    bench = Bench()
    bench.lanes.held.add("journal")
    answers = bench.send(plain(b"a"), acks)
    bench.run()
    assert answers == []
    assert (bench.partition.log_end_offset, bench.partition.high_watermark) == (1, 0)
    assert bench.values() == []
    bench.lanes.held.clear()
    bench.run()
    assert appended(answers[0]).base_offset == 0
    assert bench.values() == [b"a"]


def test_a_page_cache_topic_answers_before_any_sync() -> None:
    bench = Bench(duramen_ack_durability="page-cache")
    bench.produce(plain(b"first"))  # the mark in the journal
    bench.lanes.held.add("journal")
    answers = bench.send(plain(b"a"))
    bench.run()
    assert appended(answers[0]).base_offset == 1
    assert bench.values() == [b"first", b"a"]


def test_without_acks_the_answer_comes_at_once() -> None:
    bench = Bench()
    answers = bench.send(plain(b"a"), acks=0)
    assert appended(answers[0]).base_offset == 0
    assert bench.partition.high_watermark == 0


def test_answers_come_in_order_and_readers_are_woken_after_them() -> None:
    bench = Bench()
    told: list[Any] = []
    bench.partition.watch(lambda: told.append("readers"))
    for name in "abc":
        bench.partition.append(memoryview(plain(b"x")), -1, NOW, lambda answer, name=name: told.append(name))
    bench.run()
    assert told[:3] == ["a", "b", "c"]
    assert told[3] == "readers"


def test_too_few_in_sync_replicas_refuse_acks_all_only() -> None:
    bench = Bench(min_insync_replicas="2")
    assert code(bench.produce(plain(b"a"))) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert appended(bench.produce(plain(b"a"), acks=1)).base_offset == 0
    assert bench.values() == [b"a"]


def test_a_partition_that_is_not_led_here_refuses() -> None:
    bench = Bench()
    bench.partition.resign(2, 5)
    assert code(bench.produce(plain(b"a"))) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(KafkaError) as caught:
        bench.partition.append_local(plain(b"a"), NOW)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_deleted_partition_answers_whoever_waits_and_refuses_the_rest() -> None:
    bench = Bench()
    bench.lanes.held.add("journal")
    answers = bench.send(plain(b"a"))
    bench.store.delete_partition(TP)
    assert [code(answer) for answer in answers] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert code(bench.produce(plain(b"a"))) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError):
        bench.partition.read(0, 1000, READ_UNCOMMITTED)
    bench.lanes.held.clear()
    bench.run()


# ---- idempotent producers ----------------------------------------------------------------------------------------


def idempotent(sequence: int, *values: bytes, epoch: int = 0) -> bytearray:
    return plain(*values, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


def test_a_duplicate_is_answered_with_its_first_home_but_not_before_that_is_committed() -> None:
    bench = Bench()
    bench.lanes.held.add("journal")
    first = bench.send(idempotent(0, b"a", b"b"))
    again = bench.send(idempotent(0, b"a", b"b"))
    bench.run()
    assert first == again == []
    bench.lanes.held.clear()
    bench.run()
    assert appended(first[0]).base_offset == appended(again[0]).base_offset == 0
    assert bench.values() == [b"a", b"b"]
    assert appended(bench.produce(idempotent(0, b"a", b"b"))).base_offset == 0
    assert bench.partition.log_end_offset == 2


def test_five_batches_are_remembered_and_gaps_refused() -> None:
    bench = Bench()
    for number in range(7):
        bench.produce(idempotent(number, b"%d" % number))
    for number in range(2, 7):
        assert appended(bench.produce(idempotent(number, b"x"))).base_offset == number
    assert code(bench.produce(idempotent(1, b"x"))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(bench.produce(idempotent(9, b"x"))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(bench.produce(idempotent(5, b"x", epoch=1))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(bench.produce(idempotent(0, b"y", epoch=1))) is ErrorCode.NONE
    assert code(bench.produce(idempotent(7, b"x"))) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert bench.values() == [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"y"]


# ---- transactions: the stable offset, the aborted list, markers ----------------------------------------------------


def test_read_committed_stops_at_the_first_open_transaction() -> None:
    bench = Bench()
    bench.produce(plain(b"before"))
    bench.local(transactional(1, b"one"))
    bench.produce(plain(b"between"))
    bench.local(transactional(2, b"two"))
    partition = bench.partition
    assert (partition.last_stable_offset, partition.high_watermark) == (1, 4)
    assert bench.values(0, READ_COMMITTED) == [b"before"]
    assert bench.values(0, READ_UNCOMMITTED) == [b"before", b"one", b"between", b"two"]
    assert partition.read(1, 1000, READ_COMMITTED).parts == []
    bench.local(marker(1, COMMIT))
    assert partition.last_stable_offset == 3
    bench.local(marker(2, ABORT))
    assert partition.last_stable_offset == partition.high_watermark == 6
    read = partition.read(0, 1 << 20, READ_COMMITTED)
    assert read.aborted == [(2, 3)]
    assert partition.read(0, 1 << 20, READ_UNCOMMITTED).aborted is None
    assert partition.read(4, 1 << 20, READ_COMMITTED).aborted == [(2, 3)], "the marker at 5 still ends it"
    assert partition.read(6, 1 << 20, READ_COMMITTED).aborted == []


def test_a_marker_that_is_not_durable_keeps_the_transaction_open() -> None:
    bench = Bench()
    bench.local(transactional(1, b"one"))
    bench.lanes.held.add("journal")
    bench.partition.append_local(marker(1, COMMIT), NOW)
    bench.run()
    assert bench.partition.last_stable_offset == 0
    bench.lanes.held.clear()
    bench.run()
    assert bench.partition.last_stable_offset == 2


def test_aborted_transactions_are_on_disk_and_known_after_a_restart() -> None:
    disk = CrashDisk()
    bench = Bench(disk)
    for producer in (1, 2, 3):
        bench.local(transactional(producer, b"%d" % producer))
    for producer, kind in ((2, ABORT), (1, COMMIT), (3, ABORT)):
        bench.local(marker(producer, kind))
    before = bench.partition.read(0, 1 << 20, READ_COMMITTED)
    assert before.aborted == [(2, 1), (3, 2)]
    disk.power_cut()
    disk.power_on()
    again = Bench(disk, epoch=2)
    after = again.partition.read(0, 1 << 20, READ_COMMITTED)
    assert after.aborted == before.aborted
    assert again.values(0, READ_COMMITTED) == [b"1", b"2", b"3"]
    names = [name for name in disk.list_directory("/data/t-0") if name.endswith(".txnindex")]
    assert any(disk.open(f"/data/t-0/{name}").size() for name in names)


def test_an_open_transaction_is_open_after_a_restart() -> None:
    disk = CrashDisk()
    bench = Bench(disk)
    bench.produce(plain(b"before"))
    bench.local(transactional(1, b"one"))
    disk.power_cut()
    disk.power_on()
    assert Bench(disk, epoch=2).partition.last_stable_offset == 1


def test_clients_may_send_neither_control_batches_nor_transactional_ones_without_an_id() -> None:
    bench = Bench()
    assert code(bench.produce(transactional(1, b"x"))) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert code(bench.produce(marker(1, COMMIT))) is ErrorCode.INVALID_RECORD
    assert bench.partition.log_end_offset == 0


# ---- what a topic's configuration does to a batch ----------------------------------------------------------------


def test_log_append_time_is_stamped_and_told() -> None:
    bench = Bench(message_timestamp_type="LogAppendTime")
    bench.clock.now_ms = NOW + 5000
    answer = appended(bench.produce(plain(b"a", b"b", timestamp=1)))
    assert answer.append_time_ms == NOW + 5000
    (header,) = bench.headers()
    assert (header.timestamp_type, header.max_timestamp) == (1, NOW + 5000)
    assert check_crc(bench.bytes_from(), header)
    assert list_offset(bench.partition, NOW, 0)[:2] == (0, NOW + 5000)


def test_who_waits_for_all_in_sync_is_told_at_once_when_more_are_asked_for() -> None:
    bench = Bench()
    bench.lanes.held.add("journal")
    answers: list[Any] = []
    for acks in (-1, 1):
        bench.partition.append(memoryview(plain(b"a")), acks, NOW, answers.append)
    assert answers == []
    bench.reconfigure(min_insync_replicas="2")
    (refused,) = answers
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert refused.retriable
    bench.lanes.held.clear()
    bench.run()
    assert answers[1].base_offset == 1, "acks=1 asks nobody else"
    assert bench.partition.high_watermark == 2, "there is no second copy that could be elected without them"


def test_the_clusters_min_insync_replicas_are_bounded_by_the_copies() -> None:
    bench = Bench()
    bench.broker_config = load_broker_config(None, {"min.insync.replicas": "2"})
    bench.reconfigure()
    assert appended(bench.produce(plain(b"a"))).base_offset == 0
    bench.reconfigure(min_insync_replicas="2")
    refused = bench.produce(plain(b"a"))
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.NOT_ENOUGH_REPLICAS


def test_what_this_node_writes_itself_is_refused_like_acks_all() -> None:
    bench = Bench(min_insync_replicas="2")
    with pytest.raises(KafkaError) as refused:
        bench.partition.append_local(plain(b"a"), NOW)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert bench.partition.log_end_offset == 0


def test_acks_1_waits_for_this_replica_and_acks_all_for_all_in_sync() -> None:
    bench = Bench()
    bench.partition.lead(bench.partition.leader_epoch + 1, (1, 2), (1, 2), 0)
    bench.lanes.held.add("journal")
    answers: dict[int, Any] = {}
    for acks in (-1, 1, 0):
        bench.partition.append(memoryview(plain(b"a")), acks, NOW, partial(answers.__setitem__, acks))
    assert list(answers) == [0]
    bench.lanes.held.clear()
    bench.run()
    assert list(answers) == [0, 1]
    assert bench.partition.high_watermark == 0, "the follower has nothing"
    assert bench.partition.waiting == 1


def test_create_time_is_left_alone_and_nothing_is_told() -> None:
    bench = Bench()
    assert appended(bench.produce(plain(b"a"))).append_time_ms == -1


@pytest.mark.parametrize("wanted", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_topic_of_one_compression_type_recompresses_whatever_comes(wanted: str, codec: int) -> None:
    bench = Bench(compression_type=wanted)
    values = [b"value %d " % number * 20 for number in range(20)]
    data = plain(*values, compression=codec, producer_id=3, producer_epoch=2, base_sequence=5)
    assert appended(bench.produce(data)).base_offset == 0
    (header,) = bench.headers()
    assert header.compression == ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(wanted)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.count) == (3, 2, 5, 20)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 19)
    assert check_crc(bench.bytes_from(), header)
    assert bench.values() == values


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", "1", "9"), ("lz4", "9", "8"), ("zstd", "-50", "19")])
def test_the_level_of_a_codec_is_the_topics(codec: str, low: str, high: str) -> None:
    sizes = []
    values = [b"%d of many, each a little different: %d" % (number, number * number) for number in range(500)]
    for level in (low, high):
        bench = Bench(**{"compression_type": codec, f"compression_{codec}_level": level})
        bench.produce(plain(*values))
        (header,) = bench.headers()
        assert bench.values() == values
        sizes.append(header.size)
    assert sizes[1] < sizes[0]


def test_the_producers_compression_is_stored_as_it_came() -> None:
    bench = Bench()
    data = plain(b"x" * 500, compression=ZSTD)
    bench.produce(data)
    assert bench.bytes_from()[HEADER_SIZE:] == data[HEADER_SIZE:]


def test_batches_behind_one_that_is_recompressed_keep_their_order_and_their_bytes() -> None:
    """Their receive buffer is used again as soon as append has returned."""
    bench = Bench(compression_type="zstd")
    bench.lanes.held.add("rewriting")
    answers: list[Any] = []
    shared = bytearray(4096)
    for number in range(5):
        codec = ZSTD if number % 2 else NONE  # those in zstd need no recompression, and wait all the same
        data = plain(b"number %d" % number, compression=codec)
        shared[: len(data)] = data
        bench.partition.append(memoryview(shared)[: len(data)], -1, NOW, answers.append)
    shared[:] = b"\xff" * len(shared)
    bench.run()
    assert answers == []
    bench.lanes.held.clear()
    bench.run()
    assert [appended(answer).base_offset for answer in answers] == [0, 1, 2, 3, 4]
    assert bench.values() == [b"number %d" % number for number in range(5)]


def test_a_refused_batch_does_not_hold_up_those_behind_it() -> None:
    bench = Bench(cleanup_policy="compact")
    answers = [bench.send(plain(b"a", key=None)), bench.send(plain(b"b"))]
    bench.run()
    assert code(answers[0][0]) is ErrorCode.INVALID_RECORD
    assert appended(answers[1][0]).base_offset == 0


def test_keyless_records_on_a_compacted_topic_are_named_one_by_one() -> None:
    bench = Bench(cleanup_policy="compact,delete")
    mixed = [(b"k", b"a", (), NOW), (None, b"b", (), NOW), (b"", b"c", (), NOW), (None, None, (), NOW)]
    for codec in (NONE, LZ4):
        answer = bench.produce(build_batch(mixed, compression=codec))
        assert isinstance(answer, RecordsRefusedError)
        assert answer.code is ErrorCode.INVALID_RECORD
        assert [index for index, _ in answer.errors] == [1, 3]
    assert bench.partition.log_end_offset == 0


def test_timestamps_out_of_bounds_are_refused() -> None:
    bench = Bench(message_timestamp_after_max_ms="1000", message_timestamp_before_max_ms="1000")
    assert code(bench.produce(plain(b"a", timestamp=NOW + 1000))) is ErrorCode.NONE
    assert code(bench.produce(plain(b"a", timestamp=NOW + 1001))) is ErrorCode.INVALID_TIMESTAMP
    assert code(bench.produce(plain(b"a", timestamp=NOW - 1000))) is ErrorCode.NONE
    refused = bench.produce(plain(b"a", b"b", b"c", timestamp=NOW - 1001))
    assert isinstance(refused, RecordsRefusedError)
    assert (refused.code, [index for index, _ in refused.errors]) == (ErrorCode.INVALID_TIMESTAMP, [0])
    assert code(bench.produce(plain(b"a", timestamp=-1))) is ErrorCode.NONE, "a record without a timestamp"


def test_append_time_topics_have_no_bounds() -> None:
    bench = Bench(
        message_timestamp_type="LogAppendTime",
        message_timestamp_after_max_ms="0",
        message_timestamp_before_max_ms="0",
    )
    assert code(bench.produce(plain(b"a", timestamp=NOW + 10**9))) is ErrorCode.NONE
    assert code(bench.produce(plain(b"a", timestamp=1))) is ErrorCode.NONE


def test_a_batch_is_measured_before_and_after_recompression() -> None:
    bench = Bench(max_message_bytes="2000", compression_type="uncompressed")
    assert code(bench.produce(plain(b"x" * 2000))) is ErrorCode.MESSAGE_TOO_LARGE
    assert code(bench.produce(plain(b"x" * 5000, compression=GZIP))) is ErrorCode.MESSAGE_TOO_LARGE
    assert code(bench.produce(plain(b"x" * 1500, compression=GZIP))) is ErrorCode.NONE


def test_a_payload_whose_records_are_not_what_the_header_says() -> None:
    bench = Bench(compression_type="gzip")
    good = plain(b"a", b"b", b"c")
    payload = bytes(good[HEADER_SIZE:])
    for bad in (payload[:-1], payload + b"\0", payload[: len(payload) // 3], b"", b"\xff" * 30):
        for codec in (NONE, LZ4):
            data = replace_payload(good, codec, compress(codec, bad) if codec else bad)
            assert code(bench.produce(data)) is ErrorCode.INVALID_RECORD, (bad, codec)
    first, second, third = payload[:9], payload[9:18], payload[18:]
    assert len(first) == len(second)
    shuffled = replace_payload(good, NONE, second + first + third)
    assert code(bench.produce(shuffled)) is ErrorCode.INVALID_RECORD
    assert bench.partition.log_end_offset == 0


def test_millions_of_records_in_one_batch_are_looked_at_one_at_a_time() -> None:
    bench = Bench(compression_type="uncompressed", max_message_bytes="100000000")
    data = plain(*([b""] * 10_000), compression=ZSTD)
    tracemalloc.start()
    rebuilt = rewrite(data, bench.partition.config, NOW)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * len(rebuilt)


# ---- durability --------------------------------------------------------------------------------------------------


def test_durability_changes_both_ways_and_nothing_acknowledged_as_stable_is_lost() -> None:
    disk = CrashDisk()
    bench = Bench(disk, duramen_ack_durability="page-cache")
    bench.produce(plain(b"a"))
    assert not bench.partition.is_stable
    bench.reconfigure(duramen_ack_durability="stable")
    assert bench.partition.is_stable
    bench.produce(plain(b"b"))
    disk.power_cut()
    disk.power_on()
    bench = Bench(disk, epoch=2)
    assert bench.values() == [b"a", b"b"], "what was there when the topic became stable was synced then"
    bench.reconfigure(duramen_ack_durability="page-cache")
    bench.produce(plain(b"c"))
    assert bench.values() == [b"a", b"b", b"c"]
    disk.power_cut()
    disk.power_on()
    assert Bench(disk, epoch=3, duramen_ack_durability="page-cache").values()[:2] == [b"a", b"b"]


def test_appends_while_the_topic_becomes_stable_are_answered_when_it_is() -> None:
    bench = Bench(duramen_ack_durability="page-cache")
    bench.produce(plain(b"a"))
    bench.lanes.held.add("checkpoint")
    bench.store.configure(bench.partition, bench.config())
    answers = bench.send(plain(b"b"))
    bench.run()
    assert not answers, "whoever made the change may rely on it already"
    assert not bench.partition.is_stable
    bench.lanes.held.clear()
    bench.run()
    assert bench.partition.is_stable
    assert [code(answer) for answer in answers] == [ErrorCode.NONE]
    assert code(bench.produce(plain(b"c"))) is ErrorCode.NONE
    assert bench.values() == [b"a", b"b", b"c"]


def test_a_change_during_a_change_of_durability_is_the_one_that_stays() -> None:
    bench = Bench(duramen_ack_durability="page-cache")
    bench.produce(plain(b"a"))
    bench.lanes.held.add("checkpoint")
    bench.store.configure(bench.partition, bench.config())
    bench.store.configure(bench.partition, bench.config(duramen_ack_durability="page-cache"))
    bench.lanes.held.clear()
    bench.run()
    assert not bench.partition.is_stable
    assert code(bench.produce(plain(b"b"))) is ErrorCode.NONE


# ---- positions ---------------------------------------------------------------------------------------------------


def filled() -> Bench:
    """Offsets 0..5 in three batches, timestamps 10, 11 | 30, 31 | 20, 21."""
    bench = Bench()
    for timestamp in (10, 30, 20):
        bench.produce(plain(b"x", b"y", timestamp=timestamp))
    return bench


def test_offsets_by_special_timestamp() -> None:
    bench = filled()
    partition = bench.partition
    assert list_offset(partition, -1, 0) == (6, -1, 1)
    assert list_offset(partition, -2, 0) == (0, -1, 1)
    assert list_offset(partition, -3, 0) == (3, 31, 1)
    assert list_offset(partition, -4, 0) == (0, -1, 1)
    assert list_offset(partition, -5, 0) == (-1, -1, -1)
    assert list_offset(partition, -6, 0) == (-1, -1, -1)
    empty = Bench().partition
    assert list_offset(empty, -1, 0) == (0, -1, 1)
    assert list_offset(empty, -2, 0) == (0, -1, 1)
    assert list_offset(empty, -3, 0) == (-1, -1, -1)
    assert list_offset(empty, 0, 0) == (-1, -1, -1)


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [(0, (0, 10)), (10, (0, 10)), (11, (1, 11)), (12, (2, 30)), (30, (2, 30)), (31, (3, 31)), (32, (-1, -1))],
)
def test_offsets_by_timestamp_are_exact(timestamp: int, found: tuple[int, int]) -> None:
    assert list_offset(filled().partition, timestamp, 0)[:2] == found


def test_positions_stop_where_the_reader_must() -> None:
    bench = filled()
    bench.local(transactional(1, b"open"))
    partition = bench.partition
    assert list_offset(partition, -1, READ_COMMITTED)[0] == 6
    assert list_offset(partition, -1, READ_UNCOMMITTED)[0] == 7
    assert list_offset(partition, NOW, READ_COMMITTED)[0] == -1
    assert list_offset(partition, NOW, READ_UNCOMMITTED)[0] == 6
    assert list_offset(partition, -3, READ_COMMITTED)[:2] == (3, 31)


def test_the_ends_of_epochs() -> None:
    bench = filled()
    partition = bench.partition
    assert epoch_end(partition, 1) == (1, 6)
    partition.lead(4, (1,), (1,), 0)
    bench.produce(plain(b"z"))
    assert epoch_end(partition, 1) == (1, 6)
    assert epoch_end(partition, 3) == (1, 6)
    assert epoch_end(partition, 4) == (4, 7)
    assert epoch_end(partition, 5) == (-1, -1)
    assert epoch_end(partition, 0) == (0, 0)
    assert list_offset(partition, -2, 0).leader_epoch == 1
    assert list_offset(partition, NOW, 0) == (6, NOW, 4)
    delete_records(partition, 7)
    assert list_offset(partition, -2, 0) == (7, -1, 4)


def test_an_epoch_that_nothing_was_written_in_ends_where_the_log_stood() -> None:
    """A reader's position may be of such an epoch: ListOffsets told it to who asked for the end."""
    bench = filled()
    partition = bench.partition
    partition.lead(4, (1,), (1,), 0)
    assert list_offset(partition, -1, 0) == (6, -1, 4)
    partition.lead(7, (1,), (1,), 0)
    assert [epoch_end(partition, epoch) for epoch in (1, 3, 4, 6)] == [(1, 6)] * 4
    assert epoch_end(partition, 7) == (7, 6)
    assert epoch_end(partition, 8) == (-1, -1)
    assert epoch_end(partition, -1) == (-1, -1)
    bench.produce(plain(b"z"))
    assert [epoch_end(partition, epoch) for epoch in (1, 3, 4, 6, 7)] == [(1, 6)] * 4 + [(7, 7)]
    empty = Bench().partition
    empty.lead(4, (1,), (1,), 0)
    assert [epoch_end(empty, epoch) for epoch in (0, 1, 3, 4, 5)] == [(0, 0), (1, 0), (3, 0), (4, 0), (-1, -1)]


# ---- reading -----------------------------------------------------------------------------------------------------


def test_reads_are_whole_batches_from_the_one_that_holds_the_offset() -> None:
    bench = filled()
    assert [header.base_offset for header in bench.headers(3)] == [2, 4]
    one = len(bench.bytes_from(4))
    assert len(bench.bytes_from(0, max_bytes=1)) == one, "the first batch comes however little was asked for"
    assert bench.partition.read(0, 1, 0, at_least_one=False).parts == []
    assert len(bench.bytes_from(0, max_bytes=2 * one + 5)) == 2 * one
    assert bench.partition.read(6, 100, 0).parts == []
    for offset in (-1, 7, 2**62):
        with pytest.raises(KafkaError) as caught:
            bench.partition.read(offset, 100, 0)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_reads_between_the_high_watermark_and_the_log_end_are_empty() -> None:
    bench = filled()
    bench.lanes.held.add("journal")
    bench.send(plain(b"not yet"))
    bench.run()
    read = bench.partition.read(6, 1000, 0)
    assert (read.parts, read.high_watermark, bench.partition.log_end_offset) == ([], 6, 7)
    assert bench.partition.read(7, 1000, 0).parts == []
    bench.lanes.held.clear()
    bench.run()


# ---- deleting records --------------------------------------------------------------------------------------------


def test_records_are_deleted_to_the_exact_offset_and_for_good() -> None:
    disk = CrashDisk()
    bench = Bench(disk)
    bench.produce(plain(b"a", b"b", b"c"))
    bench.produce(plain(b"d"))
    partition = bench.partition
    for offset in (5, -2, 2**62):
        with pytest.raises(KafkaError) as caught:
            delete_records(partition, offset)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    synced: list[KafkaError | None] = []
    bench.lanes.held.add("journal")
    assert delete_records(partition, 2) == 2
    bench.store.when_synced(TP, synced.append)
    bench.run()
    assert synced == []
    bench.lanes.held.clear()
    bench.run()
    assert synced == [None]
    assert delete_records(partition, 1) == 2, "a start never goes back"
    with pytest.raises(KafkaError):
        partition.read(1, 1000, 0)
    assert list_offset(partition, -2, 0)[0] == 2
    disk.power_cut()
    disk.power_on()
    again = Bench(disk, epoch=2)
    assert again.partition.log_start_offset == 2
    assert delete_records(again.partition, -1) == 4
    assert again.values(4) == []
    assert appended(again.produce(plain(b"e"))).base_offset == 4
