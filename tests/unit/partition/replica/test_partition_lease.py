"""What a leader may not answer by itself while it may have been fenced: refused, or left to the high watermark."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.machines.replication.test_leader_lease import Held
from tests.worlds.partition_world import NOW, Bench, plain

from duramen.errors import ErrorCode, KafkaError
from duramen.partition.replica.staged_appends import append_staged


def led(
    lease: Held | None, isr: tuple[int, ...] = (1, 2, 3), replicas: tuple[int, ...] = (1, 2, 3), **configs: str
) -> Bench:
    bench = Bench(epoch=None, **configs)
    bench.partition.lead(2, replicas, isr, 1, lease)
    bench.run()
    return bench


@pytest.fixture
def lease() -> Held:
    return Held()


def code(answers: list[Any]) -> Any:
    (answer,) = answers
    return answer.code if isinstance(answer, KafkaError) else ErrorCode.NONE


def test_acks_1_is_refused_and_nothing_is_stored(lease: Held) -> None:
    bench = led(lease)
    assert code([bench.produce(plain(b"a"), acks=1)]) is ErrorCode.NONE
    lease.valid = False
    assert code(bench.send(plain(b"b"), acks=1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.partition.log_end_offset == 1


def test_acks_all_with_others_in_sync_needs_none(lease: Held) -> None:
    bench = led(lease)
    lease.valid = False
    answers = bench.send(plain(b"a"))
    bench.run()
    for node in (2, 3):
        bench.partition.fetched_by(node, 7, 1, 1.0)
    bench.partition.settle_fetched()
    assert code(answers) is ErrorCode.NONE


def test_acks_all_and_own_records_are_refused_where_nobody_else_is_in_sync(lease: Held) -> None:
    bench = led(lease, (1,))
    assert code([bench.produce(plain(b"a"))]) is ErrorCode.NONE
    lease.valid = False
    assert code(bench.send(plain(b"b"))) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(KafkaError) as refused:
        bench.local(plain(b"c"))
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    staged: list[Any] = []
    append_staged(bench.partition, memoryview(plain(b"d")), NOW, staged.append)
    assert code(staged) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.partition.log_end_offset == 1


def test_acks_0_promises_nothing_and_is_taken(lease: Held) -> None:
    bench = led(lease, (1,))
    lease.valid = False
    assert code(bench.send(plain(b"a"), acks=0)) is ErrorCode.NONE
    assert bench.partition.log_end_offset == 1


def test_a_batch_that_was_rewritten_meanwhile_is_refused(lease: Held) -> None:
    bench = led(lease, compression_type="gzip")
    answers = bench.send(plain(b"a"), acks=1)
    lease.valid = False
    bench.run()
    assert code(answers) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.partition.log_end_offset == 0


def test_what_is_appended_already_waits_for_the_watermark_in_the_order_of_the_log(lease: Held) -> None:
    bench = led(lease)
    order: list[str] = []

    def send(name: str, acks: int) -> None:
        bench.partition.append(memoryview(plain(b"v")), acks, NOW, lambda answer: order.append(name))

    for number, acks in enumerate((1, -1, 1, -1)):
        send(f"{number}", acks)
    lease.valid = False
    bench.run()
    assert bench.partition.durable_end == 4
    assert (order, bench.partition.waiting) == ([], 4)
    for node in (2, 3):
        bench.partition.fetched_by(node, 7, 3, 1.0)
    bench.partition.settle_fetched()
    assert order == ["0", "1", "2"]
    for node in (2, 3):
        bench.partition.fetched_by(node, 7, 4, 1.0)
    bench.partition.settle_fetched()
    assert order == ["0", "1", "2", "3"]


def test_it_is_looked_at_when_the_answer_is_decided(lease: Held) -> None:
    bench = led(lease)
    answers = bench.send(plain(b"a"), acks=1)
    lease.valid = False
    lease.valid = True
    bench.run()
    assert code(answers) is ErrorCode.NONE


def test_who_waits_for_a_watermark_that_cannot_move_is_told_so(lease: Held) -> None:
    bench = led(lease, (1,), min_insync_replicas="2")
    answers = bench.send(plain(b"a"), acks=1)
    lease.valid = False
    bench.run()
    assert code(answers) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_who_waits_is_told_when_another_one_leads(lease: Held) -> None:
    bench = led(lease)
    answers = bench.send(plain(b"a"), acks=1)
    lease.valid = False
    bench.run()
    bench.partition.resign(2, 3, (1, 2, 3), (2, 3))
    assert code(answers) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_what_stood_still_goes_on_when_the_lease_holds_again(lease: Held) -> None:
    bench = led(lease, (1,))
    answers = [bench.send(plain(b"a")), bench.send(plain(b"b"), acks=1)]
    woken: list[int] = []
    lease.valid = False
    bench.run()
    bench.partition.watch(lambda: woken.append(bench.partition.high_watermark))
    assert (answers, bench.partition.high_watermark) == ([[], []], 0)
    bench.partition.lease_renewed()
    assert answers == [[], []]
    lease.valid = True
    bench.partition.lease_renewed()
    assert [code(each) for each in answers] == [ErrorCode.NONE] * 2
    assert woken == [2]


def test_one_replica_needs_none(lease: Held) -> None:
    lease.valid = False
    bench = led(lease, (1,), (1,))
    assert bench.partition.may_answer
    for acks in (1, -1):
        assert code([bench.produce(plain(b"a"), acks=acks)]) is ErrorCode.NONE
    assert bench.partition.high_watermark == 2
    assert lease.looks == 0


def test_the_only_voter_needs_none() -> None:
    bench = led(None, (1,))
    assert bench.partition.may_answer
    assert code([bench.produce(plain(b"a"), acks=1)]) is ErrorCode.NONE
