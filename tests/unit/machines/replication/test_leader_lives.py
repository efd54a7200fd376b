"""Random lives of a leader, its followers and their controller: who is in sync has all that was committed.

Requests are taken late, twice or never, answers are lost, metadata comes late; followers restart and lose what they had
only in memory.
"""

from __future__ import annotations

from random import Random

import pytest

from duramen.errors import ErrorCode
from duramen.machines.replication.leader import Replication

LAG = 5.0
REPLICAS = (1, 2, 3)


class Follower:
    def __init__(self) -> None:
        self.end = 0
        self.epoch = 1
        self.sent: list[tuple[int, int]] = []
        """Fetches on their way: (broker epoch, end). Of one process they come in order; each may be late."""


class Controller:
    """What is committed: the in-sync replicas, and the brokers as they are registered."""

    def __init__(self) -> None:
        self.isr: tuple[int, ...] = REPLICAS
        self.partition_epoch = 0
        self.registered = {2: 1, 3: 1}
        self.fenced: set[int] = set()
        self.log: list[tuple[int, tuple[int, ...], dict[int, int], set[int]]] = []

    def change(self, isr: tuple[int, ...]) -> None:
        self.isr = isr
        self.partition_epoch += 1
        self.written()

    def written(self) -> None:
        self.log.append((self.partition_epoch, self.isr, dict(self.registered), set(self.fenced)))

    def alter(self, partition_epoch: int, isr: tuple[tuple[int, int], ...]) -> ErrorCode:
        if partition_epoch != self.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for node, epoch in isr:
            if node != 1 and (node in self.fenced or epoch not in (-1, self.registered[node])):
                return ErrorCode.INELIGIBLE_REPLICA
        self.change(tuple(node for node, _ in isr))
        return ErrorCode.NONE


class Life:
    def __init__(self, seed: int, fewest: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.end = self.durable = 0
        self.leader = Replication(1)
        self.leader.fewest = fewest
        self.leader.lead(1, REPLICAS, REPLICAS, 0, 0, 0)
        self.controller = Controller()
        self.followers = {2: Follower(), 3: Follower()}
        self.read = 0
        self.image: tuple[dict[int, int], set[int]] = ({2: 1, 3: 1}, set())
        self.copies: list[tuple[int, tuple[tuple[int, int], ...]]] = []
        self.moved = 0

    def may_join(self, node: int, epoch: int) -> bool:
        registered, fenced = self.image
        return node not in fenced and registered[node] == epoch

    def step(self, *, calm: bool = False) -> None:
        random = self.random
        self.now += random.random() * 0.5
        actions = [self.append, self.sync, self.follow, self.take, self.take, self.propose, self.learn, self.unfence]
        if not calm:
            actions = [*actions * 4, self.restart, self.fence, self.take_copy, self.take_copy]
        before = self.leader.high_watermark
        random.choice(actions)()
        self.leader.advance()
        assert self.leader.high_watermark >= before
        self.moved += self.leader.high_watermark > before
        ends = {1: self.durable, **{node: follower.end for node, follower in self.followers.items()}}
        for node in self.controller.isr:
            assert ends[node] >= self.leader.high_watermark, f"{node} would lead without what was acknowledged"

    def append(self) -> None:
        self.end += self.random.randint(1, 3)

    def sync(self) -> None:
        self.durable = self.end
        self.leader.durable(self.end)

    def follow(self) -> None:
        follower = self.followers[self.random.choice((2, 3))]
        follower.end = self.random.choice((self.end, min(self.end, follower.end + 1)))
        follower.sent.append((follower.epoch, follower.end))

    def take(self) -> None:
        node = self.random.choice((2, 3))
        sent = self.followers[node].sent
        while sent and self.random.random() < 0.7:
            epochs = sorted({epoch for epoch, _ in sent})
            chosen = self.random.choice(epochs)  # each process has a connection of its own
            fetch = next(each for each in sent if each[0] == chosen)
            sent.remove(fetch)
            self.leader.fetched(node, *fetch, self.end, self.now)

    def propose(self) -> None:
        leader, random = self.leader, self.random
        isr = leader.in_sync_change(self.end, self.now, LAG, self.may_join)
        if isr is None:
            return
        leader.proposed(isr)
        request = leader.partition_epoch, tuple((node, leader.broker_epoch_of(node)) for node in isr)
        how = random.random()
        if how < 0.3:  # lost, or late
            self.copies.append(request)
            leader.proposal_failed(ErrorCode.REQUEST_TIMED_OUT)
            return
        twice = how < 0.6
        if twice:
            self.copies.append(request)
        error = self.controller.alter(*request)
        if error is not ErrorCode.NONE:
            leader.proposal_failed(error, sent_once=not twice)
        elif random.random() < 0.3:
            leader.proposal_failed(ErrorCode.REQUEST_TIMED_OUT)  # the answer is lost

    def take_copy(self) -> None:
        if self.copies:
            self.controller.alter(*self.copies.pop(self.random.randrange(len(self.copies))))

    def learn(self) -> None:
        behind = self.controller.log[self.read :]
        for partition_epoch, isr, registered, fenced in behind[: self.random.randint(1, 4)]:
            self.read += 1
            self.image = registered, fenced
            if partition_epoch > self.leader.partition_epoch:
                self.leader.adopt(REPLICAS, isr, partition_epoch)

    def fence(self) -> None:
        node = self.random.choice((2, 3))
        controller = self.controller
        controller.fenced.add(node)
        if node in controller.isr:
            controller.change(tuple(each for each in controller.isr if each != node))
        else:
            controller.written()

    def unfence(self) -> None:
        if self.controller.fenced:
            self.controller.fenced.pop()
            self.controller.written()

    def restart(self) -> None:
        """It comes back without what was in its memory only; it is registered, and fenced, before it fetches."""
        node = self.random.choice((2, 3))
        follower = self.followers[node]
        self.controller.registered[node] = follower.epoch = follower.epoch + 1
        self.controller.fenced.add(node)
        if node in self.controller.isr:
            self.controller.change(tuple(each for each in self.controller.isr if each != node))
        else:
            self.controller.written()
        follower.end = self.random.randint(0, follower.end)


@pytest.mark.parametrize("fewest", [1, 2])
@pytest.mark.parametrize("seed", range(40))
def test_who_is_in_sync_has_all_that_was_committed(seed: int, fewest: int) -> None:
    life = Life(seed, fewest)
    for _ in range(1000):
        life.step()
    assert life.moved > 10
    for _ in range(600):
        life.step(calm=True)
    for _ in range(40):
        life.sync()
        for follower in life.followers.values():
            follower.end = life.end
            follower.sent = [(follower.epoch, follower.end)]
        life.unfence()
        life.learn()
        life.take()
        life.propose()
        life.leader.advance()
    while life.read < len(life.controller.log):
        life.learn()
    assert set(life.controller.isr) == set(REPLICAS), "everybody is back"
    assert life.leader.high_watermark == life.end
