"""How a replica that does not lead gets the log: by one Fetch after the other from the leader, once it has found it."""

from __future__ import annotations

import math

from duramen.errors import ErrorCode
from duramen.machines.raft.effects import ANYBODY, LoadSnapshot, TakeRecords, Truncate
from duramen.machines.raft.messages import FetchRequest, FetchResponse, SnapshotRequest, SnapshotResponse
from duramen.machines.raft.raft_log import OffsetEpoch, cut_for
from duramen.machines.raft.raft_state import RaftState
from duramen.machines.raft.roles import Role


class LogFetcher:
    """A follower's Fetches, and those by which a replica without a leader looks for one."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._in_flight: tuple[int, FetchRequest] | None = None
        self._next = math.inf
        """When to ask again; never, while something else has to come first."""
        self._pause = 0.0
        self._turn = 0
        self._moving_from = -1
        """The shell was asked to append or to cut at this end, which is about to be another one; -1: it was not."""
        self.loading: OffsetEpoch | None = None
        self._leader_high_watermark = -1
        self.first_told = -1
        """What a leader said is committed when one was heard for the first time; -1: none was. It is no less than what
        the process before this one knew: whoever leads has all that was committed in earlier epochs, and in its own one
        never says less than before.
        """

    @property
    def deadline(self) -> float:
        return self._next

    def begin(self) -> None:
        """The role is FOLLOWER or UNATTACHED."""
        self.end()
        self._pause = self._state.settings.retry_backoff
        if self._state.role is Role.FOLLOWER:
            self._ask()
        else:
            self._ask_later()  # most often the leader says by itself that there is one

    def end(self) -> None:
        self._in_flight = None
        self._next = math.inf
        self._moving_from = -1
        self.loading = None
        self._leader_high_watermark = -1

    # ---- asking

    def send_due(self) -> None:
        if self._next <= self._state.now:
            self._ask()

    def _ask(self) -> None:
        """Fetch from the own end, as soon as all below is on stable storage: that is what it acknowledges."""
        state = self._state
        self._next = math.inf
        if state.role not in (Role.FOLLOWER, Role.UNATTACHED):
            return
        if self._in_flight is not None or self._moving_from >= 0 or self.loading is not None:
            return
        log = state.log
        if log.durable_end < log.end_offset:
            return  # LogMoved says when
        is_follower = state.role is Role.FOLLOWER
        if not is_follower and state.voters.only(state.local):
            return  # nobody else could lead
        to = state.leader_id if is_follower else self._anybody()
        settings = state.settings
        request = FetchRequest(
            state.local,
            state.epoch,
            log.end_offset,
            log.latest_epoch,
            state.committed,
            settings.fetch_max_wait if is_follower else 0.0,
            settings.fetch_max_bytes,
        )
        self._in_flight = (to, request)
        state.send(to, request)

    def _anybody(self) -> int:
        """The other voters by turns; where none is known, a bootstrap server."""
        others = self._state.voters.others(self._state.local.id)
        self._turn += 1
        return others[self._turn % len(others)].id if others else ANYBODY

    def _ask_later(self) -> None:
        settings = self._state.settings
        self._next = self._state.now + self._pause
        self._pause = min(settings.backoff_max, self._pause * 2)

    # ---- answers

    def receive_reply(self, to: int, request: FetchRequest, response: FetchResponse | None) -> None:
        state = self._state
        asked = self._in_flight
        is_awaited = asked is not None and asked[1] == request and asked[0] in (to, ANYBODY)
        if is_awaited:
            self._in_flight = None
        if response is None:
            if is_awaited:
                self._ask_later()
            return
        state.hear(response.epoch, response.leader_id, response.endpoints)
        if state.is_halted or not is_awaited or self._in_flight is not None:
            return  # or what was heard began another Fetch
        if state.role is not Role.FOLLOWER or to != state.leader_id or response.epoch != state.epoch:
            self._ask_later()
        elif response.error is ErrorCode.NONE:
            self._heard_leader()
            self._take(request, response)
        elif response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER and response.leader_id != to:
            state.leader_is_gone(state.soon())  # it was restarted
            if state.role is Role.FOLLOWER:
                self._ask_later()
        else:
            self._ask_later()

    def _heard_leader(self) -> None:
        state = self._state
        self._pause = state.settings.retry_backoff
        state.has_fetched = True
        state.was_late = False
        state.losses = 0
        if not state.is_leader_gone:
            state.timer = self.time_out()

    def time_out(self) -> float:
        """When the leader has been silent for too long; not all followers say so at once."""
        state = self._state
        return state.now + state.settings.fetch_timeout * (1 + state.jitter() / 10)

    def _take(self, request: FetchRequest, response: FetchResponse) -> None:
        """The answer to the Fetch that was sent at this very end, in this epoch."""
        state = self._state
        log = state.log
        if (request.offset, request.last_epoch) != (log.end_offset, log.latest_epoch):
            self._ask()
        elif response.snapshot is not None:
            self._load(response.snapshot)
        elif response.diverging is not None:
            self._cut(response.diverging)
        else:
            self._leader_high_watermark = max(self._leader_high_watermark, response.high_watermark)
            if self.first_told < 0:
                self.first_told = response.high_watermark
            if response.records:
                self._moving_from = state.log.end_offset
                state.emit(TakeRecords(response))
            else:
                self._advance()
                self._ask()

    def _cut(self, diverging: OffsetEpoch) -> None:
        state = self._state
        offset = cut_for(state.log, diverging)
        committed = max(state.committed, state.log.start_offset)
        if offset < committed:
            state.halt(f"the leader of epoch {state.epoch} has other records below {committed}, the commit point")
        elif offset >= state.log.end_offset:
            self._ask_later()
        else:
            self._moving_from = state.log.end_offset
            state.emit(Truncate(offset))

    def _load(self, snapshot: OffsetEpoch) -> None:
        state = self._state
        if snapshot.offset < max(state.committed, state.log.start_offset):
            state.halt(
                f"the leader of epoch {state.epoch} has only a snapshot of {snapshot.offset}, and this log is "
                f"committed up to {max(state.committed, state.log.start_offset)}"
            )
            return
        self.loading = snapshot
        state.emit(LoadSnapshot(state.leader_id, snapshot))

    def receive_piece(self, to: int, request: SnapshotRequest, response: SnapshotResponse | None) -> None:
        """An answer on the way to a snapshot: the leader is heard."""
        state = self._state
        if response is None:
            return
        state.hear(response.epoch, response.leader_id, response.endpoints)
        if state.is_halted or state.role is not Role.FOLLOWER or to != state.leader_id:
            return
        if response.error is ErrorCode.NONE and response.epoch == request.epoch == state.epoch:
            self._heard_leader()

    def log_moved(self) -> None:
        state = self._state
        is_stuck = self._moving_from == state.log.end_offset
        self._moving_from = -1
        if self.loading is not None and state.log.start_offset >= self.loading.offset:
            self.loading = None
        if state.role is Role.FOLLOWER:
            self._advance()
        if is_stuck and self._next == math.inf:
            self._ask_later()  # it could not be appended or cut
        elif self._next == math.inf:
            self._ask()

    def failed(self) -> None:
        """The shell could not append what came, or not load the snapshot."""
        self.loading = None
        self._moving_from = -1
        if self._in_flight is None:
            self._ask_later()

    def _advance(self) -> None:
        """What the leader says is committed, as far as it is here."""
        state = self._state
        state.commit(max(min(self._leader_high_watermark, state.log.end_offset), self._snapshot_end()))

    def _snapshot_end(self) -> int:
        start = self._state.log.start_offset
        return start if start > 0 else -1
