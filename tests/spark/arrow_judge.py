"""Says, while a pipeline is tortured and at its end, whether every record is where it should be, once."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Final

import arrow_pipeline
from arrow_pipeline import BATCH_APPLIED, BATCH_COMPUTED, BATCH_PLANNED, COPIED, NUMBERS, TABLE_TASK
from fault_points import FaultPoints
from sink_lab import BEFORE_PLAN, create_topic

from duramen.client import LATEST, Cluster
from duramen.errors import ConfigError
from duramen.model import TopicPartition
from duramen.pipelines import open_table
from duramen.pipelines.model.folders import batch_end, committed
from duramen.pipelines.model.offsets import Offsets
from duramen.wire.batch import batches, build_batch, records

PARTITIONS: Final = 2
FILL: Final = 1000
_COPY, _KEPT = "copy", "kept"
_STEP_OF: Final = {BATCH_PLANNED: _KEPT, BATCH_COMPUTED: _KEPT, BATCH_APPLIED: _KEPT, TABLE_TASK: _KEPT}


class Judge:
    """Reads what is new in the copied topic; keeps what it has seen."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.pipeline = arrow_pipeline.declared(folder, bootstrap, 1, FaultPoints(folder / "points"))
        self._seen: set[tuple[int, int]] = set()
        self._copied: list[list[str]] = [[] for _ in range(PARTITIONS)]
        """Values of the copied topic, by partition and offset."""
        self._ends: list[int] = []

    def fill(self, count: int) -> None:
        """All the input there will be, about `count` records."""
        create_topic(self.bootstrap, NUMBERS, PARTITIONS)
        create_topic(self.bootstrap, COPIED, PARTITIONS)
        now_ms = int(time.time() * 1000)
        each = -(-count // PARTITIONS // FILL) * FILL
        with Cluster(self.bootstrap) as cluster:
            for partition in range(PARTITIONS):
                for first in range(0, each, FILL):
                    rows = [(b"%d" % n, b"%d:%d" % (partition, n), (), now_ms) for n in range(first, first + FILL)]
                    at = cluster.produce(TopicPartition(NUMBERS, partition), build_batch(rows)).base_offset
                    assert at == first, "the input is what its values say"
        self._ends = [each] * PARTITIONS

    def checkpoint(self, step: str) -> Path:
        return self.pipeline.folder / step / "v1" / "checkpoint-0"

    def _last(self, step: str, what: str) -> int:
        """The last batch that Spark's log of offsets or commits has."""
        names = (path.name for path in (self.checkpoint(step) / what).glob("*"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def batches(self) -> int:
        """Finished ones of both queries."""
        return self._last(_COPY, "commits") + self._last(_KEPT, "commits") + 2

    def is_on(self, arrow: str, point: str) -> bool:
        """Whether what is on disk agrees that a process which stands at `point` stands on the arrow."""
        step = _KEPT if point == BEFORE_PLAN + COPIED else _STEP_OF.get(point, _COPY)
        planned, finished = self._last(step, "offsets"), self._last(step, "commits")
        if arrow == "checkpoint -> next batch":
            return planned == finished
        if planned != finished + 1:
            return False
        if step == _COPY:
            return True
        return self._applied() == (planned if point == BATCH_APPLIED else finished)

    def _applied(self) -> int:
        """The last batch that the table has."""
        try:
            last = open_table(self.pipeline, _KEPT).last()
        except ConfigError:  # there is none yet
            return -1
        return -1 if last is None else last.batch

    def look(self, after: str) -> None:
        """What topic and table have agrees with the checkpoints. AssertionError says after what it does not."""
        done = committed(self.checkpoint(_COPY))
        in_table = self._table()
        self._read(after)
        self._compare_table(in_table, after)
        number = self._last(_COPY, "offsets")
        planned = batch_end(self.checkpoint(_COPY), number) if number >= 0 else Offsets()
        for partition in range(PARTITIONS):
            first, last = done.end(NUMBERS, partition), planned.end(NUMBERS, partition)
            offsets = {offset for part, offset in self._seen if part == partition}
            lost = set(range(first)) - offsets
            early = [offset for offset in offsets if offset >= last]
            assert not lost, f"after {after}: {NUMBERS}-{partition}: lost {sorted(lost)[:5]}"
            assert not early, f"after {after}: {NUMBERS}-{partition}: nobody planned {sorted(early)[:5]}"

    def _table(self) -> list[dict[int, str]]:
        """The table's values by partition and offset of the copied topic: all that its checkpoint says, none twice."""
        done = committed(self.checkpoint(_KEPT))
        found: list[dict[int, str]] = [{} for _ in range(PARTITIONS)]
        if self._applied() >= 0:
            rows = open_table(self.pipeline, _KEPT).rows()
            causes = zip(rows["_partition"].to_pylist(), rows["_offset"].to_pylist(), strict=True)
            for (partition, offset), number in zip(causes, rows["number"].to_pylist(), strict=True):
                assert offset not in found[partition], f"{COPIED}-{partition}@{offset} is in the table twice"
                found[partition][offset] = number
        for partition, values in enumerate(found):
            end = done.end(COPIED, partition)
            assert len(values) >= end, f"{COPIED}-{partition}: {end} are in the checkpoint, {len(values)} in the table"
        return found

    def _compare_table(self, in_table: list[dict[int, str]], after: str) -> None:
        """The table is a beginning of the copied topic, without a gap."""
        for partition, values in enumerate(in_table):
            copied = dict(enumerate(self._copied[partition][: len(values)]))
            wrong = sorted({offset for offset, _ in values.items() ^ copied.items()})
            assert not wrong, f"after {after}: {COPIED}-{partition}: the table differs at {wrong[:5]}"

    def _read(self, after: str) -> None:
        with Cluster(self.bootstrap) as cluster:
            for partition in range(PARTITIONS):
                tp = TopicPartition(COPIED, partition)
                copied = self._copied[partition]
                end = cluster.list_offsets({tp: LATEST})[tp].offset
                while len(copied) < end:
                    data = cluster.fetch(tp, len(copied), 8 << 20, 1).data
                    for at, header in batches(data):
                        for record in records(data[at : at + header.size], header, max_bytes=1 << 24):
                            where = f"{COPIED}-{partition}@{record.offset} after {after}"
                            assert record.offset == len(copied), f"{where}: {len(copied)} is missing"
                            copied.append((record.value or b"").decode())
                            self._take(copied[-1], where)

    def _take(self, value: str, where: str) -> None:
        partition, offset = map(int, value.split(":"))
        assert (partition, offset) not in self._seen, f"{where}: {value!r} is there twice"
        self._seen.add((partition, offset))

    def end(self) -> str:
        """Topic and table have every record of the input once, and each row of the table is traced; says how many."""
        self._read("the end")
        expected = {(partition, offset) for partition in range(PARTITIONS) for offset in range(self._ends[partition])}
        assert self._seen == expected, f"lost in the end: {sorted(expected - self._seen)[:5]}"
        rows = open_table(self.pipeline, _KEPT).rows()
        found = Counter(rows["number"].to_pylist())
        wanted = Counter(f"{partition}:{offset}" for partition, offset in expected)
        lost, doubled = wanted - found, found - wanted
        assert found == wanted, f"table: lost {list(lost)[:5]}, doubled {list(doubled)[:5]}"
        causes = set(zip(rows["_partition"].to_pylist(), rows["_offset"].to_pylist(), strict=True))
        assert len(causes) == rows.num_rows, "two rows of the table come from one record"
        return f"{len(expected):,} records in; topic and table have each of them once"
