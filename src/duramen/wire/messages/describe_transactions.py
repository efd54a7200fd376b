"""DescribeTransactions (key 65): state and partitions of transactional ids (KIP-664)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, STRING, Array, Field, Struct

DescribeTransactionsRequest = Message(
    "DescribeTransactionsRequest",
    "0-0",
    0,
    Field("transactional_ids", Array(STRING)),
)

TopicData = Struct(
    "TopicData",
    Field("topic", STRING),
    Field("partitions", Array(INT32)),
)

TransactionState = Struct(
    "TransactionState",
    Field("error_code", INT16),
    Field("transactional_id", STRING),
    Field("transaction_state", STRING),
    Field("transaction_timeout_ms", INT32),
    Field("transaction_start_time_ms", INT64),
    Field("producer_id", INT64),
    Field("producer_epoch", INT16),
    Field("topics", Array(TopicData)),
)

DescribeTransactionsResponse = Message(
    "DescribeTransactionsResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("transaction_states", Array(TransactionState)),
)
