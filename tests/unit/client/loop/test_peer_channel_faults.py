"""Whatever happens on the way: every request has one answer, its own, in its time; and only a dead process is dead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.worlds.answering_node import AnsweringNode

from duramen.client.loop.node_client import call
from duramen.client.loop.peer_channel import ChannelLimits, PeerChannel
from duramen.ports import World
from duramen.sim.world.cluster import CLIENTS, CLUSTER, ClusterWorld, cluster_hosts
from duramen.sim.world.entropy import SimEntropy
from duramen.wire.messages import API

HOSTS = cluster_hosts(2)
PORT = 9093


class Echo:
    """Answers with the request's number; now and then late, or never."""

    def __init__(self, world: World) -> None:
        self.world = world

    def start(self, on_ready: Callable[[], None]) -> None:
        AnsweringNode(self.world.network, "", PORT, self.answer)
        on_ready()

    def answer(self, header: Any, request: Any) -> Any:
        if self.world.entropy.uniform(0.0, 1.0) < 0.01:
            return None
        return API[header.api_key].response.new(controller_id=int(request.topics[0].name))

    def stop(self, on_stopped: Callable[[], None]) -> None:
        on_stopped()


@pytest.mark.parametrize("seed", range(12))
def test_one_answer_in_time_and_no_false_deaths(seed: int) -> None:
    random = Random(seed)
    # Pipes so small that requests are sent piece by piece.
    conditions = replace(CLUSTER, pipe_bytes=(100, 2000))
    cluster = ClusterWorld(random, HOSTS, conditions=conditions)
    for node_id in HOSTS:
        cluster.add(node_id, Echo)
        cluster.nodes[node_id].start()
    own, clock, port = cluster.clients("sender")
    gone_at: dict[int, float] = {}
    deaths: list[int] = []
    where = 1

    def died() -> None:
        assert where in gone_at, "a process that lives was called dead"
        deaths.append(where)

    limits = ChannelLimits(requests=20, connect_s=random.choice((0.2, 2.0)), probes=random.choice((1, 2)))
    channel = PeerChannel(port, clock, SimEntropy(Random(seed)), HOSTS[1], PORT, "c", on_died=died, limits=limits)
    answers: dict[int, int | None] = {}
    sent = 0

    def send() -> None:
        nonlocal sent
        number, timeout, began = sent, random.choice((0.01, 0.3, 3.0)), cluster.loop.now
        sent += 1
        request = call("Metadata", 12)
        request.request.topics = [request.api.request.MetadataRequestTopic(name=str(number))]

        def on_reply(response: Any) -> None:
            assert number not in answers, "once"
            assert cluster.loop.now <= began + timeout + 0.001
            assert response is None or response.controller_id == number, "its own"
            answers[number] = response and response.controller_id

        channel.send(request, on_reply, timeout)

    def start(node_id: int) -> None:
        gone_at.pop(node_id, None)
        cluster.nodes[node_id].start()

    for _ in range(300):
        for _ in range(random.choice((0, 1, 1, 2, 30))):
            send()
        cluster.until(lambda: False, random.choice((0.0, 0.001, 0.05, 0.5)))
        node_id = random.choice((1, 2))
        node, fault = cluster.nodes[node_id], random.random()
        if not node.running:
            if fault < 0.3:
                start(node_id)
        elif fault < 0.04:
            gone_at[node_id] = cluster.loop.now
            node.kill()
        elif fault < 0.06:
            node.power_cut()
        elif fault < 0.10:
            node.pause(random.uniform(0.0, 3.0))
        elif fault < 0.15:
            random.choice((cluster.cut, cluster.stall))(CLIENTS, node_id, one_way=random.random() < 0.5)
        elif fault < 0.30:
            cluster.heal_all()
        elif fault < 0.33:
            where = node_id
            channel.move(HOSTS[node_id], PORT)
    cluster.heal_all()
    for node_id, node in cluster.nodes.items():
        if not node.running:
            start(node_id)
    before = sent
    while sent < before + 20:
        send()
        cluster.until(lambda: False, 1.0)
    assert answers[sent - 1] == sent - 1, "it works again by itself"
    channel.close()
    cluster.until(lambda: False, 5.0)
    assert sorted(answers) == list(range(sent)), "each"
    assert sum(answer is not None for answer in answers.values()) > 50
    assert cluster.loop.planned(own) == 0
    assert port.transports == []
