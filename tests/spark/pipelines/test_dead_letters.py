"""Rows that do not hold what is expected, and records that do not fit: refused, dropped, or dead letters, once each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from files import FileTopics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.worlds.served_node import Served

from duramen import pipelines
from duramen.cli.main import main
from duramen.errors import ConfigError
from duramen.pipelines.jvm.session import borrowed
from duramen.pipelines.model import dead_letter
from duramen.pipelines.model.progress import BatchProgress
from duramen.pipelines.run.connector import DuramenConnector
from duramen.pipelines.run.runner import QueryFailedError, Runner

pytestmark = pytest.mark.timeout(600)
PAID = {"paid": "amount > 0", "named": "name <> ''"}


def order(name: str | None, amount: int | None) -> dict[str, Any]:
    return {"name": name, "amount": amount}


def run(runner: Runner, *names: str) -> list[BatchProgress]:
    told: list[BatchProgress] = []
    runner.run(names, told.append, lambda said: None, available_now=True)
    return told


def headers(letter: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: each["value"].decode() for each in letter["headers"]}


def letters(topics: FileTopics, step: str) -> list[dict[str, Any]]:
    """All dead letters of a step, in the order of their records."""
    found = [
        letter
        for sink, batches in topics.letters.items()
        if f".{step}." in sink
        for number in sorted(batches)
        for letter in batches[number].to_pylist()
    ]
    return sorted(found, key=lambda letter: int(headers(letter)[dead_letter.OFFSET]))


def said(letter: dict[str, Any]) -> tuple[str, bytes | None, str]:
    told = headers(letter)
    place = f"{told[dead_letter.TOPIC]}-{told[dead_letter.PARTITION]}@{told[dead_letter.OFFSET]}"
    return place, letter["value"], told[dead_letter.REASON]


class KilledError(Exception):
    """Instead of a kill."""


@pytest.mark.parametrize("at", ["dead letters written", "batch applied"])
def test_a_batch_that_is_done_again_has_each_dead_letter_once(at: str, spark: SparkSession, tmp_path: Path) -> None:
    topics = FileTopics(tmp_path / "topics")
    orders = pipelines.Topic("orders", key="id", schema="name string, amount int", corrupt="quarantine")
    pipeline = pipelines.Pipeline("shop", folder=tmp_path / "tables")

    @pipeline.table(orders, keys=["id"], expect=PAID, on_violation="quarantine")
    def paid(orders: DataFrame) -> DataFrame:
        return orders.select("id", "name", "amount", "_cause")

    topics.append(
        "orders", [("a", order("Ann", 5)), ("b", "{nonsense"), ("c", order("Cid", -1)), ("d", order("", None))]
    )
    topics.append("orders", [("a", None), ("e", order("Eve", 7)), ("f", "")])
    left = 1

    def mark(point: str) -> None:
        nonlocal left
        if point == at and left:
            left -= 1
            raise KilledError(at)

    with pytest.raises(QueryFailedError, match=at):
        run(Runner(pipeline, spark, topics, mark=mark), "paid")
    told = run(Runner(pipeline, spark, topics), "paid")
    assert [said(letter) for letter in letters(topics, "paid")] == [
        ("orders-0@1", b"{nonsense", "corrupt"),
        ("orders-0@2", b'{"name": "Cid", "amount": -1}', "paid"),
        ("orders-0@3", b'{"name": "", "amount": null}', "paid, named"),
        ("orders-0@6", b"", "corrupt"),
    ]
    first = letters(topics, "paid")[0]
    assert first["key"] == b"b"
    assert {name: value for name, value in headers(first).items() if not name.startswith("__dlq.errors.p")} == {
        "__dlq.errors.topic": "orders",
        "__dlq.errors.offset": "1",
        "__dlq.errors.group": "shop.paid",
        "__dlq.errors.message": "the value does not fit the topic's schema",
        "duramen.dlq.reason": "corrupt",
        "duramen.dlq.version": "v1",
        "duramen.dlq.timestamp": "1700000001000",
    }
    assert pipelines.open_table(pipeline, "paid").rows().select(["id", "name"]).to_pylist() == [
        {"id": "e", "name": "Eve"}
    ]
    assert [(each.written, each.quarantined) for each in told] == [(1, 3), (2, 1)]
    assert "quarantined 3" in told[0].line()
    with borrowed("tests") as found:
        assert found is spark, "and no copy of the query that made the dead letters"


def test_rows_are_dropped_or_refused_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    topics = FileTopics(tmp_path / "topics")
    orders = pipelines.Topic("orders", key="id", schema="name string, amount int")
    pipeline = pipelines.Pipeline("shop", folder=tmp_path / "tables")

    @pipeline.history(orders, expect=PAID, on_violation="drop")
    def kept(orders: DataFrame) -> DataFrame:
        return orders.select("id", "name", "amount", "_cause")

    @pipeline.table(orders, keys=["id"], expect=PAID)
    def strict(orders: DataFrame) -> DataFrame:
        return orders.where("name <> 'Cid'").select("id", "name", "amount", "_cause")

    topics.append("orders", [("a", order("Ann", 5)), ("b", None), ("c", order("Cid", -1))])
    (told,) = run(Runner(pipeline, spark, topics), "kept")
    assert (told.written, told.dropped, told.quarantined) == (2, 1, None)
    assert [row["id"] for row in pipelines.open_table(pipeline, "kept").rows().to_pylist()] == ["a", "b"]
    run(Runner(pipeline, spark, topics), "strict")
    topics.append("orders", [("d", order("Dan", None))])
    with pytest.raises(QueryFailedError, match=r"orders-0@3: the row does not hold what is expected: paid"):
        run(Runner(pipeline, spark, topics), "strict")

    @pipeline.history(orders, expect={"paid": "amount >"})
    def slip(orders: DataFrame) -> DataFrame:
        return orders

    with pytest.raises(ConfigError, match=r"slip expects 'paid', 'amount >': .*Syntax error"):
        run(Runner(pipeline, spark, topics), "slip")


def test_joins_aggregates_and_streams_have_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    topics = FileTopics(tmp_path / "topics")
    orders = pipelines.Topic("orders", key="id", schema="name string, amount int", corrupt="quarantine")
    payments = pipelines.Topic("payments", key="id", schema="sum int")
    pipeline = pipelines.Pipeline("shop", folder=tmp_path / "tables")

    @pipeline.history(orders, payments, expect={"whole": "sum = amount"}, on_violation="quarantine")
    def joined(orders: DataFrame, payments: DataFrame) -> DataFrame:
        both = orders.join(payments, "id")
        return both.select("id", "amount", "sum", pipelines.joined_cause(orders, payments))

    @pipeline.table(orders, keys=["name"], aggregate=True)
    def sums(orders: DataFrame) -> DataFrame:
        return orders.groupBy("name").agg(F.sum("amount").alias("amount"), pipelines.latest_cause())

    @pipeline.stream(orders, to="large", key="id", expect={"large": "amount > 5"}, on_violation="quarantine")
    def large(orders: DataFrame) -> DataFrame:
        return orders

    topics.append("orders", [("a", order("Ann", 5)), ("b", order("Ann", 7)), ("c", "{")])
    topics.append("payments", [("a", {"sum": 5}), ("b", {"sum": 6})])
    runner = Runner(pipeline, spark, topics)
    (told,) = run(runner, "joined")
    assert (told.written, told.quarantined) == (1, 2)
    corrupt, unpaid = sorted(letters(topics, "joined"), key=lambda each: said(each)[2])
    assert said(corrupt) == ("orders-0@2", b"{", "corrupt")
    # Of two records of one time that of the topic that is later by its name is the row's own.
    assert said(unpaid) == ("payments-0@1", b'{"sum": 6}', "whole")
    assert headers(unpaid)[dead_letter.OTHERS].startswith("orders-")
    (told,) = run(runner, "sums")
    assert told.quarantined == 1
    assert [row["amount"] for row in pipelines.open_table(pipeline, "sums").rows().to_pylist()] == [12]
    (told,) = run(runner, "large")
    assert told.quarantined == 2
    assert topics.ends[("large", 0)] == 1
    assert topics.ends[("dlq.shop", 0)] == 2


def test_letters_of_arrow_keep_their_bytes() -> None:
    """What a table's dead letters are written from."""
    from duramen.pipelines.run.dead_letters import LETTER, apart, as_records

    kind = pa.struct(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ]
    )
    letter = {"key": None, "value": b"\xff", "headers": [{"key": "h", "value": None}]}
    trace = {"_topic": ["t", "t"], "_partition": [0, 0], "_offset": [1, 2], "_deleted": [False, None]}
    rows, found = apart(pa.table({"n": [1, None], **trace, LETTER: pa.array([None, letter], kind)}))
    assert found is not None
    assert (rows.column_names, rows["n"].to_pylist()) == (["n", *trace], [1])
    assert as_records(found).to_pylist() == [letter]


def test_a_node_has_dead_letters_of_tables_and_streams_once(
    spark: SparkSession, node: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the driver died between the dead letters and the table's commit."""

    def duramen(*arguments: str) -> Any:
        capsys.readouterr()
        assert main([*arguments, "--bootstrap", node.bootstrap]) == 0
        return capsys.readouterr().out

    orders = pipelines.Topic("orders", key="id", schema="name string, amount int", corrupt="quarantine")
    pipeline = pipelines.Pipeline("shop", folder=tmp_path / "tables", bootstrap=node.bootstrap)

    @pipeline.table(orders, keys=["id"], expect=PAID, on_violation="quarantine")
    def paid(orders: DataFrame) -> DataFrame:
        return orders.select("id", "name", "amount", "_cause")

    @pipeline.stream(orders, to="large", key="id", expect={"large": "amount > 5"}, on_violation="quarantine")
    def large(orders: DataFrame) -> DataFrame:
        return orders

    duramen("topic", "create", "orders")
    lines = ['{"key":"a","value":"{\\"name\\":\\"Ann\\",\\"amount\\":9}"}']
    lines += ['{"key":"b","value":"{\\"name\\":\\"Bea\\",\\"amount\\":0}","headers":[["trace",{"base64":"/wA="}]]}']
    lines += ['{"key":"c","value_base64":"/w=="}']
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")
    duramen("produce", "orders", str(tmp_path / "lines"), "--format", "json")

    def die(point: str) -> None:
        if point == "dead letters written":
            raise KilledError(point)

    connector = DuramenConnector(node.bootstrap)
    with pytest.raises(QueryFailedError, match="dead letters written"):
        run(Runner(pipeline, spark, connector, mark=die), "paid")
    assert not list((tmp_path / "tables/paid/v1/table").rglob("*.parquet"))
    (told,) = run(Runner(pipeline, spark, connector), "paid")
    assert (told.rows, told.written, told.quarantined) == (3, 1, 2)
    (told,) = run(Runner(pipeline, spark, connector), "large")
    assert (told.rows, told.quarantined) == (3, 2)
    found = json.loads(duramen("dead-letters", "show", "dlq.shop", "--json"))
    assert sorted((each["step"], each["offset"], each["reason"]) for each in found) == [
        ("shop.large", 1, "large"),
        ("shop.large", 2, "corrupt"),
        ("shop.paid", 1, "paid"),
        ("shop.paid", 2, "corrupt"),
    ]
    assert [each["headers"] for each in found if each["offset"] == 1] == [[["trace", {"base64": "/wA="}]]] * 2
    assert [each["value_base64"] for each in found if each["offset"] == 2] == ["/w=="] * 2
    assert duramen("consume", "large").count("Ann") == 1
    duramen("dead-letters", "replay", "dlq.shop", "--reason", "corrupt", "--yes")
    (told,) = run(Runner(pipeline, spark, connector), "paid")
    assert (told.rows, told.written, told.quarantined) == (1, 0, 1)
