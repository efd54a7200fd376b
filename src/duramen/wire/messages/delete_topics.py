"""DeleteTopics (key 20): delete topics by name, or by id since version 6."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, UUID, Array, Field, Struct

DeleteTopicState = Struct(
    "DeleteTopicState",
    Field("name", STRING, nullable="0+", default=None),
    Field("topic_id", UUID),
)

DeleteTopicsRequest = Message(
    "DeleteTopicsRequest",
    "1-6",
    4,
    Field("topics", Array(DeleteTopicState), "6+"),
    Field("topic_names", Array(STRING), "1-5", ignorable=True),
    Field("timeout_ms", INT32),
)

DeletableTopicResult = Struct(
    "DeletableTopicResult",
    Field("name", STRING, nullable="6+"),
    Field("topic_id", UUID, "6+", ignorable=True),
    Field("error_code", INT16),
    Field("error_message", STRING, "5+", nullable="0+", default=None, ignorable=True),
)

DeleteTopicsResponse = Message(
    "DeleteTopicsResponse",
    "1-6",
    4,
    Field("throttle_time_ms", INT32),
    Field("responses", Array(DeletableTopicResult)),
)
