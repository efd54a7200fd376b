"""Spark's rule for watermarks, in plain Python.

A batch has two: rows are late by the watermark of the batch before, state goes by its own. That of the next batch is
the greatest time of an event up to now less the delay, the least of all sources, and never earlier than before. A
source counts from the start of the query on: after a restart the watermark stands until each source has had a record.

Source: Spark's IncrementalExecution (which watermark is for what) and WatermarkTracker (how it moves).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class WatermarkRule:
    """The watermark of one query, batch for batch; in milliseconds since 1970, 0 before the first.

    late: what is at it, or earlier, is dropped; eviction: what is at it, or earlier, is done with.
    """

    def __init__(self, delays_ms: Mapping[str, int]) -> None:
        """delays_ms: by the name of the source."""
        self._delays = delays_ms
        self._of_source: dict[str, int] = {}
        self.late = 0
        self.eviction = 0

    def restart(self) -> None:
        """The query begins again, with the batch that comes now."""
        self._of_source = {}

    def end_batch(self, times_ms: Mapping[str, Iterable[int]]) -> None:
        """Go on to the next batch. times_ms: of the events of this one, late ones, too, by their source."""
        for source, delay in self._delays.items():
            latest = max(times_ms.get(source, ()), default=None)
            known = self._of_source.get(source, 0)
            self._of_source[source] = known if latest is None else max(known, latest - delay)
        self.late = self.eviction
        self.eviction = max(self.eviction, min(self._of_source.values()))
