"""The simulator's client: replies in order, loss reported to everyone who waits, scripts that go on."""

from __future__ import annotations

from random import Random
from typing import Any

from duramen.client.loop.node_client import CALL_TIMEOUT_S, NodeClient, call
from duramen.ports import Transport
from duramen.sim.workload.scripts import Actor, Script
from duramen.sim.world.loop import Process, SimClock, SimLoop
from duramen.sim.world.network import SimNetwork, SimPort
from duramen.wire.frame import encode_response, parse_request_header
from duramen.wire.messages import API


class FakeBroker:
    """Answers Metadata requests with the correlation id as controller, the first `patience` of them."""

    def __init__(self, port: SimPort, patience: int = 1000) -> None:
        self.patience = patience
        self.transports: list[Transport] = []
        self.versions: list[int] = []
        port.listen("h", 9092, self.accept)

    def accept(self, transport: Transport) -> None:
        self.transports.append(transport)
        received = bytearray()
        transport.set_reader(lambda: self.read(transport, received))

    def read(self, transport: Transport, received: bytearray) -> None:
        buffer = bytearray(7)
        count = transport.recv_into(memoryview(buffer))
        if count == 0:
            transport.set_reader(None)
            return
        received += buffer[: max(0, count)]
        while len(received) >= 4 and len(received) >= (end := 4 + int.from_bytes(received[:4], "big")):
            frame = memoryview(bytes(received[4:end]))
            del received[:end]
            header = parse_request_header(frame)
            API[header.api_key].request.decode(frame, header.api_version, header.body_position)
            self.versions.append(header.api_version)
            if self.patience > 0:
                self.patience -= 1
                api = API[header.api_key]
                answer = api.response.new(controller_id=header.correlation_id)
                transport.send(
                    [bytes(p) for p in encode_response(api, header.api_version, header.correlation_id, answer)]
                )


def world(seed: int, patience: int = 1000) -> tuple[SimLoop, SimClock, NodeClient, FakeBroker]:
    loop = SimLoop(Random(seed))
    network = SimNetwork(loop, Random(seed))
    broker = FakeBroker(SimPort(network, Process("server")), patience)
    people = Process("clients")
    clock = SimClock(loop, people, 0)
    return loop, clock, NodeClient(SimPort(network, people), clock, "h", 9092, "c"), broker


def metadata(version: int = 12) -> Any:
    return call("Metadata", version, topics=None)


def test_pipelined_calls_are_answered_in_order() -> None:
    loop, clock, client, broker = world(1)
    answers: list[Any] = []

    def script() -> Script:
        replies = yield [metadata(), metadata(5), metadata(9)]
        answers.extend(reply.controller_id for reply in replies)
        yield 1.5
        reply = yield metadata()
        answers.append((reply.controller_id, clock.monotonic() > 1.5))

    actor = Actor(client, clock, script())
    assert loop.run(lambda: actor.finished, 10.0)
    assert answers == [1, 2, 3, (4, True)]
    assert broker.versions == [12, 5, 9, 12]
    assert len(broker.transports) == 1


def test_a_lost_connection_answers_everything_with_none_and_the_next_call_opens_another() -> None:
    loop, clock, client, broker = world(1, patience=1)
    answers: list[Any] = []

    def script() -> Script:
        replies = yield [metadata(), metadata()]
        answers.append([reply and reply.controller_id for reply in replies])
        broker.patience = 1
        answers.append((yield metadata()).controller_id)

    actor = Actor(client, clock, script())
    loop.run(lambda: False, 1.0)
    assert not answers
    broker.transports[0].close()
    assert loop.run(lambda: actor.finished, 10.0)
    assert answers == [[1, None], 3]
    assert len(broker.transports) == 2


def test_a_silent_server_costs_a_timeout() -> None:
    loop, clock, client, _ = world(1, patience=0)
    lost: list[float] = []
    client.send(metadata(), lambda reply: lost.append(clock.monotonic()) if reply is None else None)
    loop.run(lambda: bool(lost), 1000.0)
    assert CALL_TIMEOUT_S <= lost[0] < CALL_TIMEOUT_S + 1


def test_no_server_is_a_loss_too() -> None:
    loop = SimLoop(Random(1))
    people = Process("clients")
    clock = SimClock(loop, people, 0)
    client = NodeClient(SimPort(SimNetwork(loop, Random(1)), people), clock, "h", 9092, "c")
    answers: list[Any] = []
    client.send(metadata(), answers.append)
    loop.run(lambda: bool(answers), 1.0)
    assert answers == [None]
