"""BrokerRegistration (key 62): a broker process says who and where it is (KIP-631)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, STRING, UINT16, UUID, Array, Field, Struct

Listener = Struct(
    "Listener",
    Field("name", STRING),
    Field("host", STRING),
    Field("port", UINT16),
    Field("security_protocol", INT16),
)

Feature = Struct(
    "Feature",
    Field("name", STRING),
    Field("min_supported_version", INT16),
    Field("max_supported_version", INT16),
)

BrokerRegistrationRequest = Message(
    "BrokerRegistrationRequest",
    "0-4",
    0,
    Field("broker_id", INT32),
    Field("cluster_id", STRING),
    Field("incarnation_id", UUID),
    Field("listeners", Array(Listener)),
    Field("features", Array(Feature)),
    Field("rack", STRING, nullable="0+"),
    Field("is_migrating_zk_broker", BOOL, "1+"),
    Field("log_dirs", Array(UUID), "2+", ignorable=True),
    Field("previous_broker_epoch", INT64, "3+", default=-1, ignorable=True),
)

BrokerRegistrationResponse = Message(
    "BrokerRegistrationResponse",
    "0-4",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("broker_epoch", INT64, default=-1),
)
