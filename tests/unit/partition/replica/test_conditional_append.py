"""Appends under a condition, and what is closed: it stays so whatever becomes of the node and its files."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tests.worlds.partition_world import NOW, Bench, plain, transactional

from duramen.errors import ErrorCode, KafkaError, StreamClosedError
from duramen.model import TopicPartition, named_producer_id
from duramen.partition.replica.conditional_append import (
    ConditionalBatch,
    ConditionalResult,
    EndIsElsewhereError,
    HistoryDivergedError,
    append_conditionally,
)
from duramen.partition.replica.offset_lookup import delete_records
from duramen.partition.replica.staged_appends import append_staged
from duramen.sim.world.disk import CrashDisk, PowerCut
from duramen.storage.log.follower import append_as_follower
from duramen.storage.log.retention import active_expired, removable_before
from duramen.wire.batch import parse_header
from duramen.wire.records.control import ControlType, type_of

DAY = 86_400_000


def ask(
    bench: Bench, data: bytearray | None = None, expected: int = -1, closes: bool = False, epoch: int = -1
) -> list[ConditionalResult | KafkaError]:
    """The list gets the answer when there is one."""
    answers: list[ConditionalResult | KafkaError] = []
    batch = None if data is None else memoryview(bytearray(data))
    append_conditionally(bench.partition, ConditionalBatch(batch, expected, closes, -1, epoch), NOW, answers.append)
    return answers


def answered(
    bench: Bench, data: bytearray | None = None, expected: int = -1, closes: bool = False, epoch: int = -1
) -> ConditionalResult | KafkaError:
    answers = ask(bench, data, expected, closes, epoch)
    bench.run()
    (answer,) = answers
    return answer


def done(answer: ConditionalResult | KafkaError) -> ConditionalResult:
    assert isinstance(answer, ConditionalResult), answer
    return answer


def code(answer: object) -> ErrorCode:
    assert isinstance(answer, KafkaError), answer
    return answer.code


def closed_bench(disk: CrashDisk | None = None, **configs: str) -> Bench:
    """Two records and the record that closed it, at offset 2."""
    bench = Bench(disk, **configs)
    bench.produce(plain(b"a"))
    assert done(answered(bench, plain(b"b"), 1, closes=True))[:8] == (1, 1, -1, 0, 3, 1, False, 1)
    return bench


def check_closed(bench: Bench) -> None:
    """Nothing gets behind the record."""
    partition = bench.partition
    assert partition.log.producers.closed_at == 2
    answer = bench.produce(plain(b"late"))
    assert isinstance(answer, StreamClosedError)
    assert answer.code is ErrorCode.POLICY_VIOLATION
    assert not answer.retriable
    assert isinstance(answered(bench, plain(b"late")), StreamClosedError)
    staged: list[object] = []
    append_staged(partition, memoryview(plain(b"late")), NOW, staged.append)
    assert isinstance(staged[0], StreamClosedError)
    assert partition.log_end_offset == 3
    assert bench.values(partition.log_start_offset) == [b"a", b"b"][partition.log_start_offset :]


# ---- conditions --------------------------------------------------------------------------------------------------


def test_of_two_appends_at_one_place_one_succeeds() -> None:
    bench = Bench()
    bench.lanes.held.add("journal")
    first, second = ask(bench, plain(b"a", b"b"), 0), ask(bench, plain(b"c"), 0)
    bench.run()
    assert first == []
    bench.lanes.held.clear()
    bench.run()
    assert code(second[0]) is ErrorCode.END_IS_ELSEWHERE
    assert done(first[0])[:8] == (0, 1, -1, 0, 2, 1, False, 1)
    assert done(answered(bench, plain(b"c"), 2)).base_offset == 2
    assert bench.values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("closes", [False, True])
def test_what_another_leader_may_have_is_not_refused_as_if_it_were_nowhere(closes: bool) -> None:
    bench = Bench()
    bench.lanes.held.add("journal")
    stored = ask(bench, plain(b"a"), 0, closes)
    bench.partition.resign(2, 3, (1, 2), (1, 2))
    assert code(stored[0]) is ErrorCode.REQUEST_TIMED_OUT
    assert code(ask(bench, plain(b"b"), 1)[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_who_sends_again_what_is_stored_meets_no_condition() -> None:
    bench = Bench()
    batch = plain(b"a", producer_id=5, producer_epoch=0, base_sequence=0)
    assert done(answered(bench, batch, 0)).base_offset == 0
    again = done(answered(bench, batch, 0))
    assert (again.base_offset, again.last_offset, again.is_duplicate, again.leader_epoch) == (0, 0, True, 1)
    closing = done(answered(bench, batch, 0, closes=True))
    assert (closing.base_offset, closing.is_duplicate, closing.end_offset) == (0, True, 2)
    assert done(answered(bench, batch, 0, closes=True)) == closing
    assert bench.partition.log.producers.closed_at == 1


def test_conditions_hold_behind_a_batch_that_is_decoded() -> None:
    bench = Bench(cleanup_policy="compact")
    bench.lanes.held.add("rewriting")
    first, second, third = ask(bench, plain(b"a"), 0), ask(bench, plain(b"b"), 1), ask(bench, None, 1, closes=True)
    fourth = ask(bench, None, 2, closes=True)
    late = bench.send(plain(b"late"))
    bench.run()
    assert (first, second, third, fourth, late) == ([], [], [], [], [])
    bench.lanes.held.clear()
    bench.run()
    assert [done(first[0]).base_offset, done(second[0]).base_offset] == [0, 1]
    assert code(third[0]) is ErrorCode.END_IS_ELSEWHERE
    assert done(fourth[0]).end_offset == 3
    assert isinstance(late[0], StreamClosedError)
    assert code(answered(bench, plain(b"x", key=None), -1)) is ErrorCode.INVALID_RECORD


def test_who_asks_changes_nothing() -> None:
    bench = Bench()
    bench.produce(plain(b"a"))
    assert done(answered(bench)).end_offset == 1
    assert code(answered(bench, None, 0)) is ErrorCode.END_IS_ELSEWHERE
    assert bench.partition.log_end_offset == 1
    closed = closed_bench()
    assert done(answered(closed)).end_offset == 3


def refilled_bench() -> Bench:
    """A page-cache log that lost its last two records in a power cut, and got two others in epoch 2."""
    bench = Bench(duramen_ack_durability="page-cache")
    assert done(answered(bench, plain(b"a", b"b"), 0))[7] == 1
    cut(bench)
    again = Bench(bench.disk, duramen_ack_durability="page-cache", epoch=2)
    assert again.partition.log_end_offset == 0
    assert done(answered(again, plain(b"x", b"y"), 0))[7] == 2
    return again


def test_an_end_that_others_filled_after_a_power_cut_is_told_by_its_epoch() -> None:
    bench = refilled_bench()
    lost = answered(bench, plain(b"c"), 2, epoch=1)
    assert isinstance(lost, HistoryDivergedError)
    assert lost.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert isinstance(answered(bench, None, 2, closes=True, epoch=1), HistoryDivergedError)
    assert code(answered(bench, plain(b"c"), 1, epoch=1)) is ErrorCode.END_IS_ELSEWHERE
    assert bench.values() == [b"x", b"y"]
    assert done(answered(bench, plain(b"c"), 2, epoch=2)).base_offset == 2
    assert done(answered(bench, None, 3, epoch=2))[5:8] == (2, False, 2)


def test_the_epoch_is_that_of_the_record_in_front_whoever_leads() -> None:
    bench = Bench()
    bench.produce(plain(b"a"))
    bench.partition.lead(5, (1,), (1,), 1)
    assert isinstance(answered(bench, plain(b"b"), 1, epoch=5), HistoryDivergedError)
    assert done(answered(bench, None))[5:8] == (5, False, 1)
    assert done(answered(bench, plain(b"b"), 1, epoch=1))[7] == 5
    for path in files(bench.disk):
        if not path.endswith(KEPT):
            bench.disk.remove(path)
    killed(bench)
    again = Bench(bench.disk, epoch=6)
    assert done(answered(again, plain(b"c"), 2, epoch=5)).base_offset == 2


def test_in_front_of_the_first_record_there_is_no_epoch() -> None:
    bench = Bench()
    assert done(answered(bench))[7] == -1
    assert done(answered(bench, plain(b"a"), 0, epoch=7)).base_offset == 0


def test_positions_of_a_log_that_was_emptied() -> None:
    bench = Bench()
    bench.produce(plain(b"a"))
    bench.partition.lead(4, (1,), (1,), 1)
    assert delete_records(bench.partition, -1) == 1
    bench.run()
    assert done(answered(bench))[7] == 4
    for epoch, expected in ((0, HistoryDivergedError), (1, ConditionalResult), (4, ConditionalResult)):
        assert isinstance(answered(bench, None, 1, epoch=epoch), expected)
    assert isinstance(answered(bench, None, 1, epoch=5), HistoryDivergedError)


def test_a_leader_that_may_be_none_any_more_does_not_judge_a_later_ones_end() -> None:
    bench = Bench()
    bench.produce(plain(b"a"))
    bench.partition.lead(2, (1, 2), (1, 2), 1, Lease())
    assert code(ask(bench, plain(b"b"), 1, epoch=3)[0]) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert code(ask(bench, plain(b"b"), 9, epoch=3)[0]) is ErrorCode.UNKNOWN_LEADER_EPOCH
    bench.partition.lead(2, (1, 2), (1,), 2, Lease())
    assert isinstance(ask(bench, plain(b"b"), 1, epoch=3)[0], HistoryDivergedError)


class Lease:
    def holds(self) -> bool:
        return True


def test_a_close_is_repeated_in_its_own_history() -> None:
    bench = refilled_bench()
    done(answered(bench, None, 2, closes=True, epoch=2))
    assert done(answered(bench, None, 2, closes=True, epoch=2)).is_duplicate
    assert isinstance(answered(bench, None, 2, closes=True, epoch=1), StreamClosedError)


Refused = Callable[[Bench], list[ConditionalResult | KafkaError]]
REFUSALS: dict[str, tuple[Refused, ErrorCode, dict[str, str]]] = {
    "elsewhere": (lambda bench: ask(bench, plain(b"x"), 0), ErrorCode.END_IS_ELSEWHERE, {}),
    "diverged": (lambda bench: ask(bench, plain(b"x"), 1, epoch=0), ErrorCode.OFFSET_OUT_OF_RANGE, {}),
    "gap": (lambda bench: ask(bench, named(3, b"x", epoch=2)), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, {}),
    "fenced": (lambda bench: ask(bench, named(3, b"x", epoch=1)), ErrorCode.INVALID_PRODUCER_EPOCH, {}),
    "txid": (
        lambda bench: ask(bench, plain(b"x", timestamp=NOW - 1)),
        ErrorCode.INVALID_TIMESTAMP,
        {"duramen_txid": "application"},
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_nobody_is_refused_for_what_may_never_have_been(name: str) -> None:
    refused, expected, settings = REFUSALS[name]
    for is_lost in (False, True):
        bench = Bench(**settings)
        bench.lanes.held.add("journal")
        ask(bench, named(0, b"a", epoch=2))
        answers = refused(bench)
        bench.run()
        assert answers == [], "what it rests on is not committed"
        if is_lost:
            bench.partition.resign(2, 3, (1, 2), (1, 2))
            assert code(answers[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "nothing was stored: the new leader is asked"
        else:
            ask(bench, named(1, b"b", epoch=2))
            bench.lanes.held.clear()
            bench.run()
            assert code(answers[0]) is expected


def test_where_the_log_ended_is_said_as_it_was_when_it_was_refused() -> None:
    bench = Bench()
    bench.lanes.held.add("journal")
    ask(bench, plain(b"a"), 0)
    refused = ask(bench, plain(b"x"), 0)
    bench.lanes.held.clear()
    bench.run()
    ask(bench, plain(b"b"), 1)
    assert isinstance(refused[0], EndIsElsewhereError)
    assert refused[0].end == (1, 1)


def test_a_refusal_that_waited_stored_nothing_where_too_few_are_in_sync_now() -> None:
    bench = Bench(min_insync_replicas="2")
    bench.partition.lead(2, (1, 2), (1, 2), 1)
    ask(bench, plain(b"a"), 0)
    refused = ask(bench, plain(b"x"), 0)
    bench.partition.lead(2, (1, 2), (1,), 2)
    assert code(refused[0]) is ErrorCode.NOT_ENOUGH_REPLICAS


# ---- closing -----------------------------------------------------------------------------------------------------


def test_a_close_is_answered_when_its_record_is_stable() -> None:
    bench = Bench(duramen_ack_durability="page-cache")
    bench.produce(plain(b"a"))
    answers = ask(bench, plain(b"b"), 1, closes=True)
    assert answers == []
    bench.run()
    assert done(answers[0]).end_offset == bench.partition.log.durable_end == 3
    bench.disk.power_cut()
    bench.disk.power_on()
    check_closed(Bench(bench.disk, duramen_ack_durability="page-cache", epoch=2))


def test_nobody_hears_of_a_close_that_a_power_cut_may_take_back() -> None:
    bench = Bench(duramen_ack_durability="page-cache")
    bench.produce(plain(b"a"))
    bench.lanes.held.add("checkpoint")
    answers = [
        ask(bench, plain(b"b"), 1, closes=True),
        bench.send(plain(b"late")),
        ask(bench, plain(b"late")),
        ask(bench),
    ]
    staged: list[object] = []
    append_staged(bench.partition, memoryview(plain(b"late")), NOW, staged.append)
    bench.run()
    assert (bench.values(), bench.partition.bound(0), bench.partition.is_ended) == ([b"a", b"b"], 2, False)
    assert answers == [[], [], [], []]
    assert staged == []
    bench.lanes.held.clear()
    bench.run()
    assert (bench.partition.bound(0), bench.partition.is_ended) == (3, True)
    assert [done(answers[0][0]).end_offset, done(answers[3][0]).end_offset] == [3, 3]
    assert all(isinstance(each, StreamClosedError) for each in (answers[1][0], answers[2][0], staged[0]))
    check_closed(bench)


def test_who_was_refused_for_a_close_that_is_gone_may_send_again() -> None:
    bench = Bench(duramen_ack_durability="page-cache")
    bench.lanes.held.add("checkpoint")
    ask(bench, plain(b"a"), closes=True)
    late = bench.send(plain(b"late"))
    bench.run()
    bench.partition.resign(2, 3, (1, 2), (1, 2))
    assert code(late[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    cut(bench)
    again = Bench(bench.disk, duramen_ack_durability="page-cache", epoch=4)
    assert not isinstance(again.produce(plain(b"late")), KafkaError)
    assert again.values() == [b"late"]


def test_it_is_closed_once() -> None:
    bench = closed_bench()
    assert done(answered(bench, None, closes=True))[:8] == (-1, -1, -1, 0, 3, 1, True, 1)
    assert done(answered(bench, None, 2, closes=True)).is_duplicate
    assert isinstance(answered(bench, None, 3, closes=True), StreamClosedError)
    assert isinstance(answered(bench, plain(b"c"), closes=True), StreamClosedError)
    header = bench.headers(2)[0]
    assert (header.producer_id, header.is_control, header.is_transactional) == (-1, True, False)
    assert type_of(bench.bytes_from(2), header) == ControlType.STREAM_CLOSED
    check_closed(bench)


def test_a_transaction_that_is_open_is_in_the_way() -> None:
    bench = Bench()
    bench.partition.append_local(transactional(7, b"t"), NOW)
    bench.run()
    assert code(answered(bench, plain(b"a"), closes=True)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.partition.log_end_offset == 1


Stop = Callable[[Bench], None]


def killed(bench: Bench) -> None:
    bench.disk.kill()
    bench.disk.power_on()


def cut(bench: Bench) -> None:
    bench.disk.power_cut()
    bench.disk.power_on()


def stopped(bench: Bench) -> None:
    idle: list[bool] = []
    bench.store.stop(lambda: idle.append(True))
    bench.run()
    assert idle
    bench.store.close(clean=True)


def files(disk: CrashDisk) -> list[str]:
    return [f"{folder}/{name}" for folder in ("/data", "/data/t-0") for name in disk.list_directory(folder)]


KEPT = (".log", ".part", "t-0", "meta.properties", "partition.metadata", "duramen-directory", ".lock")
SIDECARS = ["nothing", ".producers", ".snapshot", ".index", "leader-epoch-checkpoint", "checkpoint", "all"]


@pytest.mark.parametrize("stop", [killed, cut, stopped])
@pytest.mark.parametrize("gone", SIDECARS)
def test_it_stays_closed_without_what_lies_beside_the_log(stop: Stop, gone: str) -> None:
    bench = closed_bench()
    stop(bench)
    for path in files(bench.disk):
        if path.endswith(gone) or (gone == "all" and not path.endswith(KEPT)):
            bench.disk.remove(path)
    again = Bench(bench.disk, epoch=2)
    check_closed(again)
    stopped(again)
    check_closed(Bench(bench.disk, epoch=3))


def test_retention_leaves_the_record_that_closed_it() -> None:
    bench = Bench(segment_bytes="1048576", retention_ms="1000")
    for value in (b"a", b"b", b"c"):
        bench.produce(plain(value * 600_000))
    done(answered(bench, None, closes=True))
    log = bench.partition.log
    assert not active_expired(log, NOW + DAY, 4)
    assert removable_before(log, NOW + DAY, 4) == log.active.base_offset
    assert delete_records(bench.partition, -1) == 3
    bench.run()
    cut(bench)
    again = Bench(bench.disk, epoch=2)
    assert (again.partition.log_start_offset, again.partition.log.producers.closed_at) == (3, 3)


def test_a_follower_knows_and_a_cut_opens_again() -> None:
    leader = closed_bench()
    follower = Bench(epoch=None)
    data = memoryview(leader.bytes_from())
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        append_as_follower(follower.partition.log, data[position : position + header.size], header, NOW)
        position += header.size
    follower.partition.touched()
    follower.run()
    assert follower.partition.log.producers.closed_at == 2
    assert follower.partition.log.producers.markers_end == 3
    follower.partition.truncate_to(2)
    follower.run()
    assert follower.partition.log.producers.closed_at is None
    follower.partition.lead(2, (1,), (1,), 0)
    assert not isinstance(follower.produce(plain(b"c")), KafkaError)
    assert follower.values() == [b"a", b"b", b"c"]


def test_internal_topics_are_not_closed() -> None:
    bench = Bench()
    bench.partition.tp = TopicPartition("__consumer_offsets", 0)
    assert code(answered(bench, None, closes=True)) is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_anywhere_leaves_what_was_answered(seed: int) -> None:
    dice = Random(seed)
    disk = CrashDisk(Random(seed), torn=seed % 2 == 0)
    durability = dice.choice(["stable", "page-cache"])
    bench = Bench(disk, duramen_ack_durability=durability)
    bench.produce(plain(b"a"))
    disk.cut_at = disk.calls + dice.randrange(1, 12)
    answers: list[ConditionalResult | KafkaError] = []
    try:
        answers = ask(bench, plain(b"b"), 1, closes=True)
        bench.run()
    except PowerCut:
        pass
    else:
        disk.power_cut()
    disk.power_on()
    again = Bench(disk, duramen_ack_durability=durability, epoch=2)
    if answers and not isinstance(answers[0], KafkaError):
        check_closed(again)
    elif again.partition.log.producers.closed_at is None:
        assert not isinstance(again.produce(plain(b"c")), KafkaError)
    else:
        check_closed(again)


# ---- named writers -----------------------------------------------------------------------------------------------


def named(sequence: int, *values: bytes, epoch: int = 0) -> bytearray:
    return plain(*values, producer_id=named_producer_id("w"), producer_epoch=epoch, base_sequence=sequence)


def test_a_named_writers_batches_are_stored_once_whoever_repeats_them() -> None:
    bench = Bench()
    for number in range(7):
        assert done(answered(bench, named(number, b"a%d" % number, b"b%d" % number))).base_offset == 2 * number
    values = bench.values()
    for stop in (killed, cut, stopped):
        assert done(answered(bench, named(6, b"x"), 0))[:2] == (12, 13)
        old = done(answered(bench, named(0, b"x")))
        assert (old.base_offset, old.last_offset, old.leader_epoch, old.is_duplicate) == (-1, -1, -1, True)
        assert code(bench.produce(named(0, b"x"))) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        assert code(bench.produce(named(8, b"x"))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert code(bench.produce(named(3, b"x", epoch=1))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        stop(bench)
        for path in files(bench.disk):
            if not path.endswith(KEPT):
                bench.disk.remove(path)
        bench = Bench(bench.disk, epoch=2)
        assert bench.values() == values
    assert not isinstance(bench.produce(named(0, b"c", epoch=1)), KafkaError)
    assert code(bench.produce(named(7, b"x"))) is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("stop", [None, killed, stopped])
def test_what_was_deleted_is_a_duplicate_and_has_no_place_in_a_history(stop: Stop | None) -> None:
    bench = Bench()
    for number in range(7):
        bench.produce(named(number, b"v"))
    bench.produce(plain(b"other"))
    assert delete_records(bench.partition, 7) == 7
    bench.run()
    if stop is not None:
        stop(bench)
        bench = Bench(bench.disk, epoch=2)
    again = done(answered(bench, named(6, b"v")))
    assert (again.is_duplicate, again.base_offset >= 0) == (True, again.leader_epoch == 1)
    assert code(answered(bench, named(8, b"v"))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert done(answered(bench, named(7, b"v"))).base_offset == 8


def test_a_duplicate_without_a_place_is_told_when_it_is_committed() -> None:
    bench = Bench()
    bench.lanes.held.add("journal")
    for number in range(6):
        bench.send(named(number, b"v"))
    answers = bench.send(named(0, b"v"))
    bench.run()
    assert answers == []
    bench.lanes.held.clear()
    bench.run()
    assert code(answers[0]) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_what_follows_a_refused_batch_of_a_named_writer_waits_for_it() -> None:
    bench = Bench()
    bench.partition.rewrites.limit = 0
    bench.partition.rewrites.is_busy = True
    assert code(bench.send(named(0, b"a", b"b"))[0]) is ErrorCode.REQUEST_TIMED_OUT
    assert code(ask(bench, named(0, b"a", b"b"))[0]) is ErrorCode.REQUEST_TIMED_OUT
    bench.partition.rewrites.is_busy = False
    assert code(bench.produce(named(1, b"c"))) is ErrorCode.REQUEST_TIMED_OUT
    assert not isinstance(bench.produce(named(0, b"a", b"b")), KafkaError)
    assert not isinstance(bench.produce(named(1, b"c")), KafkaError)
    assert bench.values() == [b"a", b"b", b"c"]


def test_how_far_a_writer_is_counts_what_is_committed() -> None:
    bench = Bench()
    writer = named_producer_id("w")

    def asked() -> list[ConditionalResult | KafkaError]:
        answers: list[ConditionalResult | KafkaError] = []
        append_conditionally(bench.partition, ConditionalBatch(None, producer_id=writer), NOW, answers.append)
        return answers

    assert done(asked()[0]).writer == (0, -1)
    bench.produce(named(0, b"a", epoch=3))
    bench.lanes.held.add("journal")
    bench.send(named(1, b"b", epoch=3))
    waits = asked()
    bench.run()
    assert waits == []
    bench.partition.resign(2, 3, (1, 2), (1, 2))
    assert code(waits[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.lanes.held.clear()
    bench.run()
    bench.partition.lead(4, (1,), (1,), 3)
    assert done(asked()[0]).writer == (2, 3)


def test_what_lies_far_ahead_of_a_writer_is_no_repeated_batch() -> None:
    bench = Bench()
    for number in range(7):
        bench.produce(named(number, b"v"))
    for ahead in (8, 1 << 20, 1 << 30, (1 << 30) + 8, (1 << 31) - (1 << 21)):
        assert code(answered(bench, named(ahead, b"v"))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ahead


def test_a_named_writer_has_no_transactions() -> None:
    bench = Bench()
    assert code(bench.produce(transactional(named_producer_id("w"), b"t"))) is ErrorCode.INVALID_RECORD
