"""Connections of other brokers that follow this one: from their first Fetch on they wait for nothing clients do."""

from __future__ import annotations

import struct

import pytest
from tests.worlds.broker_world import InProcess, Line
from tests.worlds.replica_world import Replica, ReplicatedBroker, offsets

from duramen.errors import ErrorCode
from duramen.server.api.acceptor import MOST_ON_TRIAL
from duramen.server.net.memory_limit import CONTROLLER_SHARE, MemoryShares
from duramen.sim.world.disk import CrashDisk
from duramen.wire.batch import build_batch

MIB = 1 << 20
T = ("t", 0)


def following(server: ReplicatedBroker, node_id: int = 2) -> Replica:
    """A replica that has had its first answer."""
    replica = Replica(server, node_id)
    replica.ask((server.partition(), 0))
    server.pass_ms(25)
    assert T in replica.told()
    return replica


def gets_records(server: ReplicatedBroker, replica: Replica) -> bool:
    """Whether a Fetch through this connection is answered now."""
    replica.ask((server.partition(), 0))
    server.run()
    reply = replica.answer()
    return reply is not None and offsets(reply.responses[0].partitions[0]) != []


@pytest.fixture
def server() -> ReplicatedBroker:
    world = ReplicatedBroker()
    world.copied()
    return world


def test_it_is_no_client_from_its_first_fetch_on(server: ReplicatedBroker) -> None:
    acceptor = server.broker.acceptor
    clients = len(acceptor.connections)
    replica = following(server)
    (connection,) = acceptor.replicas
    assert connection.transport is replica.line
    assert connection.receiver is acceptor.replica_receiver
    assert len(acceptor.connections) == clients
    assert connection in acceptor.everybody
    opened = server.broker.metrics.connections_opened
    connection.close("test")
    assert connection not in acceptor.everybody
    assert acceptor._by_host.get("10.0.0.2") is None
    assert server.broker.metrics.connections_closed == 1
    assert opened == clients + 1


def test_who_may_not_follow_stays_a_client(server: ReplicatedBroker) -> None:
    replica = Replica(server)
    replica.broker_epoch -= 1
    replica.ask((server.partition(), 0))
    assert replica.answer().error_code == ErrorCode.STALE_BROKER_EPOCH
    assert not server.broker.acceptor.replicas


def test_a_full_journal_keeps_clients_waiting_and_no_replica(server: ReplicatedBroker) -> None:
    replica = following(server)
    client = server.connect()
    client.ask_produce("t", b"x", acks=1)
    server.run()
    server.broker.store.congested = True
    client.ask_produce("t", b"y", acks=1)
    server.run()
    assert client.produced() is not None
    assert client.produced() is None
    assert gets_records(server, replica)


def begin_frame(line: Line, size: int) -> None:
    """Announce a request of so many bytes and send its beginning."""
    line._arrived += struct.pack(">i", size) + bytes(10_000)
    line.deliver()


def test_memory_that_clients_hold_is_none_of_replicas() -> None:
    server = ReplicatedBroker()
    acceptor = server.broker.acceptor
    acceptor.bound_memory(MemoryShares(256 * MIB, 8 * MIB, 8 * MIB))
    server.copied()
    replica = following(server)
    assert acceptor.replica_receiver.pool.cap_bytes == 8 * MIB // CONTROLLER_SHARE
    assert acceptor.replica_receiver.unread.cap_bytes == 8 * MIB // CONTROLLER_SHARE
    holder, waiting = server.connect(), server.connect()
    begin_frame(holder, 8 * MIB - 100)
    begin_frame(waiting, 4 * MIB)
    assert acceptor.receiver.is_short
    acceptor.receiver.unread.take(8 * MIB)
    assert acceptor.receiver.unread.short_since is not None
    server.partition().append_local(build_batch([(b"k", b"v", (), 1)]), 0)
    assert gets_records(server, replica)


def test_it_counts_among_no_clients() -> None:
    server = ReplicatedBroker(max_connections="3")
    server.copied()
    following(server, 2)
    following(server, 3)
    clients = [server.connect() for _ in range(2)]
    server.connect().ask(18, 0)
    server.run()
    assert len(server.broker.acceptor.connections) == 3, "the topic was made through the first"
    assert not any(client.closed for client in clients)


def test_what_it_was_sent_before_counts_where_it_belongs_now(server: ReplicatedBroker) -> None:
    """Its socket takes nothing when it becomes one."""
    acceptor = server.broker.acceptor
    line = server.connect_slowly(0)
    line.ask(18, 0)
    server.run()
    held = acceptor.receiver.unread.held_bytes
    assert held > 0
    (connection,) = (each for each in acceptor.connections if each.transport is line)
    connection.become_peer()
    assert (acceptor.receiver.unread.held_bytes, acceptor.replica_receiver.unread.held_bytes) == (0, held)
    line.read()
    assert acceptor.replica_receiver.unread.held_bytes == 0


# ---- beside as many clients as there may be --------------------------------------------------------------------------


@pytest.fixture
def full() -> ReplicatedBroker:
    """A broker with as many clients as it may have."""
    server = ReplicatedBroker(max_connections="2")
    server.copied()
    assert not server.connect().closed
    return server


def refused(server: ReplicatedBroker) -> int:
    return server.broker.metrics.connections_refused


def test_a_follower_comes_in_where_no_client_does(full: ReplicatedBroker) -> None:
    for node_id in (2, 3):
        following(full, node_id)
    acceptor = full.broker.acceptor
    assert (len(acceptor.replicas), len(acceptor.on_trial), refused(full)) == (2, 0, 0)
    full.pass_ms(20_000)
    assert len(acceptor.replicas) == 2


def test_who_asks_for_something_else_is_refused_unheard(full: ReplicatedBroker) -> None:
    client = full.connect()
    client.ask_produce("t", b"x", acks=1)
    full.run()
    assert (client.closed, full.partition().log_end_offset, refused(full)) == (True, 0, 1)
    consumer = Replica(full, -1)
    consumer.ask((full.partition(), 0), wait=0)
    full.run()
    consumer.ask((full.partition(), 0), wait=0)
    assert consumer.line.closed, "its first one was no replica's"
    assert not full.broker.acceptor.on_trial


def test_who_says_nothing_has_a_second(full: ReplicatedBroker) -> None:
    line = full.connect()
    assert not line.closed
    full.pass_ms(6_500)
    assert line.closed
    assert refused(full) == 1


def test_of_many_who_say_nothing_the_oldest_goes(full: ReplicatedBroker) -> None:
    lines = [full.connect() for _ in range(MOST_ON_TRIAL + 3)]
    assert [line.closed for line in lines] == [True] * 3 + [False] * MOST_ON_TRIAL
    following(full)


def test_where_there_are_no_other_brokers_nobody_is_on_trial() -> None:
    server = InProcess(max_connections="1")
    server.connect()
    assert server.connect().closed


def test_clients_leave_descriptors_to_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrashDisk, "descriptor_limit", lambda disk: 400)
    server = ReplicatedBroker()
    server.copied()
    while not server.broker.acceptor.on_trial:
        assert not server.connect().closed
    following(server)
