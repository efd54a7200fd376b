"""Topics of many partitions are deleted a few partitions at a time, and one sync makes all the new names durable."""

from __future__ import annotations

from random import Random

import pytest
from tests.unit.server.test_broker_full_disk import create, events
from tests.unit.server.test_broker_recreated_topics import delete_topic
from tests.worlds.broker_world import InProcess

from duramen.model import TopicPartition
from duramen.partition.store import delete_partitions
from duramen.sim.world.disk import DiskCall
from duramen.storage.log.retention import PendingRemoval
from duramen.wire.messages import API

MANY = 50


def renamed(calls: list[DiskCall]) -> list[DiskCall]:
    return [call for call in calls if call.operation == "rename" and call.path.endswith("-delete")]


def renamed_directories(server: InProcess) -> list[str]:
    return [name for name in server.disk.list_directory("/data") if name.endswith("-delete")]


def ask_to_delete(server: InProcess, name: str) -> None:
    topic = API[20].request.DeleteTopicState(name=name)
    server.connect().ask(20, 6, topics=[topic], timeout_ms=1000)


def turn(server: InProcess) -> None:
    """What was planned up to now, and nothing that it plans."""
    ready, server.clock.ready = server.clock.ready, []
    for callback in ready:
        callback()


def test_no_turn_of_the_loop_deletes_more_than_a_few_partitions_and_none_syncs() -> None:
    server = InProcess()
    assert create(server.connect(), "big", MANY) == 0
    server.disk.record = []
    ask_to_delete(server, "big")
    most = turns = synced = 0
    while len(renamed(server.disk.record)) < MANY:
        before = len(server.disk.record)
        turn(server)
        new = server.disk.record[before:]
        most, turns = max(most, len(renamed(new))), turns + bool(renamed(new))
        if renamed(new):
            synced += len([call for call in new if call.operation == "sync_directory"])
        else:
            assert server.lanes.step() or server.clock.ready
    assert most <= delete_partitions.LOGS_A_TURN
    assert turns >= MANY // delete_partitions.LOGS_A_TURN
    server.run()
    syncs = [call for call in server.disk.record if (call.operation, call.path) == ("sync_directory", "/data")]
    assert synced == 0
    assert 1 <= len(syncs) <= turns, "one for all that a group has"
    assert not server.broker.store.directories[0]._housekeeping.moving


def test_the_new_names_are_durable_before_the_journal_speaks_of_the_deletion() -> None:
    server = InProcess()
    assert create(server.connect(), "big", 3) == 0
    server.disk.record = []
    delete_topic(server.connect(), "big")
    calls = server.disk.record
    last = calls.index(renamed(calls)[-1])
    first = next(
        number
        for number, call in enumerate(calls)
        if number > last and call.operation == "sync" and "journal" in call.path
    )
    assert ("sync_directory", "/data") in [(call.operation, call.path) for call in calls[last:first]]


def test_a_topic_that_is_made_again_waits_for_the_names_of_the_old_one() -> None:
    server = InProcess()
    line = server.connect()
    assert create(line, "big", MANY) == 0
    line.produce("big", b"old")
    ask_to_delete(server, "big")
    request = API[19].request
    topic = request.CreatableTopic(name="big", num_partitions=MANY, replication_factor=1)
    other = server.connect()
    other.ask(19, 7, topics=[topic], timeout_ms=1000)
    server.run()
    assert other.answer(19, 7).topics[0].error_code == 0
    assert line.produce("big", b"new").base_offset == 0
    assert "partition-offline" not in events(server)
    assert "partition-not-deleted" not in events(server)


def test_a_stop_waits_for_what_is_still_to_be_deleted() -> None:
    server = InProcess()
    assert create(server.connect(), "big", MANY) == 0
    ask_to_delete(server, "big")
    deletes = server.broker.store.deletions
    while deletes.is_over:
        turn(server)
        if not server.clock.ready and deletes.is_over:
            assert server.lanes.step()
    assert not server.broker.controller._may_snapshot(), "a start behind it would not know that the topic is gone"
    server.broker.stop(lambda: None)
    server.run()
    assert "stop-failed" not in events(server)
    assert not [
        path for path in server.disk.list_directory("/data") if path.startswith("big-") and "delete" not in path
    ]
    server.disk.kill()
    server.disk.power_on()
    assert InProcess(server.disk).broker.store.directories[0].clean_start


def test_a_store_is_not_idle_before_all_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_partitions, "LOGS_A_TURN", 1)
    server = InProcess()
    assert create(server.connect(), "big", 2) == 0
    store = server.broker.store
    store.deletions._left = 1
    for partition in range(2):
        store.delete_partition(TopicPartition("big", partition))
    server.clock.ready, ready = [], server.clock.ready
    store.commit()
    while server.lanes.step():
        pass
    idle: list[bool] = []
    store.stop(lambda: idle.append(True))
    while server.lanes.step():
        pass
    assert not idle
    server.clock.ready += ready
    server.run()
    assert idle
    assert len(renamed_directories(server)) == 2


@pytest.mark.parametrize("again", [False, True])
def test_power_fails_in_each_call_of_a_deletion_in_several_turns(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_partitions, "LOGS_A_TURN", 1)
    server = InProcess()
    line = server.connect()
    assert create(line, "big", 3) == 0
    assert line.produce("big", b"old").error_code == 0
    server.pass_ms(1000)
    copies = []

    def copied(call: DiskCall) -> None:
        copies.extend(server.disk.copy(Random(1000 * call.number + seed)) for seed in range(4))

    server.disk.fault = copied
    delete_topic(server.connect(), "big")
    acknowledged = len(copies)
    if again:
        assert create(line, "big", 2) == 0
        assert line.produce("big", b"new").base_offset == 0
    server.pass_ms(2000)
    server.disk.fault = None
    for number, disk in enumerate(copies):
        disk.fault, disk.torn = None, True
        disk.power_cut()
        disk.power_on()
        found = InProcess(disk)
        assert not {"log-of-unknown-topic", "partition-offline", "damage"} & set(events(found)), number
        topic = found.broker.publisher.image.topic("big")
        if topic is None:
            left = {log.tp.topic for log in found.broker.store.directories[0].logs.values()}
            assert "big" not in left
            continue
        is_old = len(topic.partitions) == 3
        assert not (is_old and number >= acknowledged)
        value = found.connect().fetch("big", 0).records
        assert (b"old" in bytes(value or b"")) == is_old


def test_what_is_due_to_be_removed_is_not_looked_for_in_all_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of them, each compared with each, would hold up the loop."""

    def compared(one: PendingRemoval, other: object) -> bool:
        raise AssertionError("compared")

    server = InProcess()
    assert create(server.connect(), "big", MANY) == 0
    delete_topic(server.connect(), "big")
    monkeypatch.setattr(PendingRemoval, "__eq__", compared)
    server.pass_ms(120_000)
    assert not [path for path in server.disk.list_directory("/data") if path.startswith("big-")]
