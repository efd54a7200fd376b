"""JSON of requests, decoded to a type; what is wrong with it is a problem that names the field. Pure."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from duramen.gateway.edge.json_fault import json_fault
from duramen.gateway.edge.problem import ProblemError, bad_request

_T = TypeVar("_T")
_WHOLE = ("body", "message")
"""What need not be named in front of a field: there is nothing else that has one."""


def decoded_json(text: bytes | str, decoder: msgspec.json.Decoder[_T], where: str, example: str = "") -> _T:
    """What a text says. where: what it is, `body`, `line 3`; example: how it could be. Problem 400."""
    try:
        if isinstance(text, bytes):
            text.decode()  # what stays as it is, a record's value, is not looked into else
        return decoder.decode(text)
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise bad_request(where, f"it is not UTF-8 at byte {error.start}") from None
    except msgspec.MsgspecError as error:
        raise _problem(error, text, decoder, where, example) from None
    except RecursionError:
        raise bad_request(where, "it nests too deeply") from None


def _problem(
    error: Exception, text: bytes | str, decoder: msgspec.json.Decoder[_T], where: str, example: str
) -> ProblemError:
    place, why = json_fault(error, text, decoder.type)
    field = place[1:] if place.startswith(".") and where in _WHOLE else f"{where}{place}"
    return bad_request(field, f"{why}; as in {example}" if example else why)
