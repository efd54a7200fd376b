"""The broker settings of Apache Kafka 4.3.1 that have no meaning here, and why.

They are accepted and checked, named once at start with the reason, and shown read-only by DescribeConfigs. One line a
setting: name, type, default (`-` unset, `""` empty), then bounds (`low..high`; `+n` is legal as well), legal values
(`a|b`, after `~` in any case), `internal` or `dynamic`: tools may set and clear it in the running broker.
"""

from __future__ import annotations

from duramen.config.setting import Setting

_TABLE = (
    (
        "one loop thread serves every connection; there are no thread pools, queues or purgatories to size",
        """
        delete.records.purgatory.purge.interval.requests int 1
        fetch.purgatory.purge.interval.requests int 1000
        num.io.threads int 8 1..
        num.network.threads int 3 1..
        num.recovery.threads.per.data.dir int 2 1..
        num.replica.alter.log.dirs.threads int -
        num.replica.fetchers int 1 1..
        producer.purgatory.purge.interval.requests int 1000
        queued.max.requests int 500 1..
        """,
    ),
    (
        "nothing asks for it in this release: copies are not throttled, and nobody leads who is not in sync",
        """
        alter.log.dirs.replication.quota.window.num int 11 1..
        alter.log.dirs.replication.quota.window.size.seconds int 1 1..
        background.threads int 10 1..
        follower.replication.throttled.rate long 9223372036854775807 0.. dynamic
        leader.replication.throttled.rate long 9223372036854775807 0.. dynamic
        replica.alter.log.dirs.io.max.bytes.per.second long 9223372036854775807 0.. dynamic
        replica.high.watermark.checkpoint.interval.ms long 5000
        replica.selector.class string -
        replica.socket.receive.buffer.bytes int 65536
        replica.socket.timeout.ms int 30000
        replication.quota.window.num int 11 1..
        replication.quota.window.size.seconds int 1 1..
        unclean.leader.election.enable boolean false
        unclean.leader.election.interval.ms long 300000 1.. internal
        """,
    ),
    (
        "what is decided is appended and told at once, and nobody waits for a registration by the clock",
        """
        controller.performance.always.log.threshold.ms long 2000 0.. internal
        controller.performance.sample.period.ms long 60000 100.. internal
        controller.quorum.append.linger.ms int 25 0..
        controller.quota.window.num int 11 1..
        controller.quota.window.size.seconds int 1 1..
        controller.socket.timeout.ms int 30000
        initial.broker.registration.timeout.ms int 60000
        internal.metadata.delete.delay.millis long 60000 internal
        internal.metadata.log.segment.bytes int - internal
        internal.metadata.max.batch.size.in.bytes int 8388608 internal
        metadata.max.idle.interval.ms int 500 0..
        server.max.startup.time.ms long 9223372036854775807 0.. internal
        unstable.api.versions.enable boolean false internal
        unstable.feature.versions.enable boolean false internal
        """,
    ),
    (
        "there is no remote tier",
        """
        follower.fetch.last.tiered.offset.enable boolean false
        log.local.retention.bytes long -2 -2..
        log.local.retention.ms long -2 -2..
        remote.fetch.max.wait.ms int 500 1..
        remote.list.offsets.request.timeout.ms long 30000 1..
        remote.log.index.file.cache.total.size.bytes long 1073741824 1..
        remote.log.index.file.cache.ttl.ms long 900000 -1.. internal
        remote.log.manager.copier.thread.pool.size int 10 1..
        remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 1..
        remote.log.manager.copy.quota.window.num int 11 1..
        remote.log.manager.copy.quota.window.size.seconds int 1 1..
        remote.log.manager.expiration.thread.pool.size int 10 1..
        remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 1..
        remote.log.manager.fetch.quota.window.num int 11 1..
        remote.log.manager.fetch.quota.window.size.seconds int 1 1..
        remote.log.manager.follower.thread.pool.size int 2 1..
        remote.log.manager.task.interval.ms long 30000 1..
        remote.log.manager.task.retry.backoff.max.ms long 30000 1.. internal
        remote.log.manager.task.retry.backoff.ms long 500 1.. internal
        remote.log.manager.task.retry.jitter double 0.2 0..0.5 internal
        remote.log.manager.thread.pool.size int 2 1..
        remote.log.metadata.custom.metadata.max.bytes int 128 0..
        remote.log.metadata.manager.class.name string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
        remote.log.metadata.manager.class.path string -
        remote.log.metadata.manager.impl.prefix string rlmm.config.
        remote.log.metadata.manager.listener.name string -
        remote.log.reader.max.pending.tasks int 100 1..
        remote.log.reader.threads int 10 1..
        remote.log.storage.manager.class.name string -
        remote.log.storage.manager.class.path string -
        remote.log.storage.manager.impl.prefix string rsm.config.
        remote.log.storage.system.enable boolean false
        """,  # noqa: E501
    ),
    (
        "a log is replayed in slices of its batches",
        """
        transaction.state.log.load.buffer.size int 5242880 1..
        """,
    ),
    (
        "two-phase commit with other systems is not served",
        """
        transaction.two.phase.commit.enable boolean false
        """,
    ),
    (
        "what groups decide is appended at once, by the loop",
        """
        group.coordinator.append.linger.ms int -1 -1..
        group.coordinator.background.threads int 2 1..
        group.coordinator.cached.buffer.max.bytes int 1048588 524288..
        group.coordinator.threads int 4 1..
        """,
    ),
    (
        "share groups are not served",
        """
        group.share.assignment.interval.ms int 1000 0..
        group.share.assignors list simple
        group.share.delivery.count.limit int 5 2..10
        group.share.heartbeat.interval.ms int 5000 1..
        group.share.initialize.retry.interval.ms int 30000 1.. internal
        group.share.max.assignment.interval.ms int 15000 0..
        group.share.max.delivery.count.limit int 10 5..25
        group.share.max.heartbeat.interval.ms int 15000 1..
        group.share.max.partition.max.record.locks int 4000 2000..10000
        group.share.max.record.lock.duration.ms int 60000 30000..3600000
        group.share.max.session.timeout.ms int 60000 1..
        group.share.max.share.sessions int 2000 1..
        group.share.max.size int 200 1..1000
        group.share.min.assignment.interval.ms int 0 0..
        group.share.min.delivery.count.limit int 2 2..5
        group.share.min.heartbeat.interval.ms int 5000 1..
        group.share.min.partition.max.record.locks int 100 100..2000
        group.share.min.record.lock.duration.ms int 15000 1000..30000
        group.share.min.session.timeout.ms int 45000 1..
        group.share.partition.max.record.locks int 2000 100..10000
        group.share.persister.class.name string org.apache.kafka.server.share.persister.DefaultStatePersister internal
        group.share.record.lock.duration.ms int 30000 1000..3600000
        group.share.session.timeout.ms int 45000 1..
        share.coordinator.append.linger.ms int -1 -1..
        share.coordinator.cached.buffer.max.bytes int 1048588 524288..
        share.coordinator.cold.partition.snapshot.interval.ms int 300000 1.. internal
        share.coordinator.load.buffer.size int 5242880 1..
        share.coordinator.snapshot.update.records.per.snapshot int 500 0..500
        share.coordinator.state.topic.compression.codec int 0
        share.coordinator.state.topic.min.isr short 2 1..
        share.coordinator.state.topic.num.partitions int 50 1..
        share.coordinator.state.topic.prune.interval.ms int 300000 1.. internal
        share.coordinator.state.topic.replication.factor short 3 1..
        share.coordinator.state.topic.segment.bytes int 104857600 1..
        share.coordinator.threads int 1 1..
        share.coordinator.write.timeout.ms int 5000 1..
        share.fetch.purgatory.purge.interval.requests int 1000
        """,
    ),
    (
        "streams groups are not served",
        """
        group.streams.assignment.interval.ms int 1000 0..
        group.streams.heartbeat.interval.ms int 5000 1..
        group.streams.initial.rebalance.delay.ms int 3000 0..
        group.streams.max.assignment.interval.ms int 15000 0..
        group.streams.max.heartbeat.interval.ms int 15000 1..
        group.streams.max.session.timeout.ms int 60000 1..
        group.streams.max.size int 2147483647 1..
        group.streams.max.standby.replicas int 2 0..
        group.streams.min.assignment.interval.ms int 0 0..
        group.streams.min.heartbeat.interval.ms int 5000 1..
        group.streams.min.session.timeout.ms int 45000 1..
        group.streams.num.standby.replicas int 0 0..
        group.streams.session.timeout.ms int 45000 1..
        """,
    ),
    (
        "every client may do everything in this release; listeners are plain TCP",
        """
        connection.failed.authentication.delay.ms int 100 0..
        connections.max.reauth.ms long 0
        delegation.token.expiry.check.interval.ms long 3600000 1..
        delegation.token.expiry.time.ms long 86400000 1..
        delegation.token.max.lifetime.ms long 604800000 1..
        delegation.token.secret.key password -
        early.start.listeners list -
        principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
        security.inter.broker.protocol string PLAINTEXT PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL
        security.providers string -
        """,
    ),
    (
        "listeners are plain TCP in this release",
        """
        ssl.allow.dn.changes boolean false
        ssl.allow.san.changes boolean false
        ssl.cipher.suites list ""
        ssl.client.auth string none required|requested|none
        ssl.enabled.protocols list TLSv1.2,TLSv1.3
        ssl.endpoint.identification.algorithm string https
        ssl.engine.factory.class class -
        ssl.key.password password -
        ssl.keymanager.algorithm string SunX509
        ssl.keystore.certificate.chain password -
        ssl.keystore.key password -
        ssl.keystore.location string -
        ssl.keystore.password password -
        ssl.keystore.type string JKS
        ssl.principal.mapping.rules string DEFAULT
        ssl.protocol string TLSv1.3
        ssl.provider string -
        ssl.secure.random.implementation string -
        ssl.trustmanager.algorithm string PKIX
        ssl.truststore.certificates password -
        ssl.truststore.location string -
        ssl.truststore.password password -
        ssl.truststore.type string JKS
        """,
    ),
    (
        "clients do not authenticate in this release",
        """
        sasl.client.callback.handler.class class -
        sasl.enabled.mechanisms list GSSAPI
        sasl.jaas.config password -
        sasl.kerberos.kinit.cmd string /usr/bin/kinit
        sasl.kerberos.min.time.before.relogin long 60000
        sasl.kerberos.principal.to.local.rules list DEFAULT
        sasl.kerberos.service.name string -
        sasl.kerberos.ticket.renew.jitter double 0.05
        sasl.kerberos.ticket.renew.window.factor double 0.8
        sasl.login.callback.handler.class class -
        sasl.login.class class -
        sasl.login.connect.timeout.ms int -
        sasl.login.read.timeout.ms int -
        sasl.login.refresh.buffer.seconds short 300
        sasl.login.refresh.min.period.seconds short 60
        sasl.login.refresh.window.factor double 0.8
        sasl.login.refresh.window.jitter double 0.05
        sasl.login.retry.backoff.max.ms long 10000
        sasl.login.retry.backoff.ms long 100
        sasl.mechanism.controller.protocol string GSSAPI
        sasl.mechanism.inter.broker.protocol string GSSAPI
        sasl.oauthbearer.assertion.algorithm string RS256 ~es256|rs256
        sasl.oauthbearer.assertion.claim.aud string -
        sasl.oauthbearer.assertion.claim.exp.seconds int 300 0..86400
        sasl.oauthbearer.assertion.claim.iss string -
        sasl.oauthbearer.assertion.claim.jti.include boolean false
        sasl.oauthbearer.assertion.claim.nbf.seconds int 60 0..3600
        sasl.oauthbearer.assertion.claim.sub string -
        sasl.oauthbearer.assertion.file string -
        sasl.oauthbearer.assertion.private.key.file string -
        sasl.oauthbearer.assertion.private.key.passphrase password -
        sasl.oauthbearer.assertion.template.file string -
        sasl.oauthbearer.client.credentials.client.id string -
        sasl.oauthbearer.client.credentials.client.secret password -
        sasl.oauthbearer.clock.skew.seconds int 30
        sasl.oauthbearer.expected.audience list ""
        sasl.oauthbearer.expected.issuer string -
        sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000
        sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000
        sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100
        sasl.oauthbearer.jwks.endpoint.url string -
        sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
        sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
        sasl.oauthbearer.scope string -
        sasl.oauthbearer.scope.claim.name string scope
        sasl.oauthbearer.sub.claim.name string sub
        sasl.oauthbearer.token.endpoint.url string -
        sasl.server.callback.handler.class class -
        sasl.server.max.receive.size int 524288
        """,
    ),
    (
        "quotas are not served",
        """
        client.quota.callback.class class -
        max.connection.creation.rate int 2147483647 0..
        max.connections.per.ip.overrides string ""
        quota.window.num int 11 1..
        quota.window.size.seconds int 1 1..
        """,
    ),
    (
        "metrics are served to Prometheus by metrics.listener",
        """
        kafka.metrics.polling.interval.secs int 10 1..
        kafka.metrics.reporters list ""
        metric.reporters list org.apache.kafka.common.metrics.JmxReporter
        metrics.num.samples int 2 1..
        metrics.recording.level string INFO
        metrics.sample.window.ms long 30000 1..
        telemetry.max.bytes int 1048576 1..
        """,
    ),
    (
        "Java classes cannot be loaded here",
        """
        alter.config.policy.class.name class -
        create.topic.policy.class.name class -
        config.providers list ""
        """,
    ),
    (
        "connections to other nodes have time-outs of their own",
        """
        request.timeout.ms int 30000
        socket.connection.setup.timeout.max.ms long 30000
        socket.connection.setup.timeout.ms long 10000
        """,
    ),
    (
        "the start of a log is durable in the journal before DeleteRecords is answered, and follows every checkpoint",
        """
        log.flush.start.offset.checkpoint.interval.ms int 60000 0..
        """,
    ),
    (
        "a log directory whose disk fails is fenced until a restart",
        """
        log.dir.failure.timeout.ms long 30000 1..
        cordoned.log.dirs list ""
        """,
    ),
    (
        "background work starts when it is due",
        """
        log.initial.task.delay.ms long 30000 0.. internal
        producer.id.expiration.check.interval.ms int 600000 1.. internal
        """,
    ),
    (
        "offsets are stored uncompressed and loaded straight from the log",
        """
        offsets.load.buffer.size int 5242880 1..
        offsets.topic.compression.codec int 0
        """,
    ),
    (
        "the operating system sizes the receive buffers of connections and queues those that wait to be accepted",
        """
        socket.receive.buffer.bytes int 102400
        socket.listen.backlog.size int 50 1..
        """,
    ),
    (
        "segments grow as they are written; the journal reserves the space",
        """
        log.preallocate boolean false
        """,
    ),
)


def _number(text: str) -> float | None:
    if not text:
        return None
    return float(text) if "." in text else int(text)


def _setting(line: str, reason: str) -> Setting:
    name, kind, default, *rest = line.split()
    low: float | None = None
    high: float | None = None
    allowed: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    internal = folded = False
    update = "restart"
    for word in rest:
        if word == "internal":
            internal = True
        elif word == "dynamic":
            update = "cluster-wide"
        elif word.startswith("+"):
            also = tuple(word[1:].split(","))
        elif ".." in word:
            lower, _, upper = word.partition("..")
            low, high = _number(lower), _number(upper)
        else:
            folded = word.startswith("~")
            allowed = tuple(word.removeprefix("~").split("|"))
    return Setting(
        name,
        kind,
        None if default == "-" else default.replace('""', ""),
        f"Accepted for Kafka's sake, without effect: {reason}.",
        low=low,
        high=high,
        also=also,
        allowed=allowed,
        folded=folded,
        internal=internal,
        inert=reason,
        update=update,
    )


INERT_BROKER_SETTINGS: tuple[Setting, ...] = tuple(
    _setting(line, reason) for reason, lines in _TABLE for line in lines.strip().splitlines()
)

UNSAFE_TO_PASS_OVER = {
    "host.name": "Kafka 3.0 removed it; use listeners=PLAINTEXT://HOST:PORT",
    "port": "Kafka 3.0 removed it; use listeners=PLAINTEXT://HOST:PORT",
    "advertised.host.name": "Kafka 3.0 removed it; use advertised.listeners",
    "advertised.port": "Kafka 3.0 removed it; use advertised.listeners",
    "control.plane.listener.name": "Kafka 4.0 removed it; use controller.listener.names",
}
"""Keys of older releases without which a node is open where its file says that it is not, or is not where it says."""

UNSAFE_PREFIXES = ("confluent.authorizer.", "confluent.security.", "confluent.metadata.server.")
"""Of vendors' keys that turn on access control, which is not served."""

FOREIGN_PREFIXES = {
    "zookeeper.": "Kafka 4.0 removed ZooKeeper",
    "password.encoder.": "Kafka 4.0 removed it with ZooKeeper",
    "confluent.": "a key of Confluent Server",
    "io.confluent.": "a key of Confluent Server",
    "kafka.rest.": "a key of Confluent's REST proxy",
    "schema.registry.": "a key of Confluent's schema registry",
    "cruise.control.": "a key of Cruise Control",
    "strimzi.": "a key of Strimzi",
    "kafka.metrics.": "Kafka's own reporters are Java classes",
    "kafka.csv.metrics.": "Kafka's own reporters are Java classes",
}
"""Beginnings of keys that other systems put into a broker's file, each with whose it is."""

FOREIGN = {
    "super.users": "access control is not served yet",
    "allow.everyone.if.no.acl.found": "access control is not served yet",
    "broker.id.generation.enable": "Kafka 4.0 removed it with ZooKeeper",
    "reserved.broker.max.id": "Kafka 4.0 removed it with ZooKeeper",
    "delegation.token.master.key": "Kafka 4.0 removed it; there are no delegation tokens here",
    "offsets.commit.required.acks": "Kafka 4.0 removed it; a commit is answered when it is durable",
    "quota.producer.default": "Kafka 3.0 removed it; there are no quotas here",
    "quota.consumer.default": "Kafka 3.0 removed it; there are no quotas here",
}
"""Broker keys of other releases and of authorizers, apart from those in REMOVED, each with why it has no effect."""

REMOVED = {
    "zookeeper.connect": "Kafka 4.0 removed ZooKeeper",
    "zookeeper.connection.timeout.ms": "Kafka 4.0 removed ZooKeeper",
    "inter.broker.protocol.version": "Kafka 4.0 removed it",
    "log.message.format.version": "Kafka 4.0 removed it; records are always format version 2",
    "message.format.version": "Kafka 4.0 removed it; records are always format version 2",
    "message.downconversion.enable": "Kafka 4.0 removed it; records are always format version 2",
    "log.message.downconversion.enable": "Kafka 4.0 removed it; records are always format version 2",
    "log.message.timestamp.difference.max.ms": "use log.message.timestamp.before.max.ms and …after.max.ms",
    "leader.imbalance.per.broker.percentage": "Kafka 4.0 removed it; every leader goes back",
    "message.timestamp.difference.max.ms": "use message.timestamp.before.max.ms and …after.max.ms",
}
"""Keys of older releases that a configuration file may still hold, with what to say about them."""
