"""Partitions with three copies on three brokers of one world: what is acknowledged is on all of them, byte by byte."""

from __future__ import annotations

import pytest
from tests.worlds.copies_world import CopiesWorld
from tests.worlds.partition_world import transactional

from duramen.client.loop.peer_channels import Purpose
from duramen.machines.contract import ProducerEpoch
from duramen.partition.replica.transactional_writes import append_marker, transaction_guard
from duramen.sim.world.node import WALL_START_MS


@pytest.mark.parametrize("durability", ["stable", "page-cache"])
def test_what_is_acknowledged_is_on_all_of_them(durability: str) -> None:
    world = CopiesWorld(duramen_ack_durability=durability)
    assert [world.produce(b"v%d" % each) for each in range(20)] == list(range(20))
    ends = [each.durable_end for each in world.partitions()]
    assert ends == [20] * 3
    assert world.until(world.are_equal)
    world.produce(b"x" * 100_000, b"y")
    assert world.until(world.are_equal)
    purpose = Purpose.STABLE if durability == "stable" else Purpose.PAGE_CACHE
    assert [world.purposes(each) for each in world.followers()] == [{purpose}] * 2
    assert world.purposes(world.leader()) == set()


def test_the_next_leader_has_it_and_the_one_before_cuts_what_nobody_acknowledged() -> None:
    world = CopiesWorld()
    for each in range(5):
        world.produce(b"v%d" % each)
    first = world.leader()
    for each in world.followers():
        world.world.cut(first, each)
    lost = world.send(first, *[b"lost"] * 3)
    assert world.until(lambda: world.partition(first).durable_end == 8)
    world.world.nodes[first].kill()
    assert world.produce(b"next") == 5
    assert lost == [] or lost[0] is None or lost[0].error_code
    world.world.heal_all()
    world.start(first)
    assert world.in_sync(1, 2, 3)
    assert world.until(world.are_equal)
    assert world.partition(first).log_end_offset == 6
    assert world.told("replica-cut") == [first]
    world.produce(b"and on")
    assert world.until(world.are_equal)


def test_a_retry_finds_its_first_home_at_the_next_leader() -> None:
    world = CopiesWorld()
    producer = {"producer_id": 77, "producer_epoch": 0}
    assert world.produce(b"a", **producer, base_sequence=0) == 0
    assert world.produce(b"b", **producer, base_sequence=1) == 1
    world.world.nodes[world.leader()].kill()
    assert world.produce(b"b", **producer, base_sequence=1) == 1
    assert world.produce(b"c", **producer, base_sequence=2) == 2
    assert {each.log_end_offset for each in world.partitions()} == {3}


def test_a_follower_that_lags_catches_up_by_its_own_connection() -> None:
    world = CopiesWorld()
    world.produce(b"a")
    away = world.followers()[0]
    others = [each for each in world.running if each != away]
    world.world.isolate(away)
    for each in range(20):
        world.produce(b"x" * 5_000 + b"%d" % each)
    assert world.until(lambda: set(world.image().isr) == set(others))
    world.world.heal_all()
    assert world.until(lambda: world.purposes(away) == {Purpose.CATCH_UP})
    assert world.in_sync(1, 2, 3)
    assert world.until(world.are_equal)
    world.produce(b"b")
    assert world.until(world.are_equal)
    assert world.until(lambda: world.purposes(away) == {Purpose.STABLE})


def test_a_node_without_the_log_gets_it_from_where_it_begins() -> None:
    """The leader's log begins inside a batch."""
    world = CopiesWorld()
    for _ in range(4):
        world.produce(b"a", b"b", b"c")
    away = world.followers()[0]
    world.world.nodes[away].kill()
    for _ in range(3):
        world.produce(b"d", b"e", b"f")
    assert world.until(lambda: away not in world.image().isr)
    world.delete_before(16)
    world.start(away)
    assert world.in_sync(1, 2, 3)
    assert world.until(world.are_equal)
    assert world.partition(away).log_start_offset == 16
    assert away in world.told("replica-begun-anew")


def test_an_empty_disk_gets_its_copies_anew() -> None:
    """Its start found them missing by metadata in which its own directory was still the lost one."""
    world = CopiesWorld(partitions=2)
    for each in range(5):
        world.produce(b"v%d" % each)
        world.produce(b"w%d" % each, index=1)
    away = world.followers()[0]
    world.wipe(away)
    world.start(away)
    assert world.in_sync(1, 2, 3)
    assert world.until(world.are_equal)
    assert world.until(lambda: world.are_equal(1))
    assert world.partition(away).log_end_offset == 5
    assert world.told("partition-offline") == [away] * 2


def test_the_log_start_is_everywhere() -> None:
    world = CopiesWorld()
    for _ in range(4):
        world.produce(b"a", b"b", b"c")
    assert world.until(world.are_equal)
    world.delete_before(7)
    assert world.until(lambda: {each.log_start_offset for each in world.partitions()} == {7})


def test_a_change_of_durability_moves_to_another_connection() -> None:
    world = CopiesWorld(duramen_ack_durability="page-cache")
    world.produce(b"a")
    answers = world.alter("duramen.ack.durability", "stable")
    assert world.until(lambda: bool(answers))
    assert world.until(lambda: all(each.is_stable for each in world.partitions()))
    assert world.until(lambda: all(world.purposes(each) == {Purpose.STABLE} for each in world.followers()))
    world.produce(b"b")
    assert world.until(world.are_equal)


def test_a_topic_that_is_deleted_is_not_followed() -> None:
    world = CopiesWorld(partitions=4)
    world.produce(b"a", index=2)
    answers = world.delete()
    assert world.until(lambda: bool(answers))
    fetchers = [world.brokers[each].followed.fetchers for each in world.running]
    assert world.until(lambda: all(each is None or not list(each.targets) for each in fetchers))
    assert all(each is None or not list(each.fetchers) for each in fetchers)
    world.create("t")
    assert world.produce(b"b") == 0
    assert world.until(world.are_equal)


def test_all_of_them_are_killed_and_come_back() -> None:
    world = CopiesWorld()
    for each in range(10):
        world.produce(b"v%d" % each)
    for node in world.world.nodes.values():
        node.kill()
    world.start(1, 2, 3)
    assert world.in_sync(1, 2, 3)
    assert world.produce(b"again") == 10
    assert world.until(world.are_equal)


def test_power_is_lost_everywhere() -> None:
    world = CopiesWorld()
    for each in range(10):
        world.produce(b"v%d" % each)
    for node in world.world.nodes.values():
        node.power_cut()
    world.start(1, 2, 3)
    assert world.produce(b"again") == 10
    assert world.in_sync(1, 2, 3)
    assert world.until(world.are_equal)


def test_power_is_lost_everywhere_and_no_transaction_of_a_page_cache_topic_opens_again() -> None:
    """Its data are on every disk; who leads now was a follower, and nobody sends the marker again."""
    world = CopiesWorld(duramen_ack_durability="page-cache")
    first = world.leader()
    leader, producer = world.partition(first), ProducerEpoch(1, 0)
    batch, answers, ended = memoryview(transactional(1, b"v")), [], []
    leader.append(batch, -1, WALL_START_MS, answers.append, transaction_guard(leader, producer, 0, False))
    assert world.until(lambda: bool(answers))
    for each in world.hosts:
        world.brokers[each].store.flush_policy.sync(world.partition(each))
    assert world.until(lambda: all(each.log.durable_end == 1 for each in world.partitions()))
    append_marker(leader, producer, True, 0, 0, WALL_START_MS, ended.append)
    assert world.until(lambda: bool(ended))
    assert ended == [None]
    world.world.nodes[first].power_cut()
    assert world.until(lambda: world.image().leader not in (first, -1))
    for each in world.running:
        world.world.nodes[each].power_cut()
    world.start(*world.hosts)
    assert world.until(lambda: world.image().leader != -1)
    found = world.partition(world.leader())
    assert world.leader() != first
    assert world.until(lambda: found.last_stable_offset == found.log_end_offset == 2)
    assert not found.log.producers.open_transactions


def test_many_partitions_cost_what_changes() -> None:
    """A Fetch names what changed, and an idle one nothing."""
    world = CopiesWorld(partitions=40)
    world.run(2)
    node = world.followers()[0]
    fetchers = world.brokers[node].followed.fetchers
    assert fetchers is not None
    assert sum(len(each) for each in fetchers.fetchers) >= 20
    named: list[int] = []
    for fetcher in fetchers.fetchers:
        request = fetcher._request

        def counted(topics: dict, request=request) -> object:  # type: ignore[no-untyped-def,type-arg]
            named.append(sum(map(len, topics.values())))
            return request(topics)

        fetcher._request = counted  # type: ignore[method-assign]
    world.run(5)
    assert named
    assert sum(named) == 0
    index = next(each for each in range(40) if not world.partition(node, each).replication.is_leader)
    world.produce(b"a", index=index)
    world.run(1)
    assert sum(named) == 1
