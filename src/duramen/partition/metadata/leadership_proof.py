"""Proof that a node still leads its quorum: a majority was sent something after the question, and fetched again.

A deposed leader may not know it yet, and Fetches of its epoch may still be on their way to it. One that comes by the
same connection, behind an answer that was sent after the question, was sent when its sender had read that answer: it
had not voted for anybody else when the question was asked.
"""

from __future__ import annotations

from collections.abc import Callable

from duramen.machines.raft.voters import ReplicaKey, Voters


class _Follower:
    """A replica that fetches. via: the connection of its last Fetch."""

    __slots__ = ("answered", "proven", "via")

    def __init__(self) -> None:
        self.via: object = None
        self.answered = 0
        """The last question before what was sent to it by this connection."""
        self.proven = 0
        """The last question before which it had voted for nobody else."""


class LeadershipProof:
    """Of one leader, in one epoch."""

    def __init__(self) -> None:
        self._questions = 0
        self._waiting: list[tuple[int, Callable[[bool], None]]] = []
        self._followers: dict[ReplicaKey, _Follower] = {}

    def ask(self, done: Callable[[bool], None]) -> None:
        """`done(True)` when it is proven that the node leads now, `done(False)` when it leads no more."""
        self._questions += 1
        self._waiting.append((self._questions, done))

    def fetched(self, replica: ReplicaKey, via: object) -> None:
        """A Fetch of this epoch came in."""
        follower = self._followers.setdefault(replica, _Follower())
        if follower.via is via:
            follower.proven = max(follower.proven, follower.answered)
        else:
            follower.via, follower.answered = via, 0

    def answered(self, replica: ReplicaKey, via: object) -> None:
        """It is sent an answer."""
        follower = self._followers.get(replica)
        if follower is not None and follower.via is via:
            follower.answered = self._questions

    def lacks_answer(self, replica: ReplicaKey) -> bool:
        """Whether an answer to it would help."""
        follower = self._followers.get(replica)
        return bool(self._waiting) and follower is not None and follower.answered < self._questions

    def settle(self, voters: Voters, local: ReplicaKey) -> None:
        """Answer the questions of which a majority knows by now."""
        if not self._waiting:
            return
        proven = [self._questions if voter.key == local else self._proven(voter.key) for voter in voters]
        proven.sort(reverse=True)
        until = proven[voters.majority - 1] if proven else 0
        due = [done for number, done in self._waiting if number <= until]
        self._waiting = [each for each in self._waiting if each[0] > until]
        for done in due:
            done(True)

    def _proven(self, replica: ReplicaKey) -> int:
        follower = self._followers.get(replica)
        return 0 if follower is None else follower.proven

    def lost(self) -> None:
        """The node leads no more, or another epoch begins."""
        waiting, self._waiting = self._waiting, []
        self._followers.clear()
        for _, done in waiting:
            done(False)
