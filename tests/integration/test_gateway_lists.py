"""Lists over HTTP have the names that the sender may read, on full pages, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.worlds.served_gateway import HttpAnswer, ServedGateway
from tests.worlds.served_node import Served

from duramen.gateway.access.principal import parse_permission
from duramen.gateway.access.token_lines import token_line

RIGHTS = {
    "admin": "admin=*",
    "eu": "read=lists.eu.*",
    "one": "read=lists.us.ledger",
    "writer": "write=lists.*",
}
STREAMS = ["eu/a", "eu/b", "eu/c", "us/ledger", "us/secret"]


@pytest.fixture(scope="module")
def gateway(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    folder = tmp_path_factory.mktemp("lists")
    lines = [token_line(name, name, [parse_permission(right)]) for name, right in RIGHTS.items()]
    (folder / "tokens").write_text("\n".join(lines))
    found = ServedGateway(folder, served.bootstrap, {"gateway.tokens.file": str(folder / "tokens")})
    found.start()
    for name in STREAMS:
        assert asked(found, "admin", f"/v1/stream/lists/{name}", "PUT").status == 201
    for name in ("lists", "lists/eu", "lists/hidden"):
        assert asked(found, "admin", f"/v1/namespaces/{name}", "PUT").status == 201
    yield found
    found.kill()


def asked(gateway: ServedGateway, who: str, path: str, method: str = "GET") -> HttpAnswer:
    return gateway.ask(method, path, authorization=f"Bearer {who}")


def names(answer: HttpAnswer, kind: str) -> tuple[list[str], Any]:
    assert answer.status == 200, answer.body
    return [each["name"] for each in answer.json()[kind]], answer.json().get("next")


def test_namespaces(gateway: ServedGateway) -> None:
    def found(who: str, query: str = "") -> tuple[list[str], Any]:
        return names(asked(gateway, who, f"/v1/namespaces?prefix=lists{query}"), "namespaces")

    assert found("admin") == (["lists", "lists/eu", "lists/hidden", "lists/us"], None)
    assert found("eu") == (["lists", "lists/eu"], None)
    assert found("eu", "&limit=1") == (["lists"], "lists")
    assert found("one") == (["lists", "lists/us"], None)
    assert found("writer") == ([], None)
    outer, own = asked(gateway, "eu", "/v1/namespaces?prefix=lists").json()["namespaces"]
    assert outer["created_at"] is None, "what is written of it is not theirs to read"
    assert own["created_at"] is not None


def test_streams(gateway: ServedGateway) -> None:
    lists = "/v1/namespaces/lists/streams"
    assert names(asked(gateway, "admin", lists), "streams") == (STREAMS, None)
    assert names(asked(gateway, "eu", f"{lists}?limit=2"), "streams") == (["eu/a", "eu/b"], "eu/b")
    assert names(asked(gateway, "eu", f"{lists}?limit=2&after=eu/b"), "streams") == (["eu/c"], None)
    assert names(asked(gateway, "one", f"{lists}?limit=1"), "streams") == (["us/ledger"], None)
    assert names(asked(gateway, "one", "/v1/namespaces/streams"), "streams") == (["lists/us/ledger"], None)
    assert names(asked(gateway, "writer", "/v1/namespaces/streams"), "streams") == ([], None)
    for path in ("lists/us", "lists/none"):  # whether it is there or not
        refused = asked(gateway, "eu", f"/v1/namespaces/{path}/streams")
        assert (refused.status, refused.json()["type"]) == (403, "urn:duramen:not-allowed")
    assert asked(gateway, "eu", "/v1/namespaces/lists/eu/none/streams").status == 404


def test_topics_of_the_other_api(gateway: ServedGateway) -> None:
    own = ["lists.eu.a", "lists.eu.b", "lists.eu.c"]
    assert asked(gateway, "eu", "/topics").json() == own
    assert asked(gateway, "writer", "/topics").json() == []
    assert set(own) < set(asked(gateway, "admin", "/topics").json())
    (cluster,) = asked(gateway, "eu", "/v3/clusters").json()["data"]
    root = f"/v3/clusters/{cluster['cluster_id']}"
    assert [each["topic_name"] for each in asked(gateway, "eu", f"{root}/topics").json()["data"]] == own
    settings = asked(gateway, "one", f"{root}/topics/-/configs").json()["data"]
    assert {each["topic_name"] for each in settings} == {"lists.us.ledger"}
    assert asked(gateway, "eu", f"{root}/consumer-groups").json()["data"] == []
    assert asked(gateway, "eu", f"{root}/topics/lists.us.ledger").status == 403
