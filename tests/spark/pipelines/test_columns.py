"""Records to columns and back, on plain DataFrames: deletions, values that do not fit, filters that delete."""

from __future__ import annotations

import json
import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from files import RECORDS
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from duramen import pipelines
from duramen.errors import ConfigError
from duramen.pipelines.run.columns import carried, decode, encode, traced
from duramen.spark.sink.sink_rows import COLUMNS, check_schema

pytestmark = pytest.mark.timeout(600)
SCHEMA = "tail string, delay int"


def records(spark: SparkSession, *values: str | bytes | None) -> DataFrame:
    """Records of partition 3 from offset 0, with the keys N0, N1 and so on."""
    rows = [
        f"SELECT X'{f'N{n}'.encode().hex()}' AS key, "
        + ("NULL" if value is None else f"X'{(value if isinstance(value, bytes) else value.encode()).hex()}'")
        + f" AS value, 'flights' AS topic, 3 AS partition, {n}L AS offset, timestamp_seconds({n}) AS timestamp"
        for n, value in enumerate(values)
    ]
    found = spark.sql(" UNION ALL ".join(rows))
    return found.selectExpr(
        *(f"CAST({column} AS {kind}) AS {column}" for column, kind in map(str.split, RECORDS.split(", ")))
    )


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def test_the_key_and_deletions_come_along_to_a_table(spark: SparkSession) -> None:
    topic = pipelines.Topic("flights", schema=SCHEMA, key="tail")
    found = rows(traced(decode(records(spark, '{"delay":5}', None), topic), "aircraft"))
    place = {"_topic": "flights", "_partition": 3}
    assert found == [
        {"tail": "N0", "delay": 5, **place, "_offset": 0, "_deleted": False},
        {"tail": "N1", "delay": None, **place, "_offset": 1, "_deleted": True},
    ]


def keyed(spark: SparkSession, keys: list[str | None], value: str | None = "{}") -> DataFrame:
    given = records(spark, *[value] * len(keys))
    named = F.array(*(F.lit(key) for key in keys))[F.col("offset").cast("int")]
    return given.withColumn("key", named.cast("binary"))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("bigint", "-5", -5),
        ("int", "7", 7),
        ("double", "1.5", 1.5),
        ("boolean", "true", True),
        ("decimal(5,2)", "1.50", Decimal("1.50")),
        ("date", "2026-01-02", date(2026, 1, 2)),
        ("timestamp_ntz", "2026-01-02 03:04:05.6", datetime(2026, 1, 2, 3, 4, 5, 600_000)),
        ("string", "5", "5"),
        ("binary", "5", b"5"),
        ("struct<a:int>", '{"a":1}', '{"a":1}'),
    ],
)
def test_the_key_has_the_type_that_the_schema_gives_its_column(
    spark: SparkSession, kind: str, text: str, value: Any
) -> None:
    topic = pipelines.Topic("numbers", schema=f"id {kind}, v double", key="id")
    (found, deletion) = rows(
        decode(keyed(spark, [text, text]).where("offset = 0"), topic).union(decode(keyed(spark, [text], None), topic))
    )
    assert (found["id"], found["v"], deletion["id"], deletion["_cause"]["deleted"]) == (value, None, value, True)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("bigint", "abc"),
        ("bigint", "1.5"),
        ("int", "3000000000"),
        ("decimal(5,2)", "1.239"),
        ("date", "2026-01-02 03:04"),
    ],
)
def test_a_key_that_does_not_fit_fails_and_is_named_or_is_kept(spark: SparkSession, kind: str, text: str) -> None:
    given = keyed(spark, [text])
    with pytest.raises(PySparkException, match=rf"flights-3@0: the key does not fit {re.escape(kind)}: {text}"):
        rows(decode(given, pipelines.Topic("flights", schema=f"id {kind}", key="id")))
    (kept,) = rows(decode(given, pipelines.Topic("flights", schema=f"id {kind}", key="id", corrupt="keep")))
    assert (kept["id"], kept["_corrupt"]) == (None, text)


def test_without_a_key_the_field_of_the_value_is_taken(spark: SparkSession) -> None:
    topic = pipelines.Topic("flights", schema="id bigint", key="id")
    assert [row["id"] for row in rows(decode(keyed(spark, [None, "6"], '{"id":5}'), topic))] == [5, 6]


HEADERS = "array(named_struct('key', 'trace', 'value', X'6162'))"


@pytest.mark.parametrize("schema", [None, "n int"])
def test_headers_and_time_come_in_and_go_out(spark: SparkSession, schema: str | None) -> None:
    topic = pipelines.Topic("flights", schema=schema, options={"includeHeaders": "TRUE"})
    given = records(spark, '{"n":1}', None).withColumn("headers", F.expr(HEADERS))
    found = decode(given, topic)
    expected = {"headers": [Row(key="trace", value=bytearray(b"ab"))], "timestamp": datetime.fromtimestamp(1)}
    read = rows(found)[1]
    assert {name: read[name] for name in expected} == expected
    given = encode(found, "copy", None, carried(topic))
    check_schema(given.schema, "out")
    assert set(given.columns) <= set(COLUMNS)
    written = rows(given)
    assert {name: written[1][name] for name in expected} == expected
    assert [row["value"] for row in written] == [bytearray(b'{"n":1}'), None]
    dropped = rows(encode(found.drop("headers", "timestamp"), "copy", None, carried(topic)))[1]
    assert dropped["timestamp"] == datetime.fromtimestamp(1), "the time of the record it comes from"


def test_fields_of_these_names_are_the_values(spark: SparkSession) -> None:
    topic = pipelines.Topic("flights", schema="timestamp string, headers int", options={"includeHeaders": "true"})
    assert carried(topic) == ()
    found = decode(records(spark, '{"timestamp":"x","headers":1}').withColumn("headers", F.expr(HEADERS)), topic)
    (written,) = rows(encode(found, "copy", None, carried(topic)))
    assert written == {"value": b'{"timestamp":"x","headers":1}', "timestamp": datetime.fromtimestamp(0)}


def test_a_record_without_a_time_is_written_with_the_present_one(spark: SparkSession) -> None:
    given = records(spark, "{}").withColumn("timestamp", F.expr("timestamp_millis(-1)"))
    for schema in (None, "n int"):
        assert rows(encode(decode(given, pipelines.Topic("t", schema=schema)), "copy", None))[0]["timestamp"] is None


def test_a_dot_in_a_name_is_part_of_it(spark: SparkSession) -> None:
    given = records(spark, '{"a.b":5}', None)
    named = decode(given, pipelines.Topic("flights", schema="`a.b` int", key="tail"))
    assert [(row["tail"], row["a.b"]) for row in rows(traced(named, "step"))] == [("N0", 5), ("N1", None)]
    assert [row["value"] for row in rows(encode(named, "step", "tail"))] == [b'{"tail":"N0","a.b":5}', None]
    by_key = decode(given, pipelines.Topic("flights", schema="n int", key="a.b"))
    assert [row["key"] for row in rows(encode(by_key, "step", "a.b"))] == [b"N0", b"N1"]


def test_a_value_that_does_not_fit_fails_and_is_named_or_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    # From files: what is written into the query itself, Spark computes while it plans, in an order of its own.
    records(spark, '{"delay":5}', "{nonsense").write.parquet(str(tmp_path / "records"))
    given = spark.read.parquet(str(tmp_path / "records"))
    with pytest.raises(PySparkException, match=r"flights-3@1: the value does not fit.*nonsense"):
        rows(traced(decode(given, pipelines.Topic("flights", schema=SCHEMA)), "aircraft"))
    parsed = decode(given, pipelines.Topic("flights", schema=SCHEMA, key="tail"))
    for condition in ("delay > 1", "tail = 'N0'", "_cause.deleted", "_cause.offset = 0"):
        with pytest.raises(PySparkException, match="flights-3@1: the value does not fit"):
            rows(parsed.where(condition).select("delay"))
    kept = decode(given, pipelines.Topic("flights", schema=SCHEMA, corrupt="keep")).drop("_cause")
    assert {row["_corrupt"] for row in rows(kept)} == {None, "{nonsense"}


@pytest.mark.parametrize("value", ["", " ", "null", "[]"])
def test_a_value_that_is_nothing_is_no_row_without_values(value: str, spark: SparkSession) -> None:
    topic = pipelines.Topic("flights", schema=SCHEMA, key="tail", corrupt="keep")
    (kept, deletion) = rows(decode(records(spark, value, None), topic))
    assert (kept["_corrupt"], kept["_cause"]["deleted"]) == (value, False)
    assert (deletion["_corrupt"], deletion["_cause"]["deleted"]) == (None, True)


def test_bytes_that_are_no_text_do_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's JSON puts a character for each, the same for all, and says nothing."""
    records(spark, '{"tail":"\u00e9"}', b'{"tail":"\xff"}').write.parquet(str(tmp_path / "records"))
    given = spark.read.parquet(str(tmp_path / "records"))
    kept = decode(given, pipelines.Topic("flights", schema=SCHEMA, corrupt="keep")).drop("_cause")
    told = sorted((row["tail"], row["_corrupt"]) for row in rows(kept.na.fill("")))
    assert told == [("", '{"tail":"\ufffd"}'), ("\u00e9", "")]
    with pytest.raises(PySparkException, match=r"flights-3@1: the value does not fit"):
        rows(decode(given, pipelines.Topic("flights", schema=SCHEMA)).select("tail"))


@pytest.mark.parametrize("corrupt", ["fail", "keep"])
def test_a_value_is_parsed_once_whatever_the_function_asks_of_it(
    corrupt: str, spark: SparkSession, tmp_path: Path
) -> None:
    records(spark, '{"tail":"N0","delay":5}').write.parquet(str(tmp_path / "records"))
    topic = pipelines.Topic("flights", schema=SCHEMA, corrupt=corrupt)
    parsed = decode(spark.read.parquet(str(tmp_path / "records")), topic).where("delay > 1 and tail = 'N0'")
    plan = parsed._jdf.queryExecution().executedPlan().toString()
    assert plan.count("from_json(") == 1, plan
    assert len(rows(parsed)) == 1


def test_a_number_that_a_tinyint_does_not_hold_does_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    """Spark makes negative numbers of 128 to 255, and says nothing."""
    schema = "n tinyint, s struct<n: tinyint, t: string>, l array<struct<n: tinyint>>, m map<string, tinyint>"
    fit = ['{"n":127,"s":{"n":-128,"t":"x"},"l":[{"n":1},null,{}],"m":{"a":null,"b":-1}}', "{}", '{"s":{},"l":[]}']
    beyond = ['{"n":128}', '{"n":-129}', '{"s":{"n":255}}', '{"l":[{"n":1},{"n":200}]}', '{"m":{"a":1,"b":130}}']
    records(spark, *fit, *beyond, '{"n":"1"}', None).write.parquet(str(tmp_path / "records"))
    given = spark.read.parquet(str(tmp_path / "records"))
    topic = pipelines.Topic("flights", schema=schema, corrupt="keep")
    kept = decode(given, topic).orderBy("_cause.offset")
    assert [field.dataType.simpleString() for field in kept.schema.fields[:4]] == [
        "tinyint",
        "struct<n:tinyint,t:string>",
        "array<struct<n:tinyint>>",
        "map<string,tinyint>",
    ]
    found = rows(kept)
    assert [row["_corrupt"] for row in found] == [None] * 3 + beyond + ['{"n":"1"}', None]
    assert (found[0]["n"], found[0]["s"].n, found[0]["m"]) == (127, -128, {"a": None, "b": -1})
    assert all(row[name] is None for row in found[3:] for name in ("n", "s", "l", "m"))
    plan = decode(given, topic)._jdf.queryExecution().executedPlan().toString()
    assert plan.count("from_json(") == 1, plan


def test_a_filter_that_deletes_and_what_a_stream_writes(spark: SparkSession) -> None:
    topic = pipelines.Topic("flights", schema=SCHEMA, key="tail")
    given = decode(records(spark, '{"delay":5}', '{"delay":50}', '{"delay":null}', None), topic)
    found = rows(encode(pipelines.where(given, "delay > 10"), "late", "tail"))
    values = {bytes(row["key"]): None if row["value"] is None else json.loads(bytes(row["value"])) for row in found}
    assert values == {b"N0": None, b"N1": {"tail": "N1", "delay": 50}, b"N2": None, b"N3": None}


def test_a_column_that_is_called_value_is_one_of_the_others(spark: SparkSession) -> None:
    """The sink would have taken it for the whole record, without its key and the other columns."""
    schema = "tail string, value string, unit string"
    given = decode(records(spark, '{"value":"5","unit":"min"}'), pipelines.Topic("flights", schema=schema, key="tail"))
    (found,) = rows(encode(given, "late", "tail"))
    told = {"tail": "N0", "value": "5", "unit": "min"}
    assert (bytes(found["key"]), json.loads(bytes(found["value"]))) == (b"N0", told)
    (plain,) = rows(encode(decode(records(spark, "any"), pipelines.Topic("flights")), "copy", None))
    assert (bytes(plain["key"]), bytes(plain["value"]), set(plain)) == (b"N0", b"any", {"key", "value", "timestamp"})


def test_a_deletion_of_rows_that_are_records_already_has_no_value(spark: SparkSession) -> None:
    """They were written as they were: a filter that deletes let all of them through."""
    given = decode(records(spark, "late", "early", None), pipelines.Topic("flights"))
    kept = pipelines.where(given, "CAST(value AS STRING) = 'late'")
    for found in (encode(kept, "copy", None), encode(kept, "copy", "key"), encode(kept.drop("key"), "copy", None)):
        assert [row["value"] and bytes(row["value"]) for row in rows(found)] == [b"late", None, None]
    texts = kept.withColumn("value", F.col("value").cast("string")).select("key", "value", "_cause")
    assert [row["value"] for row in rows(encode(texts, "copy", None))] == ["late", None, None]
    assert len(rows(encode(given.drop("_cause"), "copy", None))) == 3


def test_a_stream_writes_every_column_whatever_its_name_begins_with(spark: SparkSession) -> None:
    topic = pipelines.Topic("flights", schema="_id string, n int", corrupt="keep")
    given = decode(records(spark, '{"_id":"a","n":5}', "{"), topic)
    whole, broken = (json.loads(bytes(row["value"])) for row in rows(encode(given, "late", None)))
    assert whole == {"_id": "a", "n": 5, "_corrupt": None}
    assert broken == {"_id": None, "n": None, "_corrupt": "{"}


def test_what_a_stream_writes_its_readers_get_to_the_microsecond(spark: SparkSession) -> None:
    """A moment was cut off to milliseconds: a table that orders rows by it took the wrong one for later."""
    schema = "seen timestamp, plain timestamp_ntz, inside struct<at: timestamp>, day date, n decimal(20,6), b binary"
    for moment in ("2020-01-02 03:04:05.123456", "1905-01-02 03:04:05", "2020-01-02 03:04:05.000001"):
        told = {"seen": moment, "plain": moment, "inside": {"at": moment}, "day": "2020-01-02", "n": 1.5, "b": "AP8="}
        topic = pipelines.Topic("flights", schema=schema, key="tail")
        given = decode(records(spark, json.dumps(told)), topic)
        (wanted,) = rows(given.drop("_cause"))
        (record,) = rows(encode(given, "late", "tail"))
        (found,) = rows(decode(records(spark, bytes(record["value"]).decode()), topic).drop("_cause"))
        assert found == wanted
        assert moment.replace(" ", "T") in bytes(record["value"]).decode()


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_old_moments_stay_where_they_are_whatever_the_zone(zone: str, spark: SparkSession) -> None:
    """New York was 4 h 56 min 2 s behind until 1883; the two seconds were left away, and the moment was another one."""
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        topic = pipelines.Topic("flights", schema="born timestamp", key="tail")
        given = decode(records(spark, '{"born":"1880-01-01T00:00:00.000001Z"}'), topic)
        (record,) = rows(encode(given, "late", "tail"))
        again = decode(records(spark, bytes(record["value"]).decode()), topic)
        (at, found) = (frame.selectExpr("unix_micros(born) AS at").collect()[0].at for frame in (given, again))
        assert (at, found) == (-2_840_140_799_999_999, at)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_other_keys_are_other_texts(spark: SparkSession) -> None:
    """As Spark has them, two moments of the night in which clocks go back were one key, and structs that differ."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        found = []
        for schema, values in {
            "at timestamp": ['"2024-11-03T05:30:00Z"', '"2024-11-03T06:30:00Z"', "null"],
            "at struct<a: string, b: string>": ['{"a":"x, y","b":"z"}', '{"a":"x","b":"y, z"}'],
            "at array<string>": ['["x, y"]', '["x","y"]'],
        }.items():
            given = decode(
                records(spark, *(f'{{"at":{value}}}' for value in values)), pipelines.Topic("t", schema=schema)
            )
            found.append([row["key"] and bytes(row["key"]).decode() for row in rows(encode(given, "late", "at"))])
            # The same where records have no key, and a topic is read by one that is in their values.
            keyless = records(spark, *(f'{{"at":{value}}}' for value in values)).withColumn("key", F.lit(None))
            named = decode(keyless, pipelines.Topic("t", schema=schema, key="at"))
            again = [row["key"] and bytes(row["key"]).decode() for row in rows(encode(named, "late", "at"))]
            assert again == found[-1]
        assert found == [
            ["2024-11-03T05:30:00.000000Z", "2024-11-03T06:30:00.000000Z", None],
            ['{"a":"x, y","b":"z"}', '{"a":"x","b":"y, z"}'],
            ['["x, y"]', '["x","y"]'],
        ]
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_what_is_missing_is_told_before_anything_runs(spark: SparkSession) -> None:
    given = decode(records(spark, "{}"), pipelines.Topic("flights", schema=SCHEMA))
    with pytest.raises(ConfigError, match="aircraft loses _cause"):
        traced(given.select("tail"), "aircraft")
    with pytest.raises(ConfigError, match="no column key"):
        encode(given, "late", "key")
