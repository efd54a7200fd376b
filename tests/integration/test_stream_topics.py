"""The topic of a stream's new version keeps what the topic keeps that it may take over from."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from tests.worlds.served_node import Served

from duramen.pipelines.run.cluster import PipelineNode

GIVEN = {"cleanup.policy": "compact", "retention.ms": "1234567890", "max.message.bytes": "2000000"}


def test_a_topic_like_another_has_its_settings_where_that_is_asked_for(served: Served) -> None:
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic("lagging", 3, 1, config=GIVEN)]).values():
        created.result(20)
    asked = PipelineNode(served.bootstrap)
    asked.create_like("lagging.v2", "lagging", settings=True)
    asked.create_like("lagging.plain", "lagging")
    for topic, expected in (("lagging.v2", GIVEN), ("lagging.plain", {})):
        (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        found = described.result(20)
        assert [found[name].value == value for name, value in GIVEN.items()] == [bool(expected)] * len(GIVEN), topic
        assert len(admin.list_topics(topic, timeout=20).topics[topic].partitions) == 3
