"""The `duramen` command: finds the command asked for, loads only that, and turns every failure into one line.

Exit codes: 0 done, 1 the operation failed, 2 it was asked for wrongly, 130 interrupted, 143 told to end (SIGTERM),
129 left by its terminal (SIGHUP). A node that is ready stops cleanly by any of the three: 0.
"""

from __future__ import annotations

import errno
import importlib
import io
import itertools
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from duramen.cli.shared.foreign_words import our_argument, our_command, our_option
from duramen.cli.shared.output import printable, reason
from duramen.errors import ConfigError, DuramenError
from duramen.version import VERSION

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("duramen.cli.commands.serve", "Run a node."),
    "gateway": ("duramen.cli.commands.gateway", "Serve streams over HTTP, for curl, browsers and any language."),
    "dev": ("duramen.cli.commands.dev", "Run a cluster of several nodes here, to try."),
    "cluster": ("duramen.cli.commands.cluster", "Form a cluster; show the quorum of its metadata."),
    "status": ("duramen.cli.commands.status", "Show the node, its topics and its groups, live."),
    "topic": ("duramen.cli.commands.topic", "Create, list, describe, alter and delete topics."),
    "produce": ("duramen.cli.commands.produce", "Write records from stdin or files."),
    "consume": ("duramen.cli.commands.consume", "Read records."),
    "stream": ("duramen.cli.commands.stream", "Create, append to, read, truncate and close streams."),
    "group": ("duramen.cli.commands.group", "List, describe, alter, reset and delete groups."),
    "transaction": ("duramen.cli.commands.transaction", "List and abort transactions; find those that hang."),
    "dead-letters": ("duramen.cli.commands.dead_letters", "List, show and replay what pipelines put aside."),
    "truncate": ("duramen.cli.commands.truncate", "Delete the records before an offset."),
    "config": ("duramen.cli.commands.config", "Describe and alter settings of topics, nodes, groups."),
    "features": ("duramen.cli.commands.features", "Describe, raise and lower the levels of features."),
    "spark": ("duramen.cli.spark.spark", "Run pipelines on Spark: streams and tables that follow topics."),
    "log": ("duramen.cli.log.log", "Look into a data directory, check and repair it, offline."),
    "completion": ("duramen.cli.commands.completion", "Print the shell's completion script."),
}
"""Every command: the module that holds it, under the attribute `command`, and its line in the list."""

PROGRAM_EPILOG = """\b
Examples:
  duramen serve                                 a node on 127.0.0.1:9092
  duramen topic create flights --partitions 6
  echo 'hello' | duramen produce flights
  duramen consume flights --follow
  duramen group list

\b
The commands that talk to a node use --bootstrap or DURAMEN_BOOTSTRAP (else
127.0.0.1:9092) and work with Apache Kafka too.
"""


# Click 8.2 and later tell a missing command from other mistakes; before, the help is printed by Click itself.
_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


class ProgramGroup(click.Group):
    """A group whose commands are imported when they are called, so that help and completion stay fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name][0]} holds no command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            meant = our_command("", args[0])
            if meant is not None:
                ctx.fail(f"There is no command {args[0]!r}; {meant}.")
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
            ctx.fail(f"There is no command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:  # in --help and --version, which have printed before there is a command
            raise click.exceptions.Exit(_reader_left()) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Click would end with 1; but the reader of a pipe (`| head`) who has what it wanted is no failure.
            return _reader_left()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=summary) for name, (_, summary) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=ProgramGroup,
    epilog=PROGRAM_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""A durable distributed log that every Kafka client can use.

    `duramen serve` runs a node; the other commands work with one. Each command's --help has examples.
    """,
)
@click.version_option(VERSION, prog_name="duramen", message="%(prog)s %(version)s")
def program() -> None:
    pass


class _ClosedOutput(io.FileIO):
    """A stdout that was closed at the start. A command that prints there fails: its records would count as read."""

    def write(self, _data: object, /) -> int:
        raise OSError(errno.EBADF, "stdout is closed, so there is nowhere to print to")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 (closed with `<&-`: there is nothing to read)
    if sys.stdout is None:  # started with `>&-`, or by some supervisors
        nowhere: Any = _ClosedOutput(os.devnull, "w")  # not buffered: nothing is left to be said again at exit
        sys.stdout = io.TextIOWrapper(nowhere, encoding="utf-8", write_through=True)
    if sys.stderr is None:  # what is said there goes nowhere
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for as long as the process lives)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A locale that has not every character ends nothing.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = program.main(args=arguments, prog_name="duramen", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as request:
        return request.exit_code
    except _NO_ARGUMENTS as request:
        request.show()
        return 2
    except click.ClickException as mistake:
        return _refuse(mistake)
    except click.Abort:
        # Click has ended the line that shows ^C.
        return 130
    except KeyboardInterrupt:
        click.echo(err=True)
        return 130
    except BrokenPipeError:
        return _reader_left()
    except ConfigError as error:
        for line in str(error).splitlines():  # several mistakes of one file
            _say(line, 2)
        return 2
    except DuramenError as error:
        return _say(str(error), 1)
    except OSError as error:
        return _say(reason(error), 1)
    except Exception as error:
        if os.environ.get("DURAMEN_TRACEBACK"):
            raise
        place = _in_a_pipeline(error)
        if place is not None:
            return _say(f"{place}: {type(error).__name__}: {_in_brief(error)}", 2)
        return _say(f"{type(error).__name__}: {_in_brief(error)} (a bug; DURAMEN_TRACEBACK=1 shows where)", 1)


def _in_a_pipeline(error: Exception) -> str | None:
    """File and line of the user's pipeline that failed; None when it was not its code that ran."""
    import sysconfig

    here = os.path.dirname(__file__)
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    inner = list(itertools.dropwhile(lambda place: place[0] != os.path.join(here, "spark", "pipeline.py"), places))
    if inner and isinstance(error, SyntaxError) and error.filename:
        return error.filename + (f", line {error.lineno}" if error.lineno else "")
    installed = (os.path.dirname(here), sys.prefix, *sysconfig.get_paths().values(), "<")
    theirs = [f"{name}, line {line}" for name, line in inner if not name.startswith(installed)]
    return theirs[-1] if theirs else None


def _in_brief(error: Exception) -> str:
    """What it says; of an error of Spark's the reason alone, for plans and the frames of a JVM come beside that."""
    if not type(error).__module__.startswith(("pyspark.", "py4j.")):
        return str(error)
    from duramen.pipelines.run import failures

    return failures.reason(error)


def _refuse(mistake: click.ClickException) -> int:
    if isinstance(mistake, click.UsageError) and mistake.ctx is not None:
        text = _in_our_words(mistake, mistake.ctx) or mistake.format_message()
        stop = "" if text.endswith((".", "?", "!")) else "."
        return _say(f"{text}{stop} See `{mistake.ctx.command_path} --help`.", mistake.exit_code)
    return _say(mistake.format_message(), mistake.exit_code)


def _in_our_words(mistake: click.UsageError, ctx: click.Context) -> str | None:
    """What somebody meant who used the words of another command line; None where it is another mistake."""
    path = ctx.command_path.partition(" ")[2]
    if isinstance(mistake, click.NoSuchOption):
        meant = our_option(path, mistake.option_name)
        return None if meant is None else f"There is no {mistake.option_name} here: {meant}."
    if mistake.message.startswith("Got unexpected extra argument"):
        meant = our_argument(path)
        return None if meant is None else f"{mistake.message}: {meant}."
    word = getattr(mistake, "command_name", None)  # Click tells it from 8.4 on
    meant = None if word is None else our_command(path, word)
    return None if meant is None else f"There is no command {word!r}; {meant}."


def _reader_left() -> int:
    """Nobody reads stdout any more: what is still buffered goes nowhere, also when it is flushed at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return 0


def _say(message: str, code: int) -> int:
    click.echo(f"duramen: {printable(' '.join(message.split()))}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
