"""DescribeSegments (key 10010, ours): what a log consists of, for readers that plan by bytes or read files."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT8, INT16, INT32, INT64, STRING, UUID, Array, Field, Struct

WantedPartition = Struct(
    "WantedPartition",
    Field("partition_index", INT32),
    Field("current_leader_epoch", INT32, default=-1),
    Field("start_offset", INT64, default=-1),
    Field("end_offset", INT64, default=-1),
)

WantedTopic = Struct(
    "WantedTopic",
    Field("name", STRING),
    Field("partitions", Array(WantedPartition)),
)

DescribeSegmentsRequest = Message(
    "DescribeSegmentsRequest",
    "0-0",
    0,
    Field("isolation_level", INT8),
    Field("max_entries", INT32, default=10000),
    Field("target_bytes", INT64),
    Field("lease_ms", INT32),
    Field("topics", Array(WantedTopic)),
)

IndexEntry = Struct(
    "IndexEntry",
    Field("offset", INT64),
    Field("position", INT64),
)

SegmentDescription = Struct(
    "SegmentDescription",
    Field("base_offset", INT64),
    Field("end_offset", INT64),
    Field("size_bytes", INT64),
    Field("first_timestamp", INT64, default=-1),
    Field("max_timestamp", INT64, default=-1),
    Field("is_sealed", BOOL),
    Field("index", Array(IndexEntry)),
)

PartitionSegments = Struct(
    "PartitionSegments",
    Field("partition_index", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("leader_epoch", INT32, default=-1),
    Field("log_start_offset", INT64, default=-1),
    Field("high_watermark", INT64, default=-1),
    Field("last_stable_offset", INT64, default=-1),
    Field("directory_id", UUID),
    Field("next_offset", INT64, default=-1),
    Field("segments", Array(SegmentDescription)),
)

TopicSegments = Struct(
    "TopicSegments",
    Field("name", STRING),
    Field("topic_id", UUID),
    Field("partitions", Array(PartitionSegments)),
)

SegmentDirectory = Struct(
    "SegmentDirectory",
    Field("directory_id", UUID),
    Field("path", STRING),
)

DescribeSegmentsResponse = Message(
    "DescribeSegmentsResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("lease_id", INT64, default=-1),
    Field("lease_ms", INT32),
    Field("directories", Array(SegmentDirectory)),
    Field("topics", Array(TopicSegments)),
)
