"""Histories of a streaming query as Spark could live them, without Spark: retries, speculation, lost drivers, replays.

Spark's part is played here from what it was seen to do: a failed attempt is tried again without an abort; of two
attempts one message reaches the commit; a commit that raises is followed by an abort, and after the restart the same
batch comes again, its rows in other tasks. The sink's own code runs unchanged, against whatever cluster is given.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import BinaryType, StructType

from duramen.errors import DuramenError
from duramen.spark.sink import sink
from duramen.spark.sink.sink import stream_writer
from duramen.spark.sink.sink_calls import SupersededError
from duramen.spark.sink.sink_identity import TaskIdentity
from duramen.spark.sink.sink_points import Points

SCHEMA = StructType().add("key", BinaryType()).add("value", BinaryType())
ATTEMPTS = 4
SPARK = CloudPickleSerializer()
"""What Spark takes writers and messages from process to process with."""
Row = tuple[bytes, bytes]
At = Callable[[str], None]


class InjectedError(DuramenError):
    """A failure that the history put in the sink's way."""


class Faults(Points):
    """Fails at points by chance. It is pickled with writers, so what it counts lives beside it."""

    random = random.Random(0)
    chance = 0.0
    fired: ClassVar[Counter[str]] = Counter()
    also: At | None = None

    @classmethod
    def begin(cls, seed: int, chance: float, also: At | None = None) -> None:
        """also: called at every point, to do worse things there."""
        cls.random, cls.chance, cls.fired, cls.also = random.Random(seed), chance, Counter(), also

    def reach(self, point: str) -> None:
        if Faults.also is not None:
            Faults.also(point)
        if self.random.random() < self.chance:
            self.fired[point] += 1
            raise InjectedError(f"injected at {point}")


class History:
    """One query from its first batch to its last, over as many lives of its driver as it takes."""

    def __init__(self, folder: Path, name: str, options: dict[str, str], seed: int) -> None:
        self.random = random.Random(f"history {seed}")
        self.query_id = f"{name}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metadata").write_text(json.dumps({"id": self.query_id}))
        self.options = {**options, "checkpointlocation": str(folder)}
        self.lives = 0
        self.fenced = 0
        self.written: Counter[bytes] = Counter()

    def run(self, batches: int) -> None:
        for batch_id in range(batches):
            rows = [
                (b"%d" % self.random.randrange(9), b"%d/%d" % (batch_id, n)) for n in range(self.random.randrange(60))
            ]
            self.written.update(value for _, value in rows)
            while not self._life(batch_id, rows):
                self.lives += 1

    def _life(self, batch_id: int, rows: list[Row]) -> bool:
        """One try of the batch; False where the driver is lost or the query fails, and starts again."""
        with patch.dict(os.environ, {"SPARK_LOCAL_DIRS": f"/tmp/{self.query_id}-{self.lives}"}):
            return self._try(batch_id, rows)

    def _try(self, batch_id: int, rows: list[Row]) -> bool:
        try:
            planned = SPARK.dumps(self._writer())
        except InjectedError:
            return False
        tasks = self._layout(rows)
        messages = [self._task(planned, task, part, batch_id) for task, part in enumerate(tasks)]
        if None in messages:
            self._abort(messages, batch_id)
            return False
        if self.random.random() < 0.1:
            self._second_driver(batch_id, rows)
        try:
            self._writer().commit(messages, batch_id)
        except InjectedError:
            self._abort(messages, batch_id)
            return False
        except SupersededError:
            self.fenced += 1
            self._abort(messages, batch_id)
            return False
        return self.random.random() > 0.1  # the driver may be lost before Spark's own commit log knows

    def _second_driver(self, batch_id: int, rows: list[Row]) -> None:
        """Another driver takes the checkpoint over, may finish the batch, and dies: the first one is fenced."""
        with patch.dict(os.environ, {"SPARK_LOCAL_DIRS": f"/tmp/{self.query_id}-second-{self.lives}-{batch_id}"}):
            try:
                planned = SPARK.dumps(self._writer())
            except InjectedError:
                return
            if self.random.random() < 0.5:
                messages = [self._task(planned, task, part, batch_id) for task, part in enumerate(self._layout(rows))]
                if None not in messages:
                    try:
                        self._writer().commit(messages, batch_id)
                    except InjectedError:
                        self._abort(messages, batch_id)

    def _layout(self, rows: list[Row]) -> list[list[Row]]:
        shuffled = list(rows)
        self.random.shuffle(shuffled)
        tasks = self.random.randrange(1, 4)
        return [shuffled[task::tasks] for task in range(tasks)]

    def _task(self, planned: bytes, task: int, rows: list[Row], batch_id: int) -> Any:
        """The message of an attempt that succeeded; sometimes of one of two."""
        for attempt in range(ATTEMPTS):
            try:
                messages = [self._attempt(planned, task, attempt, rows, batch_id)]
                if self.random.random() < 0.2:
                    messages.append(self._attempt(planned, task, attempt + 1, rows, batch_id))
                return self.random.choice(messages)
            except InjectedError:
                continue
            except SupersededError:
                self.fenced += 1
                return None
        return None

    def _attempt(self, planned: bytes, task: int, attempt: int, rows: list[Row], batch_id: int) -> Any:
        identity = TaskIdentity(task, attempt, self.query_id, batch_id)
        columns = [pa.array([row[column] for row in rows], pa.binary()) for column in (0, 1)]
        batch = pa.record_batch(columns, names=["key", "value"])
        with patch.object(sink, "current_task", lambda: identity):
            return SPARK.loads(SPARK.dumps(SPARK.loads(planned).write(iter([batch]))))

    def _abort(self, messages: list[Any], batch_id: int) -> None:
        with suppress(InjectedError, SupersededError):
            self._writer().abort(messages, batch_id)

    def _writer(self) -> Any:
        return stream_writer(self.options, SCHEMA, Faults())
