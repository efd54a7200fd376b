"""DeleteGroups (key 42): delete empty groups with their offsets."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, Array, Field, Struct

DeleteGroupsRequest = Message(
    "DeleteGroupsRequest",
    "0-2",
    2,
    Field("groups_names", Array(STRING)),
)

DeletableGroupResult = Struct(
    "DeletableGroupResult",
    Field("group_id", STRING),
    Field("error_code", INT16),
)

DeleteGroupsResponse = Message(
    "DeleteGroupsResponse",
    "0-2",
    2,
    Field("throttle_time_ms", INT32),
    Field("results", Array(DeletableGroupResult)),
)
