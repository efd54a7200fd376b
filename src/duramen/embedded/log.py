"""`duramen.open`: the engine in the caller's process, without a server.

Appends are durable when they return. Threads may share one log: those that append at the same time share a group
commit. The directory can be served by `duramen serve` afterwards, and the other way round.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from logging import getLogger
from typing import Any, TypeVar

from duramen.config import load_broker_config
from duramen.dlsn import LogEnd
from duramen.embedded.append_queue import BATCH_TARGET_BYTES, Done, PendingAppend, batch_bytes
from duramen.embedded.arguments import Isolation, check_name, level_of, texts
from duramen.embedded.log_chunk import LogChunk, content
from duramen.embedded.records import Record, StoredRecord, check_records
from duramen.embedded.stream_writes import (
    Writer,
    append_batch,
    close_stream,
    log_end,
    open_exclusive,
    release_exclusive,
)
from duramen.embedded.threads import ThreadResult, begin_thread, unbroken_long, waiting_time
from duramen.embedded.world import Turn, local_world
from duramen.errors import (
    ClosedError,
    ConfigError,
    CorruptLogError,
    DirectoryLockedError,
    DuramenError,
    ErrorCode,
    KafkaError,
    StorageError,
)
from duramen.machines.metadata.commands import (
    BrokerHeartbeat,
    DeleteTopics,
    RegisterBroker,
    Registered,
    TopicCreated,
    TopicRef,
)
from duramen.machines.metadata.features import OFFERED
from duramen.machines.metadata.image import TopicImage
from duramen.model import INTERNAL_TOPICS, NO_TIMESTAMP, TopicPartition
from duramen.partition.metadata.controller import Controller, silent
from duramen.partition.metadata.publisher import MetadataPublisher
from duramen.partition.replica.offset_lookup import delete_records, lookup
from duramen.partition.replica.partition import Partition, Read
from duramen.partition.store.settings import cleaner_settings, directory_settings
from duramen.partition.store.store import Store
from duramen.storage import (
    META_PROPERTIES,
    LogDirectory,
    Pending,
    RealDisk,
    TimeLookup,
    decode_meta,
    is_shared,
    read_file,
    search_by_timestamp,
)
from duramen.wire.key_partitions import partition_for

READ_CHUNK_BYTES = 1024 * 1024
START_SECONDS = 60.0

T = TypeVar("T")

_OPEN: set[tuple[int, str]] = set()
"""(process, directory) of the logs that are open."""


def open_log(path: str | os.PathLike[str], settings: Mapping[str, str] | None = None) -> EmbeddedLog:
    """Create or recover the log in directory `path` and own it until it is closed.

    settings: broker settings by their Kafka names, as texts, e.g. {"log.segment.bytes": "16777216"}.
    Raises DirectoryLockedError while another process has it, StorageError when it cannot be used, CorruptLogError for
    damage, ConfigError for a setting that is wrong.
    """
    where = os.fsdecode(path)
    if not where:
        raise ConfigError("a log needs the path of a directory, not an empty one")
    where = os.path.abspath(where)  # the process may change its working directory
    try:
        return unbroken_long(partial(EmbeddedLog, where, texts(settings)), unwanted=EmbeddedLog.close)
    except DirectoryLockedError as error:
        if (os.getpid(), os.path.realpath(where)) in _OPEN:
            text = "this process has it open; close that log first, for one that is only dropped stays open"
            raise DirectoryLockedError(f"{where}: {text}") from error
        raise
    except OSError as error:
        # Of no directory, it is the first name that was tried in it.
        place = where if isinstance(error, NotADirectoryError) else error.filename
        raise StorageError(f"{place or where}: {error.strerror or error}") from error


class EmbeddedLog:
    """A log directory in this process. Safe from several threads; not after a fork."""

    def __init__(self, path: str, settings: Mapping[str, str]) -> None:
        self.path = path
        self._place = os.path.realpath(path)
        self._pid = os.getpid()
        self._closed = False
        self._closing = threading.Lock()
        self._closer = 0
        """The thread that is at it."""
        self._topics: dict[str, Topic] = {}
        node_id = _stored_node_id(path)
        overrides = {**settings, "log.dirs": path}
        if node_id is not None:
            overrides["node.id"] = str(node_id)
        config = load_broker_config(None, overrides)
        if config.directories != [path]:
            raise ConfigError(
                "metadata.log.dir: a log that is opened without a server has one directory for everything"
            )
        if is_shared(RealDisk(), path):
            raise StorageError(f"{path} belongs to a cluster of several nodes; use a client of that cluster")
        self._world, self._turn = local_world()
        try:
            with self._turn:
                self._store = Store(self._world, config.integer("node.id"))
                self._store.most_queued = sys.maxsize  # what waits to be decoded is the caller's, who has it in memory
                self._store.compaction.configure(cleaner_settings(config))
                self._tell_damage(self._store.open_directory(path, directory_settings(config, None)))
                node = config.integer("node.id")
                self._publisher = MetadataPublisher(self._world, self._store, config, node, silent)
                self._controller = Controller(self._world, self._store, self._publisher, node, silent)
                self._store.on_failure = self._directory_failed
                self._controller.start()
                if len(self._publisher.image.brokers) > 1:
                    raise StorageError(f"{path} belongs to a cluster of several nodes; use a client of that cluster")
                if self._publisher.closed_directories.are_missed:
                    raise StorageError(f"{path} is one of several log directories of its node; serve them together")
                own = self._publisher.closed_directories.registered_ids()
            incarnation = self._publisher.incarnation = self._controller.new_uuid()
            process = RegisterBroker(node, incarnation, (), None, own, OFFERED)
            answer = self._wait_for(partial(self._controller.register, process), START_SECONDS)
            if not isinstance(answer, Registered):
                raise StorageError(f"{path}: could not register this process: {answer}")
            self._epoch = answer.broker_epoch
            for directory in self._store.directories:
                directory.broker_epoch = self._epoch
            self._node_id = node
            with self._turn:
                self._store.maintenance.start()
        except BaseException:
            self._abandon()
            raise
        _OPEN.add((self._pid, self._place))

    def __repr__(self) -> str:
        if self._closed:
            return f"<duramen.EmbeddedLog {self.path!r}, closed>"
        names = self._publisher.image.names() if hasattr(self, "_publisher") else ()
        return f"<duramen.EmbeddedLog {self.path!r}, topics: {len(set(names) - INTERNAL_TOPICS)}>"

    def _directory_failed(self, directory: LogDirectory, error: BaseException) -> None:
        """Whoever waits for a change of topics is told at once, as appends are."""
        if hasattr(self, "_controller"):
            self._controller.fail(StorageError(f"{directory.path}: {error}"))

    def _tell_damage(self, directory: LogDirectory) -> None:
        """What the start found missing or damaged, and what is found later, goes to Python's log, as to a node's."""

        def tell(what: object) -> None:
            self._turn.tell(partial(getLogger("duramen").warning, "%s", what))

        for damage in (*directory.recovery.damage, *(left.error for left in directory.offline.values())):
            tell(damage)
        directory.findings.on_found = tell

    def _abandon(self) -> None:
        self._closed = True
        self._turn.close()  # first: nobody works on the files any more
        self._turn.end_telling()
        if hasattr(self, "_store"):
            self._store.close(clean=False)

    def __enter__(self) -> EmbeddedLog:
        return self

    def __exit__(self, *_: object) -> None:
        if os.getpid() == self._pid:  # a child that was forked inside the block leaves it, too
            self.close()

    def topic(self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None) -> Topic:
        """The topic of this name, created (durably) on first use with `partitions` (1 unless given) and `configs`.

        configs: topic settings by their Kafka names, as texts; they count only where the topic is created. Raises
        ConfigError when it exists with another number of partitions, KafkaError for a name or setting that
        Kafka would refuse.
        """
        self._check()
        check_name(name)
        given = texts(configs)
        if partitions is not None and partitions < 1:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"topic {name} cannot have {partitions} partitions")
        known = self._topics.get(name)
        image = self._publisher.image.topic(name)
        if image is None and name in INTERNAL_TOPICS:
            text = f"{name} is a name that a node keeps for itself, and makes when it needs it"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
        if known is None or image is None or known.topic_id != image.id:
            image = self._made_topic(name, 1 if partitions is None else partitions, given)
            known = self._topics[name] = Topic(self, name, image.id, len(image.partitions))
        if partitions is not None and partitions != known.partitions:
            raise ConfigError(f"topic {name} has {known.partitions} partitions, not {partitions}")
        return known

    def _made_topic(self, name: str, partitions: int, configs: dict[str, str]) -> TopicImage:
        """The topic once all its partitions are there, whoever has it made."""
        made: ThreadResult[tuple[list[TopicCreated] | DuramenError, TopicImage | None]] = ThreadResult()

        def answer(created: list[TopicCreated] | DuramenError) -> None:
            made.give((created, self._publisher.image.topic(name)))

        def make() -> None:
            self._check()
            if self._publisher.image.topic(name) is None:
                self._controller.create([self._controller.new_topic(name, partitions, configs)], answer)
            else:
                self._publisher.when_published(partial(answer, []))

        self._turn.take(make)
        created, image = made.wait()
        if isinstance(created, DuramenError):
            raise created
        for refused in created:
            error = refused.result
            if error.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise KafkaError(error.error, error.message or f"topic {name} was refused")
        if image is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} was deleted while it was asked for")
        return image

    def topics(self) -> list[str]:
        """Names of the topics, sorted; internal ones are left out."""
        self._check()
        names = list(self._publisher.image.names())  # in one step: others create topics meanwhile
        return [name for name in names if name not in INTERNAL_TOPICS]

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; KafkaError UNKNOWN_TOPIC_OR_PARTITION when there is none."""
        self._check()
        check_name(name)
        self._topics.pop(name, None)
        result = self._call(DeleteTopics((TopicRef(name),)))[0].result
        if result.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # the protocol's words for it speak of a server
            raise KafkaError(result.error, f"there is no topic {name!r} in {self.path}")
        if result.error is not ErrorCode.NONE:
            raise KafkaError(result.error, f"topic {name}: {result.message or result.error.name}")

    def close(self) -> None:
        """Stop cleanly; the next start has nothing to replay. Calling it again does nothing.

        StorageError when the disk fails meanwhile: what was acknowledged is kept, the next start recovers it. In a
        finalizer that Python runs in the middle of the log's own work it returns at once.
        """
        if sys.is_finalizing():
            return  # the threads that would do it are gone
        if not self._closed:
            self._check_process()
        if self._turn.may_wait():
            unbroken_long(self._close_once)
        else:
            begin_thread(self._close_once)

    def _close_once(self) -> None:
        if self._closer == threading.get_ident():
            return  # in a finalizer, while this thread closes the log
        try:
            with self._closing:  # a second thread comes back when the log is closed
                self._closer = threading.get_ident()
                try:
                    if not self._closed:
                        self._close()
                finally:
                    self._closer = 0
        finally:
            self._turn.end_telling()  # without that lock: one that is told may close the log, too

    def _close(self) -> None:
        with self._turn:
            self._closed = True  # between two appends: none is taken by halves
        with suppress(DuramenError):  # on a failed disk nothing can be said any more; the files close all the same
            self._call(BrokerHeartbeat(self._node_id, self._epoch, self._epoch, wants_shutdown=True))
        idle = threading.Event()
        with self._turn:
            self._controller.close()
            self._store.stop(idle.set)
        idle.wait()
        try:
            with self._turn:
                self._store.close(clean=True)
        except OSError as error:
            raise StorageError(
                f"{self.path} could not be closed cleanly ({error}); what was acknowledged is in its journal, and the "
                "next start recovers it"
            ) from error
        finally:
            _OPEN.discard((self._pid, self._place))
            self._turn.close()

    # ---- for Topic -------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"the log in {self.path} was closed")
        self._check_process()

    def _check_process(self) -> None:
        if sys.is_finalizing():
            raise ClosedError(f"the log in {self.path} ends with the interpreter")
        if os.getpid() != self._pid:
            raise ClosedError(f"the log in {self.path} was opened before a fork; open it in the process that uses it")

    def _call(self, command: Any) -> Any:
        """Decide a metadata command and wait until it is durable; errors are raised."""
        return self._wait_for(partial(self._controller.decide, command))

    def _wait_for(self, ask: Callable[..., None], timeout: float | None = None) -> Any:
        decided: ThreadResult[Any] = ThreadResult()
        # Deletions lead to room on a full disk, and the others are a start and a stop: the reserve is for all of them.
        self._turn.take(lambda: ask(decided.give, makes_room=True))
        answer = decided.wait(timeout)
        if isinstance(answer, DuramenError):
            raise answer
        return answer


class Topic:
    """One topic of an embedded log."""

    def __init__(self, log: EmbeddedLog, name: str, topic_id: bytes, partitions: int) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self._log = log
        self._turn: Turn = log._turn
        self._next_keyless = 0

    def __repr__(self) -> str:
        return f"<duramen.Topic {self.name!r}, partitions: {self.partitions}, in {self._log.path!r}>"

    # ---- writing ---------------------------------------------------------------------------------------------

    def append(
        self,
        records: Iterable[Record],
        partition: int | None = None,
        timeout: float | None = None,
        *,
        expected_offset: LogEnd | int | None = None,
        writer: Writer | None = None,
    ) -> list[int]:
        """Append and return the records' offsets, in their order, once they are on stable storage.

        Without `partition` a key chooses it as Kafka's default partitioner does; records without a key go to one
        partition per call, in turn. Records of one partition keep their order. Raises KafkaError when refused (none
        was stored then, unless the message says how many) or when the disk failed (the outcome is unknown then).

        With `expected_offset` or `writer` all go into `partition` as one batch: only where that ends at the offset
        (END_IS_ELSEWHERE) and, given what `log_end` said, in that history (OFFSET_OUT_OF_RANGE); and once however often
        the writer sends them. What it stored long ago has offsets -1.
        """
        if expected_offset is not None or writer is not None:
            self._turn.check_may_wait()
            return append_batch(self, records, 0 if partition is None else partition, expected_offset, writer, timeout)
        self._turn.check_may_wait()
        most = waiting_time(timeout)  # before anything is stored
        stored: ThreadResult[list[int] | Exception] = ThreadResult()
        self._append(records, partition, stored.give)
        result = stored.wait(most)
        if isinstance(result, Exception):
            raise result
        return result

    def open_writer(self, partition: int, name: str) -> Writer:
        """Open a partition of an exclusive topic (`duramen.writer.exclusive`) for one writer: all others are fenced."""
        return open_exclusive(self, partition, name)

    def release_writer(self, partition: int, writer: Writer) -> None:
        """Give it up: nobody writes until it is opened again. PRODUCER_FENCED where it belongs to somebody else."""
        release_exclusive(self, partition, writer)

    def close_stream(
        self, partition: int, expected_offset: LogEnd | int | None = None, writer: Writer | None = None
    ) -> int:
        """Close a partition for good: nothing is appended any more, which is durable on return. Returns its end.

        writer: of an exclusive topic, which nobody else may close.
        """
        return close_stream(self, partition, expected_offset, writer)

    def append_async(self, records: Iterable[Record], partition: int | None = None) -> Future[list[int]]:
        """Like `append`, but returns at once with a future of the offsets.

        Its callbacks are called one after the other by a thread of their own, which holds no lock of the log: they
        may append, and wait for `append`, but not for another future of `append_async`.
        """
        future: Future[list[int]] = Future()
        future.set_running_or_notify_cancel()
        self._append(records, partition, lambda result: self._turn.tell(partial(_settle, future, result)))
        return future

    def _append(self, records: Iterable[Record], partition: int | None, done: Done) -> None:
        self._log._check()
        self._check_own()
        rows = check_records(records)
        appending = PendingAppend(rows, self._spread(rows, partition), self._turn.wall_ms(), done, self._most_bytes)

        def begin_appending() -> None:
            self._log._check()
            appending.begin(self._partition)
            self._log._store.commit_soon()

        self._turn.post(begin_appending, done)

    def _most_bytes(self, partition: int) -> int:
        """Of a batch of several records, as the topic is set now: one field, as in `end_offset`."""
        found = self._log._store.partition_by_id(self.topic_id, partition)
        return BATCH_TARGET_BYTES if found is None else batch_bytes(found.config.max_message_bytes)

    def _spread(self, rows: list[Record], partition: int | None) -> dict[int, list[int]]:
        """Positions in `rows` by partition."""
        if partition is not None:
            self._check_partition(partition)
            return {partition: list(range(len(rows)))}
        keyless = self._next_keyless % self.partitions
        self._next_keyless += 1
        chosen: dict[int, list[int]] = {}
        for position, row in enumerate(rows):
            home = keyless if row.key is None else partition_for(row.key, self.partitions)
            chosen.setdefault(home, []).append(position)
        return chosen

    # ---- reading ---------------------------------------------------------------------------------------------

    def read(
        self,
        partition: int,
        start: int | None = None,
        follow: bool = False,
        end: int | None = None,
        isolation: Isolation = "read_committed",
    ) -> Iterator[StoredRecord]:
        """Records of a partition from offset `start` (None: the first there is), in order.

        follow: at the end wait for more instead of stopping, until the log is closed (ClosedError). end: stop before
        this offset. isolation: "read_committed" leaves out what transactions rolled back, and ends before the first
        that is open; "read_uncommitted" gives all. Raises KafkaError OFFSET_OUT_OF_RANGE when `start` is below the log
        start or above the log end, or when truncation or retention overtook the reader, CorruptLogError for damage,
        StorageError when the disk fails.
        """
        level = level_of(isolation)
        self._check_partition(partition)
        offset = self.start_offset(partition) if start is None else operator.index(start)
        end = None if end is None else operator.index(end)
        while end is None or offset < end:
            chunk = self._chunk(partition, offset, level)
            if not chunk.data:
                if not follow or (end is not None and offset >= end):
                    return
                self._wait(partition, chunk.bound, level)
                continue
            for next_offset, rows in chunk.batches(partition, offset, end):
                yield from rows
                offset = next_offset

    def _chunk(self, partition: int, offset: int, level: int) -> LogChunk:
        """Whole batches from the one with `offset`."""
        chunk = self._read_once(partition, offset, level)
        if not chunk.data and offset < chunk.bound:
            # Compaction left nothing in a segment from here on, which a cold read has found out by now.
            return self._read_once(partition, offset, level)
        return chunk

    def _read_once(self, partition: int, offset: int, level: int) -> LogChunk:
        def begin() -> tuple[Read, int]:
            source = self._partition(partition)
            return source.read(offset, READ_CHUNK_BYTES, level), source.bound(level)

        def end() -> None:
            for part in pending:
                part.complete()

        with self._disk_errors(partition):
            found, bound = self._take(begin)
            data = b"".join(map(content, found.parts))
            pending = [part for part in found.parts if isinstance(part, Pending)]
            if pending:
                self._take(end)
            self._log._check()  # its files may have been closed meanwhile, and their descriptors be other files'
            return LogChunk(data, found.aborted or (), bound)

    def _wait(self, partition: int, bound: int, level: int, timeout_s: float | None = None) -> None:
        moved: ThreadResult[None] = ThreadResult()
        ring = partial(moved.give, None)

        def begin() -> Partition:
            source = self._partition(partition)
            if source.bound(level) > bound:
                ring()
            source.watch(ring)
            return source

        source = self._take(begin)
        try:
            with suppress(TimeoutError):
                moved.wait(timeout_s)
        finally:
            self._turn.take(lambda: source.unwatch(ring))
        self._log._check()

    def start_offset(self, partition: int) -> int:
        """First offset that can be read."""
        return self._partition(partition).log_start_offset  # one field, which changes in one step: no turn is needed

    def end_offset(self, partition: int, isolation: Isolation = "read_committed") -> int:
        """Offset behind the last record that can be read; "read_uncommitted": behind the last durable one."""
        return self._partition(partition).bound(level_of(isolation))  # likewise: here nothing begins a transaction

    def log_end(self, partition: int) -> LogEnd:
        """Where a partition ends, with the leader epoch of what lies in front of it, for an append there alone."""
        return log_end(self, partition)

    def offset_at(self, partition: int, timestamp_ms: int, isolation: Isolation = "read_committed") -> int | None:
        """Offset of the first record whose timestamp is at least `timestamp_ms`; None when there is none.

        A record that was rolled back is found, too, as in Kafka: reading from there goes on behind it.
        """
        level = level_of(isolation)
        # Below -1, which is the least that a record has, `lookup` knows one value that is no time.
        moment = max(operator.index(timestamp_ms), NO_TIMESTAMP)
        with self._disk_errors(partition):
            found = search_by_timestamp(partial(self._lookup, partition, moment, level))
            self._log._check()
        return None if found is None else found.offset

    def _lookup(self, partition: int, moment: int, level: int, start: int) -> TimeLookup:
        return self._take(lambda: lookup(self._partition(partition), moment, level, start))

    def truncate(self, partition: int, before_offset: int) -> int:
        """Delete every record below `before_offset`, durably; returns the new first offset.

        Raises KafkaError OFFSET_OUT_OF_RANGE for an offset below 0 (-1 is no end here) or above the log's end.
        """
        before = operator.index(before_offset)
        self._check_own()
        if before < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{before} is no offset before which there can be records")
        synced: ThreadResult[KafkaError | None] = ThreadResult()

        def begin() -> int:
            store, tp = self._log._store, TopicPartition(self.name, partition)
            found = self._partition(partition)
            with store.disk_full.making(store.home(tp)):
                start = delete_records(found, before)
                store.when_synced(tp, synced.give)
            return start

        start = self._take(begin)
        error = synced.wait()
        if error is not None:
            raise error
        return start

    def _take(self, work: Callable[[], T]) -> T:
        self._log._check()  # before the lock, too: in a forked child nobody may be there to let go of it
        return self._turn.take(work)

    @contextmanager
    def _disk_errors(self, partition: int) -> Iterator[None]:
        """A read that fails is told as StorageError, as every other failure is; and not where the log was closed."""
        try:
            yield
        except (OSError, CorruptLogError) as error:
            self._log._check()
            if isinstance(error, OSError):
                raise StorageError(f"partition {partition} of {self.name} cannot be read: {error}") from error
            raise

    def _check_partition(self, partition: int) -> None:
        if not 0 <= operator.index(partition) < self.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {self.name} has partitions 0..{self.partitions - 1}"
            )

    def _check_own(self) -> None:
        """As a node refuses it: strange or missing records there cost groups and sinks what they have committed."""
        if self.name in INTERNAL_TOPICS:
            text = f"{self.name} is written by a node's coordinators only"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)

    def _partition(self, partition: int) -> Partition:
        self._log._check()
        self._check_partition(partition)
        found = self._log._store.partition_by_id(self.topic_id, partition)
        if found is None:
            raise self._why_not(partition)
        return found

    def _why_not(self, partition: int) -> DuramenError:
        """Why a partition is not served: deleted, damaged, or not made for want of room."""
        left = self._log._store.offline_log(self.topic_id, partition)
        if left is not None:
            return StorageError(f"partition {partition} of {self.name} is not served: {left.error}")
        if self._log._publisher.image.topic_by_id(self.topic_id) is not None:
            text = f"partition {partition} of {self.name} could not be made yet"
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {self.name} was deleted")


def _settle(future: Future[list[int]], result: list[int] | Exception) -> None:
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _stored_node_id(path: str) -> int | None:
    """The node a directory belongs to, None when it is new: a served directory is opened as that node."""
    file = os.path.join(path, META_PROPERTIES)
    content = read_file(RealDisk(), file)
    return None if content is None else decode_meta(content, file).node_id
