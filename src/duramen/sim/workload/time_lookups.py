"""Looking for records by their time in a simulation, when nothing is written or removed any more."""

from __future__ import annotations

from random import Random

from duramen.model import TopicPartition
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.workload.scripts import Script
from duramen.sim.workload.workload import EARLIEST, LATEST, Scene, list_offset, read_records

LOOK_UPS = 3
"""Timestamps that are looked for in each partition, beside the least, the greatest and one behind that."""
NOT_FOUND = -1


def check_times(scene: Scene, tp: TopicPartition, random: Random) -> Script:
    """Each record has a time it was sent with, and each of some times leads to the first record that is not older."""
    first = yield from list_offset(scene, tp, EARLIEST)
    end = yield from list_offset(scene, tp, LATEST)
    found = yield from read_records(tp, first, end)
    everything = [record for _, record in found]
    for record in everything:
        if record.timestamp not in scene.stamps.sent[tp, record.value if record.value is None else bytes(record.value)]:
            raise InvariantViolated("FoundByTime", f"{tp} offset {record.offset} was not sent with {record.timestamp}")
    times = sorted({record.timestamp for record in everything if record.timestamp >= 0})
    if not times:
        return
    for time in [times[0], times[-1], times[-1] + 1, *random.choices(times, k=LOOK_UPS)]:
        wanted = next((record.offset for record in everything if record.timestamp >= time), NOT_FOUND)
        answer = yield from list_offset(scene, tp, time)
        if answer != wanted:
            raise InvariantViolated("FoundByTime", f"{tp}: {time} leads to offset {answer} and not to {wanted}")
