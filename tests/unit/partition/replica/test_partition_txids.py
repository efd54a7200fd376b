"""Transaction ids never step back, whoever sends them, whatever becomes of the node, its files and old records."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.partition_world import NOW, Bench, transactional

from duramen.config import validate_topic_configs
from duramen.errors import ConfigError, ErrorCode, KafkaError
from duramen.partition.replica.batch_rules import RecordsRefusedError, TxidRefusedError
from duramen.partition.replica.conditional_append import ConditionalBatch, append_conditionally
from duramen.partition.replica.offset_lookup import delete_records, list_offset
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.staged_appends import append_staged
from duramen.sim.world.disk import CrashDisk, PowerCut
from duramen.storage.log.follower import append_as_follower
from duramen.storage.log.retention import active_expired, removable_before
from duramen.wire.batch import batches, build_batch, parse_header, records

DAY = 86_400_000


def ids(*txids: int, size: int = 1, **fields: int) -> bytearray:
    return build_batch([(None, b"v" * size, (), txid) for txid in txids], **fields)


def application(disk: CrashDisk | None = None, epoch: int | None = 1, **configs: str) -> Bench:
    return Bench(disk, epoch=epoch, duramen_txid="application", **configs)


def stored(answer: Appended | KafkaError) -> int:
    assert isinstance(answer, Appended), answer
    return answer.base_offset


def refused(answer: object) -> tuple[list[tuple[int, str]], int]:
    """Which records were refused and why, and the last transaction id."""
    assert isinstance(answer, TxidRefusedError), answer
    assert answer.code is ErrorCode.INVALID_TIMESTAMP
    return answer.errors, answer.last_txid


def txids(bench: Bench) -> list[int]:
    data = memoryview(bench.bytes_from(bench.partition.log_start_offset))
    return [
        record.timestamp for at, header in batches(data) for record in records(data[at:], header, max_bytes=1 << 24)
    ]


# ---- ids of the application --------------------------------------------------------------------------------------


def test_an_id_below_the_last_is_refused() -> None:
    bench = application()
    assert [stored(bench.produce(ids(txid))) for txid in (5, 5, 2**63 - 1)] == [0, 1, 2]
    assert refused(bench.produce(ids(7))) == (
        [(0, f"has transaction id 7, below the last, {2**63 - 1}")],
        2**63 - 1,
    )
    assert txids(bench) == [5, 5, 2**63 - 1]


@pytest.mark.parametrize("codec", [0, 1])
def test_ids_that_step_back_inside_a_batch_are_refused(codec: int) -> None:
    bench = application()
    assert stored(bench.produce(ids(5, 7, 7, 9, compression=codec))) == 0
    errors, last = refused(bench.produce(ids(9, 12, 11, 10, 13, compression=codec)))
    assert ([index for index, _ in errors], last) == ([2, 3], 9)
    errors, _ = refused(bench.produce(ids(3, 4, 9, 10, compression=codec)))
    assert errors[0] == (0, "has transaction id 3, below the last, 9")
    assert txids(bench) == [5, 7, 7, 9]


@pytest.mark.parametrize("txid", [0, -1, -5])
def test_an_id_is_above_0(txid: int) -> None:
    bench = application()
    errors, _ = refused(bench.produce(ids(txid)))
    assert "above 0" in errors[0][1] or "below the last" in errors[0][1]
    assert isinstance(bench.produce(ids(1, txid)), RecordsRefusedError)


def test_neither_bound_of_timestamps_holds() -> None:
    bench = application(message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    assert [stored(bench.produce(each)) for each in (ids(1, 2), ids(3), ids(NOW + DAY), ids(2**62, 2**62))] == [
        0,
        2,
        3,
        4,
    ]


def test_later_batches_wait_for_one_that_is_decoded() -> None:
    bench = application()
    bench.lanes.held.add("rewriting")
    first, second, third = bench.send(ids(5, 9)), bench.send(ids(8)), bench.send(ids(9))
    bench.run()
    assert (first, second, third) == ([], [], [])
    bench.lanes.held.clear()
    bench.run()
    assert stored(first[0]) == 0
    assert refused(second[0])[1] == 9
    assert stored(third[0]) == 2


def test_what_is_sent_again_is_found_though_others_came_after_it() -> None:
    bench = application()
    one = ids(5, producer_id=1, producer_epoch=0, base_sequence=0)
    several = ids(5, 6, producer_id=1, producer_epoch=0, base_sequence=1)
    assert (stored(bench.produce(one)), stored(bench.produce(several))) == (0, 1)
    assert stored(bench.produce(ids(100))) == 3
    assert (stored(bench.produce(one)), stored(bench.produce(several))) == (0, 1)
    assert txids(bench) == [5, 5, 6, 100]


def test_transactions_are_refused_in_words() -> None:
    bench = application()
    answers: list[Appended | KafkaError] = []
    bench.partition.append(memoryview(transactional(7, b"v")), -1, NOW, answers.append, None)
    bench.run()
    (answer,) = answers
    assert isinstance(answer, KafkaError)
    assert answer.code in (ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_TXN_STATE)
    assert bench.partition.log_end_offset == 0


def test_what_a_sink_committed_before_the_setting_follows_in_order() -> None:
    bench = application()
    bench.produce(ids(2**62))
    done: list[Appended | KafkaError] = []
    batch = ids(5, 4, producer_id=2**62, producer_epoch=0, base_sequence=0)
    append_staged(bench.partition, memoryview(batch), NOW, done.append)
    bench.run()
    assert stored(done[0]) == 1
    assert txids(bench) == [2**62] * 3


def test_a_close_has_the_last_id() -> None:
    bench = application()
    bench.produce(ids(5, 9))
    append_conditionally(bench.partition, ConditionalBatch(None, -1, True), NOW, lambda _: None)
    bench.run()
    assert [header.max_timestamp for header in bench.headers()] == [9, 9]
    assert list_offset(bench.partition, 10, 0).offset == -1
    assert list_offset(bench.partition, 9, 0).offset == 1
    assert bench.partition.last_txid == 9


# ---- ids that the leader assigns ---------------------------------------------------------------------------------


def test_the_leader_assigns_its_clock_and_never_steps_back() -> None:
    bench = Bench(duramen_txid="assigned")
    answer = bench.produce(ids(5, 4, -1))
    assert isinstance(answer, Appended)
    assert (answer.append_time_ms, bench.headers()[0].timestamp_type) == (NOW, 1)
    bench.clock.wall_ahead_ms = -DAY
    bench.produce(ids(2**62))
    bench.clock.wall_ahead_ms = 1
    bench.produce(ids(1))
    assert txids(bench) == [NOW, NOW, NOW, NOW, NOW + 1]


# ---- reading from an id ------------------------------------------------------------------------------------------


def test_a_look_up_finds_the_first_record_at_or_above_an_id() -> None:
    bench = application()
    for each in (ids(5), ids(5, 7, 7, 9), ids(20)):
        bench.produce(each)
    found = [list_offset(bench.partition, txid, 0).offset for txid in (0, 5, 6, 7, 8, 9, 10, 20, 21)]
    assert found == [0, 0, 2, 2, 4, 4, 5, 5, -1]


# ---- what becomes of the last one --------------------------------------------------------------------------------

KEPT = (".log", ".part", "t-0", "meta.properties", "partition.metadata", "duramen-directory", ".lock")


def lose_side_files(disk: CrashDisk) -> None:
    for folder in ("/data", "/data/t-0"):
        for name in disk.list_directory(folder):
            if not name.endswith(KEPT):
                disk.remove(f"{folder}/{name}")


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("small", [False, True])
def test_it_survives_without_what_lies_beside_the_log(is_cut: bool, loses: bool, small: bool) -> None:
    configs = {"internal_segment_bytes": "200"} if small else {}
    bench = application(**configs)
    for txid in range(10, 20):
        stored(bench.produce(ids(txid, 1000 * txid)) if txid < 11 else bench.produce(ids(1000 * txid)))
    (bench.disk.power_cut if is_cut else bench.disk.kill)()
    bench.disk.power_on()
    if loses:
        lose_side_files(bench.disk)
    again = application(bench.disk, epoch=2, **configs)
    assert again.partition.last_txid == 19_000
    assert refused(again.produce(ids(18_999)))[1] == 19_000
    assert stored(again.produce(ids(19_000))) == 11


@pytest.mark.parametrize("loses", [False, True])
def test_it_survives_that_all_records_are_deleted(loses: bool) -> None:
    bench = application()
    bench.produce(ids(5))
    bench.produce(ids(7, 9))
    assert delete_records(bench.partition, 2) == 2
    bench.run()
    assert delete_records(bench.partition, -1) == 2
    bench.disk.power_cut()
    bench.disk.power_on()
    if loses:
        lose_side_files(bench.disk)
    again = application(bench.disk, epoch=2)
    assert again.partition.last_txid == 9
    assert refused(again.produce(ids(8)))[1] == 9
    if not loses:
        assert (again.partition.log_start_offset, again.partition.log_end_offset) == (2, 3)


def test_it_survives_retention_and_age_is_counted_from_storing() -> None:
    bench = application(retention_ms=str(DAY), retention_bytes="0", internal_segment_bytes="200")
    for txid in (5, 6, 7):
        bench.produce(ids(txid, size=150))
        bench.clock.now_ms += DAY
    log = bench.partition.log
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]
    log.config = bench.config(duramen_txid="application", retention_ms=str(DAY), internal_segment_bytes="200")
    assert removable_before(log, NOW + DAY, 3) == 0
    assert removable_before(log, NOW + DAY + 1, 3) == 1
    assert removable_before(log, NOW + 100 * DAY, 3) == 2
    assert not active_expired(log, NOW + 100 * DAY, 3)
    log.roll()
    assert removable_before(log, NOW + 100 * DAY, 3) == 2
    assert max(segment.max_timestamp for segment in log.segments) == 7


def test_ids_that_are_no_times_roll_no_segments() -> None:
    bench = application(segment_ms="1000")
    bench.disk.wall_ms = lambda: NOW + 2000
    for txid in (1, 10**6, 10**12, 10**18):
        bench.produce(ids(txid))
    assert len(bench.partition.log.segments) == 1
    bench.clock.now_ms += 2000
    bench.produce(ids(10**18))
    assert len(bench.partition.log.segments) == 2
    bench.disk.kill()
    bench.disk.power_on()
    lose_side_files(bench.disk)
    again = application(bench.disk, epoch=2, segment_ms="1000")
    again.clock.now_ms = bench.clock.now_ms + 500
    again.produce(ids(10**18))
    assert len(again.partition.log.segments) == 2
    again.clock.now_ms += 2000
    again.produce(ids(10**18))
    assert len(again.partition.log.segments) == 3


def test_a_follower_that_leads_knows_it_also_behind_a_cut() -> None:
    leader = application()
    for txid in (5, 9, 20):
        leader.produce(ids(txid))
    follower = application(epoch=None)
    data = memoryview(leader.bytes_from())
    for position, header in batches(data):
        append_as_follower(follower.partition.log, data[position : position + header.size], header, NOW)
    follower.partition.touched()
    follower.run()
    follower.partition.truncate_to(2)
    follower.run()
    follower.partition.lead(2, (1,), (1,), 0)
    assert refused(follower.produce(ids(8)))[1] == 9
    assert stored(follower.produce(ids(10))) == 2


def test_a_replica_that_begins_with_the_log_start_learns_it() -> None:
    leader = application()
    for each in (ids(5), ids(7, 9)):
        leader.produce(each)
    start = delete_records(leader.partition, -1)
    leader.run()
    assert start == 2
    new = application(epoch=None)
    data = memoryview(leader.bytes_from(start))
    new.partition.begin_anew(new.directory, start, parse_header(data).base_offset)
    new.run()
    append_as_follower(new.partition.log, data, parse_header(data), NOW)
    new.partition.touched()
    new.run()
    new.partition.lead(2, (1,), (1,), 0)
    assert (new.partition.log_start_offset, new.partition.last_txid) == (2, 9)
    assert refused(new.produce(ids(8)))[1] == 9


def test_a_topic_that_gets_the_setting_goes_on_from_its_greatest_timestamp() -> None:
    bench = Bench()
    bench.produce(ids(100))
    bench.produce(ids(50))
    bench.reconfigure(duramen_txid="application")
    assert refused(bench.produce(ids(60)))[1] == 100
    assert stored(bench.produce(ids(100))) == 2
    bench.reconfigure()
    assert stored(bench.produce(ids(NOW))) == 3
    bench.reconfigure(duramen_txid="assigned")
    answer = bench.produce(ids(1))
    assert isinstance(answer, Appended)
    assert answer.append_time_ms == NOW


def test_a_setting_that_comes_while_a_batch_is_decoded_has_it_sent_again() -> None:
    bench = Bench(compression_type="gzip")
    bench.lanes.held.add("rewriting")
    answers = bench.send(ids(9, 5))
    bench.partition.configure(bench.config(duramen_txid="application", compression_type="gzip"))
    bench.lanes.held.clear()
    bench.run()
    assert isinstance(answers[0], KafkaError)
    assert answers[0].retriable
    assert bench.partition.log_end_offset == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_anywhere_leaves_ids_in_order(seed: int) -> None:
    dice = Random(seed)
    disk = CrashDisk(Random(seed), torn=seed % 2 == 0)
    bench = application(disk, internal_segment_bytes="300")
    disk.cut_at = disk.calls + dice.randrange(1, 40)
    last, answers = 1, []
    try:
        for _ in range(12):
            last += dice.randrange(3)
            answers.append((last, bench.send(ids(last, last + 1) if dice.random() < 0.3 else ids(last))))
            last = last + 1
            if dice.random() < 0.2 and bench.partition.high_watermark:
                delete_records(bench.partition, -1)
            bench.run()
    except PowerCut:
        pass
    else:
        disk.power_cut()
    disk.power_on()
    acknowledged = max((txid for txid, answer in answers if answer and isinstance(answer[0], Appended)), default=0)
    again = application(disk, epoch=2, internal_segment_bytes="300")
    assert again.partition.last_txid is not None
    assert again.partition.last_txid >= acknowledged
    stored(again.produce(ids(again.partition.last_txid or 1)))
    found = txids(again)
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"duramen.txid": "application", "cleanup.policy": "compact"}, "cleanup.policy=delete"),
        ({"duramen.txid": "assigned", "cleanup.policy": "compact,delete"}, "cleanup.policy=delete"),
        ({"duramen.txid": "application", "message.timestamp.type": "LogAppendTime"}, "message.timestamp.type"),
        ({"duramen.txid": "assigned", "message.timestamp.type": "CreateTime"}, "message.timestamp.type"),
        ({"duramen.txid": "yes"}, "application"),
    ],
)
def test_settings_that_cannot_be_together(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        validate_topic_configs(Bench().broker_config, settings)
