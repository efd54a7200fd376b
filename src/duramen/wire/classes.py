"""Makes the Python class of each struct of a message: slots, and a constructor with a keyword for every field."""

from __future__ import annotations

from typing import Any

from duramen.wire.runtime import MISSING, StructValue, frozen
from duramen.wire.types import ZERO, Array, Field, Struct


class Classes:
    """The classes of one message by struct name, with what generated code needs to set defaults.

    namespace: names that generated code may use: `C_<struct>` its class, `D_<struct>` its shared default,
    `Z_<bytes>` constants.
    """

    def __init__(self, root: Struct) -> None:
        self.by_name: dict[str, type[Any]] = {}
        self.namespace: dict[str, Any] = {"MISSING": MISSING, "StructValue": StructValue, "ZERO_UUID": bytes(16)}
        self._define(root)

    def _define(self, struct: Struct) -> None:
        if struct.name in self.by_name:
            return
        for field in struct.fields:
            inner = field.type.element if isinstance(field.type, Array) else field.type
            if isinstance(inner, Struct):
                self._define(inner)
        name = struct.name
        source = _class_source(struct, [(field.name, self.default(field)) for field in struct.fields])
        exec(compile(source, f"<struct {name}>", "exec"), self.namespace)
        cls = self.namespace[name]
        self.by_name[name] = cls
        self.namespace[f"C_{name}"] = cls
        self.namespace[f"D_{name}"] = frozen(cls)

    def default(self, field: Field) -> str:
        """Source text of the field's default; a mutable one is a new object each time it is evaluated."""
        value = field.zero
        if value is ZERO:
            return f"D_{field.type.name}" if isinstance(field.type, Struct) else "[]"
        if value == bytes(16):
            return "ZERO_UUID"
        return repr(value)


def _class_source(struct: Struct, defaults: list[tuple[str, str]]) -> str:
    names = ", ".join(repr(name) for name, _ in defaults)
    slots = f"({names},)" if names else "()"
    lines = [
        f"class {struct.name}(StructValue):",
        f"    __slots__ = {slots}",
        "    field_names = __slots__",
    ]
    if defaults:
        arguments = ", ".join(f"{name}={'MISSING' if text == '[]' else text}" for name, text in defaults)
        lines.append(f"    def __init__(self, *, {arguments}):")
        for name, text in defaults:
            value = f"[] if {name} is MISSING else {name}" if text == "[]" else name
            lines.append(f"        self.{name} = {value}")
    return "\n".join(lines) + "\n"
