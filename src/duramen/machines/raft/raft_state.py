"""One replica's place in its quorum: epoch, role, leader, vote; and what waits until these are on stable storage."""

from __future__ import annotations

import math
from collections.abc import Callable

from duramen.errors import check
from duramen.machines.raft.effects import (
    LEAVING,
    BecameLeader,
    CommitAdvanced,
    Effect,
    Halt,
    LeaderChanged,
    SaveState,
    Send,
)
from duramen.machines.raft.election_state import ElectionState
from duramen.machines.raft.messages import Endpoints, Request
from duramen.machines.raft.raft_log import RaftLog
from duramen.machines.raft.roles import TRANSITIONS, Happening, Role
from duramen.machines.raft.settings import PROMPT, RaftSettings
from duramen.machines.raft.voters import NO_DIRECTORY, ReplicaKey, Voters


class RaftState:
    """What elections, leadership and fetching share. Effects are gathered here, and leave by `take_effects`.

    `on_role` is called behind every change of the role, with the role before.
    """

    def __init__(
        self,
        local: ReplicaKey,
        is_controller: bool,
        log: RaftLog,
        saved: ElectionState | None,
        settings: RaftSettings,
        jitter: Callable[[], float],
    ) -> None:
        self.local = local
        self.is_controller = is_controller
        self.log = log
        self.settings = settings
        self.jitter = jitter
        self.saved_before = saved
        self.now = 0.0
        self.role = Role.UNATTACHED
        self.epoch = 0
        self.leader_id = -1
        self.leader_endpoints: Endpoints = ()
        self.voted: ReplicaKey | None = None
        self.committed = -1
        """All below is known to be committed; never falls. -1: unknown."""
        self.timer = math.inf
        """When the role's time-out is over."""
        self.losses = 0
        """Elections lost since a leader was heard."""
        self.has_fetched = False
        """Whether the leader answered a Fetch of ours in this epoch."""
        self.prompt_until = -math.inf
        """The leader is known to be gone: until then what is refused is soon asked again."""
        self.was_late = False
        self.may_stand_again = True
        """False while it stops, and behind a failed append."""
        self.is_halted = False
        self.on_role: Callable[[Role], None] = lambda before: None
        self._effects: list[Effect] = []
        self._held: list[tuple[int, Effect]] = []
        self._version = 0
        self._asked: ElectionState | None = saved
        self._needed = 0
        """The version that has to be on stable storage before anything leaves."""
        self._safe = 0
        self._told = (-1, -1, False)

    # ---- what others ask

    @property
    def voters(self) -> Voters:
        return self.log.voters

    @property
    def is_voter(self) -> bool:
        return self.is_controller and self.voters.is_voter(self.local)

    @property
    def may_stand(self) -> bool:
        return self.may_stand_again and self.is_voter

    @property
    def is_leader_gone(self) -> bool:
        return self.now < self.prompt_until

    @property
    def hears_leader(self) -> bool:
        """Whether it would be wrong to elect another one, as seen from here."""
        return self.role is Role.LEADER or (self.role is Role.FOLLOWER and self.has_fetched and not self.is_leader_gone)

    def endpoints(self) -> Endpoints:
        """Of the leader."""
        return self.voters.endpoints(self.leader_id) or self.leader_endpoints

    # ---- what changes the role

    def become(self, happening: Happening) -> None:
        """Change the role by the table."""
        before = self.role
        after = TRANSITIONS[before].get(happening)
        check(after is not None, f"{before.value} replica: {happening.value}")
        assert after is not None
        self.role = after
        self.on_role(before)

    def hear(self, epoch: int, leader_id: int, endpoints: Endpoints = ()) -> None:
        """Somebody is in `epoch`, and knows its leader (-1: does not)."""
        if epoch < self.epoch:
            return
        is_leader_known = leader_id >= 0 and leader_id != self.local.id  # of itself it knows better: it was restarted
        if epoch > self.epoch:
            self.epoch = epoch
            self.voted = None
            self.leader_id, self.leader_endpoints = (leader_id, endpoints) if is_leader_known else (-1, ())
            self.become(Happening.LATER_LEADER if is_leader_known else Happening.LATER_EPOCH)
        elif not is_leader_known:
            return
        elif leader_id == self.leader_id:
            self.leader_endpoints = endpoints or self.leader_endpoints
        elif self.leader_id >= 0 or self.role is Role.RESIGNED:
            leader = self.leader_id if self.leader_id >= 0 else self.local.id
            self.halt(f"epoch {epoch} has two leaders, {leader} and {leader_id}")
        else:
            self.leader_id = leader_id
            self.leader_endpoints = endpoints
            self.become(Happening.LEADER_FOUND)

    def leader_is_gone(self, first: float) -> None:
        """The leader's process ended, or it said that it leads no more: stand in `first` seconds, if others do not."""
        if self.role not in (Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE):
            return
        self.prompt_until = self.now + self.settings.election_timeout
        if self.may_stand:
            self.timer = min(self.timer, self.now + first)
        elif self.role is Role.FOLLOWER:
            self.leader_id = -1
            self.become(Happening.LEADER_LOST)

    def halt(self, reason: str) -> None:
        if not self.is_halted:
            self.is_halted = True
            self.timer = math.inf
            self._effects.append(Halt(reason))

    # ---- time

    def drawn(self, seconds: float) -> float:
        """When a time-out ends that is drawn up to twice as long."""
        return self.now + seconds * (1 + self.jitter())

    def soon(self) -> float:
        return PROMPT * self.jitter()

    # ---- what leaves

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def send(self, to: int, request: Request) -> None:
        endpoints = self.voters.endpoints(to)
        if not endpoints and to == self.leader_id:
            endpoints = self.leader_endpoints
        self._effects.append(Send(to, request, endpoints[0] if endpoints else None))

    def commit(self, offset: int) -> None:
        """All below `offset` is committed; told when that is news."""
        if offset > self.committed:
            self.committed = offset
            self._effects.append(CommitAdvanced(offset))

    def saved(self, version: int) -> None:
        self._safe = max(self._safe, version)

    def take_effects(self) -> list[Effect]:
        """What this step asks for. Whatever others see waits until its epoch and vote are on stable storage.

        The state is saved first. That the leader is known is not waited for: who forgets it asks again, and an epoch is
        led by whom a majority voted for. BecameLeader does not wait: it changes this node's log alone, which nobody can
        read before; where others vote, their votes came behind the candidacy's save.
        """
        if self.is_halted:
            # Not even the state: the file that is missing would be there at the next start.
            return [effect for effect in self._effects if isinstance(effect, Halt)]
        state = ElectionState(
            self.leader_id if self.role is not Role.RESIGNED else self.local.id,
            self.epoch,
            self.voted.id if self.voted else -1,
            self.voted.directory_id if self.voted else NO_DIRECTORY,
        )
        out: list[Effect] = []
        if state != self._asked:
            self._version += 1
            before = self._asked
            if before is None or state[1:] != before[1:]:
                self._needed = self._version
            self._asked = state
            out.append(SaveState(self._version, state))
        for needed, effect in self._held:
            if needed <= self._safe and self._is_current(effect):
                out.append(effect)
        self._held = [(needed, effect) for needed, effect in self._held if needed > self._safe]
        for effect in self._effects:
            if isinstance(effect, LEAVING) and self._needed > self._safe:
                self._held.append((self._needed, effect))
            elif not isinstance(effect, BecameLeader) or (self.role is Role.LEADER and self.epoch == effect.epoch):
                out.append(effect)
        self._effects = []
        told = (self.leader_id, self.epoch, self.role is Role.LEADER)
        if told != self._told:
            self._told = told
            out.append(LeaderChanged(self.leader_id, self.epoch))
        return out

    def _is_current(self, effect: Effect) -> bool:
        """A request of an epoch that is over would be refused."""
        return not isinstance(effect, Send) or effect.request.epoch >= self.epoch
