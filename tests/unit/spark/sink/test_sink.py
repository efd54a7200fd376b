"""The sink without Spark: writers as Spark makes, pickles and calls them, against a cluster in memory."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType, TimestampType
from tests.spark.log_node import log_node
from tests.worlds.fake_sinks import Broker

from duramen.client import Cluster
from duramen.errors import ConfigError, DeadlineError, ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.spark.options.sink_options import NAMES, parse
from duramen.spark.sink import sink, sink_delivery, sink_identity, sink_task
from duramen.spark.sink.sink import TaskDone, batch_writer, stream_writer
from duramen.spark.sink.sink_calls import SupersededError
from duramen.spark.sink.sink_identity import TaskIdentity, checkpoint_query_id, driver_run_id
from duramen.wire.batch import parse_header, records

SCHEMA = StructType().add("key", BinaryType()).add("value", BinaryType())
SPARK = CloudPickleSerializer()
QUERY = "8f2c2b8e-aaaa-bbbb-cccc-0123456789ab"
Row = tuple[bytes | None, bytes]


class Lab:
    """Spark's part: makes writers, pickles them, runs tasks with an identity, commits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch = monkeypatch
        self.folder = folder
        self.broker = Broker({"t": 3, "u": 2})
        monkeypatch.setattr(sink, "Cluster", lambda *a, **k: self.broker.connect())
        self.driver("first")
        (folder / "metadata").write_text(json.dumps({"id": QUERY}))

    def driver(self, life: str) -> None:
        self.monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/tmp/blockmgr-{life}")

    def options(self, **more: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": "x:1", "topic": "t", "checkpointlocation": str(self.folder), **more}

    def stream(self, **more: str) -> Any:
        return stream_writer(self.options(**more), SCHEMA)

    def batch(self, **more: str) -> Any:
        return batch_writer({"kafka.bootstrap.servers": "x:1", "topic": "t", **more}, SCHEMA, False)

    def task(
        self, planned: bytes, rows: list[Row], partition: int = 0, batch_id: int | None = None, query: str = QUERY
    ) -> Any:
        identity = TaskIdentity(partition, 0, None if batch_id is None else query, batch_id)
        self.monkeypatch.setattr(sink, "current_task", lambda: identity)
        return SPARK.loads(SPARK.dumps(SPARK.loads(planned).write(iter([arrow(rows)]))))

    def run_batch(self, batch_id: int, rows: list[Row], *, commit: bool = True, **more: str) -> list[Any]:
        """A micro-batch in two tasks, as a whole."""
        planned = SPARK.dumps(self.stream(**more))
        half = len(rows) // 2
        done = [self.task(planned, part, n, batch_id) for n, part in enumerate((rows[:half], rows[half:]))]
        if commit:
            self.stream(**more).commit(done, batch_id)
        return done

    def values(self) -> list[bytes]:
        return sorted(self.broker.values())


def arrow(rows: list[Row]) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array([key for key, _ in rows], pa.binary()), pa.array([value for _, value in rows], pa.binary())],
        names=["key", "value"],
    )


def numbered(*numbers: int) -> list[Row]:
    return [(str(n % 7).encode(), str(n).encode()) for n in numbers]


def texts(*numbers: int) -> list[bytes]:
    return sorted(str(n).encode() for n in numbers)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lab:
    return Lab(monkeypatch, tmp_path)


# ---- df.write ------------------------------------------------------------------------------------------------------


def test_a_job_is_visible_as_a_whole_or_not_at_all(lab: Lab) -> None:
    planned = SPARK.dumps(lab.batch())
    done = [lab.task(planned, numbered(1, 2, 3), 0), lab.task(planned, numbered(4), 1)]
    assert lab.values() == []
    SPARK.loads(planned).commit(done)
    assert lab.values() == texts(1, 2, 3, 4)
    assert lab.broker.sinks == {}, "the sink of one job is released"


def test_what_a_failed_attempt_staged_is_never_seen(lab: Lab) -> None:
    planned = SPARK.dumps(lab.batch())
    lab.task(planned, numbered(1, 2), 0)
    done = [lab.task(planned, numbered(1, 2), 0)]
    SPARK.loads(planned).commit(done)
    assert lab.values() == texts(1, 2)


def test_a_job_whose_records_take_long_to_their_partitions_does_not_fail(lab: Lab) -> None:
    """It is committed, and nothing undoes that: who is told that it failed writes it again, as another sink."""
    lab.broker.on_the_way = [ErrorCode.REQUEST_TIMED_OUT] * 3
    planned = SPARK.dumps(lab.batch())
    SPARK.loads(planned).commit([lab.task(planned, numbered(1, 2, 3))])
    assert lab.values() == texts(1, 2, 3)
    assert lab.broker.on_the_way == []
    assert lab.broker.calls.count("CommitStaged") == 4


def test_a_job_that_is_known_to_be_committed_does_not_fail_when_the_node_goes(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.broker.on_the_way = [ErrorCode.REQUEST_TIMED_OUT]
    lab.broker.lost_after["CommitStaged"] = 1
    planned = SPARK.dumps(lab.batch())
    SPARK.loads(planned).commit([lab.task(planned, numbered(1, 2))])
    assert "batch 0 is committed, and the node went before all of it could be read" in caplog.text


def test_a_job_that_fails_behind_a_commit_that_took_effect_says_so(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """The answer was lost for good: who knows nothing writes it again."""
    planned = SPARK.dumps(lab.batch())
    done = [lab.task(planned, numbered(1, 2))]
    lab.broker.answers_lost.add("CommitStaged")
    job = SPARK.loads(planned)
    with pytest.raises(DeadlineError):
        job.commit(done)
    job.abort(done)
    assert "its commit took effect, though it failed here: what is written again will be there twice" in caplog.text
    assert lab.values() == texts(1, 2)


def test_an_aborted_job_leaves_nothing(lab: Lab) -> None:
    planned = SPARK.dumps(lab.batch())
    done = lab.task(planned, numbered(1, 2), 0)
    SPARK.loads(planned).abort([done, None])
    assert lab.broker.values() == []
    assert lab.broker.sinks == {}


def test_a_rerun_with_sink_and_batch_id_writes_nothing_twice(lab: Lab) -> None:
    for _ in range(2):
        planned = SPARK.dumps(lab.batch(sinkid="nightly", batchid="20261121"))
        SPARK.loads(planned).commit([lab.task(planned, numbered(1, 2, 3))])
    assert lab.values() == texts(1, 2, 3)
    assert lab.broker.sinks["nightly"].last == 20261121
    with pytest.raises(ConfigError, match="sinkId and batchId go together"):
        lab.batch(sinkid="nightly")


def test_other_rows_under_a_number_that_is_taken_are_warned_of(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of them is written, as was asked; who gave a number twice by mistake heard nothing."""

    def write(batch_id: str, *numbers: int) -> None:
        planned = SPARK.dumps(lab.batch(sinkid="nightly", batchid=batch_id))
        SPARK.loads(planned).commit([lab.task(planned, numbered(*numbers))])

    write("6", 0)
    write("7", 1, 2)
    write("7", 1, 2)
    assert caplog.text == ""
    write("7", 3, 4, 5)
    assert "sink nightly has batch 7 already with 2 rows: nothing of these 3 rows is written" in caplog.text
    write("6", 9)
    assert "sink nightly has batch 6 already, and others up to 7: nothing of these 1 rows" in caplog.text
    assert lab.values() == texts(0, 1, 2)


def test_two_topics_under_one_number_are_refused(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """Two writes in one foreachBatch with as many rows: those of the second were nowhere, without a word."""

    def write(topic: str, *numbers: int) -> None:
        planned = SPARK.dumps(lab.batch(sinkid="nightly", batchid="7", topic=topic))
        SPARK.loads(planned).commit([lab.task(planned, numbered(*numbers))])

    write("t", 1, 2)
    with pytest.raises(ConfigError, match="has batch 7 already, of topic t: nothing of these 2 rows for u is written"):
        write("u", 3, 4)
    write("t", 1, 2)
    assert caplog.text == ""
    assert lab.values() == texts(1, 2)


def test_overwrite_is_refused(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="only appended to"):
        batch_writer(lab.options(), SCHEMA, True)


# ---- df.writeStream ------------------------------------------------------------------------------------------------


def test_a_query_goes_on_after_its_driver_was_lost_at_any_moment(lab: Lab) -> None:
    lab.run_batch(0, numbered(1, 2))
    lab.run_batch(1, numbered(3, 4), commit=False)  # lost before its commit
    lab.driver("second")
    lab.run_batch(1, numbered(3, 4))
    lab.driver("third")  # lost between the commit and Spark's own commit log
    done = lab.run_batch(1, numbered(3, 4))
    assert [message.handles for message in done] == [(), ()]
    lab.run_batch(2, numbered(5, 6))
    assert lab.values() == texts(1, 2, 3, 4, 5, 6)


def plan(lab: Lab, batch_id: int, end: int) -> None:
    """Spark writes down where a batch ends before it runs, and when that was."""
    (lab.folder / "offsets").mkdir(exist_ok=True)
    text = f'v1\n{{"batchTimestampMs":{end}}}\n{{"in":{{"0":{end}}}}}'
    (lab.folder / "offsets" / str(batch_id)).write_text(text)


@pytest.mark.parametrize("back", [1, 2])
def test_a_checkpoint_that_was_put_back_is_refused(lab: Lab, back: int) -> None:
    """It plans other rows under numbers that the sink has had: they were taken for written, and were nowhere."""
    for batch_id in range(3):
        plan(lab, batch_id, 2 * batch_id + 2)
        lab.run_batch(batch_id, numbered(2 * batch_id, 2 * batch_id + 1))
    lab.driver("second")
    lab.run_batch(2, numbered(4, 5))  # that one ran, and Spark's own commit log did not know
    plan(lab, 3 - back, 50)
    with pytest.raises(ConfigError, match=r'has batch 2,.* was put back, or.* where the sink ended: {"in":{"0":6}}'):
        lab.run_batch(3 - back, numbered(*range(6 - 2 * back, 50)))
    assert lab.values() == texts(0, 1, 2, 3, 4, 5)


def test_an_abort_after_a_commit_that_took_effect_undoes_nothing(lab: Lab) -> None:
    done = lab.run_batch(0, numbered(1, 2))
    lab.stream().abort(done, 0)
    lab.stream().abort([None, None], 0)
    assert lab.values() == texts(1, 2)


def test_the_second_driver_on_a_checkpoint_fences_the_first(lab: Lab) -> None:
    first = lab.run_batch(0, numbered(1, 2), commit=False)
    planned = SPARK.dumps(lab.stream())
    lab.driver("second")
    lab.run_batch(0, numbered(1, 2))
    lab.driver("first")
    with pytest.raises(SupersededError, match="another run writes as sink spark-query-8f2c"):
        lab.stream().commit(first, 0)
    with pytest.raises(SupersededError):
        lab.task(planned, numbered(9), batch_id=1)
    with pytest.raises(SupersededError):
        lab.stream()
    assert lab.values() == texts(1, 2)


def test_a_new_checkpoint_under_an_old_sink_id_is_refused(lab: Lab) -> None:
    lab.run_batch(0, numbered(1, 2), sinkid="mine")
    planned = SPARK.dumps(lab.stream(sinkid="mine", checkpointlocation="/elsewhere"))
    with pytest.raises(ConfigError, match=f"written by the streaming query {QUERY}"):
        lab.task(planned, numbered(3), batch_id=0, query="another")
    assert lab.values() == texts(1, 2)


def test_a_stream_under_the_sink_id_of_jobs_is_refused(lab: Lab) -> None:
    """Their numbers are the user's: a batch of the stream that has one of them would be taken for written."""
    planned = SPARK.dumps(lab.batch(sinkid="mine", batchid="0"))
    SPARK.loads(planned).commit([lab.task(planned, numbered(1, 2))])
    with pytest.raises(ConfigError, match=f"written by df.write, and this is the streaming query {QUERY}"):
        lab.task(SPARK.dumps(lab.stream(sinkid="mine")), numbered(3), batch_id=0)
    assert lab.values() == texts(1, 2)


def test_a_job_under_the_sink_id_of_a_stream_is_refused(lab: Lab) -> None:
    """Its number is one that the stream had, so that its rows would be taken for written, and be nowhere."""
    lab.run_batch(0, numbered(1, 2), sinkid="mine")
    planned = SPARK.dumps(lab.batch(sinkid="mine", batchid="0"))
    with pytest.raises(ConfigError, match=f"sink mine was written by the streaming query {QUERY}"):
        lab.task(planned, numbered(3))
    with pytest.raises(ConfigError, match=f"sink mine was written by the streaming query {QUERY}"):
        SPARK.loads(planned).commit([TaskDone(None, (), 0, 0)])
    assert lab.values() == texts(1, 2)


def test_a_job_of_foreach_batch_is_a_job(lab: Lab) -> None:
    """Spark tells its tasks the stream they are of; its numbers are its user's all the same."""
    planned = SPARK.dumps(lab.batch(sinkid="mine", batchid="0"))
    SPARK.loads(planned).commit([lab.task(planned, numbered(1), batch_id=0)])
    again = SPARK.dumps(lab.batch(sinkid="mine", batchid="0"))
    SPARK.loads(again).commit([lab.task(again, numbered(1))])
    with pytest.raises(ConfigError, match=r"was written by df\.write"):
        lab.task(SPARK.dumps(lab.stream(sinkid="mine")), numbered(3), batch_id=0)
    assert lab.values() == texts(1)


def test_a_share_whose_topic_was_deleted_behind_the_tasks_is_warned_of(
    lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with log_node(tmp_path) as node:
        lab.monkeypatch.setattr(sink, "Cluster", Cluster)
        options = {"kafka.bootstrap.servers": node.bootstrap, "topic": node.create("short-lived")}
        planned = SPARK.dumps(batch_writer(options, SCHEMA, False))
        done = lab.task(planned, numbered(1, 2, 3))
        node.delete("short-lived")
        node.create("short-lived")
        SPARK.loads(planned).commit([done])
    assert ": 3 records for short-lived-0 are dropped, because the topic was deleted meanwhile" in caplog.text


@pytest.mark.parametrize("makes", [True, False])
def test_a_topic_that_is_not_there_is_made_as_for_any_producer_or_the_line_to_type_is_said(
    lab: Lab, tmp_path: Path, makes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the option and of the column `topic`, for jobs, streams and either delivery."""
    settings = {"auto_create_topics_enable": str(makes).lower(), "num_partitions": "3"}
    to_type = r"topic {} does not exist.*: duramen topic create {} --partitions 3$"
    with log_node(tmp_path, **settings) as node, Cluster(node.bootstrap) as cluster:
        lab.monkeypatch.setattr(sink, "Cluster", Cluster)
        given = {"kafka.bootstrap.servers": node.bootstrap}
        for name, delivery, made_by in (
            ("of-job", "exactly-once", lambda more: batch_writer(more, SCHEMA, False)),
            ("of-job-twice", "at-least-once", lambda more: batch_writer(more, SCHEMA, False)),
            ("of-stream", "exactly-once", lambda more: stream_writer({**more, "sinkId": "s"}, SCHEMA)),
        ):
            options = {**given, "topic": name, "delivery": delivery}
            if not makes:
                with pytest.raises(KafkaError, match=to_type.format(name, name)):
                    made_by(options)
                continue
            made_by(options)
            assert cluster.partitions(name) == [0, 1, 2]
            assert f"topic {name} did not exist" in caplog.text
        planned = batch_writer(given, StructType().add("topic", "string").add("value", "binary"), False)
        identity = TaskIdentity(0, 0, None, None)
        lab.monkeypatch.setattr(sink, "current_task", lambda: identity)
        rows = pa.RecordBatch.from_pydict({"topic": ["by-column"], "value": [b"v"]})
        rows = rows.set_column(1, "value", rows["value"].cast(pa.binary()))
        if makes:
            planned.commit([planned.write(iter([rows]))])
            assert cluster.partitions("by-column") == [0, 1, 2]
        else:
            with pytest.raises(KafkaError, match=to_type.format("by-column", "by-column")):
                planned.write(iter([rows]))


def test_two_queries_of_one_driver_under_one_sink_id_are_told_apart_at_the_commit(lab: Lab) -> None:
    """Neither had committed anything when the other began, and Spark's own options told the sink no checkpoint."""
    options = {"kafka.bootstrap.servers": "x:1", "topic": "t", "sinkid": "mine"}
    planned = SPARK.dumps(stream_writer(options, SCHEMA))
    one = lab.task(planned, numbered(1), batch_id=0, query="one")
    two = lab.task(planned, numbered(2), batch_id=0, query="two")
    stream_writer(options, SCHEMA).commit([one], 0)
    with pytest.raises(ConfigError, match="written by the streaming query one"):
        stream_writer(options, SCHEMA).commit([two], 0)
    assert lab.values() == texts(1)


def test_a_stream_needs_a_name_that_lasts(lab: Lab, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": "x:1", "topic": "t"}
    with pytest.raises(ConfigError, match="set the option checkpointLocation"):
        SPARK.dumps(stream_writer(options, SCHEMA))
    with pytest.raises(ConfigError, match="set a sinkId"):
        SPARK.dumps(stream_writer({**options, "checkpointlocation": str(tmp_path / "none")}, SCHEMA))
    with pytest.raises(ConfigError, match="batchId is for"):
        stream_writer(lab.options(batchid="1", sinkid="x"), SCHEMA)


def test_the_query_id_is_read_from_paths_as_spark_writes_them(lab: Lab) -> None:
    for place in (str(lab.folder), f"{lab.folder}/", f"file:{lab.folder}", f"file://{lab.folder}"):
        assert checkpoint_query_id(place) == QUERY


def test_a_run_is_a_life_of_the_driver_and_a_checkpoint() -> None:
    assert driver_run_id("a", {"SPARK_LOCAL_DIRS": "x"}) == driver_run_id("a", {"SPARK_LOCAL_DIRS": "x"})
    assert len({driver_run_id(s, {"SPARK_LOCAL_DIRS": d}) for s in "ab" for d in "xy"}) == 4
    with pytest.raises(ConfigError, match="SPARK_LOCAL_DIRS"):
        driver_run_id("a", {})
    with pytest.raises(ConfigError, match="tasks"):
        sink_identity.current_task()


# ---- refusals and retries of the node ------------------------------------------------------------------------------


def test_a_partition_that_cannot_just_now_is_asked_again_in_order(lab: Lab) -> None:
    lab.broker.partition_refusals = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    lab.run_batch(0, numbered(*range(20)))
    assert lab.values() == texts(*range(20))


def test_a_partition_that_never_can_fails_the_task(lab: Lab) -> None:
    lab.broker.partition_refusals = [ErrorCode.MESSAGE_TOO_LARGE]
    with pytest.raises(KafkaError, match="t-") as refused:
        lab.run_batch(0, numbered(1, 2))
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_staging_that_was_swept_fails_the_commit(lab: Lab) -> None:
    done = lab.run_batch(0, numbered(1, 2), commit=False)
    lab.broker.sinks[f"spark-query-{QUERY}"].staged.clear()
    with pytest.raises(KafkaError, match="RESOURCE_NOT_FOUND"):
        lab.stream().commit(done, 0)


def test_calls_stay_below_what_the_node_takes(lab: Lab) -> None:
    lab.broker.max_staged_bytes = 20_000
    rows = [(b"k", bytes(5000)) for _ in range(40)]
    lab.run_batch(0, rows, **{"kafka.batch.size": "12000"})
    assert len(lab.values()) == 40
    assert lab.broker.calls.count("StageBatch") > 10


def test_a_write_to_many_partitions_takes_few_handles(lab: Lab) -> None:
    """One of a call: tasks times partitions would be more than a node takes."""
    lab.broker.topics["wide"] = 300
    lab.broker.max_handles = 4
    planned = SPARK.dumps(lab.batch(topic="wide"))
    rows = [[(str(n).encode(), f"{task}:{n}".encode()) for n in range(2000)] for task in range(4)]
    done = [lab.task(planned, part, task) for task, part in enumerate(rows)]
    SPARK.loads(planned).commit(done)
    assert sorted(lab.broker.values()) == sorted(value for part in rows for _, value in part)
    assert len(lab.broker.log) == 300


def test_batches_wait_for_others_of_their_partition_and_keep_their_order(lab: Lab) -> None:
    """Windows of rows bring a little to every partition; what is stored of each at once is more, in bounded memory."""
    lab.monkeypatch.setattr(sink_task, "WINDOW_BYTES", 20_000)
    lab.monkeypatch.setattr(sink_delivery, "CALL_BYTES", 20_000)
    lab.monkeypatch.setattr(sink_delivery, "BUFFER_BYTES", 200_000)
    lab.broker.topics["wide"] = 50
    planned = SPARK.dumps(lab.batch(topic="wide"))
    identity = TaskIdentity(0, 0, None, None)
    lab.monkeypatch.setattr(sink, "current_task", lambda: identity)
    # Some partitions get far more than others.
    keys = [str(n * n % 97 if n % 3 else 5).encode() for n in range(10_000)]
    rows = [(key, b"%05d" % n + bytes(95)) for n, key in enumerate(keys)]
    done = SPARK.loads(planned).write(iter([arrow(rows[at : at + 100]) for at in range(0, len(rows), 100)]))
    (job,) = lab.broker.sinks.values()
    sizes = [len(data) for held in job.staged.values() for _, data in held.parts]
    calls = [sum(len(data) for _, data in held.parts) for held in job.staged.values()]
    assert len(sizes) < 50 * 50 / 3, "fewer than a piece for each window and partition"
    assert max(calls) < 60_000
    SPARK.loads(planned).commit([done])
    assert sorted(lab.broker.values()) == sorted(value for _, value in rows)
    for found in by_partition(lab.broker).values():
        numbers = [record.value[:5] for record in found]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("codec", ["none", "snappy", "lz4"])
@pytest.mark.parametrize("limit", [2000, 100_000, None])
def test_batches_stay_below_what_the_topic_takes(lab: Lab, codec: str, limit: int | None) -> None:
    """The cluster in memory refuses larger ones as a node does; where nobody may ask, Kafka's default is kept."""
    lab.broker.max_message_bytes = limit
    rows = [(b"k", random.Random(n).randbytes(900)) for n in range(2000)]
    lab.run_batch(0, rows, compression=codec)
    sizes = [len(batch) for found in lab.broker.log.values() for batch in found]
    assert len(lab.values()) == 2000
    assert max(sizes) > (limit or 500_000) // 3


# ---- columns -------------------------------------------------------------------------------------------------------


def by_partition(broker: Broker) -> dict[TopicPartition, list[Any]]:
    return {tp: [r for batch in found for r in records(batch, max_bytes=1 << 20)] for tp, found in broker.log.items()}


def test_topic_partition_headers_and_timestamp_come_from_their_columns(lab: Lab) -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.record_batch(
        {
            "extra": pa.array([1, 2, 3]),
            "value": pa.array(["a", "b", "c"]),
            "topic": pa.array(["u", "t", "u"]),
            "partition": pa.array([1, 2, None], pa.int32()),
            "headers": pa.array([[{"key": "h", "value": b"1"}], None, []], headers),
            "timestamp": pa.array([1_700_000_000_123_456, None, 0], pa.timestamp("us", "UTC")),
        }
    )
    planned = SPARK.dumps(batch_writer({"bootstrap.servers": "x:1"}, whole_schema(), False))
    lab.monkeypatch.setattr(sink, "current_task", lambda: TaskIdentity(0, 0, None, None))
    SPARK.loads(planned).commit([SPARK.loads(planned).write(iter([table]))])
    found = by_partition(lab.broker)
    assert {tp: [r.value for r in rows] for tp, rows in found.items()} == {
        TopicPartition("u", 1): [b"a"],
        TopicPartition("t", 2): [b"b"],
        TopicPartition("u", 0): [b"c"],
    }
    (first,) = found[TopicPartition("u", 1)]
    assert (first.headers, first.timestamp) == ([(b"h", b"1")], 1_700_000_000_123)
    assert found[TopicPartition("u", 0)][0].timestamp == 0
    assert found[TopicPartition("t", 2)][0].timestamp > 1_700_000_000_123


def whole_schema() -> StructType:
    header = StructType().add("key", StringType()).add("value", BinaryType())
    return (
        StructType()
        .add("extra", IntegerType())
        .add("value", StringType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("headers", ArrayType(header))
        .add("timestamp", TimestampType())
    )


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (StructType().add("key", StringType()), "no column value"),
        (StructType().add("value", IntegerType()), "value must be string or binary, it is int"),
        (StructType().add("value", BinaryType()).add("partition", StringType()), "partition must be int"),
        (StructType().add("value", StringType()).add("headers", StringType()), "headers must be array<struct<key"),
        (StructType().add("value", StringType()).add("timestamp", IntegerType()), "timestamp must be timestamp"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_with_the_reason(schema: StructType, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        batch_writer({"bootstrap.servers": "x:1", "topic": "t"}, schema, False)


@pytest.mark.parametrize(
    ("column", "values", "code"),
    [
        ("topic", pa.array([None], pa.string()), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("partition", pa.array([7], pa.int32()), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("partition", pa.array([-1], pa.int32()), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("timestamp", pa.array([-1], pa.timestamp("us", "UTC")), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_a_row_that_cannot_be_written_fails_its_task(lab: Lab, column: str, values: pa.Array, code: ErrorCode) -> None:
    table = pa.record_batch({"value": pa.array(["a"]), "topic": pa.array(["t"])} | {column: values})
    planned = SPARK.dumps(batch_writer({"bootstrap.servers": "x:1"}, whole_schema(), False))
    lab.monkeypatch.setattr(sink, "current_task", lambda: TaskIdentity(0, 0, None, None))
    with pytest.raises(KafkaError) as refused:
        SPARK.loads(planned).write(iter([table]))
    assert refused.value.code == code


# ---- at least once -------------------------------------------------------------------------------------------------


def test_a_foreign_kafka_is_refused_exactly_once_and_served_at_least_once(lab: Lab) -> None:
    lab.broker.foreign = True
    with pytest.raises(ConfigError, match="set the option delivery to at-least-once"):
        SPARK.dumps(lab.batch())
    planned = SPARK.dumps(lab.batch(delivery="at-least-once"))
    lab.broker.refusals["Produce"] = [ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
    lab.task(planned, [(b"k", b"lost answer")], 0)
    assert lab.broker.calls == []


def test_at_least_once_says_in_headers_which_row_it_is_and_counts_sequences(lab: Lab) -> None:
    planned = SPARK.dumps(lab.stream(delivery="at-least-once", **{"kafka.batch.size": "100"}))
    done = lab.task(planned, numbered(*range(30)), partition=4, batch_id=9)
    lab.stream(delivery="at-least-once").commit([done], 9)
    seen = []
    for batches in lab.broker.log.values():
        expected = 0
        for batch in batches:
            header = parse_header(batch)
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1, 0, expected)
            expected += header.count
            for record in records(batch, max_bytes=1 << 20):
                headers = dict(record.headers)
                assert headers[b"duramen.sink"] == f"spark-query-{QUERY}".encode()
                assert (headers[b"duramen.batch"], headers[b"duramen.partition"]) == (b"9", b"4")
                assert headers[b"duramen.seq"] == record.value
                seen.append(record.value)
    assert sorted(seen) == texts(*range(30))


# ---- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "kafka.bootstrap.servers is missing"),
        ({"topc": "x"}, "unknown option topc"),
        ({"kafka.acks": "1"}, "kafka.acks=1 is not possible.*durable"),
        ({"kafka.key.serializer": "x"}, "kafka.key.serializer is not supported"),
        ({"kafka.security.protocol": "SSL"}, "PLAINTEXT"),
        ({"delivery": "exactly-twice"}, "exactly-once or at-least-once"),
        ({"compression": "brotli"}, "none or gzip or snappy or lz4 or zstd"),
        ({"batchId": "x"}, "not a number"),
        ({"batchId": "-1"}, "at least 0"),
        ({"sinkId": ""}, "1 to 249 bytes"),
        ({"kafka.linger.ms": "soon"}, "not a number"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, str], message: str) -> None:
    given = {"bootstrap.servers": "x:1", "topic": "t", **options} if options else {"topic": "t"}
    with pytest.raises(ConfigError, match=message):
        batch_writer(given, SCHEMA, False)


def test_every_option_of_the_table_is_taken(lab: Lab) -> None:
    values: dict[str, str] = {
        "delivery": "exactly-once", "sinkId": "s", "compression": "zstd", "includeHeaders": "true",
        "kafka.acks": "all", "kafka.enable.idempotence": "true", "kafka.compression.type": "lz4",
        "kafka.batch.size": "1000", "kafka.linger.ms": "5", "kafka.request.timeout.ms": "1000",
        "kafka.delivery.timeout.ms": "2000", "kafka.security.protocol": "PLAINTEXT",
        "kafka.partitioner.ignore.keys": "false",
    }  # fmt: skip
    given: dict[str, str] = {name: values.get(name, "1") for name in NAMES.values()}
    parsed = parse(given)
    assert (parsed.codec, parsed.batch_bytes, parsed.request_timeout_s, parsed.delivery_timeout_s) == (4, 1000, 1, 2)
    assert parse({"kafka.bootstrap.servers": "x", "kafka.compression.type": "gzip"}).codec == 1
