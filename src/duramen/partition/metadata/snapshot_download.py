"""Gets a snapshot of the metadata log from the leader, piece by piece (FetchSnapshot, KIP-630)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from duramen.errors import DuramenError, ErrorCode, StorageError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata.image import MetadataImage
from duramen.machines.metadata.snapshot import Restoration
from duramen.machines.raft.messages import SnapshotRequest, SnapshotResponse
from duramen.machines.raft.raft_log import OffsetEpoch
from duramen.machines.raft.voters import ReplicaKey
from duramen.ports import Disk, Submit
from duramen.storage import SnapshotId, SnapshotPart
from duramen.wire.batch import Record

LANE: Final = "housekeeping"

Ask = Callable[[SnapshotRequest, Callable[["SnapshotResponse | None"], None]], None]
"""Sends a request to the leader; the callback gets its answer, None when it was lost."""


class SnapshotDownload:
    """One snapshot. done(image, error): the file has its name and is on stable storage, and what it holds; or why not.

    `give_up` ends it without a word.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        submit: Submit,
        local: ReplicaKey,
        epoch: int,
        snapshot: OffsetEpoch,
        piece_bytes: int,
        ask: Ask,
        done: Callable[[MetadataImage | None, DuramenError | None], None],
    ) -> None:
        self.snapshot = snapshot
        self._part = SnapshotPart(disk, directory, SnapshotId(*snapshot))
        self._submit = submit
        self._local = local
        self._epoch = epoch
        self._piece_bytes = piece_bytes
        self._ask = ask
        self._done = done
        self._over = False

    def start(self) -> None:
        self._run(self._part.begin(), self._next)

    def give_up(self) -> None:
        self._over = True

    def _run(self, work: Callable[[], object], then: Callable[[], None]) -> None:
        def done(_: Any, error: BaseException | None) -> None:
            if error is not None:
                self._end(None, error if isinstance(error, DuramenError) else StorageError(str(error)))
            elif not self._over:
                then()

        self._submit(LANE, work, done)

    def _next(self) -> None:
        request = SnapshotRequest(self._local, self._epoch, self.snapshot, self._part.size, self._piece_bytes)
        self._ask(request, self._answered)

    def _answered(self, answer: SnapshotResponse | None) -> None:
        if self._over:
            return
        if answer is None or answer.error is not ErrorCode.NONE:
            what = "no answer" if answer is None else answer.error.name
            self._end(None, StorageError(f"snapshot {SnapshotId(*self.snapshot).name}: {what}"))
            return
        data: Any = answer.data
        if answer.snapshot != self.snapshot or answer.position != self._part.size or (not data and answer.size):
            self._end(None, StorageError(f"snapshot {SnapshotId(*self.snapshot).name}: the answer is another piece"))
            return
        whole = answer.size
        self._run(self._part.append(data), lambda: self._written(whole))

    def _written(self, whole: int) -> None:
        if self._part.size < whole:
            self._next()
            return
        restoration = Restoration()

        def take(is_control: bool, record: Record) -> None:
            found = LogRecord(record.key, record.value)
            (restoration.take_control if is_control else restoration.take)(found)

        self._run(self._part.finish(take), lambda: self._end(restoration.finish(self.snapshot.offset), None))

    def _end(self, image: MetadataImage | None, error: DuramenError | None) -> None:
        if not self._over:
            self._over = True
            self._done(image, error)
