"""`duramen spark trace` and `status` on a table that is there: what they print at 80 columns, and as JSON."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from duramen import pipelines
from duramen.cli.main import main
from duramen.cli.spark import trace as spark_trace
from duramen.cli.spark.progress import _ago
from duramen.cli.spark.reprocess import lines
from duramen.errors import ConfigError
from duramen.model import topic_id_text
from duramen.pipelines.model.folders import StepFolder
from duramen.pipelines.model.offsets import Cause, Offsets
from duramen.pipelines.model.table_shape import ALSO, TIMESTAMP, TableShape
from duramen.pipelines.run.reprocess import Report
from duramen.pipelines.tables.difference import Difference
from duramen.pipelines.tables.parquet_store import ParquetStore

PIPELINE = """
from duramen import pipelines

pipeline = pipelines.Pipeline("tour")


@pipeline.table(pipelines.Topic("flights", key="tail", schema="dest string"), keys=["tail"], store="parquet")
def aircraft(flights):
    return flights
"""
OWN = pa.schema([("tail", pa.string()), ("dest", pa.string())])
TRACED = pa.schema(
    [*OWN, ("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()), ("_deleted", pa.bool_())]
)
TODAY = bytes([7] * 16)
KEYS = {0: b"N1", 1: b"N2", 2: b"N1", 3: b"N2", 4: b"N3"}


class Records:
    """A node that knows the records of `flights-0`."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def record(self, cause: Cause) -> tuple[bytes | None, bytes | None] | None:
        return (KEYS[cause.offset], b'{"dest":"ORD"}') if cause.offset in KEYS else None

    def topic_id(self, topic: str) -> str:
        return topic_id_text(TODAY)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """A table of two batches, 0 to 2 and 3 to 4; and a call that gives the exit code and what was printed."""
    monkeypatch.setattr("sys.path", sys.path.copy())
    monkeypatch.setattr(spark_trace, "PipelineNode", Records)
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "tour.py"
    file.write_text(PIPELINE)
    store = ParquetStore(tmp_path / "tables" / "aircraft" / "v1" / "table", TableShape(("tail",)), OWN)

    def row(tail: str, dest: str | None, offset: int) -> dict[str, object]:
        place = {"_topic": "flights", "_partition": 0, "_offset": offset, "_deleted": dest is None}
        return {"tail": tail, "dest": dest, **place}

    first = [row("N1", "IAH", 0), row("N2", "MIA", 1), row("N1", "SFO", 2)]
    for number, (rows, end) in enumerate(((first, 3), ([row("N2", None, 3), row("N3", "ORD", 4)], 5))):
        store.apply(pa.Table.from_pylist(rows, TRACED), "q", number, Offsets({("flights", 0): end}))

    def ask(command: str, *words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["spark", command, str(file), *words, "--folder", str(tmp_path / "tables")])
        said = capsys.readouterr()
        return code, said.out + said.err

    return ask


def test_a_table_without_a_batch_is_no_error(asked, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    shutil.rmtree(tmp_path / "tables")
    ParquetStore(tmp_path / "tables" / "aircraft" / "v1" / "table", TableShape(("tail",)), OWN)
    assert asked("status")[0] == 0
    code, said = asked("trace", "aircraft", "--record", "flights-0@0")
    assert (code, "aircraft holds nothing yet: `duramen spark run` fills it" in said) == (1, True)


def test_what_became_of_a_record(asked) -> None:  # type: ignore[no-untyped-def]
    def state(offset: int) -> object:
        code, said = asked("trace", "aircraft", "--record", f"flights-0@{offset}", "--json")
        assert code == 0, said
        return json.loads(said)["now"][0]["state"]

    assert state(0) == "superseded by flights-0@2 in table version 0", "in its own batch: it made no row"
    assert state(1) == "superseded by flights-0@3 in table version 1, which deleted it"
    assert state(2) == state(4) == "current"
    code, said = asked("trace", "aircraft", "--record", "flights-0@0")
    assert code == 0
    assert "tail=N1  state=superseded by flights-0@2" in said
    assert "a later record of its batch took its place" in said


def test_what_became_of_a_version(asked, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A record's version ends where a later record says, in whichever order they came."""
    (tmp_path / "tour.py").write_text(PIPELINE.replace('["tail"]', '["tail"], version="dest", history="scd2"'))
    shutil.rmtree(tmp_path / "tables")
    folder, shape = tmp_path / "tables" / "aircraft" / "v1" / "table", TableShape(("tail",), "dest", history="scd2")
    store = ParquetStore(folder, shape, OWN)
    for at, (dest, deleted) in enumerate(
        (("AUS", False), ("ORD", False), ("MIA", False), ("ORD", False), ("SFO", True))
    ):
        place = {"_topic": "flights", "_partition": 0, "_offset": at, "_deleted": deleted}
        given = pa.Table.from_pylist([{"tail": "N1", "dest": dest, **place}], TRACED)
        store.apply(given, "q", at, Offsets({("flights", 0): at + 1}))

    def state(offset: int) -> object:
        code, said = asked("trace", "aircraft", "--record", f"flights-0@{offset}", "--json")
        assert code == 0, said
        found = json.loads(said)
        assert len(found["rows"]) == len(found["now"]) == 1
        return found["now"][0]["state"]

    assert [state(offset) for offset in range(5)] == [
        "valid until MIA",
        "superseded by flights-0@3 in table version 3",
        "valid until ORD",
        "valid until SFO",
        "a deletion, at which the version before ends",
    ]
    code, said = asked("trace", "aircraft", "--row", "tail=N1", "--row", "current=false")
    assert (code, said.count("valid_from=")) == (0, 3)
    assert asked("status")[0] == 0


def test_what_is_not_there_is_told_in_one_line(asked) -> None:  # type: ignore[no-untyped-def]
    for words, expected in (
        (["--record", "flights-0@7"], "it has the offsets below 5"),
        (["--row", "tail=N9"], "no row with tail=N9"),
        (["--table-version", "9"], "has the versions 0 to 1"),
    ):
        code, said = asked("trace", "aircraft", *words)
        assert (code, len(said.splitlines())) == (1, 1), said
        assert expected in said
    assert asked("trace", "aircraft")[0] == 2
    assert asked("trace", "airplanes", "--row", "tail=N1")[0] == 2


def test_a_record_of_a_topic_that_was_made_anew_is_gone(asked, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """What the topic of that name has there was shown as what the row came of."""
    version = StepFolder(tmp_path / "tables", "aircraft").version("v1")
    for topic_id, value in ((TODAY, '{"dest":"ORD"}'), (bytes([1] * 16), "(no longer in the log)")):
        version.note_topic_ids({"flights": topic_id})
        (found,) = json.loads(asked("trace", "aircraft", "--row", "tail=N1", "--json")[1])
        assert (found["record"], found["value"]) == ("flights-0@2", value)


def test_a_row_of_a_join_shows_all_of_its_records(asked, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    shutil.rmtree(tmp_path / "tables")
    own = pa.schema([*OWN, (TIMESTAMP, pa.timestamp("us", "UTC")), (ALSO, pa.string())])
    store = ParquetStore(tmp_path / "tables" / "aircraft" / "v1" / "table", TableShape(("tail",), TIMESTAMP), own)
    others = [Cause("airports", 0, 12), Cause("flights", 0, 1)]
    place = {"_topic": "flights", "_partition": 0, "_offset": 2, "_deleted": False}
    row = {"tail": "N1", "dest": "SFO", TIMESTAMP: 1, ALSO: " ".join(cause.ordered for cause in others), **place}
    rows = pa.Table.from_pylist([row], store.schema)
    store.apply(rows.slice(0, 0), "q", 0, Offsets({("flights", 0): 3, ("airports", 0): 12}))
    store.apply(rows, "q", 1, Offsets({("airports", 0): 13}))
    (found,) = json.loads(asked("trace", "aircraft", "--row", "tail=N1", "--json")[1])
    assert (found["record"], found["since"]) == ("flights-0@2", "table version 1")
    assert found["also"] == [
        {"record": "airports-0@12", "value": "(no longer in the log)"},
        {"record": "flights-0@1", "value": '{"dest":"ORD"}'},
    ]
    code, said = asked("trace", "aircraft", "--row", "tail=N1")
    assert (code, "also         record=airports-0@12  value=(no" in said) == (0, True), said
    for record in ("airports-0@12", "flights-0@1", "flights-0@2"):
        found = json.loads(asked("trace", "aircraft", "--record", record, "--json")[1])
        assert [row["tail"] for row in found["rows"]] == ["N1"], record
        assert found["now"] == [{"tail": "N1", "state": "current"}], record


def test_rows_that_are_left_out_are_told(asked, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(spark_trace, "ROWS_MAX", 1)
    code, said = asked("trace", "aircraft", "--row", "dest=ORD")
    assert (code, "rows are shown" in said) == (0, False)
    monkeypatch.setattr(spark_trace, "ROWS_MAX", 0)
    assert "0 of 1 rows are shown" in asked("trace", "aircraft", "--row", "dest=ORD")[1]


def test_what_is_printed_fits_eighty_columns(asked) -> None:  # type: ignore[no-untyped-def]
    code, said = asked("status")
    assert code == 0
    assert max(map(len, said.splitlines())) <= 80
    assert said.splitlines()[0].split() == ["STEP", "KIND", "VERSION", "OTHERS", "STATE", "BATCH", "ROWS", "LAST"]
    told = json.loads(asked("status", "--json")[1])[0]
    names = {"step", "kind", "current", "others", "state", "batch", "rows", "written", "ms", "when", "offsets"}
    assert set(told) == names | {"env", "watermark", "late_total", "late_uncounted"}
    code, said = asked("trace", "aircraft", "--table-version", "1")
    assert "offsets      flights=0:5" in said
    assert _ago(None) is None
    assert str(_ago("2020-01-01T00:00:00+00:00")).endswith(" ago")


def test_a_list_of_two_is_no_change(tmp_path: Path) -> None:
    """In a report rows that only one version has were shown as if such a column of theirs had changed."""
    samples = {
        "only_old": [{"tail": "N1", "legs": ["IAH", "SFO"]}],
        "only_new": [],
        "differing": [{"tail": "N2", "legs": [["IAH", "SFO"], None], "delay": [1, 2]}],
    }
    told = lines(Report("aircraft", "v1", "v2", 0, Difference(2, 1, 1, 0, 1, samples, {}, [], [])))
    assert told[-2:] == [
        "    - tail=N1  legs=['IAH', 'SFO']",
        "    ~ tail=N2  legs=['IAH', 'SFO'] → None  delay=1 → 2",
    ]


def test_a_report_names_the_columns_that_differ_and_those_of_one_version_only() -> None:
    samples: dict[str, list[dict[str, object]]] = {"only_old": [], "only_new": [], "differing": []}
    difference = Difference(2000, 2000, 0, 0, 1500, samples, {"delay": 1500, "legs": 2}, [], ["seats", "wind"])
    told = lines(Report("aircraft", "v1", "v2", 0, difference))
    assert "  differing   1,500 (delay 1,500, legs 2)" in told
    assert told[-1] == "  columns only in v2  seats, wind"


def test_a_name_that_no_version_can_have_is_refused_as_such(asked) -> None:  # type: ignore[no-untyped-def]
    """One was told to build it first."""
    for name in ("../v2", "hold"):
        code, said = asked("swap", "aircraft", name)
        assert (code, "a version's name is made of letters" in said) == (2, True)


def test_rows_are_found_by_columns_of_any_kind_of_single_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_trace, "PipelineNode", Records)
    own = pa.schema([("tail", pa.int64()), ("raw", pa.binary()), ("many", pa.list_(pa.int64()))])
    store = ParquetStore(tmp_path / "t", TableShape(("tail",)), own)
    trace = {"_topic": "flights", "_partition": 0, "_deleted": False}
    rows = [{"tail": n, "raw": raw, "many": [n], "_offset": n, **trace} for n, raw in enumerate((b"\xff", b"ab"))]
    store.apply(pa.Table.from_pylist(rows, store.schema), "q", 0, Offsets({("flights", 0): 5}))
    pipeline = pipelines.Pipeline("tour", folder=tmp_path)

    @pipeline.table(pipelines.Topic("flights", key="tail"), keys=["tail"])
    def aircraft(flights: object) -> object:
        return flights

    def found(column: str, value: str) -> list[int]:
        return [each["row"]["tail"] for each in spark_trace._rows(pipeline, "aircraft", store, {column: value})]

    assert (found("raw", "ab"), found("raw", "\udcff"), found("tail", "1")) == ([1], [0], [1])
    with pytest.raises(ConfigError, match="the column many is a list"):
        found("many", "1")
    # The records' keys are text, and this table's are numbers: N1 is none, 1 is one.
    assert "now" not in spark_trace._record(pipeline, "aircraft", store, Cause("flights", 0, 3))
    monkeypatch.setitem(KEYS, 3, b"1")
    (now,) = spark_trace._record(pipeline, "aircraft", store, Cause("flights", 0, 3))["now"]
    assert now["tail"] == 1
