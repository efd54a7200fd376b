"""Topics made on a real node, and what is stored in them."""

from __future__ import annotations

from duramen.client import Cluster
from duramen.client.protocol.list_offsets import EARLIEST
from duramen.client.protocol.routes import CONTROLLER
from duramen.model import TopicPartition
from duramen.wire.batch import batches, records
from duramen.wire.messages import API

CREATE_TOPICS = 19


def create(bootstrap: str, topic: str, partitions: int, **configs: str) -> None:
    message = API[CREATE_TOPICS].request
    settings = [
        message.CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()
    ]
    wanted = message.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=-1, configs=settings)
    with Cluster(bootstrap) as cluster:
        response = cluster.call(CONTROLLER, CREATE_TOPICS, message.new(topics=[wanted], timeout_ms=5000))
        assert [each.error_code for each in response.topics] == [0]


def stored(bootstrap: str, topic: str, partition: int) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of a partition, in order."""
    found = []
    tp = TopicPartition(topic, partition)
    with Cluster(bootstrap) as cluster:
        offset = cluster.list_offsets({tp: EARLIEST})[tp].offset
        while (fetched := cluster.fetch(tp, offset, max_wait_ms=0)).data:
            for place, header in batches(fetched.data):
                if not header.is_control:
                    part = records(fetched.data[place : place + header.size], header, max_bytes=1 << 24)
                    found += [(each.key, each.value) for each in part if each.offset >= offset]
            offset = fetched.next_offset
    return [(None if key is None else bytes(key), None if value is None else bytes(value)) for key, value in found]
