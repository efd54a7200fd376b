"""Namespaces over HTTP: defaults of new streams, pages, deletion, two gateways at once, kills, and hostile names."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from tests.worlds.served_gateway import HttpAnswer, ServedGateway
from tests.worlds.served_node import Served

from duramen.client import Cluster

JSON = "application/json"
ROOT = "/v1/namespaces"


@pytest.fixture(scope="module")
def gateway(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    found = ServedGateway(tmp_path_factory.mktemp("gateway"), served.bootstrap)
    found.start()
    yield found
    found.kill()


def put(gateway: ServedGateway, path: str, **defaults: str) -> HttpAnswer:
    return gateway.ask("PUT", f"{ROOT}/{path}", json.dumps({"defaults": defaults}).encode(), content_type=JSON)


def settings(served: Served, topic: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "log_level": 0})
    (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in described.result(20).items()}


def names(answer: HttpAnswer, kind: str = "namespaces") -> list[str]:
    assert answer.status == 200, answer.body
    return [each["name"] for each in answer.json()[kind]]


def test_a_stream_gets_the_defaults_of_its_namespaces(gateway: ServedGateway, served: Served) -> None:
    made = put(gateway, "n1", **{"retention.ms": "5000000", "duramen.txid": "assigned"})
    assert (made.status, made.json()["defaults"]["retention.ms"]) == (201, "5000000")
    inner = put(gateway, "n1/eu", **{"retention.ms": "6000000"})
    assert inner.json()["inherited"] == {"retention.ms": "5000000", "duramen.txid": "assigned"}
    again = put(gateway, "n1/eu", **{"retention.ms": "7000000"})
    assert (again.status, again.json()["created_at"]) == (200, inner.json()["created_at"])
    assert gateway.ask("PUT", f"{ROOT}/n1/eu").json()["defaults"] == {"retention.ms": "7000000"}
    for path in ("n1/eu/s", "n1/s", "n1s"):
        assert gateway.ask("PUT", f"/v1/stream/{path}", b"x", content_type="text/plain").status == 201
    found = [settings(served, topic) for topic in ("n1.eu.s", "n1.s", "n1s")]
    assert [each["retention.ms"] for each in found] == ["7000000", "5000000", "-1"]
    assert [each["duramen.txid"] for each in found] == ["assigned", "assigned", "none"]
    assert settings(served, "_duramen_namespaces")["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"defaults": {"retention.mss": "1"}}', "unknown topic setting retention.mss"),
        (b'{"defaults": {"retention.ms": "soon"}}', "retention.ms=soon is not"),
        (b'{"defaults": {"duramen.txid": "assigned", "cleanup.policy": "compact"}}', "needs cleanup.policy=delete"),
        (b'{"defaults": {"duramen.stream.ttl.ms": "1"}}', "it is of one stream"),
        (b'{"defaults": {"retention.ms": 1}}', 'defaults["retention.ms"]: it has to be a string, not a whole number'),
        (b'{"default": {}}', "default: there is no such field; there are defaults"),
        (b"[" * 5000, "body: "),
        (b"{", "body: "),
    ],
)
def test_defaults_that_no_stream_can_have(gateway: ServedGateway, body: bytes, said: str) -> None:
    refused = gateway.ask("PUT", f"{ROOT}/refused", body, content_type=JSON)
    assert (refused.status, refused.json()["type"]) == (400, "urn:duramen:bad-request")
    assert said in refused.json()["detail"]
    assert gateway.ask("GET", f"{ROOT}/refused").status == 404


def test_pages(gateway: ServedGateway, served: Served) -> None:
    for name in ("b", "a", "c"):
        put(gateway, f"n2/{name}")
        gateway.ask("PUT", f"/v1/stream/n2/{name}/s-{name}", content_type=JSON)
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "log_level": 0})
    for topic in admin.create_topics([NewTopic("n2.wide", 2, 1), NewTopic("n2.d.by-kafka", 1, 1)]).values():
        topic.result(20)
    first = gateway.ask("GET", f"{ROOT}?prefix=n2&limit=2")
    assert (names(first), first.json()["next"]) == (["n2", "n2/a"], "n2/a")
    rest = gateway.ask("GET", f"{ROOT}?prefix=n2&after=n2/a")
    assert (names(rest), rest.json()["next"]) == (["n2/b", "n2/c", "n2/d"], None)
    assert gateway.ask("GET", f"{ROOT}/n2/d").json() == {
        "name": "n2/d",
        "created_at": None,
        "defaults": {},
        "inherited": {},
    }
    streams = gateway.ask("GET", f"{ROOT}/n2/streams?limit=3")
    assert (names(streams, "streams"), streams.json()["next"]) == (["a/s-a", "b/s-b", "c/s-c"], "c/s-c")
    assert names(gateway.ask("GET", f"{ROOT}/n2/streams?after=c/s-c"), "streams") == ["d/by-kafka"]
    assert streams.json()["streams"][0] == {
        "name": "a/s-a",
        "topic": "n2.a.s-a",
        "content_type": JSON,
        "expires_at": None,
    }
    every = names(gateway.ask("GET", f"{ROOT}/streams"), "streams")
    assert {"n2/a/s-a", "n2/d/by-kafka"} <= set(every)
    assert not [name for name in every if name.startswith("_")]
    gateway.ask("PUT", "/v1/stream/n2/a/gone", stream_ttl="0")
    assert names(gateway.ask("GET", f"{ROOT}/n2/a/streams"), "streams") == ["s-a"]


def test_deleting(gateway: ServedGateway, served: Served) -> None:
    put(gateway, "n3/a/b")
    put(gateway, "n3")
    put(gateway, "n33")
    gateway.ask("PUT", "/v1/stream/n3/a/s", content_type=JSON)
    gateway.ask("PUT", "/v1/stream/n33/s", content_type=JSON)
    for path in ("n3", "n3/a"):
        refused = gateway.ask("DELETE", f"{ROOT}/{path}")
        assert (refused.status, refused.json()["type"]) == (409, "urn:duramen:not-empty")
    assert gateway.ask("DELETE", f"{ROOT}/n3/a/b").status == 204
    assert gateway.ask("DELETE", f"{ROOT}/n3/a/b").status == 404
    assert gateway.ask("DELETE", f"{ROOT}/n3?recursive=true").status == 204
    assert gateway.ask("DELETE", f"{ROOT}/n3?recursive=true").status == 404
    with Cluster(served.bootstrap) as cluster:
        assert {"n3.a.s", "n33.s"} & set(cluster.metadata().topics) == {"n33.s"}
    assert names(gateway.ask("GET", f"{ROOT}?prefix=n3")) == ["n33"]
    assert gateway.ask("DELETE", f"{ROOT}/n33?recursive=maybe").status == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/n4/../n1", 400),
        ("/%2e%2e", 400),
        ("/n4%2f..%2fn1", 400),
        ("/n4//a", 400),
        ("/", 400),
        ("//streams", 400),
        ("/n4/", 400),
        ("/n4%00", 400),
        ("/n4%0d%0aX:y", 404),
        ("/" + "n" * 10_000, 400),
        ("/" + "n" * 248, 400),
        ("/n4/streams", 404),
        ("/_duramen_x", 400),
        ("/n4/.hidden", 404),
        ("/n4%2Feu", 404),
        ("?limit=0", 400),
        ("?limit=x", 400),
        ("?limit=1&limit=2", 400),
        ("?recursive=true", 400),
    ],
)
def test_hostile_names(gateway: ServedGateway, path: str, status: int) -> None:
    answer = gateway.ask("GET", ROOT + path)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    assert len(answer.body) < 1000


def test_a_list_is_no_namespace_and_our_own_topics_are_no_streams(gateway: ServedGateway) -> None:
    for method in ("PUT", "DELETE"):
        assert gateway.ask(method, f"{ROOT}/n4/streams").status == 400
        assert gateway.ask(method, f"{ROOT}/streams").status == 400
    assert gateway.ask("POST", ROOT).status == 405
    for method in ("PUT", "GET", "DELETE"):
        for own in ("_duramen_namespaces", "__consumer_offsets", "__transaction_state"):
            assert gateway.ask(method, f"/v1/stream/{own}").status == 400
    foreign = gateway.ask("DELETE", f"{ROOT}/n1?recursive=true", origin="https://evil.example")
    assert foreign.status == 403


def test_two_gateways_at_once_and_one_that_is_killed(
    gateway: ServedGateway, served: Served, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = ServedGateway(tmp_path_factory.mktemp("other"), served.bootstrap)
    other.start()
    answered: list[str] = []

    def write(through: ServedGateway, name: str) -> None:
        try:
            for number in range(15):
                if put(through, f"n5/{name}{number}", **{"retention.ms": str(number)}).status == 201:
                    answered.append(f"n5/{name}{number}")
        except (OSError, AssertionError):
            assert through is other

    writers = [threading.Thread(target=write, args=each) for each in ((gateway, "a"), (gateway, "b"), (other, "c"))]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert len(answered) == 45
    found = {each["name"]: each["defaults"] for each in gateway.ask("GET", f"{ROOT}?prefix=n5/").json()["namespaces"]}
    assert set(found) == set(answered)
    assert all(text["retention.ms"] == name[4:] for name, text in found.items())

    # killed in the middle of a deletion, and of writes: the same request to another one completes it
    for number in range(30):
        gateway.ask("PUT", f"/v1/stream/n5/deep/s{number}", content_type=JSON)
    written: list[int] = []
    working = [
        threading.Thread(target=_until_it_is_killed, args=(lambda: other.ask("DELETE", f"{ROOT}/n5?recursive=true"),)),
        threading.Thread(target=_until_it_is_killed, args=(lambda: written.append(_put_next(other, len(written))),)),
    ]
    with Cluster(served.bootstrap) as cluster:
        for each in working:
            each.start()
        while sum(name.startswith("n5.deep") for name in cluster.metadata().topics) == 30 or not written:
            assert working[1].is_alive()
        other.kill()
        for each in working:
            each.join()
        assert gateway.ask("DELETE", f"{ROOT}/n5?recursive=true").status in (204, 404)
        assert not [name for name in cluster.metadata().topics if name.startswith("n5.")]
    assert names(gateway.ask("GET", f"{ROOT}?prefix=n5")) == []
    kept = names(gateway.ask("GET", f"{ROOT}?prefix=n6/"))
    assert len(written) <= len(kept) <= len(written) + 1
    assert {f"n6/{number}" for number in written} <= set(kept)


def _put_next(gateway: ServedGateway, number: int) -> int:
    assert put(gateway, f"n6/{number}").status == 201
    return number


def _until_it_is_killed(ask: Callable[[], object]) -> None:
    try:
        while True:
            ask()
    except (OSError, AssertionError):
        return
