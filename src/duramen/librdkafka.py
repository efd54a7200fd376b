"""librdkafka's consumer and producer, all of whose errors can be caught.

Before Python 3.12 its binding raises a `KafkaError`, which is no exception, where a client is past help (a fatal
error), and where a callback lets an error out that another call of the binding raised. `except BaseException` does not
see it, so nothing that has to be put right is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition


class Raising:
    """A block out of which a KafkaError comes as the exception that holds it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: TracebackType | None) -> None:
        if isinstance(error, KafkaError):
            raise KafkaException(error) from None


_RAISING: Final = Raising()
Rebalanced = Callable[[confluent_kafka.Consumer, list[TopicPartition]], None]


def _whole(callback: Rebalanced | None) -> Rebalanced | None:
    """The callback, with the errors that it lets out made whole: until it is looked at, one of C's is but its parts."""
    if callback is None:
        return None

    def called(consumer: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
        try:
            callback(consumer, partitions)
        except BaseException:
            raise

    return called


class LibraryConsumer(confluent_kafka.Consumer):
    """Raises KafkaException, and what its callbacks raise."""

    def subscribe(self, topics: Sequence[str], *callbacks: Rebalanced | None, **named: Rebalanced | None) -> None:
        """Ask for partitions of these topics."""
        ours = [_whole(callback) for callback in callbacks]
        super().subscribe(list(topics), *ours, **{name: _whole(callback) for name, callback in named.items()})

    def poll(self, timeout: float = -1) -> Message | None:
        """The next message; None after so many seconds."""
        with _RAISING:
            return super().poll(timeout)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """The next messages."""
        with _RAISING:
            return super().consume(num_messages, timeout)

    def close(self) -> None:
        """Leave the group."""
        with _RAISING:
            super().close()


class LibraryProducer(confluent_kafka.Producer):
    """Raises KafkaException, and what its callbacks raise."""

    def poll(self, timeout: float = -1) -> int:
        """Have callbacks called."""
        with _RAISING:
            return super().poll(timeout)

    def flush(self, timeout: float = -1) -> int:
        """Wait until all is delivered; how many records are not."""
        with _RAISING:
            return super().flush(timeout)
