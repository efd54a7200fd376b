"""The words of other command lines: what is not ours leads to what is, and what the hint names is there."""

from __future__ import annotations

import re

import click
import pytest

from duramen.cli.main import main, program
from duramen.cli.shared import foreign_words


def command_at(path: str) -> click.Command:
    context, found = click.Context(program), program
    for word in path.split():
        assert isinstance(found, click.Group)
        inner = found.get_command(context, word)
        assert inner is not None, path
        found = inner  # type: ignore[assignment]
    return found


def options_of(path: str) -> set[str]:
    return {name for option in command_at(path).params for name in option.opts if name.startswith("-")} | {"--version"}


WORDS = [(path, word, hint) for path, words in foreign_words._OPTIONS.items() for word, hint in words.items()]
COMMANDS = [(path, word, hint) for path, words in foreign_words._COMMANDS.items() for word, hint in words.items()]


@pytest.mark.parametrize(("path", "word", "hint"), WORDS, ids=[f"{path} {word}" for path, word, _ in WORDS])
def test_an_option_of_others_leads_to_one_of_ours(path: str, word: str, hint: str) -> None:
    assert word not in options_of(path)
    named_at = path if "`" not in hint else "consume"
    outside = re.sub(r"`[^`]*`", "", hint)
    assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*|(?<!\S)-[A-Za-z]\b", outside)) <= options_of(named_at)
    check_commands(hint)


@pytest.mark.parametrize(("path", "hint"), foreign_words._ARGUMENTS.items())
def test_what_stands_without_an_option_elsewhere_leads_to_one_of_ours(path: str, hint: str) -> None:
    assert set(re.findall(r"--[a-z-]+", re.sub(r"`[^`]*`", "", hint))) <= options_of(path)
    check_commands(hint)


def check_commands(hint: str) -> None:
    for line in re.findall(r"`duramen ([^`]*)`", hint):
        words = [word for word in line.split() if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
        if words:
            command_at(" ".join(words))
        assert set(re.findall(r"(?<!\S)--[a-z-]+", line)) <= options_of(" ".join(words))


@pytest.mark.parametrize(("path", "word", "hint"), COMMANDS, ids=[f"{path} {word}" for path, word, _ in COMMANDS])
def test_a_command_of_others_leads_to_one_of_ours(path: str, word: str, hint: str) -> None:
    group = command_at(path)
    assert isinstance(group, click.Group)
    assert word not in group.list_commands(click.Context(group))
    check_commands(hint)


def test_what_every_command_takes_elsewhere_is_answered_by_all_that_ask_a_node() -> None:
    assert foreign_words.our_option("serve", "--bootstrap-server") is None
    hint = foreign_words.our_option("topic list", "--bootstrap-server")
    assert hint == "--bootstrap HOST:PORT says it"
    for path in ("consume", "produce", "status", "truncate", "topic list", "group list", "config describe"):
        assert foreign_words.our_option(path, "--bootstrap-server") == hint
        assert {"--bootstrap", "-X"} <= options_of(path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("consume t --from-beginning", "There is no --from-beginning here: --from earliest says it"),
        ("consume t -o end", "There is no -o here: --from says where to begin"),
        ("consume t --tail 10", "There is no --tail here: --last N says it"),
        ("consume t --max-messages 5", "There is no --max-messages here: --count N says it"),
        ("consume --topic t --bootstrap-server h:1", "There is no --topic here: the topic stands without an option"),
        ("topic list --bootstrap-server h:1", "There is no --bootstrap-server here: --bootstrap HOST:PORT says it"),
        ("config get retention.ms", "There is no command 'get'; `duramen config describe --key KEY`"),
        ("version", "There is no command 'version'; `duramen --version` prints it"),
        ("lag", "There is no command 'lag'; `duramen group list` shows the lag of every group"),
        ("consume t --fromm 3", "No such option"),
        ("topic lst", "No such command 'lst'"),
        ("serve server.properties", "Got unexpected extra argument (server.properties): a file of settings is named"),
        ("config describe t", "Got unexpected extra argument (t): a topic is named by --topic NAME"),
        ("truncate t 5", "Missing option '--before'"),
        ("truncate t 5 --before 5", "Got unexpected extra argument (5): the offset or the time is named by --before"),
        ("produce t hello", "Invalid value for '[FILE]...': 'hello': No such file or directory; text comes from stdin"),
        ("log dump --files x", "There is no --files here: the file, or the partition's directory, stands without"),
        ("status --watch", "There is no --watch here: at a terminal it stays"),
        ("stream describe a/b", "There is no command 'describe'; `duramen topic describe NAME`"),
        ("stream list --bootstrap-server h:1", "There is no --bootstrap-server here: --bootstrap HOST:PORT says it"),
        ("stream list --command-config f", "No such option"),
        ("gateway --port 80", "There is no --port here: --listen http://127.0.0.1:PORT says it"),
        ("gateway start", "There is no command 'start'; `duramen gateway` runs one"),
    ],
)
def test_the_hint_is_the_one_line(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"duramen: {said}")
    assert told.err.count("\n") == 1
