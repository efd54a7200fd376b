"""`duramen stream namespace`: create, list, describe and delete namespaces, and set their defaults."""

from __future__ import annotations

import click

from duramen.cli.shared.confirmation import confirm
from duramen.cli.shared.connection import NAME, json_option
from duramen.cli.shared.output import note, pairs, print_field, print_json, print_names, print_table
from duramen.cli.shared.stream_access import StreamAccess, stream_options
from duramen.streams import NamespaceExistsError, NamespaceInfo, NamespaceNotEmptyError

_DEFAULTS_HELP = "A topic setting that new streams get; repeatable."


@click.group(
    epilog="""\b
Examples:
  duramen stream namespace create finance --config retention.ms=-1
  duramen stream namespace list
  duramen stream namespace describe finance
  duramen stream namespace delete finance --recursive
""",
    help="""Namespaces: what stands in front of the names of streams.

    finance/eu/ledger lies in finance/eu, and that in finance. A namespace is there as soon as a stream is; created, it
    gives settings to the streams that are made in it.
    """,
)
def command() -> None:
    pass


@command.command(
    epilog="""\b
Examples:
  duramen stream namespace create finance --config retention.ms=86400000
  duramen stream namespace create finance/eu --if-not-exists
""",
    short_help="Create namespaces, with settings for new streams.",
    help="""Create namespaces, with settings for the streams that are made in them.

    Each setting comes from the nearest namespace that has it.
    """,
)
@click.argument("names", metavar="NAMESPACE...", nargs=-1, required=True, type=NAME)
@click.option("--config", "settings", multiple=True, metavar="KEY=VALUE", help=_DEFAULTS_HELP)
@click.option("--if-not-exists", is_flag=True, help="No error when the namespace exists; it stays as it is.")
@stream_options
def create(access: StreamAccess, names: tuple[str, ...], settings: tuple[str, ...], if_not_exists: bool) -> None:
    defaults = pairs("--config", settings)
    with access.opened(makes_directory=True) as space:
        for name in dict.fromkeys(names):
            try:
                access.call(lambda name=name: space.namespaces.create(name, **defaults))  # type: ignore[misc]
                note(f"created {name}")
            except NamespaceExistsError as error:
                if not if_not_exists:
                    raise click.ClickException(f"{error}; --if-not-exists makes that no error.") from None
                note(f"{name} exists")


@command.command(
    "set",
    epilog="""\b
Examples:
  duramen stream namespace set finance --config retention.ms=-1
  duramen stream namespace set finance
""",
    short_help="Set what new streams get.",
    help="""Set what streams that are made in a namespace get, instead of what it says now.

    Streams that are there stay as they are.
    """,
)
@click.argument("name", metavar="NAMESPACE", type=NAME)
@click.option("--config", "settings", multiple=True, metavar="KEY=VALUE", help=_DEFAULTS_HELP)
@stream_options
def set_(access: StreamAccess, name: str, settings: tuple[str, ...]) -> None:
    defaults = pairs("--config", settings)
    with access.opened() as space:
        access.call(lambda: space.namespaces.set_defaults(name, **defaults))
    given = ", ".join(f"{key}={text}" for key, text in defaults.items())
    note(f"streams that are made in {name} get {given or 'no settings from it'}")


@command.command(
    "list",
    epilog="""\b
Examples:
  duramen stream namespace list
  duramen stream namespace list finance/ --limit 100 --after finance/eu
  duramen stream namespace list --json
""",
    help="List the names of namespaces that begin with PREFIX, sorted.",
)
@click.argument("prefix", default="")
@click.option("--limit", type=click.IntRange(1), default=1_000_000, help="At most so many.")
@click.option("--after", default="", metavar="NAMESPACE", help="Go on behind this name, the last of the page before.")
@json_option
@stream_options
def list_(access: StreamAccess, prefix: str, limit: int, after: str, as_json: bool) -> None:
    with access.opened() as space:
        names = access.call(lambda: space.namespaces.list(prefix, after=after, limit=limit))
    print_names(names, as_json=as_json)
    if not (names or prefix or after or as_json):
        note("there are no namespaces; `duramen stream namespace create NAME` makes one")


@command.command(
    epilog="""\b
Examples:
  duramen stream namespace describe finance/eu
  duramen stream namespace describe finance/eu --json
""",
    short_help="Show what new streams get.",
    help="Show when a namespace was created, and what streams that are made in it get.",
)
@click.argument("name", metavar="NAMESPACE", type=NAME)
@json_option
@stream_options
def describe(access: StreamAccess, name: str, as_json: bool) -> None:
    with access.opened() as space:
        found: NamespaceInfo = access.call(lambda: space.namespaces.describe(name))
    created = None if found.created_at is None else found.created_at.isoformat(timespec="milliseconds")
    if as_json:
        print_json({**found._asdict(), "created_at": created})
        return
    click.echo(found.path)
    print_field("created", created or "not explicitly; streams or namespaces lie in it")
    own = [(key, text, "its own") for key, text in found.defaults.items()]
    outer = [(key, text, "inherited") for key, text in found.inherited.items() if key not in found.defaults]
    if own or outer:
        print_table(["SETTING", "VALUE", "FROM"], sorted(own + outer))


@command.command(
    epilog="""\b
Examples:
  duramen stream namespace delete finance/eu
  duramen stream namespace delete finance --recursive --yes
""",
    short_help="Delete namespaces that are empty, or --recursive.",
    help="""Delete namespaces that are empty; with --recursive all streams and namespaces in them, too.

    One that was cut short is completed by the same command. Topics with several partitions are no streams, and stay.
    """,
)
@click.argument("names", metavar="NAMESPACE...", nargs=-1, required=True, type=NAME)
@click.option("-r", "--recursive", is_flag=True, help="With all streams and namespaces in it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@stream_options
def delete(access: StreamAccess, names: tuple[str, ...], recursive: bool, yes: bool) -> None:
    with access.opened() as space:
        inside = " with all streams and namespaces in it" if recursive else ""
        confirm(f"Delete {', '.join(names)}{inside}?", yes)
        for name in dict.fromkeys(names):
            try:
                access.call(lambda name=name: space.namespaces.delete(name, recursive=recursive))  # type: ignore[misc]
            except NamespaceNotEmptyError:
                text = f"the namespace {name!r} is not empty; --recursive deletes what lies in it, too."
                raise click.ClickException(text) from None
            note(f"deleted {name}")
