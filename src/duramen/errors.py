"""One error tree: every failure has a Kafka error code and says whether a retry can help.

    DuramenError                     anything this package raises on purpose
    ├── KafkaError(code)             a refusal that travels to a client as its code
    ├── ConfigError                  a setting is unknown or ill-typed; names the nearest key
    ├── StorageError                 the disk failed, or a directory cannot be used
    │   ├── DirectoryLockedError     another process owns the directory
    │   ├── CorruptLogError          stored bytes are not what was written; names file and range
    │   ├── FencedDirectoryError     a sync failed earlier: this directory takes no more writes
    │   └── UnreachableStorageError  a data directory cannot be read from here, or is another one: ask the broker
    ├── NetworkError                 a node cannot be reached, or hung up
    │   ├── NoConnectionError        an address takes no connection
    │   ├── NothingThereError        no address ever took one: it is the wrong one, or no node runs
    │   └── OutcomeUnknownError      it hung up on a request that may have taken effect
    ├── TopicReplacedError           a topic of that name was made anew: its offsets mean other records
    ├── DeadlineError                a call's time limit passed; says what went wrong last
    ├── ClosedError                  the log, client or server was already closed
    ├── SegmentGoneError             a segment was deleted, replaced or is not the one that was planned: plan again
    │   └── LeaseLostError           a lease ran out or was broken: what it kept may be gone
    └── BugError                     `check` found one of our own facts false

Codes and their retriable flag are Kafka's (org.apache.kafka.common.protocol.Errors, 4.3).
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Kafka's error codes, by their protocol number."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133
    STREAM_CLOSED = 10030
    """Ours, as all from 10000 on, and sent in answers of APIs of ours alone."""
    END_IS_ELSEWHERE = 10031
    TXID_OUT_OF_ORDER = 10032

    @property
    def retriable(self) -> bool:
        """Whether a client may send the same request again and hope."""
        return self in RETRIABLE


RETRIABLE = frozenset(
    ErrorCode(code)
    for code in (
        2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89,
        100, 103, 106, 122, 123, 133,
    )
)  # fmt: skip


class DuramenError(Exception):
    """Root of everything this package raises on purpose; `code` is what a Kafka client is told."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.code.retriable


class KafkaError(DuramenError):
    """A refusal with a Kafka code; the message is for people and may travel as `error_message`."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message or code.name


class StreamClosedError(KafkaError):
    """Nothing is appended any more: the stream is closed. Kafka's clients have no word for it, and get a code that none
    of them tries again on.
    """

    def __init__(self, what: object) -> None:
        super().__init__(ErrorCode.POLICY_VIOLATION, f"{what}: the stream is closed")


class ConfigError(DuramenError):
    """A setting is unknown, ill-typed or out of bounds."""

    code = ErrorCode.INVALID_CONFIG


class StorageError(DuramenError):
    """The disk failed or a data directory cannot be used; the message names the path and the remedy."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class DirectoryLockedError(StorageError):
    """Another process holds the data directory's lock."""


class CorruptLogError(StorageError):
    """Stored bytes differ from what was written.

    path: the file; start, end: byte range that cannot be trusted; offset, last_offset: of the records it concerns (-1
    unknown; the first may be that of the reader while the last is unknown).
    """

    code = ErrorCode.CORRUPT_MESSAGE

    def __init__(self, path: str, start: int, end: int, reason: str, offset: int = -1, last_offset: int = -1) -> None:
        super().__init__(f"{path}: bytes {start}..{end} are damaged ({reason}); first offset affected: {offset}")
        self.path = path
        self.start = start
        self.end = end
        self.reason = reason
        self.offset = offset
        self.last_offset = last_offset


class FencedDirectoryError(StorageError):
    """A sync of this directory failed: it takes no writes until a restart has recovered it from disk."""


class UnreachableStorageError(StorageError):
    """This process cannot read the data directory it was told of, or finds another one there: read by the broker."""


class NetworkError(DuramenError):
    """A node cannot be reached, hung up, or does not speak the protocol."""

    code = ErrorCode.NETWORK_EXCEPTION


class NoConnectionError(NetworkError):
    """No connection to an address comes about: nothing listens there, or nothing of what is sent there arrives."""


class NothingThereError(NetworkError):
    """None of the addresses that a client was given takes a connection, and none ever did: trying on will not help."""

    @property
    def retriable(self) -> bool:
        """Not for this client."""
        return False


class TlsError(NetworkError):
    """A server is not trusted, or only one of the two sides speaks TLS; the message has the remedy."""

    @property
    def retriable(self) -> bool:
        """Not before somebody mends it."""
        return False


class OutcomeUnknownError(NetworkError):
    """No answer came to a request that may have taken effect, and that may not be sent twice."""


class TopicReplacedError(DuramenError):
    """The topic that was meant is gone, and another one has its name: the same offsets are other records there."""

    code = ErrorCode.INCONSISTENT_TOPIC_ID

    @property
    def retriable(self) -> bool:
        """Never: it does not come back."""
        return False


class DeadlineError(DuramenError):
    """A call's time limit passed; `last` is what stood in its way at the end, None when nothing was heard at all."""

    code = ErrorCode.REQUEST_TIMED_OUT

    def __init__(self, message: str, last: DuramenError | None = None) -> None:
        super().__init__(message if last is None else f"{message}: {last}")
        self.last = last


class ClosedError(DuramenError):
    """The log, partition, client or server was closed before the call."""


class SegmentGoneError(DuramenError):
    """A sealed segment was deleted, compacted away or is another one than was planned for: ask for a new plan."""

    code = ErrorCode.RESOURCE_NOT_FOUND


class LeaseLostError(SegmentGoneError):
    """A lease on segments ran out, was broken for holding back too much, or its broker was started anew."""


class BugError(DuramenError):
    """One of our own invariants does not hold: a bug, not an operating error."""


def check(condition: object, fact: str) -> None:
    """Raise BugError(fact) unless condition holds. Always on, unlike `assert`."""
    if not condition:
        raise BugError(fact)
