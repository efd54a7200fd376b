"""What a setting is: its declaration, how its text is parsed, checked and printed.

The rules of parsing are those of Kafka's ConfigDef: text is trimmed (passwords are not), integers are plain decimal
digits with an optional sign, booleans are `true` or `false` in any case, lists are separated by commas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from enum import IntEnum

from duramen.errors import ConfigError

Value = bool | int | float | str | list[str] | None
"""A typed value: short, int and long are int; class and password are str; None where a setting may be unset."""

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
PARTITIONS_MAX = 10_000
"""New partitions that one request may ask for, as in Kafka: more would make one enormous batch."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_RANGES = {"short": (-(2**15), 2**15 - 1), "int": (-(2**31), INT_MAX), "long": (-(2**63), LONG_MAX)}
_NOUNS = {
    "boolean": "`true` or `false`",
    "short": "a whole number of 16 bits",
    "int": "a whole number of 32 bits",
    "long": "a whole number of 64 bits",
    "double": "a number",
}


class ConfigType(IntEnum):
    """The data type of a setting as DescribeConfigs reports it (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Setting:
    """One declared setting.

    kind: boolean, int, long, short, double, string, list, class or password.
    default: the text of the default; None when it is unset by default.
    unit: ms, minutes, hours, seconds, bytes or "" when it has none.
    low, high: inclusive bounds of a number; `also` are legal texts outside of them.
    allowed: the legal values of a string, or of each element of a list.
    update: "restart", or "cluster-wide": dynamic broker configs, one node's and all nodes', may change it (KIP-226).
    fallbacks: where an unset value comes from, first set one first: (broker setting, factor to this setting's unit).
    inert: why the setting has no meaning here; "" when it is served.
    internal: accepted but not listed, as Kafka's `internal` configs.
    """

    __slots__ = (
        "_default_value",
        "allowed",
        "also",
        "default",
        "doc",
        "fallbacks",
        "folded",
        "high",
        "inert",
        "internal",
        "kind",
        "low",
        "name",
        "unit",
        "update",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        default: str | None,
        doc: str,
        *,
        unit: str = "",
        low: float | None = None,
        high: float | None = None,
        also: tuple[str, ...] = (),
        allowed: tuple[str, ...] = (),
        folded: bool = False,
        update: str = "restart",
        fallbacks: tuple[tuple[str, int], ...] = (),
        inert: str = "",
        internal: bool = False,
    ) -> None:
        self.name = name
        self.kind = kind
        self.default = default
        self.doc = doc
        self.unit = unit
        self.low = low
        self.high = high
        self.also = also
        self.allowed = allowed
        self.folded = folded
        self.update = update
        self.fallbacks = fallbacks
        self.inert = inert
        self.internal = internal
        self._default_value: Value = None

    def __repr__(self) -> str:
        return f"Setting({self.name!r})"

    @property
    def type(self) -> ConfigType:
        """The type as DescribeConfigs numbers it."""
        return ConfigType[self.kind.upper()]

    @property
    def sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.kind == "password"

    @property
    def default_value(self) -> Value:
        """The default, typed; parsed once. Lists must not be changed by the caller."""
        if self._default_value is None and self.default is not None:
            self._default_value = self.parse(self.default)
        return self._default_value

    def parse(self, text: str) -> Value:
        """The typed value of `text`; ConfigError when it is ill-typed, out of bounds or not allowed."""
        if self.kind == "password":
            return text
        trimmed = text.strip()
        if self.kind == "list":
            return self._parse_list(trimmed)
        if self.kind in ("string", "class"):
            self._check_allowed([trimmed], text)
            return trimmed
        if self.kind == "boolean":
            lowered = trimmed.lower()
            if lowered not in ("true", "false"):
                raise self._ill_typed(text)
            return lowered == "true"
        return self._parse_number(trimmed, text)

    def _parse_list(self, text: str) -> list[str]:
        parts = [part.strip() for part in text.split(",")] if text else []
        if self.allowed:
            self._check_allowed(parts, text)
            return list(dict.fromkeys(parts))
        return parts

    def _parse_number(self, trimmed: str, text: str) -> Value:
        if trimmed in self.also:
            return int(trimmed)
        number: int | float
        if self.kind == "double":
            if not _DECIMAL.fullmatch(trimmed):
                raise self._ill_typed(text)
            number = float(trimmed)
            if math.isinf(number):
                raise self._ill_typed(text)
        else:
            low, high = _RANGES[self.kind]
            if not _WHOLE.fullmatch(trimmed) or not low <= int(trimmed) <= high:
                raise self._ill_typed(text)
            number = int(trimmed)
        if (self.low is not None and number < self.low) or (self.high is not None and number > self.high):
            raise ConfigError(f"{self.name}={trimmed} is out of bounds; it must be {self.bounds}")
        return number

    def _check_allowed(self, values: Iterable[str], text: str) -> None:
        if not self.allowed:
            return
        for value in values:
            if value not in self.allowed and not (self.folded and value.lower() in self.allowed):
                raise ConfigError(f"{self.name}={text}: {value!r} is not one of {', '.join(self.allowed)}")

    def _ill_typed(self, text: str) -> ConfigError:
        unless = "it is unset by default" if self.default is None else f"its default is {self.default}"
        slip = (
            "a comment needs a line of its own" if "#" in text else "a value has no quotes" if '"' in text else unless
        )
        return ConfigError(f"{self.name}={text} is not {_NOUNS[self.kind]}; {slip}")

    @property
    def bounds(self) -> str:
        """The legal values in words, "" when everything of the type is legal."""
        if self.allowed:
            return ", ".join(self.allowed)
        if self.low is None and self.high is None:
            return ""
        if self.high is None:
            words = f"{number_text(self.low)} or more"
        elif self.low is None:
            words = f"{number_text(self.high)} or less"
        else:
            words = f"{number_text(self.low)} to {number_text(self.high)}"
        return words + "".join(f", or {value}" for value in self.also)

    def text(self, value: Value) -> str | None:
        """The value as DescribeConfigs and .properties files write it; None for an unset one."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list):
            return ",".join(value)
        if isinstance(value, float):
            return number_text(value)
        return str(value)


def number_text(number: float | None) -> str:
    """A number without needless digits: 0.5, 1, 9223372036854775807."""
    if isinstance(number, float):
        return repr(number).replace("e+", "E")
    return str(number)
