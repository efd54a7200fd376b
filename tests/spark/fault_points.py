"""Faults at named points: what a test puts there happens once, in whichever process gets there first."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import NamedTuple

from duramen.errors import DuramenError
from duramen.spark.sink.sink_points import Points

HELD_SECONDS_MAX = 900.0
"""Longer than anything takes that a test does meanwhile, on a loaded machine, too."""


class InjectedError(DuramenError):
    """A failure that a test put in the way. It says that something timed out, as failures do that may pass."""


class Held(NamedTuple):
    """A process that waits at a point. serial: of this waiting, so that two can be told apart."""

    pid: int
    serial: int


class FaultPoints(Points):
    """Does at a point what the file of that name in `folder` says, once.

    raise; kill (this process); kill PID; kill PID SECONDS (that much later, while the sink goes on);
    hold: say who is there, and wait until `release` or death.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def reach(self, point: str) -> None:
        """Pass the point, or do what is armed there."""
        place = os.path.join(self.folder, point)
        taken = f"{place}.taken-{os.getpid()}-{threading.get_ident()}"
        try:
            os.rename(place, taken)
        except FileNotFoundError:
            return
        action, *words = Path(taken).read_text().split()
        if action == "hold":
            self._hold(place, taken)
            return
        Path(taken).rename(f"{place}.done")
        if action == "raise":
            raise InjectedError(f"injected at {point}: timed out")
        victim = int(words[0]) if words else os.getpid()
        if len(words) > 1:
            threading.Timer(float(words[1]), _kill, [victim]).start()
        else:
            _kill(victim)

    def _hold(self, place: str, taken: str) -> None:
        serial = time.monotonic_ns()
        Path(taken).write_text(f"{os.getpid()} {serial}")
        go = Path(f"{place}.go-{serial}")
        Path(taken).rename(f"{place}.held")
        give_up = time.monotonic() + HELD_SECONDS_MAX
        while not go.exists() and os.path.isdir(self.folder) and time.monotonic() < give_up:
            time.sleep(0.002)
        Path(f"{place}.held").unlink(missing_ok=True)

    # ---- for the test ----------------------------------------------------------------------------------------

    def set(self, point: str, action: str) -> None:
        """Arm a point; atomically, for it may be passed right now."""
        new = Path(self.folder, f"{point}.new")
        new.write_text(action)
        new.rename(Path(self.folder, point))

    def fired(self, point: str) -> bool:
        return Path(self.folder, f"{point}.done").exists()

    def held(self, point: str) -> Held | None:
        """Who waits there."""
        try:
            return Held(*map(int, Path(self.folder, f"{point}.held").read_text().split()))
        except FileNotFoundError:
            return None

    def release(self, point: str) -> None:
        """Let go on whoever waits there."""
        held = self.held(point)
        if held is not None:
            Path(self.folder, f"{point}.go-{held.serial}").touch()

    def clear(self, point: str) -> None:
        """Nothing is armed there, and nothing is known of what was."""
        for path in Path(self.folder).glob(f"{point}*"):
            if path.name.removeprefix(point)[:1] in ("", "."):
                path.unlink(missing_ok=True)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
