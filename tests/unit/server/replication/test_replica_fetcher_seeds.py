"""Seeds: leaders change while records are under way, links are killed, answers come late, nodes lose power.

Whatever happens, what is below the watermark is the same on all replicas and stays so, no watermark goes back while a
process lives, and what was acknowledged is at every leader; in the end all logs are the same.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.worlds.follower_world import FollowerWorld, Node
from tests.worlds.partition_world import plain

from duramen.errors import KafkaError
from duramen.partition.replica.offset_lookup import delete_records
from duramen.wire.batch import parse_header, place

SEEDS = 20


class Life:
    """One world, and what it must keep."""

    def __init__(self, seed: int, **configs: str) -> None:
        self.random = Random(seed)
        self.world = FollowerWorld(3, **configs)
        self.world.partition_max_bytes = self.random.choice([1, 300, 1 << 20])
        self.answers: list[tuple[bytes, list[Any]]] = []
        self.acknowledged: dict[int, bytes] = {}
        self.marks: dict[Node, int] = {}
        self.count = 0
        self.stale: list[Any] = []
        self.elect()

    @property
    def nodes(self) -> list[Node]:
        return list(self.world.nodes.values())

    @property
    def leader(self) -> Node:
        return self.world.nodes[self.world.leader]

    def elect(self) -> None:
        self.world.elect(self.random.choice(self.world.replicas))

    # ---- what happens --------------------------------------------------------------------------------------------

    def produce(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            self.count += 1
            value = b"%d " % self.count * self.random.choice([1, 1, 9, 8000])
            values = [value] * self.random.randrange(1, 4)
            self.answers.append((value, self.leader.produce(*values)))

    def leave_gap(self) -> None:
        """As if compaction had taken what was there: behind the end there is nothing for some offsets.

        Not at the beginning of an epoch: what compaction takes was committed, and of an epoch that others know.
        """
        partition = self.leader.partition
        if not partition.log.is_whole or partition.log.epochs.latest != partition.leader_epoch:
            return
        self.count += 1
        batch = plain(b"behind a gap %d" % self.count)
        view = memoryview(batch)
        place(view, parse_header(view), partition.log_end_offset + self.random.randrange(1, 5), partition.leader_epoch)
        partition.log.append(batch, parse_header(view), 0)
        partition.touched()

    def delete(self) -> None:
        partition = self.leader.partition
        low, high = partition.log_start_offset, partition.high_watermark
        if high > low:
            delete_records(partition, self.random.randrange(low, high + 1))

    def answer(self) -> None:
        for node in self.nodes:
            for leader in list(node.channels.open):
                if self.random.random() < 0.7:
                    self.world.answer(node, leader)

    def deliver(self) -> None:
        for node in self.nodes:
            for leader, channel in list(node.channels.open.items()):
                if channel.asks and channel.asks[0].is_answered and self.random.random() < 0.7:
                    self.world.deliver(node, leader)

    def come_late(self) -> None:
        """An answer of a connection that was lost."""
        if self.stale:
            ask = self.stale.pop(self.random.randrange(len(self.stale)))
            ask.on_reply(ask.response)

    def kill_link(self) -> None:
        node = self.random.choice(self.nodes)
        for channel in list(node.channels.open.values()):
            self.stale += [ask for ask in channel.asks if ask.is_answered]
            channel.kill()

    def hold(self) -> None:
        node = self.random.choice(self.nodes)
        lane = self.random.choice(["journal", "producers"])
        node.lanes.held.symmetric_difference_update({lane})

    def let_go(self) -> None:
        for node in self.nodes:
            node.lanes.held.clear()

    def lose_power(self) -> None:
        """A node that does not lead; the leader's loss is an election."""
        node = self.random.choice(self.nodes)
        if node is self.leader:
            others = [each for each in self.world.replicas if each != node.id]
            self.world.elect(self.random.choice(others))
        for other in self.nodes:
            channel = other.channels.open.pop(node.id, None)
            if channel is not None:
                channel.kill()
        node.disk.power_cut()
        node.disk.power_on()
        node.boot()
        self.marks.pop(node, None)
        node.follow(self.world.leader, self.world.epoch, self.world.replicas)

    def pass_time(self) -> None:
        self.world.pass_ms(self.random.choice([1, 20, 120]))

    # ---- what stays so -------------------------------------------------------------------------------------------

    def check(self) -> None:
        for value, answers in self.answers:
            for answer in answers:
                if not isinstance(answer, KafkaError):
                    self.acknowledged[answer.base_offset] = value
        self.answers = [each for each in self.answers if not each[1]]
        for node in self.nodes:
            mark = node.partition.high_watermark
            assert mark >= self.marks.get(node, 0), f"the watermark of node {node.id} went back"
            assert mark <= node.partition.durable_end
            assert node.partition.log_start_offset <= max(mark, 0)
            self.marks[node] = mark
        contents = [node.bytes_below(node.partition.high_watermark) for node in self.nodes]
        for one in contents:
            for other in contents:
                for offset in one.keys() & other.keys():
                    assert one[offset] == other[offset], f"offset {offset} is not the same everywhere"
        assert not any(node.told.count("replica-offline") for node in self.nodes), [node.events for node in self.nodes]

    def end(self) -> None:
        self.let_go()
        self.world.run(160)
        self.produce()
        self.world.run(80)
        self.check()
        ends = {(node.partition.log_end_offset, node.partition.high_watermark) for node in self.nodes}
        assert len(ends) == 1, [(node.id, node.told[-5:], node.partition.log_end_offset) for node in self.nodes]
        leader = self.leader.partition
        # One that followed another leader's start may begin later; nobody begins earlier.
        assert all(node.partition.log_start_offset >= leader.log_start_offset for node in self.nodes)
        whole = self.leader.bytes_below(leader.log_end_offset)
        for node in self.nodes:
            for offset, batch in node.bytes_below(node.partition.log_end_offset).items():
                assert batch == whole[offset]
        for offset, value in self.acknowledged.items():
            if offset >= leader.log_start_offset:
                assert value in whole[offset]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_replicas_of_a_stable_topic(seed: int) -> None:
    life = Life(seed)
    happenings = [
        (life.produce, 6), (life.answer, 8), (life.deliver, 8), (life.pass_time, 4), (life.hold, 2), (life.let_go, 1),
        (life.elect, 1), (life.kill_link, 1), (life.come_late, 2), (life.delete, 1), (life.leave_gap, 1),
        (life.lose_power, 1),
    ]  # fmt: skip
    for _ in range(220):
        (happening,) = life.random.choices([each for each, _ in happenings], [weight for _, weight in happenings])
        try:
            happening()
        except KafkaError as error:
            if not error.retriable:  # else a journal's group that waits, a log that is being cut
                raise
        life.world.step()
        life.check()
    life.end()
    assert life.acknowledged
