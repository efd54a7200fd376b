"""All that answers requests, put together: the application of a gateway, whatever server runs it."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from types import TracebackType
from typing import Final, Self, TextIO

from duramen.client.aio import AsyncCluster
from duramen.client.aio.async_namespaces import AsyncNamespaces
from duramen.config import GatewayConfig, HttpAddress
from duramen.errors import DuramenError
from duramen.gateway.access.authenticator import Authenticator
from duramen.gateway.access.peer_trust import PeerTrust
from duramen.gateway.access.running_reads import RunningReads
from duramen.gateway.access.session_requests import SessionRequests
from duramen.gateway.app import READY_S, make_app
from duramen.gateway.confluent.rest_handlers import confluent_handlers
from duramen.gateway.consumers.consumer_place import GatewayIdentity
from duramen.gateway.consumers.consumer_places import ConsumerPlaces
from duramen.gateway.consumers.consumer_requests import ConsumerRequests
from duramen.gateway.consumers.held_consumers import HeldConsumers
from duramen.gateway.consumers.request_relay import RequestRelay
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.event_lines import EventLines
from duramen.gateway.edge.limits import Allowance
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.request_body import RequestBodies
from duramen.gateway.edge.request_guard import RequestGuard
from duramen.gateway.namespaces.namespace_requests import NamespaceRequests
from duramen.gateway.streams.position_requests import PositionRequests
from duramen.gateway.streams.stream_appends import StreamAppends
from duramen.gateway.streams.stream_requests import StreamRequests
from duramen.gateway.streams.stream_sweep import sweep_expired
from duramen.gateway.streams.stream_topics import StreamTopics
from duramen.gateway.streams.streams import Streams
from duramen.gateway.streams.writer_requests import WriterRequests
from duramen.gateway.tails.live_readers import LiveReaders, ReadLimits
from duramen.gateway.tails.old_chunks import OldChunks
from duramen.gateway.tails.old_reads import OldReads
from duramen.gateway.tails.read_turns import ReadTurns
from duramen.gateway.tails.shared_tails import SharedTails
from duramen.gateway.tails.stream_sockets import StreamSockets
from duramen.gateway.tails.tail_rings import TailRings
from duramen.gateway.tails.topic_readers import TopicReaders
from duramen.gateway.tails.topic_reads import TopicReads
from duramen.gateway.writes.partition_writes import PartitionWrites
from duramen.gateway.writes.topic_requests import TopicRequests
from duramen.gateway.writes.topic_writes import TopicWrites
from duramen.gateway.writes.writer_batches import WriterBatches

_SWEEP_MAX_S: Final = 5.0
"""How often consumers that nobody uses are looked for, at least."""
_LOOK_AROUND_S: Final = 60.0
"""How often other gateways that hold consumers are looked for."""
_WILDCARDS: Final = ("0.0.0.0", "::")


class Gateway:
    """The application `app` with what stands behind it; an asynchronous context manager, while it may be asked.

    log: where its events go; port: where it listens, if gateway.listener leaves that open. `stopping` lets the readers
    go; `reads` are those that run.
    """

    def __init__(
        self, config: GatewayConfig, authenticator: Authenticator, log: TextIO, port: int | None = None
    ) -> None:
        self.events = EventLines(log)
        self.stopping = asyncio.Event()
        self._nodes = config.bootstrap
        self._expiry_delay_ms = config.expiry_delay_ms
        self._consumer_sweep_s = min(_SWEEP_MAX_S, config.consumer_idle_ms / 4000)
        self._clock = clock = GatewayClock(lambda: time.time_ns() // 1_000_000, time.monotonic)
        metrics = GatewayMetrics()
        unanswered = Allowance("bytes of writes without an answer", config.writes_max_bytes)
        metrics.unanswered.set_function(lambda: unanswered.taken)
        readers = Allowance("waiting readers", config.readers_max)
        request_timeout_s = config.request_timeout_ms / 1000
        self._cluster = cluster = AsyncCluster(
            config.bootstrap,
            client_id="duramen-gateway",
            timeout_s=request_timeout_s,
            waiting_connections=config.readers_max,
        )
        namespaces = AsyncNamespaces(cluster)
        self._topics = topics = StreamTopics(
            cluster, namespaces, clock.now_ms, clock.monotonic_s, config.body_max_bytes
        )
        writes = PartitionWrites(cluster, metrics, request_timeout_s)
        leader_timeout_ms = config.request_timeout_ms // 2
        writer_batches = WriterBatches(cluster, request_timeout_s, leader_timeout_ms)
        appends = StreamAppends(cluster, writes, writer_batches, leader_timeout_ms)
        streams = Streams(cluster, topics, appends, config.reader_max_bytes)
        rings = TailRings(config.tail_max_bytes, config.tail_linger_ms / 1000)
        metrics.watch_tails(rings)
        tails = SharedTails(rings, streams.arriving, config.reader_max_bytes, clock, metrics, self.stopping)
        chunks = OldChunks(config.chunks_max_bytes)
        metrics.watch_chunks(chunks)
        turns = ReadTurns(config.old_reads_max, request_timeout_s)
        old_reads = OldReads(streams, chunks, lambda: len(rings) > 0, turns, clock, metrics)
        followed = TopicReaders(streams, old_reads, tails, metrics)
        limits = ReadLimits(config.long_poll_ms / 1000, config.sse_ms / 1000)
        bodies = RequestBodies(config.body_max_bytes, request_timeout_s, unanswered)
        requests = StreamRequests(
            streams,
            old_reads,
            bodies,
            LiveReaders(old_reads, tails, readers, limits, clock, metrics, self.stopping),
            clock,
            metrics,
        )
        topic_writes = TopicWrites(cluster, writes, clock, metrics)
        topic_reads = TopicReads(followed, readers, limits, config.reader_max_bytes, clock, metrics, self.stopping)
        topic_requests = TopicRequests(topic_writes, bodies, clock)
        positions = PositionRequests(streams, old_reads, bodies)
        writers = WriterRequests(cluster, streams, bodies, leader_timeout_ms)
        namespace_requests = NamespaceRequests(namespaces, topics, bodies, clock)
        advertised = _advertised(config, port)
        here = GatewayIdentity(uuid.uuid4().hex, str(advertised), socket.gethostname())
        places = ConsumerPlaces(cluster, clock.now_ms, request_timeout_s)
        trust = PeerTrust(config.tls_ca)
        self._consumers = ConsumerRequests(
            cluster,
            HeldConsumers(config.consumers_max, config.consumer_idle_ms / 1000),
            places,
            RequestRelay(
                places, here, bodies, trust, request_timeout_s, config.long_poll_ms / 1000, self.events, metrics
            ),
            here,
            bodies,
            config.long_poll_ms / 1000,
            config.reader_max_bytes,
            clock,
            metrics,
            self.stopping,
        )
        guard = RequestGuard(config.hosts | {advertised.host.lower()}, config.origins)
        handlers = {
            **SessionRequests().handlers(),
            **requests.handlers(),
            **positions.handlers(),
            **writers.handlers(),
            **topic_requests.handlers(),
            **topic_reads.handlers(),
            **namespace_requests.handlers(),
            **confluent_handlers(cluster, topic_writes, bodies, clock),
            **self._consumers.handlers(),
        }
        sockets = StreamSockets(streams, followed, readers, config.sse_ms / 1000, clock, metrics, self.stopping)
        self.reads = RunningReads(authenticator)
        self.app = make_app(
            handlers, sockets.sockets(), cluster, guard, authenticator, self.reads, metrics, self.events
        )

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        self._first_look = asyncio.ensure_future(self._look_for_cluster())
        self._sweep = asyncio.ensure_future(
            sweep_expired(
                self._topics,
                self._expiry_delay_ms,
                self._clock.now_ms,
                lambda topic: self.events.write("info", "stream-expired", topic=topic),
            )
        )
        self._consumer_sweep = asyncio.ensure_future(self._sweep_consumers())
        return self

    async def _sweep_consumers(self) -> None:
        """The first time at once: a process at the same address may have left consumers behind."""
        looked_s, is_first = self._clock.monotonic_s(), True
        while True:
            now_s = self._clock.monotonic_s()
            looks_around = now_s - looked_s >= _LOOK_AROUND_S
            looked_s = now_s if looks_around else looked_s
            if self._consumers.are_held or looks_around or is_first:
                await self._consumers.tend(looks_around=looks_around)
            is_first = False
            await asyncio.sleep(self._consumer_sweep_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._first_look.cancel()
        self._sweep.cancel()
        self._consumer_sweep.cancel()
        await self._consumers.close()
        await self._cluster.__aexit__(kind, error, trace)

    async def _look_for_cluster(self) -> None:
        """Say where no node answers when the gateway starts, which it does all the same, and when one does."""
        is_away = False
        while True:
            try:
                async with asyncio.timeout(READY_S):
                    await self._cluster.metadata([])
            except (TimeoutError, DuramenError) as error:
                if not is_away:
                    self.events.write(
                        "warning",
                        "cluster-away",
                        nodes=",".join(self._nodes),
                        why=str(error) or f"no answer in {READY_S:g} s",
                        remedy="start a node there (`duramen serve`), or name others with --bootstrap",
                    )
                is_away = True
                await asyncio.sleep(READY_S)
            else:
                if is_away:
                    self.events.write("info", "cluster-found", nodes=",".join(self._nodes))
                return


def _advertised(config: GatewayConfig, port: int | None) -> HttpAddress:
    """Where other gateways reach this one."""
    if config.advertised is not None:
        return config.advertised
    found = config.listener if port is None else config.listener._replace(port=port)
    return found._replace(host=socket.gethostname()) if found.host in _WILDCARDS else found
