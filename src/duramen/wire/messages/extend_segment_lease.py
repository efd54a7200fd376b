"""ExtendSegmentLease (key 10011, ours): keep the segments of a plan a while longer, or let them go."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, Array, Field, Struct

ExtendSegmentLeaseRequest = Message(
    "ExtendSegmentLeaseRequest",
    "0-0",
    0,
    Field("lease_ids", Array(INT64)),
    Field("lease_ms", INT32),
)

ExtendedLease = Struct(
    "ExtendedLease",
    Field("lease_id", INT64),
    Field("error_code", INT16),
    Field("lease_ms", INT32),
)

ExtendSegmentLeaseResponse = Message(
    "ExtendSegmentLeaseResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("leases", Array(ExtendedLease)),
)
