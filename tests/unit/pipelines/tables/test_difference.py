"""Two versions of a table held against each other."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from duramen.pipelines.tables.difference import compare, compare_histories, difference


def table(**rows: int | None) -> pa.Table:
    found = [
        {"key": key, "value": value, "_topic": "t", "_partition": 0, "_offset": n}
        for n, (key, value) in enumerate(rows.items())
    ]
    return pa.Table.from_pylist(
        found,
        schema=pa.schema(
            [
                ("key", pa.string()),
                ("value", pa.int64()),
                ("_topic", pa.string()),
                ("_partition", pa.int32()),
                ("_offset", pa.int64()),
            ]
        ),
    )


def test_keys_are_told_apart() -> None:
    found = difference(table(a=1, b=2, c=None, d=None), table(e=5, b=3, c=None, d=4), ("key",))
    assert (found.old_rows, found.new_rows, found.only_old, found.only_new, found.differing) == (4, 4, 1, 1, 2)
    assert found.same == 1
    assert [row["key"] for row in found.samples["only_old"]] == ["a"]
    assert [row["key"] for row in found.samples["only_new"]] == ["e"]
    changed = sorted(found.samples["differing"], key=lambda row: row["key"])
    assert changed == [{"key": "b", "value": [2, 3]}, {"key": "d", "value": [None, 4]}]


def test_keys_of_another_width_are_the_same() -> None:
    old, new = (pa.table({"key": pa.array([1, 2], kind), "value": [3, 4]}) for kind in (pa.int32(), pa.int64()))
    for before, after in ((old, new), (new, old)):
        assert compare(before, after, ("key",), ("key",)).same == 2


def test_where_a_row_came_from_does_not_count() -> None:
    found = difference(table(a=1, b=2), table(b=2, a=1), ("key",))
    assert (found.differing, found.same) == (0, 2)


def test_a_number_that_is_none_is_no_difference() -> None:
    old = table(a=1, b=2, c=3, d=4).append_column("x", pa.array([float("nan"), float("nan"), None, 1.0]))
    new = table(a=1, b=2, c=3, d=4).append_column("x", pa.array([float("nan"), 1.0, float("nan"), 1.0]))
    assert sorted(row["key"] for row in difference(old, new, ("key",)).samples["differing"]) == ["b", "c"]


@pytest.mark.parametrize("keys", [("key",), ()])
def test_a_column_that_only_one_has_is_named_and_makes_no_row_differ(keys: tuple[str, ...]) -> None:
    """Every row differed, and which ones also differ in what both have could not be seen."""
    old, new = table(a=1, b=2), table(a=1, b=3)
    found = compare(old, new.append_column("more", pa.array([1, 2])), keys, keys)
    assert (found.differing, found.same, found.changed_columns) == (1, 1, {"value": 1})
    assert (found.columns_only_old, found.columns_only_new) == ([], ["more"])
    assert found.samples["differing"][0]["value"] == [2, 3]
    back = compare(old.append_column("more", pa.array([1, 2])), new, keys, keys)
    assert (back.differing, back.columns_only_old, back.columns_only_new) == (1, ["more"], [])


def test_it_is_told_in_which_columns_keys_differ() -> None:
    old = table(a=1, b=2, c=3).append_column("x", pa.array([1, 2, 3]))
    new = table(a=2, b=3, c=3).append_column("x", pa.array([1, 3, 3]))
    assert difference(old, new, ("key",)).changed_columns == {"value": 2, "x": 1}


def test_tables_of_other_keys_have_columns_apart_too() -> None:
    found = compare(table(a=1), table(a=1).append_column("more", pa.array([1])), ("key",), ("more",))
    assert (found.same, found.changed_columns, found.columns_only_new) == (0, {}, ["more"])


def test_histories_compare_record_by_record() -> None:
    old = pa.concat_tables([table(a=1, b=2), table(a=7, b=8)])
    new = pa.concat_tables([table(a=1, b=2), table(a=7, b=9).slice(1)])
    found = compare_histories(old, new)
    assert (found.old_rows, found.new_rows, found.only_old, found.only_new, found.differing) == (4, 3, 1, 0, 1)


FAR = 2**62
TOLD_FAR = f"{FAR} us since 1970"
MOMENT = pa.timestamp("us", "UTC")


def moments(*micros: int) -> pa.Array:
    return pa.array(micros, pa.int64()).cast(MOMENT)


@pytest.mark.parametrize("keys", [("key",), ()])
@pytest.mark.parametrize(
    ("column", "told"),
    [
        (moments(0, 1), "1970-01-01 00:00:00+00:00"),
        (moments(FAR, 1), TOLD_FAR),
        (pa.array([1, 2], pa.int32()).cast(pa.date32()), "1970-01-02"),
        (pa.array([10**7, 2], pa.int32()).cast(pa.date32()), "10000000 days since 1970"),
        (pa.array([Decimal("1.50"), Decimal("1.60")]), "1.50"),
        (pa.array([b"\xff", b""]), "\\xff"),
        (pa.StructArray.from_arrays([moments(FAR, 1)], ["at"]), {"at": TOLD_FAR}),
        (pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), moments(FAR, 1)), [TOLD_FAR]),
        (
            pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["a", "a"]), moments(0, 1)),
            {"a": "1970-01-01 00:00:00+00:00"},
        ),
    ],
    ids=["moment", "far moment", "day", "far day", "decimal", "bytes", "in a struct", "in a list", "in a map"],
)
def test_samples_can_be_written_down_whatever_their_columns(keys: tuple[str, ...], column: pa.Array, told: Any) -> None:
    """A report with a moment, a day, a decimal or bytes in it could not, so that such a table was never built anew."""
    old, new = (table(a=1).append_column("x", column[at : at + 1]) for at in range(2))
    found = compare(old, new, keys, keys)
    assert found.differing == 1
    assert found.samples["differing"][0]["x"][0] == told
    assert compare(old, old, keys, keys).differing == 0
    only = compare(old, new.slice(1), keys, keys).samples["only_old"]
    assert only[0]["x"] == told
    assert json.loads(json.dumps(found.samples)) == found.samples
