"""What is wrong with JSON, in words of JSON rather than of the types that it is decoded to. Pure."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_MISMATCH: Final = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<found>[^`]+)`(?: - at `\$\.?(?P<place>[^`]*)`)?")
_KINDS: Final = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
}
_LENGTH_MAX: Final = 200


def json_fault(error: Exception) -> str:
    """In one phrase: `defaults[...] has to be a string, not a whole number`. What is no mismatch of types is said as
    msgspec says it."""
    match = _MISMATCH.fullmatch(str(error)) if isinstance(error, msgspec.ValidationError) else None
    if match is None:
        return str(error)[:_LENGTH_MAX]
    wanted, found = (
        " or ".join(_KINDS.get(each, each) for each in match[key].split(" | ")) for key in ("wanted", "found")
    )
    return f"{match['place'] or 'it'} has to be {wanted}, not {found}"[:_LENGTH_MAX]
