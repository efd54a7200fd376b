"""What streams are refused for, beside StreamClosedError: errors that say where to go on."""

from __future__ import annotations

from duramen.errors import ErrorCode, KafkaError


class NoSuchStreamError(KafkaError):
    """There is no stream of this name in the namespace."""

    def __init__(self, name: str) -> None:
        super().__init__(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no stream {name!r}; `duramen stream create {name}` makes it",
        )
        self.name = name

    @property
    def retriable(self) -> bool:
        """Not before somebody creates it."""
        return False


class StreamExistsError(KafkaError):
    """A stream that is to be created is there."""

    def __init__(self, name: str) -> None:
        super().__init__(ErrorCode.TOPIC_ALREADY_EXISTS, f"the stream {name!r} exists")
        self.name = name


class StreamEndMovedError(KafkaError):
    """The stream does not end where an append expected it to; nothing was stored. end: where it does (an offset)."""

    def __init__(self, message: str, end: int) -> None:
        super().__init__(ErrorCode.END_IS_ELSEWHERE, message)
        self.end = end


class TruncatedError(KafkaError):
    """A position lies before the first record that is kept. first: that one's offset, where reading can go on."""

    def __init__(self, name: str, position: object, first: int) -> None:
        text = f"{name}: {position} was truncated; the first offset that is kept is {first}"
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        self.first = first


class PositionDivergedError(KafkaError):
    """A position names a record that this stream does not hold: it was lost, or is another history's. An append that
    expected the position is not stored.

    end: where the stream ends (an offset), -1 where that was not asked.
    """

    def __init__(self, message: str, end: int = -1) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        self.end = end


class WriterFencedError(KafkaError):
    """Somebody else writes by now; nothing more is stored. The message says who. What this writer had sent before, and
    got no answer for, may be stored.

    epoch: of a named writer the newest that is known, where somebody has begun a higher one; else -1.
    """

    def __init__(self, message: str, epoch: int = -1) -> None:
        super().__init__(ErrorCode.PRODUCER_FENCED, message)
        self.epoch = epoch


class WriterSequenceError(KafkaError):
    """A named writer's batch leaves a gap: `expected` is the sequence that has to come next in its epoch."""

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message)
        self.expected = expected


class TxidOutOfOrderError(KafkaError):
    """A transaction id steps back; nothing was stored. last: the stream's last one, which the next may not be below."""

    def __init__(self, message: str, last: int) -> None:
        super().__init__(ErrorCode.TXID_OUT_OF_ORDER, message)
        self.last = last


class TxidMissingError(KafkaError):
    """A record has no transaction id, in a stream whose application gives them; nothing was stored."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.INVALID_REQUEST,
            "a record has no transaction id, which the application gives in this stream: NewStreamRecord(value, txid=…)"
            ", or txid=… of a writer's write",
        )


class OtherTxidsError(KafkaError):
    """The stream was deleted and made again, and its transaction ids are given by another side than those of the one
    before, which records were made for; nothing was stored."""

    def __init__(self, name: str, txids: str) -> None:
        super().__init__(
            ErrorCode.INVALID_REQUEST,
            f"{name}: the stream was deleted and made again with txid={txids!r}; what was gathered for the one before "
            "is not stored, open another writer",
        )


class AppendTooLargeError(KafkaError):
    """Records are more than what is taken at a time; nothing was stored.

    By way of a gateway, size: of the request in bytes, and limit: what it would take; else -1, and the message says it.
    """

    def __init__(self, message: str, records: int, size: int = -1, limit: int = -1) -> None:
        remedy = "append them in parts (max_bytes= of a writer)" if records > 1 else "append a smaller record"
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, f"{message}; {remedy}")
        self.size = size
        self.limit = limit


class NoSuchNamespaceError(KafkaError):
    """There is no such namespace: nothing is written about it, and no stream lies in it."""

    def __init__(self, path: str) -> None:
        super().__init__(ErrorCode.RESOURCE_NOT_FOUND, f"there is no namespace {path!r}; create it, or a stream in it")
        self.path = path


class NamespaceExistsError(KafkaError):
    """A namespace that is to be created has its defaults written down."""

    def __init__(self, path: str) -> None:
        super().__init__(ErrorCode.DUPLICATE_RESOURCE, f"the namespace {path!r} exists")
        self.path = path


class NamespaceNotEmptyError(KafkaError):
    """Streams or namespaces lie in a namespace that is to be deleted."""

    def __init__(self, path: str) -> None:
        super().__init__(
            ErrorCode.INVALID_REQUEST, f"the namespace {path!r} is not empty; delete what lies in it, or recursively"
        )
        self.path = path
