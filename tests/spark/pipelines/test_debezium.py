"""Debezium's envelopes to rows and deletions: with Connect's schema and without, each type that has two writings."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from files import RECORDS
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from duramen import pipelines
from duramen.errors import ConfigError
from duramen.pipelines.run.columns import decode

pytestmark = pytest.mark.timeout(600)
SOURCE = {"connector": "postgresql", "name": "shop", "db": "shop", "table": "customers", "lsn": 24023128}
CONNECT, TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
Record = tuple[Any, Any]


def envelope(op: str, before: Any = None, after: Any = None, ts_ms: int = 1_700_000_000_123) -> dict[str, Any]:
    source = {"version": "3.0.5.Final", **SOURCE, "ts_ms": ts_ms, "snapshot": "false"}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": ts_ms + 100, "transaction": None}


def field(name: str, kind: str, meaning: str | None = None, **parameters: str) -> dict[str, Any]:
    found = {"type": kind, "optional": True, "field": name}
    return found if meaning is None else {**found, "name": meaning, "version": 1, "parameters": parameters}


def with_schema(payload: dict[str, Any] | None, fields: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message as JsonConverter writes it by default."""
    row = {"type": "struct", "fields": list(fields), "optional": True, "name": "shop.public.customers.Value"}
    others = [field("op", "string"), field("ts_ms", "int64")]
    schema = {"type": "struct", "fields": [{**row, "field": "before"}, {**row, "field": "after"}, *others]}
    return {"schema": {**schema, "optional": False, "name": "shop.public.customers.Envelope"}, "payload": payload}


def key_with_schema(payload: Any, kind: str = "struct", fields: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"schema": {"type": kind, "fields": list(fields), "optional": False}, "payload": payload}


def text(value: Any) -> str:
    """Without blanks, as Connect writes."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


class Lab:
    """Records in a file, as what is written into a query itself Spark computes while it plans."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.number = 0

    def frame(self, records: Sequence[Record]) -> DataFrame:
        rows = [
            (
                None if key is None else text(key).encode(),
                None if value is None else value if isinstance(value, bytes) else text(value).encode(),
                "db.customers",
                0,
                offset,
                datetime.fromtimestamp(1_700_000_000 + offset, UTC),
            )
            for offset, (key, value) in enumerate(records)
        ]
        self.number += 1
        path = str(self.folder / str(self.number))
        self.spark.createDataFrame(rows, RECORDS).coalesce(1).write.parquet(path)
        return self.spark.read.parquet(path)

    def rows(self, records: Sequence[Record], schema: str, key: str | None = None, **more: Any) -> list[dict[str, Any]]:
        topic = pipelines.Topic("db.customers", schema=schema, key=key, envelope="debezium", **more)
        found = decode(self.frame(records), topic).orderBy("_cause.offset").collect()
        return [{**row.asDict(), "_cause": (row._cause.offset, row._cause.deleted)} for row in found]


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    return Lab(spark, tmp_path)


ANN, BEA = {"id": 1, "name": "Ann"}, {"id": 1, "name": "Bea"}
FIELDS = [field("id", "int64"), field("name", "string")]


@pytest.mark.parametrize("schemas", [False, True])
def test_rows_and_deletions(lab: Lab, schemas: bool) -> None:
    key = key_with_schema({"id": 1}, fields=FIELDS[:1]) if schemas else {"id": 1}
    events = [
        envelope("r", None, ANN),
        envelope("c", None, ANN),
        envelope("u", ANN, BEA),
        envelope("d", {"id": 1, "name": None}, None),
    ]
    values = [with_schema(each, FIELDS) if schemas else each for each in events]
    others = [
        (key, {"op": "m", "ts_ms": 1, "message": {"prefix": "x", "content": "eA=="}}),
        (None, envelope("c", None, ANN)),
    ]
    found = lab.rows([*((key, value) for value in values), (key, None), *others], "id bigint, name string", "id")
    assert found == [
        *({"id": 1, "name": name, "_cause": (n, False)} for n, name in enumerate(("Ann", "Ann", "Bea"))),
        {"id": 1, "name": None, "_cause": (3, True)},
        {"id": 1, "name": None, "_cause": (4, True)},
        {"id": 1, "name": "Ann", "_cause": (6, False)},
    ]


def test_keys_of_each_form(lab: Lab) -> None:
    """Of a deletion that says nothing of the row."""
    gone = envelope("d")
    keys: list[Any] = [{"id": 1}, key_with_schema({"id": 1}), "1", key_with_schema(1, "int64")]
    found = lab.rows([(key, value) for key in keys for value in (gone, None)], "id bigint, name string", "id")
    assert [(row["id"], row["_cause"][1]) for row in found] == [(1, True)] * 8
    names: list[Any] = [
        "Ann",
        '"Ann"',
        {"name": "Ann"},
        key_with_schema("Ann", "string"),
        key_with_schema({"name": "Ann"}),
    ]
    found = lab.rows([(key, None) for key in names], "id bigint, name string", "name")
    assert [(row["name"], row["id"]) for row in found] == [("Ann", None)] * 5
    # A key of several columns; and one that is no column of the rows.
    found = lab.rows([({"order": 7, "line": 2}, None), ({"order": 7, "line": 3}, gone)], "order int, line int, n int")
    assert [(row["order"], row["line"], row["n"]) for row in found] == [(7, 2, None), (7, 3, None)]
    found = lab.rows([("x", envelope("c", None, ANN)), ({"tenant": 5}, None)], "id bigint", "tenant")
    assert [(row["tenant"], row["id"]) for row in found] == [("x", 1), ("5", None)]
    kept = lab.rows(
        [("x", None), ({"id": "x"}, None), (key_with_schema(1.5, "double"), None)], "id bigint", "id", corrupt="keep"
    )
    assert [row["_corrupt"] for row in kept] == ["x", '{"id":"x"}', text(key_with_schema(1.5, "double"))]


def base(unscaled: int) -> str:
    """As Connect writes a decimal's digits."""
    size = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


MOMENT = datetime(2018, 6, 20, 15, 13, 16, 945104, UTC)
MICROS = 1_529_507_596_945_104
DIGITS = "12345678901234567890.123456789"
BIG = int(DIGITS.replace(".", ""))


def said(kind: str, meaning: str | None = None, **parameters: str) -> dict[str, Any]:
    return field("", kind, meaning, **parameters)


_WRITTEN: list[tuple[str, dict[str, Any] | None, Any, Any]] = [
    ("date", said("int32", f"{TIME}Date"), 17_000, date(2016, 7, 18)),
    ("date", said("int32", f"{CONNECT}Date"), -1, date(1969, 12, 31)),
    ("date", None, 17_000, date(2016, 7, 18)),
    ("date", said("string", f"{TIME}IsoDate"), "2016-07-18Z", date(2016, 7, 18)),
    ("timestamp", said("int64", f"{TIME}Timestamp"), MICROS // 1000, MOMENT.replace(microsecond=945000)),
    ("timestamp", said("int64", f"{CONNECT}Timestamp"), -1, datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
    ("timestamp", said("int64", f"{TIME}MicroTimestamp"), MICROS, MOMENT),
    ("timestamp", said("int64", f"{TIME}NanoTimestamp"), MICROS * 1000 + 999, MOMENT),
    ("timestamp", said("int64", f"{TIME}NanoTimestamp"), -1, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
    ("timestamp", said("string", f"{TIME}ZonedTimestamp"), "2018-06-20T15:13:16.945104Z", MOMENT),
    ("timestamp", None, "2018-06-20T17:13:16.945104+02:00", MOMENT),
    ("timestamp_ntz", said("int64", f"{TIME}MicroTimestamp"), MICROS, MOMENT.replace(tzinfo=None)),
    ("timestamp_ntz", None, "2018-06-20T15:13:16.945104", MOMENT.replace(tzinfo=None)),
    ("decimal(10,2)", said("bytes", f"{CONNECT}Decimal", scale="2"), base(1250), Decimal("12.50")),
    ("decimal(10,2)", said("bytes", f"{CONNECT}Decimal", scale="2"), base(-1), Decimal("-0.01")),
    ("decimal(38,9)", said("bytes", f"{CONNECT}Decimal", scale="9"), base(-BIG), Decimal(f"-{DIGITS}")),
    ("decimal(38,9)", said("bytes", f"{CONNECT}Decimal", scale="9"), base(BIG), Decimal(DIGITS)),
    ("decimal(10,2)", None, {"scale": 1, "value": base(125)}, Decimal("12.50")),
    ("decimal(10,2)", None, 12.5, Decimal("12.50")),
    ("decimal(38,9)", None, "123456789012345678.123456789", Decimal("123456789012345678.123456789")),
    ("decimal(10,2)", said("string"), "1234", Decimal(1234)),
    ("binary", said("bytes"), "AP8=", b"\x00\xff"),
    ("timestamp", said("int64", f"{TIME}MicroTimestamp"), None, None),
]
"""A column's type, what the message's schema says of it (None: nothing), what is written, and what that means."""


def test_types_that_messages_write_in_several_ways(lab: Lab) -> None:
    named = [(f"c{n}", *each) for n, each in enumerate(_WRITTEN)]
    fields = [{**about, "field": name} for name, _, about, _, _ in named if about is not None]
    row = {name: value for name, _, _, value, _ in named}
    schema = ", ".join(f"{name} {kind}" for name, kind, *_ in named)
    (found,) = lab.rows([("k", with_schema(envelope("c", None, row), fields))], schema, "k")
    for name, kind, _, value, wanted in named:
        got = found[name].astimezone(UTC) if kind == "timestamp" and found[name] else found[name]
        assert got == wanted, (kind, value)


def test_a_key_has_the_same_types(lab: Lab) -> None:
    fields = [field("day", "int32", f"{TIME}Date"), field("price", "bytes", f"{CONNECT}Decimal", scale="2")]
    key = key_with_schema({"day": 17_000, "price": base(1250)}, fields=fields)
    (found,) = lab.rows([(key, None)], "day date, price decimal(10,2)")
    assert (found["day"], found["price"]) == (date(2016, 7, 18), Decimal("12.50"))


def test_what_does_not_fit_fails_and_is_named_or_is_kept(lab: Lab) -> None:
    schema = "id bigint, at timestamp, day date, price decimal(10,2)"
    nanos = with_schema(envelope("c", None, {"at": 1.5}), [field("at", "int64", f"{TIME}MicroTimestamp")])
    wrong: list[Any] = [
        "",
        "{nonsense",
        b'{"op":"c","after":{"id":1,"x":"\xff"}}',
        {"id": 1, "name": "Ann"},  # a row, unwrapped already
        envelope("x", None, ANN),
        envelope("c", ANN, None),
        envelope("u", None, {"id": "one"}),
        envelope("c", None, {"at": MICROS}),  # of what unit is not known
        envelope("c", None, {"day": 1.5}),
        envelope("c", None, {"price": base(1250)}),  # of what scale is not known
        nanos,
        envelope("c", None, {"price": True}),
    ]
    truncated = {"source": SOURCE, "op": "t", "ts_ms": 1}
    kept = lab.rows([(None, value) for value in (*wrong, truncated, envelope("c", None, ANN))], schema, corrupt="keep")
    texts = [
        value.decode(errors="replace") if isinstance(value, bytes) else text(value) for value in (*wrong, truncated)
    ]
    assert [row["_corrupt"] for row in kept] == [*texts, None]
    assert {row["_cause"][1] for row in kept} == {False}
    for value, told in (
        (wrong[3], "the value is no Debezium envelope.*Ann"),
        (truncated, 'the table was truncated .op "t"'),
    ):
        with pytest.raises(PySparkException, match=f"db.customers-0@1: {told}"):
            lab.rows([(None, envelope("c", None, ANN)), (None, value)], schema)
    with pytest.raises(PySparkException, match=r"db\.customers-0@0: the key does not fit the topic's schema"):
        lab.rows([({"id": "one"}, None)], schema, "id")


def test_columns_of_the_envelope_are_those_of_debeziums_own_unwrapping(lab: Lab) -> None:
    schema = (
        "id bigint, __op string, __ts_ms bigint, __source_ts_ms timestamp, __source_lsn bigint, __source_table string"
    )
    for given in (envelope("u", ANN, BEA), with_schema(envelope("u", ANN, BEA), FIELDS)):
        row, gone = lab.rows([({"id": 1}, given), ({"id": 1}, None)], schema)
        assert row.pop("__source_ts_ms").astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
        about = {"__op": "u", "__ts_ms": 1_700_000_000_223, "__source_lsn": 24023128, "__source_table": "customers"}
        assert row == {"id": 1, **about, "_cause": (0, False)}
        assert gone == {"id": 1, **dict.fromkeys([*about, "__source_ts_ms"]), "_cause": (1, True)}


def test_a_value_is_parsed_once(lab: Lab) -> None:
    frame = lab.frame([({"id": 1}, envelope("c", None, ANN))])
    topic = pipelines.Topic("db.customers", schema="id bigint, name string", key="id", envelope="debezium")
    plan = decode(frame, topic).where("id > 0 and name = 'Ann'")._jdf.queryExecution().executedPlan().toString()
    assert plan.count("from_json(") == 2, plan  # of the value and of the key


def test_what_cannot_be_declared(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="an envelope is opened with the schema"):
        pipelines.Topic("db.customers", envelope="debezium")
    with pytest.raises(ConfigError, match="envelope='maxwell'"):
        pipelines.Topic("db.customers", schema="id int", envelope="maxwell")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="column seen array<timestamp>: within others"):
        lab.rows([], "seen array<timestamp>")
    with pytest.raises(ConfigError, match="column __source_when: moments are"):
        lab.rows([], "id int, __source_when timestamp")
