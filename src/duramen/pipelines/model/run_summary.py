"""What a run has done, step by step."""

from __future__ import annotations

from typing import NamedTuple

from duramen.pipelines.model.progress import BatchProgress


class StepSummary(NamedTuple):
    """The batches of one step in one run.

    version: the one that ran last. rows: records read; written and size: rows given to its table, and their bytes in
    Arrow's form; late: rows that a watermark dropped; dropped: rows that an expectation dropped; quarantined: records
    that became dead letters; each None of a step that has no such thing. lag: records that the source had more when
    the last batch was planned, None where it does not tell. seconds: of all batches.
    """

    step: str
    version: str
    batches: int = 0
    rows: int = 0
    written: int = 0
    size: int = 0
    late: int | None = None
    dropped: int | None = None
    quarantined: int | None = None
    lag: int | None = None
    seconds: float = 0.0

    def with_batch(self, batch: BatchProgress) -> StepSummary:
        """And one batch more."""
        return StepSummary(
            self.step,
            batch.version,
            self.batches + 1,
            self.rows + batch.rows,
            self.written + (batch.written or 0),
            self.size + (batch.size or 0),
            _sum(self.late, batch.late),
            _sum(self.dropped, batch.dropped),
            _sum(self.quarantined, batch.quarantined),
            batch.lag,
            round(self.seconds + batch.latency_ms / 1000, 3),
        )


def _sum(before: int | None, more: int | None) -> int | None:
    return before if more is None else (before or 0) + more
