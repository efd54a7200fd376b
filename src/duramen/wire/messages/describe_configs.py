"""DescribeConfigs (key 32): configuration of topics, brokers and other resources."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT8, INT16, INT32, STRING, Array, Field, Struct

DescribeConfigsResource = Struct(
    "DescribeConfigsResource",
    Field("resource_type", INT8),
    Field("resource_name", STRING),
    Field("configuration_keys", Array(STRING), nullable="0+"),
)

DescribeConfigsRequest = Message(
    "DescribeConfigsRequest",
    "1-4",
    4,
    Field("resources", Array(DescribeConfigsResource)),
    Field("include_synonyms", BOOL),
    Field("include_documentation", BOOL, "3+"),
)

DescribeConfigsSynonym = Struct(
    "DescribeConfigsSynonym",
    Field("name", STRING),
    Field("value", STRING, nullable="0+"),
    Field("source", INT8),
)

DescribeConfigsResourceResult = Struct(
    "DescribeConfigsResourceResult",
    Field("name", STRING),
    Field("value", STRING, nullable="0+"),
    Field("read_only", BOOL),
    Field("config_source", INT8, default=-1),
    Field("is_sensitive", BOOL),
    Field("synonyms", Array(DescribeConfigsSynonym)),
    Field("config_type", INT8, "3+", ignorable=True),
    Field("documentation", STRING, "3+", nullable="0+", ignorable=True),
)

DescribeConfigsResult = Struct(
    "DescribeConfigsResult",
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
    Field("resource_type", INT8),
    Field("resource_name", STRING),
    Field("configs", Array(DescribeConfigsResourceResult)),
)

DescribeConfigsResponse = Message(
    "DescribeConfigsResponse",
    "1-4",
    4,
    Field("throttle_time_ms", INT32),
    Field("results", Array(DescribeConfigsResult)),
)
