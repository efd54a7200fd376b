"""UpdateFeatures (key 57): change the finalized levels of cluster-wide features (KIP-584)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT8, INT16, INT32, STRING, Array, Field, Struct

FeatureUpdateKey = Struct(
    "FeatureUpdateKey",
    Field("feature", STRING),
    Field("max_version_level", INT16),
    Field("allow_downgrade", BOOL, "0"),
    Field("upgrade_type", INT8, "1+", default=1),
)

UpdateFeaturesRequest = Message(
    "UpdateFeaturesRequest",
    "0-2",
    0,
    Field("timeout_ms", INT32, default=60000),
    Field("feature_updates", Array(FeatureUpdateKey)),
    Field("validate_only", BOOL, "1+"),
)

UpdatableFeatureResult = Struct(
    "UpdatableFeatureResult",
    Field("feature", STRING),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
)

UpdateFeaturesResponse = Message(
    "UpdateFeaturesResponse",
    "0-2",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
    Field("results", Array(UpdatableFeatureResult), "0-1", ignorable=True),
)
