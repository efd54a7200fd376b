"""Values as text and as typed fields: which rows decode, what the others say, and that none takes another's place."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import CharType, DateType, StructType

from duramen.errors import ConfigError
from duramen.spark.codec import typed_values
from duramen.spark.codec.schema import arrow_schema, ddl
from duramen.spark.codec.typed_values import TypedValues, json_values, texts
from duramen.spark.options.options import BATCH, parse

KIND = pa.struct([("a", pa.int64()), ("b", pa.string())])
DOCUMENTS = st.fixed_dictionaries(
    {}, optional={"a": st.one_of(st.none(), st.integers(-(2**60), 2**60)), "b": st.text(max_size=5), "c": st.booleans()}
)
# Pieces that join with their neighbours or split into several documents, if anything lets them.
BROKEN = st.sampled_from(
    [
        b"",
        b" ",
        b"{",
        b"}",
        b'{"a":1}{"a":2}',
        b'{"a":1},{"a":2}',
        b'{"a":1',
        b'"b":2}',
        b'{"a":"x"}',
        b"[]",
        b"5",
        b"\xff",
        b'{"b":"\xff"}',
        b'{"a":1}]}\n{"v":[{"a":2}',
        b'{"b":"x\ny"}',
        b"nul",
        b"null",
        b" null\n",
        b'{"a":1.5}',
        b"]}",
        b'{"v":[',
        b'{"a":1}],"w":[{"a":2}',
        b'{"a":1} ] , "w" : [ 2',
        b'{"a":1}], "w":{"c":[1],"d":[{}',
    ]
)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.one_of(DOCUMENTS, st.none(), BROKEN), max_size=12))
def test_every_row_is_decoded_alone(rows: list[dict[str, object] | bytes | None]) -> None:
    stored = [json.dumps(row).encode() if isinstance(row, dict) else row for row in rows]
    values, reasons = json_values(pa.array(stored, pa.binary()), KIND)
    values.validate(full=True)
    assert values.type == KIND
    for row, value, reason in zip(rows, values.to_pylist(), reasons.to_pylist(), strict=True):
        if row is None:
            assert (value, reason) == (None, None)
        elif isinstance(row, bytes):
            assert value is None
            assert reason
        else:
            assert value == {"a": row.get("a"), "b": row.get("b")}
            assert reason is None


def test_rows_in_a_broken_batch_are_what_each_is_alone() -> None:
    """Whatever is set aside, cut out or taken for one like it: the same value and the same reason."""
    shown = (
        rb"not json~<html>~~ ~nul~null~null x~truer~true~fals~"
        rb'"text"~"te~5~5.5~5.~-~-7~01~5e~[1]~[~]~}~,~:~"~'
        rb'{"a":1~{"a":2~{"a":1,~{"a":1,"b":"x~{"a":"x"}~{"a":"y"}~{"b":1}~{"b":2.5}~{"a":1.5}~{"a":2.5}~'
        rb'{"a":123456789012345678901}~{"a":1}{"a":2}~{"a":1} x~{"a":1 "b":2}~{"a" 1}~{a:1}~{"b":"\q"}~{"b":"\u12"}~'
        rb'{"b":"\u1234~{"a":1,"a":2}~{"a":{"c":1}}~{"a":[1]}~{"c":[1,{"d":"x"}],"a":3}~{"a":4}~{"b":"four"}~{}~'
        rb'{"a":null}~{"c":01}~{"c":1.}~{"c":1-2}~{"c":1.5.5}~{"c":tru}~{"c":"a"b"}~{"c":"a"1"}'
    ).split(b"~")
    hidden = (
        b'\xff{}~{"b":"\xff"}~\xef\xbb\xbf{}~\x01~\x02~\x03~{"a":1}]}\n{"v":[{"a":2}~{"b":"x\ny"}~{ "a": 5 }\n'
        b'~{"a1":{"a":"x"~{"a":1,"b":2~{"a":"1","b":2~{"b":"x\n1","a":"2"}~{"b":"2\n1","a":"2"}'
    ).split(b"~")
    texts = shown + hidden
    alone = {text: _first(*json_values(pa.array([text], pa.binary()), KIND)) for text in texts}
    rows = [text for times in range(3) for text in texts[times:] + texts[: times * 2]]
    values, reasons = json_values(pa.array(rows, pa.binary()), KIND)
    values.validate(full=True)
    assert list(zip(values.to_pylist(), reasons.to_pylist(), strict=True)) == [alone[row] for row in rows]


def _first(values: pa.StructArray, reasons: pa.StringArray) -> tuple[object, str | None]:
    return values[0].as_py(), reasons[0].as_py()


@pytest.mark.parametrize(
    "broken", ["not json", "timeout of %d", "<html>%d", '{"a":%d', '{"a":%d,"b":"x', '{"a":%d} x', '["%d"]', "%d", ""]
)
@pytest.mark.parametrize("each", [1000, 100, 10])
def test_broken_rows_cost_no_call_of_arrow_each(broken: str, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    read = typed_values._read
    monkeypatch.setattr(typed_values, "_read", lambda *args, **more: (calls.append(1), read(*args, **more))[1])
    rows = [broken.replace("%d", str(row)) if row % each == 7 else f'{{"a":{row},"b":"x"}}' for row in range(4500)]
    values, reasons = json_values(pa.array([row.encode() for row in rows], pa.binary()), KIND)
    assert values.null_count == 4500 - reasons.null_count == len(range(7, 4500, each))
    assert len(calls) < 20


@pytest.mark.parametrize(
    ("broken", "most"), [('{"a":"%d"}', 20), ('{"a":%d.5}', 500), ('{"a":%d99999999999999999999}', 500)]
)
def test_rows_of_a_wrong_type_are_told_by_their_outline(
    broken: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow names one after the other, or none: what is made like the first few is set aside, and parsed alone."""
    calls = []
    read = typed_values._read
    monkeypatch.setattr(typed_values, "_read", lambda *args, **more: (calls.append(1), read(*args, **more))[1])
    rows = [broken % row if row % 10 == 7 else f'{{"a":{row}}}' for row in range(4500)]
    _, reasons = json_values(pa.array([row.encode() for row in rows], pa.binary()), KIND)
    assert reasons.null_count == 4500 - 450
    assert len(calls) < most


def test_sound_rows_that_are_made_like_broken_ones_are_not_parsed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    read = typed_values._read
    monkeypatch.setattr(typed_values, "_read", lambda *args, **more: (calls.append(1), read(*args, **more))[1])
    kind = pa.struct([("a", pa.int8())])
    rows = [b'{"a":300}' if row % 500 == 7 else b'{"a":%d}' % (row % 100) for row in range(4500)]
    values, reasons = json_values(pa.array(rows, pa.binary()), kind)
    assert [value["a"] if value else None for value in values.to_pylist()] == [
        None if row % 500 == 7 else row % 100 for row in range(4500)
    ]
    assert reasons.null_count == 4500 - 9
    assert len(calls) < 500


def test_arrays_with_something_behind_them_are_no_broken_rows() -> None:
    """A text that closes the array that it was put into, and opens another, was taken for its first part."""
    kind = pa.struct([("a", pa.list_(pa.int64())), ("b", pa.list_(pa.list_(pa.string())))])
    rows = [{"a": [1], "b": [["],"], ["x"]]}, {"a": [], "c": [[1], [2]], "b": []}, None, {"b": [[]], "a": [None]}]
    stored = [row and json.dumps(row, indent=indent).encode() for row in rows for indent in (None, 1)]
    broken = b'{"a":[7],"b":[]}],"w":[0'
    values, reasons = json_values(pa.array([broken, *stored, broken], pa.binary()), kind)
    wanted = [row and {"a": row["a"], "b": row["b"]} for row in rows for _ in range(2)]
    assert values.to_pylist() == [None, *wanted, None]
    assert [reason is None for reason in reasons.to_pylist()] == [False, *[True] * len(stored), False]


def test_a_pretty_printed_document_is_one_row() -> None:
    values, reasons = json_values(pa.array([json.dumps({"a": 1}, indent=2).encode()]), KIND)
    assert values.to_pylist() == [{"a": 1, "b": None}]
    assert reasons.null_count == 1


def test_the_reason_says_what_was_wrong() -> None:
    _, reasons = json_values(pa.array([b'{"a":"x"}', b"{"], pa.binary()), KIND)
    wrong_type, cut_off = reasons.to_pylist()
    assert "changed from number to string" in wrong_type
    assert "Missing" in cut_off or "parse" in cut_off.lower() or "Invalid" in cut_off


@settings(deadline=None)
@given(rows=st.lists(st.one_of(st.none(), st.binary(max_size=6), st.text(max_size=4).map(str.encode)), max_size=8))
def test_text_is_text_or_says_why_not(rows: list[bytes | None]) -> None:
    values, reasons = texts(pa.array(rows, pa.binary()))
    for row, value, reason in zip(rows, values.to_pylist(), reasons.to_pylist(), strict=True):
        try:
            assert value == (None if row is None else row.decode())
            assert reason is None
        except UnicodeDecodeError:
            assert value is None
            assert "UTF-8" in reason


@pytest.mark.parametrize("wanted", [["offset"], ["value"], ["_corrupt", "offset", "value"]])
def test_only_wanted_columns_are_made(wanted: list[str]) -> None:
    kinds = {"offset": pa.int64(), "_corrupt": pa.string(), "value": KIND}
    schema = pa.schema([(name, kinds[name]) for name in wanted])
    typed = TypedValues("json", schema)
    have = {"offset": pa.array([4]), "value": pa.array([b"{}"], pa.binary())}
    raw = pa.RecordBatch.from_arrays([have[name] for name in typed.raw_schema.names], schema=typed.raw_schema)
    made = typed.convert(raw)
    assert made.schema.equals(schema)
    assert ("value" in typed.raw_schema.names) == (wanted != ["offset"])


def test_types_that_json_is_not_read_as_are_refused_by_field() -> None:
    schema = StructType().add("value", StructType().add("when", DateType()))
    options = parse({"bootstrap.servers": "h:1", "valueFormat": "json", "valueSchema": "when date"}, BATCH)
    with pytest.raises(ConfigError, match=r"value\.when is date32"):
        arrow_schema(schema, options)
    with pytest.raises(ConfigError, match=r"valueSchema has a field .*CharType"):
        arrow_schema(StructType().add("value", StructType().add("code", CharType(3))), options)
    inner = StructType().add("id", "long", nullable=False)
    with pytest.raises(ConfigError, match=r"value\.in\.id is NOT NULL"):
        arrow_schema(StructType().add("value", StructType().add("in", inner)), options)
    twice = StructType().add("id", "long").add("id", "string")
    with pytest.raises(ConfigError, match=r"there are two fields value\.id"):
        arrow_schema(StructType().add("value", twice), options)


def test_the_reason_why_fields_do_not_decode_needs_the_fields() -> None:
    given = {"bootstrap.servers": "h:1", "valueFormat": "json", "valueSchema": "a bigint"}
    corrupt = StructType().add("_corrupt", "string")
    with pytest.raises(ConfigError, match="column _corrupt needs column value"):
        arrow_schema(corrupt, parse(given, BATCH))
    schema = arrow_schema(corrupt, parse({"bootstrap.servers": "h:1", "valueFormat": "string"}, BATCH))
    raw = pa.RecordBatch.from_arrays([pa.array([b"\xff", b"a"], pa.binary())], names=["value"])
    assert TypedValues("string", schema).convert(raw).column("_corrupt").null_count == 1


def test_columns_and_schemas_that_the_source_does_not_have_are_refused() -> None:
    options = parse({"bootstrap.servers": "h:1"}, BATCH)
    assert arrow_schema(StructType().add("offset", "long"), options).names == ["offset"]
    with pytest.raises(ConfigError, match="headers need includeHeaders"):
        arrow_schema(StructType().add("headers", "string"), options)
    with pytest.raises(ConfigError, match="column offset is bigint, not string"):
        arrow_schema(StructType().add("offset", "string"), options)
    with pytest.raises(ConfigError, match="there is no column nothing"):
        ddl(parse({"bootstrap.servers": "h:1", "columns": "key,nothing"}, BATCH))
    with pytest.raises(ConfigError, match="needs valueSchema"):
        ddl(parse({"bootstrap.servers": "h:1", "valueFormat": "json"}, BATCH))


@pytest.mark.parametrize(
    ("floats", "number"),
    [(pa.float32(), number) for number in ("1e40", "-1e40", "3.4028236e38", "9" * 60)] + [(pa.float64(), "1e400")],
)
def test_a_number_that_no_float_holds_does_not_decode(floats: pa.DataType, number: str) -> None:
    """Of one that is too big for a double Arrow says so; of a float it made an infinity, which was handed on."""
    inner = pa.struct([("f", floats)])
    kind = pa.struct([("f", floats), ("s", inner), ("l", pa.list_(floats)), ("r", pa.list_(inner)), ("n", pa.int64())])
    good = [b'{"f":3.4028235e38,"l":[1e-60,null],"s":{"f":null},"r":[{"f":2}],"n":1}', b"{}", b'{"l":null}']
    broken = [text % number.encode() for text in (b'{"f":%s}', b'{"s":{"f":%s}}', b'{"l":[1,%s]}', b'{"r":[{"f":%s}]}')]
    rows = [good[0], broken[0], None, broken[1], good[1], broken[2], broken[3], good[2]]
    values, reasons = json_values(pa.array(rows, pa.binary()), kind)
    for row, value, reason in zip(rows, values.to_pylist(), reasons.to_pylist(), strict=True):
        assert (value is None) == (row is None or row in broken)
        assert (reason is None) == (row not in broken)
        assert reason is None or reason.startswith("Number too big to be stored in")


def test_a_decimal_of_more_digits_than_its_type_does_not_decode() -> None:
    """Arrow counts the digits of 1000 before it makes 1000.00 of it, which five digits do not hold."""
    few, many = pa.decimal128(5, 2), pa.decimal128(38, 18)
    kind = pa.struct([("f", few), ("m", many), ("l", pa.list_(pa.struct([("f", few)])))])
    good = [
        b'{"f":999.99,"m":99999999999999999999.999999999999999999}',
        b'{"f":-999,"m":-99999999999999999999,"l":[{"f":1e2},{"f":null}]}',
        b"{}",
    ]
    broken = [b'{"f":1000}', b'{"f":-1e3}', b'{"m":100000000000000000000}', b'{"l":[{"f":1},{"f":99999}]}']
    rows = [good[0], broken[0], None, *broken[1:], *good[1:]]
    values, reasons = json_values(pa.array(rows, pa.binary()), kind)
    for row, value, reason in zip(rows, values.to_pylist(), reasons.to_pylist(), strict=True):
        assert (value is None) == (row is None or row in broken), row
        assert (reason is None) == (row not in broken)
        assert reason is None or "decimal128(" in reason
    assert values[0].as_py()["m"] == Decimal("99999999999999999999.999999999999999999")


def test_a_moment_in_no_zone_has_none() -> None:
    """It was given in UTC: another moment than the text says."""
    naive = pa.timestamp("us")
    kind = pa.struct([("at", naive), ("l", pa.list_(pa.struct([("at", naive)]))), ("z", pa.timestamp("us", "UTC"))])
    good = [
        b'{"at":"2020-01-01T00:00:00","z":"2020-01-01T00:00:00+02:00"}',
        b'{"at":"1500-02-28 23:59:59.000001","l":[{"at":"2020-01-01"},{},{"at":null}]}',
        b'{"l":null}',
    ]
    broken = [b'{"at":"2020-01-01T00:00:00+02:00"}', b'{"at":"2020-01-01T00:00:00Z"}', b'{"l":[{"at":"2020-01-01Z"}]}']
    broken += [b'{"at":"2020-01-01T00:00:00Z","l":[{}]}', b'{"at":5}', b'{"at":""}', b'{"at":"2020-02-30"}']
    rows = [good[0], *broken[:3], None, *broken[3:], *good[1:]]
    values, reasons = json_values(pa.array(rows, pa.binary()), kind)
    assert values.type == kind
    for row, value, reason in zip(rows, values.to_pylist(), reasons.to_pylist(), strict=True):
        assert (value is None) == (row is None or row in broken), row
        assert (reason is None) == (row not in broken)
    assert values[0].as_py()["at"] == datetime(2020, 1, 1)
    assert values[0].as_py()["z"] == datetime(2019, 12, 31, 22, tzinfo=UTC)
