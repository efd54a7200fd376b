"""DescribeLogDirs (key 35): sizes and health of a broker's log directories."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, STRING, Array, Field, Struct

DescribableLogDirTopic = Struct(
    "DescribableLogDirTopic",
    Field("topic", STRING),
    Field("partitions", Array(INT32)),
)

DescribeLogDirsRequest = Message(
    "DescribeLogDirsRequest",
    "1-5",
    2,
    Field("topics", Array(DescribableLogDirTopic), nullable="0+"),
)

DescribeLogDirsPartition = Struct(
    "DescribeLogDirsPartition",
    Field("partition_index", INT32),
    Field("partition_size", INT64),
    Field("offset_lag", INT64),
    Field("is_future_key", BOOL),
)

DescribeLogDirsTopic = Struct(
    "DescribeLogDirsTopic",
    Field("name", STRING),
    Field("partitions", Array(DescribeLogDirsPartition)),
)

DescribeLogDirsResult = Struct(
    "DescribeLogDirsResult",
    Field("error_code", INT16),
    Field("log_dir", STRING),
    Field("topics", Array(DescribeLogDirsTopic)),
    Field("total_bytes", INT64, "4+", default=-1, ignorable=True),
    Field("usable_bytes", INT64, "4+", default=-1, ignorable=True),
    Field("is_cordoned", BOOL, "5+", ignorable=True),
)

DescribeLogDirsResponse = Message(
    "DescribeLogDirsResponse",
    "1-5",
    2,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16, "3+", ignorable=True),
    Field("results", Array(DescribeLogDirsResult)),
)
