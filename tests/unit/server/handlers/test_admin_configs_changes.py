"""Settings of the node that are changed while it runs: they take effect, and still hold after a restart."""

from __future__ import annotations

from tests.worlds.broker_world import NOW, InProcess, Line, after_power_cut

from duramen.errors import ErrorCode
from duramen.wire.batch import build_batch
from duramen.wire.messages import API


def set_for_all(line: Line, name: str, value: str) -> None:
    request = API[44].request
    config = request.AlterableConfig(name=name, config_operation=0, value=value)
    resource = request.AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    assert line.call(44, 1, resources=[resource]).responses[0].error_code == 0


def produce(line: Line, producer_id: int, sequence: int, topic: str = "t") -> int:
    batch = build_batch([(None, b"v", (), NOW)], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    return int(line.produce_batch(topic, batch).error_code)


def known_producers(server: InProcess, topic: str = "t") -> list[int]:
    partition = server.broker.partitions.find(topic, 0)
    assert partition is not None
    return [producer.id for producer in partition.log.producers.active()]


def test_how_long_producers_are_remembered_follows_the_setting() -> None:
    server = InProcess(log_retention_check_interval_ms="10000")
    line = server.connect()
    line.create_topic("t")
    assert produce(line, 7, 0) == ErrorCode.NONE
    server.pass_ms(40_000)
    assert known_producers(server) == [7]
    set_for_all(line, "producer.id.expiration.ms", "20000")
    line.create_topic("u")  # it holds for logs that are made later, too
    assert produce(line, 7, 0, "u") == ErrorCode.NONE
    server.pass_ms(40_000)
    assert known_producers(server) == known_producers(server, "u") == []
    again = after_power_cut(server, log_retention_check_interval_ms="10000")
    assert produce(again.connect(), 7, 1) == ErrorCode.NONE
    again.pass_ms(60_000)
    assert known_producers(again) == [], "the change outlives the process"
