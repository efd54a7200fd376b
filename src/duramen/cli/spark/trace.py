"""`duramen spark trace`: from a row to its record, from a record or a version to rows."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from duramen.cli.shared.connection import json_option
from duramen.cli.shared.output import note, pairs, print_json
from duramen.cli.spark.pipeline import pipeline_argument
from duramen.errors import ConfigError
from duramen.model import topic_id_text
from duramen.pipelines.model.offsets import Cause
from duramen.pipelines.run.cluster import PipelineNode

if TYPE_CHECKING:
    import pyarrow as pa

    from duramen.pipelines.model.declaration import Pipeline
    from duramen.pipelines.tables.store import TableCommit, TableStore

ROWS_MAX = 20


@click.command(
    "trace",
    short_help="From a row to its record, from a record to its rows.",
    epilog="\b\nExamples:\n  duramen spark trace tour.py aircraft --row tailnum=N14228\n"
    "  duramen spark trace tour.py aircraft --record flights-3@1234\n"
    "  duramen spark trace tour.py aircraft --table-version 12\n",
    help="Trace rows, records and versions of a table to each other.",
)
@pipeline_argument
@click.argument("table")
@click.option("--row", "row", multiple=True, metavar="COLUMN=VALUE", help="Rows with these values; repeatable.")
@click.option("--record", metavar="TOPIC-PARTITION@OFFSET", help="What came from this record.")
@click.option("--table-version", type=int, help="What a version of the table contains.")
@json_option
def trace_command(
    pipeline: Pipeline, table: str, row: tuple[str, ...], record: str | None, table_version: int | None, as_json: bool
) -> None:
    from duramen.pipelines.run.table_reader import open_table

    if sum([bool(row), record is not None, table_version is not None]) != 1:
        raise click.UsageError("give one of --row, --record and --table-version.")
    store = open_table(pipeline, table)
    if row:
        found: Any = _rows(pipeline, table, store, pairs("--row", row))
    elif record is not None:
        found = _record(pipeline, table, store, Cause.parse(record))
    else:
        found = [_version(commit) for commit in store.commits() if commit.version == table_version]
    if not found:
        raise click.ClickException(_nothing(table, store, row, record))
    if as_json:
        print_json(json.loads(json.dumps(found, default=str)))
        return
    for one in found if isinstance(found, list) else [found]:
        for name, value in one.items():
            for line in value if isinstance(value, list) else [value]:
                click.echo(f"{name:<12} {_shown(line)}".rstrip())
                name = ""
        click.echo()


def _rows(pipeline: Pipeline, table: str, store: TableStore, wanted: dict[str, str]) -> list[dict[str, Any]]:
    from duramen.pipelines.model.json_values import as_python
    from duramen.pipelines.tables.changelog import cause_of, other_causes

    rows = store.rows()
    for name, value in wanted.items():
        if name not in rows.column_names:
            raise ConfigError(f"there is no column {name}; there are {', '.join(store.schema.names)}")
        rows = rows.filter(_written(rows, name, value))
    if rows.num_rows > ROWS_MAX:
        note(f"{ROWS_MAX} of {rows.num_rows:,} rows are shown; another --row chooses among them")
    found = []
    for index in range(min(rows.num_rows, ROWS_MAX)):
        cause, others = cause_of(rows, index), other_causes(rows, index)
        first = store.first_with(cause, *others)
        shown = {name: as_python(rows[name][index]) for name in rows.column_names if not name.startswith("_")}
        told: dict[str, Any] = {
            "row": shown,
            "record": str(cause),
            "since": None if first is None else f"table version {first.version}",
            "value": _value(pipeline, table, cause),
        }
        if others:
            told["also"] = [{"record": str(each), "value": _value(pipeline, table, each)} for each in others]
        found.append(told)
    return found


def _value(pipeline: Pipeline, table: str, cause: Cause) -> str:
    """The value of a record, as a person reads it."""
    from duramen.pipelines.model.declaration import TableChanges

    for source in pipeline.step(table).sources:
        if isinstance(source, TableChanges) and cause.topic.startswith(source.prefix):
            return f"(changed in version {cause.offset} of the table {source.table} of pipeline {source.pipeline.name})"
    record = _in_log(pipeline, table, cause)
    return "(no longer in the log)" if record is None else _text(record[1])


def _in_log(pipeline: Pipeline, table: str, cause: Cause) -> tuple[bytes | None, bytes | None] | None:
    """Key and value of a record of the table. None when it is gone, also with its topic: another one may have the name,
    and another record at this offset."""
    from duramen.pipelines.model.folders import StepFolder

    node, folder = PipelineNode(pipeline.bootstrap), StepFolder(pipeline.folder, table)
    meant = folder.version(folder.current().version).topic_ids().get(cause.topic)
    if meant is not None and node.topic_id(cause.topic) != topic_id_text(meant):
        return None
    return node.record(cause)


def _written(rows: pa.Table, name: str, value: str) -> pa.ChunkedArray:
    """Per row, whether the column has what is written so. ConfigError for one of more than single values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = rows[name]
    if pa.types.is_nested(column.type):
        raise ConfigError(f"the column {name} is a {column.type}; --row takes columns of single values")
    if pa.types.is_binary(column.type):  # which need not be text
        return pc.equal(column, pa.scalar(os.fsencode(value), column.type))
    return pc.equal(pc.cast(column, pa.string()), value)


def _text(value: bytes | None) -> str:
    return "(null: a deletion)" if value is None else value.decode("utf-8", "backslashreplace")


def _nothing(table: str, store: TableStore, row: tuple[str, ...], record: str | None) -> str:
    if row:
        return f"{table} has no row with {' and '.join(row)}"
    commits = store.commits()
    if not commits:
        return f"{table} holds nothing yet: `duramen spark run` fills it"
    if record is None:
        return f"{table} has the versions {commits[0].version} to {commits[-1].version}"
    cause = Cause.parse(record)
    end = commits[-1].offsets.end(cause.topic, cause.partition)
    return f"{table} does not contain {cause}: of {cause.topic}-{cause.partition} it has the offsets below {end}"


def _shown(value: Any) -> str:
    """A row as `name=value` pairs; anything else as it is."""
    if not isinstance(value, dict):
        return str(value)
    return "  ".join(f"{name}={_cell(each)}" for name, each in value.items())


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}:{each}" for name, each in value.items())
    return "null" if value is None else str(value)


def _record(pipeline: Pipeline, table: str, store: TableStore, cause: Cause) -> dict[str, Any]:
    from duramen.pipelines.model.json_values import as_python

    first = store.first_with(cause)
    if first is None:
        return {}
    changed = [
        {name: as_python(rows[name][index]) for name in rows.column_names}
        for _, rows in store.caused_by(cause)
        for index in range(rows.num_rows)
    ]
    keys = store.shape.row_keys
    if store.shape.history:  # a later record may have moved the end of its interval
        changed = list({tuple(str(row[name]) for name in keys): row for row in changed}.values())
    rows = [
        {name: value for name, value in row.items() if not name.startswith("_")} | {"deleted": row["_deleted"]}
        for row in changed
    ]
    found = {"record": str(cause), "contained": f"since table version {first.version}", "rows": rows}
    if not store.shape.guarded:
        return {**found, "note": "each row sums up many records; it is traced to the last of them"}
    if not keys:
        return found
    if store.shape.history:
        later = [_interval(store, cause, row) for row in changed]
    else:
        held = [{name: row[name] for name in keys} for row in changed] or _keys_of(pipeline, table, store, cause)
        later = [{**each, "state": _state(store, cause, each, bool(changed))} for each in held]
    if later:
        found["now"] = later
    if not changed:
        found["note"] = "no row came of it: the step passes over it, or a later record of its batch took its place"
    return found


def _interval(store: TableStore, cause: Cause, row: dict[str, Any]) -> dict[str, Any]:
    """What became of a version that the record brought. row: its last change."""
    keys = {name: row[name] for name in store.shape.row_keys}
    state = _state(store, cause, keys, changed=True)
    if state == "current" and row["_deleted"]:
        state = "a deletion, at which the version before ends"
    elif state == "current" and not row["current"]:
        state = f"valid until {row['valid_to']}"
    return {**keys, "state": state}


def _state(store: TableStore, cause: Cause, keys: dict[str, Any], changed: bool) -> str:
    """What became of the row with these keys after the record. changed: the record changed it."""
    found = store.superseded(cause, keys)
    if found is None:
        return "current" if changed else "untouched"
    commit, by, deleted = found
    return f"superseded by {by} in table version {commit.version}" + (", which deleted it" if deleted else "")


def _keys_of(pipeline: Pipeline, table: str, store: TableStore, cause: Cause) -> list[dict[str, Any]]:
    """The row that a record without one would have changed, where the record's key is the table's."""
    import pyarrow as pa

    sources, keys = pipeline.step(table).sources, store.shape.keys
    named = [source for source in sources if source.name == cause.topic] or sources
    record = _in_log(pipeline, table, cause) if keys in [(source.key,) for source in named] else None
    if record is None or record[0] is None:
        return []
    text = pa.scalar(record[0].decode("utf-8", "backslashreplace"))
    try:
        # The function may have made it a number.
        return [{keys[0]: text.cast(store.schema.field(keys[0]).type).as_py()}]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return []


def _version(commit: TableCommit) -> dict[str, Any]:
    return {
        "version": commit.version,
        "offsets": commit.offsets.to_json(),
        "query": commit.sink,
        "batch": commit.batch,
        "upserts": commit.upserts,
        "deletes": commit.deletes,
    }
