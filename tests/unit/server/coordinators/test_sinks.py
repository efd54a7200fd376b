"""The staged commit through the protocol: each committed batch once and in order, nothing else seen, by nobody."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from tests.worlds.broker_world import NOW, InProcess, after_power_cut
from tests.worlds.sink_client import (
    DESCRIBE,
    LIST,
    RELEASE,
    STAGE,
    Sink,
    alter,
    batch,
    code,
    jump,
    offsets,
    values,
)

from duramen.model import FIRST_SINK_PRODUCER_ID, SINK_STATE_TOPIC, STAGING_TOPIC, TopicPartition
from duramen.partition.metadata import controller
from duramen.server.api.authorizer import Operation, Resource
from duramen.wire.batch import batches
from duramen.wire.messages import API


@pytest.fixture
def server() -> InProcess:
    server = InProcess()
    server.connect().create_topic("t")
    return server


def test_staged_records_are_seen_when_they_are_committed(server: InProcess) -> None:
    sink = Sink(server)
    handles = [sink.handle(0, "t", "a", "b"), sink.handle(0, "t", "c")]
    assert values(server, "t") == []
    answer = sink.commit(0, *reversed(handles), metadata=b"what the driver wants to know again")
    assert (answer.error_code, answer.state, answer.already_committed) == (0, 2, False)
    assert offsets(answer) == [(0, 2)]
    assert values(server, "t") == ["c", "a", "b"]
    told = sink.describe()
    assert (told.last_batch_id, told.last_metadata) == (0, b"what the driver wants to know again")
    assert told.producer_id >= FIRST_SINK_PRODUCER_ID
    assert told.staged_handles == 0


def test_a_commit_that_is_repeated_changes_nothing(server: InProcess) -> None:
    sink = Sink(server)
    first = sink.commit(0, sink.handle(0, "t", "a"))
    again = sink.commit(0, 12345)
    assert (again.error_code, again.state, again.already_committed) == (0, 2, True)
    assert offsets(again) == offsets(first) == [(0, 0)]
    later = Sink(server, run_id="run-2")
    assert later.epoch == sink.epoch + 1
    assert later.claimed.last_batch_id == 0
    assert later.stage(0, ("t", 0, batch("a"))).already_committed
    assert later.commit(0).already_committed
    assert later.abort(0).already_committed
    assert values(server, "t") == ["a"]


def test_a_superseded_run_is_refused_for_ever(server: InProcess) -> None:
    old = Sink(server, run_id="old")
    handle = old.handle(0, "t", "lost")
    assert Sink(server, run_id="old").epoch == old.epoch
    new = Sink(server, run_id="new")
    assert new.epoch == old.epoch + 1
    for attempt in (server, after_power_cut(server)):
        again = Sink(attempt, run_id="old")
        assert code(again.claimed.error_code) == "PRODUCER_FENCED"
        again.epoch = old.epoch
        assert code(again.stage(0, ("t", 0, batch("x"))).error_code) == "PRODUCER_FENCED"
        assert code(again.commit(0, handle).error_code) == "PRODUCER_FENCED"
        assert code(again.abort(0).error_code) == "PRODUCER_FENCED"
    assert new.describe().staged_handles == 0
    assert code(new.commit(0, handle).error_code) == "RESOURCE_NOT_FOUND"
    assert values(server, "t") == []


def test_batches_follow_each_other_in_every_partition(server: InProcess) -> None:
    server.connect().create_topic("u")
    sink = Sink(server)
    for number in range(40):
        handles = [sink.handle(number, topic, f"{number}{topic}", f"{number}{topic}'") for topic in "tu"]
        sink.handle(number, "t", "an attempt that failed")
        assert sink.commit(number, *handles).error_code == 0
    for topic in "tu":
        expected = [f"{number}{topic}{mark}" for number in range(40) for mark in ("", "'")]
        assert values(server, topic) == expected
    told = sink.describe()
    assert told.staged_handles == 0
    assert [each.batch_id for each in told.batches] == list(range(8, 40))
    assert sink.commit(8).already_committed
    assert code(sink.commit(7).error_code) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert code(sink.stage(3, ("t", 0, batch("x"))).error_code) == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_what_produce_refuses_is_refused_when_it_is_staged(server: InProcess) -> None:
    line = server.connect()
    line.create_topic("compacted", cleanup_policy="compact")
    line.create_topic("small", max_message_bytes="100")
    broken = bytearray(batch("x"))
    broken[-1] ^= 1
    sink = Sink(server)
    cases = [
        (("nowhere", 0, batch("x")), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("t", 7, batch("x")), "UNKNOWN_TOPIC_OR_PARTITION"),
        ((STAGING_TOPIC, 0, batch("x")), "INVALID_TOPIC_EXCEPTION"),
        (("__consumer_offsets", 0, batch("x")), "INVALID_TOPIC_EXCEPTION"),
        (("t", 0, b""), "INVALID_RECORD"),
        (("t", 0, bytes(broken)), "CORRUPT_MESSAGE"),
        (("t", 0, batch("x") + batch("y")[:30]), "INVALID_RECORD"),
        (("t", 0, batch("x", producer_id=5, producer_epoch=0, base_sequence=0)), "INVALID_RECORD"),
        (("t", 0, batch("x", control=True)), "INVALID_RECORD"),
        (("small", 0, batch("x" * 200)), "MESSAGE_TOO_LARGE"),
        (("compacted", 0, batch("x", key=None)), "INVALID_RECORD"),
        (("t", 0, batch("x") * 300_000), "MESSAGE_TOO_LARGE"),
    ]
    for piece, expected in cases:
        answer = sink.stage(0, piece, ("t", 0, batch("fine")))
        refused, taken = (topic.partitions[0] for topic in answer.topics)
        assert (code(refused.error_code), refused.handle) == (expected, -1), piece[0]
        assert (taken.error_code, taken.records) == (0, 1)
    assert sink.describe().staged_handles == len(cases)
    assert sink.abort(0).released == len(cases)


def test_calls_that_make_no_sense(server: InProcess) -> None:
    stranger = Sink(server, sink_id="x" * 300)
    assert code(stranger.claimed.error_code) == "INVALID_REQUEST"
    sink = Sink(server)
    handle = sink.handle(0, "t", "a")
    assert code(sink.commit(0, handle, handle).error_code) == "INVALID_REQUEST"
    assert code(sink.commit(-1, handle).error_code) == "INVALID_REQUEST"
    assert code(sink.commit(1, handle).error_code) == "RESOURCE_NOT_FOUND"
    assert code(sink.commit(0, handle, metadata=bytes(70_000)).error_code) == "INVALID_REQUEST"
    sink.epoch += 1
    assert code(sink.commit(0, handle).error_code) == "INVALID_REQUEST"
    assert code(server.connect().call(DESCRIBE, 0, sink_id="unknown").error_code) == "RESOURCE_NOT_FOUND"
    assert values(server, "t") == []


def test_a_batch_without_records_is_committed_too(server: InProcess) -> None:
    sink = Sink(server)
    assert sink.commit(3).state == 2
    server.run()
    assert [each.state for each in sink.describe().batches] == [2]
    assert sink.claimed.last_batch_id == -1
    assert Sink(server).claimed.last_batch_id == 3


def test_staging_outlives_a_crash_and_is_invisible(server: InProcess) -> None:
    sink = Sink(server)
    handle = sink.handle(0, "t", "a")
    after = after_power_cut(server)
    assert values(after, "t") == []
    fetched = after.connect().fetch(STAGING_TOPIC, 0)
    assert code(fetched.error_code) == "UNKNOWN_TOPIC_OR_PARTITION"
    again = Sink(after)
    assert again.epoch == sink.epoch
    assert again.commit(0, handle).state == 2
    assert values(after, "t") == ["a"]


def test_a_commit_before_a_crash_is_carried_out_after_it(server: InProcess) -> None:
    sink = Sink(server)
    handles = [sink.handle(0, "t", "a", "b"), sink.handle(0, "t", "c")]
    server.lanes.held.add("staging")
    assert sink.commit(0, *handles, timeout_ms=1000) is None
    server.pass_ms(1500)
    answer = sink.committed()
    assert (code(answer.error_code), answer.state) == ("REQUEST_TIMED_OUT", 1)
    assert values(server, "t") == []
    after = after_power_cut(server)
    after.pass_ms(2000)
    assert values(after, "t") == ["a", "b", "c"]
    assert Sink(after).commit(0, *handles).already_committed


def test_what_is_there_already_is_not_written_twice() -> None:
    """A crash between any two steps of the move: the records are there once."""
    for held in range(8):
        server = InProcess()
        server.connect().create_topic("t")
        sink = Sink(server)
        pieces = [[f"{n}.{i}" for i in range(3)] for n in range(6)]
        handles = [sink.handle(0, "t", *piece) for piece in pieces]
        sink.ask_commit(0, *handles)
        for _ in range(held):
            server.step_journal()
        after = after_power_cut(server)
        after.pass_ms(3000)
        again = Sink(after)
        answer = again.commit(0, *handles)
        assert answer.state == 2, held
        assert values(after, "t") == [value for piece in pieces for value in piece], held


def test_a_clean_stop_leaves_the_rest_to_the_next_start(server: InProcess) -> None:
    sink = Sink(server)
    handle = sink.handle(0, "t", "a")
    server.lanes.held.add("staging")
    sink.ask_commit(0, handle)
    server.run()
    stopped: list[bool] = []
    server.broker.stop(lambda: stopped.append(True))
    server.run()
    assert not stopped, "a read of the staging log is under way"
    server.lanes.held.clear()
    server.run()
    assert stopped
    server.disk.end_process()
    after = InProcess(server.disk)
    assert values(after, "t") == ["a"]
    assert Sink(after).commit(0).already_committed


def test_another_producer_may_write_in_between(server: InProcess) -> None:
    sink = Sink(server)
    for number in range(5):
        handle = sink.handle(number, "t", f"s{number}")
        assert server.connect().produce("t", f"p{number}".encode()).error_code == 0
        assert sink.commit(number, handle).state == 2
    assert values(server, "t") == [f"{kind}{number}" for number in range(5) for kind in "ps"]


def test_no_client_writes_with_a_sinks_producer_id(server: InProcess) -> None:
    request = server.connect()
    data = batch("x", producer_id=FIRST_SINK_PRODUCER_ID, producer_epoch=0, base_sequence=0)
    api = API[0].request
    topic = api.TopicProduceData(name="t", partition_data=[api.PartitionProduceData(index=0, records=data)])
    reply = request.call(0, 9, acks=-1, timeout_ms=1000, topic_data=[topic])
    assert code(reply.responses[0].partition_responses[0].error_code) == "INVALID_RECORD"


def test_a_share_of_a_deleted_topic_is_dropped_and_told(server: InProcess) -> None:
    line = server.connect()
    line.create_topic("u")
    sink = Sink(server)
    handles = [sink.handle(0, "t", "a"), sink.handle(0, "u", "b")]
    line.call(20, 5, topic_names=["u"], timeout_ms=1000)
    line.create_topic("u")
    answer = sink.commit(0, *handles)
    shares = {topic.name: topic.partitions[0].dropped for topic in answer.topics}
    assert shares == {"t": False, "": True}
    assert (values(server, "t"), values(server, "u")) == (["a"], [])
    assert sink.commit(1, sink.handle(1, "u", "c")).state == 2
    assert values(server, "u") == ["c"]


def test_a_topic_is_deleted_while_an_earlier_batch_is_not_durable_elsewhere(server: InProcess) -> None:
    server.connect().create_topic("u", duramen_ack_durability="page-cache")
    sink = Sink(server)
    server.lanes.held.add("checkpoint")
    assert sink.commit(0, sink.handle(0, "t", "a"), sink.handle(0, "u", "b")).state == 2
    later = sink.handle(1, "t", "c")
    server.connect().call(20, 5, topic_names=["t"], timeout_ms=1000)
    assert sink.commit(1, later).topics[0].partitions[0].dropped
    server.lanes.held.clear()
    server.pass_ms(3000)
    assert [each.state for each in sink.describe().batches] == [2, 2]
    assert values(server, "u") == ["b"]


def test_staging_that_nobody_commits_is_swept_and_a_commit_under_way_is_not(server: InProcess) -> None:
    sink = Sink(server)
    forgotten = sink.handle(5, "t", "forgotten")
    committed = sink.handle(0, "t", "kept")
    server.lanes.held.add("staging")
    sink.ask_commit(0, committed, timeout_ms=1 << 30)
    server.run()
    jump(server, 3 * 86_400_000)
    told = sink.describe()
    assert (told.staged_handles, [each.state for each in told.batches]) == (0, [1])
    server.lanes.held.clear()
    server.run()
    assert sink.committed().state == 2
    assert values(server, "t") == ["kept"]
    assert code(sink.commit(5, forgotten).error_code) == "RESOURCE_NOT_FOUND"


def test_the_staging_log_starts_where_it_is_needed(server: InProcess) -> None:
    sink = Sink(server)
    for number in range(10):
        assert sink.commit(number, sink.handle(number, "t", "a", "b")).state == 2
    waiting = sink.handle(10, "t", "c")
    server.pass_ms(5000)
    logs = [server.broker.store.partitions[TopicPartition(STAGING_TOPIC, index)] for index in range(4)]
    assert max(log.log_start_offset for log in logs) == waiting == 20
    assert sink.commit(10, waiting).state == 2
    server.pass_ms(5000)
    assert max(log.log_start_offset for log in logs) == 21


def test_a_page_cache_topic_gets_its_share_again_after_a_power_cut() -> None:
    server = InProcess()
    server.connect().create_topic("t", duramen_ack_durability="page-cache")
    sink = Sink(server)
    server.lanes.held.add("checkpoint")
    assert sink.commit(0, sink.handle(0, "t", "a"), sink.handle(0, "t", "b")).state == 2
    assert values(server, "t") == ["a", "b"]
    server.pass_ms(3000)
    assert [each.state for each in sink.describe().batches] == [1], "its staging is needed until the sync"
    after = after_power_cut(server)
    after.pass_ms(3000)
    assert values(after, "t") == ["a", "b"]
    after.pass_ms(3000)
    assert [each.state for each in Sink(after).describe().batches] == [2]


def test_a_crash_after_the_next_batch_is_there_and_before_the_first_is_durable() -> None:
    """The partition's producer state is then ahead of the share that is taken up again."""
    server = InProcess()
    server.connect().create_topic("t", duramen_ack_durability="page-cache")
    sink = Sink(server)
    server.lanes.held.add("checkpoint")
    for number in range(3):
        assert sink.commit(number, sink.handle(number, "t", f"{number}", f"{number}'")).state == 2
    disk = server.disk.copy(Random(0))
    disk.kill()
    disk.power_on()
    after = InProcess(disk)
    after.pass_ms(3000)
    assert values(after, "t") == ["0", "0'", "1", "1'", "2", "2'"]
    again = Sink(after)
    assert offsets(again.commit(1)) == [(2, 3)]
    assert [each.state for each in again.describe().batches] == [2, 2, 2]
    assert again.commit(3, again.handle(3, "t", "3")).state == 2
    assert values(after, "t")[-1] == "3"


def test_a_sinks_producer_does_not_expire_while_the_sink_is_known(server: InProcess) -> None:
    sink = Sink(server)
    assert sink.commit(0, sink.handle(0, "t", "a")).state == 2
    partition = server.broker.store.partitions[TopicPartition("t", 0)]
    producer_id = sink.describe().producer_id
    jump(server, 10 * 86_400_000)
    assert partition.log.producers.get(producer_id) is not None
    assert server.connect().call(RELEASE, 0, sink_id="sink", epoch=sink.epoch).error_code == 0
    jump(server, 300_000)  # the producer is found idle
    jump(server, 86_400_000)
    assert partition.log.producers.get(producer_id) is None
    again = Sink(server)
    assert (again.claimed.last_batch_id, again.epoch > sink.epoch) == (-1, True)
    assert again.commit(0, again.handle(0, "t", "b")).state == 2


def test_a_sink_of_one_job_is_forgotten_by_itself(server: InProcess) -> None:
    sink = Sink(server, ephemeral=True)
    lasting = Sink(server, sink_id="lasting")
    assert sink.commit(0, sink.handle(0, "t", "a")).state == 2
    jump(server, 6 * 86_400_000)
    listed = server.connect().call(LIST, 0).sinks
    assert [(each.sink_id, each.last_batch_id) for each in listed] == [("lasting", -1), ("sink", 0)]
    jump(server, 2 * 86_400_000)
    assert [each.sink_id for each in server.connect().call(LIST, 0).sinks] == ["lasting"]
    assert lasting.describe().error_code == 0


def test_settings_that_change_after_the_staging_refuse_nothing_any_more(server: InProcess) -> None:
    sink = Sink(server)
    handle = sink.handle(0, "t", "x" * 500)
    alter(server, "t", max_message_bytes="100", cleanup_policy="compact", message_timestamp_type="LogAppendTime")
    assert sink.commit(0, handle).state == 2
    assert values(server, "t") == ["x" * 500]
    refused = sink.stage(1, ("t", 0, batch("x" * 500)))
    assert code(refused.topics[0].partitions[0].error_code) == "MESSAGE_TOO_LARGE"


def test_too_few_replicas_refuse_a_stage_and_hold_up_a_commit(server: InProcess) -> None:
    sink = Sink(server)
    handle = sink.handle(0, "t", "a")
    alter(server, "t", min_insync_replicas="2")
    refused = sink.stage(0, ("t", 0, batch("b")))
    assert code(refused.topics[0].partitions[0].error_code) == "NOT_ENOUGH_REPLICAS"
    sink.ask_commit(0, handle, timeout_ms=2000)
    server.pass_ms(3000)
    answer = sink.committed()
    assert (code(answer.error_code), answer.state) == ("REQUEST_TIMED_OUT", 1)
    assert values(server, "t") == []
    alter(server, "t", min_insync_replicas="1")
    server.pass_ms(1000)
    assert values(server, "t") == ["a"]
    assert sink.commit(0, handle).state == 2


def test_a_topics_own_compression_is_made_when_records_are_staged(server: InProcess) -> None:
    server.connect().create_topic("z", compression_type="gzip")
    sink = Sink(server)
    answer = sink.stage(0, ("z", 0, batch("y" * 2000)))
    entry = answer.topics[0].partitions[0]
    assert entry.bytes < 500
    assert sink.commit(0, entry.handle).state == 2
    assert values(server, "z") == ["y" * 2000]


def test_several_batches_of_a_piece_and_many_pieces_of_a_share(server: InProcess) -> None:
    """More than one chunk, pieces larger and smaller than one, in another order than they were staged in."""
    sink = Sink(server)
    staged: list[tuple[int, list[str]]] = []
    for number in range(12):
        length = 400_000 if number % 3 == 0 else 50
        texts = [f"{number}.{index} ".ljust(length, "x") for index in range(4)]
        data = b"".join(batch(text) for text in texts)
        staged.append((sink.stage(0, ("t", 0, data)).topics[0].partitions[0].handle, texts))
    staged.reverse()
    answer = sink.commit(0, *(handle for handle, _ in staged))
    assert offsets(answer) == [(0, 47)]
    assert values(server, "t") == [text for _, texts in staged for text in texts]


def test_what_arrives_keeps_its_place_when_a_request_before_it_was_refused(server: InProcess) -> None:
    Sink(server)
    coordinator = next(each for each in server.broker.sinks.running())
    coordinator.staging.closed = True
    answers: list[Any] = []
    refused = coordinator.store([[memoryview(bytearray(batch("a")))]], NOW, answers.append)
    coordinator.staging.closed = False
    coordinator.store([[memoryview(bytearray(batch("b")))]], NOW, answers.append)
    server.run()
    assert [type(answer).__name__ for answer in answers] == ["KafkaError", "list"]
    refused()
    server.pass_ms(5000)
    assert coordinator.staging.log_start_offset == 0
    assert list(coordinator.arriving.values()) == [0]


def test_a_partition_that_lost_its_end_takes_the_next_batch(server: InProcess) -> None:
    """As after a repair of its log: what is gone is told, and the sink goes on."""
    sink = Sink(server)
    for number in range(3):
        assert sink.commit(number, sink.handle(number, "t", f"{number}")).state == 2
    log = server.broker.store.partitions[TopicPartition("t", 0)].log
    producer = log.producers.get(sink.describe().producer_id)
    assert producer is not None
    producer.batches = producer.batches[:1]
    assert sink.commit(3, sink.handle(3, "t", "3")).state == 2
    assert values(server, "t") == ["0", "1", "2", "3"]
    assert [fields["next_sequence"] for event, fields in server.events if event == "sink-records-missing"] == [3]
    assert sink.commit(4, sink.handle(4, "t", "4")).state == 2


def test_staging_that_is_not_needed_leaves_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "SINK_SEGMENT_BYTES", 1 << 20)
    server = InProcess(duramen_sink_topic_num_partitions="1", log_segment_delete_delay_ms="0")
    server.connect().create_topic("t")
    sink = Sink(server)
    for number in range(6):
        assert sink.commit(number, sink.handle(number, "t", "x" * 600_000)).state == 2
    jump(server, 10 * 60_000)
    jump(server, 10 * 60_000)
    kept = [path for path in server.disk.contents() if STAGING_TOPIC in path and path.endswith(".log")]
    assert len(kept) == 1
    assert len(values(server, "t")) == 6


def test_a_topic_is_meant_by_its_id_where_one_is_given(server: InProcess) -> None:
    sink = Sink(server)
    request = API[STAGE].request
    known = server.broker.image.topics["t"].id

    def stage(topic_id: bytes) -> Any:
        piece = request.StagePartition(index=0, records=batch("a"))
        topics = [request.StageTopic(name="ignored", topic_id=topic_id, partitions=[piece])]
        return sink.stage(0, topics=topics).topics[0]

    taken = stage(known)
    assert (taken.name, taken.topic_id, taken.partitions[0].error_code) == ("t", known, 0)
    assert code(stage(b"x" * 16).partitions[0].error_code) == "UNKNOWN_TOPIC_ID"


def test_who_may_not_use_the_sink_or_write_to_the_topic_is_told_so(server: InProcess) -> None:
    class Rules:
        refused: tuple[Resource, str] = (Resource.NONE, "")

        def denied(
            self, principal: str, host: str, operation: Operation, resource: Resource, names: Iterable[str]
        ) -> frozenset[str]:
            return frozenset(name for name in names if (resource, name) == self.refused)

    rules = server.broker.access.authorizer = Rules()
    sink = Sink(server)
    rules.refused = (Resource.TOPIC, "t")
    assert code(sink.stage(0, ("t", 0, batch("a"))).topics[0].partitions[0].error_code) == "TOPIC_AUTHORIZATION_FAILED"
    rules.refused = (Resource.TRANSACTIONAL_ID, "sink")
    answers = [Sink(server).claimed, sink.stage(0), sink.commit(0), sink.abort(0), sink.describe()]
    assert {code(answer.error_code) for answer in answers} == {"TRANSACTIONAL_ID_AUTHORIZATION_FAILED"}
    assert server.connect().call(LIST, 0).sinks == []
    found = server.connect().call(10, 4, key_type=100, coordinator_keys=["sink", "other"]).coordinators
    assert [code(each.error_code) for each in found] == ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "NONE"]


def test_staged_records_keep_their_time_whatever_the_brokers_default() -> None:
    server = InProcess(log_message_timestamp_type="LogAppendTime")
    server.connect().create_topic("t", message_timestamp_type="CreateTime")
    server.clock.now_ms += 5000
    sink = Sink(server)
    assert sink.commit(0, sink.handle(0, "t", "a")).state == 2
    data = memoryview(server.connect().fetch("t", 0).records)
    assert [header.max_timestamp for _, header in batches(data)] == [NOW]


def test_the_sinks_topics_keep_their_shape(server: InProcess) -> None:
    Sink(server)
    line = server.connect()
    for name in (SINK_STATE_TOPIC, STAGING_TOPIC):
        deleted = line.call(20, 5, topic_names=[name], timeout_ms=1000).responses[0]
        assert code(deleted.error_code) == "INVALID_TOPIC_EXCEPTION"
        partition = server.broker.store.partitions[TopicPartition(name, 0)]
        assert partition.is_stable
    assert server.broker.publisher.topic_config(STAGING_TOPIC).cleanup_policy == {"delete"}
    assert server.broker.publisher.topic_config(SINK_STATE_TOPIC).cleanup_policy == {"compact"}


def test_what_the_log_holds_is_what_is_known(server: InProcess) -> None:
    """Replaying the coordinators' logs gives the state that they have."""
    for number in range(3):
        sink = Sink(server, run_id=f"run-{number}")
        for batch_id in range(number * 40, number * 40 + 40):
            handle = sink.handle(batch_id, "t", "x")
            sink.handle(batch_id, "t", "orphan")
            sink.commit(batch_id, handle)
        sink.handle(1000, "t", "waits")
    server.pass_ms(3000)
    before = {c.state.tp: c.machine.sinks for c in server.broker.sinks.running()}
    after = after_power_cut(server)
    after.pass_ms(10)
    assert {c.state.tp: c.machine.sinks for c in after.broker.sinks.running()} == before
    assert any(before.values())
