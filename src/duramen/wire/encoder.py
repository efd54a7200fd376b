"""Compiles a struct's schema into a straight-line encoder for one version.

Neighbouring fields of fixed size, lengths and empty sections of tagged fields are written by one `pack`. Encoded
pieces are collected in a list and joined once; `records` values pass through as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from duramen.ports import Part
from duramen.wire import runtime
from duramen.wire.classes import Classes
from duramen.wire.errors import EncodeError, UnsupportedVersionError
from duramen.wire.source import FunctionSource
from duramen.wire.types import UUID, ZERO, Array, Blob, Field, Scalar, Struct, Text, Type, split

Encoder = Callable[[Any, list[Any], list[Part] | None], None]

_RUNTIME: dict[str, Any] = {
    "pack_any": struct.pack,
    "Unencodable": (struct.error, AttributeError, TypeError, UnicodeEncodeError, OverflowError),
    "EncodeError": EncodeError,
    "UnsupportedVersionError": UnsupportedVersionError,
    "SMALL": runtime.SMALL,
    "uvarint": runtime.uvarint,
    "long_length": runtime.long_string_length,
    "blob_size": runtime.blob_size,
    "put_blob": runtime.put_blob,
    "exact": runtime.exact,
}


def compile_encoder(root: Struct, classes: Classes, version: int, flexible: bool) -> Encoder:
    """A function (object, pieces, parts or None) that appends to the lists; it raises EncodeError or
    UnsupportedVersionError."""
    source = FunctionSource({**_RUNTIME, **classes.namespace})
    _EncoderWriter(root, classes, version, flexible, source).write()
    return source.function("encode", f"{root.name} v{version} encode")


class _EncoderWriter:
    """Writes the source of one encoder. `_run` holds fields of fixed size that are still to be packed."""

    def __init__(self, root: Struct, classes: Classes, version: int, flexible: bool, source: FunctionSource) -> None:
        self._root = root
        self._classes = classes
        self._version = version
        self._flexible = flexible
        self._out = source
        self._run: list[tuple[str, str]] = []
        self._add = "pieces.append"

    def write(self) -> None:
        out = self._out
        out.open("def encode(o, pieces, parts):")
        out.open("try:")
        self._struct(self._root, "o", self._root.name)
        self._flush()
        out.line("return")
        out.close()
        out.open("except Unencodable as error:")
        out.line(f"raise EncodeError(f'{self._root.name} v{self._version}: {{error}}') from error")
        out.close()
        out.close()

    def _packed(self, run: list[tuple[str, str]]) -> str:
        codes = "".join(code for code, _ in run)
        if codes.strip("x") == "":
            return repr(bytes(len(codes)))
        return f"{self._out.pack(codes)}({', '.join(text for _, text in run if text)})"

    def _flush(self) -> None:
        if self._run:
            self._out.line(f"{self._add}({self._packed(self._run)})")
            self._run.clear()

    def _struct(self, schema: Struct, value: str, path: str) -> None:
        plain, tagged, absent = split(schema, self._version)
        for field in absent:
            if not field.ignorable:
                self._refuse_absent(field, value, path)
        for field in plain:
            nullable = self._version in field.nullable
            self._value(field.type, nullable, f"{value}.{field.name}", f"{path}.{field.name}")
        if self._flexible:
            self._tags(tagged, value, path)

    def _differs(self, field: Field, value: str) -> str:
        """Condition under which the field's value is not its default."""
        default = field.zero
        if default is ZERO:
            if isinstance(field.type, Struct):
                shared = f"D_{field.type.name}"
                return f"{value} is not {shared} and {value} != {shared}"
            return f"{value} is None or len({value})"
        text = self._classes.default(field)
        return f"{value} is not None" if text == "None" else f"{value} != {text}"

    def _refuse_absent(self, field: Field, value: str, path: str) -> None:
        out = self._out
        out.open(f"if {self._differs(field, f'{value}.{field.name}')}:")
        message = f"{path}.{field.name} is set, which version {self._version} cannot say"
        out.line(f"raise UnsupportedVersionError({message!r})")
        out.close()

    def _value(self, kind: Type, nullable: bool, value: str, path: str) -> None:
        if isinstance(kind, Scalar):
            self._run.append((kind.code, f"exact({value})" if kind is UUID else value))
        elif isinstance(kind, Text):
            self._text(nullable, value)
        elif isinstance(kind, Blob):
            self._blob(kind, nullable, value, path)
        elif isinstance(kind, Array):
            self._array(kind, nullable, value, path)
        elif nullable:
            self._nullable_struct(kind, value, path)
        else:
            local = self._out.fresh("o")
            self._out.line(f"{local} = {value}")
            self._struct(kind, local, path)

    def _length(self, name: str, code: str, long: str) -> None:
        """Write a length that was computed into the local `name` (already + 1 when flexible), with the run before."""
        if not self._flexible:
            self._run.append((code, name))
            self._flush()
            return
        short = self._packed([*self._run, ("B", name)])
        rest = f"{self._packed(self._run)} + {long}({name})" if self._run else f"{long}({name})"
        self._out.line(f"{self._add}({short} if {name} < 128 else {rest})")
        self._run.clear()

    def _bind_length(self, nullable: bool, value: str, empty: str, prepare: str, measure: str) -> tuple[str, str]:
        """Locals (item, length): the prepared value and its length, both ready for null where that is allowed."""
        out = self._out
        item, length = out.fresh("s"), out.fresh("n")
        plus = " + 1" if self._flexible else ""
        if nullable:
            out.line(f"{item} = {value}")
            out.open(f"if {item} is None:")
            out.line(f"{item} = {empty}")
            out.line(f"{length} = {'0' if self._flexible else '-1'}")
            out.close()
            out.open("else:")
            if prepare:
                out.line(f"{item} = {item}{prepare}")
            out.line(f"{length} = {measure}({item}){plus}")
            out.close()
        else:
            out.line(f"{item} = {value}{prepare}")
            out.line(f"{length} = {measure}({item}){plus}")
        return item, length

    def _text(self, nullable: bool, value: str) -> None:
        item, length = self._bind_length(nullable, value, "b''", ".encode()", "len")
        self._length(length, "h", "long_length")
        self._out.line(f"{self._add}({item})")

    def _blob(self, kind: Blob, nullable: bool, value: str, path: str) -> None:
        measure = "blob_size" if kind.by_reference else "len"
        item, length = self._bind_length(nullable, value, "b''", "", measure)
        self._length(length, "i", "uvarint")
        if kind.by_reference:
            self._out.open(f"if {length} > {1 if self._flexible else 0}:")
            self._out.line(f"put_blob({item}, pieces, parts)")
            self._out.close()
        else:
            self._out.line(f"{self._add}({item})")

    def _array(self, kind: Array, nullable: bool, value: str, path: str) -> None:
        out = self._out
        element = kind.element
        items, count = self._bind_length(nullable, value, "()", "", "len")
        if isinstance(element, Scalar) and element is not UUID:
            self._numbers(element.code, items, count, nullable)
            return
        self._length(count, "i", "uvarint")
        item = out.fresh("o")
        out.open(f"for {item} in {items}:")
        if isinstance(element, Struct):
            self._struct(element, item, path)
        else:
            self._value(element, False, item, path)
        self._flush()
        out.close()

    def _numbers(self, code: str, items: str, count: str, nullable: bool) -> None:
        """An array of numbers: the run before it, its count and its content in one `pack`."""
        out = self._out
        head = "B" if self._flexible else "i"
        codes = "".join(run_code for run_code, _ in self._run) + head
        before = "".join(f"{text}, " for _, text in self._run if text)
        plus = 1 if self._flexible else 0
        length = f"len({items})" if nullable else f"{count} - {plus}" if plus else count
        wide = f"uvarint({count})" if self._flexible else f"{out.pack('i')}({count})"
        if self._run:
            wide = f"{self._packed(self._run)} + {wide}"
        self._run.clear()
        out.line(
            f"{self._add}({out.pack_table(codes, code)}[{length}]({before}{count}, *{items}) if {count} < SMALL else "
            f"{wide} + pack_any(f'>{{{length}}}{code}', *{items}))"
        )

    def _is_always_sent(self, field: Field) -> bool:
        """Kafka takes a tagged struct that is missing for an empty one, though its default is null: null is said."""
        return isinstance(field.type, Struct) and self._version in field.nullable

    def _nullable_struct(self, kind: Struct, value: str, path: str, null: str = r"b'\xff'") -> None:
        """null: how it is said; a number as big as a byte, and in a tagged field an unsigned one."""
        out = self._out
        local = out.fresh("o")
        self._flush()
        out.line(f"{local} = {value}")
        out.open(f"if {local} is None:")
        out.line(f"{self._add}({null})")
        out.close()
        out.open("else:")
        self._run.append(("b", "1"))
        self._struct(kind, local, path)
        self._flush()
        out.close()

    def _tags(self, fields: list[Field], value: str, path: str) -> None:
        if not fields:
            self._run.append(("x", ""))
            return
        out = self._out
        locals_ = [out.fresh("v") for _ in fields]
        for name, field in zip(locals_, fields, strict=True):
            out.line(f"{name} = {value}.{field.name}")
        conditions = [
            "True" if self._is_always_sent(field) else self._differs(field, name)
            for name, field in zip(locals_, fields, strict=True)
        ]
        before = list(self._run)
        self._run.clear()
        out.open(f"if {' or '.join(f'({c})' for c in conditions)}:")
        if before:
            out.line(f"{self._add}({self._packed(before)})")
        count, section, outer = out.fresh("t"), out.fresh("q"), self._add
        out.line(f"{count} = 0")
        out.line(f"{section} = []")
        for name, field, condition in zip(locals_, fields, conditions, strict=True):
            content = out.fresh("q")
            out.open(f"if {condition}:")
            out.line(f"{count} += 1")
            out.line(f"{content} = []")
            self._add = f"{content}.append"
            where, nullable = f"{path}.{field.name}", self._version in field.nullable
            if isinstance(field.type, Struct) and nullable:
                self._nullable_struct(field.type, name, where, r"b'\x00'")
            else:
                self._value(field.type, nullable, name, where)
            self._flush()
            out.line(f"{content} = b''.join({content})")
            out.line(f"{section}.append(uvarint({field.tag}) + uvarint(len({content})) + {content})")
            out.close()
        self._add = outer
        out.line(f"{self._add}(uvarint({count}) + b''.join({section}))")
        out.close()
        out.open("else:")
        out.line(f"{self._add}({self._packed([*before, ('x', '')])})")
        out.close()
