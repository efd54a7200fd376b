"""Streams in a directory that this process owns: the embedded engine, without a server."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from duramen.embedded import TopicStream, open_log
from duramen.errors import DeadlineError, ErrorCode, KafkaError
from duramen.streams.link import StreamAnswer, Stretch
from duramen.streams.records import Row
from duramen.wire.batch import build_batch

_PARTITION = 0


class FileLink:
    """A log directory. Safe from several threads. timeout_s: of each append."""

    def __init__(self, directory: str, timeout_s: float) -> None:
        self._log = open_log(directory)
        self._timeout_s = timeout_s
        self._creating = threading.Lock()

    def topics(self) -> list[str]:
        """See `StreamLink`."""
        return [name for name in self._log.topics() if self._log.topic(name).partitions == 1]

    def exists(self, topic: str) -> bool:
        """See `StreamLink`."""
        if topic not in self._log.topics():
            return False
        count = self._log.topic(topic).partitions
        if count != 1:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"topic {topic} has {count} partitions; a stream has one")
        return True

    def create(self, topic: str, settings: Mapping[str, str]) -> None:
        """See `StreamLink`."""
        with self._creating:
            if topic in self._log.topics():
                raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic} exists")
            self._log.topic(topic, 1, settings)

    def delete(self, topic: str) -> None:
        """See `StreamLink`."""
        self._log.delete_topic(topic)

    def append(self, topic: str, rows: Sequence[Row] | None, expected: int, *, close: bool) -> StreamAnswer:
        """See `StreamLink`."""
        batch = None if rows is None else build_batch(rows)
        try:
            return StreamAnswer(*self._stream(topic).append(batch, expected, close=close, timeout_s=self._timeout_s))
        except TimeoutError as error:
            raise DeadlineError(str(error)) from error

    def fetch(self, topic: str, offset: int) -> Stretch:
        """See `StreamLink`."""
        return Stretch(*self._stream(topic).read(offset))

    def wait(self, topic: str, offset: int) -> None:
        """See `StreamLink`."""
        self._stream(topic).wait(offset)

    def bounds(self, topic: str) -> tuple[int, int]:
        """See `StreamLink`."""
        self._check(topic)
        found = self._log.topic(topic)
        return found.start_offset(_PARTITION), found.end_offset(_PARTITION)

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        """See `StreamLink`."""
        self._check(topic)
        return self._log.topic(topic).offset_at(_PARTITION, timestamp_ms)

    def truncate(self, topic: str, before: int) -> int:
        """See `StreamLink`."""
        self._check(topic)
        return self._log.topic(topic).truncate(_PARTITION, before)

    def close(self) -> None:
        """See `StreamLink`."""
        self._log.close()

    def _stream(self, topic: str) -> TopicStream:
        self._check(topic)
        return TopicStream(self._log.topic(topic))

    def _check(self, topic: str) -> None:
        """`EmbeddedLog.topic` would make one that is not there."""
        if topic not in self._log.topics():
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")
