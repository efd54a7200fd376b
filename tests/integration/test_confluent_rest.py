"""Confluent's REST API on a real gateway: topics, records in concatenated JSON, and a node that is killed meanwhile."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.worlds.served_gateway import HttpAnswer, ServedGateway, head_from, report_lines, request
from tests.worlds.served_node import Served
from tests.worlds.topic_contents import create, stored

JSON = "application/json"


@pytest.fixture(scope="module")
def gateway(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    found = ServedGateway(tmp_path_factory.mktemp("rest"), served.bootstrap, {"gateway.body.max.bytes": "3000"})
    found.start()
    yield found
    found.kill()


@pytest.fixture(scope="module")
def cluster(gateway: ServedGateway) -> str:
    """The path of the cluster."""
    (found,) = gateway.ask("GET", "/v3/clusters").json()["data"]
    return found["metadata"]["self"].removeprefix("http://localhost")


def error_of(answer: HttpAnswer) -> tuple[int, int]:
    assert answer.headers["content-type"] == JSON, answer
    return answer.status, answer.json()["error_code"]


def test_topics(gateway: ServedGateway, cluster: str) -> None:
    def post(path: str, body: Any, method: str = "POST") -> HttpAnswer:
        return gateway.ask(method, cluster + path, json.dumps(body).encode(), content_type=JSON)

    wanted = {"topic_name": "rest.made", "partitions_count": 2, "configs": [{"name": "retention.ms", "value": "-1"}]}
    made = post("/topics", wanted)
    assert made.status == 201
    topic = made.json()
    assert (topic["kind"], topic["partitions_count"], topic["replication_factor"]) == ("KafkaTopic", 2, 1)
    assert topic["metadata"]["self"] == f"http://localhost{cluster}/topics/rest.made"
    assert gateway.ask("GET", f"{cluster}/topics/rest.made").json() == topic
    assert topic in gateway.ask("GET", f"{cluster}/topics").json()["data"]
    assert error_of(post("/topics", wanted)) == (400, 40002)
    assert error_of(post("/topics", {"topic_name": "a/b"})) == (400, 40002)
    assert error_of(post("/topics", {"topic": "a"})) == (400, 400)
    assert post("/topics", {"topic_name": "rest.checked", "validate_only": True}).status == 201
    assert error_of(gateway.ask("GET", f"{cluster}/topics/rest.checked")) == (404, 40403)
    assert post("/topics/rest.made", {"partitions_count": 3}, "PATCH").json()["partitions_count"] == 3
    assert error_of(post("/topics/rest.made", {"partitions_count": 3}, "PATCH")) == (400, 40002)
    partitions = gateway.ask("GET", f"{cluster}/topics/rest.made/partitions").json()["data"]
    assert [each["partition_id"] for each in partitions] == [0, 1, 2]
    leader = gateway.ask("GET", partitions[2]["leader"]["related"].removeprefix("http://localhost")).json()
    assert (leader["kind"], leader["is_leader"], leader["is_in_sync"]) == ("KafkaReplica", True, True)
    replicas = gateway.ask("GET", partitions[2]["replicas"]["related"].removeprefix("http://localhost")).json()
    assert replicas["data"] == [leader]
    broker = gateway.ask("GET", leader["broker"]["related"].removeprefix("http://localhost")).json()
    assert gateway.ask("GET", f"{cluster}/brokers").json()["data"] == [broker]
    assert leader in gateway.ask("GET", f"{cluster}/brokers/{broker['broker_id']}/partition-replicas").json()["data"]
    for path in ("/topics/rest.made/partitions/3", "/topics/rest.made/partitions/x", "/topics/none/partitions"):
        assert error_of(gateway.ask("GET", cluster + path)) == (404, 40403)
    for path in (f"{cluster}/brokers/77", "/v3/clusters/another/topics", "/v3/nothing"):
        assert error_of(gateway.ask("GET", path)) == (404, 404)
    assert error_of(gateway.ask("PUT", f"{cluster}/topics")) == (405, 405)
    assert error_of(gateway.ask("GET", cluster, host="elsewhere")) == (421, 421)
    assert gateway.ask("DELETE", f"{cluster}/topics/rest.made").status == 204
    assert error_of(gateway.ask("DELETE", f"{cluster}/topics/rest.made")) == (404, 40403)


def test_settings(gateway: ServedGateway, cluster: str, served: Served) -> None:
    create(served.bootstrap, "rest.settings", 1)

    def change(method: str, path: str, body: Any = None) -> HttpAnswer:
        sent = b"" if body is None else json.dumps(body).encode()
        return gateway.ask(method, cluster + path, sent, content_type=JSON)

    def value(path: str) -> tuple[str | None, str]:
        found = gateway.ask("GET", cluster + path).json()
        assert found["metadata"]["self"] == f"http://localhost{cluster}{path}"
        return found["value"], found["source"]

    (broker,) = gateway.ask("GET", f"{cluster}/brokers").json()["data"]
    node = broker["broker_id"]
    topic = "/topics/rest.settings/configs"
    for path, name, source in (
        (topic, "retention.bytes", "DYNAMIC_TOPIC_CONFIG"),
        (f"/brokers/{node}/configs", "log.retention.bytes", "DYNAMIC_BROKER_CONFIG"),
        ("/broker-configs", "log.retention.bytes", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
    ):
        assert change("PUT", f"{path}/{name}", {"value": "123456789"}).status == 204
        assert value(f"{path}/{name}") == ("123456789", source)
        assert name in {each["name"] for each in gateway.ask("GET", cluster + path).json()["data"]}
        assert change("DELETE", f"{path}/{name}").status == 204
        changes = [{"name": name, "value": "1", "operation": "SET"}]
        assert change("POST", f"{path}:alter", {"data": changes, "validate_only": True}).status == 204
    assert value(f"{topic}/retention.bytes") == ("-1", "DEFAULT_CONFIG")
    both = [{"name": "retention.bytes", "value": "5"}, {"name": "cleanup.policy", "operation": "DELETE"}]
    assert change("POST", f"{topic}:alter", {"data": both}).status == 204
    assert value(f"{topic}/retention.bytes")[0] == "5"
    assert error_of(change("POST", f"{topic}:alter", {"data": both * 2})) == (400, 400)
    assert error_of(change("POST", f"{topic}:alter", {"data": [{"name": "retention.bytes"}]})) == (400, 400)
    assert error_of(change("PUT", f"{topic}/retention.bytes", {"value": "x"})) == (400, 40002)
    for method in ("PUT", "DELETE", "GET"):
        assert error_of(change(method, f"{topic}/nothing", {"value": "1"})) == (404, 404)
    assert error_of(gateway.ask("GET", f"{cluster}/topics/none/configs")) == (404, 40403)
    assert error_of(gateway.ask("GET", f"{cluster}/brokers/77/configs")) == (404, 404)
    everything = gateway.ask("GET", f"{cluster}/topics/-/configs").json()["data"]
    assert {"rest.settings"} <= {each["topic_name"] for each in everything}
    assert {each["broker_id"] for each in gateway.ask("GET", f"{cluster}/brokers/-/configs").json()["data"]} == {node}
    for path in ("/topics/-/partitions/-/reassignment", "/topics/rest.settings/partitions/-/reassignment"):
        assert gateway.ask("GET", cluster + path).json()["data"] == []
    assert error_of(gateway.ask("GET", f"{cluster}/topics/rest.settings/partitions/0/reassignment")) == (404, 404)
    assert error_of(gateway.ask("GET", f"{cluster}/acls")) == (400, 40002)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups(gateway: ServedGateway, cluster: str, served: Served, protocol: str) -> None:
    topic, group = f"rest.{protocol}", f"rest {protocol}"
    create(served.bootstrap, topic, 2)
    body = b"".join(b'{"partition_id": %d}' % number for number in (0, 0, 0, 1))
    assert gateway.ask("POST", f"{cluster}/topics/{topic}/records", body, content_type=JSON).status == 200
    path = f"{cluster}/consumer-groups/rest%20{protocol}"
    assert error_of(gateway.ask("GET", path)) == (404, 404)
    consumer = Consumer(
        {
            "bootstrap.servers": served.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        until = time.monotonic() + 20
        while consumer.poll(0.1) is None:
            assert time.monotonic() < until
        consumer.commit(offsets=[TopicPartition(topic, 0, 1), TopicPartition(topic, 1, 1)], asynchronous=False)
        found = gateway.ask("GET", path).json()
        assert (found["consumer_group_id"], found["state"], found["is_simple"]) == (group, "STABLE", False)
        assert found in gateway.ask("GET", f"{cluster}/consumer-groups").json()["data"]
        (member,) = gateway.ask("GET", f"{path}/consumers").json()["data"]
        assert member["client_id"] == "reader"
        one = f"{path}/consumers/{member['consumer_id']}"
        assert gateway.ask("GET", one).json() == member
        assigned = gateway.ask("GET", f"{one}/assignments").json()["data"]
        assert [(each["topic_name"], each["partition_id"]) for each in assigned] == [(topic, 0), (topic, 1)]
        assert gateway.ask("GET", f"{one}/assignments/{topic}/partitions/1").json() == assigned[1]
        lag = gateway.ask("GET", assigned[0]["lag"]["related"].removeprefix("http://localhost")).json()
        assert (lag["current_offset"], lag["log_end_offset"], lag["lag"]) == (1, 3, 2)
        assert lag["consumer_id"] == member["consumer_id"]
        lags = gateway.ask("GET", f"{path}/lags").json()["data"]
        assert [each["lag"] for each in lags] == [2, 0]
        summary = gateway.ask("GET", f"{path}/lag-summary").json()
        assert (summary["max_lag"], summary["total_lag"], summary["max_lag_partition_id"]) == (2, 2, 0)
        for sub in ("", "/assignments", f"/assignments/{topic}/partitions/0"):  # ids are base64, slashes and all
            missing = gateway.ask("GET", f"{path}/consumers/a%2Fb{sub}")
            assert error_of(missing) == (404, 404)
            assert missing.json()["message"] == "Consumer a/b cannot be found."
        assert error_of(gateway.ask("GET", f"{path}/lags/{topic}/partitions/5")) == (404, 40403)
    finally:
        consumer.close()
    assert gateway.ask("GET", f"{path}/lags").json()["data"][0]["consumer_id"] == ""


def test_records_of_a_known_length(gateway: ServedGateway, cluster: str, served: Served) -> None:
    create(served.bootstrap, "rest.records", 2)
    path = f"{cluster}/topics/rest.records/records"

    def post(body: bytes, **headers: str) -> HttpAnswer:
        return gateway.ask("POST", path, body, **{"content_type": JSON, **headers})

    one = b'{"partition_id": 1, "key": {"type": "STRING", "data": "k"}, "value": {"type": "JSON", "data": {"n": 1.10}}}'
    report = post(one).json()
    assert (report["error_code"], report["partition_id"], report["offset"]) == (200, 1, 0)
    assert report["value"] == {"type": "JSON", "size": 11}
    assert stored(served.bootstrap, "rest.records", 1) == [(b"k", b'{"n": 1.10}')]
    assert error_of(post(b'{"partition_id": 2}')) == (404, 40403)
    assert error_of(post(b'{"value": {"type": "AVRO", "data": 1}}')) == (422, 422)
    assert error_of(post(b'{"value": {"type": "JSON", "data": 1}')) == (400, 400)
    assert error_of(post(b"")) == (400, 400)
    assert error_of(post(b"{}", content_type="application/x-www-form-urlencoded")) == (415, 415)
    assert error_of(post(b'{"value": {"type": "STRING", "data": "%s"}}' % (b"x" * 3001))) == (413, 413)
    assert error_of(gateway.ask("POST", f"{cluster}/topics/none/records", one, content_type=JSON)) == (404, 40403)
    create(served.bootstrap, "rest.compacted", 1, cleanup_policy="compact")
    keyless = gateway.ask("POST", f"{cluster}/topics/rest.compacted/records", b"{}", content_type=JSON)
    assert error_of(keyless) == (400, 40002)
    many = post(b'{"partition_id": 0}\n{"partition_id": 7} {"key": 1}{"partition_id": 0}')
    assert many.status == 200
    reports = [json.loads(line) for line in many.body.splitlines()]
    assert [(each["error_code"], each.get("offset")) for each in reports] == [
        (200, 0), (40403, None), (400, None), (200, 1),
    ]  # fmt: skip
    assert "record 3" in reports[2]["message"]


def test_reports_come_while_the_body_still_comes(gateway: ServedGateway, cluster: str, served: Served) -> None:
    create(served.bootstrap, "rest.chunks", 1)
    with gateway.connect() as connection, connection.makefile("rb") as file:
        connection.sendall(chunked_head(f"{cluster}/topics/rest.chunks/records"))
        connection.sendall(chunk(b'{"value": {"type": "STRING", "data": "a"}}{"value": {"ty'))
        assert head_from(file)[0] == 200
        lines = report_lines(file)
        assert next(lines)["offset"] == 0
        connection.sendall(chunk(b'pe": "STRING", "data": "b"}}'))
        assert next(lines)["offset"] == 1
        connection.sendall(chunk(b"nonsense"))
        assert next(lines)["error_code"] == 400
        assert list(lines) == []
    assert [value for _, value in stored(served.bootstrap, "rest.chunks", 0)] == [b"a", b"b"]


def test_version_2(gateway: ServedGateway, served: Served) -> None:
    v2, as_json = "application/vnd.kafka.v2+json", "application/vnd.kafka.json.v2+json"
    create(served.bootstrap, "rest.old", 2, retention_ms="-1")

    def post(path: str, body: bytes, content_type: str = as_json) -> HttpAnswer:
        return gateway.ask("POST", f"/topics/{path}", body, content_type=content_type)

    def refused(answer: HttpAnswer) -> tuple[int, int]:
        assert answer.headers["content-type"] == v2
        return answer.status, answer.json()["error_code"]

    assert "rest.old" in gateway.ask("GET", "/topics").json()
    topic = gateway.ask("GET", "/topics/rest.old").json()
    assert (topic["name"], topic["configs"]["retention.ms"]) == ("rest.old", "-1")
    assert topic["partitions"] == gateway.ask("GET", "/topics/rest.old/partitions").json()
    one = gateway.ask("GET", "/topics/rest.old/partitions/1", accept="application/json")
    assert one.headers["content-type"] == "application/json"
    assert one.json() == topic["partitions"][1]
    (replica,) = one.json()["replicas"]
    assert replica == {"broker": one.json()["leader"], "leader": True, "in_sync": True}
    assert gateway.ask("GET", "/brokers").json() == {"brokers": [replica["broker"]]}
    answer = post("rest.old", b'{"records": [{"value": {"n": 1.10}, "partition": 1}, {"key": "k", "value": [2]}]}')
    assert (answer.status, answer.headers["content-type"]) == (200, v2)
    first, second = answer.json()["offsets"]
    assert first == {"partition": 1, "offset": 0, "error_code": None, "error": None}
    assert (b'"k"', b"[2]") in stored(served.bootstrap, "rest.old", second["partition"])
    binary = post("rest.old/partitions/0", b'{"records": [{"value": "AP8="}]}', "application/vnd.kafka.binary.v2+json")
    assert (None, b"\x00\xff") in stored(served.bootstrap, "rest.old", binary.json()["offsets"][0]["partition"])
    (wrong,) = post("rest.old", b'{"records": [{"value": 1, "partition": 2}]}').json()["offsets"]
    assert (wrong["error_code"], wrong["offset"]) == (1, None)
    ends = gateway.ask("GET", "/topics/rest.old/partitions/1/offsets").json()
    assert ends == {"beginning_offset": 0, "end_offset": 1 + (second["partition"] == 1)}
    assert refused(gateway.ask("GET", "/topics/none")) == (404, 40401)
    assert refused(gateway.ask("GET", "/topics/none/partitions/0")) == (404, 40401)
    assert refused(gateway.ask("GET", "/topics/rest.old/partitions/2/offsets")) == (404, 40402)
    assert refused(post("none", b'{"records": [{"value": 1}]}')) == (404, 40401)
    assert refused(post("rest.old/partitions/2", b'{"records": [{"value": 1}]}')) == (404, 40402)
    assert refused(post("rest.old", b"{")) == (400, 400)
    assert refused(post("rest.old", b'{"records": []}', "application/vnd.kafka.avro.v2+json")) == (415, 415)
    assert refused(gateway.ask("GET", "/topics", accept="text/html")) == (406, 406)
    assert refused(gateway.ask("DELETE", "/topics/rest.old")) == (405, 405)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_page_does_what_it_says(gateway: ServedGateway) -> None:
    page = (Path(__file__).parents[2] / "docs/rest.md").read_text()
    blocks = [block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "curl" in block]
    script = (
        "\n".join(blocks)
        .replace("http://127.0.0.1:8082", gateway.url)
        .replace("orders", "page-orders")
        .replace("curl ", "curl -sS ")
    )
    ran = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "error_code" not in re.sub(r'"error_code":(200|null),', "", ran.stdout)
    assert ran.stdout.count('"error_code":null,') == 2
    assert ran.stdout.count('"error_code":200,') == 3
    assert '"partitions_count":4' in ran.stdout
    assert ran.stdout.count('[{"topic":"page-orders","key":') == 2  # both consumers are answered records


def test_a_node_is_killed_while_records_stream(tmp_path: Path) -> None:
    node = Served(tmp_path)
    node.start()
    gateway = ServedGateway(tmp_path, node.bootstrap)
    gateway.start()
    create(node.bootstrap, "streamed", 2)
    (cluster,) = gateway.ask("GET", "/v3/clusters").json()["data"]
    reported: list[list[dict[str, Any]]] = [[] for _ in range(4)]
    sent = [0] * 4
    stop = threading.Event()

    def stream(writer: int) -> None:
        with gateway.connect() as connection, connection.makefile("rb") as file:
            connection.sendall(chunked_head(f"/v3/clusters/{cluster['cluster_id']}/topics/streamed/records"))
            assert head_from(file)[0] == 200
            reading = threading.Thread(target=lambda: reported[writer].extend(report_lines(file)))
            reading.start()
            while not stop.is_set():
                numbers = range(sent[writer], sent[writer] + 5)
                value = b'{"key": {"type": "JSON", "data": %d}, "value": {"type": "JSON", "data": [%d, %d]}}'
                connection.sendall(chunk(b"".join(value % (writer, writer, number) for number in numbers)))
                sent[writer] += 5
                time.sleep(0.005)
            connection.sendall(b"0\r\n\r\n")
            reading.join()

    writers = [threading.Thread(target=stream, args=(writer,)) for writer in range(4)]
    try:
        for thread in writers:
            thread.start()
        until(lambda: min(sent) > 100)
        node.kill()
        node.start()
        until(lambda: min(sent) > 200)
        stop.set()
        for thread in writers:
            thread.join()
        found = [
            tuple(json.loads(value or b""))
            for place in range(2)
            for _, value in stored(node.bootstrap, "streamed", place)
        ]
        assert [[each["error_code"] for each in reports] for reports in reported] == [[200] * each for each in sent]
        assert Counter(found) == {(writer, number): 1 for writer in range(4) for number in range(sent[writer])}
        for writer in range(4):
            assert [number for who, number in found if who == writer] == list(range(sent[writer]))
    finally:
        stop.set()
        gateway.kill()
        node.kill()


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)


def chunked_head(path: str) -> bytes:
    head = request("POST", path, content_type=JSON, transfer_encoding="chunked")
    return head.replace(b"content-length: 0\r\n", b"")


def chunk(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part)
