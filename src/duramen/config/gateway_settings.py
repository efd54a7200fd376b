"""The settings of a gateway: where it listens, whom it lets in, and its limits."""

from __future__ import annotations

from duramen.config.setting import Setting

GATEWAY_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "gateway.listener",
        "string",
        "http://127.0.0.1:8082",
        "Address to listen on, as http://host:port or https://host:port; port 0 picks a free one. Beyond loopback it "
        "has to be https://, with gateway.tokens.file.",
    ),
    Setting(
        "gateway.tls.certificate",
        "string",
        "",
        "File with the certificate of an https:// listener in PEM, and those between it and the root. Changed files "
        "are loaded within a second or two, for new connections.",
    ),
    Setting(
        "gateway.tls.key",
        "string",
        "",
        "File with the key of gateway.tls.certificate in PEM, not encrypted.",
    ),
    Setting(
        "gateway.tokens.file",
        "string",
        "",
        "File with a line for each bearer token, as `duramen gateway token` prints it: its hash, and what who has it "
        "may do. With it every request needs one. A changed file counts within a second or two, for readers that "
        "are being answered too.",
    ),
    Setting(
        "bootstrap.servers",
        "list",
        "127.0.0.1:9092",
        "Nodes to begin with, as host:port,...",
    ),
    Setting(
        "gateway.hosts",
        "list",
        "",
        "Names by which the gateway may be addressed (the header Host, without the port), beside those of loopback. A "
        "request by another name is refused with 421: it comes from a page whose name was pointed at this machine.",
    ),
    Setting(
        "gateway.origins",
        "list",
        "",
        "Origins (https://host[:port]) whose pages may read and write: they get CORS headers. Pages of others may not "
        "write, and browsers do not let them read.",
    ),
    Setting(
        "gateway.body.max.bytes",
        "int",
        str(8 << 20),
        "Longest body of a request.",
        unit="bytes",
        low=1024,
        high=64 << 20,
    ),
    Setting(
        "gateway.head.max.bytes",
        "int",
        str(32 << 10),
        "Longest head of a request: its first line and headers.",
        unit="bytes",
        low=1024,
        high=1 << 20,
    ),
    Setting(
        "gateway.head.timeout.ms",
        "int",
        "10000",
        "How long a head may take to arrive once it has begun; the connection is closed then.",
        unit="ms",
        low=100,
    ),
    Setting(
        "gateway.request.timeout.ms",
        "int",
        "30000",
        "How long the body of a request may take to arrive, and how long the cluster may take to answer.",
        unit="ms",
        low=100,
    ),
    Setting(
        "gateway.writes.max.bytes",
        "long",
        str(64 << 20),
        "Bodies of writes that have no answer yet, all together; beyond it a write is answered 503.",
        unit="bytes",
        low=1 << 20,
    ),
    Setting(
        "gateway.readers.max",
        "int",
        "10000",
        "Readers that wait for new records at a time (long-poll, SSE, WebSocket); a further one is answered 503.",
        low=1,
    ),
    Setting(
        "gateway.reader.max.bytes",
        "int",
        str(256 << 10),
        "How much is taken from the log at a time for one reader; so much of it may be unread. A single larger batch "
        "is sent whole.",
        unit="bytes",
        low=1024,
        high=16 << 20,
    ),
    Setting(
        "gateway.expiry.delay.ms",
        "long",
        "60000",
        "How long after the end of a stream (Stream-TTL, Stream-Expires-At) its topic is deleted, at least, and how "
        "often expired ones are looked for. Clocks of gateways may differ by less.",
        unit="ms",
        low=100,
    ),
    Setting(
        "gateway.chunks.max.bytes",
        "long",
        str(32 << 20),
        "Memory for chunks of old records, for readers who read the same; what was not used for longest goes first.",
        unit="bytes",
        low=64 << 10,
    ),
    Setting(
        "gateway.old.reads.max",
        "int",
        "4",
        "Reads of each node at a time for readers who are not at the end of a stream; more wait for their turn, until "
        "gateway.request.timeout.ms.",
        low=1,
    ),
    Setting(
        "gateway.tail.max.bytes",
        "long",
        str(64 << 20),
        "Memory for what came last in the streams that are followed, all together, for readers slower than others. "
        "The oldest goes first; a reader that still wanted it reads on its own until it has caught up.",
        unit="bytes",
        low=64 << 10,
    ),
    Setting(
        "gateway.tail.linger.ms",
        "int",
        "5000",
        "How long the end of a stream is still read when its last reader has left.",
        unit="ms",
        low=0,
    ),
    Setting(
        "gateway.long.poll.ms",
        "int",
        "60000",
        "How long a long-poll waits for a record before it is answered 204.",
        unit="ms",
        low=100,
    ),
    Setting(
        "gateway.sse.ms",
        "int",
        "60000",
        "After how long an SSE response ends, so that the reader connects again from its position.",
        unit="ms",
        low=100,
    ),
    Setting(
        "gateway.advertised.listener",
        "string",
        "",
        "Where other gateways of the cluster reach this one, http://host:port or https://host:port: they send on the "
        "requests to consumers that it holds. Without it the address of gateway.listener, with the machine's name "
        "for a host that stands for all; on loopback other machines do not reach it.",
    ),
    Setting(
        "gateway.tls.ca",
        "string",
        "",
        "File of certificates in PEM against which those of other gateways are checked; without it those that the "
        "system trusts.",
    ),
    Setting(
        "gateway.consumers.max",
        "int",
        "1000",
        "Consumers of Confluent's REST API (POST /consumers/{group}) that this gateway holds; a further one is "
        "answered 503.",
        low=0,
    ),
    Setting(
        "gateway.consumer.idle.ms",
        "int",
        "300000",
        "How long such a consumer may go without a request; then it is gone, and what it reads is free for others.",
        unit="ms",
        low=100,
    ),
)
