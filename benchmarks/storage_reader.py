"""The source of Spark without Spark: plans as its driver does and reads every split as its tasks do, from the files.

    python -m benchmarks.storage_reader HOST:PORT TOPIC SECONDS

One process reads the sealed segments of the topic again and again, under a lease, decodes all columns, and ends after
the seconds, which count from the first rows on: then it prints `reading`. Its last line is JSON: passes, bytes (of the
records' batches as stored), rows, seconds, and `processor_s`. Anything that would have gone through the broker ends it.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator

from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from duramen.client import Cluster
from duramen.client.blocking.segment_plans import describe_segments
from duramen.client.protocol.segments import DescribedPartition
from duramen.model import TopicPartition
from duramen.spark.source.batch_reader import DuramenReader
from duramen.spark.source.plan import Split

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)


class _Refuse(logging.Handler):
    """A task says in the log that it goes on with the broker; here that is the end."""

    def emit(self, record: logging.LogRecord) -> None:
        raise SystemExit(f"not from the files: {record.getMessage()}")


def sealed_ends(bootstrap: str, topic: str) -> dict[str, int]:
    """Behind which offset the sealed segments of each partition end, by its number."""
    with Cluster(bootstrap) as cluster:
        wanted = {TopicPartition(topic, number): (-1, -1) for number in cluster.partitions(topic)}
        found = {}
        for tp, described in describe_segments(cluster, wanted).partitions.items():
            assert isinstance(described, DescribedPartition), described
            sealed = [segment.end_offset for segment in described.segments if segment.is_sealed]
            found[str(tp.partition)] = max(sealed, default=described.log_start_offset)
    return found


def splits(reader: DuramenReader) -> Iterator[Split]:
    """The splits of a plan; each has to lie in files altogether."""
    for split in reader.partitions():
        if isinstance(split, Split):  # another kind stands for a plan without any
            if not split.pieces or split.pieces[-1].end_offset < split.end or not split.leases:
                raise SystemExit(f"not from the files: {split!r}")
            yield split


def main() -> None:
    bootstrap, topic, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    log = logging.getLogger("duramen.spark")
    log.setLevel(logging.INFO)
    log.addHandler(_Refuse())
    ends = sealed_ends(bootstrap, topic)
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "readFrom": "storage",
        "endingOffsets": json.dumps({topic: ends}),
    }
    reader = DuramenReader({name.lower(): value for name, value in options.items()}, SCHEMA)
    passes = rows = size = 0
    began = 0.0
    while not began or time.monotonic() < began + seconds:
        for split in splits(reader):
            until = 0
            for batch in reader.read(split):
                if not began:
                    print("reading", flush=True)
                    began, spent = time.monotonic(), time.process_time()
                rows += batch.num_rows
                until = batch.column("offset")[-1].as_py() + 1
                if time.monotonic() > began + seconds:
                    break
            size += split.size_hint * (until - split.start) // (split.end - split.start)
            if time.monotonic() > began + seconds:
                break
        passes += 1
        if not began:
            raise SystemExit(f"{topic} has no sealed segments: {ends}")
    lasted = time.monotonic() - began
    used = time.process_time() - spent
    print(json.dumps({"passes": passes, "bytes": size, "rows": rows, "seconds": lasted, "processor_s": round(used, 3)}))


if __name__ == "__main__":
    main()
