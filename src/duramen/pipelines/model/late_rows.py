"""Rows that come after the watermark has passed them: how many Spark has dropped, per batch and over all runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from duramen.pipelines.model.atomic_files import read_json, write_json
from duramen.pipelines.model.folders import VersionFolder

_FILE = "late.json"
_NONE_YET = "1970-01-01T00:00:00.000Z"
"""What Spark says while no batch with records has ended."""


class LateRows(NamedTuple):
    """What a version has dropped up to a batch of its checkpoint `generation`.

    rows: of that batch; before: of all batches before it that were counted; uncounted: how many batches were not, for
    their run was killed after Spark's commit of them and before their count was noted.
    """

    generation: int
    batch: int
    rows: int
    before: int = 0
    uncounted: int = 0

    @property
    def total(self) -> int:
        """At least so many; just so many where no batch is uncounted."""
        return self.before + self.rows

    def followed_by(self, generation: int, batch: int, rows: int) -> LateRows:
        """With one more batch. A repeated one takes its own place; one before that is counted already."""
        if (generation, batch) < (self.generation, self.batch):
            return self
        if (generation, batch) == (self.generation, self.batch):
            return self._replace(rows=rows)
        passed = batch if generation > self.generation else batch - self.batch - 1
        return LateRows(generation, batch, rows, self.total, self.uncounted + passed)


def counted(version: VersionFolder) -> LateRows | None:
    """What the version's folder tells; None where no batch with a watermark and state was noted."""
    found: dict[str, int] | None = read_json(version.path / _FILE)
    return None if found is None else LateRows(**found)


def count(version: VersionFolder, generation: int, batch: int, rows: int) -> LateRows:
    """Note what a batch has dropped, once however often it is repeated or noted."""
    before = counted(version)
    after = before.followed_by(generation, batch, rows) if before else LateRows(generation, batch, rows, 0, batch)
    if after != before:
        write_json(version.path / _FILE, after._asdict())
    return after


def watermark_of(found: Mapping[str, Any]) -> str | None:
    """The watermark in Spark's report of a batch, as ISO text in UTC; None where there is none yet, or none at all."""
    told: str | None = (found.get("eventTime") or {}).get("watermark")
    return None if told == _NONE_YET else told


def dropped_in(found: Mapping[str, Any]) -> int | None:
    """How many rows the operators of a batch have dropped, by Spark's report; None where the step has no watermark.

    Each row is dropped once: what one operator drops does not come to the next.
    """
    if "watermark" not in (found.get("eventTime") or {}):
        return None
    return sum(int(operator["numRowsDroppedByWatermark"]) for operator in found.get("stateOperators") or ())


def may_drop(found: Mapping[str, Any]) -> bool:
    """Whether a batch of Spark's report had a watermark and an operator that drops by it."""
    return dropped_in(found) is not None and bool(found.get("stateOperators"))
