"""DescribeDamage (key 10020, ours): what one broker knows to be damaged, and how far its scrubbers are."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, STRING, Array, Field, Struct

DescribeDamageRequest = Message("DescribeDamageRequest", "0-0", 0)

DamagedRange = Struct(
    "DamagedRange",
    Field("topic", STRING),
    Field("partition_index", INT32, default=-1),
    Field("path", STRING),
    Field("start", INT64),
    Field("end", INT64),
    Field("first_offset", INT64, default=-1),
    Field("last_offset", INT64, default=-1),
    Field("what", STRING),
)

OfflinePartition = Struct(
    "OfflinePartition",
    Field("topic", STRING),
    Field("partition_index", INT32),
    Field("what", STRING),
)

DamageDirectory = Struct(
    "DamageDirectory",
    Field("log_dir", STRING),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("scrub_bytes_per_second", INT64),
    Field("scrub_rounds", INT64),
    Field("scrub_under_way", BOOL),
    Field("scrub_started_ms", INT64, default=-1),
    Field("scrub_round_bytes", INT64),
    Field("sealed_bytes", INT64),
    Field("damage_found", INT64),
    Field("damage", Array(DamagedRange)),
    Field("offline", Array(OfflinePartition)),
)

DescribeDamageResponse = Message(
    "DescribeDamageResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("node_id", INT32),
    Field("directories", Array(DamageDirectory)),
)
