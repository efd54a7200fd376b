"""Consumers of version 2 of Confluent's REST API on real gateways."""

from __future__ import annotations

import copy
import json
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tests.integration.test_gateway_logins import make_certificate
from tests.worlds.served_gateway import HttpAnswer, ServedGateway, request
from tests.worlds.served_node import Served
from tests.worlds.topic_contents import create

from duramen.gateway.access.principal import parse_permission
from duramen.gateway.access.token_lines import fresh_token, token_line

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")

V2 = "application/vnd.kafka.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json"
AS_JSON = "application/vnd.kafka.json.v2+json"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A node whose groups hand partitions over quickly."""
    settings = {
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "100",
    }
    found = Served(tmp_path_factory.mktemp("rest-consumers"), settings)
    found.start()
    yield found
    found.kill()


class GuardedGateway(ServedGateway):
    """A gateway with TLS and tokens. Requests have alice's where they name none."""

    tokens: ClassVar = {name: fresh_token() for name in ("alice", "bob", "carol")}
    rights: ClassVar = {"alice": ["admin=*"], "bob": ["admin=*"], "carol": ["admin=carols"]}

    def __init__(self, folder: Path, bootstrap: str, certificate: dict[str, str], **settings: str) -> None:
        lines = [
            token_line(name, token, [parse_permission(each) for each in self.rights[name]])
            for name, token in self.tokens.items()
        ]
        (folder / "tokens").write_text("\n".join(lines))
        own = {"gateway.tokens.file": str(folder / "tokens"), "gateway.tls.ca": certificate["gateway.tls.certificate"]}
        super().__init__(folder, bootstrap, {**certificate, **own, **settings})
        self.url = f"https://127.0.0.1:{self.port}"
        self.context = ssl.create_default_context(cafile=certificate["gateway.tls.certificate"])

    def connect(self) -> socket.socket:
        return self.context.wrap_socket(super().connect(), server_hostname="localhost")

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> HttpAnswer:
        return super().ask(method, path, body, **{"authorization": f"Bearer {self.tokens['alice']}", **headers})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def pair(
    served: Served, certificate: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServedGateway, ServedGateway]]:
    """Two gateways of one cluster; the second one holds few consumers, and not for long."""
    few = {"gateway.consumers.max": "3", "gateway.consumer.idle.ms": "1500"}
    first, second = (
        GuardedGateway(tmp_path_factory.mktemp("gateway"), served.bootstrap, certificate, **settings)
        for settings in ({}, few)
    )
    with ThreadPoolExecutor() as pool:
        list(pool.map(GuardedGateway.start, (first, second)))
    yield first, second
    for each in (first, second):
        assert not [token for token in each.tokens.values() if token in each.log()]
        each.kill()


@pytest.fixture
def gateway(pair: tuple[ServedGateway, ServedGateway]) -> ServedGateway:
    return pair[0]


@pytest.fixture
def other(pair: tuple[ServedGateway, ServedGateway]) -> ServedGateway:
    return pair[1]


class RestConsumer:
    """One consumer, as a client of the API has it."""

    def __init__(self, gateway: ServedGateway, group: str, **settings: Any) -> None:
        self.gateway = gateway
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.path = f"/consumers/{group}"
        made = self.post("", self.settings)
        assert (made.status, made.headers["content-type"]) == (200, V2), made
        self.path += f"/instances/{quote(made.json()['instance_id'])}"
        assert made.json()["base_uri"] == f"https://localhost{self.path}"

    def post(self, path: str, body: Any = None) -> HttpAnswer:
        sent = b"" if body is None else json.dumps(body).encode()
        return self.gateway.ask("POST", self.path + path, sent, content_type=V2)

    def get(self, path: str, body: Any = None, **headers: str) -> HttpAnswer:
        sent = b"" if body is None else json.dumps(body).encode()
        return self.gateway.ask("GET", self.path + path, sent, **headers)

    def told(self, path: str, body: Any = None) -> None:
        answer = self.post(path, body)
        assert (answer.status, answer.body) == (204, b""), answer

    def records(self, query: str = "?timeout=5000") -> list[dict[str, Any]]:
        answer = self.get(f"/records{query}")
        assert answer.status == 200, answer
        found: list[dict[str, Any]] = answer.json()
        return found

    def places(self, query: str = "?timeout=5000") -> list[tuple[int, int]]:
        return [(each["partition"], each["offset"]) for each in self.records(query)]

    def committed(self, *partitions: dict[str, Any]) -> list[tuple[int, int, str]]:
        found = self.get("/offsets", {"partitions": partitions} if partitions else None, content_type=V2).json()
        return [(each["partition"], each["offset"], each["metadata"]) for each in found["offsets"]]

    def end(self) -> HttpAnswer:
        return self.gateway.ask("DELETE", self.path)


ALICE = f"Bearer {GuardedGateway.tokens['alice']}"


def of(topic: str, *partitions: int) -> dict[str, Any]:
    return {"partitions": [{"topic": topic, "partition": each} for each in partitions]}


def at(topic: str, **offsets: int) -> dict[str, Any]:
    return {"offsets": [{"topic": topic, "partition": int(p[1:]), "offset": o} for p, o in offsets.items()]}


def refused(answer: HttpAnswer) -> tuple[int, int]:
    assert answer.headers["content-type"] == V2, answer
    return answer.status, answer.json()["error_code"]


def produce(bootstrap: str, topic: str, values: dict[int, list[bytes]], transactional_id: str = "") -> None:
    settings = {"bootstrap.servers": bootstrap, **({"transactional.id": transactional_id} if transactional_id else {})}
    producer = Producer(settings)
    if transactional_id:
        producer.init_transactions()
        producer.begin_transaction()
    for partition, each in values.items():
        for value in each:
            producer.produce(topic, value, partition=partition)
    producer.flush()
    if transactional_id:
        producer.abort_transaction()


def test_partitions_that_are_assigned(gateway: ServedGateway, served: Served) -> None:
    topic = "manual"
    create(served.bootstrap, topic, 2)
    produce(served.bootstrap, topic, {0: [b"%d" % n for n in range(5)], 1: [b"\xff"]})
    produce(served.bootstrap, topic, {0: [b"no"]}, "manual-aborted")
    settings = {"auto_offset_reset": "earliest", "auto_commit_enable": "false"}
    consumer = RestConsumer(gateway, "manual", name="m", **settings)
    again = {"name": "m"}
    assert refused(gateway.ask("POST", "/consumers/manual", json.dumps(again).encode())) == (409, 40902)
    assert consumer.records("?timeout=0") == []
    consumer.told("/assignments", of(topic, 0, 1))
    assert consumer.get("/assignments").json() == of(topic, 0, 1)
    answer = consumer.get("/records?timeout=5000&max_bytes=3", accept=BINARY)
    assert answer.headers["content-type"] == BINARY
    assert answer.json()[0] == {"topic": topic, "key": None, "value": "MA==", "partition": 0, "offset": 0}
    assert consumer.places("?max_bytes=1") == [(1, 0)]
    assert consumer.places() == [(0, 3), (0, 4)]
    began = time.monotonic()
    assert consumer.places("?timeout=200") == []
    assert time.monotonic() - began >= 0.2
    assert consumer.committed() == []
    consumer.told("/offsets")
    assert (1, 1, "") in consumer.committed()
    consumer.told("/offsets", {"offsets": [{"topic": topic, "partition": 0, "offset": 1, "metadata": "mine"}]})
    assert consumer.committed(*of(topic, 0)["partitions"]) == [(0, 2, "mine")]
    consumer.told("/positions", at(topic, p0=4))
    assert consumer.places() == [(0, 4)]
    consumer.told("/positions/beginning", of(topic, 0))
    assert len(consumer.places()) == 5
    consumer.told("/positions/end", of(topic, 0))
    assert consumer.places("?timeout=0") == []
    assert consumer.end().status == 204
    assert refused(consumer.end()) == (404, 40403)
    assert refused(consumer.get("/records")) == (404, 40403)
    other = RestConsumer(gateway, "manual", auto_offset_reset="latest")
    other.told("/assignments", of(topic, 0, 1))
    assert other.places() == [(0, 2), (0, 3), (0, 4)]
    assert other.committed() == [(0, 2, "mine"), (1, 1, "")]
    assert other.places("?timeout=0") == []
    assert other.committed(*of(topic, 0)["partitions"])[0][1] >= 5  # by the second read, of what the first answered
    assert other.end().status == 204


def test_what_is_answered_on_the_way_is_waited_for(gateway: ServedGateway, served: Served) -> None:
    create(served.bootstrap, "waited", 1)
    consumer = RestConsumer(gateway, "waited", format="json", auto_commit_enable=False)
    consumer.told("/assignments", of("waited", 0))
    with gateway.connect() as leaving:
        leaving.sendall(request("GET", f"{consumer.path}/records?timeout=20000", authorization=ALICE))
        time.sleep(0.1)
    later = threading.Timer(0.3, produce, (served.bootstrap, "waited", {0: [b'{"n": 1.10}']}))
    later.start()
    began = time.monotonic()
    (record,) = consumer.records("?timeout=20000")
    assert record["value"] == {"n": 1.1}
    assert time.monotonic() - began < 5
    later.join()
    produce(served.bootstrap, "waited", {0: [b"plain", b"2"]})
    wrong = consumer.get("/records", accept=AS_JSON)
    assert refused(wrong) == (500, 50002)
    assert "waited-0 at offset 1" in wrong.json()["message"]
    assert refused(consumer.get("/records")) == (500, 50002)
    consumer.told("/positions", at("waited", p0=2))
    assert [each["value"] for each in consumer.records()] == [2]


def test_what_is_refused(gateway: ServedGateway, served: Served) -> None:
    create(served.bootstrap, "refusing", 1)
    consumer = RestConsumer(gateway, "refusing", auto_offset_reset="none")
    wrong = b'{"auto.offset.reset": "never"}'
    assert refused(gateway.ask("POST", "/consumers/refusing", wrong, content_type=V2)) == (422, 42204)
    assert refused(gateway.ask("POST", "/consumers/refusing", b"{", content_type=V2)) == (400, 400)
    assert refused(gateway.ask("POST", "/consumers/refusing", b"{}", content_type="text/plain")) == (415, 415)
    unread = gateway.ask("POST", "/consumers/refusing", b'{"name": "unread"}', content_type=V2, accept="text/html")
    assert refused(unread) == (406, 406)
    assert refused(gateway.ask("DELETE", "/consumers/refusing/instances/unread")) == (404, 40403)
    assert refused(consumer.get("/records", accept=AS_JSON)) == (406, 40601)
    assert refused(consumer.get("/records", accept="text/html")) == (406, 406)
    assert refused(consumer.get("/records?timeout=x")) == (400, 400)
    both = {"partitions": [*of("refusing", 0)["partitions"], *of("nowhere", 0)["partitions"]]}
    unknown, beyond = (consumer.post("/assignments", body) for body in (both, of("refusing", 1)))
    assert refused(unknown) == (404, 40401)
    assert "no topic nowhere" in unknown.json()["message"]
    assert refused(beyond) == (404, 40402)
    assert "no partition 1 of topic refusing" in beyond.json()["message"]
    assert refused(consumer.post("/assignments", {"partitions": [{"topic": "refusing"}]})) == (400, 400)
    assert refused(consumer.post("/positions", at("refusing", p0=0))) == (404, 40402)
    consumer.told("/assignments", of("refusing", 0))
    assert refused(consumer.get("/records")) == (409, 40903)
    assert refused(consumer.post("/positions", at("refusing", p0=-1))) == (400, 400)
    consumer.told("/positions", at("refusing", p0=0))
    assert consumer.places("?timeout=0") == []
    assert gateway.ask("HEAD", f"{consumer.path}/records").status == 405
    assert refused(gateway.ask("PUT", f"{consumer.path}/offsets")) == (405, 405)


def test_a_topic_is_deleted_that_a_consumer_reads(gateway: ServedGateway, served: Served) -> None:
    for topic in ("deleted", "beside"):
        create(served.bootstrap, topic, 1)
        produce(served.bootstrap, topic, {0: [b"1"]})
    consumer = RestConsumer(gateway, "deleting", auto_offset_reset="earliest")
    consumer.told("/assignments", {"partitions": [*of("deleted", 0)["partitions"], *of("beside", 0)["partitions"]]})
    assert len(consumer.records("?timeout=5000")) == 2
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    admin.delete_topics(["deleted"])["deleted"].result()
    produce(served.bootstrap, "beside", {0: [b"2"]})
    assert [each["offset"] for each in consumer.records()] == [1]
    assert consumer.committed(*of("beside", 0)["partitions"]) == [(0, 1, "")]
    consumer.told("/assignments", of("beside", 0))
    assert consumer.end().status == 204
    assert refused(consumer.get("/records")) == (404, 40403)


def test_a_consumer_ends_whose_commits_are_refused(gateway: ServedGateway, served: Served) -> None:
    """A group with members takes none from elsewhere."""
    create(served.bootstrap, "mixed", 1)
    produce(served.bootstrap, "mixed", {0: [b"1"]})
    consumer, member = (RestConsumer(gateway, "mixing", auto_offset_reset="earliest") for _ in range(2))
    consumer.told("/assignments", of("mixed", 0))
    assert len(consumer.records()) == 1
    member.told("/subscription", {"topics": ["mixed"]})
    assert refused(consumer.get("/records")) == (500, 50002)
    assert consumer.end().status == 204
    assert refused(consumer.get("/records")) == (404, 40403)
    assert read(member, 1) == [(0, 0)]
    assert member.end().status == 204


def test_reads_in_front_of_its_end_wait_for_nothing(gateway: ServedGateway, served: Served) -> None:
    create(served.bootstrap, "ending", 1)
    consumer = RestConsumer(gateway, "ending")
    consumer.told("/assignments", of("ending", 0))
    answers: list[int] = []
    readers = [
        threading.Thread(target=lambda: answers.append(consumer.get("/records?timeout=30000").status)) for _ in range(2)
    ]
    for each in readers:
        each.start()
    time.sleep(0.3)
    start = time.monotonic()
    assert consumer.end().status == 204
    assert time.monotonic() - start < 15
    for each in readers:
        each.join()
    assert answers == [200, 200]


def test_a_subscription_is_shared_by_the_consumers_of_a_group(gateway: ServedGateway, served: Served) -> None:
    topic = "shared"
    create(served.bootstrap, topic, 2)
    first, second = (RestConsumer(gateway, topic, format="json", auto_offset_reset="earliest") for _ in range(2))
    first.told("/subscription", {"topics": [topic]})
    assert first.get("/subscription").json() == {"topics": [topic]}
    assert refused(first.post("/assignments", of(topic, 0))) == (409, 40903)
    wait_for(first, of(topic, 0, 1))
    produce(served.bootstrap, topic, {0: [b"1", b"2"], 1: [b"3"]})
    assert sorted(read(first, 3)) == [(0, 0), (0, 1), (1, 0)]
    assert first.records("?timeout=0") == []  # and what was answered is committed
    assert sorted(first.committed()) == [(0, 2, ""), (1, 1, "")]
    second.told("/subscription", {"topic_pattern": "share[d]"})
    until = time.monotonic() + 15
    while not (owned(first) and owned(second)):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert owned(first) | owned(second) == {0, 1}
    assert second.get("/subscription").json() == {"topics": [topic]}
    produce(served.bootstrap, topic, {0: [b"4"], 1: [b"5"]})
    theirs = {consumer: read(consumer, 1) for consumer in (first, second)}
    assert sorted(theirs[first] + theirs[second]) == [(0, 2), (1, 1)]
    (lost,) = owned(second)
    given = at(topic, **{f"p{lost}": 0})
    assert refused(first.post("/offsets", given)) == (500, 50002)
    assert second.end().status == 204  # which commits what it was answered
    wait_for(first, of(topic, 0, 1))
    assert first.places("?timeout=300") == []
    assert first.gateway.ask("DELETE", f"{first.path}/subscription").status == 204
    assert first.get("/assignments").json() == {"partitions": []}
    assert first.get("/subscription").json() == {"topics": []}
    assert refused(first.post("/subscription", {"topic_pattern": "("})) == (400, 40002)
    first.told("/assignments", of(topic, 0))
    assert refused(first.post("/subscription", {"topics": [topic]})) == (409, 40903)
    assert first.end().status == 204


def owned(consumer: RestConsumer) -> set[int]:
    return {each["partition"] for each in consumer.get("/assignments").json()["partitions"]}


def wait_for(consumer: RestConsumer, assignments: dict[str, Any]) -> None:
    until = time.monotonic() + 15
    while consumer.get("/assignments").json() != assignments:
        assert time.monotonic() < until
        time.sleep(0.05)


def read(consumer: RestConsumer, count: int) -> list[tuple[int, int]]:
    """So many records."""
    found: list[tuple[int, int]] = []
    until = time.monotonic() + 15
    while len(found) < count:
        assert time.monotonic() < until, found
        found += consumer.places("?timeout=1000")
    return found


def through(consumer: RestConsumer, gateway: ServedGateway) -> RestConsumer:
    """The same consumer, by another gateway."""
    found = copy.copy(consumer)
    found.gateway = gateway
    return found


def test_any_gateway_answers(gateway: ServedGateway, other: ServedGateway, served: Served) -> None:
    create(served.bootstrap, "anywhere", 1)
    here = RestConsumer(gateway, "any%20where", name="c\u00e4", format="json", auto_commit_enable="false")
    there = through(here, other)
    body = json.dumps({"name": "c\u00e4"}).encode()
    assert refused(other.ask("POST", "/consumers/any%20where", body, content_type=V2)) == (409, 40902)
    there.told("/assignments", of("anywhere", 0))
    assert here.get("/assignments").json() == of("anywhere", 0)
    with other.connect() as leaving:
        leaving.sendall(request("GET", f"{there.path}/records?timeout=20000", authorization=ALICE))
        time.sleep(0.1)
    produce(served.bootstrap, "anywhere", {0: [b'{"n": 1}', b"x", b"3"]})
    (record,) = there.records()
    assert (record["value"], record["offset"]) == ({"n": 1}, 0)
    assert refused(there.get("/records")) == (500, 50002)
    there.told("/positions", at("anywhere", p0=2))
    assert here.places() == [(0, 2)]
    there.told("/offsets")
    assert there.committed(*of("anywhere", 0)["partitions"]) == here.committed() == [(0, 3, "")]
    assert refused(there.get("/records", accept=BINARY)) == (406, 40601)
    # Who says that a request was sent on already gets it sent on to nobody.
    relayed = there.get("/assignments", duramen_relayed_to="another")
    assert refused(relayed) == (404, 40403)
    assert refused(here.get("/assignments", duramen_relayed_to="another")) == (404, 40403)
    assert there.get("/assignments").status == 200
    assert other.ask("HEAD", f"{there.path}/assignments").headers["content-type"] == V2
    assert b"\nduramen_gateway_consumers 0.0\n" not in gateway.ask("GET", "/metrics").body
    assert b"\nduramen_gateway_relayed_requests_total 0.0\n" not in other.ask("GET", "/metrics").body
    idle: list[HttpAnswer] = []
    reader = threading.Thread(target=lambda: idle.append(here.get("/records?timeout=20000")))
    reader.start()
    time.sleep(0.2)
    assert there.end().status == 204  # which the read lets in
    reader.join(10)
    assert (idle[0].status, idle[0].json()) == (200, [])
    assert refused(here.get("/assignments")) == (404, 40403)
    assert refused(there.get("/assignments")) == (404, 40403)


def test_a_consumer_is_used_by_who_made_it(gateway: ServedGateway, other: ServedGateway, served: Served) -> None:
    create(served.bootstrap, "alices", 1)
    bob, carol = (f"Bearer {GuardedGateway.tokens[name]}" for name in ("bob", "carol"))
    hers = RestConsumer(gateway, "carols")
    for each in (hers, through(hers, other)):
        assert refused(each.get("/assignments", authorization=bob)) == (403, 40301)
        assert refused(each.get("/assignments", authorization="Bearer x")) == (401, 40101)
    assert refused(gateway.ask("DELETE", hers.path, authorization=bob)) == (403, 40301)
    assert hers.end().status == 204
    made = other.ask("POST", "/consumers/carols", b'{"name": "c"}', authorization=carol, content_type=V2)
    assert made.status == 200
    for body, sub in ((of("alices", 0), "assignments"), ({"topics": ["alices"]}, "subscription")):
        path = f"/consumers/carols/instances/c/{sub}"
        answer = gateway.ask("POST", path, json.dumps(body).encode(), authorization=carol, content_type=V2)
        assert refused(answer) == (403, 40301)
    everything = b'{"topic_pattern": "alice."}'
    path = "/consumers/carols/instances/c"
    given = {"authorization": carol, "content_type": V2}
    assert gateway.ask("POST", f"{path}/subscription", everything, **given).status == 204
    until = time.monotonic() + 15
    while (answer := gateway.ask("GET", f"{path}/records?timeout=50", authorization=carol)).status == 200:
        assert time.monotonic() < until
    assert refused(answer) == (403, 40301)
    assert b"alices" not in answer.body
    for sub, empty in (("assignments", {"partitions": []}), ("subscription", {"topics": []})):
        assert gateway.ask("GET", f"{path}/{sub}", authorization=carol).json() == empty
    assert gateway.ask("DELETE", path, authorization=carol).status == 204
    own_topic = gateway.ask("POST", "/topics/_duramen_consumers", b'{"records": [{"value": ""}]}', content_type=BINARY)
    assert refused(own_topic) == (403, 40301)


def test_of_two_of_a_name_one_is_made(gateway: ServedGateway, other: ServedGateway) -> None:
    made: list[int] = []

    def make(at_which: ServedGateway) -> None:
        made.append(at_which.ask("POST", "/consumers/race", b'{"name": "one"}', content_type=V2).status)

    for _ in range(4):
        both = [threading.Thread(target=make, args=(each,)) for each in (gateway, other)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert sorted(made) == [200, 409]
        made.clear()
        assert gateway.ask("DELETE", "/consumers/race/instances/one").status == 204


def test_a_gateway_that_holds_consumers_is_killed(gateway: ServedGateway, other: ServedGateway, served: Served) -> None:
    create(served.bootstrap, "orphans", 1)
    produce(served.bootstrap, "orphans", {0: [b"1", b"2"]})
    dying = other
    settings = {"auto_offset_reset": "earliest", "auto_commit_enable": "false"}
    kept, again, later = (RestConsumer(dying, "orphans", name=name, **settings) for name in ("kept", "again", "later"))
    kept.told("/assignments", of("orphans", 0))
    assert through(kept, gateway).places("?max_bytes=1") == [(0, 0)]
    through(kept, gateway).told("/offsets")
    waiting: list[HttpAnswer] = []
    through(kept, gateway).told("/positions/end", of("orphans", 0))
    wait = threading.Thread(target=lambda: waiting.append(through(kept, gateway).get("/records?timeout=20000")))
    wait.start()
    time.sleep(0.3)
    dying.kill()
    wait.join(10)
    assert refused(waiting[0]) in ((503, 50003), (404, 40403))  # it was under way, or came to nobody
    assert refused(through(kept, gateway).get("/records")) == (404, 40403)
    assert refused(gateway.ask("POST", "/consumers/orphans", b"{}", content_type="text/plain")) == (415, 415)
    taken_over = RestConsumer(gateway, "orphans", name="kept", **settings)
    taken_over.told("/assignments", of("orphans", 0))
    assert taken_over.places() == [(0, 1)]
    RestConsumer(gateway, "orphans", name="again", **settings)
    dying.start()  # at the same address, and knows nothing
    assert refused(through(later, gateway).get("/records")) == (404, 40403)
    assert refused(later.get("/records")) == (404, 40403)
    assert through(again, dying).get("/assignments").status == 200


def test_a_node_is_killed_and_comes_back(gateway: ServedGateway, other: ServedGateway, served: Served) -> None:
    create(served.bootstrap, "outage", 1)
    manual = RestConsumer(gateway, "outage", auto_offset_reset="earliest")
    manual.told("/assignments", of("outage", 0))
    member = RestConsumer(gateway, "outage-member", auto_offset_reset="earliest")
    member.told("/subscription", {"topics": ["outage"]})
    produce(served.bootstrap, "outage", {0: [b"1"]})
    assert read(manual, 1) == read(through(member, other), 1) == [(0, 0)]
    served.kill()
    served.start()
    produce(served.bootstrap, "outage", {0: [b"2"]})
    assert read(through(manual, other), 1) == [(0, 1)]
    assert read(member, 1) == [(0, 1)]
    assert manual.end().status == member.end().status == 204
    last = RestConsumer(other, "outage")
    assert last.committed(*of("outage", 0)["partitions"]) == [(0, 2, "")]
    assert last.end().status == 204


def test_so_many_consumers_and_those_that_nobody_uses_end(other: ServedGateway, served: Served) -> None:
    create(served.bootstrap, "idle", 1)
    kept, unused, _ = (RestConsumer(other, "idle", name=name) for name in ("kept", "unused", "third"))
    full = other.ask("POST", "/consumers/idle", b"{}", content_type=V2)
    assert refused(full) == (503, 50003)
    assert full.headers["retry-after"]
    kept.told("/assignments", of("idle", 0))
    until = time.monotonic() + 2.2
    while time.monotonic() < until:
        assert kept.places("?timeout=300") == []
    assert refused(unused.get("/records")) == (404, 40403)
    again = RestConsumer(other, "idle", name="unused")
    assert kept.end().status == again.end().status == 204
