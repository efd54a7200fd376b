"""A namespace: the streams below one path, of a cluster or of a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from duramen.client import Cluster
from duramen.dlsn import Dlsn
from duramen.errors import ConfigError
from duramen.streams.address import Address, parse_address
from duramen.streams.cluster_link import FIRST_CONTACT_S, ClusterLink
from duramen.streams.immediate import run
from duramen.streams.link import StreamLink, TxidKind
from duramen.streams.merged_reader import MergedReader
from duramen.streams.namespace_calls import PAGE, NamespaceCalls
from duramen.streams.namespace_tree import NamespaceTree
from duramen.streams.ready_cluster import ReadyCluster, sleep
from duramen.streams.stream import Stream

if TYPE_CHECKING:
    from duramen.streams.gateway_login import GatewayLogin


def open_namespace(
    uri: str, *, timeout_s: float = 30.0, token: str | None = None, ca_file: str | None = None
) -> Namespace:
    """The namespace at an address: `duramen://host:port[,host:port]/path`, `duramen+http://host:port/path` or
    `duramen+https://…` (by way of a gateway), or `duramen+file:///directory?namespace=path`.

    Without a path it is the root. timeout_s: limit of each call, restarts and elections of nodes included; in a
    directory, of appends. A directory is made where it is not there, and belongs to this process until `close`. token:
    a gateway's bearer token, else that in DURAMEN_TOKEN; not in the clear beyond loopback. ca_file: certificates in PEM
    that are trusted instead of the system's, else DURAMEN_CA_FILE. Raises ConfigError for what cannot be of these; for
    a directory what `duramen.open` raises.
    """
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is a number of seconds above 0, not {timeout_s}")
    address = parse_address(uri)
    link = blocking_link(address, timeout_s, login_of(address, token, ca_file))
    return Namespace(NamespaceCalls(link, address.namespace), uri)


def login_of(address: Address, token: str | None, ca_file: str | None) -> GatewayLogin | None:
    """How the gateway of an address is asked, None for another address; ConfigError as of `open_namespace`."""
    if address.gateway:
        from duramen.streams.gateway_login import login_at  # brings TLS, which others spare

        return login_at(address, token, ca_file)
    if token is not None or ca_file is not None:
        raise ConfigError("a token and a CA file are for a gateway, at duramen+https://host:port/namespace")
    return None


def blocking_link(address: Address, timeout_s: float, login: GatewayLogin | None) -> StreamLink:
    """The back end of an address; login: of a gateway's."""
    if address.directory:
        from duramen.streams.file_link import FileLink  # the whole engine: half a second a client need not wait for

        return FileLink(address.directory, timeout_s)
    if login is not None:
        from duramen.streams.http_link import HttpLink  # brings the standard library's email, which others spare

        host, _, port = address.gateway.rpartition(":")
        return HttpLink(host.strip("[]"), int(port), timeout_s, login)
    cluster = Cluster(address.nodes, client_id="duramen-streams", timeout_s=timeout_s, first_contact_s=FIRST_CONTACT_S)
    return ClusterLink(ReadyCluster(cluster), timeout_s, sleep)


class Namespace:
    """The streams below one path. Use it as a context manager, or `close` it; for one thread at a time.

    Names of streams are paths of letters, digits, _ and -, with / between them: `eu/ledger` in the namespace `finance`
    is the Kafka topic `finance.eu.ledger`, with one partition. Calls raise DeadlineError, NetworkError, StorageError,
    and KafkaError for what is refused.
    """

    def __init__(self, calls: NamespaceCalls, address: str) -> None:
        self.address = address
        self.path = calls.path
        self.namespaces = NamespaceTree(calls.namespaces)
        """The namespaces in this one, and its defaults."""
        self._calls = calls

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
        run(self._calls.close())

    def create(self, name: str, *, exclusive: bool = False, txid: TxidKind = "none", **settings: object) -> Stream:
        """Make a stream, durably, with the defaults of its namespaces. StreamExistsError where it is there.

        exclusive: only one writer at a time appends, `Stream.writer(exclusive=True)` (duramen.writer.exclusive). txid:
        its records have transaction ids that never step back, which the application gives, or the leader ("assigned":
        its clock in ms; duramen.txid). settings: Kafka's topic settings with _ for each dot, such as
        retention_ms=86_400_000.
        """
        return Stream(run(self._calls.create(name, exclusive, txid, settings)))

    def list(self, prefix: str = "", *, after: str = "", limit: int = PAGE) -> list[str]:
        """Names of streams that begin with `prefix`, sorted, at most `limit`; the next page is `after` the last one."""
        return run(self._calls.list(prefix, after, limit))

    def exists(self, name: str) -> bool:
        """Whether there is such a stream."""
        return run(self._calls.exists(name))

    def delete(self, name: str) -> None:
        """Delete a stream with its records. NoSuchStreamError where there is none."""
        run(self._calls.delete(name))

    def stream(self, name: str) -> Stream:
        """The stream of this name. NoSuchStreamError where there is none."""
        return Stream(run(self._calls.stream(name)))

    def merged(
        self,
        names: Sequence[str],
        *,
        start_txid: int | None = None,
        start: Mapping[str, Dlsn] | None = None,
        follow: bool = False,
    ) -> MergedReader:
        """The records of several streams as one, by transaction id, name of the stream and offset.

        start_txid: from the first records with this id or a higher one; else from the beginnings. start: `position` of
        another one, to go on after it; streams that it leaves out begin as without it. follow: wait for more, until
        all are closed. Then a record comes once no stream can have one before it any more: a stream that is at its end
        and whose last id is below the record's holds it back, until it has another record or is closed. Without
        `follow` each is read up to its end. KafkaError for a stream without transaction ids; else as `Stream.reader`.
        """
        return MergedReader(run(self._calls.merged(names, start_txid, start, follow=follow)))
