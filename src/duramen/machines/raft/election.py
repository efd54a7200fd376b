"""Elections, as one voter has them: whom it votes for, and how it stands itself (KIP-595, -996)."""

from __future__ import annotations

from duramen.errors import ErrorCode
from duramen.machines.raft.deliveries import Deliveries
from duramen.machines.raft.effects import Answer
from duramen.machines.raft.messages import VoteRequest, VoteResponse
from duramen.machines.raft.raft_state import RaftState
from duramen.machines.raft.roles import Happening, Role
from duramen.machines.raft.settings import PROMPT
from duramen.machines.raft.voters import ReplicaKey


class Election:
    """Votes that are given, and votes that are counted. Those are of one round: a pre-vote, or a candidacy."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._requests = Deliveries(state.settings.retry_backoff, state.settings.backoff_max)
        self._last = (-1, 0)
        self.granted: set[int] = set()
        self._refused: set[int] = set()
        self._unreachable: set[int] = set()
        self._is_lost = False

    # ---- votes given

    def receive(self, ticket: int, request: VoteRequest) -> None:
        state = self._state
        error, granted = ErrorCode.NONE, False
        if request.epoch < state.epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        elif request.voter != state.local:
            error = ErrorCode.INVALID_VOTER_KEY
        elif request.candidate.id == state.local.id:
            error = ErrorCode.INVALID_REQUEST
        else:
            state.hear(request.epoch, -1)
            granted = self._would_vote(request) if request.pre_vote else self._vote(request)
        if not state.is_halted:
            answer = VoteResponse(error, state.epoch, state.leader_id, granted, state.endpoints())
            state.emit(Answer(ticket, answer))

    def _has_enough(self, request: VoteRequest) -> bool:
        """Whether the candidate's log has all that this one has."""
        log = self._state.log
        return (request.last_epoch, request.last_offset) >= (log.latest_epoch, log.end_offset)

    def _would_vote(self, request: VoteRequest) -> bool:
        state = self._state
        if state.hears_leader or not self._has_enough(request):
            return False
        if state.may_stand and state.role is not Role.LEADER:
            # The other one goes first: two that stand in one epoch take each other's votes.
            state.timer = max(state.timer, state.now + PROMPT + state.soon())
        return True

    def _vote(self, request: VoteRequest) -> bool:
        state = self._state
        if state.voted is not None:
            return state.voted == request.candidate
        if state.leader_id >= 0 or state.role not in (Role.UNATTACHED, Role.PROSPECTIVE):
            return False
        if not self._has_enough(request):
            return False
        state.voted = request.candidate
        state.become(Happening.VOTED)
        return True

    # ---- votes asked for

    def ask_whether(self) -> None:
        """Begin a pre-vote; the role is PROSPECTIVE."""
        self._begin()

    def stand(self) -> None:
        """Begin a candidacy in an epoch of its own; the role is CANDIDATE."""
        state = self._state
        state.epoch += 1
        state.leader_id = -1
        state.leader_endpoints = ()
        state.voted = state.local
        self._begin()

    def _begin(self) -> None:
        state = self._state
        state.timer = state.drawn(state.settings.election_timeout)
        self._last = (state.log.latest_epoch, state.log.end_offset)
        self.granted = {state.local.id}
        self._refused = set()
        self._unreachable = set()
        self._is_lost = False
        self._requests.begin(voter.id for voter in state.voters.others(state.local.id))
        self.send_due()
        self._count()

    def end(self) -> None:
        self._requests.end()

    @property
    def deadline(self) -> float:
        return self._requests.deadline

    def send_due(self) -> None:
        for id in self._requests.take_due(self._state.now):
            self._state.send(id, self._request_to(id))

    def _request_to(self, id: int) -> VoteRequest:
        state = self._state
        voter = state.voters.by_id.get(id)
        key = voter.key if voter is not None else ReplicaKey(id, b"")
        return VoteRequest(state.epoch, state.local, key, *self._last, state.role is Role.PROSPECTIVE)

    def receive_reply(self, to: int, request: VoteRequest, response: VoteResponse | None) -> None:
        state = self._state
        if response is None:
            if self._is_asked_now(to, request):
                self._requests.lost(to, state.now)
                self._unreachable.add(to)
                self._count()
            return
        state.hear(response.epoch, response.leader_id, response.endpoints)
        if state.is_halted or not self._is_asked_now(to, request):
            return
        if response.leader_id == to == state.leader_id and not response.granted:
            state.become(Happening.LEADER_FOUND)  # it is alive, and says so itself
            return
        if response.granted and response.error is ErrorCode.NONE:
            self._requests.answered(to)
            self._refused.discard(to)
            self.granted.add(to)
        elif state.role is Role.PROSPECTIVE and state.is_leader_gone and response.leader_id >= 0:
            self._requests.again(to, state.now + (PROMPT + state.soon() * 4) / 5)  # it is yet to learn it
        elif response.error is ErrorCode.NONE:
            self._requests.answered(to)
            self._refused.add(to)
        else:
            self._requests.lost(to, state.now)
            self._unreachable.add(to)
        self._count()

    def _is_asked_now(self, to: int, request: VoteRequest) -> bool:
        """Whether the answer belongs to this round, and comes from a voter by id and directory id."""
        state = self._state
        return (
            state.role in (Role.PROSPECTIVE, Role.CANDIDATE)
            and state.voters.is_voter(request.voter)
            and request == self._request_to(to)
        )

    def _count(self) -> None:
        state = self._state
        voters = state.voters
        if not state.may_stand:
            return  # it stops
        if len(self.granted) >= voters.majority:
            won = Happening.PRE_VOTE_WON if state.role is Role.PROSPECTIVE else Happening.ELECTED
            state.become(won)
        elif len(voters) - len(self._refused) < voters.majority and self._others_hear_leader():
            state.become(Happening.LEADER_FOUND)
        elif len(voters) - len(self._refused | self._unreachable) < voters.majority and not self._is_lost:
            self._is_lost = True
            self._pause()

    def _others_hear_leader(self) -> bool:
        return self._state.role is Role.PROSPECTIVE and self._state.leader_id >= 0

    def _pause(self) -> None:
        """Ask all again after a pause that grows; whoever was not reached is tried in between, too."""
        state = self._state
        pause = min(state.settings.backoff_max, state.settings.election_timeout / 10 * 2 ** min(state.losses, 16))
        state.losses += 1
        state.timer = state.now + pause * state.jitter()
