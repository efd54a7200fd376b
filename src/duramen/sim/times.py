"""Looking for records by their time in a simulation, when nothing is written or removed any more."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.sim.client import Script, Steps
from duramen.sim.invariants import InvariantViolated
from duramen.sim.workload import EARLIEST, LATEST, RETRY_S, Scene, fetch, fetched, list_offset, unexpected

LOOK_UPS = 3
"""Timestamps that are looked for in each partition, beside the least, the greatest and one behind that."""
NOT_FOUND = -1


class Timed(NamedTuple):
    """A record, as a reader sees it; timestamp in ms."""

    offset: int
    timestamp: int
    value: bytes | None


def read_timed(scene: Scene, tp: TopicPartition) -> Steps[list[Timed]]:
    """Every record of the partition."""
    offset = yield from list_offset(scene, tp, EARLIEST)
    end = yield from list_offset(scene, tp, LATEST)
    found: list[Timed] = []
    while offset < end:
        response = yield fetch(tp, offset)
        answer = response.responses[0].partitions[0] if response is not None else None
        if answer is None or answer.error_code != ErrorCode.NONE:
            if answer is not None and not ErrorCode(answer.error_code).retriable:
                raise unexpected(f"fetch {tp} at {offset}", answer.error_code)
            yield RETRY_S
            continue
        for header, record in fetched(tp, answer.records, offset):
            value = None if record.value is None else bytes(record.value)
            found.append(Timed(record.offset, record.timestamp, value))
            offset = header.next_offset
    return found


def check_times(scene: Scene, tp: TopicPartition, random: Random) -> Script:
    """Each record has a time it was sent with, and each of some times leads to the first record that is not older."""
    everything = yield from read_timed(scene, tp)
    for record in everything:
        if record.timestamp not in scene.stamps.sent[tp, record.value]:
            raise InvariantViolated("FoundByTime", f"{tp} offset {record.offset} was not sent with {record.timestamp}")
    times = sorted({record.timestamp for record in everything if record.timestamp >= 0})
    if not times:
        return
    for time in [times[0], times[-1], times[-1] + 1, *random.choices(times, k=LOOK_UPS)]:
        wanted = next((record.offset for record in everything if record.timestamp >= time), NOT_FOUND)
        found = yield from list_offset(scene, tp, time)
        if found != wanted:
            raise InvariantViolated("FoundByTime", f"{tp}: {time} leads to offset {found} and not to {wanted}")
