"""A namespace: the streams below one path, of a cluster or of a directory."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from duramen.client.protocol.stream_names import check_path, name_of, topic_of
from duramen.errors import ErrorCode, KafkaError
from duramen.streams.address import parse_address
from duramen.streams.cluster_link import ClusterLink
from duramen.streams.errors import NoSuchStreamError, StreamExistsError
from duramen.streams.link import StreamLink
from duramen.streams.stream import Stream

PAGE = 1000


def open_namespace(uri: str, *, timeout_s: float = 30.0) -> Namespace:
    """The namespace at an address: `duramen://host:port[,host:port]/path`, or `duramen+file:///directory?namespace=path`.

    Without a path it is the root. timeout_s: limit of each call, restarts and elections of nodes included; in a
    directory, of appends. A directory is made where it is not there, and belongs to this process until `close`. Raises
    ConfigError for an address that cannot be; for a directory what `duramen.open` raises.
    """
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is a number of seconds above 0, not {timeout_s}")
    address = parse_address(uri)
    if not address.directory:
        return Namespace(ClusterLink(address.nodes, timeout_s), uri, address.namespace)
    from duramen.streams.file_link import FileLink  # the whole engine: half a second that a client need not wait for

    return Namespace(FileLink(address.directory, timeout_s), uri, address.namespace)


class Namespace:
    """The streams below one path. Use it as a context manager, or `close` it; for one thread at a time.

    Names of streams are paths of letters, digits, _ and -, with / between them: `eu/ledger` in the namespace `finance`
    is the Kafka topic `finance.eu.ledger`, with one partition. Calls raise DeadlineError, NetworkError, StorageError,
    and KafkaError for what is refused.
    """

    def __init__(self, link: StreamLink, address: str, path: str) -> None:
        self.address = address
        self.path = path
        self._link = link

    def __repr__(self) -> str:
        return f"<duramen.streams.Namespace {self.path!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up, or give the directory back."""
        self._link.close()

    def create(self, name: str, **settings: object) -> Stream:
        """Make a stream, durably. StreamExistsError where it is there.

        settings: Kafka's topic settings with _ for each dot, such as retention_ms=86_400_000.
        """
        topic = topic_of(self.path, name)
        try:
            self._link.create(topic, {key.replace("_", "."): _text(value) for key, value in settings.items()})
        except KafkaError as error:
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                raise StreamExistsError(name) from error
            raise
        return Stream(self._link, name, topic)

    def list(self, prefix: str = "", *, after: str = "", limit: int = PAGE) -> list[str]:
        """Names of streams that begin with `prefix`, sorted, at most `limit`; the next page is `after` the last one."""
        if limit < 1:
            raise ValueError(f"limit is at least 1, not {limit}")
        names = (name_of(self.path, topic) for topic in self._link.topics())
        return sorted(name for name in names if name is not None and name.startswith(prefix) and name > after)[:limit]

    def exists(self, name: str) -> bool:
        """Whether there is such a stream."""
        return self._link.exists(topic_of(self.path, name))

    def delete(self, name: str) -> None:
        """Delete a stream with its records. NoSuchStreamError where there is none."""
        try:
            self._link.delete(topic_of(self.path, name))
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise NoSuchStreamError(name) from error
            raise

    def stream(self, name: str) -> Stream:
        """The stream of this name. NoSuchStreamError where there is none."""
        check_path("stream", name)
        if not self.exists(name):
            raise NoSuchStreamError(name)
        return Stream(self._link, name, topic_of(self.path, name))


def _text(value: object) -> str:
    """A setting as in a file of properties."""
    return str(value).lower() if isinstance(value, bool) else str(value)
