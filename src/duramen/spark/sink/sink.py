"""The sink of `df.write` and `df.writeStream`: who writes, as which run, and what the driver commits.

Spark makes a writer on the driver when it plans a write (for a stream: each micro-batch), pickles it for the tasks, and
calls `commit` or `abort` on the driver with what the tasks returned; for a stream, on a writer made anew. So the sink
is claimed when a writer is made, by the driver and before any task; for one run it is the same claim every time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from duramen.client import Cluster
from duramen.errors import ConfigError, DuramenError, check
from duramen.model import topic_id_text
from duramen.spark.options.first_contact import first_contact_s, reached
from duramen.spark.options.sink_options import EXACTLY_ONCE, SinkOptions, parse, why_inert
from duramen.spark.sink.sink_calls import CLAIM, Claim, SinkCalls, SupersededError
from duramen.spark.sink.sink_delivery import AppendDelivery, Staging
from duramen.spark.sink.sink_identity import TaskIdentity, batch_plan, checkpoint_query_id, current_task, driver_run_id
from duramen.spark.sink.sink_points import AFTER_COMMIT, BEFORE_ABORT, BEFORE_COMMIT, CLAIMED, TASK_DONE, Points
from duramen.spark.sink.sink_rows import check_schema
from duramen.spark.sink.sink_task import TaskPlan, TaskWriter
from duramen.spark.sink.sink_topics import partitions_to_write, topic_limits

_log = logging.getLogger(__name__)

PASS: Final = Points()


@dataclass(frozen=True)
class TaskDone(WriterCommitMessage):
    """What a task tells the driver: handles of what it staged, in order, and how much it was."""

    query_id: str | None
    handles: tuple[int, ...]
    rows: int
    bytes: int


class _Sink:
    """What batch and streaming writes share. It travels to the tasks: plain values only."""

    def __init__(self, options: SinkOptions, points: Points) -> None:
        self.options = options
        self._points = points
        self._claim: Claim | None = None
        self._last_writer: str | None = None

    # ---- on the driver, before the tasks -------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make this run the owner of its sink, and see that there is somewhere to write.

        ConfigError where the cluster cannot do what was asked, SupersededError where another run owns the sink by now,
        KafkaError UNKNOWN_TOPIC_OR_PARTITION.
        """
        with self._cluster(first_contact_s(self.options.bootstrap)) as cluster:
            if self.options.delivery == EXACTLY_ONCE:
                if not cluster.api_versions().serves(CLAIM):
                    raise ConfigError(
                        "delivery=exactly-once is Duramen's staged commit, which this cluster does not serve; "
                        "set the option delivery to at-least-once to write to it"
                    )
                self._claim = self._claimed(cluster)
                self._points.reach(CLAIMED)
            if self.options.topic is not None:
                partitions_to_write(cluster, self.options.topic)  # refuses an unknown one before any task runs
        reached(self.options.bootstrap)

    def _claimed(self, cluster: Cluster) -> Claim:
        calls = self._calls(cluster, self._sink_id())
        claim = calls.claim(self._run_id(), ephemeral=self._ephemeral())
        if claim.last_batch_id >= 0:
            self._last_writer = _writer_of(calls.describe().last_metadata)
        return claim

    def _sink_id(self) -> str:
        raise NotImplementedError

    def _run_id(self) -> str:
        raise NotImplementedError

    def _ephemeral(self) -> bool:
        return False

    # ---- in a task -----------------------------------------------------------------------------------------------

    def _write(self, rows: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
        task = current_task()
        batch_id = self._batch_of(task)
        with self._cluster() as cluster:
            delivery = self._delivery(cluster, task, batch_id)
            plan = TaskPlan(self.options.topic, self.options.codec, task.partition + batch_id)
            writer = TaskWriter(plan, delivery, lambda topic: topic_limits(cluster, topic, self.options.batch_bytes))
            writer.write(rows)
        self._points.reach(TASK_DONE)
        handles = tuple(delivery.handles) if isinstance(delivery, Staging) else ()
        return TaskDone(task.query_id, handles, writer.rows, delivery.bytes)

    def _batch_of(self, task: TaskIdentity) -> int:
        raise NotImplementedError

    def _delivery(self, cluster: Cluster, task: TaskIdentity, batch_id: int) -> Staging | AppendDelivery:
        if self._claim is None:
            name = self._plain_name(task)
            timeout_s = self.options.delivery_timeout_s
            return AppendDelivery(cluster, name, batch_id, task.partition, self._points, timeout_s)
        self._check_writer(task.query_id, self._last_writer)
        calls = self._calls(cluster, self._claim.sink_id)
        return Staging(calls, self._claim, batch_id, str(task), self._points)

    def _plain_name(self, task: TaskIdentity) -> str:
        """Value of the header that names the sink, where there is no claim."""
        raise NotImplementedError

    def _check_writer(self, query_id: str | None, last: str | None) -> None:
        """Refuse to take another's batches for one's own. `last`: who wrote the last one, if somebody did."""

    def _check_replay(self, batch_id: int, rows: int, known: Any) -> None:
        """Refuse a batch that is committed where it is another one of that number. known: the DescribeSink response."""

    def _signs(self, query_id: str | None) -> str | None:
        """The query whose batches these are, for who asks later; None for those of `df.write`."""
        return query_id

    def _plan(self, batch_id: int) -> dict[str, str]:
        """What tells this batch from another one of its number; nothing where nothing does."""
        return {}

    # ---- on the driver, after the tasks --------------------------------------------------------------------------

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        done = [message for message in messages if isinstance(message, TaskDone)]
        check(len(done) == len(messages), "Spark commits when every task is done")
        claim = self._claim
        if claim is None:  # at least once: everything is there already
            return
        rows = sum(message.rows for message in done)
        said = {
            "query": self._signs(done[0].query_id) if done else None,
            "rows": rows,
            "bytes": sum(message.bytes for message in done),
            **self._plan(batch_id),
        }
        handles = [handle for message in done for handle in message.handles]
        self._points.reach(BEFORE_COMMIT)
        with self._cluster() as cluster:
            calls = self._calls(cluster, claim.sink_id)
            answer = calls.commit(claim.epoch, batch_id, handles, json.dumps(said).encode())
            if answer.already_committed and done:
                known = calls.describe()
                self._check_writer(done[0].query_id, _writer_of(known.last_metadata))
                self._check_replay(batch_id, rows, known)
            self._tell_dropped(answer, batch_id)
            self._points.reach(AFTER_COMMIT)
            if self._ephemeral():
                self._release(calls, claim)

    def _tell_dropped(self, answer: Any, batch_id: int) -> None:
        """Warn of shares that went nowhere: their topic was deleted behind the tasks that wrote to it."""
        for topic in answer.topics:
            for share in topic.partitions:
                if share.dropped:
                    name = topic.name or self.options.topic or topic_id_text(topic.topic_id)
                    text = (
                        "sink %s, batch %d: %d records for %s-%d are dropped, because the topic was deleted meanwhile"
                    )
                    _log.warning(text, self._sink_id(), batch_id, share.records, name, share.index)

    def _abort(self, batch_id: int) -> None:
        """Let go what was staged. Nothing depends on it: the node sweeps what no commit names, and undoes no commit."""
        self._points.reach(BEFORE_ABORT)
        claim = self._claim
        if claim is None:
            return
        try:
            with self._cluster() as cluster:
                calls = self._calls(cluster, claim.sink_id)
                is_committed = calls.abort(claim.epoch, batch_id, None)
                if self._ephemeral():
                    if is_committed:  # and the next job is another sink, which knows nothing of it
                        text = (
                            "its commit took effect, though it failed here: what is written again will be there twice"
                        )
                        _log.warning("sink %s: %s", claim.sink_id, text)
                    self._release(calls, claim)
        except SupersededError:
            return  # the newer run's claim has let go what was staged
        except DuramenError as error:
            _log.warning("sink %s: batch %d stays staged until it is swept: %s", claim.sink_id, batch_id, error)

    def _release(self, calls: SinkCalls, claim: Claim) -> None:
        try:
            calls.release(claim.epoch)
        except DuramenError as error:
            _log.warning("sink %s of this one job stays until it expires: %s", claim.sink_id, error)

    def _cluster(self, first_s: float | None = None) -> Cluster:
        options = self.options
        return Cluster(
            options.bootstrap,
            client_id=options.client_id,
            timeout_s=options.delivery_timeout_s,
            request_timeout_s=options.request_timeout_s,
            first_contact_s=first_s,
        )

    def _calls(self, cluster: Cluster, sink_id: str) -> SinkCalls:
        options = self.options
        return SinkCalls(cluster, sink_id, timeout_s=options.delivery_timeout_s, wait_s=options.request_timeout_s)


class BatchSink(_Sink, DataSourceArrowWriter):
    """`df.write`: exactly once within the job; across reruns, too, with the user's sinkId and batchId."""

    def __init__(self, options: SinkOptions, points: Points = PASS) -> None:
        super().__init__(options, points)
        if (options.sink_id is None) != (options.batch_id is None):
            raise ConfigError("sinkId and batchId go together: they say which batch of which sink this write is")
        self._job = uuid4().hex

    def _sink_id(self) -> str:
        return self.options.sink_id or f"spark-job-{self._job}"

    def _run_id(self) -> str:
        return self._job

    def _ephemeral(self) -> bool:
        return self.options.sink_id is None

    def _batch_id(self) -> int:
        return self.options.batch_id or 0

    def _batch_of(self, task: TaskIdentity) -> int:
        return self._batch_id()

    def _plain_name(self, task: TaskIdentity) -> str:
        return self._sink_id()

    def _check_writer(self, query_id: str | None, last: str | None) -> None:
        # A stream has counted its batches under this name: rows under a number that it had would be taken for written.
        if last not in (None, _writer(None), _writer(query_id)):
            raise ConfigError(
                f"sink {self.options.sink_id} was written by {last}, which counts its batches itself: "
                "give this write a sinkId of its own"
            )

    def _check_replay(self, batch_id: int, rows: int, known: Any) -> None:
        # That is what the numbers are for; but of a rerun the rows are as many, and go where they went.
        is_last = batch_id == known.last_batch_id
        said = _said(known.last_metadata) if is_last else {}
        there, went = said.get("rows"), said.get("topic")
        if None not in (went, self.options.topic) and went != self.options.topic:
            raise ConfigError(
                f"sink {self.options.sink_id} has batch {batch_id} already, of topic {went}: nothing of these {rows} "
                f"rows for {self.options.topic} is written. Two writes of one batch need a sinkId each"
            )
        if there != rows:
            told = f" with {there} rows" if is_last else f", and others up to {known.last_batch_id}"
            text = "sink %s has batch %d already%s: nothing of these %d rows is written"
            _log.warning(text, self._sink_id(), batch_id, told, rows)

    def _plan(self, batch_id: int) -> dict[str, str]:
        return {"topic": self.options.topic} if self.options.topic is not None else {}

    def _signs(self, query_id: str | None) -> str | None:
        return None  # also within foreachBatch, whose tasks have the stream's id: the numbers are the user's

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, self._batch_id())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(self._batch_id())


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream`: the query's id, kept in its checkpoint, names the sink; its batch ids name the batches."""

    def __init__(self, options: SinkOptions, points: Points = PASS) -> None:
        super().__init__(options, points)
        if options.batch_id is not None:
            raise ConfigError("batchId is for df.write: a streaming query counts its batches itself")

    def _sink_id(self) -> str:
        return self.options.sink_id or f"spark-query-{checkpoint_query_id(self.options.checkpoint)}"

    def _run_id(self) -> str:
        return driver_run_id(self.options.checkpoint or "")

    def _batch_of(self, task: TaskIdentity) -> int:
        check(task.batch_id is not None, "Spark tells the tasks of a stream their batch")
        return task.batch_id or 0

    def _plain_name(self, task: TaskIdentity) -> str:
        return self.options.sink_id or f"spark-query-{task.query_id}"

    def _check_writer(self, query_id: str | None, last: str | None) -> None:
        # A stream whose checkpoint was thrown away counts its batches from 0 again, and the numbers of `df.write` are
        # its user's: the same numbers, but other rows.
        if last is not None and last != _writer(query_id):
            raise ConfigError(
                f"sink {self.options.sink_id} was written by {last}, and this is the streaming query {query_id}, "
                "which counts its batches anew: give it a sinkId of its own, or its old checkpoint"
            )

    def _check_replay(self, batch_id: int, rows: int, known: Any) -> None:
        # Only the last batch is ever asked for again, and as it was planned. A checkpoint that was put back plans
        # others under numbers that are taken: their rows would be nowhere.
        said = _said(known.last_metadata)
        ours, theirs = self._plan(batch_id).get("plan"), said.get("plan")
        if batch_id == known.last_batch_id and (ours == theirs or None in (ours, theirs)):
            return
        ends = f": {said['ends']}" if said.get("ends") else ""
        raise ConfigError(
            f"sink {self._sink_id()} has batch {known.last_batch_id}, and this is another batch {batch_id} than it "
            f"had: the checkpoint {self.options.checkpoint or ''} was put back, or copied from a query that went on. "
            "Nothing of it is written. Put back the newest checkpoint; or begin with a new one (and a new sinkId, or "
            f"in a pipeline a new name of the step), with startingOffsets where the sink ended{ends}"
        )

    def _plan(self, batch_id: int) -> dict[str, str]:
        return batch_plan(self.options.checkpoint, batch_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort(batchId)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool, points: Points = PASS) -> BatchSink:
    """The writer of `df.write`. ConfigError for options, columns or a save mode that cannot be; see `prepare`."""
    if overwrite:
        raise ConfigError('save mode overwrite is not possible: a log is only appended to; use mode("append")')
    parsed = parse(options)
    for name in options:
        if reason := why_inert(name.lower()):
            _log.warning("option %s has no effect: %s", name, reason)
    check_schema(schema, parsed.topic)
    sink = BatchSink(parsed, points)
    sink.prepare()
    return sink


def stream_writer(options: Mapping[str, str], schema: StructType, points: Points = PASS) -> StreamSink:
    """The writer of `df.writeStream`; in output mode complete, every batch appends the whole result, as Spark's Kafka
    sink does. ConfigError for options or columns that cannot be; see `prepare`."""
    parsed = parse(options)
    check_schema(schema, parsed.topic)
    sink = StreamSink(parsed, points)
    sink.prepare()
    return sink


def _said(metadata: bytes | None) -> dict[str, Any]:
    """What a commit's metadata tell; nothing where they are not ours."""
    try:
        said = json.loads(metadata or b"{}")
    except ValueError:
        said = None
    return said if isinstance(said, dict) else {}


def _writer_of(metadata: bytes | None) -> str:
    """Who committed a batch, as its metadata tell."""
    query = _said(metadata).get("query")
    return _writer(query if isinstance(query, str) else None)


def _writer(query_id: str | None) -> str:
    return "df.write" if query_id is None else f"the streaming query {query_id}"
