"""What a node does not say is not taken for an answer: of one record, and of the topic behind a cut."""

from __future__ import annotations

import json
import socket
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError

from duramen import pipelines
from duramen.errors import ErrorCode, NothingThereError
from duramen.errors import KafkaError as ClientError
from duramen.pipelines.model.offsets import Cause, Offsets
from duramen.pipelines.model.swap_chain import readings
from duramen.pipelines.run import cluster, connector
from duramen.pipelines.run.cluster import PipelineNode, UnreachableError
from duramen.pipelines.run.connector import DuramenConnector
from duramen.swaps import CutOver

PLACE = Cause("flights", 0, 7)


class Message:
    """A record of PLACE's partition, or an error."""

    def __init__(self, offset: int, error: int | None = None) -> None:
        self.offset = lambda: offset
        self.error = lambda: None if error is None else KafkaError(error)
        self.key, self.value = (lambda: b"N1"), (lambda: b"{}")


@pytest.mark.parametrize(
    ("polled", "expected"),
    [
        (Message(7), (b"N1", b"{}")),
        (Message(9), None),  # compacted away
        (Message(9, KafkaError._PARTITION_EOF), None),  # so was all behind it
        (None, UnreachableError),  # a slow disk, or nobody there
        (Message(0, KafkaError.KAFKA_STORAGE_ERROR), UnreachableError),
        (Message(0, KafkaError.TOPIC_AUTHORIZATION_FAILED), UnreachableError),
    ],
)
def test_a_record_that_is_not_told_is_not_gone(polled: Any, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = MagicMock()
    consumer.poll.return_value = polled
    monkeypatch.setattr(cluster, "LibraryConsumer", lambda _settings: consumer)
    monkeypatch.setattr(PipelineNode, "starts", lambda *_: Offsets({("flights", 0): 1}))
    monkeypatch.setattr(PipelineNode, "ends", lambda *_: Offsets({("flights", 0): 12}))
    node = PipelineNode("127.0.0.1:1")
    if expected is UnreachableError:
        with pytest.raises(UnreachableError):
            node.record(PLACE)
    else:
        assert node.record(PLACE) == expected
    consumer.close.assert_called_once_with()


def test_a_batch_on_its_way_is_told_by_its_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*states: int) -> Any:
        return SimpleNamespace(batches=[SimpleNamespace(batch_id=n, state=state) for n, state in enumerate(states)])

    for found, expected in ((told(), None), (told(2, 2), None), (told(2, 1), 1), (told(1, 1), 1)):
        monkeypatch.setattr(cluster.SinkCalls, "describe", lambda _self, found=found: found)
        assert PipelineNode("127.0.0.1:1").unread("sink") == expected
    for code, is_told in ((ErrorCode.RESOURCE_NOT_FOUND, True), (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, False)):
        monkeypatch.setattr(cluster.SinkCalls, "describe", MagicMock(side_effect=ClientError(code, "no")))
        with nullcontext() if is_told else pytest.raises(ClientError):
            assert PipelineNode("127.0.0.1:1").unread("sink") is None


def test_a_step_does_not_begin_anew_where_the_topic_behind_its_cut_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its earliest record all that was read before the cut would come once more."""
    spark, start = MagicMock(), Offsets({("flights.v2", 0): 5})
    monkeypatch.setattr(connector.PipelineNode, "ends", lambda *_: Offsets())
    with pytest.raises(UnreachableError, match=r"no topic flights\.v2"):
        DuramenConnector("127.0.0.1:1").read(spark, pipelines.Topic("flights.v2"), start, None)
    assert not spark.readStream.format.called


def test_a_topic_like_another_has_as_many_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had one, and with the other's min.insync.replicas nobody could have written to it."""
    admin = MagicMock()
    model = SimpleNamespace(partitions={n: SimpleNamespace(replicas=[1, 2, 3]) for n in range(4)})
    admin.list_topics.return_value = SimpleNamespace(topics={"late": model})
    monkeypatch.setattr(PipelineNode, "_admin", lambda _node: admin)
    PipelineNode("127.0.0.1:1").create_like("late.v2", "late")
    ((created,),) = admin.create_topics.call_args.args
    assert (created.topic, created.num_partitions, created.replication_factor) == ("late.v2", 4, 3)


def test_where_nothing_listens_it_is_said_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FIRST_CONTACT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        node = PipelineNode(f"127.0.0.1:{listener.getsockname()[1]}")
    for ask in (lambda: node.ends("t"), lambda: node.create_like("t", "u")):
        with pytest.raises(UnreachableError, match="no node answers"):
            ask()
    with pytest.raises(NothingThereError):
        node.written("sink")


def test_a_step_goes_on_behind_a_cut_in_the_topic_that_was_cut_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that was made anew under its name since has other records at these offsets: its first ones were passed
    over. By the id beside them the source finds that out."""
    spark, start = MagicMock(), Offsets({("late.v2", 0): 5})
    monkeypatch.setattr(connector.PipelineNode, "ends", lambda *_: Offsets({("late.v2", 0): 9, ("late.v2", 1): 2}))
    cut = CutOver.from_json(json.loads(json.dumps(CutOver("late", {0: 3}, "late.v2", {0: 5}, "Q" * 22).to_json())))
    reading = readings("late", "late", [cut], {"generation": 1, "first_generation": 0})[0]
    assert (reading.start, reading.topic_id) == (start, cut.new_id)
    DuramenConnector("127.0.0.1:1").read(spark, pipelines.Topic("late.v2"), start, None, reading.topic_id)
    given = spark.readStream.format.return_value.options.call_args.kwargs
    assert json.loads(given["startingOffsets"]) == {"late.v2": {"0": 5, "1": -2, "topicId": cut.new_id}}
    assert CutOver.from_json(CutOver("late", {0: 3}, "late.v2", {0: 5}).to_json()).new_id == "", "as cuts were before"
