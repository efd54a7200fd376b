"""Numbers that clients must not be able to multiply, and buckets as Prometheus counts them."""

from __future__ import annotations

import struct

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.worlds.broker_world import InProcess

from duramen.server.metrics.exposition import BrokerCollector
from duramen.server.metrics.metrics import SECONDS_BUCKETS


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
