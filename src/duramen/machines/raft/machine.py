"""The quorum of the metadata log, as one replica of it decides: events and time in, effects out.

KIP-595 (Raft by pull), -853 (voters stand in the log, by id and directory id), -996 (pre-vote) and -1166 (Fetch names
the commit point that is known), with what CLUSTER.md §3 adds: ends count when they are on stable storage, and a process
that is known to be gone is not waited for. Pure: the log is read, never changed; randomness is the constructor's
`jitter`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from duramen.errors import ErrorCode
from duramen.machines.raft.effects import Answer, Effect
from duramen.machines.raft.election import Election
from duramen.machines.raft.election_state import ElectionState
from duramen.machines.raft.events import (
    AnswerParked,
    AppendFailed,
    DeadlinePassed,
    Event,
    LogMoved,
    LoopWasLate,
    PeerDied,
    Received,
    Replied,
    SnapshotFailed,
    Started,
    StateSaved,
    Stopping,
)
from duramen.machines.raft.leadership import Leadership
from duramen.machines.raft.log_fetcher import LogFetcher
from duramen.machines.raft.messages import (
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    Endpoints,
    FetchRequest,
    FetchResponse,
    Request,
    Response,
    SnapshotRequest,
    SnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from duramen.machines.raft.raft_log import OffsetEpoch, RaftLog
from duramen.machines.raft.raft_state import RaftState
from duramen.machines.raft.replica_progress import ReplicaState
from duramen.machines.raft.roles import Happening, Role
from duramen.machines.raft.settings import PROMPT, RaftSettings
from duramen.machines.raft.voters import ReplicaKey, Voters


class Raft:
    """One replica in its quorum. The shell executes the effects of `step` in order, and hands in one event at a time.

    An effect may lead to an event at once (TakeRecords to LogMoved): that step comes when all effects are executed.
    """

    def __init__(
        self,
        local: ReplicaKey,
        is_controller: bool,
        log: RaftLog,
        state: ElectionState | None,
        settings: RaftSettings,
        jitter: Callable[[], float],
    ) -> None:
        self._state = RaftState(local, is_controller, log, state, settings, jitter)
        self._state.on_role = self._on_role
        self._election = Election(self._state)
        self._leadership = Leadership(self._state)
        self._fetcher = LogFetcher(self._state)
        self.deadline = math.inf
        """When DeadlinePassed is to be told; inf: never."""

    # ---- what the shell reads

    @property
    def role(self) -> Role:
        return self._state.role

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def leader_id(self) -> int:
        """-1: nobody is known."""
        return self._state.leader_id

    @property
    def leader_endpoints(self) -> Endpoints:
        return self._state.endpoints()

    @property
    def voters(self) -> Voters:
        return self._state.voters

    @property
    def high_watermark(self) -> int:
        """The commit point; -1: unknown, as that of a leader is until something of its own epoch is committed."""
        return self._leadership.high_watermark if self._state.role is Role.LEADER else self._state.committed

    @property
    def is_caught_up(self) -> bool:
        """Whether the commit point is at least what any process of this replica knew it to be before this one started.

        A follower hears of it before its own copy is on stable storage, so its own log may end below.
        """
        first_told = self._fetcher.first_told
        if self._state.role is Role.LEADER:
            return self.high_watermark >= 0
        return 0 <= first_told <= self._state.committed

    @property
    def loading(self) -> OffsetEpoch | None:
        """The snapshot that the log is to begin with. Once it is another one, or none, the log must not: what it got
        since then, and acknowledged, would be lost.
        """
        return self._fetcher.loading

    def replica_states(self, now: float) -> list[ReplicaState]:
        """What the leader knows of each replica; empty at all others."""
        return self._leadership.replica_states(now) if self._state.role is Role.LEADER else []

    def fetch_answer(self, request: FetchRequest, records: object) -> FetchResponse:
        """What to answer when the records of a ReadLog are there: who leads no more by then gives none away."""
        return self._leadership.fetch_answer(request, records)

    def snapshot_answer(
        self, request: SnapshotRequest, size: int = 0, data: object = None, error: ErrorCode = ErrorCode.NONE
    ) -> SnapshotResponse:
        """The same for ReadSnapshot."""
        return self._leadership.snapshot_answer(request, size, data, error)

    # ---- events

    def step(self, event: Event, now: float) -> list[Effect]:
        state = self._state
        if state.is_halted:
            return []
        state.now = max(state.now, now)
        match event:
            case Started():
                self._start()
            case DeadlinePassed():
                self._time_passed()
            case StateSaved(version):
                state.saved(version)
            case LogMoved():
                self._log_moved()
            case Received(ticket, _, request):
                self._receive(ticket, request)
            case Replied(to, request, response):
                self._receive_reply(to, request, response)
            case PeerDied(id):
                if id == state.leader_id:
                    state.leader_is_gone(state.soon())
            case AnswerParked():
                self._leadership.answer_parked()
            case LoopWasLate(seconds):
                self._loop_was_late(seconds)
            case Stopping():
                self._end(is_log_failed=False)
            case AppendFailed():
                self._end(is_log_failed=True)
            case SnapshotFailed():
                self._fetcher.failed()
        self.deadline = self._next_deadline()
        return state.take_effects()

    def _next_deadline(self) -> float:
        if self._state.is_halted:
            return math.inf
        return min(self._state.timer, self._election.deadline, self._leadership.deadline, self._fetcher.deadline)

    def _start(self) -> None:
        """Begin where the process before ended; what it led it leads no more (CLUSTER.md §3.2)."""
        state = self._state
        saved, log = state.saved_before, state.log
        if saved is None and state.is_controller and len(state.voters) and not state.voters.only(state.local):
            state.halt(
                "quorum-state is missing beside a log that has other voters: whom this one voted for is unknown. "
                "Restore the file, or move the metadata directory away and format it by `duramen cluster init` with "
                "--no-initial-controllers: it follows then, and does not vote"
            )
            return
        snapshot = log.latest_snapshot
        needs_snapshot = log.start_offset > 0 and not state.voters.only(state.local)
        if needs_snapshot and (snapshot is None or snapshot.offset < log.start_offset):
            state.halt(f"the metadata log begins at {log.start_offset}, and no snapshot of that end is whole")
            return
        if snapshot is not None:
            state.committed = snapshot.offset
        saved = saved or ElectionState(leader_epoch=max(0, log.latest_epoch))
        state.epoch = saved.leader_epoch
        if saved.voted_id >= 0:
            state.voted = ReplicaKey(saved.voted_id, saved.voted_directory_id)
        if log.latest_epoch > state.epoch:
            state.epoch, state.voted = log.latest_epoch, None  # of a sole voter's, which does not wait for the file
            saved = ElectionState(leader_epoch=state.epoch)
        if saved.leader_id == state.local.id:
            state.role = Role.RESIGNED
        elif saved.leader_id >= 0:
            state.leader_id = saved.leader_id
            state.role = Role.FOLLOWER
        if state.may_stand and state.voters.only(state.local):
            state.become(Happening.TIME_OUT)  # there is nobody to wait for
        else:
            self._on_role(Role.UNATTACHED)

    def _time_passed(self) -> None:
        state = self._state
        if state.timer <= state.now:
            state.timer = math.inf
            self._timed_out()
        self._leadership.check_quorum()
        self._leadership.answer_overdue()
        self._leadership.send_due()
        self._election.send_due()
        self._fetcher.send_due()

    def _timed_out(self) -> None:
        state = self._state
        if state.may_stand:
            state.become(Happening.TIME_OUT)
        elif state.role is Role.FOLLOWER:
            state.leader_id = -1
            state.become(Happening.LEADER_LOST)

    def _log_moved(self) -> None:
        state = self._state
        if state.role is Role.LEADER:
            self._leadership.log_moved()
        else:
            self._fetcher.log_moved()
        if state.role is Role.UNATTACHED and state.timer == math.inf and state.may_stand:
            state.timer = state.drawn(state.settings.election_timeout)  # a VotersRecord named this replica

    def _loop_was_late(self, seconds: float) -> None:
        """By half a time-out: what was sent in between counts as not yet heard, once (CLUSTER.md §15)."""
        state = self._state
        settings = state.settings
        is_fetching = state.role in (Role.FOLLOWER, Role.LEADER)
        time_out = settings.fetch_timeout if is_fetching else settings.election_timeout
        if seconds < time_out / 2 or state.was_late or state.is_leader_gone:
            return
        state.was_late = True
        if state.role is Role.LEADER:
            self._leadership.excuse()
        elif state.role is Role.FOLLOWER:
            state.timer = self._fetcher.time_out()
        elif state.timer < math.inf:
            state.timer = state.drawn(settings.election_timeout)

    def _end(self, is_log_failed: bool) -> None:
        """Stand no more: in good order, or because the log takes no more writes."""
        state = self._state
        if is_log_failed and state.role is not Role.LEADER:
            self._fetcher.failed()
            return
        state.may_stand_again = False
        if state.role is Role.LEADER:
            state.become(Happening.RESIGNS)

    # ---- messages

    def _receive(self, ticket: int, request: Request) -> None:
        match request:
            case VoteRequest():
                self._election.receive(ticket, request)
            case BeginEpochRequest():
                self._receive_begin(ticket, request)
            case EndEpochRequest():
                self._receive_end(ticket, request)
            case FetchRequest():
                self._leadership.receive_fetch(ticket, request)
            case SnapshotRequest():
                self._leadership.receive_snapshot_request(ticket, request)

    def _receive_reply(self, to: int, request: Request, response: Response | None) -> None:
        match request, response:
            case VoteRequest(), (VoteResponse() | None):
                self._election.receive_reply(to, request, response)
            case ((BeginEpochRequest() | EndEpochRequest()), (BeginEpochResponse() | EndEpochResponse() | None)):
                self._leadership.receive_reply(to, request, response)
            case FetchRequest(), (FetchResponse() | None):
                self._fetcher.receive_reply(to, request, response)
            case SnapshotRequest(), (SnapshotResponse() | None):
                self._fetcher.receive_piece(to, request, response)

    def _receive_begin(self, ticket: int, request: BeginEpochRequest) -> None:
        state = self._state
        error = ErrorCode.NONE
        if request.epoch < state.epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        elif request.voter != state.local:
            error = ErrorCode.INVALID_VOTER_KEY
        else:
            state.hear(request.epoch, request.leader_id, request.endpoints)
            if state.is_halted:
                return
            if state.role is Role.PROSPECTIVE and state.leader_id == request.leader_id:
                state.become(Happening.LEADER_FOUND)
            elif state.role is Role.FOLLOWER:
                state.prompt_until = -math.inf
                state.timer = self._fetcher.time_out()
        state.emit(Answer(ticket, BeginEpochResponse(error, state.epoch, state.leader_id, state.endpoints())))

    def _receive_end(self, ticket: int, request: EndEpochRequest) -> None:
        state = self._state
        error = ErrorCode.NONE
        if request.epoch < state.epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        else:
            state.hear(request.epoch, -1)
            if state.leader_id in (-1, request.leader_id):
                place = self._place(request.successors)
                state.leader_is_gone(0.0 if place == 0 else PROMPT * place + state.soon())
        state.emit(Answer(ticket, EndEpochResponse(error, state.epoch, state.leader_id, state.endpoints())))

    def _place(self, successors: tuple[ReplicaKey, ...]) -> int:
        local = self._state.local
        return successors.index(local) if local in successors else len(successors)

    # ---- roles

    def _on_role(self, before: Role) -> None:
        """Set up what the new role needs, and end what the one before did."""
        state = self._state
        role = state.role
        if before is Role.LEADER:
            self._leadership.end()
        if before is Role.RESIGNED and role is not Role.RESIGNED:
            self._leadership.resigned_long_ago()
        if role not in (Role.PROSPECTIVE, Role.CANDIDATE):
            self._election.end()
        if role not in (Role.FOLLOWER, Role.UNATTACHED):
            self._fetcher.end()
        match role:
            case Role.UNATTACHED:
                state.prompt_until = -math.inf
                state.timer = state.drawn(state.settings.election_timeout) if state.may_stand else math.inf
                self._fetcher.begin()
            case Role.FOLLOWER:
                state.prompt_until = -math.inf
                state.has_fetched = False
                state.timer = self._fetcher.time_out()
                self._fetcher.begin()
            case Role.PROSPECTIVE:
                self._election.ask_whether()
            case Role.CANDIDATE:
                self._election.stand()
            case Role.LEADER:
                state.timer = math.inf
                self._leadership.begin(self._election.granted)
            case Role.RESIGNED:
                self._leadership.resign()
