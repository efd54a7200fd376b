"""DescribeProducers (key 61): the producers a partition remembers and their open transactions (KIP-664).

The tagged fields from 10000 on are ours: for whom an exclusive partition is open, and the offset of the opening.
"""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, STRING, Array, Field, Struct

TopicRequest = Struct(
    "TopicRequest",
    Field("name", STRING),
    Field("partition_indexes", Array(INT32)),
)

DescribeProducersRequest = Message(
    "DescribeProducersRequest",
    "0-0",
    0,
    Field("topics", Array(TopicRequest)),
)

ProducerState = Struct(
    "ProducerState",
    Field("producer_id", INT64),
    Field("producer_epoch", INT32),
    Field("last_sequence", INT32, default=-1),
    Field("last_timestamp", INT64, default=-1),
    Field("coordinator_epoch", INT32),
    Field("current_txn_start_offset", INT64, default=-1),
)

PartitionResponse = Struct(
    "PartitionResponse",
    Field("partition_index", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("active_producers", Array(ProducerState)),
    Field("writer_name", STRING, tagged="0+", tag=10000, default="", ignorable=True),
    Field("writer_offset", INT64, tagged="0+", tag=10001, default=-1, ignorable=True),
)

TopicResponse = Struct(
    "TopicResponse",
    Field("name", STRING),
    Field("partitions", Array(PartitionResponse)),
)

DescribeProducersResponse = Message(
    "DescribeProducersResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("topics", Array(TopicResponse)),
)
