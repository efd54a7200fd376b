"""ListGroups (key 16): the groups that a broker coordinates."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, Array, Field, Struct

ListGroupsRequest = Message(
    "ListGroupsRequest",
    "0-5",
    3,
    Field("states_filter", Array(STRING), "4+"),
    Field("types_filter", Array(STRING), "5+"),
)

ListedGroup = Struct(
    "ListedGroup",
    Field("group_id", STRING),
    Field("protocol_type", STRING),
    Field("group_state", STRING, "4+", ignorable=True),
    Field("group_type", STRING, "5+", ignorable=True),
)

ListGroupsResponse = Message(
    "ListGroupsResponse",
    "0-5",
    3,
    Field("throttle_time_ms", INT32, "1+", ignorable=True),
    Field("error_code", INT16),
    Field("groups", Array(ListedGroup)),
)
