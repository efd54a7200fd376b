"""WriteTxnMarkers (key 27): markers of transactions, from their coordinator or an administrator (KIP-98, KIP-1228)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT8, INT16, INT32, INT64, STRING, Array, Field, Struct

WritableTxnMarkerTopic = Struct(
    "WritableTxnMarkerTopic",
    Field("name", STRING),
    Field("partition_indexes", Array(INT32)),
)

WritableTxnMarker = Struct(
    "WritableTxnMarker",
    Field("producer_id", INT64),
    Field("producer_epoch", INT16),
    Field("transaction_result", BOOL),
    Field("topics", Array(WritableTxnMarkerTopic)),
    Field("coordinator_epoch", INT32),
    Field("transaction_version", INT8, "2+", ignorable=True),
)

WriteTxnMarkersRequest = Message(
    "WriteTxnMarkersRequest",
    "1-2",
    1,
    Field("markers", Array(WritableTxnMarker)),
)

WritableTxnMarkerPartitionResult = Struct(
    "WritableTxnMarkerPartitionResult",
    Field("partition_index", INT32),
    Field("error_code", INT16),
)

WritableTxnMarkerTopicResult = Struct(
    "WritableTxnMarkerTopicResult",
    Field("name", STRING),
    Field("partitions", Array(WritableTxnMarkerPartitionResult)),
)

WritableTxnMarkerResult = Struct(
    "WritableTxnMarkerResult",
    Field("producer_id", INT64),
    Field("topics", Array(WritableTxnMarkerTopicResult)),
)

WriteTxnMarkersResponse = Message(
    "WriteTxnMarkersResponse",
    "1-2",
    1,
    Field("markers", Array(WritableTxnMarkerResult)),
)
