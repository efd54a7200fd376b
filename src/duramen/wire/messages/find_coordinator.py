"""FindCoordinator (key 10): which broker coordinates a group or a transactional id; several at once since version 4."""

from duramen.wire.schema import Message
from duramen.wire.types import INT8, INT16, INT32, STRING, Array, Field, Struct

FindCoordinatorRequest = Message(
    "FindCoordinatorRequest",
    "0-6",
    3,
    Field("key", STRING, "0-3"),
    Field("key_type", INT8, "1+"),
    Field("coordinator_keys", Array(STRING), "4+"),
)

Coordinator = Struct(
    "Coordinator",
    Field("key", STRING),
    Field("node_id", INT32),
    Field("host", STRING),
    Field("port", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
)

FindCoordinatorResponse = Message(
    "FindCoordinatorResponse",
    "0-6",
    3,
    Field("throttle_time_ms", INT32, "1+", ignorable=True),
    Field("error_code", INT16, "0-3"),
    Field("error_message", STRING, "1-3", nullable="0+", ignorable=True),
    Field("node_id", INT32, "0-3"),
    Field("host", STRING, "0-3"),
    Field("port", INT32, "0-3"),
    Field("coordinators", Array(Coordinator), "4+"),
)
