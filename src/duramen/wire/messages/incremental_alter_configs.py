"""IncrementalAlterConfigs (key 44): set, delete, append to and subtract from single configuration values (KIP-339)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT8, INT16, INT32, STRING, Array, Field, Struct

AlterableConfig = Struct(
    "AlterableConfig",
    Field("name", STRING),
    Field("config_operation", INT8),
    Field("value", STRING, nullable="0+"),
)

AlterConfigsResource = Struct(
    "AlterConfigsResource",
    Field("resource_type", INT8),
    Field("resource_name", STRING),
    Field("configs", Array(AlterableConfig)),
)

IncrementalAlterConfigsRequest = Message(
    "IncrementalAlterConfigsRequest",
    "0-1",
    1,
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

IncrementalAlterConfigsResponse = Message(
    "IncrementalAlterConfigsResponse",
    "0-1",
    1,
    Field("throttle_time_ms", INT32),
    Field("responses", Array(AlterConfigsResourceResponse)),
)
