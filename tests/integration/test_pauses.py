"""A garbage collection and checkpoints under load are in the metrics of the node they happened in."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families
from tests.worlds.served_node import Served, free_port, only_duramen

SECONDS = 40.0
LAG = "duramen_loop_lag_seconds"
PAUSES = ("duramen_gc_pause_seconds", "duramen_checkpoint_seconds", "duramen_checkpoint_pause_seconds")


def samples(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = str(answer.read(), "utf-8")
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


@only_duramen
def test_collections_and_checkpoints_under_load_show_in_the_metrics(tmp_path: Path) -> None:
    port = free_port()
    # Half of a journal of two small parts is soon full: checkpoints follow the load.
    small = {
        "duramen.journal.max.bytes": "131072",
        "duramen.journal.part.bytes": "65536",
        "duramen.journal.bypass.bytes": "4096",
    }
    node = Served(tmp_path, {"metrics.listener": f"127.0.0.1:{port}", **small})
    node.start()
    try:
        before = samples(port)
        producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 0})
        end = time.monotonic() + SECONDS
        while True:
            for number in range(200):
                producer.produce("loaded", b"%d" % number + bytes(500))
            assert producer.flush(30) == 0
            after = samples(port)
            grown = [name for name in (*PAUSES, LAG) if after[f"{name}_count"] > before[f"{name}_count"]]
            if len(grown) > len(PAUSES):
                break
            assert time.monotonic() < end, f"only {grown} grew"
        for name in PAUSES:
            assert after[f"{name}_sum"] > 0
        assert node.stop() == 0, node.log()
    finally:
        node.kill()
