"""Topics as folders of Parquet files, so that a pipeline runs without a node: one file is one batch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from duramen.pipelines.model.declaration import Topic
from duramen.pipelines.model.offsets import Offsets
from duramen.swaps import CutOver

RECORDS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
_ARROW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
_FIRST_CHANGED = 1_700_000_000


class FileTopics:
    """A connector over folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ends: dict[tuple[str, int], int] = {}
        self.letters: dict[str, dict[int, pa.Table]] = {}

    def append(self, topic: str, records: Sequence[tuple[str | None, Any]], partition: int = 0) -> None:
        """One batch of (key, value); a value that is no string is written as JSON."""
        place = (topic, partition)
        rows = []
        for key, value in records:
            offset = self.ends.get(place, 0)
            self.ends[place] = offset + 1
            text = value if value is None or isinstance(value, str) else json.dumps(value)
            rows.append(
                {
                    "key": None if key is None else key.encode(),
                    "value": None if text is None else text.encode(),
                    "topic": topic,
                    "partition": partition,
                    "offset": offset,
                    "timestamp": datetime.fromtimestamp(1_700_000_000 + offset, UTC),
                }
            )
        (self.folder / topic).mkdir(parents=True, exist_ok=True)
        number = len(list((self.folder / topic).glob("*.parquet")))
        hidden, shown = (self.folder / topic / f"{mark}{number:04}.parquet" for mark in ("_", ""))
        pq.write_table(pa.Table.from_pylist(rows, schema=_ARROW), hidden)
        # Spark takes files by the millisecond of their last change, and two of the same in any order.
        os.utime(hidden, (_FIRST_CHANGED + number,) * 2)
        hidden.rename(shown)

    def read(
        self, spark: SparkSession, topic: Topic, start: Offsets, until: Offsets | None, topic_id: str = ""
    ) -> DataFrame:
        (self.folder / topic.name).mkdir(parents=True, exist_ok=True)
        found = spark.readStream.schema(RECORDS).option("maxFilesPerTrigger", "1")
        return found.parquet(str(self.folder / topic.name))

    def create(self, topic: str, like: str | None, *, settings: bool = False, compacted: bool = False) -> None:
        """A folder is created by what is appended to it."""

    def write(self, records: DataFrame, topic: str | None, sink: str) -> DataStreamWriter:
        return records.writeStream.foreachBatch(lambda rows, batch: self.write_batch(rows, topic, sink, batch))

    def write_batch(self, records: DataFrame, topic: str | None, sink: str, batch: int) -> None:
        """Dead letters are kept by their batches, as a sink does: one of a number that is there is passed over."""
        if sink.endswith(".dead-letters"):
            found = records.toArrow()
            there = self.letters.setdefault(sink, {}).setdefault(batch, found)
            assert there.equals(found), "a batch that is done again has the same dead letters"
            return
        rows = records.collect()
        for name in sorted({topic or row["topic"] for row in rows}):
            of_it = [row for row in rows if name == (topic or row["topic"])]
            self.append(name, [(bytes(row["key"]).decode(), bytes(row["value"]).decode()) for row in of_it])

    def written(self, sink: str) -> int | None:
        return None

    def cuts(self, topic: str) -> Sequence[CutOver]:
        return ()

    def publish(self, topic: str, cuts: Sequence[CutOver]) -> None:
        """Nobody reads these topics from elsewhere."""
