"""AlterConfigs (key 33): replace the whole configuration of resources (superseded by IncrementalAlterConfigs)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT8, INT16, INT32, STRING, Array, Field, Struct

AlterableConfig = Struct(
    "AlterableConfig",
    Field("name", STRING),
    Field("value", STRING, nullable="0+"),
)

AlterConfigsResource = Struct(
    "AlterConfigsResource",
    Field("resource_type", INT8),
    Field("resource_name", STRING),
    Field("configs", Array(AlterableConfig)),
)

AlterConfigsRequest = Message(
    "AlterConfigsRequest",
    "0-2",
    2,
    Field("resources", Array(AlterConfigsResource)),
    Field("validate_only", BOOL),
)

AlterConfigsResourceResponse = Struct(
    "AlterConfigsResourceResponse",
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
    Field("resource_type", INT8),
    Field("resource_name", STRING),
)

AlterConfigsResponse = Message(
    "AlterConfigsResponse",
    "0-2",
    2,
    Field("throttle_time_ms", INT32),
    Field("responses", Array(AlterConfigsResourceResponse)),
)
