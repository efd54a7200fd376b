"""Metadata (key 3): brokers, topics, partitions and their leaders."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, STRING, UUID, Array, Field, Struct

MetadataRequestTopic = Struct(
    "MetadataRequestTopic",
    Field("topic_id", UUID, "10+", ignorable=True),
    Field("name", STRING, nullable="10+"),
)

MetadataRequest = Message(
    "MetadataRequest",
    "0-13",
    9,
    Field("topics", Array(MetadataRequestTopic), nullable="1+"),
    Field("allow_auto_topic_creation", BOOL, "4+", default=True),
    Field("include_cluster_authorized_operations", BOOL, "8-10"),
    Field("include_topic_authorized_operations", BOOL, "8+"),
)

MetadataResponseBroker = Struct(
    "MetadataResponseBroker",
    Field("node_id", INT32),
    Field("host", STRING),
    Field("port", INT32),
    Field("rack", STRING, "1+", nullable="0+", default=None, ignorable=True),
)

MetadataResponsePartition = Struct(
    "MetadataResponsePartition",
    Field("error_code", INT16),
    Field("partition_index", INT32),
    Field("leader_id", INT32),
    Field("leader_epoch", INT32, "7+", default=-1, ignorable=True),
    Field("replica_nodes", Array(INT32)),
    Field("isr_nodes", Array(INT32)),
    Field("offline_replicas", Array(INT32), "5+", ignorable=True),
)

MetadataResponseTopic = Struct(
    "MetadataResponseTopic",
    Field("error_code", INT16),
    Field("name", STRING, nullable="12+"),
    Field("topic_id", UUID, "10+", ignorable=True),
    Field("is_internal", BOOL, "1+", ignorable=True),
    Field("partitions", Array(MetadataResponsePartition)),
    Field("topic_authorized_operations", INT32, "8+", default=-2147483648),
)

MetadataResponse = Message(
    "MetadataResponse",
    "0-13",
    9,
    Field("throttle_time_ms", INT32, "3+", ignorable=True),
    Field("brokers", Array(MetadataResponseBroker)),
    Field("cluster_id", STRING, "2+", nullable="0+", default=None, ignorable=True),
    Field("controller_id", INT32, "1+", default=-1, ignorable=True),
    Field("topics", Array(MetadataResponseTopic)),
    Field("cluster_authorized_operations", INT32, "8-10", default=-2147483648),
    Field("error_code", INT16, "13+", ignorable=True),
)
