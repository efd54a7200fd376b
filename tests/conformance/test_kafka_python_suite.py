"""A short part of kafka-python's own integration suite; `make conformance-kafka-python` runs the whole."""

from __future__ import annotations

from collections.abc import Callable

import kafka_python_suite
import pytest
from tests.worlds.served_node import Served

# One test of each kind, chosen so that together they take a few seconds. None that subscribes right after it has
# connected: kafka-python forgets to ask for a topic that is named while its first metadata request is under way.
SHORT = (
    "test_admin_integration.py::test_describe_configs_mixed_resources_returns_configs",
    "test_admin_integration.py::test_create_delete_topics",
    "test_admin_integration.py::test_delete_groups",
    "test_admin_integration.py::test_delete_records",
    "test_consumer_integration.py::test_kafka_consumer_offsets_for_time",
    "test_consumer_integration.py::test_kafka_consumer__offset_commit_resume",
    "test_producer_integration.py::test_idempotent_producer_high_throughput",
)


@pytest.mark.timeout(300)
def test_the_short_part_passes(serve: Callable[..., Served]) -> None:
    try:
        kafka_python_suite.suite()
    except kafka_python_suite.SuiteUnavailableError as reason:
        pytest.skip(str(reason))
    node = serve(**kafka_python_suite.SETTINGS)
    outcomes = kafka_python_suite.run_suite(node, SHORT, seconds=240)
    expected = [test for test in SHORT if test in kafka_python_suite.must_pass()]
    assert len(expected) == len(SHORT), "the short part is a part of the list"
    report = (node.folder / "kafka-python.log").read_text()
    assert {test: outcomes.get(test) for test in expected} == dict.fromkeys(expected, "PASSED"), report[-5000:]
