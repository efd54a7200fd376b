"""Namespaces in the library, on a node and in a directory: defaults, lists, deletion, and processes that are killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from tests.worlds.served_node import Served

from duramen import streams
from duramen.client import Cluster
from duramen.errors import ConfigError, DuramenError

WRITER = """
import sys
from duramen import streams
with streams.open(sys.argv[1]) as space:
    for number in range(10_000):
        space.namespaces.set_defaults(f"k{number}", retention_ms=number)
        print(number, flush=True)
"""
DELETER = """
import sys
from duramen import streams
with streams.open(sys.argv[1]) as space:
    print(flush=True)
    space.namespaces.delete(recursive=True)
"""


@pytest.fixture(params=["node", "gateway", "directory"])
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[streams.Namespace]:
    if request.param == "node":
        served: Served = request.getfixturevalue("served")
        uri = f"duramen://{served.bootstrap}/library"
    elif request.param == "gateway":
        uri = f"duramen+http://127.0.0.1:{request.getfixturevalue('shared_gateway').port}/library"
    else:
        uri = f"duramen+file://{tmp_path}/log?namespace=library"
    with streams.open(uri, timeout_s=10) as opened:
        yield opened
        opened.namespaces.delete(recursive=True)


def settings(served: Served, topic: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "log_level": 0})
    (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in described.result(20).items()}


def test_namespaces_are_made_listed_and_deleted(space: streams.Namespace) -> None:
    spaces = space.namespaces
    with pytest.raises(streams.NoSuchNamespaceError):
        spaces.describe()
    made = spaces.create("eu/north", retention_ms=7, preallocate=False)
    assert (made.path, made.defaults) == ("library/eu/north", {"retention.ms": "7", "preallocate": "false"})
    assert made.created_at is not None
    assert abs(made.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    with pytest.raises(streams.NamespaceExistsError):
        spaces.create("eu/north")
    spaces.set_defaults("eu", retention_bytes=9)
    assert spaces.describe("eu/north").inherited == {"retention.bytes": "9"}
    assert spaces.set_defaults("eu/north").defaults == {}
    space.create("us/s")
    assert spaces.describe("us") == streams.NamespaceInfo("library/us", None, {}, {})
    assert spaces.list() == ["eu", "eu/north", "us"]
    assert spaces.list("eu", after="eu", limit=1) == ["eu/north"]
    for name in ("", "eu", "us"):
        with pytest.raises(streams.NamespaceNotEmptyError):
            spaces.delete(name)
    spaces.delete("eu/north")
    spaces.delete("us", recursive=True)
    assert (spaces.list(), space.list()) == (["eu"], [])
    with pytest.raises(streams.NoSuchNamespaceError):
        spaces.delete("us", recursive=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"retention_mss": 1}, "unknown topic setting retention.mss"),
        ({"retention_ms": "soon"}, "retention.ms=soon"),
        ({"duramen_stream_ttl_ms": 1}, "it is of one stream"),
        ({"duramen_txid": "assigned", "cleanup_policy": "compact"}, "needs cleanup.policy=delete"),
    ],
)
def test_settings_that_no_stream_can_have(space: streams.Namespace, given: dict[str, object], said: str) -> None:
    with pytest.raises(DuramenError, match=said):
        space.namespaces.set_defaults("refused", **given)
    space.create("s")
    assert space.namespaces.list() == []


@pytest.mark.parametrize("name", ["a//b", "..", "a.b", "/", "n" * 300])
def test_names_that_cannot_be(space: streams.Namespace, name: str) -> None:
    space.create("s")
    with pytest.raises(ConfigError, match="namespace"):
        space.namespaces.create(name)


def test_the_root_has_no_record(tmp_path: Path) -> None:
    with streams.open(f"duramen+file://{tmp_path}") as root:
        with pytest.raises(ConfigError, match="the root"):
            root.namespaces.set_defaults(retention_ms=1)
        root.namespaces.create("_a")
        with pytest.raises(ConfigError, match="_duramen_"):
            root.namespaces.create("_duramen_x")
        assert (root.namespaces.list(), root.list()) == (["_a"], [])


def test_new_streams_get_the_defaults(served: Served) -> None:
    with streams.open(f"duramen://{served.bootstrap}/given") as space:
        space.namespaces.set_defaults(retention_ms=77, duramen_txid="assigned")
        space.create("s", retention_ms=88)
        space.create("inner/s")
        for topic, expected in (("given.s", "88"), ("given.inner.s", "77")):
            found = settings(served, topic)
            assert (found["retention.ms"], found["duramen.txid"]) == (expected, "assigned")
        space.namespaces.delete(recursive=True)


def killed_while_it_writes(uri: str) -> list[int]:
    """A program that writes records of namespaces, one after the other; those that it was answered."""
    with subprocess.Popen([sys.executable, "-c", WRITER, uri], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        answered = [int(writer.stdout.readline()) for _ in range(20)]
        writer.kill()
        return answered + [int(line) for line in writer.stdout.read().split()]


def check_kept(space: streams.Namespace, answered: list[int]) -> None:
    kept = space.namespaces.list("k", limit=100_000)
    assert len(answered) <= len(kept) <= len(answered) + 1
    for number in (answered[0], answered[-1]):
        assert space.namespaces.describe(f"k{number}").defaults == {"retention.ms": str(number)}


def test_a_program_that_is_killed_while_it_writes(served: Served) -> None:
    uri = f"duramen://{served.bootstrap}/killed"
    answered = killed_while_it_writes(uri)
    with streams.open(uri) as space:
        check_kept(space, answered)
        space.namespaces.delete(recursive=True)
        assert space.namespaces.list() == []


def test_a_directory_whose_program_was_killed_is_served_with_its_namespaces(tmp_path: Path) -> None:
    node = Served(tmp_path)
    answered = killed_while_it_writes(f"duramen+file://{node.data}?namespace=kept")
    node.start()
    try:
        with streams.open(f"duramen://{node.bootstrap}/kept") as space:
            check_kept(space, answered)
            space.create(f"k{answered[-1]}/s")
            assert settings(node, f"kept.k{answered[-1]}.s")["retention.ms"] == str(answered[-1])
    finally:
        node.stop()


def test_a_program_that_is_killed_while_it_deletes(served: Served) -> None:
    uri = f"duramen://{served.bootstrap}/cut"
    with streams.open(uri) as space, Cluster(served.bootstrap) as cluster:
        space.namespaces.create("a/b")
        for number in range(40):
            space.create(f"a/s{number}")
        with subprocess.Popen([sys.executable, "-c", DELETER, uri], stdout=subprocess.PIPE) as deleter:
            assert deleter.stdout is not None
            deleter.stdout.readline()
            while sum(name.startswith("cut.") for name in cluster.metadata().topics) == 40:
                assert deleter.poll() is None
            deleter.kill()
        assert 0 < len(space.list()) < 40
        assert space.namespaces.list() == ["a", "a/b"]
        space.namespaces.delete(recursive=True)
        assert (space.list(), space.namespaces.list()) == ([], [])
