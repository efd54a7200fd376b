"""Two versions of a table held against each other."""

from __future__ import annotations

import pyarrow as pa

from duramen.pipelines.difference import compare_histories, difference


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


def test_where_a_row_came_from_does_not_count() -> None:
    found = difference(table(a=1, b=2), table(b=2, a=1), ("key",))
    assert (found.differing, found.same) == (0, 2)


def test_a_number_that_is_none_is_no_difference() -> None:
    old = table(a=1, b=2, c=3, d=4).append_column("x", pa.array([float("nan"), float("nan"), None, 1.0]))
    new = table(a=1, b=2, c=3, d=4).append_column("x", pa.array([float("nan"), 1.0, float("nan"), 1.0]))
    assert sorted(row["key"] for row in difference(old, new, ("key",)).samples["differing"]) == ["b", "c"]


def test_a_column_that_only_one_has_differs_everywhere() -> None:
    old = table(a=1, b=2)
    found = difference(old, old.append_column("more", pa.array([1, 2])), ("key",))
    assert found.differing == 2
    assert found.samples["differing"][0] == {"key": "a", "more": [None, 1]}


def test_histories_compare_record_by_record() -> None:
    old = pa.concat_tables([table(a=1, b=2), table(a=7, b=8)])
    new = pa.concat_tables([table(a=1, b=2), table(a=7, b=9).slice(1)])
    found = compare_histories(old, new)
    assert (found.old_rows, found.new_rows, found.only_old, found.only_new, found.differing) == (4, 3, 1, 0, 1)
