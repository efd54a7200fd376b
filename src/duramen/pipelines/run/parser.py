"""JSON texts of records as columns of the types that a schema gives them, and what of them does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import cast

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

CORRUPT = "_corrupt"
NESTED = StructType | ArrayType | MapType


def typed(text: Column, kind: DataType | None) -> Column:
    """A record's key as the type that the schema gives its column, null where it is none; text where it gives none, and
    for what is no single value."""
    if kind is None or isinstance(kind, StringType | CharType | VarcharType | NESTED):
        return text
    if isinstance(kind, BinaryType):
        return text.cast("binary")
    found = text.try_cast(kind)
    if isinstance(kind, DecimalType):  # not rounded: two keys would become one
        return F.when(found == text.try_cast(DecimalType(38, max(kind.scale, 18))), found)
    return F.when(found.cast("string") == text, found) if isinstance(kind, DateType) else found


def parsed(text: Column, fields: Sequence[StructField]) -> Column:
    """A JSON object as a struct of these fields and `_corrupt`: the text where it does not fit.

    Null is what is no UTF-8 or empty, and an object with a number that a tinyint does not hold.
    """
    declared = StructType([*fields, StructField(CORRUPT, StringType())])
    kinds, read_as = (cast(StructType, _with(byte, declared)) for byte in (ByteType(), ShortType()))
    found = F.from_json(
        # Spark puts U+FFFD for each byte that is no text, and says nothing: two keys may become one by that.
        F.when(F.is_valid_utf8(text), text),
        read_as,
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT},
    )
    if read_as == kinds:
        return found
    return once(found, lambda each: F.when(_in_bytes(each, kinds), each)).cast(kinds)


def once(value: Column, use: Callable[[Column], Column]) -> Column:
    """What is made of a value that is computed once, however often that names it: a lambda has it as a variable."""
    return F.transform(F.array(value), use)[0]


def _with(byte: DataType, kind: DataType) -> DataType:
    """The type with another one for each tinyint: of 128 to 255 Spark makes negative ones, so it reads smallints."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _with(byte, field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_with(byte, kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _with(byte, kind.valueType))
    return byte if isinstance(kind, ByteType) else kind


def _in_bytes(value: Column, kind: DataType) -> Column:
    """Whether all that is to be tinyints fits."""
    if _with(ByteType(), kind) == _with(ShortType(), kind):
        return F.lit(True)
    if isinstance(kind, StructType):
        fits = (_in_bytes(value[field.name], field.dataType) for field in kind.fields)
        return reduce(lambda one, other: one & other, fits)
    if isinstance(kind, ArrayType):
        inside, element = value, kind.elementType
    elif isinstance(kind, MapType):
        inside, element = F.map_values(value), kind.valueType
    else:
        return F.coalesce(value.between(-128, 127), F.lit(True))
    return F.coalesce(F.forall(inside, lambda each: _in_bytes(each, element)), F.lit(True))


def fields_of(schema: str) -> list[StructField]:
    return cast(StructType, StructType.fromDDL(schema)).fields


def corrupt_text(found: Column, value: Column) -> Column:
    """The text of a value that does not fit; null where it does, and where there is none. found: what `parsed` gave."""
    # Of an empty value Spark makes nothing at all, and of no text we give it none.
    return F.when(found.isNull(), F.make_valid_utf8(value.cast("string"))).otherwise(found[CORRUPT])
