"""One node's configuration: what a file, overrides and dynamic changes make of it."""

import subprocess
import sys

import pytest

from duramen.config import SETTINGS, load_broker_config, validate_broker_config
from duramen.config.listeners import parse_host_port, parse_listener
from duramen.errors import ConfigError

# Every key that Kafka 4.3's own config/server.properties sets, with its values.
STOCK = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_stock_kafka_file_starts() -> None:
    config = load_broker_config(STOCK, {})
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://:9092"]
    assert [str(listener) for listener in config.advertised_listeners] == ["PLAINTEXT://localhost:9092"]
    assert [str(listener) for listener in config.controller_listeners] == ["CONTROLLER://:9093"]
    assert [str(told) for told in config.advertised_controller_listeners] == ["CONTROLLER://localhost:9093"]
    assert config.get("log.dirs") == ["/tmp/kraft-combined-logs"]
    inert = dict(config.inert)
    assert "num.io.threads" in inert
    assert "share.coordinator.state.topic.min.isr" in inert
    assert "transaction.state.log.min.isr" not in inert
    assert "listeners" not in inert
    assert all(inert.values())


def test_defaults_are_loopback_and_a_directory_here() -> None:
    config = load_broker_config(None, {})
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert config.advertised_listeners == config.listeners
    assert config.controller_listeners == config.advertised_controller_listeners == ()
    assert config.get("log.dirs") == ["./duramen-data"]
    assert config.get("node.id") == 1
    assert config.metrics_listener is None
    assert config.inert == []
    assert config.source("log.dirs") == "default"


def test_overrides_win_over_the_file() -> None:
    config = load_broker_config("num.partitions=3\nlog.segment.bytes=2000000", {"num.partitions": "7"})
    assert config.get("num.partitions") == 7
    assert config.get("log.segment.bytes") == 2000000
    assert config.source("num.partitions") == "static"


def test_older_names_count_where_the_newer_is_missing() -> None:
    assert load_broker_config("broker.id=4\nlog.dir=/a", {}).get("node.id") == 4
    assert load_broker_config("broker.id=4\nlog.dir=/a", {}).get("log.dirs") == ["/a"]
    assert load_broker_config("log.dir=/a\nlog.dirs=/b,/c", {}).get("log.dirs") == ["/b", "/c"]


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.0.0.1:9093", "127.0.0.2:9092"])
def test_a_metrics_listener_may_have_a_port_that_is_free_beside_the_clients(address: str) -> None:
    config = load_broker_config("metrics.listener=" + address, {})
    assert config.metrics_listener is not None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num.partition": "3"}, "nearest is num.partitions"),
        ({"NUM.PARTITIONS": "3"}, "unknown broker setting NUM.PARTITIONS; the nearest is num.partitions"),
        ({"KAFKA_ADVERTISED_LISTENERS": "x"}, "the nearest is advertised.listeners"),
        ({"zookeper.connect": "x"}, r"nearest is zookeeper.connect, without effect here \(Kafka 4.0 removed ZooKeeper"),
        ({"super.user": "x"}, "nearest is super.users, without effect here"),
        ({"advertised.host.nam": "x"}, r"nearest is advertised.host.name \(Kafka 3.0 removed it; use"),
        ({"retention.ms": "3"}, "use log.retention.ms"),
        ({"host.name": "127.0.0.1"}, "use listeners=PLAINTEXT://HOST:PORT"),
        ({"confluent.authorizer.access.rule.providers": "ZK_ACL"}, "access control is not served yet"),
        ({"log.dirs": "/a,~/b"}, "only a shell expands"),
        ({"log.dir": "~/b"}, "^log.dir names ~/b, which only a shell expands"),
        ({"log.dirs": "./$HOME/b"}, "^log.dirs names ./.HOME/b, which only a shell expands"),
        ({"log.dirs": "$HOME/b"}, "only a shell expands"),
        ({"log.dirs": "/a/${NAME}-b"}, "only a shell expands"),
        ({"log.dirs": "/a/$NAME/b"}, "only a shell expands"),
        ({"log.dirs": "/c,'/a b'"}, "quotes would belong"),
        ({"log.dirs": '"/a,/b"'}, "quotes would belong"),
        ({"log.dirs": "/a # on the large disk"}, "a comment needs a line of its own"),
        ({"num.partitions": "3 # three"}, "num.partitions=3 # three is not .*; a comment needs a line of its own"),
        ({"num.partitions": '"3"'}, "a value has no quotes"),
        ({"auto.create.topics.enable": '"true"'}, "a value has no quotes"),
        ({"log.dirs": "file:///a"}, "is a URL; write the path alone"),
        ({"num.partitions": "three"}, "num.partitions=three is not a whole number"),
        ({"log.retention.ms": "abc"}, "is not a whole number of 64 bits; it is unset by default"),
        ({"num.partitions": "0"}, "1 to 10000"),
        ({"num.io.threads": "many"}, "num.io.threads=many"),
        ({"process.roles": "broker"}, "name the controllers, as host:port, in controller.quorum.bootstrap.servers"),
        ({"controller.quorum.bootstrap.servers": "9093"}, "'9093' is not host:port"),
        ({"controller.quorum.bootstrap.servers": "a:9093,:9093"}, "':9093' names no host"),
        ({"controller.quorum.bootstrap.servers": "a:0"}, "names no port"),
        ({"controller.quorum.auto.join.enable": "true"}, "voters do not change"),
        ({"metadata.log.dir": "~/metadata"}, "metadata.log.dir names ~/metadata, which only a shell expands"),
        ({"broker.id": "2", "node.id": "3"}, "differ"),
        ({"controller.quorum.voters": "1@a:1,2@b:2"}, "format each node by `duramen cluster init`"),
        ({"authorizer.class.name": "org.example.Door"}, "access control"),
        ({"listeners": "SSL://127.0.0.1:9093"}, "would be SSL"),
        ({"listeners": "PLAINTEXT://127.0.0.1"}, "is not NAME://host:port"),
        ({"listeners": "A://h:1,B://h:1", "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"}, "port of its"),
        ({"listeners": "A://h:1,A://h:2", "listener.security.protocol.map": "A:PLAINTEXT"}, "name of its own"),
        ({"listeners": "INSIDE://h:1"}, "says nothing about listener INSIDE"),
        ({"listeners": "C://h:1", "controller.listener.names": "C"}, "no listener is left"),
        ({"listener.security.protocol.map": "A:TELEPATHY"}, "NAME:PROTOCOL"),
        ({"log.dirs": "/a,b,/a/"}, "log.dirs names /a twice"),
        ({"advertised.listeners": "OTHER://h:1"}, "no listener named OTHER"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "names no host"),
        ({"advertised.listeners": "PLAINTEXT://[0:0::0]:1"}, "names no host"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "nonroutable.*add advertised.listeners=PLAINTEXT://HOST:9092"),
        ({"listeners": "PLAINTEXT://[::]:9092"}, "nonroutable"),
        ({"advertised.listeners": ""}, "address for listener PLAINTEXT is missing"),
        ({"metrics.listener": "nine"}, "is not host:port"),
        ({"metrics.listener": "127.0.0.1:9092"}, "has the port of PLAINTEXT://127.0.0.1:9092 in listeners"),
        ({"metrics.listener": "localhost:9092"}, "has the port of"),
        ({"metrics.listener": ":9092"}, "has the port of"),
        ({"listeners": "PLAINTEXT://:9100", "metrics.listener": "127.0.0.1:9100"}, "has the port of"),
        ({"log.dirs": ""}, "names no directory"),
        ({"log.retention.ms": "0"}, "at least 1"),
        ({"log.roll.ms": "0"}, "log.roll.ms or log.roll.hours: 0 is out of bounds"),
        ({"log.roll.jitter.ms": "-1"}, "out of bounds"),
        ({"group.min.session.timeout.ms": "9", "group.max.session.timeout.ms": "8"}, "is above"),
        ({"duramen.journal.max.bytes": "1048576"}, "two parts"),
        ({"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"}, "is above"),
    ],
)
def test_mistakes_are_refused_with_a_remedy(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_broker_config(None, overrides)
    assert "\n" not in str(caught.value)


def test_keys_of_listeners_and_plugins_are_inert() -> None:
    config = load_broker_config(
        "listener.name.plaintext.ssl.keystore.location=/x\nrsm.config.bucket=b\nlistener.name.a.max.connections=5", {}
    )
    assert dict(config.inert) == {
        "listener.name.a.max.connections": "one value serves every listener",
        "listener.name.plaintext.ssl.keystore.location": "listeners are plain TCP in this release",
        "rsm.config.bucket": "there is no remote tier",
    }
    with pytest.raises(ConfigError, match="unknown broker setting"):
        load_broker_config("listener.name.plaintext.nonsense=1", {})


def test_keys_of_other_releases_and_vendors_are_passed_over() -> None:
    keys = ("zookeeper.connect", "super.users", "confluent.license", "inter.broker.protocol.version", "strimzi.x")
    config = load_broker_config("\n".join(f"{key}=1" for key in keys), {})
    assert [name for name, _ in config.inert] == sorted(keys)
    assert all(reason for _, reason in config.inert)


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_broker_config("num.partition=3\nzookeeper.connect=a\nlog.retention.huors=1\nnum.io.threads=many", {})
    assert [line.partition("=")[0].split(";")[0] for line in str(caught.value).splitlines()] == [
        "unknown broker setting num.partition",
        "unknown broker setting log.retention.huors",
        "num.io.threads",
    ]
    with pytest.raises(ConfigError) as caught:
        load_broker_config("broker.id=2\nnode.id=3\nlog.dirs=~/x\nmetrics.listener=nine", {})
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "authorizer.class.name=x\nprocess.roles=broker\ncontroller.quorum.voters=1@a:1,2@b:2",
            ["process.roles", "controller.quorum.voters", "authorizer.class.name"],
        ),
        (
            "num.partitons=1\nlisteners=SSL://h:1,A://h\nlog.dirs=~/a,'b'\nmetrics.listener=nonsense",
            ["unknown", "log.dirs", "log.dirs", "listeners", "metrics.listener"],
        ),
        ("listeners=SSL://h:1,X://h:2", ["listeners", "listener.security.protocol.map"]),
        ("listeners=SSL://h:1\nadvertised.listeners=h:1,i:2", ["listeners", "advertised.listeners", "advertised"]),
        ("listener.security.protocol.map=A:B,C:D", ["listener.security.protocol.map"] * 2),
        ("log.retention.ms=0\nlog.roll.ms=0", ["log.retention.ms", "log.roll.ms"]),
        (
            "group.min.session.timeout.ms=9\ngroup.max.session.timeout.ms=8\nduramen.journal.max.bytes=1048576",
            ["group.min.session.timeout.ms", "duramen.journal.part.bytes"],
        ),
        # What only follows from a value that cannot be read is no mistake of its own.
        ("node.id=x\nbroker.id=5\ncontroller.quorum.voters=5@a:1", ["node.id"]),
        ("duramen.journal.part.bytes=many\nduramen.journal.max.bytes=1048576", ["duramen.journal.part.bytes"]),
    ],
)
def test_a_mistake_hides_no_other_one(text: str, told: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_broker_config(text)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(told), lines
    unmatched = list(told)
    for line in lines:
        unmatched.remove(next(begin for begin in unmatched if line.startswith(begin)))


def test_a_path_that_begins_with_a_dot_is_what_it_says() -> None:
    assert load_broker_config("log.dirs=./~x,/a/~b").strings("log.dirs") == ["./~x", "/a/~b"]


def test_dynamic_layers() -> None:
    static = load_broker_config("message.max.bytes=2000", {})
    default = static.with_dynamic({"message.max.bytes": "3000"}, cluster_default=True)
    own = default.with_dynamic({"message.max.bytes": "4000"})
    assert [c.get("message.max.bytes") for c in (static, default, own)] == [2000, 3000, 4000]
    assert [c.source("message.max.bytes") for c in (static, default, own)] == [
        "static",
        "dynamic-default",
        "dynamic-broker",
    ]
    assert own.with_dynamic({}).get("message.max.bytes") == 3000
    assert own.with_dynamic({}).with_dynamic({}, cluster_default=True).get("message.max.bytes") == 2000


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num.partitions", "2", "restart"),
        ("num.io.threads", "2", "no effect"),
        ("message.max.bytes", "x", "whole number"),
        ("nonsense", "x", "unknown"),
        ("log.retention.ms", "0", "at least 1"),
    ],
)
def test_what_cannot_change_dynamically(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate_broker_config(name, value)


def test_what_another_server_stored_is_left_out() -> None:
    stored = {"num.partitions": "9", "num.io.threads": "9", "gone.since": "x", "message.max.bytes": "9"}
    config = load_broker_config(None, {}).with_dynamic(stored)
    assert config.get("num.partitions") == 1
    assert config.get("message.max.bytes") == 9
    assert config.source("num.io.threads") == "default"


def test_what_a_stored_setting_overrules_is_told() -> None:
    config = load_broker_config("message.max.bytes=2000\nmin.insync.replicas=2\nlog.retention.ms=5\nbroker.id=-1")
    assert config.overruled == []
    changed = config.with_dynamic({"min.insync.replicas": "1", "message.max.bytes": " 2000 "}, cluster_default=True)
    changed = changed.with_dynamic({"log.retention.ms": "7", "log.retention.bytes": "9"})
    assert changed.overruled == [("log.retention.ms", "7"), ("min.insync.replicas", "1")]


def test_good_dynamic_changes() -> None:
    validate_broker_config("message.max.bytes", "5")
    validate_broker_config("message.max.bytes", None)
    validate_broker_config("log.retention.ms", "-1")


def test_listener_syntax() -> None:
    assert parse_listener("k", "plaintext://[::1]:9092") == ("PLAINTEXT", "::1", 9092)
    assert str(parse_listener("k", "A://[::1]:9092")) == "A://[::1]:9092"
    assert parse_host_port("k", "127.0.0.1:0") == ("127.0.0.1", 0)
    for text in ("A://h:65536", "A://h:99999", "A://h:1234567"):
        with pytest.raises(ConfigError, match=f"'{text}' has a port above 65535$"):
            parse_listener("k", text)
    with pytest.raises(ConfigError, match=r"'h:70000' has a port above 65535$"):
        parse_host_port("k", "h:70000")
    for text in ("A://::1:9092", "A://h:", "://h:1", "A://h:1/x"):
        with pytest.raises(ConfigError, match="NAME://host:port"):
            parse_listener("k", text)


def test_typed_getters_refuse_the_wrong_type() -> None:
    config = load_broker_config(None, {})
    assert config.integer("num.partitions") == 1
    assert config.boolean("auto.create.topics.enable") is True
    assert config.string("broker.rack") == ""
    assert config.strings("advertised.listeners") == []
    for getter, name in (
        (config.integer, "log.retention.ms"),
        (config.boolean, "node.id"),
        (config.string, "log.dirs"),
        (config.strings, "node.id"),
    ):
        with pytest.raises(ConfigError, match=name):
            getter(name)
    with pytest.raises(ConfigError, match="unknown"):
        config.get("nonsense")
    with pytest.raises(ConfigError, match="unknown"):
        config.source("nonsense")


def test_importing_loads_nothing_of_the_engine() -> None:
    code = "import sys, duramen.config; print(*(name for name in sys.modules if name.startswith('duramen.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert loaded - {"errors", "model", "version"} == {"config"}


def test_settings_are_sorted() -> None:
    assert list(SETTINGS) == sorted(SETTINGS)


@pytest.mark.parametrize(
    "name", ["num.partitions", "offsets.topic.num.partitions", "duramen.sink.topic.num.partitions"]
)
def test_no_topic_is_to_be_made_with_more_partitions_than_one_request_may_ask_for(name: str) -> None:
    assert load_broker_config(None, {name: "10000"}).get(name) == 10_000
    with pytest.raises(ConfigError, match=f"{name}=100000000 is out of bounds; it must be 1 to 10000"):
        load_broker_config(None, {name: "100000000"})


def test_the_metadata_log_has_a_directory_of_its_own_where_one_is_named() -> None:
    data = {"log.dirs": "/a,/b"}
    assert load_broker_config(None, data).metadata_directory == "/a"
    assert load_broker_config(None, data).directories == ["/a", "/b"]
    assert load_broker_config(None, data | {"metadata.log.dir": "/b/"}).directories == ["/a", "/b"]
    assert load_broker_config(None, data | {"metadata.log.dir": "/m"}).directories == ["/a", "/b", "/m"]


def test_a_node_of_a_single_role_names_the_controllers() -> None:
    config = load_broker_config(
        None, {"process.roles": "broker", "controller.quorum.bootstrap.servers": "one:9093,[::1]:9093"}
    )
    assert config.strings("process.roles") == ["broker"]


def test_a_node_has_a_role() -> None:
    with pytest.raises(ConfigError, match=r"process\.roles must name broker, controller or both"):
        load_broker_config(None, {"process.roles": ""})


def test_brokers_reach_each_other_on_one_listener() -> None:
    listeners = (
        "listeners=PLAINTEXT://h:1,INSIDE://h:2\nlistener.security.protocol.map=PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT"
    )
    assert load_broker_config(listeners, {}).inter_broker_listener == "PLAINTEXT"
    named = load_broker_config(f"{listeners}\ninter.broker.listener.name=inside", {})
    assert named.inter_broker_listener == "INSIDE"
    with pytest.raises(ConfigError, match="OTHER is none of the listeners"):
        load_broker_config(f"{listeners}\ninter.broker.listener.name=OTHER", {})
