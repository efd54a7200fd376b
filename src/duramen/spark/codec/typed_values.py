"""The column `value` as text or as typed fields, and the reason in `_corrupt` for rows that do not decode.

JSON is read by Arrow, a whole batch at a time. Each value is put into an array of its own before, so that no text,
however broken, can make a row of a neighbour's; only a batch with a broken row is searched for it, by halves. A text
that closes that array and goes on behind it would be taken for its first part: where one might, the values are looked
at once more, each within an object instead, which nothing can close that did not break the array.
"""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from duramen.spark.codec.decode.binary import fixed, literal, not_null, string_column
from duramen.spark.codec.schema import CORRUPT

_BEFORE: Final = literal(b'{"v":[')
_BEHIND: Final = literal(b"]}\n")
_BEFORE_ONCE_MORE: Final = literal(b'{"v":')
_BEHIND_ONCE_MORE: Final = literal(b"}\n")
_NOTHING: Final = literal(b"")
_NO_FIELDS: Final = pa.schema([])
_REASON_MAX: Final = 200


class TypedValues:
    """From batches with a binary value to batches of the wanted schema."""

    def __init__(self, value_format: str, schema: pa.Schema) -> None:
        """value_format: binary, string or json; schema: the columns that Spark wants."""
        self._schema = schema
        self._format = value_format
        self._needed = value_format != "binary" and ("value" in schema.names or CORRUPT in schema.names)
        raw = [pa.field("value", pa.binary()) if field.name == "value" else field for field in schema]
        if self._needed and "value" not in schema.names:
            raw.append(pa.field("value", pa.binary()))
        self.raw_schema = pa.schema([field for field in raw if field.name != CORRUPT])
        """What the decoder has to make."""

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows with the wanted schema."""
        if not self._needed:
            return batch
        made: dict[str, pa.Array] = {name: batch.column(name) for name in self.raw_schema.names}
        if self._format == "string":
            made["value"], made[CORRUPT] = texts(made["value"])
        else:
            made["value"], made[CORRUPT] = json_values(made["value"], self._schema.field("value").type)
        return pa.RecordBatch.from_arrays([made[name] for name in self._schema.names], schema=self._schema)


def texts(values: pa.BinaryArray) -> tuple[pa.StringArray, pa.StringArray]:
    """UTF-8 text, and why not where it is none; null stays null."""
    try:
        return values.cast(pa.string()), pa.nulls(len(values), pa.string())
    except pa.ArrowInvalid:
        found: list[str | None] = []
        reasons: list[str | None] = []
        for value in values.to_pylist():
            text, reason = _text(value)
            found.append(text)
            reasons.append(reason)
        return string_column(found), string_column(reasons)


def _text(value: bytes | None) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    try:
        return value.decode(), None
    except UnicodeDecodeError as error:
        return None, f"no UTF-8 text: {error.reason} at byte {error.start}"


def json_values(values: pa.BinaryArray, kind: pa.StructType) -> tuple[pa.StructArray, pa.StringArray]:
    """Structs of this type, and why not where a value is none of them. A null value (a tombstone) is null and in order.

    Fields that the type does not name are left out; a field that is missing is null.
    """
    given = values.drop_null()
    wrapped = pc.binary_join_element_wise(_BEFORE, given, _BEHIND, _NOTHING)
    parsed = _Parsing(given, wrapped, kind)
    parsed.range(0, len(wrapped))
    if parsed.pieces:
        dense = pa.chunked_array(parsed.pieces, kind).combine_chunks()
        if isinstance(dense, pa.ChunkedArray):  # of older releases of Arrow
            dense = dense.chunk(0)
    else:
        dense = pa.nulls(0, kind)
    reasons: pa.Array = pa.nulls(len(wrapped), pa.string())
    if parsed.reasons:
        reasons = string_column([parsed.reasons.get(row) for row in range(len(wrapped))])
    if len(dense) == len(values):
        return dense, reasons
    there = not_null(values)
    place = fixed(np.cumsum(there) - 1, pa.int64(), there)
    return dense.take(place), reasons.take(place)


class _Parsing:
    """One column of values, each wrapped into an array, on its way through Arrow's reader."""

    def __init__(self, given: pa.BinaryArray, wrapped: pa.BinaryArray, kind: pa.StructType) -> None:
        self._given = given
        self._wrapped = wrapped
        self._kind = kind
        self._schema = pa.schema([("v", pa.list_(_as_parsed(kind)))])
        self.pieces: list[pa.StructArray] = []
        self.reasons: dict[int, str] = {}

    def range(self, start: int, end: int) -> None:
        """Parse the rows start..end, by halves where one of them is broken."""
        if start == end:
            return
        piece, reason = self._parse(start, end)
        if piece is not None:
            self.pieces.append(piece)
        elif end - start == 1:
            self.pieces.append(pa.nulls(1, self._kind))
            self.reasons[start] = reason
        else:
            middle = (start + end) // 2
            self.range(start, middle)
            self.range(middle, end)

    def _parse(self, start: int, end: int) -> tuple[pa.StructArray | None, str]:
        rows = self._wrapped[start:end]
        try:
            rows.cast(pa.string())  # Arrow's reader takes any bytes for a text, and hands them on
        except pa.ArrowInvalid:
            return None, "no UTF-8 text"
        text = _text_of(rows)
        try:
            table = _read(text, self._schema)
            if _may_go_on(text):
                more = pc.binary_join_element_wise(
                    _BEFORE_ONCE_MORE, self._given[start:end], _BEHIND_ONCE_MORE, _NOTHING
                )
                _read(_text_of(more), _NO_FIELDS)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            return None, _reason(str(error))
        lists = table.column("v").combine_chunks()
        lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
        if len(lists) != len(rows) or lists.null_count or not _each_has_one(lists):
            return None, "not exactly one JSON value"
        structs = lists.flatten()
        if structs.null_count:  # else it would be taken for a tombstone
            return None, "null, which is no object"
        if too_small := _too_small_for(structs):
            return None, f"Number too big to be stored in {too_small}."
        try:
            return structs if structs.type == self._kind else structs.cast(self._kind), ""
        except pa.ArrowInvalid as error:
            return None, _reason(str(error))


def _text_of(rows: pa.BinaryArray) -> pa.Buffer:
    """The bytes of all rows, without a copy."""
    _, offsets, data = rows.buffers()
    bounds = np.frombuffer(offsets, np.int32)
    return data[int(bounds[rows.offset]) : int(bounds[rows.offset + len(rows)])]


def _read(text: pa.Buffer, schema: pa.Schema) -> pa.Table:
    """The lines of text as rows. Raises ArrowInvalid or ArrowNotImplementedError."""
    return pa.json.read_json(
        io.BytesIO(text),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pa.json.ParseOptions(
            explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )


def _may_go_on(text: pa.Buffer) -> bool:
    """Whether something follows the end of an array, as it does behind one that a value has closed before its time."""
    found = np.frombuffer(text, np.uint8)
    following = found[np.flatnonzero(found[:-1] == ord("]")) + 1]
    return bool(np.any((following == ord(",")) | (following <= ord(" "))))


def _each_has_one(lists: Any) -> bool:
    bounds = np.frombuffer(lists.buffers()[1], np.int32)[lists.offset :][: len(lists) + 1]
    return bool(np.all(np.diff(bounds) == 1))


def _as_parsed(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow's reader is to make: text for a moment in no zone, for it would take the zone that one
    names, and give the moment in UTC. The cast from text refuses one."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_parsed(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_parsed(kind.value_type)))
    return pa.string() if pa.types.is_timestamp(kind) and kind.tz is None else kind


def _too_small_for(values: Any) -> str:
    """The type that does not hold one of these numbers; nothing where all are held.

    Arrow makes an infinity of one that is too big for a float, for JSON has no infinities; one for a double it refuses.
    Spark's `from_json` makes infinities of both, and says nothing. Of a decimal Arrow counts a number's digits before
    it gives it those that the type has behind the point; Spark ends the query at such a one.
    """
    kind = values.type
    if pa.types.is_struct(kind):
        return next(filter(None, (_too_small_for(values.field(index)) for index in range(kind.num_fields))), "")
    if pa.types.is_list(kind):
        return _too_small_for(values.flatten())
    if pa.types.is_float32(kind):
        return "float" if pc.any(pc.is_inf(values)).as_py() is True else ""
    if pa.types.is_decimal(kind):
        beyond = Decimal(10) ** (kind.precision - kind.scale)
        found = [number for number in pc.min_max(values).as_py().values() if number is not None]
        return "" if all(-beyond < number < beyond for number in found) else str(kind)
    return ""


def _reason(message: str) -> str:
    """Arrow's words without its own place in the text, which is not the user's."""
    for prefix in ("JSON parse error: ", "Failed to convert JSON to "):
        message = message.removeprefix(prefix)
    return message.split(" in row ")[0][:_REASON_MAX]
