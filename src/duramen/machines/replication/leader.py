"""Replication of one partition, as its leader decides it: epochs, in-sync replicas and the high watermark.

Pure. A leader tells it how far each replica is on stable storage; it answers how far consumers may read
(ENGINE.md §3): the high watermark is the least durable end over the in-sync replicas, the leader's own included.
With one replica that is the leader's durable end. While fewer are in sync than `min.insync.replicas` asks for, and than
there are copies, it stands still. A follower's is what its leader tells, as far as it has that itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from duramen.errors import ErrorCode, check

NEVER: Final = float("-inf")
UNKNOWN_EPOCH: Final = -1
"""Broker epoch of a replica that has not fetched since this one leads."""


class Follower:
    """What a leader knows of another replica. Times are of a clock that nobody sets, in seconds.

    end: it has everything below where its durability wants it; -1 when nothing is known. mark: an end that the log had
    at `marked`, which is looked at until the follower has reached it. caught_up: a time at which it lacked nothing.
    """

    __slots__ = ("broker_epoch", "caught_up", "end", "mark", "marked")

    def __init__(self, broker_epoch: int = UNKNOWN_EPOCH) -> None:
        self.broker_epoch = broker_epoch
        self.end = -1
        self.mark = -1
        self.marked = self.caught_up = NEVER

    def compare(self, log_end: int, now: float) -> None:
        """Its end beside that of the log, as both are now."""
        if self.end >= log_end:
            self.mark, self.marked, self.caught_up = log_end, now, now
        elif self.end >= self.mark:
            self.caught_up = self.marked
            self.mark, self.marked = log_end, now

    def lacks_since(self, now: float) -> float:
        """For how many seconds it has lacked a record, at least."""
        return now - self.marked if self.end < self.mark else 0.0


class Replication:
    """One replica's view of its partition. Offsets are exclusive ends: all below them is there."""

    __slots__ = (
        "_counted",
        "_followers",
        "_leader_high",
        "epoch",
        "epoch_start",
        "fewest",
        "high_watermark",
        "is_leader",
        "isr",
        "leader",
        "local",
        "own_end",
        "partition_epoch",
        "replicas",
    )

    def __init__(self, local: int) -> None:
        self.local = local
        self.fewest = 1
        """`min.insync.replicas`: fewer in sync take no acks=all. Whoever changes it assigns the new one."""
        self.leader = -1
        self.is_leader = False
        """Whether this node may append: it was elected and nobody was elected since."""
        self.epoch = -1
        self.epoch_start = 0
        """Of a leader: where its log ended when it began to lead."""
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        """As it is committed."""
        self.high_watermark = 0
        self.own_end = 0
        """How far this replica itself has told that it is: what acks=1 waits for."""
        self._followers: dict[int, Follower] = {}
        self._counted: tuple[Follower, ...] = ()
        """The others whose ends bound the high watermark."""
        self._leader_high = -1
        """Of a follower: the high watermark that its leader told last."""

    # ---- who leads -------------------------------------------------------------------------------------------

    def lead(
        self,
        epoch: int,
        replicas: Iterable[int],
        isr: Iterable[int],
        partition_epoch: int,
        durable_end: int,
        log_end: int,
    ) -> None:
        """Become leader of `epoch`, which must be newer than any this replica led.

        Nothing is known of the others: what they told another leader, or this one in front of another, may be cut.
        """
        check(epoch > self.epoch or not self.is_leader, f"leader epoch {epoch} is not newer than {self.epoch}")
        self.leader = self.local
        self.is_leader = True
        self.epoch = epoch
        self.epoch_start = log_end
        self.own_end = durable_end
        self._leader_high = -1
        self._followers = {}
        self._take_over(replicas, isr, partition_epoch)
        self.advance()

    def adopt(self, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int) -> None:
        """The metadata has others in the epoch that is led: `partition_epoch` is newer than the one that was known."""
        check(self.is_leader, "in-sync replicas are taken over by their leader")
        self._take_over(replicas, isr, partition_epoch)
        self.advance()

    def _take_over(self, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int) -> None:
        known = self._followers
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        self.partition_epoch = partition_epoch
        others = {*self.replicas, *self.isr} - {self.local}
        self._followers = {node: known.get(node) or Follower() for node in sorted(others)}
        self._count()

    def _count(self) -> None:
        self._counted = tuple(follower for node, follower in self._followers.items() if node in self.isr)

    def resign(
        self, leader: int, epoch: int, replicas: Iterable[int] = (), isr: Iterable[int] = (), durable_end: int = 0
    ) -> None:
        """Somebody else leads from `epoch` on (-1: nobody)."""
        self.leader = leader
        self.is_leader = leader == self.local
        self.epoch = max(self.epoch, epoch)
        self.partition_epoch = -1
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        self.own_end = durable_end
        self._leader_high = -1
        self._followers, self._counted = {}, ()

    # ---- ends ------------------------------------------------------------------------------------------------

    def durable(self, end: int) -> bool:
        """This replica has everything below `end` on stable storage; True when the high watermark moved."""
        if end > self.own_end:
            self.own_end = end
        return self.advance()

    def fetched(self, node_id: int, broker_epoch: int, end: int, log_end: int, now: float) -> bool:
        """The Fetch of a replica that goes on at `end`, with the same history; True when the high watermark moved.

        What a newer process says replaces what is known, also where its end is smaller; an older one's says nothing.
        """
        follower = self._followers.get(node_id)
        if follower is None or not self.is_leader or end > log_end or broker_epoch < follower.broker_epoch:
            return False
        if broker_epoch > follower.broker_epoch:
            is_counted = follower in self._counted
            follower = self._followers[node_id] = Follower(broker_epoch)
            if is_counted:
                self._count()
        follower.end = end
        follower.compare(log_end, now)
        return self.advance()

    def told(self, leader_high: int) -> bool:
        """The leader's high watermark, in an answer to this replica; True when the one here moved."""
        if self.is_leader:
            return False
        self._leader_high = leader_high
        return self.advance()

    def cut(self, end: int) -> None:
        """This replica's log ends at `end`: what it had behind that is of no history that is left."""
        check(not self.is_leader, "a leader's log is what the others follow")
        self.own_end = min(self.own_end, end)
        self.high_watermark = min(self.high_watermark, end)

    def begin_anew(self, offset: int) -> None:
        """This replica's log was dropped, and begins with `offset`: what was known of it is of another one."""
        check(not self.is_leader, "a leader's log is what the others follow")
        self.own_end = 0
        self._leader_high = -1
        self.high_watermark = offset

    def advance(self) -> bool:
        """Move the high watermark as far as may be; True when it moved. Called here but for a change of `fewest`."""
        if not self.is_leader:
            lowest = min(self.own_end, self._leader_high)  # what is here says nothing of the others
        elif len(self.isr) < self.fewest and len(self.isr) < len(self.replicas):
            return False  # whoever is elected from outside these need not have it (KIP-966's strict rule)
        else:
            lowest = self.own_end
            for follower in self._counted:
                if follower.end < lowest:
                    lowest = follower.end
        if lowest > self.high_watermark:
            self.high_watermark = lowest
            return True
        return False

    # ---- what is refused -------------------------------------------------------------------------------------

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
