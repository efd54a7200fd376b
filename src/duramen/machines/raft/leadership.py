"""What a leader does in its epoch: it announces itself, serves Fetch, moves the commit point, and resigns in time."""

from __future__ import annotations

import math
from typing import NamedTuple

from duramen.errors import ErrorCode
from duramen.machines.raft.deliveries import Deliveries
from duramen.machines.raft.effects import Answer, BecameLeader, ReadLog, ReadSnapshot
from duramen.machines.raft.messages import (
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    FetchRequest,
    FetchResponse,
    SnapshotRequest,
    SnapshotResponse,
)
from duramen.machines.raft.raft_log import OffsetEpoch, compare
from duramen.machines.raft.raft_state import RaftState
from duramen.machines.raft.replica_progress import ReplicaProgress, ReplicaState
from duramen.machines.raft.roles import Happening, Role
from duramen.machines.raft.settings import CHECK_QUORUM
from duramen.machines.raft.voters import NO_DIRECTORY, ReplicaKey


class WaitingFetch(NamedTuple):
    """A Fetch that the leader has nothing for yet."""

    ticket: int
    request: FetchRequest
    until: float


class Leadership:
    """One replica's leaderships, one after the other; what is asked of it while it does not lead, it refuses."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._begins = Deliveries(state.settings.retry_backoff, state.settings.backoff_max)
        self._ends = Deliveries(state.settings.retry_backoff, state.settings.backoff_max)
        self._progress = ReplicaProgress(state.local, 0.0)
        self._parked: dict[ReplicaKey, WaitingFetch] = {}
        self._began_at = math.inf
        self.high_watermark = -1
        """-1 until something of this epoch is committed."""

    # ---- from the election to the resignation

    def begin(self, granted: set[int]) -> None:
        """The role is LEADER."""
        state = self._state
        state.leader_id = state.local.id
        state.losses = 0
        self._progress = ReplicaProgress(state.local, state.now)
        self._began_at = state.log.end_offset
        self.high_watermark = -1
        state.emit(BecameLeader(state.epoch, tuple(sorted(granted))))
        self._begins.begin(voter.id for voter in state.voters.others(state.local.id))
        self.send_due()

    def end(self) -> None:
        """The role is another one."""
        self._begins.end()
        parked, self._parked = self._parked, {}
        for fetch in parked.values():
            self._refuse(fetch.ticket, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def resign(self) -> None:
        """The role is RESIGNED: tell all others, the one with the longest log first in the list."""
        state = self._state
        state.leader_id = -1
        state.timer = state.drawn(state.settings.election_timeout) if state.may_stand else math.inf
        self._ends.begin(voter.id for voter in state.voters.others(state.local.id))
        self.send_due()

    def resigned_long_ago(self) -> None:
        """The role is another one than RESIGNED."""
        self._ends.end()

    def check_quorum(self) -> None:
        """Resign when no majority has fetched for too long."""
        if self._state.role is Role.LEADER and self._state.now >= self._quorum_lost_at():
            self._state.become(Happening.RESIGNS)

    def _quorum_lost_at(self) -> float:
        state = self._state
        return self._progress.majority_heard(state.voters) + CHECK_QUORUM * state.settings.fetch_timeout

    def excuse(self) -> None:
        """The own loop was late: what was sent to it was not read."""
        self._progress.excuse(self._state.now)

    @property
    def deadline(self) -> float:
        if self._state.role is Role.RESIGNED:
            return self._ends.deadline
        if self._state.role is not Role.LEADER:
            return math.inf
        parked = min((fetch.until for fetch in self._parked.values()), default=math.inf)
        return min(parked, self._begins.deadline, self._quorum_lost_at())

    # ---- BeginQuorumEpoch, EndQuorumEpoch

    def send_due(self) -> None:
        state = self._state
        for id in self._begins.take_due(state.now):
            state.send(id, self._begin_to(id))
        for id in self._ends.take_due(state.now):
            state.send(id, self._end_request())

    def _begin_to(self, id: int) -> BeginEpochRequest:
        state = self._state
        voter = state.voters.by_id.get(id)
        key = voter.key if voter is not None else ReplicaKey(id, NO_DIRECTORY)
        return BeginEpochRequest(state.epoch, state.local.id, key, state.voters.endpoints(state.local.id))

    def _end_request(self) -> EndEpochRequest:
        state = self._state
        own = state.voters.endpoints(state.local.id)
        return EndEpochRequest(state.epoch, state.local.id, self._progress.successors(state.voters), own)

    def receive_reply(
        self,
        to: int,
        request: BeginEpochRequest | EndEpochRequest,
        response: BeginEpochResponse | EndEpochResponse | None,
    ) -> None:
        state = self._state
        if response is not None:
            state.hear(response.epoch, response.leader_id, response.endpoints)
        if request.epoch != state.epoch:
            return
        deliveries = self._begins if isinstance(request, BeginEpochRequest) else self._ends
        if response is not None and response.error is ErrorCode.NONE:
            deliveries.answered(to)
        else:
            deliveries.lost(to, state.now)

    # ---- Fetch

    def receive_fetch(self, ticket: int, request: FetchRequest) -> None:
        state = self._state
        error = self._refusal(request)
        if error is not None:
            self._refuse(ticket, error)
            return
        replica = request.replica
        older = self._parked.pop(replica, None)
        if older is not None:
            self._answer_empty(older.ticket)
        if state.voters.is_voter(replica):
            state.was_late = False
            self._begins.answered(replica.id)
        found = compare(state.log, request.offset, request.last_epoch)
        if found.is_impossible:
            state.halt(f"replica {replica.id} needs a snapshot, and there is none that is whole")
        elif found.diverging is not None or found.snapshot is not None:
            self._progress.fetched(replica, state.now)
            self._answer(ticket, found.diverging, found.snapshot)
        else:
            end = state.log.end_offset
            self._progress.acknowledge(replica, request.offset, end, state.now)
            self._advance()
            if request.offset < end:
                state.emit(ReadLog(ticket, request.offset, request))
            elif self.high_watermark > request.high_watermark or request.max_wait <= 0:
                self._answer_empty(ticket)
            else:
                self._parked[replica] = WaitingFetch(ticket, request, state.now + request.max_wait)

    def _refusal(self, request: FetchRequest | SnapshotRequest) -> ErrorCode | None:
        state = self._state
        if request.epoch < state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if request.epoch > state.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if state.role is not Role.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if request.replica.id < 0 or request.replica == state.local:
            return ErrorCode.INVALID_REQUEST
        return None

    def _refuse(self, ticket: int, error: ErrorCode) -> None:
        state = self._state
        state.emit(Answer(ticket, FetchResponse(error, state.leader_id, state.epoch, endpoints=state.endpoints())))

    def _answer(self, ticket: int, diverging: OffsetEpoch | None, snapshot: OffsetEpoch | None) -> None:
        state = self._state
        answer = FetchResponse(
            ErrorCode.NONE,
            state.leader_id,
            state.epoch,
            self.high_watermark,
            None,
            diverging,
            snapshot,
            state.log.start_offset,
            state.endpoints(),
        )
        state.emit(Answer(ticket, answer))

    def _answer_empty(self, ticket: int) -> None:
        self._answer(ticket, None, None)

    def answer_parked(self) -> None:
        """There is nothing new, and who waits fetches again."""
        parked, self._parked = self._parked, {}
        for fetch in parked.values():
            self._answer_empty(fetch.ticket)

    def fetch_answer(self, request: FetchRequest, records: object) -> FetchResponse:
        """The answer to ReadLog, at the time when the records are there."""
        state = self._state
        error = self._refusal(request)
        if error is not None:
            return FetchResponse(error, state.leader_id, state.epoch, endpoints=state.endpoints())
        return FetchResponse(
            ErrorCode.NONE,
            state.leader_id,
            state.epoch,
            self.high_watermark,
            records,
            log_start=state.log.start_offset,
            endpoints=state.endpoints(),
        )

    # ---- FetchSnapshot

    def receive_snapshot_request(self, ticket: int, request: SnapshotRequest) -> None:
        state = self._state
        error = self._refusal(request)
        if error is not None:
            state.emit(Answer(ticket, self.snapshot_answer(request, error=error)))
            return
        self._progress.fetched(request.replica, state.now)
        state.emit(ReadSnapshot(ticket, request))

    def snapshot_answer(
        self, request: SnapshotRequest, size: int = 0, data: object = None, error: ErrorCode = ErrorCode.NONE
    ) -> SnapshotResponse:
        """The answer to ReadSnapshot, at the time when the piece is there."""
        state = self._state
        error = self._refusal(request) or error
        return SnapshotResponse(
            error, state.leader_id, state.epoch, request.snapshot, size, request.position, data, state.endpoints()
        )

    # ---- the commit point

    def log_moved(self) -> None:
        """More to read wakes who waits for it; more on stable storage may move the commit point."""
        end = self._state.log.end_offset
        for replica, fetch in list(self._parked.items()):
            if fetch.request.offset < end:
                del self._parked[replica]
                self._state.emit(ReadLog(fetch.ticket, fetch.request.offset, fetch.request))
        self._advance()

    def _advance(self) -> None:
        """An end counts that a majority has on stable storage, once it is beyond this epoch's own first record."""
        state = self._state
        end = min(self._progress.majority_end(state.voters, state.log.durable_end), state.log.end_offset)
        if end <= self._began_at or end <= self.high_watermark:
            return
        self.high_watermark = end
        state.commit(end)
        for replica, fetch in list(self._parked.items()):
            if fetch.request.high_watermark < end:
                del self._parked[replica]
                self._answer_empty(fetch.ticket)

    def answer_overdue(self) -> None:
        """Parked Fetches that waited long enough."""
        state = self._state
        for replica, fetch in list(self._parked.items()):
            if fetch.until <= state.now:
                del self._parked[replica]
                self._answer_empty(fetch.ticket)
        self._progress.forget_silent_observers(state.voters, state.now)

    def replica_states(self, now: float) -> list[ReplicaState]:
        return self._progress.states(self._state.voters, self._state.log.end_offset, now)
