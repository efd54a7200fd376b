"""A request may repeat a few bytes very often, for each of which an answer would take thousands: it is given once."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import NOW, InProcess

from duramen.server.coordinators.groups import GroupCoordinators
from duramen.wire.batch import build_batch
from duramen.wire.messages import API

TIMES = 300


def test_a_resource_is_described_once() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    request = API[32].request
    resources = [
        request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in [(4, "1"), (2, "t"), (2, "absent")] * TIMES
    ]
    results = line.call(32, 4, resources=resources).results
    assert [(result.resource_type, result.resource_name) for result in results] == [(4, "1"), (2, "t"), (2, "absent")]
    assert [len(result.configs) > 0 for result in results] == [True, True, False]


def test_a_partition_s_producers_are_described_once() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    produce = API[0].request
    for producer in range(20):
        batch = build_batch([(None, b"v", (), NOW)], producer_id=producer, producer_epoch=0, base_sequence=0)
        part = produce.PartitionProduceData(index=0, records=batch)
        data = produce.TopicProduceData(name="t", partition_data=[part])
        line.call(0, 9, acks=-1, timeout_ms=1000, topic_data=[data])
    request = API[61].request
    topics = [request.TopicRequest(name="t", partition_indexes=[0, 0, 1] * TIMES) for _ in range(3)]
    answers = line.call(61, 0, topics=topics).topics
    assert [[entry.partition_index for entry in topic.partitions] for topic in answers] == [[0, 1], [], []]
    assert len(answers[0].partitions[0].active_producers) == 20


def test_a_group_is_described_and_told_its_offsets_once() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    commit = API[8].request
    topic = commit.OffsetCommitRequestTopic(
        name="t", partitions=[commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)]
    )
    line.call(10, 4, key_type=0, coordinator_keys=["g"])
    line.call(8, 8, group_id="g", topics=[topic])
    assert [group.group_id for group in line.call(15, 5, groups=["g", "h"] * TIMES).groups] == ["g", "h"]
    fetch = API[9].request
    groups = [fetch.OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "h") * TIMES]
    answers = line.call(9, 8, groups=groups).groups
    assert [(group.group_id, len(group.topics)) for group in answers] == [("g", 1), ("h", 0)]


def test_a_machine_is_asked_about_all_its_groups_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group was a question of its own: tens of thousands of them held the loop for a second."""
    server = InProcess(offsets_topic_num_partitions="3")
    line = server.connect()
    line.create_topic("t")
    names = [f"g{number}" for number in range(60)]
    groups = line.call(15, 5, groups=names).groups
    assert [(group.group_id, group.error_code) for group in groups] == [(name, 15) for name in names]
    commit = API[8].request
    partition = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topic = commit.OffsetCommitRequestTopic(name="t", partitions=[partition])
    line.call(10, 4, key_type=0, coordinator_keys=["g"])
    for name in names[::2]:
        line.call(8, 8, group_id=name, topics=[topic])
    submit, asked = GroupCoordinators.submit, []
    monkeypatch.setattr(GroupCoordinators, "submit", lambda *given: asked.append(given[2]) or submit(*given))
    groups = line.call(15, 5, groups=names).groups
    states = ["Empty" if number % 2 == 0 else "Dead" for number in range(60)]
    assert [(group.group_id, group.group_state) for group in groups] == list(zip(names, states, strict=True))
    assert len(asked) == 3


def test_a_group_that_is_asked_for_twice_is_told_both_times_what_it_was_asked_for() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    line.create_topic("u")
    line.call(10, 4, key_type=0, coordinator_keys=["g"])
    fetch = API[9].request
    asked = [fetch.OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in ("t", "u")]
    groups = [fetch.OffsetFetchRequestGroup(group_id="g", topics=topics) for topics in (asked[:1], asked[1:], None, [])]
    answers = line.call(9, 8, groups=groups).groups
    assert [(group.group_id, [topic.name for topic in group.topics]) for group in answers] == [
        ("g", ["t"]),
        ("g", ["u"]),
        ("g", []),
        ("g", []),
    ]


@pytest.mark.parametrize("key", [9, 15, 42])
def test_others_have_their_turn_between_many_groups(key: int) -> None:
    """Ids of 90 MB took half a minute, in which nobody else was answered."""
    server = InProcess()
    line, other = server.connect(), server.connect()
    line.create_topic("t")
    line.call(10, 4, key_type=0, coordinator_keys=["g"])
    names = [f"{number:03}" + "x" * 30_000 for number in range(20)]
    if key == 9:
        group = API[9].request.OffsetFetchRequestGroup
        line.ask(9, 8, groups=[group(group_id=name, topics=None) for name in names])
    else:
        line.ask(key, 2, **{"groups" if key == 15 else "groups_names": names})
    assert line.answer(key, 8 if key == 9 else 2) is None
    other.ask(18, 0)
    assert other.answer(18, 0) is not None, "before all are looked for"
    server.run()
    reply = line.answer(key, 8 if key == 9 else 2)
    told = reply.results if key == 42 else reply.groups
    assert [group.group_id for group in told] == names


def test_ids_of_a_request_are_bounded() -> None:
    """Those that wait for their turn are kept meanwhile."""
    server = InProcess()
    line = server.connect()
    line.ask(15, 5, groups=[f"{number:04}" + "x" * 32_000 for number in range(1100)])
    server.run()
    assert line.closed
    assert "characters in one request" in str(server.events[-1][1]["reason"])


def test_a_filter_is_read_once_for_all_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the fifty took a long one to pieces anew, which held the loop for seconds."""
    server = InProcess()
    line = server.connect()
    line.call(10, 4, key_type=0, coordinator_keys=["g"])
    everywhere, asked = GroupCoordinators.submit_everywhere, []
    monkeypatch.setattr(
        GroupCoordinators, "submit_everywhere", lambda *given: asked.append(given[1]) or everywhere(*given)
    )
    line.call(16, 5, states_filter=["StAble", "EMPTY"], types_filter=["Classic"])
    assert [(command.states, command.types) for command in asked] == [({"stable", "empty"}, {"classic"})]
