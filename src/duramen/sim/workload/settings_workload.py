"""Those who change settings of the whole cluster at its active controller, and look for it when it is another one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from duramen.client.loop.node_client import NodeClient, NodeRequest, call
from duramen.errors import ErrorCode
from duramen.model import METADATA_TOPIC
from duramen.ports import Clock, Network
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.check.quorum_watch import ClusterWatch
from duramen.sim.workload.scripts import Script, Steps

KEYS: Final = ("log.retention.ms", "log.retention.bytes", "log.segment.bytes")
"""One for each of those who change something: all dynamic, all numbers."""
FIRST_VALUE: Final = 20_000_000
PATIENCE_S: Final = 4.0
"""How long an answer is waited for."""
CONTROLLERS: Final = 2
BROKER_RESOURCE: Final = 4
REFUSALS: Final = {
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
}
"""After which somebody else is asked."""


class ControllerClients:
    """A client with a connection to each controller; `target` is who is asked. An answer that does not come is lost."""

    def __init__(self, network: Network, clock: Clock, addresses: dict[int, tuple[str, int]], name: str) -> None:
        self.target = min(addresses)
        self.lost = 0
        self._clock = clock
        self._clients = {node_id: NodeClient(network, clock, *address, name) for node_id, address in addresses.items()}

    def send(self, wanted: NodeRequest, on_reply: Callable[[Any], None]) -> None:
        """See Sender; one request at a time."""
        client = self._clients[self.target]
        is_over = False

        def replied(answer: Any) -> None:
            nonlocal is_over
            is_over = True
            on_reply(answer)

        def too_late() -> None:
            if not is_over:
                self.lost += 1
                client.drop()

        self._clock.call_later(PATIENCE_S, too_late)
        client.send(wanted, replied)

    def close(self) -> None:
        """End every connection."""
        for client in self._clients.values():
            client.drop()


class Attempt(NamedTuple):
    """A change that was asked for once. answered: that it is made; else nobody knows."""

    key: str
    value: str
    answered: bool


class SettingsChanger:
    """Sets one key to one number after the other, each once, at whoever is told as the active controller."""

    def __init__(self, random: Random, client: ControllerClients, node_ids: list[int], key: str, name: str) -> None:
        self.name = name
        self.key = key
        self.client = client
        self.attempts: list[Attempt] = []
        self.answered = 0
        self._random = random
        self._node_ids = node_ids

    def script(self, count: int, going_on: Callable[[], bool], pause_s: float) -> Script:
        """Until so many changes were answered, and as long as it is asked to go on."""
        while self.answered < count or going_on():
            yield from self.change()
            yield self._random.uniform(0.0, pause_s)

    def change(self) -> Steps[bool]:
        """Ask once for one change; whether it was made for certain."""
        value = str(FIRST_VALUE + len(self.attempts))
        request = call("IncrementalAlterConfigs", 1, validate_only=False)
        entry = request.api.request
        request.request.resources = [
            entry.AlterConfigsResource(
                resource_type=BROKER_RESOURCE,
                resource_name="",
                configs=[entry.AlterableConfig(name=self.key, config_operation=0, value=value)],
            )
        ]
        answer = yield request
        code = None if answer is None else ErrorCode(answer.responses[0].error_code)
        if code is not None and code is not ErrorCode.NONE and code not in REFUSALS:
            raise InvariantViolated("NoUnexpectedError", f"{self.name}: {code.name} for {self.key}={value}")
        made = code is ErrorCode.NONE
        self.attempts.append(Attempt(self.key, value, made))
        self.answered += made
        if not made:
            yield from self.find_controller()
        return made

    def find_controller(self) -> Script:
        """Ask one after the other who the active controller is."""
        while True:
            self.client.target = self._random.choice(self._node_ids)
            answer = yield call("DescribeCluster", 2, endpoint_type=CONTROLLERS)
            if answer is not None and answer.controller_id >= 0:
                self.client.target = answer.controller_id
                return
            yield self._random.uniform(0.0, 0.1)


def observe(random: Random, client: ControllerClients, node_ids: list[int], watch: ClusterWatch,
            going_on: Callable[[], bool]) -> Script:  # fmt: skip
    """Ask for the quorum as an operator does: who is told to lead an epoch, by any node, is the one that leads it."""
    highest: dict[int, int] = {}
    while going_on():
        yield random.uniform(0.0, 0.5)
        client.target = random.choice(node_ids)
        request = call("DescribeQuorum", 2)
        kind = request.api.request
        request.request.topics = [
            kind.TopicData(topic_name=METADATA_TOPIC, partitions=[kind.PartitionData(partition_index=0)])
        ]
        answer = yield request
        if answer is None:
            continue
        found = answer.topics[0].partitions[0]
        if found.error_code:
            continue
        epoch, told = found.leader_epoch, found.leader_id
        known = watch.leaders.get(epoch, "")
        if not known.startswith(f"n{told}#"):
            raise InvariantViolated("OneLeaderAnEpoch", f"node {told} says it leads {epoch}, which {known} leads")
        if found.high_watermark < highest.get(epoch, -1):
            raise InvariantViolated("WatermarkNeverBack", f"{highest[epoch]} in epoch {epoch}, {found.high_watermark}")
        highest[epoch] = found.high_watermark


def check_changes(changers: list[SettingsChanger], watch: ClusterWatch) -> int:
    """Compare what was answered with what the log has; returns how many changes that were."""
    places: dict[tuple[str, str | None], list[int]] = {}
    for found in watch.settings:
        if found.resource == "":
            places.setdefault((found.name, found.value), []).append(found.offset)
    facts = 0
    for changer in changers:
        last = -1
        for attempt in changer.attempts:
            offsets = places.get((attempt.key, attempt.value), [])
            facts += 1
            # More than once where a node handed it on, and asked again when the answer was lost on its way back.
            if attempt.answered and not offsets:
                raise InvariantViolated("AnsweredChangesInOrder", f"{attempt} is in the log at {offsets}")
            if offsets and offsets[0] < last:
                raise InvariantViolated("AnsweredChangesInOrder", f"{attempt} at {offsets[0]}, answered {last}")
            if attempt.answered:
                last = offsets[-1]
    return facts
