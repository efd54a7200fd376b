"""The stores of positions that lie in streams, against each back end; and the page that shows all stores."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from tests.worlds.served_gateway import ServedGateway
from tests.worlds.served_node import ROOT, Served

from duramen import streams
from duramen.dlsn import Dlsn
from duramen.errors import ConfigError
from duramen.streams import NewStreamRecord, OutputPositions, TopicPositions

ADDRESS = "127.0.0.1:9092"
A, B, C = Dlsn(1, 0, 0), Dlsn(1, 0, 1), Dlsn(3, 7, 2)
ORDERS, REFUNDS = (
    SimpleNamespace(topic="finance.orders", stream_id="a1" * 16),
    SimpleNamespace(topic="finance.refunds", stream_id=""),
)

Store = TopicPositions | OutputPositions


@pytest.fixture(params=["node", "gateway", "directory"], scope="module")
def space(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[streams.Namespace]:
    """A namespace of its own."""
    folder = tmp_path_factory.mktemp("kept")
    served: Served = request.getfixturevalue("served")
    gateway = ServedGateway(folder, served.bootstrap)
    uri = f"duramen+file://{folder}/log?namespace=kept"
    if request.param == "node":
        uri = f"duramen://{served.bootstrap}/kept"
    elif request.param == "gateway":
        gateway.start()
        uri = f"duramen+http://127.0.0.1:{gateway.port}/kept-over-http"
    with streams.open(uri, timeout_s=10) as opened:
        yield opened
    gateway.kill()


@pytest.fixture
def table(space: streams.Namespace) -> streams.Stream:
    return space.create(f"t-{uuid4().hex}", cleanup_policy="compact")


@pytest.fixture
def output(space: streams.Namespace) -> streams.Stream:
    return space.create(f"o-{uuid4().hex}")


def row(key: bytes, value: bytes | None) -> NewStreamRecord:
    return NewStreamRecord(value, key=key)


def test_rows_and_position_are_one_batch(table: streams.Stream) -> None:
    store = TopicPositions(table, ORDERS, "audit")
    assert (store.load(), store.rows) == (None, {})
    store.save(A, [row(b"eu", b"1"), row(b"us", b"1")])
    store.save(C, [row(b"eu", b"2"), row(b"us", None)])
    assert [record.dlsn.slot for record in table.reader()] == [0, 1, 2, 0, 1, 2]
    again = TopicPositions(table, ORDERS, "audit")
    assert (again.load(), again.rows) == (C, {b"eu": b"2"})
    table.append(row(b"duramen-position/audit/finance.orders", None))
    assert (again.load(), again.rows) == (None, {b"eu": b"2"}), "a tombstone puts the reader back to the start"


@pytest.mark.parametrize("kind", [TopicPositions, OutputPositions])
def test_readers_of_one_stream_have_positions_of_their_own(
    table: streams.Stream, kind: Callable[[streams.Stream, SimpleNamespace, str], Store]
) -> None:
    """Each appends between two saves of another, which is passed over."""
    places = [(ORDERS, "audit"), (ORDERS, "bill"), (REFUNDS, "audit"), (ORDERS, "audit/bill")]
    stores = [kind(table, stream, reader) for stream, reader in places]
    for turn in range(3):
        table.append(row(b"x", b"somebody else's"))
        for slot, store in enumerate(stores):
            store.save(Dlsn(1, turn, slot), [row(b"k", b"v")])
    assert [store.load() for store in stores] == [Dlsn(1, 2, slot) for slot in range(4)]
    assert [kind(table, stream, reader).load() for stream, reader in places] == [Dlsn(1, 2, slot) for slot in range(4)]


@pytest.mark.parametrize("kind", [TopicPositions, OutputPositions])
def test_a_position_in_a_stream_that_was_made_again_is_refused(
    space: streams.Namespace, table: streams.Stream, kind: Callable[[streams.Stream, SimpleNamespace, str], Store]
) -> None:
    made = space.create(f"i-{uuid4().hex}")
    position = made.append([b"a", b"b"]).dlsn
    stream = SimpleNamespace(topic=made.topic, stream_id=space.stream(made.name).stream_id)
    kind(table, stream, "audit").save(position, [row(b"k", b"1")])
    assert kind(table, stream, "audit").load() == position
    space.delete(made.name)
    again = space.create(made.name)
    assert again.stream_id not in ("", made.stream_id)
    again.append([b"c", b"d"])
    stream.stream_id = again.stream_id
    with pytest.raises(streams.PositionDivergedError, match=r"made again since"):
        kind(table, stream, "audit")
    with pytest.raises(streams.PositionDivergedError, match=r"get it anew from the namespace"):
        made.reader(after=position)
    assert kind(table, stream, "audit-anew").load() is None


@pytest.mark.parametrize("kind", [TopicPositions, OutputPositions])
def test_of_two_processes_with_one_name_the_second_stores_nothing(
    table: streams.Stream, kind: Callable[[streams.Stream, SimpleNamespace, str], Store]
) -> None:
    first, second = kind(table, ORDERS, "audit"), kind(table, ORDERS, "audit")
    first.save(A, [row(b"k", b"1")])
    end = table.end()
    with pytest.raises(streams.PositionTakenError, match="another process moved the position"):
        second.save(A, [row(b"k", b"2")])
    assert (table.end(), second.load()) == (end, A)
    second.save(B, [row(b"k", b"3")])
    with pytest.raises(streams.PositionTakenError):
        first.save(B, [row(b"k", b"4")])
    assert [record.value for record in table.reader() if record.key == b"k"] == [b"1", b"3"]


def test_the_output_says_how_far_its_input_was_read(output: streams.Stream) -> None:
    output.append([b"older"] * 3)
    store = OutputPositions(output, ORDERS, "audit")
    assert store.load() is None
    store.save(A, [NewStreamRecord(b"1", headers=[("h", b"x")]), NewStreamRecord(b"2", headers=[("h", b"y")])])
    store.save(B)
    assert store.load() == A, "what made no output is read again"
    for number in range(30):
        output.append(b"%d" % number)
        assert OutputPositions(output, ORDERS, "audit").load() == A
    last = next(output.reader(4))
    assert [name for name, _ in last.headers] == ["h", streams.POSITION_HEADER]


def test_an_output_that_lost_its_beginning_is_not_begun_anew(output: streams.Stream) -> None:
    store = OutputPositions(output, ORDERS, "audit")
    store.save(A, [NewStreamRecord(b"1")])
    output.append(b"somebody else's")
    output.truncate(before=1)
    with pytest.raises(streams.TruncatedError, match="the position of 'audit' was truncated"):
        OutputPositions(output, ORDERS, "audit")
    store.save(B, [NewStreamRecord(b"2")])
    assert OutputPositions(output, ORDERS, "audit").load() == B


def test_a_stream_that_would_lose_the_position_is_refused(space: streams.Namespace) -> None:
    plain = space.create(f"p-{uuid4().hex}")
    with pytest.raises(ConfigError, match='cleanup_policy="compact"'):
        TopicPositions(plain, ORDERS, "audit")
    brief = space.create(f"p-{uuid4().hex}", retention_ms=60_000)
    with pytest.raises(ConfigError, match="retention_ms=-1"):
        OutputPositions(brief, ORDERS, "audit")
    both = space.create(f"p-{uuid4().hex}", cleanup_policy="compact,delete", retention_bytes=1000)
    with pytest.raises(ConfigError, match="retention_bytes=-1"):
        TopicPositions(both, ORDERS, "audit")


@pytest.mark.parametrize("document", [b"", b"[]", b'{"version": 2, "reader": "audit"}', b"\xff"])
def test_a_position_that_is_none_is_named(table: streams.Stream, document: bytes) -> None:
    table.append(NewStreamRecord(document, key=b"duramen-position/audit/finance.orders"))
    with pytest.raises(ConfigError, match="no position"):
        TopicPositions(table, ORDERS, "audit")
    assert TopicPositions(table, ORDERS, "else").load() is None
    table.append(NewStreamRecord(b"", b"k", [(streams.POSITION_HEADER, document)]))
    with pytest.raises(ConfigError, match="no position"):
        OutputPositions(table, ORDERS, "audit")


def test_a_reader_of_merged_streams_has_a_store_for_each(space: streams.Namespace) -> None:
    """It is interrupted behind each record."""
    names = [f"m-{uuid4().hex}" for _ in range(2)]
    for parity, name in enumerate(names):
        given = [NewStreamRecord(b"%d" % txid, timestamp_ms=txid) for txid in range(2 + parity, 10, 2)]
        space.create(name, txid="application").append(given)
    taken: list[bytes | None] = []
    with closing(sqlite3.connect(":memory:")) as database:
        while len(taken) < 8:
            stores = {name: streams.SqlitePositions(database, space.stream(name), "audit") for name in names}
            start = {name: at.next for name, store in stores.items() if (at := store.load())}
            stream, record = next(space.merged(names, start=start))
            with database:
                stores[stream].save(record.dlsn)
            taken.append(record.value)
    assert taken == [b"%d" % txid for txid in range(2, 10)]


def test_the_page_keeps_its_position(served: Served, tmp_path: Path) -> None:
    """Its blocks of Python, as one program."""
    page = (ROOT / "docs/streams.md").read_text()
    section = page.partition("\n## Keep your position\n")[2].partition("\n## ")[0]
    program = "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL)).replace(ADDRESS, served.bootstrap)
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stderr, ran.stdout) == ("", "42\n(42, 2)\n[b'33', b'13']\n")
