"""Replicas of one partition on stores of their own: fetchers as they are, between them a network that a test is.

A Fetch is *asked* when it is sent, *answered* when the leader looks at it, *delivered* when the follower gets that. The
leader keeps sessions as brokers do, with its own partition behind them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

from tests.worlds.broker_world import Agenda
from tests.worlds.partition_world import TOPIC_ID, TP, Lanes, Numbers, joined, plain

from duramen.client.loop.peer_channels import Purpose
from duramen.config import TopicConfig, load_broker_config
from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.partition.replica.offset_lookup import divergence
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import Partition
from duramen.partition.store.store import Store
from duramen.ports import World
from duramen.server.replication.replica_fetcher import FetcherSettings, ReplicaFetcher
from duramen.server.replication.replica_target import ReplicaTarget
from duramen.sim.world.disk import CrashDisk
from duramen.storage.directory.log_directory import DirectorySettings
from duramen.wire.messages import fetch

SETTINGS = FetcherSettings(1 << 20, 10 << 20, 500, 1, 50)
EMPTY_ID = bytes(16)


class Ask:
    """A Fetch on its way to the leader and back."""

    def __init__(self, body: Any, on_reply: Callable[[Any], None]) -> None:
        self.body = body
        self.on_reply = on_reply
        self.response: Any = None
        self.is_answered = False

    @property
    def named(self) -> dict[int, Any]:
        """What it says of partitions, by index."""
        return {each.partition: each for topic in self.body.topics for each in topic.partitions}


class Channel:
    """From one node to another; `asks` are in order."""

    last_error = "killed"

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.session: dict[int, Any] | None = None
        """Positions that the leader has, by index; those that are answered have none."""
        self.epoch = 0
        self.sent = 0
        self.is_open = True

    def send(self, request: Any, on_reply: Callable[[Any], None], timeout: float) -> None:
        self.sent += 1
        self.asks.append(Ask(request.request, on_reply))

    def kill(self) -> None:
        """What is on the way is lost."""
        asks, self.asks = self.asks, []
        self.session = None
        for ask in asks:
            ask.on_reply(None)


class Channels:
    """Of one node, by leader."""

    def __init__(self) -> None:
        self.open: dict[int, Channel] = {}

    def to(self, purpose: Purpose, node_id: int, host: str, port: int) -> Channel:
        return self.open.setdefault(node_id, Channel())

    def drop(self, purpose: Purpose, node_id: int) -> None:
        channel = self.open.pop(node_id, None)
        if channel is not None:
            channel.kill()


class Node:
    """A store with the partition, and what it follows it by."""

    def __init__(self, clock: Agenda, node_id: int, disk: CrashDisk | None = None, **configs: str) -> None:
        self.id = node_id
        self.clock = clock
        self.configs = configs
        self.disk = disk or CrashDisk()
        self.broker_epoch = 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.boot()

    def boot(self) -> None:
        """A process begins on the disk."""
        self.broker_epoch += 1
        self.lanes = Lanes()
        network: Any = None
        self.world = World(self.disk, self.clock, network, self.lanes, Numbers())
        self.store = Store(self.world, self.id)
        self.directory = self.store.open_directory("/data", DirectorySettings())
        self.partition: Partition = self.store.open_partition(TP, TOPIC_ID, self.config(**self.configs))
        self.channels = Channels()
        self.fetchers: dict[int, ReplicaFetcher] = {}
        self.target = ReplicaTarget(self.partition, self.directory, 0.05)
        self.fetcher: ReplicaFetcher | None = None

    def config(self, **configs: str) -> TopicConfig:
        """The topic's."""
        return TopicConfig(
            load_broker_config(None, {}), {key.replace("_", "."): value for key, value in configs.items()}
        )

    def report(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    @property
    def told(self) -> list[str]:
        """The events that were reported."""
        return [event for event, _ in self.events]

    def follow(self, leader: int, epoch: int, replicas: tuple[int, ...], purpose: Purpose = Purpose.STABLE) -> None:
        """As the metadata has it from now on."""
        self.partition.resign(leader, epoch, replicas, replicas)
        self.stand()
        step = self.target.following.follow(leader, epoch, self.target.log)
        channels: Any = self.channels
        self.fetcher = ReplicaFetcher(
            self.world, self.store, channels, self.id, leader, purpose, SETTINGS, self.report, lambda target: None
        )
        self.target.is_stable = self.partition.is_stable
        self.fetcher.reach(("leader", leader), self.broker_epoch)
        self.fetcher.add(self.target)
        if step is not None:
            self.fetcher.give_up(self.target, step)

    def stand(self) -> None:
        """Follow nobody."""
        fetcher, self.fetcher = self.fetcher, None
        if fetcher is not None:
            fetcher.remove(self.target)
            fetcher.close()

    def lead(self, epoch: int, replicas: tuple[int, ...]) -> None:
        self.stand()
        self.partition.lead(epoch, replicas, replicas, epoch)

    def produce(self, *values: bytes, **fields: Any) -> list[Any]:
        """Append; the list gets the answer for acks=all."""
        answers: list[Appended | KafkaError] = []
        self.partition.append(memoryview(plain(*values, **fields)), -1, self.clock.wall_ms(), answers.append)
        return answers

    def bytes_below(self, end: int) -> dict[int, bytes]:
        """Batches by their first offset, all below `end`."""
        log = self.partition.log
        if log.start_offset >= end:
            return {}
        data = joined(log.read(log.start_offset, 1 << 30, end, at_least_one=True).parts)
        found, position = {}, 0
        while position < len(data):
            size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            found[int.from_bytes(data[position : position + 8], "big")] = data[position : position + size]
            position += size
        return found


class FollowerWorld:
    """Nodes 1 to `count`. All are replicas, and in sync."""

    def __init__(self, count: int = 3, **configs: str) -> None:
        self.clock = Agenda()
        self.nodes = {each: Node(self.clock, each, **configs) for each in range(1, count + 1)}
        self.replicas = tuple(self.nodes)
        self.leader = 0
        self.epoch = 0
        self.partition_max_bytes = 1 << 20

    def elect(self, leader: int) -> Node:
        """It leads from the next epoch on, and the others follow."""
        self.leader = leader
        self.epoch += 1
        for node in self.nodes.values():
            if node.id == leader:
                node.lead(self.epoch, self.replicas)
            else:
                node.follow(leader, self.epoch, self.replicas)
        return self.nodes[leader]

    @property
    def followers(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.id != self.leader]

    # ---- time ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Until nothing is left to do now but what the held lanes do and what the network has."""
        while True:
            while self.clock.ready:
                self.clock.ready.pop(0)()
            if not any(node.lanes.step() for node in self.nodes.values()):
                return

    def pass_ms(self, milliseconds: int) -> None:
        """Time goes by."""
        end = self.clock.now_ms + milliseconds
        self.step()
        start = self.clock.now_ms - int(self.clock.monotonic() * 1000)
        while self.clock.timers and start + self.clock.timers[0][0] * 1000 <= end:
            due, _, timer = heapq.heappop(self.clock.timers)
            self.clock.now_ms = max(self.clock.now_ms, math.ceil(start + due * 1000 - 1e-6))
            if timer.callback is not None:
                timer.callback()
            self.step()
        self.clock.now_ms = max(self.clock.now_ms, end)

    def run(self, rounds: int = 60) -> None:
        """Answer and deliver all there is, for a while."""
        for _ in range(rounds):
            self.step()
            for node in self.nodes.values():
                for leader, channel in list(node.channels.open.items()):
                    self.answer(node, leader)
                    while channel.asks and channel.asks[0].is_answered:
                        self.deliver(node, leader)
            self.pass_ms(25)

    # ---- the network, and the leader's side of it ----------------------------------------------------------------

    def answer(self, follower: Node, leader: int) -> None:
        """The leader looks at what has come from there."""
        channel = follower.channels.open[leader]
        for ask in channel.asks:
            if not ask.is_answered:
                ask.response = self.nodes[leader].partition and self._answer(follower, channel, leader, ask.body)
                ask.is_answered = True

    def deliver(self, follower: Node, leader: int) -> None:
        """The follower gets the first answer."""
        channel = follower.channels.open[leader]
        if channel.asks and channel.asks[0].is_answered:
            ask = channel.asks.pop(0)
            ask.on_reply(ask.response)
            self.step()

    def _answer(self, follower: Node, channel: Channel, leader: int, body: Any) -> Any:
        message = fetch.FetchResponse
        if body.session_epoch == 0:
            channel.session, channel.epoch = {}, 1
        elif channel.session is None or body.session_epoch != channel.epoch:
            return message.new(error_code=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND), responses=[])
        else:
            channel.epoch += 1
        for topic in body.forgotten_topics_data:
            for index in topic.partitions:
                channel.session.pop(index, None)
        partition = self.nodes[leader].partition
        for topic in body.topics:
            assert topic.topic_id == TOPIC_ID
            for named in topic.partitions:
                channel.session[named.partition] = named
        told = []
        for index, named in list(channel.session.items()):
            if named is None:
                continue
            data = self._data(follower, partition, named, body.replica_state.replica_epoch)
            if data.error_code or data.records or data.diverging_epoch.end_offset >= 0:
                channel.session[index] = None
            told.append(data)
        topics = [message.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=told)] if told else []
        return message.new(session_id=7, responses=topics)

    def _data(self, follower: Node, partition: Partition, named: Any, broker_epoch: int) -> Any:
        message = fetch.FetchResponse
        data = message.PartitionData(
            partition_index=0,
            error_code=0,
            high_watermark=partition.high_watermark,
            log_start_offset=partition.log_start_offset,
            aborted_transactions=None,
            records=b"",
        )
        try:
            error = partition.replication.epoch_error(named.current_leader_epoch)
            if error is not None:
                raise KafkaError(error)
            parted = divergence(partition, named.last_fetched_epoch, named.fetch_offset)
            if parted is not None and named.fetch_offset >= partition.log_start_offset:
                data.diverging_epoch = message.EpochEndOffset(epoch=parted[0], end_offset=parted[1])
                return data
            partition.log.flush()  # a leader answers behind its commit
            read = partition.read_as_replica(
                named.fetch_offset, min(self.partition_max_bytes, named.partition_max_bytes), True
            )
            if partition.fetched_by(follower.id, broker_epoch, named.fetch_offset, self.clock.monotonic()):
                partition.settle_fetched()
            data.high_watermark = partition.high_watermark
            data.records = memoryview(joined(read.parts))
        except DuramenError as raised:
            data.error_code = int(raised.code)
        return data
