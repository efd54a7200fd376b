"""Replication of one partition, as its leader decides it: epochs, in-sync replicas and the high watermark.

Pure. A leader tells it how far each replica is on stable storage; it answers how far consumers may read
(ENGINE.md §3): the high watermark is the least durable end over the in-sync replicas, the leader's own included.
With one replica that is the leader's durable end. While fewer are in sync than `min.insync.replicas` asks for, and than
there are copies, it stands still.
"""

from __future__ import annotations

from collections.abc import Iterable

from duramen.errors import ErrorCode, check


class Replication:
    """The leader's view of one partition's replicas. Offsets are exclusive ends: all below them is there."""

    __slots__ = ("_ends", "epoch", "fewest", "high_watermark", "is_leader", "isr", "leader", "local", "replicas")

    def __init__(self, local: int) -> None:
        self.local = local
        self.fewest = 1
        """`min.insync.replicas`: fewer in sync take no acks=all. Whoever changes it assigns the new one."""
        self.leader = -1
        self.is_leader = False
        """Whether this node may append: it was elected and nobody was elected since."""
        self.epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.high_watermark = 0
        self._ends: dict[int, int] = {}

    def lead(self, epoch: int, replicas: Iterable[int], isr: Iterable[int], durable_end: int) -> None:
        """Become leader of `epoch`, which must be newer than any this replica led."""
        check(epoch > self.epoch or not self.is_leader, f"leader epoch {epoch} is not newer than {self.epoch}")
        self.leader = self.local
        self.is_leader = True
        self.epoch = epoch
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        self._ends = {self.local: durable_end}
        self._advance()

    def resign(self, leader: int, epoch: int) -> None:
        """Somebody else leads from `epoch` on (-1: nobody)."""
        self.leader = leader
        self.is_leader = leader == self.local
        self.epoch = max(self.epoch, epoch)

    def begin_anew(self, offset: int) -> None:
        """This replica's log was dropped, and begins with `offset`: what was known of it is of another one."""
        check(not self.is_leader, "a leader's log is what the others follow")
        self._ends.clear()
        self.high_watermark = offset

    def durable(self, node: int, end: int) -> bool:
        """`node` has everything below `end` on stable storage; True when the high watermark moved."""
        if end > self._ends.get(node, -1):
            self._ends[node] = end
        return self._advance()

    @property
    def own_end(self) -> int:
        """How far this replica itself has told that it is: what acks=1 waits for."""
        return self._ends.get(self.local, 0)

    def _advance(self) -> bool:
        if not self.is_leader:
            return False  # what is here says nothing of the others: its leader tells a follower
        ends = self._ends
        isr = self.isr
        if len(isr) < self.fewest and len(isr) < len(self.replicas):
            return False  # whoever is elected from outside these need not have it (KIP-966's strict rule)
        if len(isr) == 1:
            lowest = ends.get(isr[0], -1)
        else:
            lowest = min([ends.get(node, -1) for node in isr], default=-1)
        if lowest > self.high_watermark:
            self.high_watermark = lowest
            return True
        return False

    def epoch_error(self, current_epoch: int) -> ErrorCode | None:
        """What a request that knows leader epoch `current_epoch` (-1: does not say) is told (KIP-320)."""
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if current_epoch < 0 or current_epoch == self.epoch:
            return None
        return ErrorCode.FENCED_LEADER_EPOCH if current_epoch < self.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    def in_sync_error(self) -> ErrorCode | None:
        """NOT_ENOUGH_REPLICAS while fewer replicas are in sync than `min.insync.replicas` asks for."""
        return ErrorCode.NOT_ENOUGH_REPLICAS if len(self.isr) < self.fewest else None

    def in_sync_error_when_stored(self) -> ErrorCode | None:
        """The same of a write that is in the log: replicas fell out of sync, or more were asked for, behind it."""
        return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if len(self.isr) < self.fewest else None
