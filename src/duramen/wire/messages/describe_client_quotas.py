"""DescribeClientQuotas (key 48): quotas of users, client ids and addresses that match a filter (KIP-546)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, FLOAT64, INT8, INT16, INT32, STRING, Array, Field, Struct

ComponentData = Struct(
    "ComponentData",
    Field("entity_type", STRING),
    Field("match_type", INT8),
    Field("match", STRING, nullable="0+"),
)

DescribeClientQuotasRequest = Message(
    "DescribeClientQuotasRequest",
    "0-1",
    1,
    Field("components", Array(ComponentData)),
    Field("strict", BOOL),
)

EntityData = Struct(
    "EntityData",
    Field("entity_type", STRING),
    Field("entity_name", STRING, nullable="0+"),
)

ValueData = Struct(
    "ValueData",
    Field("key", STRING),
    Field("value", FLOAT64),
)

EntryData = Struct(
    "EntryData",
    Field("entity", Array(EntityData)),
    Field("values", Array(ValueData)),
)

DescribeClientQuotasResponse = Message(
    "DescribeClientQuotasResponse",
    "0-1",
    1,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
    Field("entries", Array(EntryData), nullable="0+"),
)
