"""The command line's frame: help, exit codes, one-line errors, and what is loaded when."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import reload
from pathlib import Path
from types import ModuleType

import click
import pytest

import duramen.__main__
from duramen import __version__
from duramen.cli.main import main, program
from duramen.errors import StorageError

RUN = [sys.executable, "-m", "duramen.cli.main"]


def commands_below(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands_below(command, (*path, name))


def every_command() -> Iterator[tuple[str, ...]]:
    return (path for path, _ in commands_below(program, ()))


SAME_MEANING = {"--limit": "--count"}
"""Long options that share a letter, for both say the same."""


def test_a_letter_means_one_thing_in_all_commands() -> None:
    meanings: dict[str, dict[tuple[object, ...], str]] = {}
    for path, command in commands_below(program, ()):
        for option in command.params:
            letters = [name for name in (*option.opts, *option.secondary_opts) if re.fullmatch("-[A-Za-z]", name)]
            long = [SAME_MEANING.get(name, name) for name in option.opts if name.startswith("--")]
            kind = "a file" if isinstance(option.type, click.Path | click.File) else "a value"
            meaning = (*long, "a switch" if getattr(option, "is_flag", False) else kind)
            for letter in letters:
                meanings.setdefault(letter, {}).setdefault(meaning, " ".join(path))
    assert len(meanings) > 10
    assert {letter: found for letter, found in meanings.items() if len(found) > 1} == {}
    assert "-h" not in meanings, "it is --help everywhere"


def test_ctrl_c_while_the_command_loads_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "duramen.cli.main", Interrupted("duramen.cli.main"))
    with pytest.raises(SystemExit) as end:
        reload(duramen.__main__)
    assert end.value.code == 130


@pytest.mark.parametrize("path", [(), *every_command()], ids=" ".join)
def test_help_has_an_example_and_fits_eighty_columns(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example" in text
    assert f"duramen {path[0]}" in text if path else "duramen serve" in text
    assert max(map(len, text.splitlines())) <= 80
    commands = text.partition("\nCommands:\n")[2].partition("\n\n")[0]
    assert not [line for line in commands.splitlines() if line.endswith("...")], "a line of the list is cut"
    assert "\033" not in text
    assert "\b" not in text


# Every help, each behind a line with its command; the columns are those of a terminal that is none.
HELPS = """
import sys
from duramen.cli.main import main
for path in sys.argv[1:]:
    print("##", path, flush=True)
    main([*path.split(), "--help"])
"""


def test_help_needs_no_docstrings() -> None:
    """`python -OO`, PYTHONOPTIMIZE=2, has none; what a command and an option is for is said all the same."""
    paths = ["", *(" ".join(path) for path in every_command())]
    told = []
    for optimized in ([], ["-OO"]):
        run = [sys.executable, *optimized, "-c", HELPS, *paths]
        told.append(subprocess.run(run, capture_output=True, text=True, timeout=100, check=True).stdout)
    plain, bare = ({text.partition("\n")[0]: text for text in out.split("## ")[1:]} for out in told)
    assert plain.keys() == bare.keys() == set(paths)
    for path in paths:
        assert bare[path] == plain[path]
        usage, description = bare[path].split("\n\n")[:2]
        assert usage.partition("\n")[2].startswith("Usage: duramen")
        assert not description.startswith("Options"), f"{path}: what it does is not said"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"duramen {__version__}\n"


def loaded_by(*arguments: str) -> set[str]:
    code = (
        "import sys; from duramen.cli.main import main; code = main(sys.argv[1:]); "
        "print('MODULES', *sorted(sys.modules)); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "arguments", [("--help",), ("serve", "--help"), ("serve", "--set", "nonsense=1"), ("spark", "--help")]
)
def test_neither_help_nor_serve_loads_a_client_or_rich(arguments: tuple[str, ...]) -> None:
    loaded = loaded_by(*arguments)
    assert "duramen.cli.main" in loaded
    assert not loaded & {
        "asyncio",
        "confluent_kafka",
        "rich",
        "pyarrow",
        "pyspark",
        "duramen.gateway",
        "duramen.server",
    }


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["toipc"], 2, "Did you mean 'topic'?"),
        (["serve", "--set", "a"], 2, "expected key=value"),
        (["serve", "--set", "num.partition=1"], 2, "nearest is num.partitions"),
        (["serve", "--config", "/does/not/exist"], 2, "does not exist"),
        (["topic", "list", "--bootstrap", "nowhere:"], 2, "it is not HOST[:PORT]"),
        (["topic", "list", "--bootstrap", "127.0.0.1:1"], 1, "duramen serve"),
        (["topic", "list", "--bootstrap", "127.0.0.1:99999"], 2, "a port is at most 65535"),
        (["produce", "t", "/does/not/exist"], 2, "No such file or directory. See"),
        (["topic", "alter", "t"], 2, "nothing to change"),
        (["topic", "delete", "t"], 2, "--yes"),
        (["consume", "t", "--from", "yesterday"], 2, "neither an offset nor a time"),
        (["consume", "t", "--group", "g", "--partition", "0"], 2, "exclude each other"),
        (["consume", "t", "--group", "g", "--from", "5"], 2, "reset-offsets"),
        (["consume", "t", "--group", "g", "--until", "5"], 2, "--until and --last do not go with --group"),
        (["consume", "t", "--group", "g", "--last", "5"], 2, "--until and --last do not go with --group"),
        (["consume", "t", "--last", "5", "--count", "5"], 2, "--last goes with neither --from"),
        (["consume", "t", "--last", "5", "--until", "5"], 2, "--last goes with neither --from"),
        (["consume", "t", "--until", "yesterday"], 2, "neither an offset nor a time"),
        (["consume", "^t.*"], 2, "a pattern is written with * and ?"),
        (["produce", "t", "--format", "json", "--key-separator", ":"], 2, "--format lines"),
        (["produce", "t", "--key", "k", "--key-separator", ":"], 2, "give one of"),
        (["produce", "t", "--format", "json", "--key", "k"], 2, "--key does not go with it"),
        (["produce", "t", "--format", "file", "--null", "-"], 2, "--null belongs to"),
        (["produce", "t", "--key-field", "id", "--null", "-"], 2, "--null belongs to"),
        (["produce", "t", "--keep-partitions"], 2, "--format json"),
        (["produce", "t", "--key-separator", ""], 2, "--key-separator is empty"),
        (["topic", "list", "--timeout", "nan"], 2, "no number"),
        (["topic", "list", "--timeout", "inf"], 2, "not in the range"),
        (["consume", "t", "--group", ""], 2, "--group': it is empty"),
        (["topic", "describe", ""], 2, "it is empty"),
        (["group", "reset-offsets", "g", "--topic", "t"], 2, "say where to"),
        (["group", "reset-offsets", "g", "--topic", "t", "--to-earliest", "--to-latest"], 2, "say where to"),
        (["group", "reset-offsets", "g", "--to-earliest"], 2, "which topics"),
        (["config", "alter", "--topic", "t"], 2, "nothing to change"),
        (["completion", "tcsh"], 2, "tcsh"),
        (["completion", "bash", "more"], 2, "extra argument (more). See"),
        (["topic", "create", "t", "--partitions", "9999999999999"], 2, "not in the range"),
        (["topic", "alter", "t", "--partitions", "9999999999999"], 2, "not in the range"),
        (["topic", "create", "t", "--replication-factor", "9999999999999"], 2, "not in the range"),
        (["topic", "list", "--bootstrap", f"{'a' * 70}:9092"], 2, "no host can have this name"),
        (["topic", "create", "\udcff"], 2, "\\udcff: it is not UTF-8 text"),
        (["group", "describe", "g", "\udcff"], 2, "not UTF-8"),
        (["produce", "t", "--key", "\udcff"], 2, "not UTF-8"),
        (["produce", "t", "--header", "a=\udcff"], 2, "not UTF-8"),
        (["topic", "list", "--bootstrap", "\udcff:9092"], 2, "not UTF-8"),
        (["topic", "list", "-X", "client.id=\udcff"], 2, "not UTF-8"),
        (["consume", "t", "--group", "g" * 40_000], 2, "longer than 32,767 bytes"),
        (["consume", "t", "-X", "enable.partition.eof=false"], 2, "the command sets it itself"),
        (["produce", "t", "-X", "transactional.id=x"], 2, "transactions"),
        (["consume", "t", "-X", "group.id=x"], 2, "--group says it"),
        (["consume", "t", "-X", "group.id="], 2, "--group says it"),
        (["topic", "list", "-X", "bootstrap.servers=h:1"], 2, "--bootstrap says it"),
        (["topo\033[2J"], 2, "'topo\\x1b[2J'"),
    ],
)
def test_mistakes_are_one_line_with_an_exit_code(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.startswith("duramen: ")
    assert said.err.count("\n") == 1


class Failing:
    """A stand-in for a command that ends in `error`."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def main(self, **_: object) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (StorageError("the disk\nfailed"), 1, "duramen: the disk failed\n"),
        (PermissionError(13, "Permission denied", "data"), 1, "duramen: data: Permission denied\n"),
        (OSError(28, "No space left on device"), 1, "duramen: No space left on device\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (click.Abort(), 130, ""),
        (ZeroDivisionError("x"), 1, "duramen: ZeroDivisionError: x (a bug; DURAMEN_TRACEBACK=1 shows where)\n"),
    ],
)
def test_failures_are_one_line(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("duramen.cli.main.program", Failing(error))
    assert main([]) == code
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def x(:\n", "line 1: SyntaxError: invalid syntax"),
        ("\0", "source code string cannot contain null bytes"),
        ("import duramen\nimport nosuch\n", "line 2: ModuleNotFoundError: No module named 'nosuch'"),
        ("from duramen import pipelines\npipelines.Topic('t', kye='x')\n", "line 2: TypeError: Topic.__init__() got"),
        ("import json\n\njson.loads('{')\n", "line 3: JSONDecodeError: Expecting property name"),
    ],
)
def test_a_mistake_in_a_pipeline_names_its_line(
    code: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", sys.path.copy())
    file = tmp_path / "mistaken_pipeline.py"
    file.write_text(code)
    assert main(["spark", "status", str(file)]) == 2
    sys.modules.pop("mistaken_pipeline", None)
    error = capsys.readouterr().err.removeprefix(f"loading {file} ...\n")  # said where that takes a second
    assert error.startswith(f"duramen: {file}")
    assert said in error
    assert "a bug" not in error
    assert error.count("\n") == 1


def test_a_bug_shows_its_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.cli.main.program", Failing(ZeroDivisionError()))
    monkeypatch.setenv("DURAMEN_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main([])


@pytest.mark.parametrize("arguments", [["completion", "bash"], ["--help"], ["--version"], ["topic", "--help"]])
def test_a_closed_pipe_is_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run([*RUN, *arguments], stdout=closed, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_locale_without_every_character_ends_nothing() -> None:
    code = (
        "import click; from duramen.cli import main; "
        "main.program.main = lambda **_: click.echo('\\u20ac'); raise SystemExit(main.main())"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\\u20ac\n", b"")


def test_interrupt_ends_without_a_traceback(tmp_path: Path) -> None:
    # Reading a FIFO that nobody writes blocks, as a slow command would.
    fifo = tmp_path / "never"
    os.mkfifo(fifo)
    process = subprocess.Popen([*RUN, "serve", "--config", str(fifo)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        # Once the FIFO has a reader the command is running; opening it for writing without one fails.
        deadline = time.monotonic() + 100
        while True:
            try:
                writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        os.close(writer)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert (out, err.strip()) == (b"", b"")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_DURAMEN_COMPLETE" in script
    assert "duramen" in script


def completions(words: str, index: int) -> set[str]:
    environment = {**os.environ, "_DURAMEN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(index)}
    code = "import sys; sys.argv[0] = 'duramen'; from duramen.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    return {line.split(",")[-1] for line in done.stdout.splitlines()}


def test_commands_and_options_complete() -> None:
    assert completions("duramen t", 1) == {"topic", "transaction", "truncate"}
    assert completions("duramen topic d", 2) == {"describe", "delete"}
    assert "--key-separator" in completions("duramen produce x --k", 3)


def test_closed_input_is_empty_input() -> None:
    line = f'"{sys.executable}" -m duramen.cli.main topic delete t <&-'
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "add --yes" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_fails_only_what_prints_there(closed: str) -> None:
    printed = 0 if closed == "2>&-" else 1
    for arguments, code in (("--help", printed), ("nonsense", 2), ("topic list --bootstrap 127.0.0.1:1", 1)):
        line = f'"{sys.executable}" -m duramen.cli.main {arguments} {closed}'
        done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
        assert "bug" not in done.stderr
