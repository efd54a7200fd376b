"""The topic of a stream's new version keeps what the topic keeps that it may take over from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from duramen.pipelines.cluster import Node
from serving import Served

GIVEN = {"cleanup.policy": "compact", "retention.ms": "-1", "max.message.bytes": "2000000"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    served.start()
    try:
        yield served
    finally:
        served.kill()


def test_a_topic_like_another_has_its_settings_where_that_is_asked_for(node: Served) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for created in admin.create_topics([NewTopic("late", 3, 1, config=GIVEN)]).values():
        created.result(20)
    asked = Node(node.bootstrap)
    asked.create_like("late.v2", "late", settings=True)
    asked.create_like("other", "late")
    for topic, expected in (("late.v2", GIVEN), ("other", {})):
        (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        found = described.result(20)
        assert [found[name].value == value for name, value in GIVEN.items()] == [bool(expected)] * len(GIVEN), topic
        assert len(admin.list_topics(topic, timeout=20).topics[topic].partitions) == 3
