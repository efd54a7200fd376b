"""What a gateway counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from duramen.gateway.tails.old_chunks import OldChunks
from duramen.gateway.tails.tail_rings import TailRings

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class GatewayMetrics:
    """The counters of one gateway."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "duramen_gateway_requests",
            "Requests that were answered.",
            ("operation", "status"),
            registry=self._registry,
        )
        self.abandoned = Counter(
            "duramen_gateway_abandoned_requests",
            "Requests whose client left before the answer; what they wrote may be stored.",
            registry=self._registry,
        )
        self.seconds = Histogram(
            "duramen_gateway_request_seconds",
            "From the head of a request to the end of its answer, live reads apart.",
            ("operation",),
            registry=self._registry,
        )
        self.readers = Gauge(
            "duramen_gateway_readers", "Readers that wait for records: long-poll and SSE.", registry=self._registry
        )
        self.consumers = Gauge(
            "duramen_gateway_consumers",
            "Consumers of Confluent's REST API that this gateway holds.",
            registry=self._registry,
        )
        self.relayed = Counter(
            "duramen_gateway_relayed_requests",
            "Requests to consumers that were sent on to the gateway that holds them.",
            registry=self._registry,
        )
        self.unanswered = Gauge(
            "duramen_gateway_unanswered_write_bytes",
            "Bodies of writes that have no answer yet.",
            registry=self._registry,
        )
        self.records_written = Counter(
            "duramen_gateway_records_written", "Records that were stored for clients.", registry=self._registry
        )
        self.batches_written = Counter(
            "duramen_gateway_batches_written",
            "Batches in which small writes left together; those of named writers and conditional appends apart.",
            registry=self._registry,
        )
        self.records_read = Counter(
            "duramen_gateway_records_read", "Records that were sent to readers.", registry=self._registry
        )

        self.tail_bytes_read = Counter(
            "duramen_gateway_tail_bytes_read",
            "Bytes that came from the cluster at the ends of streams, once for all readers of a stream.",
            registry=self._registry,
        )
        self.catch_ups = Counter(
            "duramen_gateway_catch_up_reads",
            "Reads of one reader alone, which is slower than what is kept for those who follow.",
            registry=self._registry,
        )
        self.old_reads = Counter(
            "duramen_gateway_old_reads",
            "Reads of the cluster that are not at the end of a stream, or of which that is not known.",
            registry=self._registry,
        )
        self.chunks_shared = Counter(
            "duramen_gateway_chunks_shared",
            "Such reads that needed none, because another one had the same.",
            registry=self._registry,
        )
        self.chunks_held = Gauge(
            "duramen_gateway_chunks_held_bytes", "Memory of chunks of old records.", registry=self._registry
        )
        self.tails = Gauge(
            "duramen_gateway_tails",
            "Streams whose end is read, whatever the number of readers.",
            registry=self._registry,
        )
        self.tail_held = Gauge(
            "duramen_gateway_tail_held_bytes", "Memory of what came at the ends of streams.", registry=self._registry
        )

    def watch_tails(self, rings: TailRings) -> None:
        """Show how many there are, and what they hold."""
        self.tails.set_function(lambda: len(rings))
        self.tail_held.set_function(lambda: rings.held_bytes)

    def watch_chunks(self, chunks: OldChunks) -> None:
        """Show what they hold."""
        self.chunks_held.set_function(lambda: chunks.held_bytes)

    def page(self) -> bytes:
        """The metrics as Prometheus reads them."""
        return generate_latest(self._registry)
