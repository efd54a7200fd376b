"""One fetcher against a leader that a test plays: what is named, what acknowledges, and what comes too late."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.follower_world import FollowerWorld, Node

from duramen.client.loop.peer_channels import Purpose
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.replication.follower import FollowerState
from duramen.partition.replica.offset_lookup import delete_records
from duramen.partition.replica.transactional_writes import append_marker


def pair(**configs: str) -> tuple[FollowerWorld, Node, Node]:
    """A leader and its only follower, which has fetched nothing yet."""
    world = FollowerWorld(2, **configs)
    leader = world.elect(1)
    if configs:
        world.nodes[2].follow(1, 1, (1, 2), Purpose.PAGE_CACHE)
    world.step()
    return world, leader, world.nodes[2]


def channel(node: Node) -> Any:
    return node.channels.open[1]


def turn(world: FollowerWorld, node: Node) -> None:
    """One answer."""
    world.answer(node, 1)
    world.deliver(node, 1)


def ends(node: Node) -> tuple[int, int, int]:
    partition = node.partition
    return partition.log_end_offset, partition.durable_end, partition.high_watermark


def test_the_first_fetch_begins_a_session_and_names_the_end() -> None:
    world, _, node = pair()
    (ask,) = channel(node).asks
    body, named = ask.body, ask.named[0]
    assert (body.session_id, body.session_epoch, body.max_wait_ms, body.min_bytes) == (0, 0, 500, 1)
    assert (body.replica_state.replica_id, body.replica_state.replica_epoch) == (2, 1)
    assert body.max_bytes == 10 << 20
    assert (named.fetch_offset, named.last_fetched_epoch, named.current_leader_epoch) == (0, -1, 1)
    assert (named.partition_max_bytes, named.log_start_offset) == (1 << 20, 0)
    assert named.replica_directory_id != bytes(16)
    turn(world, node)
    (ask,) = channel(node).asks
    assert (ask.body.session_id, ask.body.session_epoch, ask.named) == (7, 1, {})  # nothing has changed


def test_the_next_fetch_waits_until_all_is_durable_and_acknowledges() -> None:
    world, leader, node = pair()
    answers = leader.produce(b"a")
    node.lanes.held.add("journal")
    turn(world, node)
    assert (ends(node), channel(node).asks) == ((1, 0, 0), [])
    world.pass_ms(1000)
    assert channel(node).asks == []
    node.lanes.held.clear()
    world.step()
    (ask,) = channel(node).asks
    assert (ask.named[0].fetch_offset, ask.named[0].last_fetched_epoch, ask.body.session_epoch) == (1, 1, 1)
    assert answers == []
    world.answer(node, 1)
    world.step()
    assert [each.base_offset for each in answers] == [0]
    leader.produce(b"b")
    world.run(3)
    assert ends(node) == ends(leader) == (2, 2, 2)
    assert node.bytes_below(2) == leader.bytes_below(2)


def test_page_cache_topics_acknowledge_what_is_written() -> None:
    world, leader, node = pair(duramen_ack_durability="page-cache")
    leader.produce(b"a")
    world.step()
    world.run(2)  # the mark that says from where on a start looks
    node.lanes.held.add("journal")
    answers = leader.produce(b"b")
    world.run(3)
    assert node.partition.log.durable_end < 2
    assert [each.base_offset for each in answers] == [1]
    assert node.partition.high_watermark == 2


def marked(leader: Node) -> list[KafkaError | None]:
    """The leader ends a transaction of which it has nothing; gets what that comes to."""
    answers: list[KafkaError | None] = []
    append_marker(leader.partition, ProducerEpoch(5, 0), True, 1, 2, leader.clock.wall_ms(), answers.append)
    return answers


def test_a_marker_of_a_page_cache_topic_is_acknowledged_when_no_power_cut_takes_it() -> None:
    """Its transaction is complete then, and the marker is not written again."""
    world, leader, node = pair(duramen_ack_durability="page-cache")
    leader.produce(b"a")
    world.run(3)
    node.lanes.held.add("checkpoint")
    answers = marked(leader)
    world.run(3)
    assert (ends(node)[0], ends(leader)[2]) == (2, 1)
    leader.produce(b"b")
    world.run(3)
    assert ends(node)[0] == 2, "nothing more is fetched meanwhile"
    assert answers == []
    node.lanes.held.clear()
    world.run(5)
    assert (ends(node)[0], ends(node)[2]) == (3, 3)
    assert node.partition.log.durable_end >= 2
    assert answers == [None]


def test_a_marker_that_a_leader_had_not_synced_is_before_it_follows() -> None:
    world, leader, node = pair(duramen_ack_durability="page-cache")
    leader.produce(b"a")
    world.run(3)
    leader.lanes.held.add("checkpoint")
    marked(leader)
    world.run(3)
    assert ends(node)[0] == 2
    world.elect(2)
    world.run(3)
    assert leader.channels.open == {}, "it has named nothing"
    leader.lanes.held.clear()
    world.run(3)
    assert leader.channels.open[2].sent
    assert leader.partition.log.durable_end == 2


def test_an_idle_poll_names_nothing_and_tells_the_watermark() -> None:
    world, leader, node = pair()
    leader.produce(b"a")
    world.run(3)
    before = channel(node).sent
    turn(world, node)
    turn(world, node)
    assert channel(node).sent == before + 2
    assert channel(node).asks[0].named == {}
    assert node.partition.high_watermark == 1


def test_a_second_fetch_may_follow_the_one_that_waits() -> None:
    """At a change of leaders nobody waits for the parked one; and not more than two are out."""
    world, leader, node = pair()
    turn(world, node)
    assert node.fetcher is not None
    (parked,) = channel(node).asks
    node.fetcher.ask(node.target)
    world.step()
    assert [ask.named.keys() for ask in channel(node).asks] == [set(), {0}]
    node.fetcher.ask(node.target)
    world.step()
    assert len(channel(node).asks) == 2
    leader.produce(b"a")
    world.run(5)
    assert ends(node) == (1, 1, 1)
    assert parked.is_answered


def test_an_answer_to_what_was_asked_before_is_no_answer() -> None:
    """Behind a cut or another epoch it would pass for a gap that compaction left."""
    world, leader, node = pair()
    turn(world, node)
    leader.produce(b"a")
    world.answer(node, 1)  # it is on its way
    node.target.following.follow(1, 1, node.target.log)
    assert node.fetcher is not None
    node.fetcher.ask(node.target)
    world.step()
    world.deliver(node, 1)
    assert ends(node) == (0, 0, 0)
    world.run(5)
    assert ends(node) == (1, 1, 1)


def test_a_late_answer_of_a_leader_before_finds_nobody() -> None:
    world = FollowerWorld()
    first = world.elect(1)
    first.produce(b"kept")
    world.run(3)
    first.produce(b"only here")
    node = world.nodes[3]
    lost = node.channels.open[1]
    world.answer(node, 1)
    (ask, *_) = lost.asks
    world.elect(2).produce(b"of the next leader")
    world.step()
    ask.on_reply(ask.response)
    world.run(10)
    values = [each.bytes_below(2) for each in world.nodes.values()]
    assert values[0] == values[1] == values[2]
    assert len(values[0]) == 2
    assert "replica-cut" in first.told


def test_a_second_leader_s_history_replaces_what_nobody_acknowledged() -> None:
    world = FollowerWorld()
    first = world.elect(1)
    kept = first.produce(b"kept")
    world.run(5)
    lost = first.produce(*[b"lost"] * 5)
    first.produce(b"x" * 40_000)
    world.step()
    world.elect(2).produce(b"next")
    world.run(10)
    assert [each.base_offset for each in kept] == [0]
    assert [error.code for error in lost] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    contents = [node.bytes_below(2) for node in world.nodes.values()]
    assert contents[0] == contents[1] == contents[2]
    assert [ends(node) for node in world.nodes.values()] == [(2, 2, 2)] * 3


def test_a_cut_waits_until_the_log_is_whole() -> None:
    world = FollowerWorld(2)
    first = world.elect(1)
    first.produce(b"kept")
    world.run(3)
    first.produce(b"lost")
    world.step()
    first.lanes.held.add("producers")
    world.elect(2).produce(b"next")
    world.run(6)
    assert not first.partition.log.is_whole
    assert first.partition.log_end_offset == 1
    first.lanes.held.clear()
    world.run(10)
    assert ends(first) == (2, 2, 2)


def test_committed_records_are_never_cut() -> None:
    """A stable topic whose leader has another history below the watermark: the replica keeps all, and says so."""
    world = FollowerWorld(2)
    first = world.elect(1)
    first.produce(b"a")
    world.run(4)
    other = Node(world.clock, 2)
    world.nodes[2] = other
    world.elect(2).produce(b"b")
    world.run(10)
    assert first.target.following.is_offline
    assert first.told[-1] == "replica-offline"
    assert first.bytes_below(1)
    assert ends(first)[0] == 1
    world.run(10)
    assert first.told.count("replica-offline") == 1
    first.target.may_lose = True  # an unclean election
    world.elect(2)
    world.run(10)
    assert first.bytes_below(1) == other.bytes_below(1)


def test_a_page_cache_topic_cuts_what_was_committed() -> None:
    world = FollowerWorld(2, duramen_ack_durability="page-cache")
    world.elect(1).produce(b"a")
    world.run(4)
    world.nodes[2] = Node(world.clock, 2, duramen_ack_durability="page-cache")
    world.elect(2).produce(b"b")
    world.run(10)
    first, other = world.nodes.values()
    assert first.bytes_below(1) == other.bytes_below(1) != {}


def test_a_leader_that_begins_above_is_begun_with() -> None:
    world, leader, node = pair()
    for _ in range(4):
        leader.produce(b"a", b"b")
    leader.partition.resign(1, 1)
    alone = world.nodes[1]
    alone.partition.lead(2, (1,), (1,), 5)
    world.step()
    assert delete_records(alone.partition, 5) == 5  # inside a batch
    world.epoch = 2
    world.elect(1)
    world.run(10)
    partition = node.partition
    assert (partition.log_start_offset, ends(node)) == (5, (8, 8, 8))
    assert node.bytes_below(8) == leader.bytes_below(8)
    assert "replica-begun-anew" in node.told


def test_the_log_start_follows() -> None:
    world, leader, node = pair()
    for _ in range(4):
        leader.produce(b"a", b"b")
    world.run(5)
    delete_records(leader.partition, 5)
    world.run(3)
    assert node.partition.log_start_offset == 5
    delete_records(leader.partition, 6)
    leader.produce(b"c")
    world.run(5)
    assert node.partition.log_start_offset == 6
    assert channel(node).session[0] is None or channel(node).session[0].log_start_offset == 6


@pytest.mark.parametrize("code", [ErrorCode.CORRUPT_MESSAGE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_an_error_stays_with_its_partition(code: ErrorCode) -> None:
    world, leader, node = pair()
    turn(world, node)
    leader.produce(b"a")
    world.answer(node, 1)
    (ask,) = channel(node).asks
    data = ask.response.responses[0].partitions[0]
    data.error_code, data.records = int(code), b""
    world.deliver(node, 1)
    assert channel(node).asks[-1].named == {}  # the others would go on
    before = channel(node).sent
    world.pass_ms(30)
    assert channel(node).sent == before
    world.pass_ms(30)
    assert channel(node).asks[-1].named.keys() == {0}
    world.run(5)
    assert ends(node) == (1, 1, 1)


def test_other_metadata_ends_a_pause() -> None:
    world, leader, node = pair()
    turn(world, node)
    leader.partition.resign(1, 1)
    turn(world, node)
    assert node.fetcher is not None
    assert node.target.following.state is FollowerState.FETCHING
    node.follow(1, 2, (1, 2))
    leader.partition.lead(2, (1, 2), (1, 2), 2)
    leader.produce(b"a")
    world.run(4)
    assert ends(node)[0] == 1


def test_damage_on_the_way_is_not_appended() -> None:
    world, leader, node = pair()
    turn(world, node)
    leader.produce(b"a")
    world.step()
    leader.produce(b"bad")
    world.answer(node, 1)
    (ask,) = channel(node).asks
    data = ask.response.responses[0].partitions[0]
    sound = bytes(data.records)
    data.records = memoryview(sound[:-1] + bytes([sound[-1] ^ 1]))
    world.deliver(node, 1)
    assert ends(node)[0] == 1
    assert "at 1 came damaged" in str(node.events[-1][1]["error"])
    world.run(6)
    assert ends(node) == (2, 2, 2)
    assert node.bytes_below(2) == leader.bytes_below(2)


def test_a_lost_connection_begins_another_session() -> None:
    world, leader, node = pair()
    turn(world, node)
    leader.produce(b"a")
    world.answer(node, 1)
    channel(node).kill()
    assert node.told == ["fetch-from-leader-failed"]
    assert channel(node).asks == []
    world.pass_ms(30)
    assert channel(node).asks == []
    world.pass_ms(40)
    (ask,) = channel(node).asks
    assert (ask.body.session_id, ask.body.session_epoch, ask.named.keys()) == (0, 0, {0})
    for _ in range(3):
        channel(node).kill()
        world.pass_ms(100)
    assert node.told == ["fetch-from-leader-failed"]
    world.run(5)
    assert ends(node) == (1, 1, 1)


def test_a_leader_that_forgot_the_session_is_told_everything() -> None:
    world, leader, node = pair()
    turn(world, node)
    channel(node).session = None
    leader.produce(b"a")
    turn(world, node)
    world.pass_ms(100)
    (ask,) = channel(node).asks
    assert (ask.body.session_epoch, ask.named.keys()) == (0, {0})
    world.run(4)
    assert ends(node) == (1, 1, 1)


def test_large_answers_are_appended_over_several_turns() -> None:
    world, leader, node = pair()
    for _ in range(1200):
        leader.produce(b"v")
    world.step()
    world.answer(node, 1)
    ask = channel(node).asks.pop(0)
    ask.on_reply(ask.response)
    assert 0 < node.partition.log_end_offset < 1200
    world.run(4)
    assert ends(node) == (1200, 1200, 1200)


def test_a_log_that_takes_nothing_waits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world, leader, node = pair()
    turn(world, node)
    leader.produce(b"a")
    journal = node.directory.journal
    refusals = [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "full")] * 3
    admit = journal.admit

    def full(size: int) -> None:
        if refusals:
            raise refusals.pop()
        admit(size)

    monkeypatch.setattr(type(journal), "admit", lambda self, size: full(size) if self is journal else admit(size))
    world.run(20)
    assert ends(node) == (1, 1, 1)
    assert refusals == []


def test_what_is_removed_is_forgotten() -> None:
    world, leader, node = pair()
    turn(world, node)
    fetcher = node.fetcher
    assert fetcher is not None
    fetcher.remove(node.target)
    leader.produce(b"a")
    turn(world, node)
    assert ends(node) == (0, 0, 0)
    assert channel(node).asks == []  # nothing is left to be fetched
    fetcher.add(node.target)
    world.step()
    world.run(4)
    assert ends(node) == (1, 1, 1)


def test_what_fails_on_disk_is_looked_at_rarely() -> None:
    world, leader, node = pair()
    turn(world, node)
    node.directory.journal.fail(None, OSError(5, "broken"))
    leader.produce(b"a")
    before = channel(node).sent
    world.run(80)
    assert ends(node)[0] == 0
    assert channel(node).sent - before < 300
