"""ListConfigResources (key 74): resources that carry configuration of their own."""

from duramen.wire.schema import Message
from duramen.wire.types import INT8, INT16, INT32, STRING, Array, Field, Struct

ListConfigResourcesRequest = Message(
    "ListConfigResourcesRequest",
    "0-1",
    0,
    Field("resource_types", Array(INT8), "1+"),
)

ConfigResource = Struct(
    "ConfigResource",
    Field("resource_name", STRING),
    Field("resource_type", INT8, "1+", default=16, ignorable=True),
)

ListConfigResourcesResponse = Message(
    "ListConfigResourcesResponse",
    "0-1",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("config_resources", Array(ConfigResource)),
)
