"""What is wrong with JSON is said in words of JSON, at the field as the text has it, and never in msgspec's."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest

from duramen.gateway.edge.json_fault import json_fault


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=4)]
    count: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None
    form: Literal["plain", "base64", "json"] = "plain"


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    begin: str = msgspec.field(name="from", default="")
    free: dict[str, str | None] | list[Inner] = {}
    inner: list[Inner] = []
    few: Annotated[list[int], msgspec.Meta(max_length=1)] = []


class Empty(msgspec.Struct, forbid_unknown_fields=True):
    pass


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        (b'{"from":1}', ".from", "it has to be a string, not a whole number"),
        (b'{"free":5}', ".free", "it has to be an object or an array, not a whole number"),
        (b"1.5", "", "it has to be an object, not a number"),
        (b'{"inner":[{"name":"a"},{"name":"a","count":true}]}', ".inner[1].count",
         "it has to be a whole number or null, not true or false"),
        (b'{"inner":[{"name":"a","count":1e3}]}', ".inner[0].count",
         "it has to be a whole number or null, not one with a point or an exponent"),
        (b'{"inner":[{"name":"a","count":-1}]}', ".inner[0].count", "it has to be a whole number of at least 0"),
        (b'{"inner":[{"name":"a","count":%s}]}' % (b"9" * 40), ".inner[0].count",
         "it has to be a whole number of at most 9"),
        (b'{"inner":[{"name":""}]}', ".inner[0].name", "it has to have at least 1 character"),
        (b'{"inner":[{"name":"abcde"}]}', ".inner[0].name", "it has to have at most 4 characters"),
        (b'{"few":[1,2]}', ".few", "it has to have at most 1 element"),
        (b'{"inner":[{"name":"a","form":"x"}]}', ".inner[0].form", "it has to be base64, json or plain"),
        (b'{"free":[{"name":"a","form":4}]}', ".free[0].form", "it has to be a string, not a whole number"),
        (b'{"inner":[{}]}', ".inner[0].name", "it is missing"),
        (b'{"inner":[{"nmae":"a"}]}', ".inner[0].nmae", "there is no such field; there are name, count, form"),
        (b'{"x":1}', ".x", "there is no such field; there are from, free, inner, few"),
        (b'{"x\\n` - at `$.y`":1}', '["x\\n` - at `$.y`"]', "there is no such field; there are from, free, inner, few"),
        (b'{"free":{"b":"","a":1}}', ".free.a", "it has to be a string or null, not a whole number"),
        (b'{"free":{"retention.ms":1}}', '.free["retention.ms"]', "it has to be a string or null, not a whole number"),
        (b'{"free":{"a":[]},"x":}', ".free", "each value in it has to be a string or null, not an array"),
        (b"{", "", "it ends in the middle of a value, or of a character"),
        (b"", "", "it has to be JSON; it is empty"),
        (b'{"a" 1}', "", "it is no JSON at byte 5: a colon is missing"),
        (b"{} x", "", "it is no JSON at byte 4: something follows after its end"),
        (b'{"few":[1 2]}', "", "it is no JSON at byte 10: a comma or a ] is missing"),
        (b'{"few":[1,]}', "", "it is no JSON at byte 10: nothing follows the comma"),
        (b'{"few":[01]}', "", "it is no JSON at byte 9: a number is not written so"),
        (b'{"from":"\\x"}', "", "it is no JSON at byte 11: there is no such escape"),
        (b"{1:2}", "", "it is no JSON at byte 1: a name has to be a string"),
    ],
)  # fmt: skip
def test_words_of_json(text: bytes, place: str, why: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as wrong:
        msgspec.json.decode(text, type=Asked)
    assert json_fault(wrong.value, text, Asked) == (place, why)


def test_nothing_is_taken() -> None:
    with pytest.raises(msgspec.MsgspecError) as wrong:
        msgspec.json.decode(b'{"x":1}', type=Empty)
    assert json_fault(wrong.value, b'{"x":1}', Empty) == (".x", "there is no such field; none is taken here")


def test_long_texts_are_neither_shown_nor_searched() -> None:
    text = b'{"%s":1}' % (b"x" * 100_000)
    with pytest.raises(msgspec.MsgspecError) as wrong:
        msgspec.json.decode(text, type=dict[str, str])
    assert json_fault(wrong.value, text, dict[str, str]) == (
        "", "each value in it has to be a string, not a whole number",
    )  # fmt: skip
    with pytest.raises(msgspec.MsgspecError) as wrong:
        msgspec.json.decode(text, type=Empty)
    assert len(json_fault(wrong.value, text, Empty).place) < 100


def test_what_is_not_known_yet_has_no_words_of_msgspec() -> None:
    fault = json_fault(msgspec.ValidationError("Expected `thing` of 3 - at `$.a[2]`"), b"{}", Asked)
    assert fault == (".a[2]", "it is not as it has to be")
