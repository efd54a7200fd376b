"""The column `value` as text or as typed fields, and the reason in `_corrupt` for rows that do not decode.

JSON is read by Arrow, a whole batch at a time. Each value is put into an array of its own before, so that no text,
however broken, can make a row of a neighbour's. A text that closes that array and goes on behind it would be taken for
its first part: where one might, the values are looked at once more, each within an object instead, which nothing can
close that did not break the array.

Arrow's reader stops at the first broken row, and a call of it costs as much as hundreds of rows. So where a batch has
one, those that a look at their ends shows to be no object are set aside first, and asked about once for each kind;
the rest is cut where Arrow's error names the row, and where it names none, by halves.
"""

from __future__ import annotations

import re
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
_NAMED_ROW: Final = re.compile(r" in row (\d+)$")
_TRIED_MAX: Final = 4
_TEXT_MAX: Final = 64
_UNPARSED: Final = re.compile(r"couldn't parse:(.+)$", re.DOTALL)
_OF_PARSER: Final = "JSON parse error: "
_SEVERAL: Final = 4
"""Broken rows, found one by one, that cost about what it takes to find the outline of every row."""
_STRING: Final = re.compile(rb'("[^"\x00-\x1f]*"\s*:)|"[^"\x00-\x1f]*"')
_NUMBER: Final = re.compile(rb'("[^"]*"\s*:\x02)|(?<![0-9.eE+-])-?(?:0|[1-9][0-9]*)(?![0-9.eE])')
"""Names of fields are kept, what else is text or a number is not."""
_UNSHAPED: Final = re.compile(rb"[\\\x00-\x08]")
"""Of texts in which a character may say what the next ones are, or that another kind of text could be taken for."""
_UNSHAPED_MARK: Final = b"\x00"
_NO_VALUE: Final = re.compile(rb'(?!true|false|null)[^\x00-\x20{}\[\]",:0-9-]')
"""With this no JSON value begins, nor does anything that the array around it could take."""


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
    parsed = _Parsing(given, kind)
    parsed.all()
    dense = parsed.structs()
    reasons: pa.Array = pa.nulls(len(given), pa.string())
    if parsed.reasons:
        place, there = np.zeros(len(given), np.int64), np.zeros(len(given), np.bool_)
        broken = list(parsed.reasons)
        place[broken], there[broken] = np.arange(len(broken)), True
        reasons = string_column(list(parsed.reasons.values())).take(fixed(place, pa.int64(), there))
    if len(dense) == len(values):
        return dense, reasons
    there = not_null(values)
    place = fixed(np.cumsum(there) - 1, pa.int64(), there)
    return dense.take(place), reasons.take(place)


class _Parsing:
    """One column of values, each wrapped into an array, on its way through Arrow's reader."""

    def __init__(self, given: pa.BinaryArray, kind: pa.StructType) -> None:
        self._given = given
        self._wrapped = pc.binary_join_element_wise(_BEFORE, given, _BEHIND, _NOTHING)
        self._kind = kind
        self._schema = pa.schema([("v", pa.list_(_as_parsed(kind)))])
        self._one_line = _lines(self._wrapped) == len(given)
        self._pieces: list[tuple[Any, pa.StructArray]] = []
        self._known: dict[bytes, str] = {}
        """Reasons of broken texts, and of their shapes."""
        self._outlines: Any = None
        """Of every row, once that is worth its time."""
        self._seen = 0
        """Of the reasons, when rows were last told by their shapes."""
        self.reasons: dict[int, str] = {}

    def structs(self) -> pa.StructArray:
        """What became of the rows, in order; null where one was broken."""
        if not self._pieces:
            return pa.nulls(len(self._given), self._kind)
        dense = pa.chunked_array([piece for _, piece in self._pieces], self._kind).combine_chunks()
        if isinstance(dense, pa.ChunkedArray):  # of older releases of Arrow
            dense = dense.chunk(0)
        if len(self._pieces) == 1 and len(dense) == len(self._given):
            return dense
        parsed = np.concatenate([rows for rows, _ in self._pieces])
        place, there = np.zeros(len(self._given), np.int64), np.zeros(len(self._given), np.bool_)
        place[parsed], there[parsed] = np.arange(len(parsed)), True
        return dense.take(fixed(place, pa.int64(), there))

    def all(self) -> None:
        """Parse every row."""
        rows = np.arange(len(self._given))
        if not len(rows):
            return
        try:
            self._given.cast(pa.string())  # Arrow's reader takes any bytes for a text, and hands them on
        except pa.ArrowInvalid:
            text = np.array([_text(value)[1] is None for value in self._given.to_pylist()])
            self.reasons.update(dict.fromkeys(rows[~text].tolist(), "no UTF-8 text"))
            rows = rows[text]
        likely = _may_be_objects(self._given)[rows]
        for row in rows[~likely].tolist():
            self._alone(row)
        self._seen = len(self.reasons)
        self._named(rows[likely])

    def _named(self, rows: Any) -> None:
        """Parse these rows without those that Arrow names as broken, one after the other."""
        whole = []
        while len(rows := self._unlike_broken(rows)) and (error := self._failure(rows)) is not None:
            named = _NAMED_ROW.search(error)
            places = self._unparsed(error, rows) if named is None else [int(named[1])]
            tried, is_broken = [], False
            for at in places:
                if at < len(rows) and not is_broken:
                    tried.append(at)
                    is_broken = self._alone(int(rows[at]))
            if not is_broken:  # one before it may hold more objects than one, and move the numbers
                self._halves(np.delete(rows, tried))
                break
            if named is None:
                rows = np.delete(rows, tried)
            else:
                whole.append(rows[: tried[0]])
                rows = rows[tried[0] + 1 :]
        if whole:
            self._halves(np.concatenate(whole))

    def _unparsed(self, error: str, rows: Any) -> list[int]:
        """The first rows with the text that could not be converted, which is told without its row."""
        told = _UNPARSED.search(error)
        if told is None or len(told[1]) > _TEXT_MAX:
            return []
        pattern = f'[:, \\[{{"]{re.escape(told[1])}[ ,}}\\]"]'
        holds = pc.match_substring_regex(_of(self._given, rows), pattern).to_numpy(zero_copy_only=False)
        found: list[int] = np.flatnonzero(holds)[:_TRIED_MAX].tolist()
        return found

    def _halves(self, rows: Any) -> None:
        """Parse these rows, by halves where one of them is broken."""
        rows = self._unlike_broken(rows)
        if len(rows) == 1:
            self._alone(int(rows[0]))
        elif len(rows) and self._failure(rows) is not None:
            self._halves(rows[: len(rows) // 2])
            self._halves(rows[len(rows) // 2 :])

    def _unlike_broken(self, rows: Any) -> Any:
        """These rows, and where several were broken, without those that are made like one of them: each is parsed
        alone, for who sends one sends more."""
        if len(self.reasons) - self._seen < _SEVERAL or len(rows) <= 1:
            return rows
        if self._outlines is None:
            self._outlines = _outlines(self._given)
        self._seen = len(self.reasons)
        alike = np.isin(self._outlines[rows], self._outlines[list(self.reasons)])
        broken = 0
        for tried, row in enumerate(rows[alike].tolist(), 1):
            broken += self._alone(row)
            if tried >= _SEVERAL and 2 * broken < tried:  # what breaks them is not seen in their outline
                self._seen = len(self._given)
                return rows[~alike | (rows > row)]
        return rows[~alike]

    def _alone(self, row: int) -> bool:
        """Parse one row; whether it is broken. What is like one that was broken before is not parsed again."""
        value = self._given[row].as_py()
        shape = _shape(value)
        itself = _UNSHAPED_MARK + value
        reason = self._known.get(shape) or self._known.get(itself)
        if reason is None:
            error = self._failure(np.array([row]))
            if error is None:
                return False
            # What a number or a text says matters only behind the parser.
            reason = self._known[shape if error.startswith(_OF_PARSER) else itself] = _reason(error)
        self.reasons[row] = reason
        return True

    def _failure(self, rows: Any) -> str | None:
        """Parse these rows and keep what became of them; if one is broken, nothing is kept, and this is the error."""
        text = _text_of(_of(self._wrapped, rows))
        try:
            table = _read(text, self._schema, one_line=self._one_line)
            if _may_go_on(text):
                more = pc.binary_join_element_wise(
                    _BEFORE_ONCE_MORE, _of(self._given, rows), _BEHIND_ONCE_MORE, _NOTHING
                )
                _read(_text_of(more), _NO_FIELDS, one_line=self._one_line)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            return str(error)
        lists = table.column("v").combine_chunks()
        lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
        if len(lists) != len(rows) or lists.null_count or not _each_has_one(lists):
            return "not exactly one JSON value"
        structs = lists.flatten()
        if structs.null_count:  # else it would be taken for a tombstone
            return "null, which is no object"
        if too_small := _too_small_for(structs):
            return f"Number too big to be stored in {too_small}."
        try:
            structs = structs if structs.type == self._kind else structs.cast(self._kind)
        except pa.ArrowInvalid as error:
            return str(error)
        self._pieces.append((rows, structs))
        return None


def _of(values: pa.BinaryArray, rows: Any) -> pa.BinaryArray:
    first, behind = int(rows[0]), int(rows[-1]) + 1
    return values[first:behind] if behind - first == len(rows) else values.take(pa.array(rows))


def _lines(values: pa.BinaryArray) -> int:
    return int(np.count_nonzero(np.frombuffer(_text_of(values), np.uint8) == ord("\n"))) if len(values) else 0


def _may_be_objects(values: pa.BinaryArray) -> Any:
    """Which of these begin and end as an object does, or with white space."""
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset :][: len(values) + 1]
    text = np.frombuffer(data or b"", np.uint8)
    there = np.flatnonzero(bounds[1:] > bounds[:-1])
    first, last = text[bounds[there]], text[bounds[there + 1] - 1]
    made = np.zeros(len(values), np.bool_)
    made[there] = ((first == ord("{")) | (first <= ord(" "))) & ((last == ord("}")) | (last <= ord(" ")))
    return made


def _shape(value: bytes) -> bytes:
    """What Arrow's parser finds in this text: the same for texts that it refuses for the same reason."""
    if _UNSHAPED.search(value):
        return _UNSHAPED_MARK + value
    if _NO_VALUE.match(value):
        return b"\x01"
    return _NUMBER.sub(b"\\1\x03", _STRING.sub(b"\\1\x02", value))


def _outlines(values: pa.BinaryArray) -> Any:
    """A number for each text: the same where only what texts and numbers in it say differs, or little more."""
    for pattern, kept in (
        (r'("[^"]*"\s*:)|"[^"]*"', "\\1\x02"),
        (r"[0-9]{19,}", "\x04"),
        (r'("[^"]*"\s*:\x02)|[0-9]+', "\\1\x03"),
    ):
        values = pc.replace_substring_regex(values, pattern, kept)
    return np.asarray(values.dictionary_encode().indices)


def _text_of(rows: pa.BinaryArray) -> pa.Buffer:
    """The bytes of all rows, without a copy."""
    _, offsets, data = rows.buffers()
    bounds = np.frombuffer(offsets, np.int32)
    return data[int(bounds[rows.offset]) : int(bounds[rows.offset + len(rows)])]


def _read(text: pa.Buffer, schema: pa.Schema, *, one_line: bool) -> pa.Table:
    """The rows of a text, each of one line if that is said. Raises ArrowInvalid or ArrowNotImplementedError."""
    return pa.json.read_json(
        pa.BufferReader(text),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pa.json.ParseOptions(
            explicit_schema=schema, newlines_in_values=not one_line, unexpected_field_behavior="ignore"
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
    for prefix in (_OF_PARSER, "Failed to convert JSON to "):
        message = message.removeprefix(prefix)
    return message.split(" in row ")[0][:_REASON_MAX]
