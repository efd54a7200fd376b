"""Which segments of a log can be sealed, and what becomes of it: the jobs themselves are in `segment/seal.py`."""

from __future__ import annotations

from duramen.storage.log.log import Log
from duramen.storage.segment.seal import SealJob


def take_seals(log: Log) -> list[SealJob]:
    """Jobs that seal the segments which are rolled and synced but not sealed.

    Not those below the log start: they are about to go, and a crash may have left a hole behind one of them, which is
    no damage.
    """
    return [
        SealJob(log, segment, segment.open_file(), segment.size, segment.next_offset - 1)
        for segment in log.segments[:-1]
        if not segment.sealed
        and segment.synced == segment.size
        and log.start_offset < segment.next_offset <= log.recovery_point
    ]  # fmt: skip


def complete_seal(log: Log, job: SealJob) -> None:
    """The seal is on disk: reads of that segment check against it from now on."""
    log.writers.pop(job, None)
    for segment in log.segments:
        if job.is_of(segment):
            segment.sealed = True
            segment.seal = None
            segment.release_files()
        elif segment.base_offset == job.base_offset:
            segment.drop_seal()  # a truncation overtook the job
