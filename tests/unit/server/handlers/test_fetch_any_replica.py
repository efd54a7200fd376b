"""Reading a replica that does not lead: consumers are sent to the leader, Kafka's verification tool is answered."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.replica_world import Replica, ReplicatedBroker, offsets

from duramen.errors import ErrorCode
from duramen.partition.replica.partition import Partition
from duramen.server.handlers.fetch import ANY_REPLICA
from duramen.wire.messages import API


@pytest.fixture
def server() -> ReplicatedBroker:
    return ReplicatedBroker()


def followed(server: ReplicatedBroker) -> Partition:
    """A partition with two committed records and a third that is not, which node 2 leads now."""
    partition = server.copied()
    producer = server.connect()
    for value in (b"a", b"b"):
        producer.ask_produce("t", value, acks=1)
        server.run()
        assert producer.produced().error_code == 0
    for node_id in (2, 3):
        Replica(server, node_id).ask((partition, 2))
    server.run()
    producer.ask_produce("t", b"c", acks=1)
    server.run()
    partition.resign(2, partition.leader_epoch + 1, (1, 2, 3), (2, 3))
    assert (partition.high_watermark, partition.log_end_offset) == (2, 3)
    return partition


def fetch(
    server: ReplicatedBroker, partition: Partition, version: int, *, replica_id: int, offset: int = 0, wait: int = 0
) -> Any:
    line = server.connect()
    request = API[1].request
    wanted = request.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = request.FetchTopic(topic="t", topic_id=partition.topic_id, partitions=[wanted])
    state = request.ReplicaState(replica_id=replica_id, replica_epoch=-1)
    named = {"replica_state": state} if version >= 15 else {"replica_id": replica_id}
    line.ask(1, version, **named, max_wait_ms=wait, min_bytes=1, topics=[topic])
    server.run()
    reply = line.answer(1, version)
    return None if reply is None else reply.responses[0].partitions[0]


@pytest.mark.parametrize("version", [12, 18])
def test_the_debugging_replica_reads_up_to_the_watermark_known_here(server: ReplicatedBroker, version: int) -> None:
    partition = followed(server)
    data = fetch(server, partition, version, replica_id=ANY_REPLICA)
    assert (data.error_code, data.high_watermark, offsets(data)) == (0, 2, [0, 1])
    data = fetch(server, partition, version, replica_id=ANY_REPLICA, offset=2)
    assert (data.error_code, data.high_watermark, offsets(data)) == (0, 2, [])
    assert fetch(server, partition, version, replica_id=ANY_REPLICA, offset=2, wait=60_000) is None, "it waits"


@pytest.mark.parametrize("version", [12, 18])
def test_a_consumer_is_sent_to_the_leader(server: ReplicatedBroker, version: int) -> None:
    data = fetch(server, followed(server), version, replica_id=-1)
    assert (data.error_code, len(data.records)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
