"""What is wrong with JSON is said in words of JSON."""

from __future__ import annotations

import msgspec
import pytest

from duramen.gateway.edge.json_fault import json_fault


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    defaults: dict[str, str] | None = None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"defaults":{"a":1}}', "defaults[...] has to be a string, not a whole number"),
        (b'{"defaults":[]}', "defaults has to be an object or null, not an array"),
        (b"1.5", "it has to be an object, not a number"),
        (b'{"x":1}', "Object contains unknown field `x`"),
        (b"{", "Input data was truncated"),
    ],
)
def test_words_of_json(body: bytes, said: str) -> None:
    with pytest.raises(msgspec.DecodeError) as wrong:
        msgspec.json.decode(body, type=Asked)
    assert json_fault(wrong.value) == said
