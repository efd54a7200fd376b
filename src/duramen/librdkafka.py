"""librdkafka's consumer and producer, all of whose errors can be caught.

Before Python 3.12 its binding raises a `KafkaError`, which is no exception, where a client is past help (a fatal
error), and where a callback lets an error out that another call of the binding raised. `except BaseException` does not
see it, so nothing that has to be put right is. And a commit that waits can be ended, by a signal or after a time.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future
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
        if isinstance(consumer, LibraryConsumer):
            consumer.in_callback = True
        try:
            callback(consumer, partitions)
        except BaseException:
            raise
        finally:
            if isinstance(consumer, LibraryConsumer):
                consumer.in_callback = False

    return called


class LibraryConsumer(confluent_kafka.Consumer):
    """Raises KafkaException, and what its callbacks raise."""

    _committing: Future[list[TopicPartition]] | None = None
    """The last commit that was begun; whoever waited for it may be gone."""
    in_callback = False
    """Whether one of its callbacks runs now."""

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

    def commit_within(self, offsets: Sequence[TopicPartition], seconds: float = math.inf) -> list[TopicPartition]:
        """Commit these; durable on return, where the partitions that it returns hold no error.

        KafkaException with _TIMED_OUT after so many seconds; it may be made all the same. librdkafka's own call waits
        for a dead node for the length of a session, and no signal is handled meanwhile: it runs beside the caller. In a
        callback that is not possible, for the library serves no other thread then; so that waits as long as it does.
        """
        until = time.monotonic() + seconds
        if self.in_callback:
            if self._committing is not None and not self._committing.done():
                raise _late(0)
            with _RAISING:
                return super().commit(offsets=list(offsets), asynchronous=False)
        # An older one that comes later would set the group back.
        if self._committing is not None and not _is_done(self._committing, until):
            raise _late(seconds)
        self._committing = made = Future[list[TopicPartition]]()

        def run() -> None:
            try:
                with _RAISING:
                    made.set_result(super(LibraryConsumer, self).commit(offsets=list(offsets), asynchronous=False))
            except BaseException as error:  # noqa: BLE001 whoever waits raises it
                made.set_exception(error)

        threading.Thread(target=run, name="commit", daemon=True).start()
        if not _is_done(made, until):
            raise _late(seconds)
        return made.result()

    def close(self) -> None:
        """Leave the group; where a commit still waits, as soon as that is over, beside the caller."""
        if self._committing is None or self._committing.done():
            self._close()
        else:
            self._committing.add_done_callback(lambda _: self._close_behind())

    def _close(self) -> None:
        with _RAISING:
            super().close()

    def _close_behind(self) -> None:
        with contextlib.suppress(KafkaException):
            self._close()


def _is_done(commit: Future[list[TopicPartition]], until: float) -> bool:
    left = None if until == math.inf else max(0.0, until - time.monotonic())
    return bool(futures.wait([commit], left).done)


def _late(seconds: float) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer to a commit in {seconds:g} seconds"))


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
