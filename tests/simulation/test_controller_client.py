"""How a node has the active controller decide: in its own process, elsewhere, and while nobody is one."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.quorum_world import QuorumWorld

from duramen.client.loop.node_client import call
from duramen.errors import DuramenError, ErrorCode
from duramen.machines.metadata.commands import (
    AllocateProducerIds,
    AlterPartition,
    BrokerHeartbeat,
    HeartbeatAnswer,
    IsrChange,
    ProducerIds,
    Registered,
)


@pytest.fixture
def cluster() -> QuorumWorld:
    return QuorumWorld()


def test_commands_are_decided_wherever_they_are_asked(cluster: QuorumWorld) -> None:
    epochs = {}
    for node_id in cluster.hosts:
        answer = cluster.register(node_id)
        assert isinstance(answer, Registered), answer
        epochs[node_id] = answer.broker_epoch
    assert len(set(epochs.values())) == 3
    blocks = []
    for node_id in cluster.hosts:
        answers = cluster.asked(node_id, AllocateProducerIds(node_id, epochs[node_id]))
        assert cluster.until(lambda answers=answers: bool(answers))
        assert isinstance(answers[0], ProducerIds), answers
        blocks.append(answers[0].first)
    assert len(set(blocks)) == 3


def test_the_machine_s_errors_come_back(cluster: QuorumWorld) -> None:
    for node_id in cluster.hosts:
        answers = cluster.asked(node_id, AllocateProducerIds(node_id, 77))
        assert cluster.until(lambda answers=answers: bool(answers))
        assert answers[0].code is ErrorCode.STALE_BROKER_EPOCH


def test_what_is_asked_goes_on_with_the_next_controller(cluster: QuorumWorld) -> None:
    epochs = {each: cluster.register(each).broker_epoch for each in cluster.hosts}
    active = cluster.active()
    cluster.world.nodes[active].kill()
    waiting = [cluster.asked(each, AllocateProducerIds(each, epochs[each])) for each in cluster.running]
    assert cluster.until(lambda: all(waiting))
    assert all(isinstance(answers[0], ProducerIds) for answers in waiting), waiting
    assert waiting[0] != waiting[1]


def test_a_deposed_controller_asks_its_successor(cluster: QuorumWorld) -> None:
    """What it had decided alone is lost with its leadership: its own client asks again."""
    epochs = {each: cluster.register(each).broker_epoch for each in cluster.hosts}
    deposed = cluster.active()
    cluster.world.isolate(deposed)
    answers = cluster.asked(deposed, AllocateProducerIds(deposed, epochs[deposed]))
    cluster.run(10.0)
    assert answers == []
    cluster.world.heal_all()
    assert cluster.until(lambda: bool(answers))
    assert isinstance(answers[0], ProducerIds), answers
    assert cluster.active() != deposed


def test_without_a_majority_the_time_runs_out(cluster: QuorumWorld) -> None:
    alone, *rest = sorted(cluster.hosts, key=lambda each: each == cluster.active())
    for node_id in rest:
        cluster.world.nodes[node_id].kill()
    cluster.run(5.0)
    begun = cluster.world.loop.now
    answers = cluster.asked(alone, AllocateProducerIds(alone, 1), timeout=2.0)
    assert cluster.until(lambda: bool(answers))
    assert answers[0].code is ErrorCode.REQUEST_TIMED_OUT
    assert 1.5 < cluster.world.loop.now - begun < 3.0


def test_topics_are_created_from_any_node_and_are_there(cluster: QuorumWorld) -> None:
    for node_id in cluster.hosts:
        cluster.join(node_id)
    for node_id in cluster.hosts:
        broker = cluster.brokers[node_id]
        client, answers = broker.controller_client, []
        client.create([client.new_topic(f"of-{node_id}")], answers.append)
        assert cluster.until(lambda answers=answers: bool(answers))
        (topic,) = answers[0]
        assert topic.result.error is ErrorCode.NONE, topic
        assert broker.image.topics[f"of-{node_id}"].id == topic.topic_id
        again: list[Any] = []
        client.create([client.new_topic(f"of-{node_id}")], again.append)
        assert cluster.until(lambda again=again: bool(again))
        assert again[0][0].result.error is ErrorCode.TOPIC_ALREADY_EXISTS


def test_in_sync_replicas_are_altered_by_the_leader_wherever_it_is(cluster: QuorumWorld) -> None:
    epochs = {node_id: cluster.join(node_id) for node_id in cluster.hosts}
    client, made = cluster.brokers[1].controller_client, []
    client.create([client.new_topic("t")._replace(partitions=3)], made.append)
    assert cluster.until(lambda: bool(made))
    topic = cluster.brokers[1].image.topics["t"]
    for index, known in enumerate(topic.partitions):
        leader = known.leader
        change = IsrChange(topic.id, index, known.leader_epoch, ((leader, epochs[leader]),), known.partition_epoch)
        for expected in (ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION):
            answers = cluster.asked(leader, AlterPartition(leader, epochs[leader], (change,)))
            assert cluster.until(lambda answers=answers: bool(answers))
            assert [each.error for each in answers[0]] == [expected]
        late = cluster.asked(leader, AlterPartition(leader, epochs[leader] - 1, (change,)))
        assert cluster.until(lambda late=late: bool(late))
        assert late[0].code is ErrorCode.STALE_BROKER_EPOCH
    assert {partition.leader for partition in topic.partitions} == set(cluster.hosts)
    for broker in cluster.brokers.values():
        there = broker.image.topics["t"].partitions
        assert cluster.until(lambda there=there: [each.partition_epoch for each in there] == [1, 1, 1])


def test_a_stop_answers_what_waits(cluster: QuorumWorld) -> None:
    alone, *rest = sorted(cluster.hosts, key=lambda each: each == cluster.active())
    for node_id in rest:
        cluster.world.nodes[node_id].kill()
    answers = cluster.asked(alone, AllocateProducerIds(alone, 1))
    cluster.run(1.0)
    assert answers == []
    cluster.world.nodes[alone].stop()
    assert cluster.until(lambda: not cluster.world.nodes[alone].running)
    assert isinstance(answers[0], DuramenError)


def test_nobody_else_hands_on_what_brokers_ask(cluster: QuorumWorld) -> None:
    for node_id in cluster.others():
        told = cluster.ask(node_id, "AllocateProducerIds", 0, broker_id=1, broker_epoch=1)
        assert told.error_code == ErrorCode.NOT_CONTROLLER


def test_a_broker_of_another_cluster_is_refused(cluster: QuorumWorld) -> None:
    request = call("BrokerRegistration", 4, broker_id=1, cluster_id="other", incarnation_id=bytes(16), rack=None)
    answers = cluster.send(cluster.active(), request)
    assert cluster.until(lambda: bool(answers))
    assert answers[0].error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


# ---- heartbeats, and brokers that are gone -----------------------------------------------------------------------


def beat(cluster: QuorumWorld, node_id: int, epoch: int, **fields: Any) -> Any:
    command = BrokerHeartbeat(node_id, epoch, cluster.brokers[node_id].controller.reader.position - 1, **fields)
    answers = cluster.asked(node_id, command, None)
    assert cluster.until(lambda: bool(answers))
    return answers[0]


def test_brokers_are_unfenced_by_their_heartbeats_from_any_node(cluster: QuorumWorld) -> None:
    for node_id in cluster.hosts:
        epoch = cluster.register(node_id).broker_epoch
        reader = cluster.brokers[node_id].controller.reader
        assert cluster.until(lambda reader=reader, epoch=epoch: reader.position > epoch)
        assert beat(cluster, node_id, epoch) == HeartbeatAnswer(True, False, False)
        assert beat(cluster, node_id, epoch - 1).code is ErrorCode.STALE_BROKER_EPOCH
        assert beat(cluster, node_id, epoch, wants_shutdown=True) == HeartbeatAnswer(True, True, True)


def test_a_heartbeat_waits_behind_nothing_and_not_long(cluster: QuorumWorld) -> None:
    """The answer to something else is held up; heartbeats come through."""
    node_id = cluster.others()[0]
    epoch = cluster.register(node_id).broker_epoch
    client = cluster.brokers[node_id].controller_client
    controller = cluster.brokers[cluster.active()].controller
    held: list[Any] = []
    decide = controller.decide
    controller.decide = lambda command, done, **_: (  # type: ignore[method-assign]
        held.append(done) if isinstance(command, AllocateProducerIds) else decide(command, done)
    )
    answers = cluster.asked(node_id, AllocateProducerIds(node_id, epoch))
    assert cluster.until(lambda: bool(held))
    assert isinstance(beat(cluster, node_id, epoch), HeartbeatAnswer)
    assert answers == []
    cluster.world.isolate(node_id)
    begun = cluster.world.loop.now
    lost: list[Any] = []
    client.ask(BrokerHeartbeat(node_id, epoch, 1), lost.append)
    assert cluster.until(lambda: bool(lost))
    assert lost[0].code is ErrorCode.REQUEST_TIMED_OUT
    assert cluster.world.loop.now - begun < 1.5


def test_a_broker_that_is_gone_is_unregistered_through_any_node(cluster: QuorumWorld) -> None:
    gone = cluster.others()[0]
    for node_id in cluster.hosts:
        cluster.join(node_id)
    told = cluster.ask(cluster.active(), "UnregisterBroker", 0, broker_id=gone)
    assert (told.error_code, told.error_message) == (42, f"Broker {gone} is in service: stop it first.")
    cluster.world.nodes[gone].kill()
    cluster.run(10.0)  # its session ends
    first, second = cluster.running
    told = cluster.ask(first, "UnregisterBroker", 0, broker_id=gone)
    assert told.error_code == 0, told
    assert gone not in cluster.brokers[first].image.brokers
    told = cluster.ask(second, "UnregisterBroker", 0, broker_id=gone)
    assert told.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert "not currently registered" in told.error_message


def test_controllers_are_not_recorded(cluster: QuorumWorld) -> None:
    active = cluster.active()
    for node_id in cluster.hosts:
        told = cluster.ask(node_id, "ControllerRegistration", 0, controller_id=node_id, incarnation_id=bytes(16))
        expected = ErrorCode.UNSUPPORTED_VERSION if node_id == active else ErrorCode.NOT_CONTROLLER
        assert told.error_code == expected


def test_a_controller_that_may_be_deposed_answers_no_heartbeat(cluster: QuorumWorld) -> None:
    """Its answer would renew a lease that its successor counts as over."""
    epochs = {each: cluster.register(each).broker_epoch for each in cluster.hosts}
    deposed = cluster.active()
    others = cluster.others()
    assert isinstance(beat(cluster, deposed, epochs[deposed]), HeartbeatAnswer)
    for other in others:
        cluster.world.cut(other, deposed, one_way=True)  # it is heard, and hears nobody
    controller = cluster.brokers[deposed].controller
    told: list[Any] = []
    position = controller.reader.position - 1
    cluster.run(0.2)
    while controller.is_active:
        controller.heartbeat(BrokerHeartbeat(deposed, epochs[deposed], position), told.append)
        cluster.run(0.2)
    cluster.run(0.2)
    assert len(told) > 3
    assert {answer.code for answer in told} == {ErrorCode.NOT_CONTROLLER}


def test_heartbeats_are_answered_promptly(cluster: QuorumWorld) -> None:
    """Followers are made to fetch again at once: the answer does not wait for their time to be over."""
    for node_id in cluster.hosts:
        epoch = cluster.register(node_id).broker_epoch
        cluster.run(0.5)
        beat(cluster, node_id, epoch)
        begun = cluster.world.loop.now
        for _ in range(5):
            assert isinstance(beat(cluster, node_id, epoch), HeartbeatAnswer)
        assert cluster.world.loop.now - begun < 1.0


def test_a_node_that_stopped_cleanly_begins_again_where_nothing_happens(cluster: QuorumWorld) -> None:
    """It knows of all that is committed that it was; a leader has to say so all the same, and it has to hear that."""
    for node_id in cluster.hosts:
        cluster.join(node_id)
    for node_id in cluster.others():
        cluster.world.nodes[node_id].stop()
        assert cluster.until(lambda at=node_id: not cluster.world.nodes[at].running)
        cluster.start(node_id)
        cluster.join(node_id)
