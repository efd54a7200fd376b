"""Spark's rule for watermarks, in plain Python: what the one of each batch is, in milliseconds since 1970.

A batch has two: rows are late by the watermark of the batch before, state goes by its own. That of the next batch is
the greatest time of an event up to now less the delay, the least of all sources, and never earlier than before. A
source counts from the start of the query on: after a restart the watermark stands until each source has had a record.

Source: Spark's IncrementalExecution (which watermark is for what) and WatermarkTracker (how it moves).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

Times = Mapping[str, Iterable[int]]
"""Of the events of a batch, late ones, too, by their source."""
_State = tuple[int, ...]
"""The watermark of each source since the start of the query."""


def watermarks(batches: Sequence[Times], delays_ms: Mapping[str, int], restarts: Container[int] = ()) -> list[int]:
    """The watermark of each batch; 0 of the first. restarts: the batches with which the query began again."""
    found, state = [0], _start(delays_ms)
    for number, times in enumerate(batches):
        state = _after(_start(delays_ms) if number in restarts else state, times, delays_ms)
        found.append(max(found[-1], min(state)))
    return found[: len(batches)]


def unexplained(told: Sequence[int], batches: Sequence[Times], delays_ms: Mapping[str, int]) -> list[int]:
    """The first batch whose watermark comes of no restarts, wherever they were; none where all do."""
    if told[:1] not in ([], [0]):
        return [0]
    states = {_start(delays_ms)}
    for number in range(len(told) - 1):
        after = {_after(state, batches[number], delays_ms) for state in (*states, _start(delays_ms))}
        states = {state for state in after if max(told[number], min(state)) == told[number + 1]}
        if not states:
            return [number + 1]
    return []


def _start(delays_ms: Mapping[str, int]) -> _State:
    return (0,) * len(delays_ms)


def _after(state: _State, times: Times, delays_ms: Mapping[str, int]) -> _State:
    """The state after a batch."""
    latest = (max(times.get(source, ()), default=None) for source in delays_ms)
    each = zip(state, latest, delays_ms.values(), strict=True)
    return tuple(known if at is None else max(known, at - delay) for known, at, delay in each)
