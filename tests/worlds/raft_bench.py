"""One replica of the quorum on a bench: events go in one by one, effects are looked at, its log is a toy."""

from __future__ import annotations

from typing import TypeVar

from tests.worlds.raft_world import NOBODY, Entry, ToyLog

from duramen.errors import ErrorCode
from duramen.machines.raft import (
    Answer,
    BecameLeader,
    DeadlinePassed,
    Effect,
    ElectionState,
    Event,
    FetchRequest,
    FetchResponse,
    LogMoved,
    Raft,
    RaftSettings,
    Received,
    ReplicaKey,
    Replied,
    Request,
    Response,
    Role,
    SaveState,
    Send,
    Started,
    StateSaved,
    TakeRecords,
    Truncate,
    Voter,
    VoterEndpoint,
    VoteRequest,
    VoteResponse,
    Voters,
)

E = TypeVar("E")

SETTINGS = RaftSettings()
FORMATTED = ElectionState()


def key(id: int, disk: int = 0) -> ReplicaKey:
    return ReplicaKey(id, bytes([id, disk]) * 8)


def quorum(count: int) -> Voters:
    return Voters(Voter(*key(id), (VoterEndpoint("CONTROLLER", f"node{id}", 9093),)) for id in range(1, count + 1))


class RaftBench:
    """Node 1 of a quorum, or an observer beside it. `saves`: its state is on stable storage as soon as it is asked for.

    Records are appended, and the log cut, as the machine asks; `syncs`: and synced in the same moment.
    """

    def __init__(
        self,
        voters: int = 3,
        epochs: tuple[int, ...] = (),
        state: ElectionState | None = FORMATTED,
        id: int = 1,
        disk: int = 0,
        saves: bool = True,
        syncs: bool = True,
        jitter: float = 0.5,
        log: ToyLog | None = None,
    ) -> None:
        self.now = 100.0
        self.saves, self.syncs = saves, syncs
        self.log = log if log is not None else ToyLog(quorum(voters) if voters else NOBODY)
        for number, epoch in enumerate(epochs):
            self.log.append(Entry(epoch, number))
        self.log.durable_end = self.log.end_offset
        self.raft = Raft(key(id, disk), True, self.log, state, SETTINGS, lambda: jitter)
        self.effects: list[Effect] = []
        """Of the step before, those that it led to at once included."""
        self.version = 0
        self._ticket = 0

    def start(self) -> RaftBench:
        self.step(Started())
        return self

    # ---- events

    def step(self, event: Event) -> list[Effect]:
        self.effects = []
        waiting = [event]
        while waiting:
            for effect in self.raft.step(waiting.pop(0), self.now):
                self.effects.append(effect)
                waiting += self._execute(effect)
        return self.effects

    def _execute(self, effect: Effect) -> list[Event]:
        match effect:
            case SaveState(version, _):
                self.version = version
                return [StateSaved(version)] if self.saves else []
            case BecameLeader(epoch, _):
                return self._append(Entry(epoch, 1000 + epoch))
            case TakeRecords(response):
                assert isinstance(response.records, tuple)
                return self._append(*response.records)
            case Truncate(offset):
                self.log.cut(offset)
                return [LogMoved()]
        return []

    def _append(self, *entries: Entry) -> list[Event]:
        self.log.append(*entries)
        if self.syncs:
            self.log.durable_end = self.log.end_offset
        return [LogMoved()]

    def append(self, epoch: int = -1) -> None:
        waiting = self._append(Entry(epoch if epoch >= 0 else self.raft.epoch, self.log.end_offset))
        self.step(waiting[0])

    def sync(self) -> None:
        self.log.durable_end = self.log.end_offset
        self.step(LogMoved())

    def wait(self, seconds: float) -> None:
        """Time passes, and deadlines with it."""
        until = self.now + seconds
        effects: list[Effect] = []
        while self.raft.deadline <= until:
            self.now = max(self.now, self.raft.deadline)
            self.step(DeadlinePassed())
            effects += self.effects
        self.now = until
        self.effects = effects

    def wait_for_deadline(self) -> None:
        self.now = max(self.now, self.raft.deadline)
        self.step(DeadlinePassed())

    def receive(self, request: Request, sender: int = 2) -> Response | None:
        """A request comes in; the answer to it, if it leaves at once."""
        self._ticket += 1
        self.step(Received(self._ticket, sender, request))
        answers = [each.response for each in self.of(Answer) if each.ticket == self._ticket]
        return answers[0] if answers else None

    def reply(self, send: Send, response: Response | None) -> None:
        self.step(Replied(send.to, send.request, response))

    # ---- what was asked for

    def of(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def only(self, kind: type[E]) -> E:
        found = self.of(kind)
        assert len(found) == 1, (kind, self.effects)
        return found[0]

    def sent(self, kind: type[Request]) -> list[Send]:
        return [send for send in self.of(Send) if isinstance(send.request, kind)]

    def is_saved(self) -> None:
        self.step(StateSaved(self.version))

    # ---- what others say

    def vote_request(
        self, id: int = 2, epoch: int = 1, last_epoch: int = 9, offset: int = 9, pre_vote: bool = False
    ) -> VoteRequest:
        return VoteRequest(epoch, key(id), key(1), last_epoch, offset, pre_vote)

    def grant(self, send: Send, granted: bool = True, leader_id: int = -1) -> None:
        self.reply(send, VoteResponse(ErrorCode.NONE, send.request.epoch, leader_id, granted))

    def fetch(
        self, id: int = 2, offset: int = -1, epoch: int = -1, last: int = -1, hw: int = 1 << 40, wait: float = 0.5
    ) -> FetchRequest:
        """What another replica asks of this leader; by default from the end of its log."""
        offset = offset if offset >= 0 else self.log.end_offset
        last = last if last >= 0 else self.epoch_before(offset)
        return FetchRequest(key(id), epoch if epoch >= 0 else self.raft.epoch, offset, last, hw, wait, 1 << 20)

    def epoch_before(self, offset: int) -> int:
        return self.log.all()[offset - 1].epoch if 0 < offset <= self.log.end_offset else -1

    def answer_fetch(self, *epochs: int, hw: int = -1, send: Send | None = None) -> None:
        """The leader answers the Fetch that is under way with records of these epochs."""
        send = send or self.sent(FetchRequest)[-1]
        records = tuple(Entry(epoch, 500 + at) for at, epoch in enumerate(epochs))
        self.reply(send, FetchResponse(ErrorCode.NONE, send.to, send.request.epoch, hw, records))

    # ---- roles

    def to_prospective(self) -> list[Send]:
        """Nothing comes: it asks whether it would be elected."""
        while self.raft.role is not Role.PROSPECTIVE:
            self.wait_for_deadline()
        return self.sent(VoteRequest)

    def to_candidate(self) -> list[Send]:
        asked = self.to_prospective()
        for send in asked[: self.raft.voters.majority - 1]:
            self.grant(send)
        assert self.raft.role is Role.CANDIDATE
        return self.sent(VoteRequest)

    def to_leader(self) -> RaftBench:
        for send in self.to_candidate()[: self.raft.voters.majority - 1]:
            self.grant(send)
        assert self.raft.role is Role.LEADER
        return self

    def follow(self, leader: int = 2, epoch: int = 1) -> RaftBench:
        """A leader is found, and answered a Fetch."""
        self.start()
        self.wait_for_deadline()
        send = self.sent(FetchRequest)[0]
        self.reply(send, FetchResponse(ErrorCode.FENCED_LEADER_EPOCH, leader, epoch))
        assert self.raft.role is Role.FOLLOWER
        self.answer_fetch()
        return self


def role_of(bench: RaftBench) -> Role:
    """The role, for comparisons that mypy is not to remember."""
    return bench.raft.role
