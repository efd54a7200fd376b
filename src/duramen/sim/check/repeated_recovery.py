"""Recovery, repeated on copies of a crashed disk: what it finds must not depend on how often it is cut short.

The copies never touch the simulated world. Recovery is `LogDirectory.open`, the first thing that a start does.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from duramen.model import TopicPartition
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.world.disk import CrashDisk, NodeDied
from duramen.sim.world.entropy import SimEntropy
from duramen.storage import LOG, DirectorySettings, LogDirectory, file_name


class Recovered(NamedTuple):
    """What a recovery made of one partition: its bounds, its leader epochs and every byte of its segments."""

    start: int
    end: int
    epochs: bytes
    segments: tuple[tuple[int, bytes], ...]


Everything = dict[TopicPartition, Recovered]


def recover(disk: CrashDisk, path: str, settings: DirectorySettings, now_ms: int) -> Everything:
    """Open the directory on this disk, look at every log, and forget it. Raises what `LogDirectory.open` raises."""
    disk.power_on()
    directory = LogDirectory.open(disk, path, settings, now_ms=now_ms, entropy=SimEntropy(Random(disk.calls)))
    contents = disk.contents()
    found: Everything = {}
    for log in directory.logs.values():
        segments = tuple(
            (segment.base_offset, contents[f"{log.path}/{file_name(segment.base_offset, LOG)}"])
            for segment in log.segments
            if segment.next_offset > log.start_offset
        )
        found[log.tp] = Recovered(log.start_offset, log.end_offset, log.epochs.encode(), segments)
    return found


def check_replay(
    disk: CrashDisk,
    random: Random,
    path: str,
    settings: DirectorySettings,
    now_ms: int,
    stable: Callable[[TopicPartition], bool],
    hit: Callable[[str], None],
) -> None:
    """Recover a copy twice, with a power cut in between; recover another that is cut short on its way, too.

    stable: the partitions of which the second must make the same, torn names and blocks or not.
    """
    first = disk.copy(Random(random.getrandbits(64)))
    calls = first.calls
    wanted = recover(first, path, settings, now_ms)
    calls = first.calls - calls
    first.torn = False
    first.power_cut()
    again = recover(first, path, settings, now_ms)
    hit("recovered twice from one crash")
    _compare(wanted, again, lambda tp: True, "a second recovery")
    second = disk.copy(Random(random.getrandbits(64)))
    last = second.calls + random.randint(1, max(1, calls))
    if disk.synced:
        second.cut_at = last
    else:
        second.kill_at = last  # what a kill left in the page cache only, a power cut may take
    try:
        recover(second, path, settings, now_ms)
    except NodeDied:
        hit("recovery cut short and begun again")
        _compare(wanted, recover(second, path, settings, now_ms), stable, "a recovery that was cut short")


def _compare(wanted: Everything, found: Everything, applies: Callable[[TopicPartition], bool], what: str) -> None:
    for tp in sorted(wanted.keys() | found.keys()):
        one, other = wanted.get(tp), found.get(tp)
        if applies(tp) and one != other:
            raise InvariantViolated(
                "ReplayIdempotent", f"{what} of {tp} gave {_short(other)} where the first had given {_short(one)}"
            )


def _short(recovered: Recovered | None) -> str:
    if recovered is None:
        return "nothing"
    sizes = ", ".join(f"{base}: {len(data)} bytes" for base, data in recovered.segments)
    return f"{recovered.start}..{recovered.end} ({sizes})"
