"""What a batch did, in one line: rows, bytes, lag, latency."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from duramen.errors import ConfigError
from duramen.pipelines.model.late_rows import dropped_in, watermark_of
from duramen.pipelines.model.offsets import NO_OFFSET, Offsets

DROPPED, QUARANTINED = "duramen.dropped", "duramen.quarantined"
"""Names under which a query counts rows that did not hold what is expected of them (Spark's observed metrics)."""


class Written(NamedTuple):
    """What a batch gave its table. size: bytes in Arrow's form."""

    rows: int
    size: int


class BatchProgress(NamedTuple):
    """One finished batch. lag: records the sources had more when the batch was planned, None where none tells.

    late: rows that the batch's watermark has dropped, late_total: those of all batches that were counted, and
    late_uncounted: how many batches were not (model/late_rows.py); None, None and 0 of a step without a watermark.
    dropped, quarantined: rows that did not hold what is expected, and records that became dead letters; None of a step
    that does not do it.
    """

    step: str
    version: str
    batch: int
    rows: int
    written: int | None
    size: int | None
    lag: int | None
    latency_ms: int
    ended: bool
    end: Offsets
    watermark: str | None = None
    late: int | None = None
    late_total: int | None = None
    late_uncounted: int = 0
    dropped: int | None = None
    quarantined: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "end": self.end.to_json()}

    def line(self) -> str:
        """For people."""
        to = "" if self.written is None else f" → {self.written:,}"
        size = "" if self.size is None else f"  {_bytes(self.size)}"
        lag = "" if self.lag is None else f"  lag {self.lag:,}"
        late = "" if self.late is None else f"  late {self.late:,}{self._in_all()}"
        name = f"{self.step} {self.version}"
        dropped = "" if self.dropped is None else f"  dropped {self.dropped:,}"
        dead = "" if self.quarantined is None else f"  quarantined {self.quarantined:,}"
        told = f"{to} rows{size}{lag}{late}{dropped}{dead}"
        return f"{name:<22} batch {self.batch:<5} {self.rows:>9,}{told}  {self.latency_ms:,} ms"

    def _in_all(self) -> str:
        if self.late_uncounted:
            return f", at least {self.late_total or 0:,} in all"
        return f", {self.late_total:,} in all" if self.late_total not in (None, self.late) else ""


def _bytes(size: int) -> str:
    return f"{size:,} B" if size < 1000 else f"{size / 1e3:,.0f} kB" if size < 1e6 else f"{size / 1e6:,.1f} MB"


def progress_of(
    step: str, version: str, found: Mapping[str, Any], written: Mapping[int, Written], twice: Collection[str] = ()
) -> BatchProgress:
    """From Spark's report of a batch. A report without a batch (an idle query's) has not `ended`.

    twice: topics that the query reads two times, each of which Spark counts.
    """
    sources = found["sources"]
    end = _offsets([source["endOffset"] for source in sources])
    latest = _offsets([source["latestOffset"] for source in sources])
    times = found["durationMs"]
    did = written.get(found["batchId"])
    return BatchProgress(
        step=step,
        version=version,
        batch=found["batchId"],
        rows=sum(source["numInputRows"] - _again(source, twice) for source in sources),
        written=did.rows if did else None,
        size=did.size if did else None,
        lag=end.behind(latest) if latest else None,
        latency_ms=times.get("triggerExecution", 0),
        ended="addBatch" in times,
        end=end,
        watermark=watermark_of(found),
        late=(late := dropped_in(found)),
        late_total=late,
        dropped=_observed(found, DROPPED),
        quarantined=_observed(found, QUARANTINED),
    )


def _again(source: Mapping[str, Any], twice: Collection[str]) -> int:
    """The rows of a source that were counted two times."""
    end = _offsets([source["endOffset"]])
    return source["numInputRows"] // 2 if any(topic in twice for (topic, _), _ in end) else 0


def _observed(found: Mapping[str, Any], name: str) -> int | None:
    """The rows that a query has counted under a name; None where it counts none."""
    told = (found.get("observedMetrics") or {}).get(name)
    if told is None:
        return None
    # Spark Connect does not give the names of what was counted, but a row's parts.
    return int(told["values"][0] if "values" in told else told["rows"])


def _offsets(told: Sequence[object]) -> Offsets:
    """Of all sources; nothing of those that do not tell."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in told]
    try:
        return Offsets.from_sources(NO_OFFSET if text in ("", "null") else text for text in texts)
    except (ValueError, TypeError, ConfigError):
        return Offsets()
