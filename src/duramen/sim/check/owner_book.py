"""Who owns what in groups of both protocols, as members were told, and the promises that hold of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from duramen.model import TopicPartition
from duramen.sim.check.invariants import HighestKnown, InvariantViolated, Ledger

OWNER_INVARIANTS: Final = {
    "OneOwner": "no two members own a partition in one epoch, whatever protocol each speaks; who was fenced commits "
    "nothing",
    "Settles": "after the last change every partition is owned within a bound; assignments are even to one partition "
    "and move no more than needed",
}
"""What is checked, by name."""


class OwnerBook:
    """Of one group. An owner is a member, or what a static one is called.

    is_mixed: an empty group of one type gives way to one of the other then, whose epochs begin anew.
    """

    def __init__(self, ledger: Ledger, group: str) -> None:
        self.ledger = ledger
        self.group = group
        self.is_mixed = False
        self._owners: dict[tuple[TopicPartition, int], str] = {}
        self._newest: defaultdict[TopicPartition, HighestKnown] = defaultdict(HighestKnown)
        self._epoch = HighestKnown()
        self._held: dict[str, tuple[set[TopicPartition], float]] = {}
        """What each believes to own, and how long its session lasts at least."""

    def joined(self, name: str, epoch: int, asked: int, now: float) -> None:
        """Somebody who asked for it at this fact was told this epoch at its join."""
        self.ledger.facts += 1
        known = self._epoch.at(asked)
        # When all sessions are over the group is removed before long, and epochs begin anew.
        may_be_gone = all(lasts <= now for _, lasts in self._held.values())
        if epoch < known and not self.is_mixed and not may_be_gone:
            raise InvariantViolated("OneOwner", f"{self.group}: {name} joins in epoch {epoch}, {known} has been")
        if epoch < known or (epoch == known and may_be_gone):  # another one has begun under its name
            self._owners.clear()
            self._newest.clear()
            self._epoch = HighestKnown()
        self._epoch.learn(self.ledger.facts, epoch)

    def released(self, owner: str) -> None:
        """It does not believe to own anything any more."""
        self._held.pop(owner, None)

    def claimed(self, owner: str, epoch: int, tps: Iterable[TopicPartition], now: float, until: float) -> None:
        """A member was told that it owns these in this epoch; its session lasts until then at least."""
        self.ledger.facts += 1
        mine = set(tps)
        for other, (theirs, lasts) in self._held.items():
            if other != owner and lasts > now and not mine.isdisjoint(theirs):
                tp = sorted(mine & theirs)[0]
                raise InvariantViolated("OneOwner", f"{self.group} {tp}: {owner} owns it, {other} has not given it up")
        self._held[owner] = mine, until
        for tp in mine:
            other = self._owners.setdefault((tp, epoch), owner)
            if other != owner:
                raise InvariantViolated("OneOwner", f"{self.group} {tp} in epoch {epoch}: {other} and {owner} own it")
            self._newest[tp].learn(self.ledger.facts, epoch)
        self._epoch.learn(self.ledger.facts, epoch)

    def commit_taken(self, owner: str, epoch: int, tp: TopicPartition, asked: int) -> None:
        """A commit by this owner, sent at fact `asked` as a member of this epoch, was answered without an error."""
        self.ledger.facts += 1
        newest = self._newest[tp].at(asked)
        if newest > epoch and self._owners[tp, newest] != owner:
            raise InvariantViolated(
                "OneOwner",
                f"{self.group} {tp}: a commit of {owner} in epoch {epoch} was taken, {self._owners[tp, newest]} owned "
                f"it in {newest}",
            )

    def check_even(self, owned: dict[str, set[TopicPartition]], tps: list[TopicPartition]) -> None:
        """The group has settled: everybody has what it owns."""
        self.ledger.facts += 1
        counts = sorted(len(mine) for mine in owned.values())
        if sorted(tp for mine in owned.values() for tp in mine) != sorted(tps) or counts[-1] > counts[0] + 1:
            raise InvariantViolated("Settles", f"{self.group}: of {len(tps)} partitions members have {counts}")

    def check_moved(self, before: dict[str, set[TopicPartition]], after: dict[str, set[TopicPartition]]) -> None:
        """One more member has joined a group that had settled, and it has settled again: only that one has got any."""
        self.ledger.facts += 1
        for owner, mine in before.items():
            if not after[owner] <= mine:
                moved = sorted(map(str, after[owner] - mine))
                raise InvariantViolated("Settles", f"{self.group}: {owner} was given {moved} when another one joined")
