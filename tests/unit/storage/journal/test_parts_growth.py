"""The journal grows on the spot while a job already makes its next part: two parts, neither in the other's way."""

from __future__ import annotations

from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.storage.journal.parts import Part, PartMaker

SIZE = 64 << 10


def test_two_parts_made_at_the_same_time_are_two_parts() -> None:
    disk = CrashDisk()
    disk.make_directories("/data")
    disk.sync_directory("/")
    maker = PartMaker(disk, "/data", 0, 7)
    made: list[Part] = []

    def meanwhile(call: DiskCall) -> None:
        if call.operation == "preallocate":
            disk.fault = None
            made.append(maker.make(SIZE))  # the loop, while the job's thread waits for the disk
            made[0].file.pwritev([b"acknowledged"], 8192)
            made[0].file.sync()

    number = maker.reserve()
    disk.fault = meanwhile  # type: ignore[assignment]
    made.append(maker.make(SIZE, number))
    assert len({part.name for part in made}) == 2
    disk.power_cut()
    disk.power_on()
    assert disk.contents()[f"/data/{made[0].name}"][8192:8204] == b"acknowledged"
