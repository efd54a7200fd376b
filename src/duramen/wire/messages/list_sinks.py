"""ListSinks (key 10006, ours): the sinks whose coordinator is the broker that is asked."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, STRING, Array, Field, Struct

ListSinksRequest = Message("ListSinksRequest", "0-0", 0)

ListedSink = Struct(
    "ListedSink",
    Field("sink_id", STRING),
    Field("epoch", INT32),
    Field("ephemeral", BOOL),
    Field("last_batch_id", INT64),
    Field("unfinished_batches", INT32),
    Field("staged_handles", INT32),
    Field("staged_bytes", INT64),
)

ListSinksResponse = Message(
    "ListSinksResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("sinks", Array(ListedSink)),
)
