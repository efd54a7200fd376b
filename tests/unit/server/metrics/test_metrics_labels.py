"""Numbers that clients must not be able to multiply, and buckets as Prometheus counts them."""

from __future__ import annotations

import struct

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.worlds.broker_world import InProcess

from duramen.server.metrics.exposition import BrokerCollector
from duramen.server.metrics.metrics import SECONDS_BUCKETS
from duramen.wire.messages import API


def _samples(server: InProcess) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(server.broker))
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_api_keys_that_nobody_serves_share_one_label() -> None:
    server = InProcess()
    for key in range(20_000, 20_050):
        line = server.connect()
        header = struct.pack(">hhih", key, 0, 1, -1)
        line._arrived += struct.pack(">i", len(header)) + header
        server.run()
        assert line.closed
    errors = {labels: n for (name, labels), n in _samples(server).items() if name == "duramen_request_errors_total"}
    assert errors == {(("api", "unknown"),): 50}


def test_a_time_that_equals_a_bound_is_in_its_bucket() -> None:
    """`le`: less or equal."""
    server = InProcess()
    for seconds in SECONDS_BUCKETS:
        server.broker.metrics.request(3, seconds)
    samples = _samples(server)
    for number, bound in enumerate(SECONDS_BUCKETS):
        assert samples["duramen_request_seconds_bucket", (("api", "Metadata"), ("le", str(bound)))] == number + 1
    assert samples["duramen_request_seconds_count", (("api", "Metadata"),)] == len(SECONDS_BUCKETS)
    total = samples["duramen_request_seconds_sum", (("api", "Metadata"),)]
    assert abs(total - sum(SECONDS_BUCKETS)) < 1e-9


def test_errors_that_replies_tell_are_counted_by_api_and_code() -> None:
    server = InProcess()
    ask = API[2].request
    partitions = [ask.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(3)]
    server.connect().call(2, 7, topics=[ask.ListOffsetsTopic(name="nosuch", partitions=partitions)])
    server.connect().call(22, 5, transactional_id="t", transaction_timeout_ms=1, producer_id=-1, producer_epoch=-1)
    server.connect().call(60, 1)
    told = {labels: n for (name, labels), n in _samples(server).items() if name == "duramen_error_replies_total"}
    assert told == {
        (("api", "ListOffsets"), ("error", "UNKNOWN_TOPIC_OR_PARTITION")): 3,
        (("api", "InitProducerId"), ("error", "COORDINATOR_NOT_AVAILABLE")): 1,
    }


@pytest.mark.parametrize("partitions", [1, 2])
def test_errors_of_producers_are_counted_where_no_reply_tells_them(partitions: int) -> None:
    server = InProcess(auto_create_topics_enable="false")
    ask = API[0].request
    batches = [ask.PartitionProduceData(index=index, records=b"x") for index in range(partitions)]
    for acks, codes in ((0, partitions), (1, 2 * partitions)):
        line = server.connect()
        line.ask(0, 9, acks=acks, timeout_ms=1, topic_data=[ask.TopicProduceData(name="no", partition_data=batches)])
        server.run()
        assert line.closed == (acks == 0)
        labels = (("api", "Produce"), ("error", "UNKNOWN_TOPIC_OR_PARTITION"))
        assert _samples(server)["duramen_error_replies_total", labels] == codes


def test_records_are_counted_and_the_partitions_of_groups_share_a_row() -> None:
    server = InProcess(offsets_topic_num_partitions="5")
    server.connect().create_topic("t")
    server.connect().produce("t", b"1", b"2", b"3")
    server.connect().produce("t", b"4", b"5")
    server.connect().call(10, 6, key_type=0, coordinator_keys=["g"])
    samples = _samples(server)
    told = {labels: n for (name, labels), n in samples.items() if name == "duramen_topic_in_records_total"}
    assert told[("partition", "0"), ("topic", "t")] == 5
    of_groups = {
        (name, dict(labels)["partition"])
        for name, labels in samples
        if dict(labels).get("topic") == "__consumer_offsets"
    }
    assert {partition for _, partition in of_groups} == {"all"}
    assert len(of_groups) == 12
    every = (("partition", "all"), ("topic", "__consumer_offsets"))
    assert samples["duramen_durability_stable", every] == 1, "the least, not the sum"
    logs = [p.log for tp, p in server.broker.store.partitions.items() if tp.topic == "__consumer_offsets"]
    assert len(logs) == 5
    assert samples["duramen_log_end_offset", every] == sum(log.end_offset for log in logs)
