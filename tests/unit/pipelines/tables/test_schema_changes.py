"""An error tells what differs, not two schemas."""

from __future__ import annotations

import pyarrow as pa
import pytest

from duramen.pipelines.tables.changelog import TRACE
from duramen.pipelines.tables.schema_changes import changes

PLACE = pa.struct([("city", pa.string()), ("zip", pa.string())])
TABLE = pa.schema([("id", pa.string()), ("amount", pa.float64()), ("place", PLACE)])


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({}, ""),
        ({"coupon": pa.string()}, "adds coupon string"),
        ({"amount": None}, "drops amount double"),
        ({"amount": pa.int64()}, "changes amount double to int64"),
        ({"place": pa.struct([*PLACE, ("lat", pa.float32())])}, "adds place.lat float"),
        ({"place": pa.struct([("city", pa.int32())])}, "drops place.zip string, changes place.city string to int32"),
        ({"place": pa.string()}, "changes place struct<city: string, zip: string> to string"),
        ({"amount": None, "total": pa.float64()}, "adds total double, drops amount double"),
    ],
)
def test_the_difference_alone_is_told(columns: dict[str, pa.DataType | None], told: str) -> None:
    kinds = {field.name: field.type for field in TABLE} | columns
    new = pa.schema([(name, kind) for name, kind in kinds.items() if kind is not None])
    assert changes(pa.schema([*TABLE, *TRACE]), new) == told


def test_another_order_is_no_difference() -> None:
    assert changes(TABLE, pa.schema(list(TABLE)[::-1])) == ""
