"""An exclusive topic takes records of the writer that was opened last, and of no other, whatever became of the node."""

from __future__ import annotations

import pytest
from tests.unit.partition.replica.test_conditional_append import (
    KEPT,
    NOW,
    Stop,
    answered,
    ask,
    code,
    cut,
    done,
    files,
    killed,
    stopped,
)
from tests.worlds.partition_world import Bench, plain

from duramen.errors import ErrorCode, KafkaError, StreamClosedError
from duramen.model import named_producer_id
from duramen.partition.replica.conditional_append import (
    ConditionalBatch,
    ConditionalResult,
    append_conditionally,
)
from duramen.partition.replica.exclusive_writer import Opened, open_writer, release_writer
from duramen.partition.replica.offset_lookup import delete_records
from duramen.partition.replica.staged_appends import append_staged
from duramen.sim.world.disk import CrashDisk

FENCED = ErrorCode.PRODUCER_FENCED


def exclusive(disk: CrashDisk | None = None, epoch: int = 1, **configs: str) -> Bench:
    return Bench(disk, epoch=epoch, duramen_writer_exclusive="true", **configs)


def opening(bench: Bench, producer_id: int, name: str = "w") -> list[Opened | KafkaError]:
    answers: list[Opened | KafkaError] = []
    open_writer(bench.partition, name, producer_id, NOW, answers.append)
    return answers


def opened(bench: Bench, producer_id: int, name: str = "w") -> Opened | KafkaError:
    answers = opening(bench, producer_id, name)
    bench.run()
    return answers[0]


def released(bench: Bench, producer_id: int = -1, name: str = "w") -> Opened | KafkaError:
    answers: list[Opened | KafkaError] = []
    release_writer(bench.partition, name, producer_id, NOW, answers.append)
    bench.run()
    return answers[0]


def by(producer_id: int, sequence: int, *values: bytes) -> bytearray:
    return plain(*values, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def test_only_who_was_opened_last_writes() -> None:
    bench = exclusive()
    assert code(bench.produce(plain(b"x"))) is FENCED
    assert opened(bench, 100) == (100, 1, 1)
    assert not isinstance(bench.produce(by(100, 0, b"a")), KafkaError)
    for other in (plain(b"x"), by(7, 0, b"x"), by(named_producer_id("w"), 0, b"x")):
        assert code(bench.produce(other)) is FENCED
        assert code(answered(bench, other)) is FENCED
        staged: list[object] = []
        append_staged(bench.partition, memoryview(other), NOW, staged.append)
        assert code(staged[0]) is FENCED
    assert opened(bench, 101, "v") == (101, 3, 1)
    assert code(bench.produce(by(100, 0, b"a"))) is FENCED, "it is stored, and its writer has no say any more"
    assert "'v' since offset 2" in str(bench.produce(by(100, 1, b"b")))
    assert not isinstance(bench.produce(by(101, 0, b"c")), KafkaError)
    assert bench.values() == [b"a", b"c"]


@pytest.mark.parametrize("durability", ["stable", "page-cache"])
def test_an_opening_is_answered_when_it_is_stable(durability: str) -> None:
    bench = exclusive(duramen_ack_durability=durability)
    opened(bench, 100)
    bench.lanes.held.update({"journal", "syncs"})
    in_flight = bench.send(by(100, 0, b"a"))
    answers = opening(bench, 101)
    late = bench.send(by(100, 1, b"b"))
    assert (answers, late) == ([], [])
    bench.send(by(101, 0, b"c"))
    bench.lanes.held.clear()
    bench.run()
    assert answers == [(101, 3, 1)]
    assert code(late[0]) is FENCED
    assert bench.values() == [b"a", b"c"]
    assert bench.partition.log.durable_end >= 3
    assert in_flight[0] == (1, -1, 0), "it lies before the record that fenced its writer, where the next one sees it"


def test_nobody_is_fenced_by_an_opening_that_another_leader_does_not_have() -> None:
    bench = exclusive()
    opened(bench, 100)
    bench.lanes.held.update({"journal", "syncs"})
    opening(bench, 101)
    late = bench.send(by(100, 0, b"a"))
    asked: list[object] = []
    release_writer(bench.partition, "w", 100, NOW, asked.append)
    bench.partition.resign(2, 3, (1, 2), (1, 2))
    assert [code(late[0]), code(asked[0])] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


def test_who_gives_it_up_names_it() -> None:
    bench = exclusive()
    assert released(bench) == (-1, 0, 1)
    opened(bench, 100)
    assert code(released(bench, name="other")) is FENCED
    assert code(released(bench, 99)) is FENCED
    assert released(bench, 100, name="") == (-1, 2, 1)
    assert code(released(bench, name="")) is ErrorCode.INVALID_REQUEST
    assert code(bench.produce(by(100, 0, b"x"))) is FENCED
    assert released(bench) == (-1, 2, 1)
    assert code(opened(bench, 101, "")) is ErrorCode.INVALID_REQUEST
    assert code(opened(Bench(), 101)) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("stop", [killed, cut, stopped])
@pytest.mark.parametrize("gone", ["nothing", ".producers", "all"])
def test_nobody_is_taken_for_the_writer(stop: Stop, gone: str) -> None:
    bench = exclusive()
    opened(bench, 100)
    bench.produce(by(100, 0, b"a"))
    opened(bench, 101)
    bench.produce(by(101, 0, b"b"))
    stop(bench)
    for path in files(bench.disk):
        if path.endswith(gone) or (gone == "all" and not path.endswith(KEPT)):
            bench.disk.remove(path)
    again = exclusive(bench.disk, 2)
    assert code(again.produce(by(100, 1, b"x"))) is FENCED
    assert not isinstance(again.produce(by(101, 1, b"c")), KafkaError)
    assert again.values() == [b"a", b"b", b"c"]


def test_a_snapshot_of_kafkas_knows_no_writer_and_nobody_is_let_in() -> None:
    bench = exclusive()
    opened(bench, 100)
    bench.produce(by(100, 0, b"a"))
    stopped(bench)
    for path in files(bench.disk):
        if path.endswith((".producers", "checkpoint")):
            bench.disk.remove(path)
    again = exclusive(bench.disk, 2)
    assert code(again.produce(by(100, 1, b"x"))) is FENCED
    assert opened(again, 101) == (101, 3, 2)


def test_retention_does_not_take_the_writer_along() -> None:
    bench = exclusive(segment_bytes="1048576")
    opened(bench, 100)
    for sequence in range(4):
        bench.produce(by(100, sequence, b"v" * 600_000))
    log = bench.partition.log
    writer = log.producers.stream.writer  # type: ignore[union-attr]
    assert writer is not None
    assert writer[:3] == (100, 0, "w")
    assert writer.offset >= log.active.base_offset
    delete_records(bench.partition, -1)
    bench.run()
    answer = done(answered(bench, by(100, 4, b"w"), log.end_offset))
    assert answer.end_offset == answer.last_offset + 2, "who may write is said again behind it"
    assert log.producers.stream.writer.offset == answer.last_offset + 1  # type: ignore[union-attr]
    cut(bench)
    for path in files(bench.disk):
        if not path.endswith(KEPT):
            bench.disk.remove(path)
    again = exclusive(bench.disk, 2)
    assert not isinstance(again.produce(by(100, 5, b"x")), KafkaError)


def test_none_of_its_appends_overtakes_another() -> None:
    bench = exclusive()
    opened(bench, 100)
    early = by(100, 1, b"b")
    assert code(bench.produce(early)) is code(answered(bench, early)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for batch in (by(100, 0, b"a"), early):
        assert not isinstance(bench.produce(batch), KafkaError)
    assert bench.values() == [b"a", b"b"]


def test_it_is_known_for_as_long_as_it_has_the_log() -> None:
    bench = exclusive()
    opened(bench, 100)
    bench.produce(by(100, 0, b"a"))
    producers = bench.partition.log.producers
    assert producers.expire(NOW, 1) == producers.expire(NOW + 10, 1) == 0
    assert done(answered(bench, by(100, 0, b"a"))).is_duplicate
    opened(bench, 101)
    assert producers.expire(NOW + 20, 1) == 1


def test_nobody_else_closes_it() -> None:
    bench = exclusive()
    opened(bench, 100)

    def closed_by(producer_id: int) -> ConditionalResult | KafkaError:
        answers: list[ConditionalResult | KafkaError] = []
        append_conditionally(bench.partition, ConditionalBatch(None, -1, True, producer_id), NOW, answers.append)
        bench.run()
        return answers[0]

    assert [code(closed_by(other)) for other in (-1, 99)] == [FENCED, FENCED]
    assert not done(closed_by(100)).is_duplicate
    assert done(closed_by(-1)).is_duplicate


def test_what_is_closed_is_not_opened() -> None:
    bench = exclusive()
    opened(bench, 100)
    done(answered(bench, by(100, 0, b"a"), closes=True))
    assert isinstance(opened(bench, 101), StreamClosedError)
    assert done(answered(bench, by(100, 0, b"a"), closes=True)).is_duplicate


def test_an_opening_waits_behind_a_batch_that_is_decoded() -> None:
    bench = exclusive(cleanup_policy="compact")
    opened(bench, 100)
    bench.lanes.held.add("rewriting")
    first, answers, late = bench.send(by(100, 0, b"a")), opening(bench, 101), ask(bench, by(100, 1, b"b"))
    bench.lanes.held.clear()
    bench.run()
    assert not isinstance(first[0], KafkaError)
    assert answers == [(101, 3, 1)]
    assert code(late[0]) is FENCED


def test_a_follower_whose_log_is_cut_knows_the_writer_before() -> None:
    bench = exclusive()
    opened(bench, 100)
    opened(bench, 101)
    bench.partition.resign(2, 2)
    bench.partition.truncate_to(1)
    bench.run()
    bench.partition.lead(3, (1,), (1,), 0)
    assert code(bench.produce(by(101, 0, b"x"))) is FENCED
    assert not isinstance(bench.produce(by(100, 0, b"a")), KafkaError)
