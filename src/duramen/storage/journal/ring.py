"""The parts a journal goes round in: which are free, which are needed, how close it is to its bounds, how it grows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from duramen.errors import ErrorCode, KafkaError, StorageError, check
from duramen.storage.files.disk_full import is_disk_full
from duramen.storage.journal.parts import MIN_PART_BYTES, Part, PartMaker


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """Bounds, in bytes but for `entries`. Checkpoints begin well before `total` or `entries`, which refuse batches."""

    total: int = 256 << 20
    entries: int = 250_000
    part: int = 16 << 20
    first_part: int = 4 << 20
    bypass: int = 1 << 20

    def __post_init__(self) -> None:
        smallest = min(self.part, self.first_part)
        if smallest < MIN_PART_BYTES or self.total < self.first_part + self.part or self.bypass > smallest // 2:
            raise StorageError(
                f"a journal needs two parts of at least {MIN_PART_BYTES} bytes and of twice the bypass: {self}"
            )


class PartRing:
    """The parts of one journal and the LSNs that decide about them; `Journal` appends to the current one.

    next_lsn: of the next entry; durable_lsn, checkpoint_lsn, laps, failed: see Journal.
    """

    def __init__(self, maker: PartMaker, limits: JournalLimits, next_lsn: int, laps: int) -> None:
        self.limits = limits
        self.next_lsn = next_lsn
        self.durable_lsn = next_lsn - 1
        self.checkpoint_lsn = next_lsn
        self.laps = self._first_lap = laps
        self.failed: BaseException | None = None
        self.on_failed: Callable[[], None] = lambda: None
        """Called once, when the directory is fenced: whoever waits for it has to be told."""
        self.growth_error: BaseException | None = None
        self.no_room: OSError | None = None
        """Why batches are refused: files of the directory could not grow, and nobody has seen yet that they can."""
        self.give_way: Callable[[], bool] = lambda: False
        """Lets the directory's reserve go; whether there was one."""
        self._making_room = False
        self._leads_to_room = next_lsn - 1
        self.maker = maker
        self._recorded_lsn = next_lsn
        self._free: deque[Part] = deque()
        self._used: deque[Part] = deque()
        self._growing = False
        self._current: Part

    @contextmanager
    def making_room(self) -> Iterator[None]:
        """What is appended meanwhile leads to room: it is not refused for want of it, and the reserve gives way."""
        before, outer = self.next_lsn, self._making_room
        self._making_room = True
        try:
            yield
        finally:
            self._making_room = outer
            if self.next_lsn > before:
                self._leads_to_room = self.last_lsn

    def make_way(self) -> bool:
        """Where what is under way leads to room: let the reserve go; whether there was one."""
        return self._making_room and self.give_way()

    @property
    def refuses(self) -> bool:
        """Whether what is appended now would be refused for want of room."""
        return self.no_room is not None and not self._making_room

    @property
    def awaits_room(self) -> bool:
        """Whether something that leads to room waits for being written."""
        return self._leads_to_room > self.durable_lsn

    def start(self, first: Part) -> None:
        """Take the first part into use; from here on entries can be appended."""
        self._activate(first)

    def _activate(self, part: Part, before: Part | None = None) -> None:
        self.laps += 1
        part.start_lap(self.laps, self.next_lsn, before)
        self._current = part

    def _reusable(self, part: Part) -> bool:
        return part.last_lsn < self._recorded_lsn and part.last_lsn <= self.durable_lsn

    def _ensure_next_part(self, *, droppable: bool) -> None:
        """Have a part to go on in, growing on the spot if need be; a droppable entry is refused at the bound."""
        if self._free:
            return
        if droppable and self.size + self._growth_size > self.limits.total:
            raise self._full()
        try:
            self._free.append(self._grow())
        except OSError as error:
            self.growth_error = error
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no room for another journal part: {error}") from error
        self.growth_error = None

    def _grow(self) -> Part:
        try:
            return self.maker.make(self._growth_size)
        except OSError as error:
            if not (is_disk_full(error) and self.make_way()):
                raise
            return self.maker.make(self.limits.first_part)

    def _full(self) -> KafkaError:
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the journal is full ({self.size} bytes, {self.entries} entries): "
            "segments are synced too slowly; try again",
        )

    @property
    def _growth_size(self) -> int:
        """Bytes of the next part: the journal doubles until parts have their full size."""
        return min(self.limits.part, self.size)

    def _next_part(self) -> Part:
        before = self._current
        self._used.append(before)
        self._activate(self._free.popleft(), before)
        return self._current

    def take_growth(self) -> JournalGrowth | None:
        """A job that makes the next part off the loop, when one will be needed soon; else None."""
        current = self._current
        if (
            self._growing
            or self._free
            or self.failed is not None
            or self.no_room is not None
            or (self._used and current.position < current.capacity // 4)
            or self.size + self._growth_size > self.limits.total
        ):
            return None
        self._growing = True
        return JournalGrowth(self.maker, self._growth_size, self.maker.reserve())

    def complete_growth(self, job: JournalGrowth) -> None:
        """The new part may be used."""
        self._growing = False
        self.growth_error = None
        if job.part is not None:
            self._free.append(job.part)

    def fail_growth(self, job: JournalGrowth, error: BaseException) -> None:
        """No new part (the disk is full): what is there is recycled; nothing acknowledged depends on it."""
        self._growing = False
        self.growth_error = error

    def recycle(self, checkpoint_lsn: int) -> None:
        """Every entry below `checkpoint_lsn` is in synced segments: parts without later ones are free once the next
        group has recorded it."""
        check(checkpoint_lsn <= self.next_lsn, "a checkpoint covers entries that exist")
        self.checkpoint_lsn = max(self.checkpoint_lsn, checkpoint_lsn)

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return (
            self._current.capacity
            + sum(part.capacity for part in self._used)
            + sum(part.capacity for part in self._free)
        )

    @property
    def last_lsn(self) -> int:
        """LSN of the entry queued last."""
        return self.next_lsn - 1

    @property
    def entries(self) -> int:
        """Entries that a recovery would replay."""
        return self.next_lsn - self.checkpoint_lsn

    @property
    def fill(self) -> float:
        """How close the journal is to its bounds, 0 to 1: bytes or entries, whichever is closer."""
        parts = [part for part in self._used if part.last_lsn >= self.checkpoint_lsn]
        used = sum(part.capacity for part in parts)
        if self._current.last_lsn >= self.checkpoint_lsn:
            used += self._current.position
        return min(1.0, max(used / self.limits.total, self.entries / self.limits.entries))

    def close(self) -> None:
        """Close the part files; nothing is written."""
        parts = [*self._used, *self._free]
        if self.laps > self._first_lap:
            parts.append(self._current)
        for part in parts:
            part.file.close()


class JournalGrowth:
    """Makes one part; `run` on any thread, then Journal.complete_growth or fail_growth."""

    __slots__ = ("_maker", "_number", "_size", "part")

    def __init__(self, maker: PartMaker, size: int, number: int) -> None:
        self._maker = maker
        self._size = size
        self._number = number
        self.part: Part | None = None

    def run(self) -> None:
        """Preallocate and name the part; OSError when there is no room."""
        self.part = self._maker.make(self._size, self._number)
