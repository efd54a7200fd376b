"""Tables, sizes and progress."""

import io
import json
import re

import click
import pytest

from duramen.cli.shared import output
from duramen.cli.shared.output import (
    ProgressLine,
    human_bytes,
    pairs,
    plain_table,
    plural,
    print_json,
    print_table,
    rich_table,
    stacked,
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_plain_table_aligns() -> None:
    lines = plain_table(("name", "n"), [["a", "1"], ["long", "1,000"]], {"n"})
    assert lines == ["NAME      N", "a         1", "long  1,000"]


def test_table_without_a_terminal_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "n", "ok"), [("a", 1000, True), ("b", None, False)], right=("n",))
    assert capsys.readouterr().out == "NAME      N  OK\na     1,000  yes\nb         -  no\n"


def test_table_on_a_terminal_is_styled_and_escapes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    print_table(("name",), [("[red]x[/red]",)])
    assert "[red]x[/red]" in screen.getvalue()
    assert rich_table(("name",), [["x"]], set()).row_count == 1


@pytest.mark.parametrize("width", [20, 40, *range(66, 82)])
def test_no_name_and_no_number_is_broken_however_narrow_the_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    headings = ("topic", "partitions", "replicas", "records", "bytes")
    names = ["orders.european-customers.v2", "o"]
    print_table(headings, [(name, 12, 1, 1234567, "10.5 GiB") for name in names], right=headings[1:])
    lines = [line.rstrip() for line in re.sub("\x1b\\[[0-9;]*m", "", screen.getvalue()).splitlines()]
    for name in names:
        assert sum(line.split()[:1] == [name] for line in lines) == 1
    for number in ("1,234,567", "10.5 GiB"):
        assert sum(number in line for line in lines) == 2
    assert all(len(line) <= width for line in lines if not line.startswith(names[0]))


def test_where_a_table_does_not_fit_each_cell_has_its_heading() -> None:
    assert stacked(("partition", "end", "isr"), [["0", "1,000", "1,2"]], {"partition", "end"}, 40) == [
        "partition 0",
        "  end 1,000, isr 1,2",
    ]


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"ä": [1, None]})
    assert capsys.readouterr().out == '{"ä":[1,null]}\n'


def test_json_is_json_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.TextIOWrapper(io.BytesIO(), "latin-1", errors="backslashreplace")
    monkeypatch.setattr("sys.stdout", screen)
    print_json("\u20ac\u00e9\x07")
    assert json.loads(screen.buffer.getvalue()) == "\u20ac\u00e9\x07"  # type: ignore[attr-defined]


def test_names_that_clients_chose_draw_no_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("group", "lag"), [("a\nb  0\033[2J", 1)])
    assert capsys.readouterr().out == "GROUP           LAG\na\\nb  0\\x1b[2J  1\n"


def test_words() -> None:
    assert [human_bytes(size) for size in (0, 1023, 1536, 5 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]
    assert plural(1, "record") == "1 record"
    assert plural(2000, "record") == "2,000 records"


def test_pairs() -> None:
    assert pairs("--set", ["a=1", "b==", "c ="]) == {"a": "1", "b": "=", "c": ""}
    for wrong in ("a", "=1"):
        with pytest.raises(click.UsageError, match="expected key=value"):
            pairs("--set", [wrong])


def test_progress_starts_after_a_second_and_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    screen = Terminal()
    monkeypatch.setattr("duramen.cli.shared.output.time.monotonic", lambda: now[0])
    monkeypatch.setattr("sys.stderr", screen)
    with ProgressLine("writing") as progress:
        now[0] += 0.9
        progress.show("10 records")
        assert screen.getvalue() == ""
        now[0] += 0.2
        progress.show("20 records")
        progress.show("21 records")
        assert screen.getvalue() == "\rwriting 20 records"
    assert screen.getvalue().endswith("\r")


def test_progress_is_silent_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    monkeypatch.setattr(output, "PROGRESS_AFTER_SECONDS", 0.0)
    with ProgressLine("writing") as progress:
        progress.show("1")
    assert pipe.getvalue() == ""
