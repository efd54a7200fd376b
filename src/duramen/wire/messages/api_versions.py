"""ApiVersions (key 18): the APIs, versions and features a broker serves (KIP-35, KIP-511, KIP-584)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, STRING, Array, Field, Struct

ApiVersionsRequest = Message(
    "ApiVersionsRequest",
    "0-4",
    3,
    Field("client_software_name", STRING, "3+", ignorable=True),
    Field("client_software_version", STRING, "3+", ignorable=True),
)

ApiVersion = Struct(
    "ApiVersion",
    Field("api_key", INT16),
    Field("min_version", INT16),
    Field("max_version", INT16),
)

SupportedFeatureKey = Struct(
    "SupportedFeatureKey",
    Field("name", STRING),
    Field("min_version", INT16),
    Field("max_version", INT16),
)

FinalizedFeatureKey = Struct(
    "FinalizedFeatureKey",
    Field("name", STRING),
    Field("max_version_level", INT16),
    Field("min_version_level", INT16),
)

ApiVersionsResponse = Message(
    "ApiVersionsResponse",
    "0-4",
    3,
    Field("error_code", INT16),
    Field("api_keys", Array(ApiVersion)),
    Field("throttle_time_ms", INT32, "1+", ignorable=True),
    Field("supported_features", Array(SupportedFeatureKey), "3+", tagged="0+", tag=0, ignorable=True),
    Field("finalized_features_epoch", INT64, "3+", tagged="0+", tag=1, default=-1, ignorable=True),
    Field("finalized_features", Array(FinalizedFeatureKey), "3+", tagged="0+", tag=2, ignorable=True),
    Field("zk_migration_ready", BOOL, "3+", tagged="0+", tag=3, ignorable=True),
)
