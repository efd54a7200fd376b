"""The client side of the commands: options that say which cluster, clients for it, and errors in one line."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import click
from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, OffsetSpec

from duramen.cli.shared.handshake import LOOK_SECONDS
from duramen.cli.shared.output import ProgressLine, pairs
from duramen.cli.shared.preflight import find_node, with_ports
from duramen.librdkafka import LibraryConsumer, LibraryProducer
from duramen.model import UNREADABLE_TOPICS

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
SILENT = logging.getLogger("duramen.cli.librdkafka")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False

_SPECS: Any = OffsetSpec
EARLIEST: OffsetSpec = _SPECS.earliest()
LATEST: OffsetSpec = _SPECS.latest()

_T = TypeVar("_T")
_Command = TypeVar("_Command", bound=Callable[..., Any])

_REMEDIES = {
    "UNKNOWN_TOPIC_OR_PART": "there is no such topic or partition; `duramen topic list` shows those there are",
    "_UNKNOWN_TOPIC": "there is no such topic; `duramen topic list` shows those there are",
    "_UNKNOWN_PARTITION": "there is no such partition; `duramen topic describe` shows those there are",
    "TOPIC_ALREADY_EXISTS": "the topic exists already; --if-not-exists makes that no error",
    "GROUP_ID_NOT_FOUND": "there is no such group; `duramen group list` shows those there are",
    "NON_EMPTY_GROUP": "the group has members; stop its consumers first",
    "UNKNOWN_MEMBER_ID": "the group has members; stop its consumers first",
    "GROUP_SUBSCRIBED_TO_TOPIC": "the group has members that read this topic; stop them first",
    "INVALID_REPLICATION_FACTOR": "fewer brokers are registered than copies are asked for; --replication-factor says "
    "how many copies",
    "OFFSET_OUT_OF_RANGE": "the offset lies outside of the log; `duramen topic describe` shows its ends",
    "_MSG_TIMED_OUT": "no acknowledgement in time; `duramen status` says whether the node is there and has room; "
    "or fewer copies are in sync than the topic's min.insync.replicas. --timeout waits longer",
    "COORDINATOR_LOAD_IN_PROGRESS": "the node still reads what the groups committed; ask again in a moment",
    "NOT_COORDINATOR": "no broker runs this group now: a new cluster does in a moment, ask again; or its partition of "
    "__consumer_offsets is damaged or offline, or the disk is full, and `duramen status` says which",
    "_TIMED_OUT": "no answer in time; is the node busy? --timeout waits longer",
    "_TIMED_OUT_QUEUE": "no answer in time; is the node busy? --timeout waits longer",
    "_TRANSPORT": "the connection broke, or no answer came; is the node still running?",
    "_ALL_BROKERS_DOWN": "no node can be reached any more; is it still running?",
    "INVALID_MSG": "the bytes stored there are damaged; the node's log says where, and `duramen log verify` how far",
    "KAFKA_STORAGE_ERROR": "it is offline, or its disk failed or is full; `duramen status` and the node's log say why",
    "INVALID_RECORD": "a record was refused; a compacted topic takes none without a key: --key, -K or --key-field",
    "MSG_SIZE_TOO_LARGE": "a record is larger than the topic's max.message.bytes",
    "INVALID_TIMESTAMP": "a record's timestamp lies further off than the topic's message.timestamp settings allow",
    "UNSUPPORTED_VERSION": "the node does not serve this request there: an old Kafka, or a listener for controllers",
    "_UNSUPPORTED_FEATURE": "the node does not serve this request there: an old Kafka, or a listener for controllers",
}


_WHERE_NOTHING_IS_SAID = {
    "TOPIC_EXCEPTION": "no topic can have this name, or it is one that only the node writes to",
    "REQUEST_TIMED_OUT": "no answer in time; is the node busy? --timeout waits longer",
    "POLICY_VIOLATION": "the settings do not allow it; a topic that is only compacted cannot be truncated",
}
"""Remedies for errors that mostly come with a message of the node's, which says more."""

_NO_NAME = "no topic can have this name; one is made of up to 249 letters, digits, dots, dashes and underscores"

_SET_ELSEWHERE = {
    "bootstrap.servers": "--bootstrap says it",
    "metadata.broker.list": "--bootstrap says it",
    "auto.offset.reset": "--from says it",
    "group.id": "--group says it",
    "enable.partition.eof": "the command sets it itself",
    "enable.auto.commit": "the command sets it itself",
    "enable.auto.offset.store": "the command sets it itself",
    "transactional.id": "no command writes in transactions",
}
"""Settings of the library that -X does not take, for the command would not do any more what it says."""

_OFFLINE = {"KAFKA_STORAGE_ERROR", "LEADER_NOT_AVAILABLE", "_NOENT"}
"""What ListOffsets answers of a partition that nobody can serve now; the last: none of those asked for has a leader."""


class ClusterAccess(NamedTuple):
    """Which cluster to talk to, and how."""

    bootstrap: str
    timeout: float
    properties: Mapping[str, str]

    def settings(self, **more: object) -> dict[str, Any]:
        """librdkafka's configuration. It logs nothing, failures come back as exceptions: a Ctrl-C that arrives in the
        call of a Python logger is lost in the library, which then returns no exception at all."""
        base: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "client.id": "duramen-cli",
            "log_level": 0,
            "socket.connection.setup.timeout.ms": max(1000, int(self.timeout * 1000)),
        }
        for key in self.properties.keys() & _SET_ELSEWHERE.keys():
            raise click.UsageError(f"-X {key}: {_SET_ELSEWHERE[key]}.")
        return {**base, **more, **self.properties}

    @property
    def patience(self) -> float:
        """Seconds after which nobody waits for the client library any more, which has time-outs of its own."""
        return self.timeout + min(self.timeout, 5)

    def admin(self) -> AdminClient:
        """A client for topics, groups and settings, which begins at the address that answers."""
        found = {"bootstrap.servers": self.probe()}
        return _configured(lambda: AdminClient({**self.settings(), **found}, logger=SILENT))

    def answering(self) -> str:
        """The addresses for our own client, in front the one that answers."""
        found = self.probe()
        return ",".join([found, *(each for each in self.bootstrap.split(",") if each != found)])

    def producer(self, **settings: object) -> LibraryProducer:
        """A client that writes."""
        self.probe()
        return _configured(lambda: LibraryProducer(self.settings(**settings), logger=SILENT))

    def consumer(self, **settings: object) -> LibraryConsumer:
        """A client that reads."""
        self.probe()
        return _configured(lambda: LibraryConsumer(self.settings(**settings), logger=SILENT))

    @property
    def is_plaintext(self) -> bool:
        """Whether our own client can talk to it as well."""
        return self._protocol == "plaintext"

    @property
    def _protocol(self) -> str:
        return str(self.settings().get("security.protocol", "plaintext")).lower()

    def probe(self) -> str:
        """Fail with what is wrong, rather than after librdkafka's retries, when no address leads to a node."""
        settings = self.settings()
        mechanism = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or "GSSAPI"
        return find_node(self.bootstrap, self.timeout, self._protocol, str(mechanism))


def _configured(make: Callable[[], _T]) -> _T:
    try:
        return make()
    except KafkaException as error:
        raise click.UsageError(f"-X: {_error_of(error).str()}.") from None


class Seconds(click.FloatRange):
    """A number of seconds within bounds; `nan`, which is neither below nor above them, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


_NAMES_MAX = 10
"""Of what was refused for one reason; a request may be about thousands."""
_NAME_BYTES_MAX = 32767
"""Of the protocol's strings; the client library sends a broken request for a longer one."""


class Name(click.types.StringParamType):
    """The name of a topic or a group: not empty, as it is where a script's variable is not set."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text: str = super().convert(value, param, ctx)
        if not text.strip():
            self.fail("it is empty.", param, ctx)
        if len(text.encode("utf-8", "replace")) > _NAME_BYTES_MAX:
            self.fail(f"it is longer than {_NAME_BYTES_MAX:,} bytes.", param, ctx)
        return text


NAME = Name()


def _refuse_other_bytes(given: Iterable[object]) -> None:
    """Refuse text with bytes that are none in this locale, which Python keeps as halves of characters: the client
    library fails by them in many ways, and dies of a group's name."""
    for value in given:
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and not text.isprintable() and any("\ud800" <= sign <= "\udfff" for sign in text):
                raise click.UsageError(f"{text.encode('utf-8', 'backslashreplace').decode()}: it is not UTF-8 text.")


def cluster_options(command: _Command) -> _Command:
    """Adds --bootstrap, --timeout and -X; the command gets them as its first argument, a Cluster."""

    @functools.wraps(command)
    def with_cluster(*args: Any, bootstrap: str, timeout: float, properties: tuple[str, ...], **rest: Any) -> Any:
        _refuse_other_bytes([bootstrap, *properties, *rest.values()])
        return command(ClusterAccess(with_ports(bootstrap), timeout, pairs("-X", properties)), *args, **rest)

    options = (
        click.option(
            "-b",
            "--bootstrap",
            envvar="DURAMEN_BOOTSTRAP",
            default=DEFAULT_BOOTSTRAP,
            show_default=True,
            show_envvar=True,
            metavar="HOST[:PORT]",
            help="Where to find the cluster.",
        ),
        click.option("--timeout", type=Seconds(0.1, 86_400), default=30.0, show_default=True, help="Seconds to wait."),
        click.option(
            "-X", "properties", multiple=True, metavar="KEY=VALUE", help="A librdkafka setting, such as TLS or SASL."
        ),
    )
    wrapped: Any = with_cluster
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def json_option(command: _Command) -> _Command:
    """Adds --json, which the command gets as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")(command)


def _error_of(error: BaseException) -> KafkaError:
    found = error.args[0] if error.args else None
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(error))


def error_name(error: BaseException) -> str:
    """librdkafka's name of the error inside an exception."""
    return _error_of(error).name()


def explain(error: BaseException, what: str = "") -> str:
    """An error of the client library as one line with its remedy."""
    inner = _error_of(error)
    text = _REMEDIES.get(inner.name(), "") or inner.str().strip().rstrip(".")
    if text.startswith("Broker: "):  # the library's own words for the code
        text = _WHERE_NOTHING_IS_SAID.get(inner.name(), text)
    if inner.name() == "UNKNOWN_TOPIC_OR_PART" and what.startswith(tuple(UNREADABLE_TOPICS)):
        text = "the node keeps it to itself, no client reads it; `duramen log dump` shows what is in it, offline"
    return f"{what}: {text}" if what else text


def failure_of_topics(error: BaseException, topics: Sequence[str]) -> click.ClickException:
    """The same where it concerns topics: of names that are refused it says which, and why."""
    if _error_of(error).code() == KafkaError.TOPIC_EXCEPTION:
        from duramen.machines.metadata import name_problem  # loaded for this alone

        illegal = [name for name in topics if name_problem(name) is not None]
        text = _NO_NAME if illegal else "only the node writes to it"
        return click.ClickException(f"{', '.join(illegal or topics)}: {text}.")
    return failure(error, ", ".join(topics))


def failure(error: BaseException, what: str = "") -> click.ClickException:
    """The exception that ends a command with this error."""
    return click.ClickException(sentence(explain(error, what)))


def sentence(text: str) -> str:
    """The text with a full stop, unless it ends in a mark of its own."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def call(cluster: ClusterAccess, what: str, work: Callable[[], _T]) -> _T:
    """The result of a call into the client library; its failure ends the command with one line."""
    try:
        return _beside(cluster, work)
    except KafkaException as error:
        raise failure(error, what) from None
    except ValueError as error:
        raise click.UsageError(f"{what}: {error}") from None


def _beside(cluster: ClusterAccess, work: Callable[[], _T]) -> _T:
    """The result of work that a thread does, so that Ctrl-C ends the command: the client library holds out for as long
    as its time-out, whatever signal comes."""
    results: list[_T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except (KafkaException, ValueError, TypeError, OverflowError, RuntimeError) as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    with ProgressLine(f"waiting for {cluster.bootstrap}") as progress:
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
            progress.show()
    if errors:
        raise errors[0]
    return results[0]


def _settled(cluster: ClusterAccess, what: str, future: Future[_T]) -> Future[_T]:
    """The future when its request was answered; no answer in time ends the command."""
    deadline = time.monotonic() + cluster.patience
    with ProgressLine(f"waiting for {cluster.bootstrap}") as progress:
        while not futures.wait([future], LOOK_SECONDS).done:
            if time.monotonic() > deadline:
                raise click.ClickException(f"{what}: {_REMEDIES['_TIMED_OUT']}.")
            progress.show()
    return future


def wait(cluster: ClusterAccess, what: str, future: Future[_T]) -> _T:
    """The result of a request; its failure ends the command with one line."""
    try:
        return _settled(cluster, what, future).result()
    except KafkaException as error:
        raise failure(error, what) from None


def failed(cluster: ClusterAccess, what: str, future: Future[Any]) -> BaseException | None:
    """How a request failed, for those who know what to do about it; None if it did not. No answer ends the command."""
    return _settled(cluster, what, future).exception()


def wait_for_each(
    cluster: ClusterAccess,
    asked: Mapping[str, Future[_T]],
    tell: Callable[[str, _T], None],
    excuse: Callable[[str, BaseException], bool] = lambda _what, _error: False,
) -> None:
    """Tell what became of each part of a request; those that failed end the command when all have been told.

    excuse: says whether an error is none here, and tells so itself.
    """
    refused: dict[str, list[str]] = {}
    for what, future in asked.items():
        error = failed(cluster, what, future)
        if error is None:
            tell(what, future.result())
        elif not excuse(what, error):
            refused.setdefault(explain(error), []).append(what)
    if refused:
        raise click.ClickException(sentence("; ".join(f"{_some(whats)}: {why}" for why, whats in refused.items())))


def _some(names: Sequence[str]) -> str:
    """All of few names, the first of many."""
    more = len(names) - _NAMES_MAX
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_NAMES_MAX])} and {more:,} more"


def only(asked: Mapping[Any, Future[_T]]) -> Future[_T]:
    """The one future of a request about one thing."""
    (future,) = asked.values()
    return future


def partitions_of(cluster: ClusterAccess, admin: AdminClient, topics: Iterable[str] | None) -> dict[str, list[int]]:
    """Partition numbers by topic, sorted; of every topic when none is named. An unknown topic ends the command."""
    names = None if topics is None else list(topics)
    found = call(cluster, "cannot list topics", lambda: admin.list_topics(timeout=cluster.timeout)).topics
    if names is None:
        return {name: sorted(topic.partitions) for name, topic in sorted(found.items())}
    for name in names:
        if name not in found:
            raise click.ClickException(f"{name}: {_REMEDIES['_UNKNOWN_TOPIC']}.")
    return {name: sorted(found[name].partitions) for name in names}


def internal_topics(cluster: ClusterAccess, admin: AdminClient, names: Iterable[str]) -> set[str]:
    """Those of the topics that the nodes call internal; a name says nothing, whatever it begins with."""
    # The names of Kafka's, and of ours, begin so; the list of all topics does not say which are.
    asked = [name for name in names if name.startswith("_")]
    if not asked:
        return set()
    told = call(cluster, "cannot list topics", lambda: admin.describe_topics(TopicCollection(asked)))
    return {
        name
        for name, future in told.items()
        if failed(cluster, name, future) is None and future.result().is_internal  # it may be deleted by now
    }


def at_time(timestamp_ms: int) -> OffsetSpec:
    """The first record of this time or later."""
    spec: OffsetSpec = _SPECS.for_timestamp(timestamp_ms)
    return spec


def offsets_at(
    cluster: ClusterAccess,
    admin: AdminClient,
    partitions: Iterable[tuple[str, int]],
    spec: OffsetSpec,
    *,
    committed: bool = False,
) -> dict[tuple[str, int], int]:
    """The offset of each partition at `spec` (earliest, latest, a time); -1 where there is none.

    committed: as a reader of committed records finds it, to whom a log ends where a transaction is open.
    """
    asked = {TopicPartition(topic, partition): spec for topic, partition in partitions}
    if not asked:
        return {}
    listing = functools.partial(
        admin.list_offsets, asked, isolation_level=_isolation(committed), request_timeout=cluster.timeout
    )
    answers = call(cluster, "cannot list offsets", listing)
    found = {
        (tp.topic, tp.partition): wait(cluster, f"{tp.topic}-{tp.partition}", future).offset
        for tp, future in answers.items()
    }
    refuse_silent(place for place, offset in found.items() if offset == OFFSET_INVALID)
    return found


def refuse_silent(places: Iterable[tuple[str, int]]) -> None:
    """End the command where the leaders of partitions did not answer; the client library takes that for no error."""
    silent = [f"{topic}-{partition}" for topic, partition in sorted(places)]
    if silent:
        raise click.ClickException(f"{_some(silent)}: no leader answers; `duramen status` says which node is away.")


def _isolation(committed: bool) -> IsolationLevel:
    return IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED


def ends_of(
    cluster: ClusterAccess,
    admin: AdminClient,
    partitions: Iterable[tuple[str, int]],
    unknown: set[tuple[str, int]] | None = None,
    *,
    committed: bool = False,
) -> dict[tuple[str, int], tuple[int, int]]:
    """First and last offset of each partition; those that are offline are left out.

    unknown: is given those of which the node says that there are none: deleted since, or not for clients. Without it
    one of them ends the command. committed: as in `offsets_at`.
    """
    online = list(partitions)
    found: list[dict[tuple[str, int], int]] = []
    for spec in (EARLIEST, LATEST):
        asked = {TopicPartition(*place): spec for place in online}
        if not asked:
            return {}
        told = call(
            cluster,
            "cannot list offsets",
            functools.partial(
                admin.list_offsets, asked, isolation_level=_isolation(committed), request_timeout=cluster.timeout
            ),
        )
        answers: dict[tuple[str, int], int] = {}
        for tp, future in told.items():
            error = failed(cluster, f"{tp.topic}-{tp.partition}", future)
            if error is not None and unknown is not None and error_name(error) == "UNKNOWN_TOPIC_OR_PART":
                unknown.add((tp.topic, tp.partition))
            elif error is None or error_name(error) not in _OFFLINE:
                offset = wait(cluster, f"{tp.topic}-{tp.partition}", future).offset
                if offset >= 0:  # else its leader has not answered
                    answers[(tp.topic, tp.partition)] = offset
        online = list(answers)
        found.append(answers)
    first, last = found
    return {place: (first[place], last[place]) for place in online}


def refuse_offline(metadata: ClusterMetadata, topic: str, partitions: Iterable[int] | None = None) -> None:
    """End the command when one of the partitions is offline, for which the client library would wait in vain."""
    found = metadata.topics[topic].partitions if topic in metadata.topics else {}
    off = [
        f"{topic}-{number}"
        for number in sorted(found if partitions is None else set(partitions) & set(found))
        if (error := found[number].error) is not None and error.name() == "KAFKA_STORAGE_ERROR"
    ]
    if off:
        more = ", ..." if len(off) > 4 else ""
        raise click.ClickException(f"{', '.join(off[:4])}{more}: {_REMEDIES['KAFKA_STORAGE_ERROR']}.")
