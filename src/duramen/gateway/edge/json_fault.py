"""What is wrong with JSON, in words of JSON rather than of the types that it is decoded to. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.inspect import DictType, ListType, LiteralType, StructType, Type, UnionType, multi_type_info

_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<place>[^`]*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[([0-9]+|\.\.\.)\]")
_MISMATCH: Final = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<found>[^`]+)`")
_BOUND: Final = re.compile(r"Expected `(?P<kind>int|str|array)` (?:of length )?(?P<side>>=|<=) (?P<bound>-?[0-9]+)")
_STRANGER: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_NO_CHOICE: Final = re.compile(r"Invalid (?:enum )?value .*", re.DOTALL)
_NO_JSON: Final = re.compile(r"JSON is malformed: (?P<why>.*) \(byte (?P<byte>[0-9]+)\)", re.DOTALL)

_KINDS: Final = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
}
_TYPES: Final = {
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    dict: "object",
    list: "array",
    type(None): "null",
}
_COUNTED: Final = {"str": "character", "array": "element"}
_REASONS: Final = {
    "expected ':'": "a colon is missing",
    "expected '\"'": "a name in quotes is missing",
    "expected ',' or ']'": "a comma or a ] is missing",
    "expected ',' or '}'": "a comma or a } is missing",
    "trailing comma in array": "nothing follows the comma",
    "trailing comma in object": "nothing follows the comma",
    "trailing characters": "something follows after its end",
    "object keys must be strings": "a name has to be a string",
    "invalid number": "a number is not written so",
    "invalid character": "this character cannot stand here",
    "invalid escape character in string": "there is no such escape",
    "invalid utf-16 surrogate pair": "half a surrogate pair is no character",
}
_KEY: Final = "..."
"""Stands for the name of a value in an object whose names are free."""
_SHOWN_MAX: Final = 80
_SEARCHED_MAX: Final = 65_536
"""Bytes of a text in which such a name is searched: it is decoded once more, whatever is in it."""


class JsonFault(NamedTuple):
    """place: the field as the text has it, `.records[0].value`, "" for all of it; why: what is wrong there."""

    place: str
    why: str


def json_fault(error: Exception, text: bytes | str, kind: Any) -> JsonFault:
    """What an error of msgspec says about a text that was decoded to a type."""
    found = _PLACE.fullmatch(str(error))
    assert found is not None
    what, steps = found["what"], [step[0] or step[1] for step in _STEP.findall(found["place"] or "")]
    if match := _NO_JSON.fullmatch(what):
        why = _REASONS.get(match["why"], "")
        return JsonFault("", f"it is no JSON at byte {match['byte']}{f': {why}' if why else ''}")
    if what == "Input data was truncated":
        # A surrogate without its other half at the end is said so, too.
        return JsonFault(
            "", "it ends in the middle of a value, or of a character" if text else "it has to be JSON; it is empty"
        )
    if match := _MISMATCH.fullmatch(what):
        return _mismatch(match, steps, text)
    if match := _STRANGER.fullmatch(what):
        known = ", ".join(_fields(_at(kind, steps)))
        taken = f"there are {known}" if known else "none is taken here"
        return JsonFault(_shown([*steps, match["name"]]), f"there is no such field; {taken}")
    if match := _MISSING.fullmatch(what):
        return JsonFault(_shown([*steps, match["name"]]), "it is missing")
    if match := _BOUND.fullmatch(what):
        return JsonFault(_shown(steps), _out_of_bound(match["kind"], match["side"], int(match["bound"])))
    if _NO_CHOICE.fullmatch(what):
        return JsonFault(_shown(steps), f"it has to be {_either(_choices(_at(kind, steps)))}")
    return JsonFault(_shown(steps), "it is not as it has to be")


def _mismatch(match: re.Match[str], steps: list[str], text: bytes | str) -> JsonFault:
    kinds = match["wanted"].split(" | ")
    found = _KINDS.get(match["found"], match["found"])
    if match["found"] == "float" and "int" in kinds:
        found = "one with a point or an exponent"
    why = f"has to be {' or '.join(_KINDS.get(each, each) for each in kinds)}, not {found}"
    if _KEY not in steps:
        return JsonFault(_shown(steps), f"it {why}")
    name = _searched(text, steps, match["found"])
    if name is None:
        return JsonFault(_shown(steps[: steps.index(_KEY)]), f"each value in it {why}")
    return JsonFault(_shown([name if step == _KEY else step for step in steps]), f"it {why}")


def _searched(text: bytes | str, steps: Sequence[str], found: str) -> str | None:
    """The name at the step that is free, of the first value there of the kind that was found."""
    if len(text) > _SEARCHED_MAX or steps[-1] != _KEY:
        return None
    try:
        value = msgspec.json.decode(text)
        for step in steps[:-1]:
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (msgspec.MsgspecError, RecursionError, LookupError, ValueError, TypeError):
        return None
    if not isinstance(value, dict):
        return None
    return next((name for name, each in value.items() if _TYPES[type(each)] == found), None)


def _shown(steps: Iterable[str]) -> str:
    return "".join(
        f"[{step}]" if step.isdecimal() else f".{step}" if _is_plain(step) else f"[{_quoted(step)}]" for step in steps
    )


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isidentifier() and len(name) <= _SHOWN_MAX


def _quoted(name: str) -> str:
    return msgspec.json.encode(name[:_SHOWN_MAX]).decode()


def _out_of_bound(kind: str, side: str, bound: int) -> str:
    limit = f"{'at least' if side == '>=' else 'at most'} {bound}"
    if kind == "int":
        return f"it has to be a whole number of {limit}"
    return f"it has to have {limit} {_COUNTED[kind]}{'' if bound == 1 else 's'}"


def _either(values: Sequence[object]) -> str:
    words = [str(value) for value in values]
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0] if words else "another value"


# ---- the types that a text is decoded to ---------------------------------------------------------------------


@functools.cache
def _type_of(kind: Any) -> Type:
    return multi_type_info([kind])[0]


def _at(kind: Any, steps: Iterable[str]) -> list[Type]:
    """The types that a value may have there."""
    types = _flat(_type_of(kind))
    for step in steps:
        types = [each for found in types for inner in _inside(found, step) for each in _flat(inner)]
    return types


def _flat(found: Type) -> list[Type]:
    return list(found.types) if isinstance(found, UnionType) else [found]


def _inside(found: Type, step: str) -> list[Type]:
    if isinstance(found, StructType):
        return [field.type for field in found.fields if field.encode_name == step]
    if isinstance(found, ListType) and step.isdecimal():
        return [found.item_type]
    return [found.value_type] if isinstance(found, DictType) and step == _KEY else []


def _fields(types: Iterable[Type]) -> list[str]:
    return [field.encode_name for found in types if isinstance(found, StructType) for field in found.fields]


def _choices(types: Iterable[Type]) -> list[object]:
    return [value for found in types if isinstance(found, LiteralType) for value in found.values]
