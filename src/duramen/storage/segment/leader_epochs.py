"""Which leader epoch wrote which offsets of a log: the `leader-epoch-checkpoint` file (KIP-101)."""

from __future__ import annotations

import posixpath
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from duramen.errors import StorageError
from duramen.model import NO_EPOCH
from duramen.ports import Disk
from duramen.storage.files.atomic import read_file

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"


class EpochCache:
    """Ascending (epoch, start offset) pairs of one log."""

    __slots__ = ("_epochs", "_starts", "changed", "latest")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = NO_EPOCH
        """Highest epoch, -1 when there is none."""
        self.changed = False
        """Whether the file is behind."""

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def first(self) -> int:
        """Lowest epoch, -1 when there is none."""
        return self._epochs[0] if self._epochs else NO_EPOCH

    @property
    def latest_start(self) -> int:
        """Where the highest epoch starts, -1 when there is none."""
        return self._starts[-1] if self._starts else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` starts at `start_offset`. Entries that this contradicts (later epochs or offsets) are dropped.

        An epoch that is known keeps its start.
        """
        if epoch < 0 or epoch == self.latest:
            return
        keep = len(self._epochs)
        while keep and (self._epochs[keep - 1] >= epoch or self._starts[keep - 1] >= start_offset):
            keep -= 1
        del self._epochs[keep:]
        del self._starts[keep:]
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self._touched()

    def hold(self, epoch: int, offset: int) -> None:
        """A record of `epoch` is at `offset`: the epoch starts there at the latest, and what contradicts is dropped."""
        if epoch < 0 or self.epoch_at(offset) == epoch:
            return
        start = min([offset, *(known for each, known in self.entries if each == epoch)])
        before = [pair for pair in self.entries if pair[0] < epoch and pair[1] < start]
        behind = [pair for pair in self.entries if pair[0] > epoch and pair[1] > offset]
        pairs = [*before, (epoch, start), *behind]
        self._epochs, self._starts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self._touched()

    def epoch_at(self, offset: int) -> int:
        """Epoch that wrote the record at `offset`; -1 when it lies before the first known start."""
        found = bisect_right(self._starts, offset)
        return self._epochs[found - 1] if found else NO_EPOCH

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """OffsetForLeaderEpoch: the largest known epoch up to `epoch` and the offset behind its last record.

        (-1, -1) when nothing that old is known or `epoch` is newer than the latest one here.
        """
        if epoch < 0 or epoch > self.latest:
            return NO_EPOCH, -1
        if epoch == self.latest:
            return epoch, log_end
        later = bisect_right(self._epochs, epoch)
        if later == 0:
            return epoch, self._starts[0]  # as Kafka: everything before the first known epoch ends where that starts
        return self._epochs[later - 1], self._starts[later]

    def truncate_from_end(self, end_offset: int) -> None:
        """The log now ends at `end_offset`: forget epochs that start there or later."""
        keep = len(self._starts)
        while keep and self._starts[keep - 1] >= end_offset:
            keep -= 1
        if keep < len(self._starts):
            del self._epochs[keep:]
            del self._starts[keep:]
            self._touched()

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now starts at `start_offset`: the epoch that covers it starts there, earlier ones are forgotten."""
        first = bisect_right(self._starts, start_offset) - 1
        if first < 0 or (first == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:first]
        del self._starts[:first]
        self._starts[0] = start_offset
        self._touched()

    def _touched(self) -> None:
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH
        self.changed = True

    def encode(self) -> bytes:
        """The file's text: a version, the number of entries, one `epoch offset` a line."""
        lines = ["0", str(len(self._epochs)), *(f"{epoch} {start}" for epoch, start in self.entries)]
        return ("\n".join(lines) + "\n").encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> EpochCache:
        """Inverse of `encode`; StorageError when the text is damaged."""
        try:
            lines = data.decode("ascii").split("\n")
            pairs = [(int(a), int(b)) for a, b in (line.split(" ") for line in lines[2:-1])]
            if lines[0] != "0" or int(lines[1]) != len(pairs) or lines[-1]:
                raise ValueError("version, count or end")
        except (ValueError, IndexError) as error:
            raise StorageError(f"{LEADER_EPOCHS} is damaged: {error}") from None
        cache = cls()
        for epoch, start in pairs:
            if epoch <= cache.latest or (cache._starts and start < cache._starts[-1]) or start < 0:
                raise StorageError(f"{LEADER_EPOCHS} is damaged: epoch {epoch} at {start} is out of order")
            cache._epochs.append(epoch)
            cache._starts.append(start)
            cache.latest = epoch
        return cache


LARGEST_EPOCH: Final = 1 << 30
"""No partition is led so often, whatever a damaged file says."""


def latest_epoch(disk: Disk, home: str) -> int:
    """The latest leader epoch in a partition directory's checkpoint that can be one; -1 without. OSError."""
    known = read_epochs(disk, posixpath.join(home, LEADER_EPOCHS)) or ()
    return max((epoch for epoch, _ in known if epoch <= LARGEST_EPOCH), default=-1)


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]] | None:
    """(epoch, start offset) pairs of a leader-epoch-checkpoint, ascending; None when missing or damaged."""
    content = read_file(disk, path)
    if content is None:
        return None
    try:
        lines = content.decode("ascii").splitlines()
        if len(lines) < 2 or lines[0] != "0" or int(lines[1]) != len(lines) - 2:
            return None
        epochs = [(int(epoch), int(start)) for epoch, start in (line.split(" ") for line in lines[2:])]
    except ValueError:
        return None
    return epochs


def encode_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """A leader-epoch-checkpoint."""
    lines = [f"{epoch} {start}" for epoch, start in epochs]
    return ("\n".join(["0", str(len(lines)), *lines]) + "\n").encode()


Epochs = tuple[tuple[int, int], ...]
"""(leader epoch, start offset) pairs, ascending."""
