"""Java's .properties syntax, each rule with the text that shows it."""

import pytest

from duramen.config import parse_properties
from duramen.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1\nb:2\nc 3\nd\t:\t4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("a==1", {"a": "=1"}),
        ("a : = 1", {"a": "= 1"}),
        ("  # comment\n! another\n\n \t\na=1#2", {"a": "1#2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=one,\\\n   two,\\\n\tthree", {"a": "one,two,three"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("# comment \\\na=1", {"a": "1"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        ("a\\ b\\=c\\:d = 1", {"a b=c:d": "1"}),
        (r"a=\t\n\r\f\q", {"a": "\t\n\r\fq"}),
        (r"a=caf\u00e9", {"a": "café"}),
        (r"a=\uD83D\uDE00", {"a": "\U0001f600"}),
        ("a=trailing  ", {"a": "trailing  "}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("", {}),
        ("\ufeffa=1", {"a": "1"}),
    ],
)
def test_reads_what_java_reads(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", ["a=\\u12", "x=1\na=\\uXYZW"])
def test_malformed_unicode_escape_names_the_line(text: str) -> None:
    with pytest.raises(ConfigError, match=f"line {text.count(chr(10)) + 1}:"):
        parse_properties(text)
