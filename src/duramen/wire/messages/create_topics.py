"""CreateTopics (key 19): create topics, or only check that they could be created."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT8, INT16, INT32, STRING, UUID, Array, Field, Struct

CreatableReplicaAssignment = Struct(
    "CreatableReplicaAssignment",
    Field("partition_index", INT32),
    Field("broker_ids", Array(INT32)),
)

CreatableTopicConfig = Struct(
    "CreatableTopicConfig",
    Field("name", STRING),
    Field("value", STRING, nullable="0+"),
)

CreatableTopic = Struct(
    "CreatableTopic",
    Field("name", STRING),
    Field("num_partitions", INT32),
    Field("replication_factor", INT16),
    Field("assignments", Array(CreatableReplicaAssignment)),
    Field("configs", Array(CreatableTopicConfig)),
)

CreateTopicsRequest = Message(
    "CreateTopicsRequest",
    "2-7",
    5,
    Field("topics", Array(CreatableTopic)),
    Field("timeout_ms", INT32, default=60000),
    Field("validate_only", BOOL),
)

CreatableTopicConfigs = Struct(
    "CreatableTopicConfigs",
    Field("name", STRING),
    Field("value", STRING, nullable="0+"),
    Field("read_only", BOOL),
    Field("config_source", INT8, default=-1),
    Field("is_sensitive", BOOL),
)

CreatableTopicResult = Struct(
    "CreatableTopicResult",
    Field("name", STRING),
    Field("topic_id", UUID, "7+", ignorable=True),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
    Field("topic_config_error_code", INT16, "5+", tagged="0+", tag=0, ignorable=True),
    Field("num_partitions", INT32, "5+", default=-1, ignorable=True),
    Field("replication_factor", INT16, "5+", default=-1, ignorable=True),
    Field("configs", Array(CreatableTopicConfigs), "5+", nullable="0+", ignorable=True),
)

CreateTopicsResponse = Message(
    "CreateTopicsResponse",
    "2-7",
    5,
    Field("throttle_time_ms", INT32),
    Field("topics", Array(CreatableTopicResult)),
)
