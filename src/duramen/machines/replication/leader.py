"""Replication of one partition, as its leader decides it: epochs, in-sync replicas and the high watermark.

Pure. A leader tells it how far each replica is on stable storage; it answers how far consumers may read
(ENGINE.md §3): the high watermark is the least durable end over the in-sync replicas, the leader's own included.
With one replica that is the leader's durable end. While fewer are in sync than `min.insync.replicas` asks for, and than
there are copies, it stands still. A follower's is what its leader tells, as far as it has that itself.

Who is in sync is committed metadata. The leader proposes others (KIP-497), one proposal at a time, and what it proposed
may be so from then on: until the partition epoch has moved it counts the *maximal* in-sync replicas, those that are
committed and all that it proposed in this partition epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final, Protocol

from duramen.errors import ErrorCode, check

MayJoin = Callable[[int, int], bool]
"""Whether the broker (node id, broker epoch) may be in sync: registered so, not fenced, not stopping (KIP-841, 903)."""

NEVER: Final = float("-inf")
UNKNOWN_EPOCH: Final = -1
"""Broker epoch of a replica that has not fetched since this one leads."""
WAITED_FOR_S: Final = 1.0
"""A replica that may join, and lacked nothing so long ago, is counted: else the high watermark runs away from it under
load. Kafka waits `replica.lag.time.max.ms` for one, which a producer takes for a partition that stands still."""


class LeaderLease(Protocol):
    """Of a node: as long as it holds, nobody was elected to what the node leads because that was silent."""

    def holds(self) -> bool: ...


class Follower:
    """What a leader knows of another replica. Times are of a clock that nobody sets, in seconds.

    end: it has everything below where its durability wants it; -1 when nothing is known. mark: an end that the log had
    at `marked`, which is looked at until the follower has reached it. caught_up: a time at which it lacked nothing.
    log_start: where its log begins; -1 when it has not said so.
    """

    __slots__ = ("broker_epoch", "caught_up", "end", "log_start", "mark", "marked")

    def __init__(self) -> None:
        self.broker_epoch = UNKNOWN_EPOCH
        self.end = -1
        self.log_start = -1
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
        "_asked",
        "_counted",
        "_followers",
        "_leader_high",
        "_pending",
        "_waited_for",
        "epoch",
        "epoch_start",
        "fewest",
        "high_watermark",
        "is_alone",
        "is_leader",
        "isr",
        "leader",
        "lease",
        "local",
        "own_end",
        "partition_epoch",
        "replicas",
    )

    def __init__(self, local: int) -> None:
        self.local = local
        self.fewest = 1
        """`min.insync.replicas`: fewer in sync take no acks=all. Whoever changes it assigns the new one."""
        self.lease: LeaderLease | None = None
        """What answers need for which this replica's word is enough. None: nothing, for there are no other replicas, or
        no other voters. Whoever has it lead assigns it."""
        self.is_alone = False
        """Whether it leads by a lease, and nobody else can be in sync."""
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
        self._asked: tuple[int, ...] | None = None
        """The proposal that is under way, or whose outcome is to come with the metadata."""
        self._pending: tuple[int, ...] = ()
        """Who was proposed before it, in this partition epoch, and may have been taken."""
        self._waited_for: tuple[int, ...] = ()
        """Others that are about to join."""
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
        """Become leader of `epoch`, which must be newer than any this replica led: or it was fenced, and none began.

        Nothing is known of the others: what they told another leader, or this one in front of another, may be cut.
        What was proposed in the partition epoch that is still the one counts on, for it may still be taken.
        """
        check(epoch > self.epoch or not self.is_leader, f"leader epoch {epoch} is not newer than {self.epoch}")
        pending = self._pending if (epoch, partition_epoch) == (self.epoch, self.partition_epoch) else ()
        self.leader = self.local
        self.is_leader = True
        self.epoch = epoch
        self.epoch_start = log_end
        self.own_end = durable_end
        self._leader_high = -1
        self._followers = {}
        self._take_over(replicas, isr, partition_epoch, pending)
        self.advance()

    def adopt(self, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int) -> None:
        """The metadata has others in the epoch that is led: `partition_epoch` is newer than the one that was known."""
        check(self.is_leader, "in-sync replicas are taken over by their leader")
        self._take_over(replicas, isr, partition_epoch)
        self.advance()

    def _take_over(
        self, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int, pending: tuple[int, ...] = ()
    ) -> None:
        known = self._followers
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        self.partition_epoch = partition_epoch
        self._asked, self._pending, self._waited_for = None, pending, ()  # a compare-and-set on another one fails
        others = {*self.replicas, *self.isr} - {self.local}
        self._followers = {node: known.get(node) or Follower() for node in sorted(others)}
        self._count()

    def _count(self) -> None:
        counted = {*self.maximal_isr, *self._waited_for}
        self._counted = tuple(follower for node, follower in self._followers.items() if node in counted)
        self.is_alone = self.lease is not None and self.maximal_isr == {self.local}

    def resign(
        self, leader: int, epoch: int, replicas: Iterable[int] = (), isr: Iterable[int] = (), durable_end: int = 0
    ) -> None:
        """Somebody else leads from `epoch` on (-1: nobody). Where that is known: with these in-sync replicas."""
        is_known = not self.is_leader and (leader, epoch) == (self.leader, self.epoch)
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        if is_known:
            return
        self.leader = leader
        self.is_leader = leader == self.local
        if epoch > self.epoch:
            self.epoch, self.partition_epoch, self._pending = epoch, -1, ()
        else:  # fenced, it may lead on where nobody else can: what it proposed may be taken before that
            self._pending = tuple({*self._pending, *(self._asked or ())})
        self.own_end = durable_end
        self._leader_high = -1
        self._followers, self._counted = {}, ()
        self._asked, self._waited_for = None, ()
        self.is_alone = False

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
        follower.broker_epoch, follower.end = broker_epoch, end
        follower.compare(log_end, now)
        return self.advance()

    def starts(self, node_id: int, broker_epoch: int, log_start: int) -> None:
        """The same Fetch says where the replica's log begins."""
        follower = self._followers.get(node_id)
        if follower is not None and broker_epoch >= follower.broker_epoch:
            follower.log_start = log_start

    def lowest_start(self, own: int, live: Container[int]) -> int:
        """Where the first of these replicas' logs begins, this one's at `own`: records below that are nowhere."""
        others = [follower.log_start for node, follower in self._followers.items() if node in live]
        return min([own, *others])

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
        """Move the high watermark as far as may be; True when it moved. Called here but for a change of `fewest`, and
        where a lease holds again.
        """
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
            if self.is_alone and self.lacks_lease():
                return False  # an unclean election may have given the partition to somebody who has none of that
            self.high_watermark = lowest
            return True
        return False

    # ---- in sync ---------------------------------------------------------------------------------------------

    @property
    def maximal_isr(self) -> set[int]:
        """All that may be in sync by what is committed now, as far as this leader can know."""
        return {*self.isr, *self._pending, *(self._asked or ())}

    def in_sync_change(self, log_end: int, now: float, max_lag: float, may_join: MayJoin) -> tuple[int, ...] | None:
        """Who should be in sync where that is to be proposed, else None. Call `advance` behind it.

        In: who has all below the high watermark, and all that the log had when this epoch began. Out: who has lacked
        something for `max_lag` seconds.
        """
        if not self.is_leader:
            return None
        high, isr, waited_for = self.high_watermark, [], []
        for node in self.replicas:
            follower = self._followers.get(node)
            if follower is None:
                isr.append(node)  # this one
                continue
            follower.compare(log_end, now)
            if node in self.isr:
                if follower.lacks_since(now) <= max_lag:
                    isr.append(node)
            elif may_join(node, follower.broker_epoch):
                if now - follower.caught_up <= WAITED_FOR_S:
                    waited_for.append(node)
                if follower.end >= high and follower.end >= self.epoch_start:
                    isr.append(node)
        if waited_for != list(self._waited_for):
            self._waited_for = tuple(waited_for)
            self._count()
        if self._asked is not None:
            return None
        is_the_same = set(isr) == set(self.isr)
        return None if is_the_same and self.maximal_isr == set(isr) else tuple(isr)

    def proposed(self, isr: tuple[int, ...]) -> None:
        """They are proposed now, and may be in sync from now on."""
        check(self._asked is None, "one proposal at a time")
        self._asked = isr
        self._count()

    def proposal_failed(self, error: ErrorCode, *, sent_once: bool = False) -> None:
        """The proposal was refused, or its outcome is unknown. Call `advance` behind it.

        Until the partition epoch has moved all who were proposed count, also where the refusal says that it has: no
        metadata need come, if who refused is a controller that another one has replaced. sent_once: no other copy of
        the proposal can be on its way, so that a join which was refused is none.
        """
        asked = self._asked
        if asked is None:
            return
        self._asked, self._waited_for = None, ()
        if error is not ErrorCode.INELIGIBLE_REPLICA or not sent_once:
            self._pending = tuple({*self._pending, *asked})
        self._count()

    @property
    def is_waiting(self) -> bool:
        """Whether the high watermark waits for a replica that is about to join."""
        return bool(self._waited_for)

    @property
    def may_be_behind(self) -> bool:
        """Whether records that an earlier leader acknowledged may be above the high watermark (KIP-207)."""
        return self.high_watermark < self.epoch_start and len(self.replicas) > 1

    def lags(self, log_start: int, log_end: int) -> Iterator[tuple[int, int]]:
        """What each other replica lacks, as its leader knows: all, where it has not fetched yet."""
        for node, follower in self._followers.items():
            yield node, max(0, log_end - max(follower.end, log_start))

    def broker_epoch_of(self, node_id: int) -> int:
        """Of the process that fetched last; -1 where none did."""
        follower = self._followers.get(node_id)
        return UNKNOWN_EPOCH if follower is None else follower.broker_epoch

    def lacks_lease(self) -> bool:
        """Whether this leader may have been fenced, and another one be elected, without having heard of it."""
        return self.lease is not None and not self.lease.holds()

    # ---- what is refused -------------------------------------------------------------------------------------

    def epoch_error(self, current_epoch: int, *, of_leader: bool = True) -> ErrorCode | None:
        """What a request that knows leader epoch `current_epoch` (-1: does not say) is told (KIP-320).

        of_leader: only the leader answers it.
        """
        if of_leader and not self.is_leader:
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
