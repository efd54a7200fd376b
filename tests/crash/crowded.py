"""Lives on a volume that others fill, too, with a reserve for what makes room (decision 0013).

As the engine does it (`partition/store/disk_full.py`, `partition/store/maintenance.py`), but for its clock: the reserve
is made by the lane of maintenance, and given up for what makes room. Nobody resets anything by hand when there is room
again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tests.crash.lives import Life
from tests.crash.promises import require
from tests.crash.session import DATA
from tests.crash.stepping import SteppedDisk

from duramen.errors import StorageError
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.files.ballast import release_ballast
from duramen.storage.files.disk_full import NoRoomError, is_disk_full, without_traceback

PLENTY = 1 << 40
"""Bytes of a volume that nobody fills."""
LEFT = (0, 200, 3000, 20_000, 90_000)
"""Bytes that others leave free."""
RESERVES = (0, 16_000, 64_000)
"""Bytes that are kept; a life has one of these."""
CANNOT_WAIT = ("change_durability", "cut_end")
"""Steps after whose error nobody could tell from disk how the log stands: they fence, whatever it was."""
TRIES = 400
"""After so many goes a directory has found that there is room again."""


@dataclass(slots=True)
class KeepReserve:
    """The job that makes the reserve."""

    directory: LogDirectory

    def run(self) -> None:
        """NoRoomError, OSError."""
        self.directory.ballast.make()

    def complete(self) -> None:
        """There is one."""
        self.directory.ballast.made(None)

    def fail(self, error: BaseException) -> None:
        """A disk that has no room for it is full."""
        self.directory.ballast.made(error)
        if isinstance(error, NoRoomError):
            self.directory.journal.no_room = without_traceback(error)
        else:
            self.directory.journal.fail(None, error)


class Crowded(Life):
    """A life whose volume is full now and then."""

    disk: SteppedDisk

    def nothing_under_way(self) -> None:
        """As after a start."""
        super().nothing_under_way()
        self.injected_before = super().faults

    @property
    def faults(self) -> int:
        """And what did not fit."""
        return super().faults + self.disk.lacked

    def start(self) -> None:
        """One that finds no room has the reserve's; where that is too little, others make some."""
        while True:
            try:
                super().start()
            except (OSError, StorageError) as error:
                if not is_disk_full(error) or not self.is_crowded:
                    raise
                self.met["starts without room"] += 1
                if not release_ballast(self.disk, DATA, self.settings.reserve_bytes):
                    self.disk.capacity = PLENTY
            else:
                self._keep_reserve()
                return

    def _power_on(self) -> None:
        """The next start may find it as it was."""
        self.disk.capacity = max(self.disk.used, self.disk.capacity) if self.dice.random() < 0.5 else PLENTY
        super()._power_on()

    def _tamper(self) -> str:
        """Not for want of room."""
        capacity, self.disk.capacity = self.disk.capacity, PLENTY
        what = super()._tamper()
        self.disk.capacity = max(self.disk.used, capacity)
        return what

    # ---- the volume

    @property
    def is_crowded(self) -> bool:
        """Whether little is free."""
        return self.disk.capacity != PLENTY

    @property
    def is_faulty(self) -> bool:
        """A volume that is full is at fault, too."""
        return self.is_crowded or super().is_faulty

    def fill_disk(self) -> None:
        """Others leave little, or other little, or remove what they have."""
        was_full = self.is_crowded
        is_full = self.dice.random() < (0.7 if was_full else 0.4)
        self.disk.capacity = self.disk.used + self.dice.choice(LEFT) if is_full else PLENTY
        self.met["volumes filled"] += is_full and not was_full
        if was_full and not is_full:
            self.mended()

    def mended(self) -> None:
        """What is under way may have met what was."""

    def find_room(self) -> None:
        """When there is room, and nothing else is wrong, writes are taken again, and nobody has to do anything."""
        journal = self.directory.journal
        if self.is_faulty or journal.no_room is None:
            return
        for _ in range(TRIES):
            with suppress(OSError):  # of a job that was under way before
                self.take_group()
                self.end_group()
                self.go_on_with_checkpoint()
                self.go_on_with_maintenance()
            if journal.failed is not None:
                return
            if journal.no_room is None:
                self.met["room found again"] += 1
                return
        require(False, f"there is room, and writes are refused: {journal.no_room!r}")

    def steps(self, count: int) -> bool:
        """And in the end the directory is whole again, where it can be."""
        whole = super().steps(count)
        if whole:
            self.find_room()
        return whole

    def require_soundness(self) -> None:
        """A full volume is waited for: it does not fence."""
        super().require_soundness()
        failed = self.directory.journal.failed
        if super().faults == self.injected_before and is_disk_full(failed):
            step = next(line for line in reversed(self.trace) if not line.startswith(" "))
            require(step in CANNOT_WAIT, f"fenced by {step} on a full disk: {failed!r}")

    # ---- the reserve

    def _keep_reserve(self) -> None:
        reserve = self.directory.ballast
        if reserve.take_making():
            self.met["reserves made"] += 1
            self.jobs.append(KeepReserve(self.directory))

    def take_maintenance(self) -> None:
        """Of the same lane."""
        super().take_maintenance()
        self._keep_reserve()

    def take_group(self) -> None:
        """Where what makes room waits, the reserve goes."""
        try:
            super().take_group()
        except NoRoomError:
            if self.directory.journal.awaits_room and self.directory.ballast.release():
                self.met["reserves given up for a group"] += 1
            raise

    def delete_topic(self) -> None:
        """Makes room."""
        self._make_room(super().delete_topic)

    def raise_start(self) -> None:
        """Makes room."""
        self._make_room(super().raise_start)

    def _make_room(self, step: Callable[[], None]) -> None:
        """On a full volume it has the reserve's, and so becomes durable, if that is large enough for what waits."""
        reserve, journal = self.directory.ballast, self.directory.journal
        there = reserve.size > 0 and not reserve.lacking
        with journal.making_room():
            step()
        if there and reserve.size == max(RESERVES) and self.is_crowded and not super().is_faulty:
            for _ in range(TRIES):
                with suppress(NoRoomError):
                    self.take_group()
                    self.end_group()
                if not journal.awaits_room:
                    break
            require(not journal.awaits_room, f"the reserve is not enough: {journal.no_room!r}")
        self.met["reserves given up"] += there and reserve.lacking
