"""Where a stream lies: its topic at a back end, and what that topic is refused for in the words of streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from duramen.errors import DeadlineError, ErrorCode, KafkaError
from duramen.streams.errors import NoSuchStreamError, PositionDivergedError, TruncatedError
from duramen.streams.link import NO_CONDITION, StreamLink


class StreamPlace:
    """A stream's name, and its topic at a back end."""

    def __init__(self, link: StreamLink, name: str, topic: str) -> None:
        self.link = link
        self.name = name
        self.topic = topic

    def bounds(self) -> tuple[int, int]:
        """First offset, and the one behind the last committed record."""
        with self.errors():
            return self.link.bounds(self.topic)

    def is_closed(self) -> bool:
        """Asked now."""
        with self.errors():
            answer = self.link.append(self.topic, None, NO_CONDITION, close=False)
        if answer.code is not ErrorCode.NONE:
            raise KafkaError(answer.code, f"{self.name}: {answer.message or answer.code.name}")
        return answer.closed

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Around a call of the back end: NoSuchStreamError where it has no such topic."""
        try:
            yield
        except DeadlineError as error:
            if error.last is not None and error.last.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise NoSuchStreamError(self.name) from error
            raise
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not isinstance(error, NoSuchStreamError):
                raise NoSuchStreamError(self.name) from error
            raise

    def out_of_range(self, place: object, offset: int) -> KafkaError:
        """Why an offset is none of this stream's."""
        first, end = self.link.bounds(self.topic)
        if offset < first:
            return TruncatedError(self.name, place, first)
        return PositionDivergedError(f"{self.name} ends at {end}, in front of {place}", end)
