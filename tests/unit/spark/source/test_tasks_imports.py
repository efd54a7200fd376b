"""What a Python worker loads to read: every task pays for it, so that half a second of pandas is not among it."""

from __future__ import annotations

import subprocess
import sys

import pytest

READ = """
import sys
import pyarrow as pa
import pyspark_duramen
from duramen.spark.codec.decode import Decoder, RecordFilter
from duramen.spark.codec.typed_values import TypedValues
from duramen.wire.batch import build_batch

columns = {
    "key": pa.binary(), "value": VALUE, "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"), "timestampType": pa.int32(), "_corrupt": pa.string(),
    "headers": pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
}
if FORMAT == "binary":
    del columns["_corrupt"]
typed = TypedValues(FORMAT, pa.schema(list(columns.items())))
batch = build_batch([(b"k", b'{"a":1}', (), 9), (None, None, [(b"h", b"x")], 9), (None, b"\\xff", (), 9)])
decoder = Decoder("t", 0, RecordFilter(0, 3), typed.raw_schema, 1 << 20)
(rows,) = [typed.convert(made) for made in decoder.decode(memoryview(batch))]
values = rows.column("value").to_pylist()
assert values == [EXPECTED, None, BROKEN] and rows.column("headers").to_pylist()[1]
if "_corrupt" in columns:
    assert [text is None for text in rows.column("_corrupt").to_pylist()] == [True, True, False]
heavy = {"pandas", "confluent_kafka", "deltalake", "duramen.server", "duramen.pipelines"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    ("format", "value", "expected", "broken"),
    [
        ("binary", "pa.binary()", """b'{"a":1}'""", "b'\\xff'"),
        ("string", "pa.string()", """'{"a":1}'""", "None"),
        ("json", "pa.struct([('a', pa.int64())])", "{'a': 1}", "None"),
    ],
)
def test_reading_rows_does_not_load_pandas(format: str, value: str, expected: str, broken: str) -> None:
    program = READ.replace("FORMAT", repr(format)).replace("VALUE", value).replace("EXPECTED", expected)
    program = program.replace("BROKEN", broken)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


PLAN = """
import sys
from pyspark_duramen import DefaultSource
from pyspark.sql.types import BinaryType, StructField, StructType

def check(*unwanted):
    loaded = [name for name in sys.modules if name.startswith(unwanted)]
    assert not loaded, loaded

given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
source = DefaultSource(given)
assert source.schema().startswith("`key` binary")
check("pyarrow.compute", "duramen.client", "duramen.spark.codec.decode", "duramen.spark.sink.sink_delivery")
schema = StructType([StructField("value", BinaryType())])
source.reader(schema)
source.streamReader(schema)
check("pyarrow.compute", "duramen.spark.codec.decode", "duramen.spark.codec.encode", "duramen.spark.sink.sink_delivery")
"""


def test_each_process_of_a_query_loads_what_it_does_and_no_more() -> None:
    """One tells the schema, one plans: neither decodes, encodes or computes."""
    done = subprocess.run([sys.executable, "-c", PLAN], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
