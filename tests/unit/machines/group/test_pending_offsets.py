"""Offsets in transactions: unseen until their marker, and the last record of a position counts, not the last marker."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.worlds.group_harness import Coordinator, subscription

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import LogRecord, ProducerEpoch
from duramen.machines.group import (
    CommitTransactionOffsets,
    DeleteGroups,
    DeleteOffsets,
    FetchOffsets,
    GroupMachine,
    GroupSettings,
    ListGroups,
    NewOffset,
    TopicsDeleted,
    records,
)
from duramen.wire.batch import ABORT, COMMIT, marker_record

MINUTE = 60_000
SETTINGS = GroupSettings(offsets_retention_ms=60 * MINUTE, retention_check_interval_ms=MINUTE)
ONE, TWO = ProducerEpoch(1, 0), ProducerEpoch(2, 0)
T0 = ("t", 0)
ID, OTHER_ID = b"i" * 16, b"o" * 16


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator(SETTINGS)


def at(offset: int, partition: int = 0, topic: str = "t", **more: Any) -> NewOffset:
    return NewOffset(topic, partition, offset, **more)


def offsets(coordinator: Coordinator, group: str = "g") -> dict[tuple[str, int], int]:
    return {position: found.offset for position, found in coordinator.fetch(group).items()}


def everything(coordinator: Coordinator) -> Any:
    return coordinator.durable(), coordinator.machine.offsets.pending.snapshot()


def delete_topic(coordinator: Coordinator, name: str, topic_id: bytes) -> None:
    """Its offsets go, in slices."""
    answers = coordinator.submit(TopicsDeleted(((name, topic_id),)))
    coordinator.clock.advance(1)
    assert answers == [True]


# ---------------------------------------------------------------------- markers


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_of_a_transaction_count_from_its_marker_on_or_never(coordinator: Coordinator, commit: bool) -> None:
    coordinator.commit(at(1))
    assert coordinator.commit_in_transaction(ONE, at(5), at(6, 1)) == [ErrorCode.NONE] * 2
    assert offsets(coordinator) == {T0: 1}
    loaded = coordinator.reloaded()
    assert offsets(loaded) == {T0: 1}
    loaded.end(ONE, commit=commit)
    assert offsets(loaded) == ({T0: 5, ("t", 1): 6} if commit else {T0: 1})
    after = offsets(loaded)
    assert offsets(loaded.reloaded()) == after


def test_who_asks_for_what_is_stable_is_told_what_is_not(coordinator: Coordinator) -> None:
    """As Kafka: all of a group is what it has committed, so a position that is pending alone is not among it."""
    coordinator.commit(at(1), at(2, 2))
    coordinator.commit_in_transaction(ONE, at(5), at(6, 1))
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    found = coordinator.fetch(stable=True)
    assert (found[T0], found["t", 2].offset, len(found)) == (unstable, 2, 2)
    asked = (T0, ("t", 1), ("t", 2), ("t", 3))
    found = coordinator.fetch(partitions=asked, stable=True)
    assert (found[T0], found["t", 1], found["t", 2].offset, len(found)) == (unstable, unstable, 2, 3)
    assert coordinator.fetch(partitions=asked).keys() == {T0, ("t", 2)}
    coordinator.end(ONE, commit=False)
    assert coordinator.fetch(stable=True)[T0].offset == 1


def test_a_plain_commit_behind_a_pending_one_stays_and_the_position_is_unstable_even_so(
    coordinator: Coordinator,
) -> None:
    coordinator.commit_in_transaction(ONE, at(5))
    coordinator.commit(at(3))
    assert coordinator.fetch(stable=True) == {T0: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    coordinator.end(ONE, commit=True)
    assert offsets(coordinator) == {T0: 3}
    assert coordinator.fetch(stable=True)[T0].offset == 3


def test_of_two_transactions_the_later_record_counts_and_not_the_later_marker(coordinator: Coordinator) -> None:
    coordinator.commit_in_transaction(ONE, at(5))
    coordinator.commit_in_transaction(TWO, at(7))
    coordinator.end(TWO, commit=True)
    coordinator.end(ONE, commit=True)
    assert offsets(coordinator) == {T0: 7}
    coordinator.commit_in_transaction(ONE, at(8))
    coordinator.commit_in_transaction(TWO, at(9))
    coordinator.end(TWO, commit=False)
    coordinator.end(ONE, commit=True)
    assert offsets(coordinator) == {T0: 8}


def test_a_later_offset_of_the_same_transaction_takes_the_place_of_an_earlier_one(coordinator: Coordinator) -> None:
    coordinator.commit_in_transaction(ONE, at(5))
    coordinator.commit(at(3))
    coordinator.commit_in_transaction(ONE, at(6))
    coordinator.end(ONE, commit=True)
    assert offsets(coordinator) == {T0: 6}


def test_a_marker_without_offsets_and_other_control_records_change_nothing(coordinator: Coordinator) -> None:
    coordinator.commit(at(1))
    coordinator.commit_in_transaction(ONE, at(5))
    before = everything(coordinator)
    coordinator.end(TWO, commit=True)
    coordinator.machine.apply_control(LogRecord(b"\0\0\0\x64", b""), 99, ONE)
    coordinator.machine.apply_control(LogRecord(b"\0\0\0\x02", b""), 99, None)
    assert everything(coordinator) == before


def test_answers_that_saw_a_marker_wait_until_it_is_committed(coordinator: Coordinator) -> None:
    coordinator.commit_in_transaction(ONE, at(5))
    coordinator.partition.commit_at_once = False
    done: list[Any] = []
    coordinator.begin_end(ONE, commit=True, done=done.append)
    answers = coordinator.submit(FetchOffsets("g", None))
    assert (done, answers) == ([], [])
    coordinator.partition.commit()
    assert done == [None]
    assert answers[0][T0].offset == 5


def test_the_records_of_a_commit_are_one_batch_of_its_producer(coordinator: Coordinator) -> None:
    before = coordinator.partition.batch_count
    coordinator.commit_in_transaction(ProducerEpoch(7, 3), *(at(n, n) for n in range(50)))
    ((header, rows),) = coordinator.partition.written()[before:]
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    assert header.is_transactional
    assert len(rows) == 50


# ---------------------------------------------------------------------- who may


def test_without_a_group_only_who_names_no_generation_commits(coordinator: Coordinator) -> None:
    refused = coordinator.commit_in_transaction(ONE, at(1), generation=3, member_id="m")
    assert refused.code is ErrorCode.ILLEGAL_GENERATION
    assert coordinator.commit_in_transaction(ONE, at(1)) == [ErrorCode.NONE]
    assert [group.group_id for group in coordinator.ask(ListGroups())] == ["g"]
    assert coordinator.commit_in_transaction(ONE, at(1), group="").code is ErrorCode.INVALID_GROUP_ID


def test_members_are_checked_where_one_is_named(coordinator: Coordinator) -> None:
    (member,) = coordinator.stable(instance_id="i", protocols=(("range", subscription("t")),))
    name, generation = member.member_id, member.generation
    for given, code in (
        ({"member_id": "nobody", "generation": generation}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": name, "generation": generation + 1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": name, "generation": generation - 1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "other", "generation": generation, "instance_id": "i"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"generation": generation}, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert coordinator.commit_in_transaction(ONE, at(1), **given).code is code, given
    assert coordinator.commit_in_transaction(ONE, at(1), member_id=name, generation=generation, instance_id="i") == [0]
    assert coordinator.commit_in_transaction(ONE, at(1)) == [ErrorCode.NONE]  # clients before KIP-447
    assert coordinator.commit(at(1)).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_waits_for_its_assignment_takes_them(coordinator: Coordinator) -> None:
    parked = [coordinator.join("") for _ in range(2)]
    coordinator.clock.advance(6000)
    joined = parked[0][0]
    assert coordinator.state() == "CompletingRebalance"
    given: Any = {"member_id": joined.member_id, "generation": joined.generation}
    assert coordinator.commit(at(1), **given).code is ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.commit_in_transaction(ONE, at(1), **given) == [ErrorCode.NONE]


def test_metadata_that_is_too_long_refuses_its_partition_alone(coordinator: Coordinator) -> None:
    long = at(5, 1, metadata="x" * 4097)
    assert coordinator.commit_in_transaction(ONE, at(1), long) == [
        ErrorCode.NONE,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ]
    coordinator.end(ONE, commit=True)
    assert offsets(coordinator) == {T0: 1}


def test_what_the_log_refuses_is_not_pending(coordinator: Coordinator) -> None:
    coordinator.partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert coordinator.commit_in_transaction(ONE, at(1)).code is ErrorCode.NOT_ENOUGH_REPLICAS
    coordinator.partition.refuse = None
    assert coordinator.fetch(stable=True, partitions=(T0,)) == {}


def test_that_a_group_is_empty_is_written_before_a_transaction_commits_for_it(coordinator: Coordinator) -> None:
    """Outside of the transaction: else a take-over would bring back members that are gone, whatever becomes of it."""
    (member,) = coordinator.stable()
    coordinator.partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    coordinator.leave(member.member_id)
    coordinator.partition.refuse = None
    assert coordinator.machine.stored["g"].members
    assert coordinator.commit_in_transaction(ONE, at(1)).code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not coordinator.machine.stored["g"].members
    assert coordinator.commit_in_transaction(ONE, at(1)) == [ErrorCode.NONE]


# ---------------------------------------------------------------------- deletion and expiry


@pytest.mark.parametrize("commit", [True, False])
def test_a_tombstone_removes_what_is_pending_too(coordinator: Coordinator, commit: bool) -> None:
    coordinator.commit_in_transaction(ONE, at(5), at(6, 1))
    assert coordinator.ask(DeleteOffsets("g", (T0, ("t", 9)))) == [ErrorCode.NONE] * 2
    assert coordinator.fetch(partitions=(T0, ("t", 1)), stable=True) == {("t", 1): ErrorCode.UNSTABLE_OFFSET_COMMIT}
    coordinator.end(ONE, commit=commit)
    assert offsets(coordinator) == ({("t", 1): 6} if commit else {})
    after = offsets(coordinator)
    assert offsets(coordinator.reloaded()) == after


def test_deleting_a_group_removes_what_is_pending_as_in_kafka(coordinator: Coordinator) -> None:
    coordinator.commit(at(1))
    coordinator.commit_in_transaction(ONE, at(5), at(6, 1))
    coordinator.commit_in_transaction(ONE, at(9), group="other")
    assert coordinator.ask(DeleteGroups(("g",))) == [ErrorCode.NONE]
    coordinator.end(ONE, commit=True)
    assert (offsets(coordinator), offsets(coordinator, "other")) == ({}, {T0: 9})
    assert [group.group_id for group in coordinator.ask(ListGroups())] == ["other"]


def test_a_group_that_is_left_with_nothing_by_an_abort_is_gone(coordinator: Coordinator) -> None:
    coordinator.commit_in_transaction(ONE, at(5))
    loaded = coordinator.reloaded()
    assert [group.state for group in loaded.ask(ListGroups())] == ["Empty"]
    loaded.end(ONE, commit=False)
    assert loaded.ask(ListGroups()) == []
    assert loaded.machine.offsets.pending.snapshot() == {}


def test_neither_offsets_nor_groups_expire_while_a_transaction_has_written_there(coordinator: Coordinator) -> None:
    (member,) = coordinator.stable()
    coordinator.commit(at(1), at(2, 1), member_id=member.member_id, generation=member.generation)
    coordinator.leave(member.member_id)
    coordinator.commit_in_transaction(ONE, at(5))
    coordinator.clock.advance(3 * 60 * MINUTE)
    assert offsets(coordinator) == {T0: 1}
    assert "g" in coordinator.machine.stored
    coordinator.end(ONE, commit=False)
    coordinator.clock.advance(2 * MINUTE)
    assert offsets(coordinator) == {}
    assert "g" not in coordinator.machine.stored


def test_a_group_of_pending_offsets_alone_does_not_expire(coordinator: Coordinator) -> None:
    (member,) = coordinator.stable()
    coordinator.leave(member.member_id)
    coordinator.commit_in_transaction(ONE, at(5))
    coordinator.clock.advance(3 * 60 * MINUTE)
    assert "g" in coordinator.machine.stored
    coordinator.end(ONE, commit=True)
    assert offsets(coordinator) == {T0: 5}


def test_topics_that_are_deleted_take_what_is_pending_with_them(coordinator: Coordinator) -> None:
    coordinator.commit(at(1, topic_id=ID), at(1, topic="u", topic_id=OTHER_ID))
    coordinator.commit_in_transaction(ONE, at(5, topic_id=ID), at(6, 1, topic_id=ID), at(7, topic="u"))
    assert coordinator.machine.committed_topics() >= {("t", ID), ("u", OTHER_ID)}
    delete_topic(coordinator, "t", ID)
    coordinator.end(ONE, commit=True)
    assert offsets(coordinator) == {("u", 0): 7}


def test_what_is_pending_of_a_later_topic_of_the_name_stays(coordinator: Coordinator) -> None:
    coordinator.commit(at(1, topic_id=ID), at(1, 1, topic_id=ID))
    coordinator.commit_in_transaction(ONE, at(5, topic_id=OTHER_ID))
    delete_topic(coordinator, "t", ID)
    coordinator.end(ONE, commit=True)
    assert offsets(coordinator) == {T0: 5}


# ---------------------------------------------------------------------- against a model


@pytest.mark.parametrize("seed", range(60))
def test_the_table_is_what_compaction_leaves_and_every_replay_gives_it_again(seed: int) -> None:
    """The model keeps every record with its offset, decides at the end which count, and takes the last of each."""
    chance = random.Random(seed)
    log: list[tuple[str, Any, ProducerEpoch | None]] = []
    machine = GroupMachine()
    for offset in range(60):
        producer = ProducerEpoch(chance.randrange(3), 0)
        kind = chance.choice(("plain", "pending", "pending", "tombstone", "end"))
        group, partition = chance.choice("gh"), chance.randrange(2)
        if kind == "end":
            log.append((kind, chance.random() < 0.6, producer))
        elif kind == "tombstone":
            log.append((kind, records.offset_tombstone(group, "t", partition), None))
        else:
            record = records.offset_commit(group, at(offset, partition), offset, -1)
            log.append((kind, record, producer if kind == "pending" else None))
        apply(machine, offset, *log[-1])
        assert state(machine) == modelled(log), offset
        again = GroupMachine()
        for earlier, entry in enumerate(log):
            apply(again, earlier, *entry)
        assert state(again) == state(machine)
        assert again.offsets.pending.snapshot() == machine.offsets.pending.snapshot()
        again = GroupMachine()
        for earlier, entry in compacted(log):
            apply(again, earlier, *entry)
        assert state(again) == state(machine)


def apply(machine: GroupMachine, offset: int, kind: str, what: Any, producer: ProducerEpoch | None) -> None:
    if kind == "end":
        machine.apply_control(LogRecord(*marker_record(COMMIT if what else ABORT, 0)), offset, producer)
    else:
        machine.apply(what, offset, 0, producer)


def state(machine: GroupMachine) -> Any:
    table = machine.offsets
    committed = {(group, *at): found.offset for group in table for at, found in table.of(group).items()}
    pending = {(group, *at): set(who) for group in table for at, who in table.pending.positions(group).items()}
    return committed, pending


def decided(log: list[Any]) -> dict[int, str]:
    """Of each record whether its transaction was committed, aborted, or is open."""
    fate: dict[int, str] = {}
    open_records: dict[int, list[int]] = {}
    for offset, (kind, what, producer) in enumerate(log):
        if kind == "end":
            fate |= dict.fromkeys(open_records.pop(producer.id, []), "committed" if what else "aborted")
        elif kind == "pending":
            open_records.setdefault(producer.id, []).append(offset)
            fate[offset] = "open"
        else:
            fate[offset] = "committed"
    return fate


def modelled(log: list[Any]) -> Any:
    fate = decided(log)
    committed: dict[Any, int | None] = {}
    pending: dict[Any, set[int]] = {}
    for offset, (kind, what, producer) in enumerate(log):
        if kind == "end":
            continue
        found = records.decode(what)
        assert isinstance(found, records.OffsetRecord)
        at = found.group_id, found.topic, found.partition
        if kind == "tombstone":
            committed[at] = None
            pending.pop(at, None)
        elif fate[offset] == "committed":
            committed[at] = offset
        elif fate[offset] == "open":
            pending.setdefault(at, set()).add(producer.id)
    return {at: offset for at, offset in committed.items() if offset is not None}, pending


def compacted(log: list[Any]) -> list[tuple[int, Any]]:
    """What a cleaner may leave of it: below the first open transaction only the last record of a key, none aborted."""
    fate = decided(log)
    stable = min((offset for offset, what in fate.items() if what == "open"), default=len(log))
    last = {log[offset][1].key: offset for offset in range(stable) if fate.get(offset) == "committed"}
    return [
        (offset, entry)
        for offset, entry in enumerate(log)
        if offset >= stable or entry[0] == "end" or last.get(entry[1].key) == offset
    ]


def test_a_host_that_is_not_loaded_takes_no_marker(coordinator: Coordinator) -> None:
    coordinator.host.close()
    answers: list[Any] = []
    coordinator.begin_end(ONE, commit=True, done=answers.append)
    assert answers[0].code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    coordinator.host.submit(CommitTransactionOffsets("g", "", None, -1, ONE, (at(1),)), answers.append)
    assert isinstance(answers[1], Exception)
