"""How far each replica is, as the leader knows it: the commit point, who is heard, what DescribeQuorum tells."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from duramen.machines.raft.voters import ReplicaKey, Voters

OBSERVER_FORGOTTEN: Final = 300.0
"""Seconds without a Fetch."""


class ReplicaState(NamedTuple):
    """One replica, for DescribeQuorum; times are those of the monotonic clock, -1: never in this epoch."""

    id: int
    directory_id: bytes
    log_end: int
    last_fetch: float
    last_caught_up: float
    is_voter: bool


class _Progress:
    """Of one replica in this epoch. durable_end: -1 until it named an end that is in the leader's log."""

    __slots__ = ("caught_up", "durable_end", "heard", "leader_end")

    def __init__(self) -> None:
        self.durable_end = -1
        self.heard = -1.0
        self.caught_up = -1.0
        self.leader_end = -1
        """Of the leader's log, when this replica fetched last."""


class ReplicaProgress:
    """The leader's table of replicas, itself not among them; for one epoch."""

    def __init__(self, local: ReplicaKey, began: float) -> None:
        self._local = local
        self._replicas: dict[ReplicaKey, _Progress] = {}
        self._excused_until = began
        """A voter that was heard before counts as heard then: at the epoch's beginning, or when the loop was late."""

    def fetched(self, key: ReplicaKey, now: float) -> None:
        """It asked for more, whatever its log is."""
        self._replicas.setdefault(key, _Progress()).heard = now

    def acknowledge(self, key: ReplicaKey, end: int, leader_end: int, now: float) -> None:
        """It has this beginning of the leader's log on stable storage."""
        replica = self._replicas.setdefault(key, _Progress())
        replica.durable_end = end
        if end >= leader_end:
            replica.caught_up = now
        elif end >= replica.leader_end >= 0:
            replica.caught_up = max(replica.caught_up, replica.heard)
        replica.leader_end = leader_end
        replica.heard = now

    def majority_end(self, voters: Voters, durable_end: int) -> int:
        """The end that a majority of the voters has on stable storage; durable_end: the leader's own."""
        ends = [durable_end if voter.key == self._local else self._end(voter.key) for voter in voters]
        ends.sort(reverse=True)
        return ends[voters.majority - 1] if ends else -1

    def _end(self, key: ReplicaKey) -> int:
        replica = self._replicas.get(key)
        return replica.durable_end if replica is not None else -1

    def majority_heard(self, voters: Voters) -> float:
        """Since when no majority is known to fetch; never, where the leader is one."""
        heard = [math.inf if voter.key == self._local else self._heard(voter.key) for voter in voters]
        heard.sort(reverse=True)
        return heard[voters.majority - 1] if heard else math.inf

    def _heard(self, key: ReplicaKey) -> float:
        replica = self._replicas.get(key)
        return max(self._excused_until, replica.heard if replica is not None else -1.0)

    def excuse(self, now: float) -> None:
        """What was sent until now may not have been read."""
        self._excused_until = now

    def successors(self, voters: Voters) -> tuple[ReplicaKey, ...]:
        """The other voters, who has most first."""
        others = [voter.key for voter in voters.others(self._local.id)]
        return tuple(sorted(others, key=lambda key: -self._end(key)))

    def has_fetched(self, key: ReplicaKey) -> bool:
        return key in self._replicas

    def forget_silent_observers(self, voters: Voters, now: float) -> None:
        for key, replica in list(self._replicas.items()):
            if not voters.is_voter(key) and replica.heard < now - OBSERVER_FORGOTTEN:
                del self._replicas[key]

    def states(self, voters: Voters, log_end: int, now: float) -> list[ReplicaState]:
        states = []
        for voter in voters:
            if voter.key == self._local:
                states.append(ReplicaState(*voter.key, log_end, now, now, True))
            else:
                states.append(self._state(voter.key, log_end, now, True))
        observers = sorted(key for key in self._replicas if not voters.is_voter(key))
        return states + [self._state(key, log_end, now, False) for key in observers]

    def _state(self, key: ReplicaKey, log_end: int, now: float, is_voter: bool) -> ReplicaState:
        replica = self._replicas.get(key) or _Progress()
        caught_up = now if 0 <= log_end <= replica.durable_end else replica.caught_up
        return ReplicaState(*key, replica.durable_end, replica.heard, caught_up, is_voter)
