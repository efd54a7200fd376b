"""Serves the broker's numbers over HTTP: /metrics as Prometheus text, /healthz and /readyz.

Loaded only when `metrics.listener` is set. Requests are answered by a thread, but every number is read on the loop
thread, a little in each turn (`metrics/scrape.py`): a loop that does not turn makes /healthz fail, as it should.
What the system tells of the process is read by the thread: to count descriptors it lists them.
"""

from __future__ import annotations

import selectors
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Protocol

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.server.metrics.cluster_metrics import ClusterChanges, cluster_families
from duramen.server.metrics.metrics import SECONDS_BUCKETS, Histogram, Metrics
from duramen.server.metrics.scrape import FOLDED_PARTITION, FOLDED_TOPICS, Scrape, pieces_of, text_of
from duramen.server.net.bound_sockets import bind_tcp, refusal, shown_address
from duramen.server.net.loop import EventLoop
from duramen.storage import is_disk_full
from duramen.version import VERSION
from duramen.wire.messages import API

if TYPE_CHECKING:
    from duramen.partition.metadata.publisher import MetadataPublisher
    from duramen.partition.replica.partition import Partition
    from duramen.server.api.acceptor import Acceptor
    from duramen.server.api.services import Services

IDLE_SECONDS = 15.0
"""How long a connection may say nothing: each has a thread."""

MOST_CONNECTIONS = 16
"""At a time; more would take the descriptors that the node's files need (see acceptor.SPARE_DESCRIPTORS)."""

ANSWER_SECONDS = 5.0
"""A loop that does not answer within this time is not healthy."""

_Value = Callable[["Partition"], float]
_STABLE: Final = "duramen_durability_stable"


_OF_PARTITIONS: Final[tuple[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, _Value], ...]] = (
    (GaugeMetricFamily, "duramen_log_start_offset", "First offset that can be read.", lambda p: p.log_start_offset),
    (GaugeMetricFamily, "duramen_log_end_offset", "Next offset to be assigned.", lambda p: p.log_end_offset),
    (GaugeMetricFamily, "duramen_high_watermark", "First offset consumers cannot read.", lambda p: p.high_watermark),
    (
        GaugeMetricFamily,
        "duramen_last_stable_offset",
        "First offset read_committed cannot read.",
        lambda p: p.last_stable_offset,
    ),
    (
        GaugeMetricFamily,
        "duramen_last_stable_offset_lag_records",
        "High watermark minus last stable offset: held back by open transactions.",
        lambda p: p.high_watermark - p.last_stable_offset,
    ),
    (
        GaugeMetricFamily,
        "duramen_partition_open_transactions",
        "Transactions with records here that no marker has ended.",
        lambda p: p.log.producers.open_transactions,
    ),
    (GaugeMetricFamily, "duramen_durable_end_offset", "All below is on stable storage.", lambda p: p.log.durable_end),
    (GaugeMetricFamily, "duramen_log_size_bytes", "Bytes in segments.", lambda p: p.log.size),
    (GaugeMetricFamily, _STABLE, "1 stable storage, 0 page cache.", lambda p: int(p.is_stable)),
    (CounterMetricFamily, "duramen_topic_in_records", "Records appended.", lambda p: p.records_in),
    (CounterMetricFamily, "duramen_topic_in_bytes", "Record bytes appended.", lambda p: p.bytes_in),
    (CounterMetricFamily, "duramen_topic_out_bytes", "Record bytes read by clients.", lambda p: p.bytes_out),
)

DRAINED_BYTES: Final = 64 * 1024
"""Of a body that nobody asked for: read, so that its sender takes the answer before the connection ends."""


class MeteredBroker(Protocol):
    """What is read of a broker; `services` once it has started."""

    ready: bool
    metrics: Metrics
    acceptor: Acceptor
    services: Services
    publisher: MetadataPublisher
    node_id: int


class BrokerCollector(Collector):
    """Turns one broker's counters into Prometheus metrics; a long family comes in pieces, one behind the other."""

    def __init__(self, broker: MeteredBroker) -> None:
        self._broker = broker
        self._changes = ClusterChanges(broker.publisher, broker.node_id)

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._connections()
        yield from self._storage()
        yield from self._partitions()
        yield from self._oldest_transactions()
        yield from cluster_families(self._broker.services, self._changes)
        yield from self._group_counts()
        yield from self._groups()
        yield from self._transactions()
        yield from self._sinks()

    def _requests(self) -> Iterator[Metric]:
        metrics = self._broker.metrics
        latency = HistogramMetricFamily(
            "duramen_request_seconds", "From a request's arrival to its reply, waiting included.", labels=["api"]
        )
        for key, histogram in sorted(metrics.latency.items()):
            _add(latency, [API[key].name], histogram)
        yield latency
        errors = CounterMetricFamily("duramen_request_errors", "Requests that could not be handled.", labels=["api"])
        for key, count in sorted(metrics.errors.items()):
            errors.add_metric([API[key].name if key in API else "unknown"], count)
        yield errors
        told = CounterMetricFamily(
            "duramen_error_replies", "Error codes in replies, one for each part that has one.", labels=["api", "error"]
        )
        for (key, code), count in sorted(metrics.error_replies.items()):
            told.add_metric([API[key].name, ErrorCode(code).name], count)
        yield told
        yield CounterMetricFamily(
            "duramen_log_lines_dropped", "Lines of the node's log that found no room.", metrics.log_lines_dropped
        )
        for name, text, histogram in (
            ("duramen_loop_lag_seconds", "How late a timer of the event loop was.", metrics.loop_lag),
            ("duramen_gc_pause_seconds", "How long a garbage collection stopped the process.", metrics.gc_pause),
            ("duramen_checkpoint_seconds", "One job of a checkpoint, off the event loop.", metrics.checkpoint),
            ("duramen_checkpoint_pause_seconds", "What it cost the event loop.", metrics.checkpoint_pause),
            ("duramen_journal_sync_seconds", "Write and sync of one group commit.", metrics.sync),
            ("duramen_heartbeat_seconds", "A heartbeat of this broker, to its answer.", metrics.heartbeat),
        ):
            family = HistogramMetricFamily(name, text, labels=[])
            _add(family, [], histogram)
            yield family
        yield GaugeMetricFamily(
            "duramen_loop_lag_max_seconds", "The latest that a timer of the loop was.", metrics.loop_lag_max
        )

    def _connections(self) -> Iterator[Metric]:
        broker, services = self._broker, self._broker.services
        everybody, receivers = broker.acceptor.everybody, broker.acceptor.receivers
        yield GaugeMetricFamily("duramen_connections", "Open connections.", len(everybody))
        for name, text, value in (
            ("duramen_connections_opened", "Connections accepted.", broker.metrics.connections_opened),
            ("duramen_connections_closed", "Connections that ended.", broker.metrics.connections_closed),
            ("duramen_connections_refused", "Connections refused at a limit.", broker.metrics.connections_refused),
            ("duramen_received_bytes", "Bytes received.", sum(each.bytes_in for each in receivers)),
            ("duramen_sent_bytes", "Bytes sent.", sum(each.bytes_out for each in receivers)),
        ):
            yield CounterMetricFamily(name, text, value)
        yield GaugeMetricFamily(
            "duramen_parked_requests", "Produce requests not settled.", len(services.appends.outstanding)
        )
        yield GaugeMetricFamily("duramen_fetch_sessions", "Fetch sessions.", len(services.fetch_sessions))
        yield CounterMetricFamily(
            "duramen_fetch_sessions_evicted", "Sessions that made room for others.", services.fetch_sessions.evictions
        )
        clients = GaugeMetricFamily(
            "duramen_client_connections", "Open connections by client software.", labels=["name", "version"]
        )
        software = Counter(connection.software for connection in everybody)
        for (name, version), count in sorted(software.items()):
            clients.add_metric([name, version], count)
        yield clients
        info = GaugeMetricFamily("duramen_info", "Version and identity.", labels=["version", "node", "cluster"])
        info.add_metric([VERSION, str(services.node.id), services.node.cluster_id], 1)
        yield info

    def _storage(self) -> Iterator[Metric]:
        open_files = (
            len(self._broker.services.store.directories[0].hot.files) if self._broker.services.store.directories else 0
        )
        reads = self._broker.services.cold_reads
        yield CounterMetricFamily(
            "duramen_cold_read_bytes", "Bytes of old data read and checked for clients.", reads.bytes_read
        )
        yield CounterMetricFamily(
            "duramen_cold_read_wait_seconds", "What their replies waited for a turn.", reads.waited_seconds
        )
        yield GaugeMetricFamily("duramen_cold_reads_waiting", "Replies that wait for their turn.", len(reads))
        unread = self._broker.acceptor.receiver.unread
        yield GaugeMetricFamily(
            "duramen_unread_reply_bytes", "Memory in replies that clients have not taken.", unread.held_bytes
        )
        yield GaugeMetricFamily("duramen_unread_reply_bytes_max", "Bound of that memory.", unread.cap_bytes)
        pool = self._broker.acceptor.pool
        yield GaugeMetricFamily(
            "duramen_request_bytes",
            "Memory in requests being received or handled, with what is promised to those that have begun.",
            pool.lent_bytes + pool.promised_bytes,
        )
        yield GaugeMetricFamily(
            "duramen_request_bytes_max", "Bound of that memory, beyond which sockets are not read.", pool.cap_bytes
        )
        yield GaugeMetricFamily("duramen_open_segment_files", "Files of segments that are open.", open_files)
        fill = GaugeMetricFamily(
            "duramen_journal_fill_ratio", "Share of the journal's bound in use.", labels=["directory"]
        )
        laps = CounterMetricFamily("duramen_journal_laps", "Times the journal was gone through.", labels=["directory"])
        refused = GaugeMetricFamily(
            "duramen_journal_growth_refused",
            "1 while the journal cannot grow for want of room on the disk.",
            labels=["directory"],
        )
        failed = GaugeMetricFamily(
            "duramen_directory_failed",
            "1 after a failed write or sync: takes no writes until a restart.",
            labels=["directory"],
        )
        full = GaugeMetricFamily(
            "duramen_directory_full",
            "1 while writes find no room on the disk.",
            labels=["directory"],
        )
        offline = GaugeMetricFamily(
            "duramen_offline_partitions",
            "Partitions that are not served: too damaged; without a directory, those that no open one has.",
            labels=["directory"],
        )
        offline.add_metric([""], self._broker.services.store.hosted.without_log())
        for directory in self._broker.services.store.directories:
            offline.add_metric([directory.path], len(directory.offline))
            fill.add_metric([directory.path], directory.journal.fill)
            laps.add_metric([directory.path], directory.journal.laps)
            refused.add_metric([directory.path], int(directory.journal.growth_error is not None))
            failed.add_metric([directory.path], int(directory.journal.failed is not None))
            full.add_metric(
                [directory.path], int(is_disk_full(self._broker.services.store.disk_full.lacking(directory)))
            )
        yield from (fill, laps, refused, failed, full, offline)
        yield from self._scrubbing()
        yield from self._compaction()
        yield CounterMetricFamily(
            "duramen_journal_groups", "Group commits.", self._broker.services.store.statistics.groups
        )

    def _compaction(self) -> Iterator[Metric]:
        labels = ["directory"]
        families: list[GaugeMetricFamily | CounterMetricFamily] = [
            GaugeMetricFamily(
                "duramen_compaction_max_dirty_ratio", "Of the dirtiest log at the last look.", labels=labels
            ),
            GaugeMetricFamily(
                "duramen_compaction_last_pass_time_seconds",
                "When a pass ended last, since 1970; -1 never.",
                labels=labels,
            ),
            GaugeMetricFamily(
                "duramen_compaction_uncleanable_partitions", "Left alone since a pass over them failed.", labels=labels
            ),
            CounterMetricFamily("duramen_compaction_passes", "Passes that went through.", labels=labels),
            CounterMetricFamily("duramen_compaction_failures", "Passes that failed.", labels=labels),
            CounterMetricFamily("duramen_compaction_read_bytes", "Bytes of segments copied from.", labels=labels),
            CounterMetricFamily("duramen_compaction_written_bytes", "Bytes that were left of them.", labels=labels),
        ]
        for directory in self._broker.services.store.directories:
            cleaner = directory.cleaner
            done = cleaner.statistics
            values = (
                done.max_dirty_ratio,
                done.last_pass_ms / 1000 if done.last_pass_ms >= 0 else -1,
                len(cleaner.uncleanable),
                done.passes,
                done.failures,
                done.bytes_read,
                done.bytes_written,
            )
            for family, value in zip(families, values, strict=True):
                family.add_metric([directory.path], value)
        yield from families

    def _scrubbing(self) -> Iterator[Metric]:
        labels = ["directory"]
        read = CounterMetricFamily("duramen_scrub_bytes", "Bytes compared with their checksums.", labels=labels)
        rounds = CounterMetricFamily("duramen_scrub_rounds", "Rounds over all finished segments.", labels=labels)
        checked = GaugeMetricFamily(
            "duramen_scrub_round_bytes", "Of the round under way or the last one.", labels=labels
        )
        started = GaugeMetricFamily(
            "duramen_scrub_round_started_time_seconds", "When it began, since 1970; -1 never.", labels=labels
        )
        sealed = GaugeMetricFamily("duramen_sealed_bytes", "In finished segments: what a round reads.", labels=labels)
        found = CounterMetricFamily("duramen_damage_found", "Damaged ranges met since the start.", labels=labels)
        ranges = GaugeMetricFamily(
            "duramen_damaged_ranges", "Damaged ranges known, where there are any.", labels=["topic", "partition"]
        )
        known: dict[TopicPartition, int] = {}
        for directory in self._broker.services.store.directories:
            read.add_metric([directory.path], directory.scrubber.bytes)
            rounds.add_metric([directory.path], directory.scrubber.rounds)
            checked.add_metric([directory.path], directory.scrubber.round_bytes)
            began_ms = directory.scrubber.started_ms
            started.add_metric([directory.path], -1 if began_ms is None else began_ms / 1000)
            sealed.add_metric([directory.path], directory.sealed_bytes())
            found.add_metric([directory.path], directory.findings.count)
            for damage in directory.known_damage():
                tp = damage.partition or TopicPartition("", -1)
                known[tp] = known.get(tp, 0) + 1
        for tp, count in sorted(known.items()):
            ranges.add_metric([tp.topic, str(tp.partition)], count)
        yield from (read, rounds, checked, started, sealed, found, ranges)

    def _partitions(self) -> Iterator[Metric]:
        present = self._broker.services.store.partitions
        known = sorted(present.items())
        for kind, name, text, value in _OF_PARTITIONS:
            folded: dict[str, list[float]] = {}
            for piece in pieces_of(known):
                family = kind(name, text, labels=["topic", "partition"])
                for tp, partition in piece:
                    if present.get(tp) is not partition:
                        continue  # gone since the scrape began
                    if tp.topic in FOLDED_TOPICS:
                        folded.setdefault(tp.topic, []).append(value(partition))
                    else:
                        family.add_metric([tp.topic, str(tp.partition)], value(partition))
                yield family
            if folded:
                family = kind(name, text, labels=["topic", "partition"])
                for topic, values in folded.items():
                    together = min(values) if name == _STABLE else sum(values)
                    family.add_metric([topic, FOLDED_PARTITION], together)
                yield family

    def _group_counts(self) -> Iterator[Metric]:
        told = self._broker.services.groups.summary()
        groups = GaugeMetricFamily("duramen_groups", "Coordinated here, by type and state.", labels=["type", "state"])
        for (kind, state), count in sorted(told.groups.items()):
            groups.add_metric([kind, state], count)
        members = GaugeMetricFamily("duramen_group_members", "Members of these groups.", labels=["type"])
        for kind, count in told.members.items():
            members.add_metric([kind], count)
        yield from (groups, members)
        yield CounterMetricFamily(
            "duramen_consumer_group_rebalances", "How often a consumer group's epoch has risen.", told.rebalances
        )

    def _oldest_transactions(self) -> Iterator[Metric]:
        """By the last record of each, as `find-hanging` goes."""
        known = sorted(self._broker.services.store.partitions.items())
        for piece in pieces_of(each for each in known if each[0].topic not in FOLDED_TOPICS):
            now_ms = self._broker.services.clock.wall_ms()
            family = GaugeMetricFamily(
                "duramen_partition_oldest_transaction_seconds",
                "Since the last record of the oldest open transaction, where there is one.",
                labels=["topic", "partition"],
            )
            for tp, partition in piece:
                oldest = partition.log.producers.oldest_transaction
                if oldest is not None:
                    family.add_metric([tp.topic, str(tp.partition)], max(0, now_ms - oldest.last_timestamp) / 1000)
            yield family

    def _groups(self) -> Iterator[Metric]:
        for piece in pieces_of(self._broker.services.groups.committed_offsets()):
            lag = GaugeMetricFamily(
                "duramen_group_lag_records",
                "High watermark minus committed offset.",
                labels=["group", "topic", "partition"],
            )
            for group, tp, offset in piece:
                partition = self._broker.services.store.partitions.get(tp)
                if partition is not None:
                    lag.add_metric([group, tp.topic, str(tp.partition)], max(0, partition.high_watermark - offset))
            yield lag

    def _transactions(self) -> Iterator[Metric]:
        transactions = self._broker.services.transactions
        told = transactions.summary()
        for name, text, value in (
            ("duramen_transactional_ids", "Coordinated here.", told.ids),
            ("duramen_open_transactions", "Begun and not ended.", told.open),
            ("duramen_oldest_open_transaction_seconds", "Since the oldest was begun.", told.oldest_open_seconds),
            ("duramen_ending_transactions", "Decided, and without all of their markers.", told.ending),
            ("duramen_oldest_ending_transaction_seconds", "Since the oldest was.", told.oldest_ending_seconds),
        ):
            yield GaugeMetricFamily(name, text, value)
        for name, text, value in (
            ("duramen_transaction_markers", "Written for transactions coordinated here.", told.markers),
            ("duramen_transactions_aborted_by_coordinator", "By time-out, or for a new life of the id.", told.fenced),
        ):
            yield CounterMetricFamily(name, text, value)

    def _sinks(self) -> Iterator[Metric]:
        sinks = self._broker.services.sinks
        known = [sink for each in sinks.running() for sink in each.machine.sinks.values()]
        moved = sinks.materialiser.statistics
        for name, text, value in (
            ("duramen_sinks", "Sinks coordinated here.", len(known)),
            ("duramen_sink_staged_bytes", "Staged and not committed.", sum(sink.staged_bytes for sink in known)),
            ("duramen_sink_staged_handles", "Pieces of that.", sum(len(sink.staged) for sink in known)),
            ("duramen_sink_unfinished_batches", "Committed and on their way.", sinks.materialiser.unfinished),
            ("duramen_sink_oldest_unfinished_seconds", "Since the oldest was committed.", sinks.oldest_seconds()),
        ):
            yield GaugeMetricFamily(name, text, value)
        for name, text, value in (
            ("duramen_sink_moved_bytes", "Moved from the staging log to their topics.", moved.bytes),
            ("duramen_sink_moved_batches", "Record batches of that.", moved.batches),
            ("duramen_sink_move_retries", "Shares that could not go on and were tried again.", moved.retries),
            ("duramen_sink_shares_dropped", "Shares whose topic was deleted after the commit.", moved.dropped),
        ):
            yield CounterMetricFamily(name, text, value)


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    running = 0
    buckets = []
    for bound, count in zip((*(str(b) for b in SECONDS_BUCKETS), "+Inf"), histogram.counts, strict=True):
        running += count
        buckets.append((bound, running))
    family.add_metric(labels, buckets=buckets, sum_value=histogram.total)


class _BoundedHTTPServer(ThreadingHTTPServer):
    """Closes connections beyond MOST_CONNECTIONS at once."""

    daemon_threads = True

    def __init__(self, bound: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        self.address_family = bound.family
        super().__init__(bound.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_activate()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no event; anything else is a bug, whose traceback goes to stderr."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()


class MetricsServer:
    """The HTTP listener; one thread, stopped with the process. ConfigError where its address cannot be used."""

    def __init__(self, broker: MeteredBroker, loop: EventLoop, host: str, port: int) -> None:
        collector = BrokerCollector(broker)
        pages: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            "/metrics": lambda: (
                200,
                CONTENT_TYPE_LATEST,
                _on_loop(loop, text_of(collector.collect())) + b"".join(text_of(_of_process())),
            ),
            "/healthz": lambda: (200, "text/plain", _on_loop(loop, iter([b"ok\n"]))),
            "/readyz": lambda: _readiness(_on_loop(loop, _ready(broker))),
        }

        class Handler(BaseHTTPRequestHandler):
            """Answers GET from what the loop thread says, HEAD likewise without the body, and nothing else."""

            timeout = IDLE_SECONDS

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                if page is None:
                    self._send(404, "text/plain", b"try /metrics, /healthz or /readyz\n")
                    return
                try:
                    self._send(*page())
                except (TimeoutError, RuntimeError):
                    self._send(503, "text/plain", b"the event loop does not answer\n")

            def __getattr__(self, name: str) -> Callable[[], None]:
                """The base class looks for a `do_` of the request's method, whatever that is."""
                if name.startswith("do_"):
                    return self._refuse
                raise AttributeError(name)

            def _refuse(self) -> None:
                length = self.headers.get("Content-Length", "")
                if length.isdecimal():
                    with suppress(OSError):
                        self.rfile.read(min(int(length[:9]), DRAINED_BYTES))
                self._send(405, "text/plain", b"GET and HEAD are served\n", ("Allow", "GET, HEAD"))

            def _send(self, status: int, kind: str, body: bytes, *more: tuple[str, str]) -> None:
                self.send_response(status)
                for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *more):
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Requests for metrics are not events."""

        try:
            bound = bind_tcp(host, port)
        except OSError as error:
            address = f"metrics.listener {shown_address(host, port)}"
            raise refusal("metrics.listener", address, "127.0.0.1:PORT", error) from error
        self._server = _BoundedHTTPServer(bound, Handler)
        self._server.timeout = 0  # `handle_request` is called when somebody has come
        self.port: int = bound.getsockname()[1]
        self._wake_read, self._wake_write = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """As `serve_forever`, which would wake an idle process twice a second and be as slow to stop."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while all(key.fileobj is self._server for key, _ in selector.select()):
                self._server.handle_request()

    def stop(self) -> None:
        self._wake_write.close()
        self._thread.join()
        self._wake_read.close()
        self._server.server_close()


def _of_process() -> Iterable[Metric]:
    """`process_*`, with the names and from the sources of Prometheus' own libraries; none where there is no /proc."""
    return ProcessCollector(registry=None).collect()


def _ready(broker: MeteredBroker) -> Iterator[bytes]:
    yield b"ready\n" if broker.ready else b"not ready\n"


def _readiness(text: bytes) -> tuple[int, str, bytes]:
    return 200 if text == b"ready\n" else 503, "text/plain", text


def _on_loop(loop: EventLoop, pieces: Iterator[bytes]) -> bytes:
    """Read on the loop thread; TimeoutError where that stands still, RuntimeError where there is a bug."""
    scrape = Scrape(pieces, loop.call_from_thread)
    loop.call_from_thread(scrape.go_on)
    while True:
        before = scrape.turns
        try:
            return scrape.answer.result(ANSWER_SECONDS)
        except TimeoutError:
            if scrape.turns == before and scrape.answer.cancel():
                raise
