"""Produce (key 0): producers append record batches to partitions.

The tagged fields from 10000 on are ours: who asks for receipts gets them.
"""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT8, INT16, INT32, INT64, RECORDS, STRING, UUID, Array, Field, Struct

PartitionProduceData = Struct(
    "PartitionProduceData",
    Field("index", INT32),
    Field("records", RECORDS, nullable="0+"),
)

TopicProduceData = Struct(
    "TopicProduceData",
    Field("name", STRING, "3-12", ignorable=True),
    Field("topic_id", UUID, "13+", ignorable=True),
    Field("partition_data", Array(PartitionProduceData)),
)

ProduceRequest = Message(
    "ProduceRequest",
    "3-13",
    9,
    Field("transactional_id", STRING, nullable="0+", default=None),
    Field("acks", INT16),
    Field("timeout_ms", INT32),
    Field("topic_data", Array(TopicProduceData)),
    Field("receipts", BOOL, "9+", tagged="9+", tag=10000, ignorable=True),
)

BatchIndexAndErrorMessage = Struct(
    "BatchIndexAndErrorMessage",
    Field("batch_index", INT32),
    Field("batch_index_error_message", STRING, nullable="0+", default=None),
)

LeaderIdAndEpoch = Struct(
    "LeaderIdAndEpoch",
    Field("leader_id", INT32, default=-1),
    Field("leader_epoch", INT32, default=-1),
)

ProduceReceipt = Struct(
    "ProduceReceipt",
    Field("leader_epoch", INT32, default=-1),
    Field("durability", INT8),
    Field("copies", INT16),
    Field("duplicate", BOOL),
)

PartitionProduceResponse = Struct(
    "PartitionProduceResponse",
    Field("index", INT32),
    Field("error_code", INT16),
    Field("base_offset", INT64),
    Field("log_append_time_ms", INT64, default=-1),
    Field("log_start_offset", INT64, "5+", default=-1, ignorable=True),
    Field("record_errors", Array(BatchIndexAndErrorMessage), "8+", ignorable=True),
    Field("error_message", STRING, "8+", nullable="0+", default=None, ignorable=True),
    Field("current_leader", LeaderIdAndEpoch, "10+", tagged="0+", tag=0),
    Field("receipt", ProduceReceipt, "9+", tagged="9+", tag=10000, ignorable=True),
)

TopicProduceResponse = Struct(
    "TopicProduceResponse",
    Field("name", STRING, "3-12", ignorable=True),
    Field("topic_id", UUID, "13+", ignorable=True),
    Field("partition_responses", Array(PartitionProduceResponse)),
)

NodeEndpoint = Struct(
    "NodeEndpoint",
    Field("node_id", INT32),
    Field("host", STRING),
    Field("port", INT32),
    Field("rack", STRING, nullable="0+", default=None),
)

ProduceResponse = Message(
    "ProduceResponse",
    "3-13",
    9,
    Field("responses", Array(TopicProduceResponse)),
    Field("throttle_time_ms", INT32),
    Field("node_endpoints", Array(NodeEndpoint), "10+", tagged="0+", tag=0),
)
