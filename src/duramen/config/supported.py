"""The broker settings that this node obeys, and our own.

Names and defaults are Kafka's (4.3.1) unless the sentence says otherwise.
"""

from __future__ import annotations

from duramen.config.cleaner_settings import CLEANER_SETTINGS
from duramen.config.cluster_settings import CLUSTER_SETTINGS
from duramen.config.consumer_group_settings import CONSUMER_GROUP_SETTINGS
from duramen.config.quorum_settings import QUORUM_SETTINGS
from duramen.config.replication_settings import REPLICATION_SETTINGS
from duramen.config.setting import LONG_MAX, PARTITIONS_MAX, Setting
from duramen.config.sink_settings import SINK_SETTINGS
from duramen.config.transaction_settings import TRANSACTION_SETTINGS

_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_DYNAMIC = "cluster-wide"

_IDENTITY = (
    Setting("node.id", "int", "1", "Number of this node in the cluster; part of what clients see as broker id.", low=0),
    Setting("broker.id", "int", "-1", "Older name of node.id; counts only where node.id is not set."),
    Setting(
        "process.roles",
        "list",
        "broker,controller",
        "What this process does: serve clients, take part in the metadata quorum, or both. A node that starts is both "
        "in this release; `duramen cluster init` formats directories for the others, too.",
        allowed=("broker", "controller"),
    ),
    Setting("broker.rack", "string", None, "Rack of this node, told to clients in metadata."),
    Setting(
        "authorizer.class.name",
        "string",
        "",
        "Kafka's access control. It is not served yet, so a class is refused rather than quietly not asked.",
    ),
)

_LISTENERS = (
    Setting(
        "listeners",
        "list",
        "PLAINTEXT://127.0.0.1:9092",
        "Addresses to listen on, as NAME://host:port; an empty host means every interface, port 0 picks a free one. "
        "The default is loopback only, where Kafka's is every interface.",
    ),
    Setting(
        "advertised.listeners",
        "list",
        None,
        "Addresses that clients are told to connect to; the listeners themselves when unset.",
    ),
    Setting(
        "listener.security.protocol.map",
        "string",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Security protocol of each listener name. Only PLAINTEXT can be served in this release; a listener with "
        "another protocol is refused.",
    ),
    Setting(
        "controller.listener.names",
        "list",
        "",
        "Names of those listeners that the controller serves: for other controllers, brokers, and tools with "
        "--bootstrap-controller. Clients are not told of them. A node that is alone needs none.",
    ),
    Setting(
        "metrics.listener",
        "string",
        "",
        "host:port that serves Prometheus text at /metrics, and /healthz and /readyz; off when empty.",
    ),
    Setting(
        "socket.request.max.bytes",
        "int",
        "104857600",
        "Largest request that is read; a larger one closes its connection.",
        unit="bytes",
        low=1,
    ),
    Setting(
        "queued.max.request.bytes",
        "long",
        "-1",
        "Memory of requests that are being received or handled, beyond which sockets are not read. -1: a quarter of "
        "the memory that the process may use (its container's or the machine's), less 64 MiB, and at most 512 MiB.",
        unit="bytes",
    ),
    Setting(
        "socket.send.buffer.bytes",
        "int",
        "262144",
        "Send buffer (SO_SNDBUF) of each connection, 65536 at least; -1 lets the system choose, which costs more "
        "processor time on a short way and is faster on a long one, where a buffer's worth leaves per round trip.",
        unit="bytes",
        low=-1,
    ),
    Setting(
        "connections.max.idle.ms",
        "long",
        "600000",
        "A connection without a request for this long is closed; -1 never closes one.",
        unit="ms",
    ),
    Setting(
        "max.connections", "int", "2147483647", "Client connections this node accepts at most.", low=0, update=_DYNAMIC
    ),
    Setting(
        "max.connections.per.ip",
        "int",
        "2147483647",
        "Client connections accepted from one address.",
        low=0,
        update=_DYNAMIC,
    ),
)

_TOPICS = (
    Setting(
        "auto.create.topics.enable", "boolean", "true", "Whether a topic comes into being when a client first asks."
    ),
    Setting("delete.topic.enable", "boolean", "true", "Whether topics may be deleted."),
    Setting("num.partitions", "int", "1", "Partitions of topics created without a number.", low=1, high=PARTITIONS_MAX),
    Setting(
        "message.max.bytes",
        "int",
        "1048588",
        "Largest record batch that may be written, compressed and with its header.",
        unit="bytes",
        low=0,
        update=_DYNAMIC,
    ),
    Setting(
        "max.request.partition.size.limit",
        "int",
        "2000",
        "Partitions one DescribeTopicPartitions reply may hold.",
        low=1,
    ),
    Setting(
        "compression.type",
        "string",
        "producer",
        "Codec batches are stored with; `producer` keeps what the client sent.",
        allowed=_CODECS,
        update=_DYNAMIC,
    ),
    Setting(
        "compression.gzip.level",
        "int",
        "-1",
        "Level of gzip where batches are recompressed; -1 is the codec's own default.",
        low=1,
        high=9,
        also=("-1",),
        update=_DYNAMIC,
    ),
    Setting(
        "compression.lz4.level",
        "int",
        "9",
        "Level of lz4 where batches are recompressed; 9 is the fast compressor, as in Kafka.",
        low=1,
        high=17,
        update=_DYNAMIC,
    ),
    Setting(
        "compression.zstd.level",
        "int",
        "3",
        "Level of zstd where batches are recompressed.",
        low=-131072,
        high=22,
        update=_DYNAMIC,
    ),
    Setting(
        "log.message.timestamp.type",
        "string",
        "CreateTime",
        "Whose clock a record's timestamp comes from: the producer's or, at the append, this node's.",
        allowed=("CreateTime", "LogAppendTime"),
        update=_DYNAMIC,
    ),
    Setting(
        "log.message.timestamp.before.max.ms",
        "long",
        str(LONG_MAX),
        "How far a record's timestamp may lie in the past.",
        unit="ms",
        low=0,
        update=_DYNAMIC,
    ),
    Setting(
        "log.message.timestamp.after.max.ms",
        "long",
        "3600000",
        "How far a record's timestamp may lie in the future.",
        unit="ms",
        low=0,
        update=_DYNAMIC,
    ),
)

_FETCH = (
    Setting("fetch.max.bytes", "int", "57671680", "Most record bytes one Fetch reply holds.", unit="bytes", low=1024),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        "int",
        "1000",
        "Incremental fetch sessions kept (KIP-227); clients beyond it send full requests.",
        low=0,
    ),
    Setting(
        "producer.id.expiration.ms",
        "int",
        "86400000",
        "How long an idle producer's sequence numbers are remembered.",
        unit="ms",
        low=1,
        update=_DYNAMIC,
    ),
)

_GROUPS = (
    Setting(
        "group.initial.rebalance.delay.ms",
        "int",
        "500",
        "How long an empty group waits for more members before its first generation. Kafka's default is 3000: set that "
        "where many members start within seconds of each other.",
        unit="ms",
    ),
    Setting(
        "group.min.session.timeout.ms", "int", "6000", "Shortest session time-out a member may ask for.", unit="ms"
    ),
    Setting(
        "group.max.session.timeout.ms", "int", "1800000", "Longest session time-out a member may ask for.", unit="ms"
    ),
    Setting("group.max.size", "int", "2147483647", "Members a group may have.", low=1),
    Setting(
        "offset.metadata.max.bytes",
        "int",
        "4096",
        "Longest metadata text stored with a committed offset.",
        unit="bytes",
    ),
    Setting(
        "offsets.retention.minutes",
        "int",
        "10080",
        "How long committed offsets outlive their group's last member or, without group management, the last commit.",
        unit="minutes",
        low=1,
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        "long",
        "600000",
        "How often expired offsets are looked for.",
        unit="ms",
        low=1,
    ),
    Setting(
        "offsets.topic.num.partitions",
        "int",
        "50",
        "Partitions of __consumer_offsets; must not change once the topic exists.",
        low=1,
        high=PARTITIONS_MAX,
    ),
    Setting(
        "offsets.topic.segment.bytes",
        "int",
        "104857600",
        "Segment size of __consumer_offsets.",
        unit="bytes",
        low=1,
    ),
    Setting(
        "offsets.commit.timeout.ms",
        "int",
        "5000",
        "How long an offset commit may wait for its record to be durable.",
        unit="ms",
        low=1,
    ),
)

_FLUSHING = (
    Setting(
        "log.flush.interval.messages",
        "long",
        str(LONG_MAX),
        "Records after which a page-cache topic is synced, off the loop. Stable topics need no such sync.",
        low=1,
        update=_DYNAMIC,
    ),
    Setting(
        "log.flush.interval.ms",
        "long",
        None,
        "Longest time that a page-cache topic's records stay unsynced; log.flush.scheduler.interval.ms when unset.",
        unit="ms",
        update=_DYNAMIC,
    ),
    Setting(
        "log.flush.scheduler.interval.ms",
        "long",
        str(LONG_MAX),
        "Takes the place of log.flush.interval.ms where that is not set.",
        unit="ms",
    ),
)

_LOG = (
    Setting(
        "log.dirs",
        "list",
        "./duramen-data",
        "Directories that hold the data (Kafka's default is /tmp/kafka-logs, which does not outlive a restart).",
    ),
    Setting("log.dir", "list", None, "Older name of log.dirs; counts only where log.dirs is not set."),
    Setting(
        "log.segment.bytes",
        "int",
        "1073741824",
        "Size at which a segment is rolled.",
        unit="bytes",
        low=1048576,
        update=_DYNAMIC,
    ),
    Setting(
        "log.roll.ms",
        "long",
        None,
        "Age at which a segment is rolled; log.roll.hours when unset.",
        unit="ms",
        update=_DYNAMIC,
    ),
    Setting("log.roll.hours", "int", "168", "Age at which a segment is rolled.", unit="hours", low=1),
    Setting(
        "log.roll.jitter.ms",
        "long",
        None,
        "Random part taken off a segment's age; log.roll.jitter.hours when unset.",
        unit="ms",
        update=_DYNAMIC,
    ),
    Setting("log.roll.jitter.hours", "int", "0", "Random part taken off a segment's age.", unit="hours", low=0),
    Setting(
        "log.retention.ms",
        "long",
        None,
        "Age at which records may be deleted; log.retention.minutes when unset.",
        unit="ms",
        update=_DYNAMIC,
    ),
    Setting(
        "log.retention.minutes",
        "int",
        None,
        "Age at which records may be deleted; log.retention.hours when unset.",
        unit="minutes",
    ),
    Setting(
        "log.retention.hours",
        "int",
        "168",
        "Age at which records may be deleted; -1 keeps them for ever.",
        unit="hours",
    ),
    Setting(
        "log.retention.bytes",
        "long",
        "-1",
        "Size at which a partition's oldest records are deleted; -1 has no limit.",
        unit="bytes",
        update=_DYNAMIC,
    ),
    Setting(
        "log.retention.check.interval.ms",
        "long",
        "300000",
        "How often retention looks for what may go.",
        unit="ms",
        low=1,
    ),
    Setting(
        "log.cleanup.policy",
        "list",
        "delete",
        "What happens to old records: `delete` removes them by age and size, `compact` keeps the last one of each key. "
        "A compacted topic takes no records without key.",
        allowed=("compact", "delete"),
        update=_DYNAMIC,
    ),
    Setting(
        "log.segment.delete.delay.ms",
        "long",
        "60000",
        "How long the files of deleted segments are kept.",
        unit="ms",
        low=0,
        update=_DYNAMIC,
    ),
    Setting(
        "log.index.size.max.bytes",
        "int",
        "10485760",
        "Largest offset or time index of a segment.",
        unit="bytes",
        low=4,
        update=_DYNAMIC,
    ),
    Setting(
        "log.index.interval.bytes",
        "int",
        "4096",
        "Record bytes between two index entries.",
        unit="bytes",
        low=0,
        update=_DYNAMIC,
    ),
)

_METADATA = (
    Setting(
        "metadata.log.segment.bytes",
        "int",
        "1073741824",
        "Size at which a segment of the metadata log is rolled; a snapshot begins a new one, too.",
        unit="bytes",
        low=8 << 20,
    ),
    Setting(
        "metadata.log.segment.ms",
        "long",
        "604800000",
        "Age at which a segment of the metadata log is rolled.",
        unit="ms",
    ),
    Setting(
        "metadata.log.max.record.bytes.between.snapshots",
        "long",
        "20971520",
        "Bytes of metadata records after which a snapshot is written.",
        unit="bytes",
        low=1,
    ),
    Setting(
        "metadata.log.max.snapshot.interval.ms",
        "long",
        "3600000",
        "How long changes of the metadata wait for a snapshot at most; 0: only their size counts.",
        unit="ms",
        low=0,
    ),
    Setting(
        "metadata.max.retention.bytes",
        "long",
        "104857600",
        "Metadata log and snapshots together; beyond it the oldest snapshot goes, and the log before the next one. "
        "The newest snapshot always stays. -1: no limit.",
        unit="bytes",
    ),
    Setting(
        "metadata.max.retention.ms",
        "long",
        "604800000",
        "Age at which a snapshot goes, and the log before the next one. -1: no limit.",
        unit="ms",
    ),
)

_OURS = (
    Setting(
        "duramen.ack.durability",
        "string",
        "stable",
        "When a write counts as done: `stable`, once it is on stable storage; `page-cache`, Kafka's rule, once the "
        "operating system has it, so that a power cut may take acknowledged records.",
        allowed=("stable", "page-cache"),
        update=_DYNAMIC,
    ),
    Setting(
        "duramen.journal.max.bytes",
        "long",
        str(256 << 20),
        "Size of a log directory's journal; a checkpoint starts before it is full.",
        unit="bytes",
        low=1 << 17,
    ),
    Setting(
        "duramen.journal.max.entries",
        "int",
        "250000",
        "Entries the journal takes; a checkpoint starts before it is full. Bounds the time a recovery takes.",
        low=1000,
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        "int",
        "60000",
        "Longest time from one checkpoint to the next while anything waits for one, however little the journal holds. "
        "A rolled segment is sealed, and may be compacted, from its checkpoint on.",
        unit="ms",
        low=0,
    ),
    Setting(
        "duramen.journal.part.bytes",
        "int",
        str(32 << 20),
        "Size of one of the recycled files the journal consists of.",
        unit="bytes",
        low=1 << 16,
    ),
    Setting(
        "duramen.journal.bypass.bytes",
        "int",
        str(1 << 20),
        "A partition that brings more than this to one group commit has its segment synced instead of being "
        "written twice.",
        unit="bytes",
        low=4096,
    ),
    Setting(
        "duramen.dirty.max.bytes",
        "long",
        str(64 << 20),
        "Bytes written to segments but not yet synced at which early write-back starts.",
        unit="bytes",
        low=1 << 20,
    ),
    Setting(
        "duramen.scrub.bytes.per.second",
        "long",
        str(8 << 20),
        "Bytes a second that the scrubber reads of each log directory, to compare finished segments with their "
        "checksums; 0 turns it off.",
        unit="bytes",
        low=0,
    ),
    Setting(
        "duramen.scrub.interval.ms",
        "long",
        str(7 * 86_400_000),
        "From the beginning of one round of the scrubber to that of the next.",
        unit="ms",
        low=1000,
    ),
    Setting(
        "duramen.hot.window.bytes",
        "long",
        "-1",
        "How much of what was written or verified last is sent again without a second check, all logs together, as "
        "long as it is in memory. -1: a quarter of the machine's memory.",
        unit="bytes",
        low=-1,
    ),
    Setting(
        "duramen.cold.read.bytes.per.second",
        "long",
        str(16 << 20),
        "Bytes a second that all readers of old data together get from the disk while producers, or readers of what is "
        "in memory, are served; twice the rate at which records arrive, if that is more. With nobody else to serve "
        "they get what the disk gives. 0: always.",
        unit="bytes",
        low=0,
        update=_DYNAMIC,
    ),
    Setting(
        "duramen.open.files.max",
        "int",
        "-1",
        "How many files of segments may be open, all logs together; what was not used for longest is closed. Files "
        "written since their last sync stay open; when these alone are more, a checkpoint begins early. -1: half of "
        "what the process may open, at most 10,000.",
        low=-1,
    ),
)

SERVED_BROKER_SETTINGS: tuple[Setting, ...] = (
    _IDENTITY
    + CLUSTER_SETTINGS
    + _LISTENERS
    + _TOPICS
    + REPLICATION_SETTINGS
    + _FETCH
    + _GROUPS
    + CONSUMER_GROUP_SETTINGS
    + TRANSACTION_SETTINGS
    + _LOG
    + CLEANER_SETTINGS
    + _FLUSHING
    + _METADATA
    + QUORUM_SETTINGS
    + _OURS
    + SINK_SETTINGS
)
