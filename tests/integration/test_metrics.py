"""`metrics.listener`: Prometheus text that a real parser reads, and the two health pages."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families
from tests.worlds.served_node import Served, free_port


def get(port: int, page: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=10) as answer:
        return str(answer.read(), "utf-8")


def test_a_node_tells_its_numbers(tmp_path: Path) -> None:
    port = free_port()
    node = Served(tmp_path, {"metrics.listener": f"127.0.0.1:{port}", "group.initial.rebalance.delay.ms": "0"})
    node.start()
    try:
        producer = Producer({"bootstrap.servers": node.bootstrap})
        for number in range(100):
            producer.produce("measured", b"%d" % number)
        assert producer.flush(20) == 0
        consumer = Consumer(
            {"bootstrap.servers": node.bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["measured"])
        got = 0
        while got < 40:
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None
            got += 1
        consumer.commit(message, asynchronous=False)
        consumer.close()

        assert get(port, "/healthz") == "ok\n"
        assert get(port, "/readyz") == "ready\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(port, "/nothing")
        samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(get(port, "/metrics"))
            for sample in family.samples
        }
        here = (("partition", "0"), ("topic", "measured"))
        assert samples["duramen_log_end_offset", here] == 100
        assert samples["duramen_high_watermark", here] == 100
        assert samples["duramen_durability_stable", here] == 1
        assert samples["duramen_topic_in_bytes_total", here] > 100
        assert samples["duramen_topic_in_records_total", here] == 100
        assert samples["process_resident_memory_bytes", ()] > 1 << 20
        assert samples["duramen_group_lag_records", (("group", "readers"), *here)] == 60
        assert samples["duramen_request_seconds_count", (("api", "Produce"),)] >= 1
        assert samples["duramen_journal_sync_seconds_count", ()] >= 1
        opened, closed = (samples[f"duramen_connections_{what}_total", ()] for what in ("opened", "closed"))
        assert opened >= 2
        assert opened - closed == samples["duramen_connections", ()]
        clients = {labels: value for (name, labels), value in samples.items() if name == "duramen_client_connections"}
        assert sum(clients.values()) == samples["duramen_connections", ()]
        assert "confluent-kafka-python" in str(clients)
        assert samples["duramen_fetch_sessions_evicted_total", ()] == 0
        directory = (("directory", str(node.data)),)
        assert samples["duramen_journal_growth_refused", directory] == 0
    finally:
        node.kill()
