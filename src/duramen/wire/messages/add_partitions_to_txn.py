"""AddPartitionsToTxn (key 24): partitions join a transaction, or it is verified that they have (KIP-98, KIP-890)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, STRING, Array, Field, Struct

AddPartitionsToTxnTopic = Struct(
    "AddPartitionsToTxnTopic",
    Field("name", STRING),
    Field("partitions", Array(INT32)),
)

AddPartitionsToTxnTransaction = Struct(
    "AddPartitionsToTxnTransaction",
    Field("transactional_id", STRING, "4+"),
    Field("producer_id", INT64, "4+"),
    Field("producer_epoch", INT16, "4+"),
    Field("verify_only", BOOL, "4+"),
    Field("topics", Array(AddPartitionsToTxnTopic), "4+"),
)

AddPartitionsToTxnRequest = Message(
    "AddPartitionsToTxnRequest",
    "0-5",
    3,
    Field("transactions", Array(AddPartitionsToTxnTransaction), "4+"),
    Field("v3_and_below_transactional_id", STRING, "0-3"),
    Field("v3_and_below_producer_id", INT64, "0-3"),
    Field("v3_and_below_producer_epoch", INT16, "0-3"),
    Field("v3_and_below_topics", Array(AddPartitionsToTxnTopic), "0-3"),
)

AddPartitionsToTxnPartitionResult = Struct(
    "AddPartitionsToTxnPartitionResult",
    Field("partition_index", INT32),
    Field("partition_error_code", INT16),
)

AddPartitionsToTxnTopicResult = Struct(
    "AddPartitionsToTxnTopicResult",
    Field("name", STRING),
    Field("results_by_partition", Array(AddPartitionsToTxnPartitionResult)),
)

AddPartitionsToTxnResult = Struct(
    "AddPartitionsToTxnResult",
    Field("transactional_id", STRING, "4+"),
    Field("topic_results", Array(AddPartitionsToTxnTopicResult), "4+"),
)

AddPartitionsToTxnResponse = Message(
    "AddPartitionsToTxnResponse",
    "0-5",
    3,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16, "4+", ignorable=True),
    Field("results_by_transaction", Array(AddPartitionsToTxnResult), "4+"),
    Field("results_by_topic_v3_and_below", Array(AddPartitionsToTxnTopicResult), "0-3"),
)
