"""This node's part of the metadata quorum: what `machines/raft` decides, done to the log and to `quorum-state`.

Raft says what to append, cut, send and answer; here are the metadata partition, the file of the election state and the
clock. Whoever has a network carries the messages (`server/quorum`); a sole voter needs none.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, cast

from duramen.config import BrokerConfig
from duramen.errors import CorruptLogError, DuramenError, ErrorCode, KafkaError, StorageError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata.image import MetadataImage
from duramen.machines.raft import effects, events
from duramen.machines.raft.election_state import ElectionState
from duramen.machines.raft.machine import Raft
from duramen.machines.raft.messages import FetchRequest, FetchResponse, SnapshotRequest
from duramen.machines.raft.raft_log import OffsetEpoch
from duramen.machines.raft.replica_progress import ReplicaState
from duramen.machines.raft.roles import Role
from duramen.machines.raft.settings import RaftSettings
from duramen.machines.raft.voters import ReplicaKey, VoterEndpoint, Voters
from duramen.model import topic_id_text
from duramen.partition.host.replay import bytes_of
from duramen.partition.metadata.leadership_proof import LeadershipProof
from duramen.partition.metadata.metadata_partition import MetadataPartition
from duramen.partition.metadata.quorum_records import opening_records, voters_in, voters_of_image
from duramen.partition.metadata.snapshot_download import SnapshotDownload
from duramen.partition.metadata.snapshots import Report, Snapshots
from duramen.partition.store.store import Store
from duramen.ports import Timer, World
from duramen.storage import QUORUM_STATE_LANE, QuorumState, SnapshotId, WriteQuorumStateJob, read_piece, truncate_log
from duramen.wire.batch import batches, build_batch, check_crc

LATE: Final = 0.5
"""Of the election time-out: a loop that comes so late to its timer has read nothing for as long."""


class QuorumNetwork(Protocol):
    """Carries what raft sends."""

    def send(
        self, to: int, endpoint: Any, request: Any, seconds: float, on_reply: Callable[[Any | None], None]
    ) -> None:
        """Send to that node, or (-1) to one of the bootstrap servers; `on_reply(None)`: lost."""

    def close(self) -> None:
        """Nothing is sent any more."""


class NoPeers:
    """Of a sole voter."""

    def send(
        self, to: int, endpoint: Any, request: Any, seconds: float, on_reply: Callable[[Any | None], None]
    ) -> None:
        on_reply(None)

    def close(self) -> None:
        pass


class QuorumLogView:
    """The metadata partition as raft reads it."""

    def __init__(self, partition: MetadataPartition, snapshots: Snapshots, voters: Voters) -> None:
        self._log = partition.log
        self._snapshots = snapshots
        self.voters = voters

    @property
    def start_offset(self) -> int:
        return self._log.start_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def durable_end(self) -> int:
        return min(self._log.durable_end, self._log.end_offset)

    @property
    def latest_epoch(self) -> int:
        return max(self._log.epochs.latest, self._snapshot_epoch(self.end_offset))

    def end_of_epoch(self, epoch: int) -> OffsetEpoch:
        log = self._log
        if epoch >= log.epochs.latest:
            return OffsetEpoch(log.end_offset, self.latest_epoch) if epoch >= self.latest_epoch else self._first(epoch)
        found, end = log.epochs.end_offset_for(epoch, log.end_offset)
        # Of an epoch before its first one the log says that it ends at its start, and has nothing of it.
        return OffsetEpoch(end, found) if found >= 0 and end > log.start_offset else self._first(epoch)

    def _first(self, epoch: int) -> OffsetEpoch:
        """Nothing in the log is so old; the snapshot that it begins with may be."""
        known = self._snapshot_epoch(self.start_offset)
        return OffsetEpoch(self.start_offset, known) if 0 <= known <= epoch else OffsetEpoch(0, -1)

    def _snapshot_epoch(self, offset: int) -> int:
        return next((each.epoch for each in self._snapshots.kept if each.offset == offset), -1)

    @property
    def latest_snapshot(self) -> OffsetEpoch | None:
        kept = [each for each in self._snapshots.kept if each.offset > 0]  # the one that init wrote is nobody else's
        return OffsetEpoch(*kept[-1]) if kept else None


class Quorum:
    """Of one node. Loop thread only.

    on_leader: called when another node leads, or another epoch has begun: (leader id or -1, epoch). on_opened: this
    node leads, and has appended the records that open its epoch: (records, offset after them). on_caught_up: called
    once, when the commit point is no less than any earlier process of this node knew it to be. on_halt: it must not go
    on, and why.
    """

    def __init__(
        self,
        world: World,
        store: Store,
        partition: MetadataPartition,
        snapshots: Snapshots,
        local: ReplicaKey,
        voters: Voters,
        state: QuorumState | None,
        config: BrokerConfig,
        report: Report,
    ) -> None:
        self._world = world
        self._clock = world.clock
        self._store = store
        self._partition = partition
        self._report = report
        self.local = local
        self.network: QuorumNetwork = NoPeers()
        self.on_leader: Callable[[int, int], None] = lambda leader_id, epoch: None
        self.on_opened: Callable[[list[LogRecord], int], None] = lambda records, end: None
        self.on_restart: Callable[[MetadataImage], None] = lambda image: None
        self.on_caught_up: Callable[[], None] = lambda: None
        self._is_caught_up = False
        self.on_halt: Callable[[str], None] = lambda reason: None
        self.recorded_voters: Voters | None = None
        """Those whom the log names, committed or not."""
        self.first_voters: Voters | None = None
        """Those whom init named, until the log names some."""
        self._log = QuorumLogView(partition, snapshots, voters)
        self._snapshots = snapshots
        self._download: SnapshotDownload | None = None
        self._piece_bytes = config.integer("controller.quorum.fetch.snapshot.max.bytes")
        """Of a snapshot, at a time."""
        self._settings = _settings(config)
        known = None if state is None else ElectionState(*state)
        jitter = partial(world.entropy.uniform, 0.0, 1.0)
        is_controller = "controller" in config.strings("process.roles")
        self.raft = Raft(local, is_controller, self._log, known, self._settings, jitter)
        self._timer: Timer | None = None
        self._due = math.inf
        self._queue: deque[events.Event] = deque()
        self._stepping = False
        self._look_scheduled = False
        self._tickets: dict[int, Callable[[Any], None]] = {}
        self._last_ticket = 0
        self._proof = LeadershipProof()
        self._saving = False
        self._to_save: effects.SaveState | None = None
        self.halted: str | None = None

    # ---- what others ask ---------------------------------------------------------------------------------------

    @property
    def voters(self) -> Voters:
        return self._log.voters

    @property
    def is_sole_voter(self) -> bool:
        return self.voters.only(self.local)

    @property
    def is_leader(self) -> bool:
        return self.raft.role is Role.LEADER

    @property
    def leader_id(self) -> int:
        return self.raft.leader_id

    @property
    def leader_endpoint(self) -> VoterEndpoint | None:
        """Where the leader is reached; None while it is not known."""
        return next(iter(self.raft.leader_endpoints), None)

    @property
    def epoch(self) -> int:
        return self.raft.epoch

    def replica_states(self) -> list[ReplicaState]:
        """How far each replica is, as the leader knows it; empty on all others."""
        return self.raft.replica_states(self._clock.monotonic())

    # ---- what happens ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The log is open, and what init or an earlier start left is known."""
        self._partition.on_durable = self._log_moved
        self._partition.on_appended = self._look_soon
        self._tell_lost_vote()
        self.step(events.Started())

    def received(self, request: Any, answer: Callable[[Any], None], via: object = None) -> None:
        """A request of another replica; `answer(response)` once, unless this node stops. via: its connection."""
        is_fetch = isinstance(request, FetchRequest) and self.is_leader and request.epoch == self.epoch
        if is_fetch and via is not None:
            self._proof.fetched(request.replica, via)
            answer = partial(self._fetch_answered, request.replica, via, answer)
        self._last_ticket += 1
        self._tickets[self._last_ticket] = answer
        self.step(events.Received(self._last_ticket, -1, request))
        if is_fetch:
            self._proof.settle(self.voters, self.local)
            if self._proof.lacks_answer(request.replica):
                self.step(events.AnswerParked())

    def _fetch_answered(self, replica: ReplicaKey, via: object, answer: Callable[[Any], None], response: Any) -> None:
        if self.is_leader and response.error is ErrorCode.NONE and response.epoch == self.epoch:
            self._proof.answered(replica, via)
        answer(response)

    def confirm(self, done: Callable[[bool], None]) -> None:
        """`done(True)` once it is certain that this node still led when it was asked; else `done(False)`."""
        if not self.is_leader or self.is_sole_voter:
            done(self.is_leader)
            return
        self._proof.ask(done)
        self.step(events.AnswerParked())

    def stop(self) -> None:
        """Give up the leadership, if this node has it, and ask for nothing more."""
        self.step(events.Stopping())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def halt(self, reason: str) -> None:
        """This node must not go on."""
        if self.halted is None:
            self._halt(effects.Halt(reason))

    def append_failed(self) -> None:
        """The log takes no more writes."""
        self.step(events.AppendFailed())

    def step(self, event: events.Event) -> None:
        """Let raft decide, and do what it says. What happens meanwhile is decided afterwards."""
        self._queue.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._queue and self.halted is None:
                for effect in self.raft.step(self._queue.popleft(), self._clock.monotonic()):
                    _DO[type(effect)](self, effect)
        finally:
            self._stepping = False
        self._set_timer()
        if not self._is_caught_up and self.raft.is_caught_up and self.halted is None:
            self._is_caught_up = True
            self.on_caught_up()

    def _log_moved(self) -> None:
        self.step(events.LogMoved())

    def _look_soon(self) -> None:
        """After an append of this node's own: when whoever appends is done."""
        if not self._look_scheduled and not self.is_sole_voter:
            self._look_scheduled = True
            self._clock.call_last(self._look)

    def _look(self) -> None:
        self._look_scheduled = False
        self.step(events.LogMoved())

    # ---- time --------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        due = self.raft.deadline if self.halted is None else math.inf
        if self._timer is not None:
            if self._due <= due:
                return  # it rings early at most, and looks again
            self._timer.cancel()
            self._timer = None
        if due < math.inf:
            self._due = due
            self._timer = self._clock.call_later(max(due - self._clock.monotonic(), 0.0), self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        late = now - self._due
        if late >= LATE * self._settings.election_timeout:
            self.step(events.LoopWasLate(late))
        if now >= self.raft.deadline:
            self.step(events.DeadlinePassed())
        else:
            self._set_timer()

    # ---- what raft asks for ------------------------------------------------------------------------------------

    def _save(self, effect: effects.SaveState) -> None:
        self._to_save = effect
        if not self._saving:
            self._write_state()

    def _write_state(self) -> None:
        wanted, self._to_save = self._to_save, None
        if wanted is None:
            return
        self._saving = True
        job = WriteQuorumStateJob(self._world.disk, self._partition.log.path, QuorumState(*wanted.state))

        def done(_: Any, error: BaseException | None) -> None:
            self._saving = False
            if error is None:
                self.step(events.StateSaved(wanted.version))
            elif self.is_sole_voter:  # whose next epoch follows from its log
                self._report("quorum-state-not-written", error=error)
            else:
                self._halt(effects.Halt(f"{job.folder}: quorum-state cannot be written: {error}"))
            self._write_state()

        self._store.submit(QUORUM_STATE_LANE, job.run, done)

    def _send(self, effect: effects.Send) -> None:
        to, request, endpoint = effect

        def replied(response: Any | None) -> None:
            self.step(events.Replied(to, request, response))

        self.network.send(to, endpoint, request, self._settings.request_timeout, replied)

    def _answer(self, effect: effects.Answer) -> None:
        answer = self._tickets.pop(effect.ticket, None)
        if answer is not None:
            answer(effect.response)

    def _open_epoch(self, effect: effects.BecameLeader) -> None:
        partition, now = self._partition, self._clock.wall_ms()
        partition.lead_quorum(effect.epoch)
        records = opening_records(self.local, self.voters, effect.granted, self.recorded_voters)
        rows = [(record.key, record.value, (), now) for record in records]
        try:
            end = partition.append_local(build_batch(rows, control=True), now)
        except (OSError, DuramenError) as error:
            if self.is_sole_voter:
                raise  # it would wait for nobody: the start says why
            self._report("quorum-epoch-not-opened", epoch=effect.epoch, error=error)
            self._queue.append(events.AppendFailed())
            return
        self.recorded_voters = self.voters
        self._queue.append(events.LogMoved())
        self.on_opened(records, end)

    def _take(self, effect: effects.TakeRecords) -> None:
        partition = self._partition
        data = memoryview(cast(bytes, effect.response.records))
        try:
            for start, header in batches(data):
                view = data[start : start + header.size]
                if not check_crc(view, header):
                    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{partition.tp}: bad CRC at {header.base_offset}")
                named = list(voters_in(view, header))
                if named and not self._is_founded_by(named[0]):
                    break  # nothing of this is stored: the next start must find out, too
                partition.append_as_follower(view, header, self._clock.wall_ms())
                for voters in named:
                    self._follow_voters(voters)
        except (OSError, DuramenError) as error:
            self._report("metadata-not-followed", error=error)
            self._queue.append(events.AppendFailed())
        self._queue.append(events.LogMoved())

    def _truncate(self, effect: effects.Truncate) -> None:
        try:
            truncate_log(self._partition.log, effect.offset)
            self._partition.touched()
        except (OSError, DuramenError) as error:
            self._report("metadata-not-truncated", offset=effect.offset, error=error)
        self._queue.append(events.LogMoved())

    def _load(self, effect: effects.LoadSnapshot) -> None:
        if self._download is not None:
            if self._download.snapshot == effect.snapshot:
                return
            self._download.give_up()
        leader_id, snapshot, epoch = effect.leader_id, effect.snapshot, self.raft.epoch
        endpoint = next(iter(self.raft.leader_endpoints), None)

        def ask(request: SnapshotRequest, on_answer: Callable[[Any | None], None]) -> None:
            def replied(response: Any | None) -> None:
                self.step(events.Replied(leader_id, request, response))
                on_answer(response)

            self.network.send(leader_id, endpoint, request, self._settings.request_timeout, replied)

        def done(image: MetadataImage | None, error: DuramenError | None) -> None:
            self._download = None
            if self.raft.loading != snapshot:
                return  # another leader has sent records since, and these are acknowledged
            if image is not None:
                try:
                    self._restart(snapshot, image)
                    return
                except (OSError, DuramenError) as failed:
                    error = failed if isinstance(failed, DuramenError) else StorageError(str(failed))
            self._report("snapshot-not-loaded", offset=snapshot.offset, epoch=snapshot.epoch, error=error)
            self.step(events.SnapshotFailed())

        self._download = SnapshotDownload(
            self._world.disk,
            self._partition.log.path,
            self._store.submit,
            self.local,
            epoch,
            snapshot,
            self._piece_bytes,
            ask,
            done,
        )
        self._report("snapshot-loading", offset=snapshot.offset, epoch=snapshot.epoch, leader=leader_id)
        self._download.start()

    def _restart(self, snapshot: OffsetEpoch, image: MetadataImage) -> None:
        """The snapshot is on stable storage: the log begins anew after it, and the image with what it holds."""
        self._snapshots.adopt(SnapshotId(*snapshot))
        self._partition.begin_at(self._store.home(self._partition.tp), snapshot.offset)
        self._follow_voters(voters_of_image(image))
        self._report("snapshot-loaded", offset=snapshot.offset, epoch=snapshot.epoch)
        self.on_restart(image)  # before the reader hears that more is committed: what it would read next is gone
        self._partition.commit(snapshot.offset)
        self.step(events.LogMoved())

    def _commit(self, effect: effects.CommitAdvanced) -> None:
        self._partition.commit(effect.offset)

    def _leader_changed(self, effect: effects.LeaderChanged) -> None:
        if self.raft.role is not Role.LEADER:
            self._partition.replication.resign(effect.leader_id, effect.epoch)
        if not self.is_sole_voter:
            self._report("quorum-leader", leader=effect.leader_id, epoch=effect.epoch)
        self._proof.lost()
        self.on_leader(effect.leader_id, effect.epoch)

    def _read(self, effect: effects.ReadLog) -> None:
        log, request = self._partition.log, effect.request
        try:
            found = log.read(effect.offset, request.max_bytes, log.end_offset, at_least_one=True)
            records: Any = b"".join(map(bytes_of, found.parts))
        except (OSError, DuramenError) as error:
            self._report("metadata-not-read", offset=effect.offset, error=error)
            code = ErrorCode.CORRUPT_MESSAGE if isinstance(error, CorruptLogError) else ErrorCode.KAFKA_STORAGE_ERROR
            failed = FetchResponse(code, self.raft.leader_id, self.raft.epoch)
            self._answer(effects.Answer(effect.ticket, failed))
            return
        self._answer(effects.Answer(effect.ticket, self.raft.fetch_answer(request, records)))

    def _read_snapshot(self, effect: effects.ReadSnapshot) -> None:
        ticket, request = effect
        wanted = SnapshotId(*request.snapshot)
        if wanted not in self._snapshots.kept:
            answer = self.raft.snapshot_answer(request, error=ErrorCode.SNAPSHOT_NOT_FOUND)
            self._answer(effects.Answer(ticket, answer))
            return
        length = min(request.max_bytes, self._piece_bytes)
        work = partial(read_piece, self._world.disk, self._partition.log.path, wanted, request.position, length)

        def read(found: tuple[int, bytes], error: BaseException | None) -> None:
            if error is not None:
                gone = isinstance(error, FileNotFoundError)
                code = ErrorCode.SNAPSHOT_NOT_FOUND if gone else ErrorCode.KAFKA_STORAGE_ERROR
                answer = self.raft.snapshot_answer(request, error=code)
            else:
                size, data = found
                outside = not 0 <= request.position < max(size, 1)
                code = ErrorCode.POSITION_OUT_OF_RANGE if outside else ErrorCode.NONE
                answer = self.raft.snapshot_answer(request, size, data, code)
            self._answer(effects.Answer(ticket, answer))

        self._store.submit("housekeeping", work, read)

    def _is_founded_by(self, voters: Voters) -> bool:
        """Whether the first voters that the leader's log names are those of this node's init; halts where not."""
        first, self.first_voters = self.first_voters, None
        if first is None or first.keys == voters.keys:
            return True
        self._halt(
            effects.Halt(
                f"{self._partition.log.path}: this node was formatted with the voters {_in_full(first)}, and its "
                f"cluster began with {_in_full(voters)}: move its directories away and format it by `duramen cluster "
                "init` with --no-initial-controllers; with the --initial-controllers of the others only if it never "
                "was in their cluster, for a voter with an empty log could elect one without what is committed"
            )
        )
        return False

    def _follow_voters(self, voters: Voters | None) -> None:
        """The leader's log names these."""
        if voters is not None and not self._is_founded_by(voters):
            return
        self.recorded_voters = voters
        if voters is not None:
            self._log.voters = voters
            self._tell_lost_vote()

    def _tell_lost_vote(self) -> None:
        """This node's id is that of a voter with another directory: what voted before is not here."""
        voter = self.voters.by_id.get(self.local.id)
        if voter is not None and not self.voters.is_voter(self.local):
            self._report(
                "quorum-not-a-voter",
                directory=topic_id_text(self.local.directory_id),
                voter=topic_id_text(voter.directory_id),
                remedy="this node follows and does not vote; put the voter's metadata directory back if it is there",
            )

    def _halt(self, effect: effects.Halt) -> None:
        self.halted = effect.reason
        self._set_timer()
        self._report("quorum-halted", reason=effect.reason)
        self.on_halt(effect.reason)


def _in_full(voters: Voters) -> str:
    """As --initial-controllers has them, without their addresses."""
    return ",".join(f"{voter.id}:{topic_id_text(voter.directory_id)}" for voter in voters)


_DO: Final[dict[type, Callable[[Quorum, Any], None]]] = {
    effects.SaveState: Quorum._save,
    effects.Send: Quorum._send,
    effects.Answer: Quorum._answer,
    effects.BecameLeader: Quorum._open_epoch,
    effects.TakeRecords: Quorum._take,
    effects.Truncate: Quorum._truncate,
    effects.LoadSnapshot: Quorum._load,
    effects.CommitAdvanced: Quorum._commit,
    effects.LeaderChanged: Quorum._leader_changed,
    effects.ReadLog: Quorum._read,
    effects.ReadSnapshot: Quorum._read_snapshot,
    effects.Halt: Quorum._halt,
}


def _settings(config: BrokerConfig) -> RaftSettings:
    return RaftSettings(
        election_timeout=config.integer("controller.quorum.election.timeout.ms") / 1000,
        fetch_timeout=config.integer("controller.quorum.fetch.timeout.ms") / 1000,
        backoff_max=config.integer("controller.quorum.election.backoff.max.ms") / 1000,
        request_timeout=config.integer("controller.quorum.request.timeout.ms") / 1000,
        retry_backoff=config.integer("controller.quorum.retry.backoff.ms") / 1000,
        fetch_max_bytes=config.integer("controller.quorum.fetch.max.bytes"),
    )
