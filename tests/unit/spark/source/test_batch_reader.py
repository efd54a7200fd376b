"""Planning and reading against a served node, without Spark: ranges, losses, limits, a topic whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType
from tests.spark.log_node import LogNode, log_node

from duramen.client import EARLIEST, LATEST, Cluster
from duramen.client.blocking.segment_plans import describe_segments
from duramen.client.protocol.segments import DescribedPartition, SegmentPlan
from duramen.errors import ConfigError, ErrorCode, KafkaError, TopicReplacedError
from duramen.model import TopicPartition
from duramen.spark.codec.partitioner import murmur2
from duramen.spark.options.positions import from_json, to_json
from duramen.spark.source.batch_reader import DuramenReader
from duramen.spark.source.data_loss import DataLossError
from duramen.spark.source.plan import Split, splits_of
from duramen.spark.source.settings import SourceSettings
from duramen.spark.source.sizes import UNTOLD, layout
from duramen.spark.source.stream_reader import DuramenStreamReader
from duramen.wire.batch import NewRecord, build_batch

TRAVEL = CloudPickleSerializer()
KINDS = {"key": "binary", "value": "binary", "offset": "long", "partition": "integer", "topic": "string"}


def schema(*names: str) -> StructType:
    made = StructType()
    for name in names or ("offset", "value"):
        made = made.add(name, KINDS[name])
    return made


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogNode]:
    with log_node(tmp_path_factory.mktemp("log"), log_retention_ms="-1", offsets_topic_num_partitions="2") as served:
        yield served


def records(count: int, first: int = 0) -> list[NewRecord]:
    return [(b"k%d" % (n % 5), b"value %d" % n, (), 1000 + n) for n in range(first, first + count)]


def reader(node: LogNode, topic: str, **options: Any) -> DuramenReader:
    given = {"kafka.bootstrap.servers": node.bootstrap, "subscribe": topic, **options}
    return DuramenReader({name: str(value) for name, value in given.items()}, schema())


def stream(node: LogNode, topic: str, **options: Any) -> DuramenStreamReader:
    given = {"kafka.bootstrap.servers": node.bootstrap, "subscribe": topic, "startingOffsets": "earliest", **options}
    return DuramenStreamReader({name: str(value) for name, value in given.items()}, schema())


def plain(offsets: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Without the topics' ids."""
    return to_json(from_json(offsets))


def rows(source: DuramenReader | DuramenStreamReader, parts: list[Any]) -> list[tuple[int, bytes]]:
    """What the tasks make of the splits, after the journey that Spark sends them on."""
    found = []
    for part in parts:
        there, split = TRAVEL.loads(TRAVEL.dumps((source, part)))
        for batch in there.read(split):
            found += [(row["offset"], row["value"]) for row in batch.to_pylist()]
    return found


def test_where_logs_start_is_told_with_their_segments_or_asked(node: LogNode, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = node.create("started", 2)
    for partition in (0, 1):
        node.append(topic, partition, records(30))
        node.append(topic, partition, records(30))
        node.delete_before(topic, partition, 10 + partition)
    asked: list[set[int]] = []
    listed = Cluster.list_offsets

    def noting(cluster: Cluster, wanted: Any, *more: Any, **options: Any) -> Any:
        asked.append(set(wanted.values()))
        return listed(cluster, wanted, *more, **options)

    monkeypatch.setattr(Cluster, "list_offsets", noting)
    source = stream(node, topic, failOnDataLoss=False)
    span: tuple[Any, Any] = {topic: {"0": 0, "1": 0}}, {topic: {"0": 60, "1": 60}}
    assert [(split.start, split.end) for split in source.partitions(*span)] == [(10, 60), (11, 60)]
    assert not asked
    monkeypatch.setattr("duramen.spark.source.stream_reader.layout", lambda *_: UNTOLD)
    assert [(split.start, split.end) for split in source.partitions(*span)] == [(10, 60), (11, 60)]
    assert asked == [{EARLIEST}]
    source.stop()
    for told, expected in ((layout, [{LATEST}]), (lambda *_: UNTOLD, [{LATEST}, {EARLIEST}])):
        asked.clear()
        monkeypatch.setattr("duramen.spark.source.batch_reader.layout", told)
        assert [(split.start, split.end) for split in reader(node, topic).partitions()] == [(10, 60), (11, 60)]
        assert asked == expected


def test_small_ranges_are_read_by_few_tasks_with_one_connection_each(
    node: LogNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = node.create("small", 30)
    with Cluster(node.bootstrap) as cluster:
        for partition in range(30):
            for first in (0, 10):
                batch = build_batch(records(10, first), compression=partition % 5)
                cluster.produce(TopicPartition(topic, partition), batch)
        cluster.produce(TopicPartition(topic, 7), build_batch([(None, bytes(100_000), (), 1)]))
        cluster.produce(TopicPartition(topic, 7), build_batch([(None, bytes(100_000), (), 1)]))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    given = {"kafka.bootstrap.servers": node.bootstrap, "subscribe": topic, "failOnDataLoss": "false"}
    source = DuramenReader(given, schema("partition", "offset"))
    tasks = source.partitions()
    assert len(tasks) == 4
    node.delete_before(topic, 3, 15)
    connected, asked = [], []
    connect, fetch = SourceSettings.connect, Cluster.fetch_many
    monkeypatch.setattr(SourceSettings, "connect", lambda self: (connected.append(1), connect(self))[1])
    monkeypatch.setattr(
        Cluster,
        "fetch_many",
        lambda self, wanted, *more, **to: (asked.append(len(wanted)), fetch(self, wanted, *more, **to))[1],
    )
    batches = 0
    for task in tasks:
        made = list(source.read(task))
        batches += len(made)
        for split in splits_of(task):
            held = [row["offset"] for batch in made for row in batch.to_pylist() if row["partition"] == split.partition]
            assert held == list(range(15 if split.partition == 3 else 0, split.end))
    assert len(connected) == 4
    assert sum(asked) >= 30
    assert len(asked) < 12, "one question for all, and one for each that is large or not where it was"
    assert batches < 10


@pytest.mark.parametrize("options", [{}, {"keyEquals": "k1"}, {"timestampRange": "1003,1012"}])
def test_packed_ranges_are_read_as_each_alone(
    options: dict[str, str], node: LogNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = node.create(f"alone-{'-'.join(options)}", 9)
    for partition in range(9):
        node.append(topic, partition, records(10 + partition), codec=partition % 3)
        node.append(topic, partition, records(5, 10), codec=partition % 3)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    offsets = json.dumps({topic: {str(partition): partition for partition in range(9)}})
    given = {"kafka.bootstrap.servers": node.bootstrap, "subscribe": topic, "startingOffsets": offsets, **options}
    kinds = schema("partition", "offset", "topic", "value")
    source = DuramenReader(given, kinds)
    alone = DuramenReader({**given, "minPartitions": "9"}, kinds)

    def found(tasks: list[Any]) -> list[dict[str, Any]]:
        return [row for task in tasks for batch in source.read(task) for row in batch.to_pylist()]

    packs = source.partitions()
    wanted = found(alone.partitions())
    assert len(packs) == 4
    assert len(alone.partitions()) == 9
    assert len({row["partition"] for row in wanted}) == 9
    assert found(packs) == wanted

    def broken(*_: Any) -> Any:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "one of them")

    monkeypatch.setattr("duramen.spark.source.tasks.decode_together", broken)
    assert found(packs) == wanted, "each is decoded by itself then"


def test_a_pack_of_a_topic_made_anew_is_lost(node: LogNode, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = node.create("anew-packed", 6)
    for partition in range(6):
        node.append(topic, partition, records(5))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    tasks, quiet = reader(node, topic).partitions(), reader(node, topic, failOnDataLoss=False)
    assert 2 < len(tasks) < 6
    node.delete(topic)
    node.create(topic, 6)
    for partition in range(6):
        node.append(topic, partition, records(5))
    assert rows(quiet, tasks) == []
    with pytest.raises(TopicReplacedError):
        rows(reader(node, topic), tasks)


def test_a_topic_is_read_whole_and_in_order_from_many_splits(node: LogNode) -> None:
    topic = node.create("whole", 2)
    for number in range(10):
        node.append(topic, 0, [(None, bytes(20_000), (), 1)] * 10, codec=0)
        node.append(topic, 1, records(50, 50 * number), codec=3)
    source = reader(node, topic, targetPartitionBytes=400_000)
    parts = source.partitions()
    assert [part.partition for part in parts] == [0, 0, 0, 0, 0, 0, 1]
    assert [offset for offset, _ in rows(source, parts)] == [*range(100), *range(500)]


def test_ranges_by_offsets_and_by_time(node: LogNode) -> None:
    topic = node.create("ranges")
    for number in range(5):
        node.append(topic, 0, records(10, 10 * number))
    for options, expected in (
        ({"startingOffsets": '{"ranges":{"0":7}}', "endingOffsets": '{"ranges":{"0":12}}'}, range(7, 12)),
        ({"startingTimestamp": 1015, "endingTimestamp": 1030}, range(15, 30)),
        ({"startingOffsetsByTimestamp": '{"ranges":{"0":1045}}'}, range(45, 50)),
        ({"startingTimestamp": 9999, "startingOffsetsByTimestampStrategy": "latest"}, range(0)),
        ({"endingTimestamp": 9999}, range(50)),
        ({"timestampRange": "1012,1015"}, range(12, 15)),
        ({"timestampRange": "1012,1015", "timestampLateness": "0"}, range(12, 15)),
        ({"timestampRange": "1012,", "timestampLateness": "1 day"}, range(12, 50)),
        ({"startingTimestamp": 1048, "startingOffsets": "latest"}, range(48, 50)),
        ({"startingTimestamp": 1048, "endingOffsets": '{"ranges":{"0":49}}'}, range(48, 49)),
        ({"startingOffsets": '{"ranges":{"0":-2}}', "endingOffsets": '{"ranges":{"0":-1}}'}, range(50)),
    ):
        source = reader(node, topic, **options)
        assert [offset for offset, _ in rows(source, source.partitions())] == list(expected), options


def test_records_that_come_while_a_batch_is_planned_by_time_are_not_missed_in_it(
    node: LogNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie behind the end that the plan has seen: neither lost, nor asked for too early."""

    class Busy(Cluster):
        def list_offsets(self, wanted: Any, *rest: Any, **named: Any) -> Any:
            answer = super().list_offsets(wanted, *rest, **named)
            for tp in [tp for tp, where in wanted.items() if where == LATEST]:
                node.append(tp.topic, tp.partition, [(None, b"", (), 1009), (None, b"", (), 2000)])
            return answer

    for topic in ("until-now", "since-now"):
        node.append(node.create(topic), 0, records(10))
    monkeypatch.setattr("duramen.spark.source.settings.Cluster", Busy)
    until_now = reader(node, "until-now", endingTimestamp=2000)
    assert [offset for offset, _ in rows(until_now, until_now.partitions())] == list(range(10))
    since_now = reader(node, "since-now", startingTimestamp=2000)
    assert since_now.partitions() == []


def test_a_range_of_time_ends_where_nothing_late_can_follow(node: LogNode) -> None:
    topic = node.create("late", 2)
    times = [1000, 1010, 1004, 1020, 1013, 1009, 1030, 1021, 1040]  # none is older than one before it by more than 11
    for time in times:
        node.append(topic, 0, [(None, b"v", (), time)])
    node.append(topic, 1, [(None, b"v", (), 5)] * 3)  # all too old
    everything = reader(node, topic, timestampRange="1004,1010")
    expected = [offset for offset, time in enumerate(times) if 1004 <= time < 1010]
    assert [(part.partition, part.start, part.end) for part in everything.partitions()] == [(0, 1, 9)]
    assert [offset for offset, _ in rows(everything, everything.partitions())] == expected == [2, 5]
    bounded = reader(node, topic, timestampRange="1004,1010", timestampLateness="11ms")
    assert [(part.partition, part.start, part.end) for part in bounded.partitions()] == [(0, 1, 6)]
    assert [offset for offset, _ in rows(bounded, bounded.partitions())] == expected
    before_all = reader(node, topic, timestampRange="1,2", timestampLateness="0")
    assert before_all.partitions() == []


def test_a_range_of_time_that_is_open_in_front_has_records_without_a_time(node: LogNode) -> None:
    topic = node.create("timeless", 2)
    node.append(topic, 0, [(None, b"v", (), time) for time in (-1, 5, -1, 50)])
    node.append(topic, 1, [(None, b"v", (), -1)] * 2)
    for times, expected in ((",40", [0, 1, 2, 0, 1]), ("-1,5", [0, 2, 0, 1]), ("0,40", [1])):
        source = reader(node, topic, timestampRange=times)
        assert [offset for offset, _ in rows(source, source.partitions())] == expected, times


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timestampLateness": "1s"}, "timestampLateness says where timestampRange ends"),
        ({"startingOffsets": "latest"}, "startingOffsets of a batch query must not be latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets must be latest or offsets"),
        ({"startingOffsets": '{"refused":{"0":1,"1":1}}'}, "startingOffsets must name every partition"),
        ({"startingOffsets": '{"other":{"0":1}}'}, "leaves out refused-0"),
        ({"endingOffsets": '{"refused":{"0":999}}'}, "refused-0 ends at 5, so that 999 is not there yet"),
        ({"startingTimestamp": 99999}, "no record at or after 99999 ms"),
        ({"startingTimestamp": 7, "endingTimestamp": 6}, "startingTimestamp is 7, behind endingTimestamp, which is 6"),
        (
            {"startingOffsets": '{"refused":{"0":3}}', "endingOffsets": '{"refused":{"0":2}}'},
            "startingOffsets of refused-0 is 3, behind endingOffsets, which is 2",
        ),
        ({"assign": '{"refused":[0]}'}, "exactly one of assign, subscribe, subscribePattern"),
    ],
)
def test_ranges_that_cannot_be_are_refused_with_the_reason(node: LogNode, options: dict[str, Any], said: str) -> None:
    with Cluster(node.bootstrap) as cluster:
        known = cluster.metadata().topics
    if "refused" not in known:
        node.append(node.create("refused"), 0, records(5))
    with pytest.raises(ConfigError, match=said):
        reader(node, "refused", **options).partitions()


def test_topics_by_pattern_and_partitions_by_name(node: LogNode) -> None:
    for name in ("pattern-a", "pattern-b", "no-pattern-a"):
        node.append(node.create(name, 2), 1, records(3))
    given = {"kafka.bootstrap.servers": node.bootstrap}
    by_pattern = DuramenReader({**given, "subscribePattern": "pattern-.*"}, schema())
    assert sorted({part.topic for part in by_pattern.partitions()}) == ["no-pattern-a", "pattern-a", "pattern-b"]
    anchored = DuramenReader({**given, "subscribePattern": "^pattern-.*$"}, schema())
    assert sorted({part.topic for part in anchored.partitions()}) == ["pattern-a", "pattern-b"]
    assigned = DuramenReader({**given, "assign": '{"pattern-a":[1]}'}, schema())
    assert [str(part.tp) for part in assigned.partitions()] == ["pattern-a-1"]
    with pytest.raises(KafkaError, match="assign names pattern-a-9"):
        DuramenReader({**given, "assign": '{"pattern-a":[9]}'}, schema()).partitions()
    with pytest.raises(KafkaError, match="topic nowhere: there is no such topic; `duramen topic list` shows"):
        reader(node, "nowhere").partitions()


def test_a_log_that_starts_later_is_a_loss_of_exactly_these_offsets(node: LogNode) -> None:
    topic = node.create("trimmed")
    for number in range(4):
        node.append(topic, 0, records(10, 10 * number))
    early = reader(node, topic, startingOffsets='{"trimmed":{"0":3}}')
    planned = early.partitions()
    node.delete_before(topic, 0, 25)
    with pytest.raises(DataLossError, match="offsets 3 to 24 of trimmed-0") as at_planning:
        early.partitions()
    assert (at_planning.value.tp, at_planning.value.start, at_planning.value.end) == (TopicPartition(topic, 0), 3, 25)
    with pytest.raises(DataLossError, match="offsets 3 to 24 of trimmed-0"):
        rows(early, planned)  # it went between planning and reading
    going_on = reader(node, topic, startingOffsets='{"trimmed":{"0":3}}', failOnDataLoss="false")
    assert [offset for offset, _ in rows(going_on, planned)] == list(range(25, 40))
    assert [offset for offset, _ in rows(going_on, going_on.partitions())] == list(range(25, 40))


def test_a_topic_made_anew_is_a_loss_and_not_read_from_its_middle(node: LogNode) -> None:
    topic = node.create("anew")
    node.append(topic, 0, records(5))
    query = stream(node, topic)
    with pytest.raises(DataLossError, match=r"offsets 5 to 19 of anew-0.*the log ends at offset 5"):
        query.latestOffset({"anew": {"0": 20}}, ReadAllAvailable())
    with pytest.raises(DataLossError, match=r"from offset 3 on, all of anew-7 are lost .* is gone"):
        query.latestOffset({"anew": {"0": 5, "7": 3}}, ReadAllAvailable())
    with pytest.raises(DataLossError, match="offsets 10 to 19 of anew-0"):
        rows(query, [Split(topic, 0, 10, 20)])
    query.stop()


def test_a_topic_that_is_not_chosen_any_more_keeps_its_place(node: LogNode) -> None:
    """It was called gone, also where all of it was read; and chosen again it was read from its first record."""
    for topic in ("stays", "leaves"):
        node.append(node.create(topic), 0, records(5))
    both = stream(node, "stays,leaves")
    start = both.initialOffset()
    read = both.latestOffset(start, ReadAllAvailable())
    both.stop()
    for chosen in ({"subscribe": "stays"}, {"subscribePattern": "^stays$"}, {"assign": '{"stays":[0]}'}):
        one = DuramenStreamReader({"kafka.bootstrap.servers": node.bootstrap, **chosen}, schema())
        assert one.latestOffset(read, ReadAllAvailable()) == read
        one.stop()
    for topic in ("stays", "leaves"):
        node.append(topic, 0, records(3))
    one = stream(node, "stays")
    end = one.latestOffset(read, ReadAllAvailable())
    assert from_json(end) == {TopicPartition("leaves", 0): 5, TopicPartition("stays", 0): 8}
    assert [split.tp.topic for split in one.partitions(read, end)] == ["stays"]  # type: ignore[attr-defined]
    one.stop()
    again = stream(node, "stays,leaves")
    newest = again.latestOffset(end, ReadAllAvailable())
    assert [offset for offset, _ in rows(again, again.partitions(end, newest))] == [5, 6, 7]
    again.stop()
    node.delete("leaves")
    node.create("leaves")
    anew = stream(node, "stays,leaves")
    with pytest.raises(TopicReplacedError, match="leaves was deleted and made anew"):
        anew.latestOffset(end, ReadAllAvailable())
    anew.stop()


def test_a_place_in_an_open_transaction_is_no_loss(node: LogNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's own source reads uncommitted records, and its checkpoints go on here."""
    topic = node.create("undecided")
    node.append(topic, 0, records(10))
    stable = 6

    class Undecided(Cluster):
        def list_offsets(self, wanted: Any, isolation: int = 0, **named: Any) -> Any:
            found = super().list_offsets(wanted, isolation, **named)
            return {tp: at._replace(offset=min(at.offset, stable)) if isolation else at for tp, at in found.items()}

    monkeypatch.setattr("duramen.spark.source.settings.Cluster", Undecided)
    place = {"undecided": {"0": 8}}
    query = stream(node, topic, failOnDataLoss="false")
    assert query.latestOffset(place, ReadAllAvailable()) == place
    query.prepareForTriggerAvailableNow()
    assert query.latestOffset(place, ReadAllAvailable()) == place
    assert reader(node, topic, startingOffsets='{"undecided":{"0":8}}').partitions() == []
    with pytest.raises(DataLossError, match="offsets 6 to 10 of undecided-0"):
        reader(node, topic, startingOffsets='{"undecided":{"0":11}}').partitions()
    strict = stream(node, topic)
    with pytest.raises(DataLossError, match="offsets 6 to 10 of undecided-0"):
        strict.latestOffset({"undecided": {"0": 11}}, ReadAllAvailable())
    strict.stop()
    stable = 10
    assert [at for at, _ in rows(query, query.partitions(place, {"undecided": {"0": 10}}))] == [8, 9]
    query.stop()


def test_keys_are_found_everywhere_or_where_murmur2_puts_them(node: LogNode) -> None:
    topic = node.create("keys", 3)
    for partition in range(3):
        node.append(topic, partition, records(10))
    everywhere = reader(node, topic, keyEquals="k2")
    assert len(everywhere.partitions()) == 3
    assert [value for _, value in rows(everywhere, everywhere.partitions())] == [b"value 2", b"value 7"] * 3
    assert len(reader(node, topic, keyEquals="k2", keyPartitioner="murmur2").partitions()) == 1
    with pytest.raises(ConfigError, match="needs that option"):
        reader(node, topic, keyPartitioner="murmur2")


def test_a_key_that_moves_as_its_topic_grows_is_no_data_loss(node: LogNode) -> None:
    topic = node.create("moves", 2)
    homes = {b"k%d" % n: [(murmur2(b"k%d" % n) & 0x7FFFFFFF) % count for count in (2, 3)] for n in range(9)}
    key, (before, after) = next((key, home) for key, home in homes.items() if home[0] != home[1])
    node.append(topic, before, [(key, b"early", (), 1)])
    query = stream(node, topic, keyEquals=key.decode(), keyPartitioner="murmur2")
    end = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    assert plain(end) == {"moves": {str(before): 1}}
    node.grow(topic, 3)
    node.append(topic, before, [(key, b"late", (), 1)])
    node.append(topic, after, [(key, b"moved", (), 1)])
    with pytest.raises(ConfigError, match=f"moves has more partitions.*elsewhere than in {before} now: leave"):
        query.latestOffset(end, ReadAllAvailable())
    query.stop()
    without = stream(node, topic, keyEquals=key.decode())
    found = rows(without, without.partitions(end, without.latestOffset(end, ReadAllAvailable())))
    assert sorted(value for _, value in found) == [b"late", b"moved"]
    without.stop()


def test_what_was_planned_of_a_deleted_topic_is_lost_and_the_others_are_read(
    node: LogNode, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("left-behind", "left-there"):
        node.append(node.create(topic), 0, records(3))
    given = {"kafka.bootstrap.servers": node.bootstrap, "subscribePattern": "^left-", "startingOffsets": "earliest"}
    tolerant = DuramenStreamReader({**given, "failOnDataLoss": "false"}, schema())
    start = tolerant.initialOffset()
    end = tolerant.latestOffset(start, ReadAllAvailable())
    node.delete("left-behind")
    assert [offset for offset, _ in rows(tolerant, tolerant.partitions(start, end))] == [0, 1, 2]
    assert "offsets 0 to 2 of left-behind-0 (3 of them)" in caplog.text
    assert plain(tolerant.latestOffset(end, ReadAllAvailable())) == {"left-there": {"0": 3}}
    tolerant.stop()
    strict = DuramenStreamReader(given, schema())
    with pytest.raises(DataLossError, match=r"offsets 0 to 2 of left-behind-0 .*: the topic or the partition is gone"):
        strict.partitions(start, end)
    strict.stop()


def test_micro_batches_keep_to_their_limits_and_meet_the_end(node: LogNode) -> None:
    topic = node.create("limits", 2)
    for number in range(10):
        node.append(topic, 0, records(30, 30 * number))
    node.append(topic, 1, records(30))
    query = stream(node, topic, maxOffsetsPerTrigger=110)
    limit = query.getDefaultReadLimit()
    assert limit == ReadMaxRows(110)
    at, seen = query.initialOffset(), []
    assert plain(at) == {"limits": {"0": 0, "1": 0}}
    for _ in range(3):
        end = query.latestOffset(at, limit)
        seen += rows(query, query.partitions(at, end))
        at = end
    assert at == query.reportLatestOffset()
    assert plain(at) == {"limits": {"0": 300, "1": 30}}
    assert sorted(seen) == sorted([(n, b"value %d" % n) for n in [*range(300), *range(30)]])
    assert query.latestOffset(at, limit) == at
    assert query.partitions(at, at) == []
    assert query.latestOffset({"limits": {"0": 0, "1": 0}}, ReadAllAvailable()) == at
    query.stop()


def test_a_first_batch_that_is_run_again_begins_where_it_began(node: LogNode) -> None:
    """Spark keeps no batch's beginning, and asks for the initial offset anew: in a query from `latest` it has moved."""
    topic = node.create("first", 2)
    node.append(topic, 0, records(10))
    query = stream(node, topic, startingOffsets="latest")
    start = query.initialOffset()
    node.append(topic, 0, records(5, 10))
    end = query.latestOffset(start, ReadAllAvailable())
    assert plain(end) == {"first": {"0": 15, "1": 0}}
    query.stop()
    node.append(topic, 0, records(5, 15))

    again = stream(node, topic, startingOffsets="latest")
    assert again.partitions(end, end) == [], "so Spark says how far the query was"
    now = again.initialOffset()
    assert plain(now) == {"first": {"0": 20, "1": 0}}
    assert [offset for offset, _ in rows(again, again.partitions(now, end))] == [*range(10, 15)]
    second = again.latestOffset(end, ReadAllAvailable())
    assert second == now, "only the first batch says where it began"
    assert [offset for offset, _ in rows(again, again.partitions(end, second))] == [*range(15, 20)]
    assert again.latestOffset(second, ReadAllAvailable()) == second
    again.stop()


@pytest.mark.parametrize(
    ("topic", "where"),
    [("grew", {"startingOffsets": '{"grew":{"0":3}}'}), ("grew-too", {"startingTimestamp": 1003})],
)
def test_a_first_batch_is_run_again_though_a_partition_came_that_the_options_do_not_know(
    node: LogNode, topic: str, where: dict[str, Any]
) -> None:
    node.create(topic)
    node.append(topic, 0, records(10))
    query = stream(node, topic, **where)
    end = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    query.stop()
    node.grow(topic, 2)
    again = stream(node, topic, **where)
    assert [offset for offset, _ in rows(again, again.partitions(again.initialOffset(), end))] == [*range(3, 10)]
    node.append(topic, 1, records(2))
    second = again.latestOffset(end, ReadAllAvailable())
    assert [offset for offset, _ in rows(again, again.partitions(end, second))] == [0, 1]
    again.stop()
    new = stream(node, topic, startingOffsets=f'{{"{topic}":{{"0":3}}}}')
    start = new.initialOffset()
    for begin in (lambda: new.latestOffset(start, ReadAllAvailable()), lambda: new.partitions(start, plain(end))):
        with pytest.raises(ConfigError, match=f"it leaves out {topic}-1"):
            begin()
    new.stop()


def test_bytes_limit_a_micro_batch(node: LogNode) -> None:
    topic = node.create("bytes")
    for _ in range(20):
        node.append(topic, 0, [(None, bytes(10_000), (), 1)] * 10)
    query = stream(node, topic, maxBytesPerTrigger="500k")
    end = query.latestOffset({"bytes": {"0": 0}}, query.getDefaultReadLimit())
    assert 30 <= end["bytes"]["0"] <= 70
    query.stop()


def test_a_limit_of_bytes_looks_no_further_than_the_batch(node: LogNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that is far behind would ask for boundaries over all that waits, before each of its batches."""
    topic = node.create("backlog", 2)
    for _ in range(40):
        for partition in range(2):
            node.append(topic, partition, [(None, bytes(100_000), (), 1)] * 2)
    told: list[int] = []

    def counted(*given: Any) -> SegmentPlan:
        plan = describe_segments(*given[:2], **given[2])
        found = [each for each in plan.partitions.values() if isinstance(each, DescribedPartition)]
        told.append(sum(len(segment.boundaries) for each in found for segment in each.segments))
        return plan

    monkeypatch.setattr("duramen.spark.source.sizes.describe_segments", lambda *given, **named: counted(*given, named))
    query = stream(node, topic, maxBytesPerTrigger="1m")
    at = query.initialOffset()
    for number in range(1, 4):
        at = query.latestOffset(at, query.getDefaultReadLimit())
        assert all(4 * number <= at[topic][partition] <= 6 * number for partition in "01")
    assert told[::2] == [0, 0, 0], "of segments alone"
    assert max(told) <= 20
    query.stop()


def test_a_limit_of_bytes_holds_where_a_segments_bytes_are_not_spread_evenly(node: LogNode) -> None:
    """Behind a thousand small records a segment's average says that a few large ones are next to nothing."""
    topic = node.create("uneven")
    for _ in range(10):
        node.append(topic, 0, [(None, b"small", (), 1)] * 100)
    for _ in range(20):
        node.append(topic, 0, [(None, bytes(100_000), (), 1)])
    query = stream(node, topic, maxBytesPerTrigger="500k")
    end = query.latestOffset({topic: {"0": 1000}}, query.getDefaultReadLimit())
    assert 1003 <= end[topic]["0"] <= 1007
    query.stop()


def test_a_query_waits_for_enough_but_not_for_ever(node: LogNode) -> None:
    topic = node.create("patience")
    node.append(topic, 0, records(5))
    start = {"patience": {"0": 0}}
    waiting = stream(node, topic, minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    first = waiting.latestOffset(start, waiting.getDefaultReadLimit())
    assert plain(first) == {"patience": {"0": 5}}, "the first batch of a run does not wait"
    node.append(topic, 0, records(5))
    assert waiting.latestOffset(first, waiting.getDefaultReadLimit()) == first
    node.append(topic, 0, records(5))
    assert plain(waiting.latestOffset(first, waiting.getDefaultReadLimit())) == {"patience": {"0": 15}}
    impatient = stream(node, topic, minOffsetsPerTrigger=100, maxTriggerDelay="0ms")
    for begin in (start, first):
        assert plain(impatient.latestOffset(begin, impatient.getDefaultReadLimit())) == {"patience": {"0": 15}}
    with pytest.raises(ConfigError, match="is above"):
        stream(node, topic, minOffsetsPerTrigger=10, maxOffsetsPerTrigger=5)
    for query in (waiting, impatient):
        query.stop()


def test_available_now_ends_where_the_log_ended_then(node: LogNode) -> None:
    topic = node.create("now")
    node.append(topic, 0, records(10))
    query = stream(node, topic, minOffsetsPerTrigger=1000)
    query.prepareForTriggerAvailableNow()
    node.append(topic, 0, records(10))
    end = query.latestOffset({"now": {"0": 0}}, query.getDefaultReadLimit())
    assert end == query.latestOffset(end, query.getDefaultReadLimit())
    assert plain(end) == {"now": {"0": 10}}
    assert plain(query.reportLatestOffset() or {}) == {"now": {"0": 20}}
    beyond = {"now": {"0": 15}}  # a batch of an earlier run went further
    assert query.latestOffset(beyond, query.getDefaultReadLimit()) == beyond
    query.stop()


def test_nothing_is_read_beyond_the_offsets_where_reading_stops(node: LogNode) -> None:
    topic = node.create("until", 3)
    for partition in range(3):
        node.append(topic, partition, records(10))
    until = '{"until":{"0":4,"1":15}}'  # the third is not named
    query = stream(node, topic, untilOffsets=until, minOffsetsPerTrigger=1000)
    end = query.latestOffset(query.initialOffset(), query.getDefaultReadLimit())
    assert plain(end) == {"until": {"0": 4, "1": 10, "2": 0}}
    assert [offset for offset, _ in rows(query, query.partitions(query.initialOffset(), end))] == [
        *range(4),
        *range(10),
    ]
    node.append(topic, 1, records(10))
    end = query.latestOffset(end, query.getDefaultReadLimit())
    assert plain(end) == {"until": {"0": 4, "1": 15, "2": 0}}
    assert query.latestOffset(end, query.getDefaultReadLimit()) == end
    beyond = {"until": {"0": 7, "1": 15}}  # an earlier run, which was not bounded, went further
    assert plain(query.latestOffset(beyond, ReadAllAvailable())) == beyond
    query.prepareForTriggerAvailableNow()
    assert plain(query.latestOffset({"until": {"0": 0, "1": 0}}, ReadAllAvailable())) == {"until": {"0": 4, "1": 15}}
    query.stop()


def test_a_partition_that_comes_later_is_read_from_its_start(node: LogNode) -> None:
    topic = node.create("grows")
    node.append(topic, 0, records(2))
    query = stream(node, topic)
    start = query.initialOffset()
    node.grow(topic, 2)
    node.append(topic, 1, records(3))
    end = query.latestOffset(start, ReadAllAvailable())
    assert plain(end) == {"grows": {"0": 2, "1": 3}}
    assert [offset for offset, _ in rows(query, query.partitions(start, end))] == [0, 1, 0, 1, 2]
    query.stop()
