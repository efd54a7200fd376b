"""Compiles a struct's schema into a straight-line decoder for one version.

Neighbouring fields of fixed size are read by one `unpack_from`, which also takes the first byte of the varint (or the
i16, i32) with which the next string, array or section of tagged fields begins: each costs one call and one slice.
Bounds: `unpack_from` and indexing raise at the end of the input; every length and count is compared with the bytes
that are left before anything is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from duramen.ports import Buffer
from duramen.wire import runtime
from duramen.wire.classes import Classes
from duramen.wire.errors import DecodeError
from duramen.wire.source import FunctionSource
from duramen.wire.types import UUID, Array, Blob, Field, Scalar, Struct, Text, Type, split

Decoder = Callable[[Buffer, int], tuple[Any, int]]
BoundedDecoder = Callable[[Buffer, int, int], tuple[Any, int]]

_RUNTIME: dict[str, Any] = {
    "unpack_from": struct.unpack_from,
    "Malformed": (struct.error, IndexError, UnicodeDecodeError),
    "DecodeError": DecodeError,
    "SMALL": runtime.SMALL,
    "read_uvarint": runtime.read_uvarint,
    "read_long": runtime.read_long_string_length,
    "skip_tags": runtime.skip_tags,
    "bad_length": runtime.bad_length,
    "bad_tag": runtime.bad_tag,
    "too_many": runtime.too_many,
}


def compile_decoder(root: Struct, classes: Classes, version: int, flexible: bool) -> Decoder:
    """A function (buffer, position) -> (object, position behind it) that raises only DecodeError.

    Messages with `records` are read through a memoryview, whose slices they keep; all others from bytes (copied once
    if need be), whose text is twice as fast to read.
    """
    source = FunctionSource({**_RUNTIME, **classes.namespace})
    _DecoderWriter(root, classes, version, flexible, source).write()
    return source.function("decode", f"{root.name} v{version} decode")


def compile_bounded(root: Struct, classes: Classes, version: int, flexible: bool) -> BoundedDecoder:
    """The same for (buffer, position, most): DecodeError where arrays and unknown tagged fields have more elements."""
    source = FunctionSource({**_RUNTIME, **classes.namespace})
    _DecoderWriter(root, classes, version, flexible, source, bounded=True).write()
    return source.function("decode", f"{root.name} v{version} bounded decode")


def has_views(kind: Type) -> bool:
    """Whether values of this type hold views of what they were decoded from."""
    if isinstance(kind, Blob):
        return kind.by_reference
    if isinstance(kind, Array):
        return has_views(kind.element)
    return isinstance(kind, Struct) and any(has_views(field.type) for field in kind.fields)


class _DecoderWriter:
    """Writes the source of one decoder. `_run` holds fields of fixed size that are still to be unpacked."""

    def __init__(
        self,
        root: Struct,
        classes: Classes,
        version: int,
        flexible: bool,
        source: FunctionSource,
        *,
        bounded: bool = False,
    ) -> None:
        self._bounded = bounded
        self._root = root
        self._classes = classes
        self._version = version
        self._flexible = flexible
        self._out = source
        self._views = has_views(root)
        self._run: list[tuple[str, str]] = []
        self._run_size = 0

    def write(self) -> None:
        out = self._out
        out.open("def decode(buf, p, left):" if self._bounded else "def decode(buf, p):")
        wanted = "memoryview" if self._views else "bytes"
        out.open(f"if type(buf) is not {wanted}:")
        out.line(f"buf = {wanted}(buf)")
        out.close()
        out.line("end = len(buf)")
        out.open("try:")
        target = self._new_struct(self._root, self._root.name)
        self._flush()
        out.line(f"return {target}, p")
        out.close()
        out.open("except Malformed as error:")
        out.line(f"raise DecodeError(f'{self._root.name} v{self._version}: {{error}}') from error")
        out.close()
        out.close()

    def _fixed(self, code: str, size: int, target: str) -> None:
        self._run.append((code, target))
        self._run_size += size

    def _flush(self) -> None:
        """Write the unpacking of the fixed fields collected so far."""
        if not self._run:
            return
        codes = "".join(code for code, _ in self._run)
        targets = ", ".join(target for _, target in self._run)
        if codes == "B":
            self._out.line(f"{targets} = buf[p]")
        else:
            comma = "," if len(self._run) == 1 else ""
            self._out.line(f"{targets}{comma} = {self._out.unpack(codes)}(buf, p)")
        self._out.line(f"p += {self._run_size}")
        self._run.clear()
        self._run_size = 0

    def _new_struct(self, schema: Struct, path: str) -> str:
        target = self._out.fresh("o")
        self._out.line(f"{target} = C_{schema.name}()")
        plain, tagged, absent = split(schema, self._version)
        for field in (*absent, *tagged):
            self._out.line(f"{target}.{field.name} = {self._classes.default(field)}")
        for field in plain:
            nullable = self._version in field.nullable
            self._value(field.type, nullable, f"{target}.{field.name}", f"{path}.{field.name}")
        if self._flexible:
            self._tags(tagged, target, path)
        return target

    def _value(self, kind: Type, nullable: bool, target: str, path: str) -> None:
        if isinstance(kind, Scalar):
            self._fixed(kind.code, kind.size, target)
        elif isinstance(kind, Text):
            read = "buf[p:{end}].tobytes().decode()" if self._views else "buf[p:{end}].decode()"
            self._sized("h", nullable, target, path, read, "read_long")
        elif isinstance(kind, Blob):
            read = "buf[p:{end}]" if kind.by_reference else "bytes(buf[p:{end}])"
            self._sized("i", nullable, target, path, read, "read_uvarint")
        elif isinstance(kind, Array):
            self._array(kind, nullable, target, path)
        elif nullable:
            self._nullable_struct(kind, target, path)
        else:
            self._out.line(f"{target} = {self._new_struct(kind, path)}")

    def _length(self, code: str, reader: str) -> str:
        """Name of a local that holds a length or count; -1 is null."""
        name = self._out.fresh("n")
        if not self._flexible:
            self._fixed(code, 2 if code == "h" else 4, name)
            self._flush()
            return name
        self._fixed("B", 1, name)
        self._flush()
        out = self._out
        out.open(f"if {name} > 127:")
        if reader == "read_uvarint":  # most record batches need two bytes for their length: no call for the second
            second = out.fresh("b")
            out.line(f"{second} = buf[p]")
            out.open(f"if {second} < 128:")
            out.line(f"{name} = {name} & 127 | {second} << 7")
            out.line("p += 1")
            out.close()
            out.open("else:")
            out.line(f"{name}, p = {reader}(buf, p - 1)")
            out.close()
        else:
            out.line(f"{name}, p = {reader}(buf, p - 1)")
        out.close()
        return name

    def _sized(self, code: str, nullable: bool, target: str, path: str, read: str, reader: str) -> None:
        out = self._out
        length, end = self._length(code, reader), out.fresh("e")
        minus = " - 1" if self._flexible else ""
        null = "0" if self._flexible else "-1"
        if nullable:
            out.open(f"if {length} == {null}:")
            out.line(f"{target} = None")
            out.close()
            out.open("else:")
        out.line(f"{end} = p + {length}{minus}")
        out.open(f"if not p <= {end} <= end:")
        out.line(f"raise bad_length({path!r}, {length}{minus}, end - p)")
        out.close()
        out.line(f"{target} = {read.format(end=end)}")
        out.line(f"p = {end}")
        if nullable:
            out.close()

    def _array(self, kind: Array, nullable: bool, target: str, path: str) -> None:
        out = self._out
        count = self._length("i", "read_uvarint")
        if self._flexible:
            out.line(f"{count} -= 1")
        if nullable:
            out.open(f"if {count} == -1:")
            out.line(f"{target} = None")
            out.close()
            out.open("else:")
        least = max(self._least_size(kind.element), 1)
        total = count if least == 1 else f"{count} * {least}"
        out.open(f"if not 0 <= {total} <= end - p:")
        out.line(f"raise bad_length({path!r}, {count}, end - p)")
        out.close()
        if self._bounded:
            self._count_off(count, path)
        if isinstance(kind.element, Scalar) and kind.element is not UUID:
            code = kind.element.code
            small = out.fresh("s")
            table = out.unpack_table(code)
            out.line(
                f"{small} = {table}[{count}](buf, p) if {count} < SMALL else unpack_from(f'>{{{count}}}{code}', buf, p)"
            )
            out.line(f"{target} = list({small})")
            out.line(f"p += {total}")
        else:
            self._loop(kind.element, count, target, path)
        if nullable:
            out.close()

    def _count_off(self, count: str, path: str) -> None:
        self._out.line(f"left -= {count}")
        self._out.open("if left < 0:")
        self._out.line(f"raise too_many({path!r}, -left)")
        self._out.close()

    def _loop(self, element: Scalar | Text | Struct, count: str, target: str, path: str) -> None:
        out = self._out
        items = out.fresh("a")
        out.line(f"{items} = []")
        out.open(f"while {count}:")
        out.line(f"{count} -= 1")
        if isinstance(element, Struct):
            item = self._new_struct(element, path)
        else:
            item = out.fresh("x")
            self._value(element, False, item, path)
        self._flush()
        out.line(f"{items}.append({item})")
        out.close()
        out.line(f"{target} = {items}")

    def _nullable_struct(self, kind: Struct, target: str, path: str, highest_null: int = -1) -> None:
        """highest_null: the marker of null; those above it are of a struct. In a tagged field it is unsigned."""
        out = self._out
        marker = out.fresh("n")
        self._fixed("b", 1, marker)
        self._flush()
        out.open(f"if {marker} <= {highest_null}:")
        out.line(f"{target} = None")
        out.close()
        out.open("else:")
        inner = self._new_struct(kind, path)
        self._flush()
        out.line(f"{target} = {inner}")
        out.close()

    def _tags(self, fields: list[Field], target: str, path: str) -> None:
        out = self._out
        count = out.fresh("t")
        self._fixed("B", 1, count)
        self._flush()
        out.open(f"if {count}:")
        if self._bounded:
            out.line(f"{count}, _ = read_uvarint(buf, p - 1)")
            self._count_off(f"max({count} - {len(fields)}, 0)" if fields else count, f"the tagged fields of {path}")
        if not fields:
            out.line("p = skip_tags(buf, p - 1)")
            out.close()
            return
        tag, size, end = out.fresh("g"), out.fresh("n"), out.fresh("e")
        out.line(f"{count}, p = read_uvarint(buf, p - 1)")
        out.open(f"if {count} * 2 > end - p:")
        out.line(f"raise bad_length('tagged fields of {path}', {count}, end - p)")
        out.close()
        out.open(f"for _ in range({count}):")
        out.line(f"{tag}, p = read_uvarint(buf, p)")
        out.line(f"{size}, p = read_uvarint(buf, p)")
        out.line(f"{end} = p + {size}")
        out.open(f"if {end} > end:")
        out.line(f"raise bad_length('tagged field of {path}', {size}, end - p)")
        out.close()
        for index, field in enumerate(fields):
            out.open(f"{'elif' if index else 'if'} {tag} == {field.tag}:")
            into, where, nullable = f"{target}.{field.name}", f"{path}.{field.name}", self._version in field.nullable
            if isinstance(field.type, Struct) and nullable:
                self._nullable_struct(field.type, into, where, 0)
            else:
                self._value(field.type, nullable, into, where)
            self._flush()
            out.open(f"if p != {end}:")
            out.line(f"raise bad_tag('{path}.{field.name}', p, {end})")
            out.close()
            out.close()
        out.line(f"p = {end}")
        out.close()
        out.close()

    def _least_size(self, kind: Type) -> int:
        """The fewest bytes a value takes: what bounds an announced count."""
        if isinstance(kind, Scalar):
            return kind.size
        if isinstance(kind, Text):
            return 1 if self._flexible else 2
        if isinstance(kind, Blob | Array):
            return 1 if self._flexible else 4
        plain, _, _ = split(kind, self._version)
        inside = sum(
            1 if isinstance(field.type, Struct) and self._version in field.nullable else self._least_size(field.type)
            for field in plain
        )
        return inside + (1 if self._flexible else 0)
