"""DeleteRecords (key 21): advance the log start offset of partitions."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, STRING, Array, Field, Struct

DeleteRecordsPartition = Struct(
    "DeleteRecordsPartition",
    Field("partition_index", INT32),
    Field("offset", INT64),
)

DeleteRecordsTopic = Struct(
    "DeleteRecordsTopic",
    Field("name", STRING),
    Field("partitions", Array(DeleteRecordsPartition)),
)

DeleteRecordsRequest = Message(
    "DeleteRecordsRequest",
    "0-2",
    2,
    Field("topics", Array(DeleteRecordsTopic)),
    Field("timeout_ms", INT32),
)

DeleteRecordsPartitionResult = Struct(
    "DeleteRecordsPartitionResult",
    Field("partition_index", INT32),
    Field("low_watermark", INT64),
    Field("error_code", INT16),
)

DeleteRecordsTopicResult = Struct(
    "DeleteRecordsTopicResult",
    Field("name", STRING),
    Field("partitions", Array(DeleteRecordsPartitionResult)),
)

DeleteRecordsResponse = Message(
    "DeleteRecordsResponse",
    "0-2",
    2,
    Field("throttle_time_ms", INT32),
    Field("topics", Array(DeleteRecordsTopicResult)),
)
