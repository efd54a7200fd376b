"""`duramen spark doctor`: can a pipeline run here, and if not, what to do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from duramen.cli.shared.connection import DEFAULT_BOOTSTRAP, json_option
from duramen.cli.shared.output import print_json
from duramen.cli.spark.run import session_options
from duramen.pipelines.jvm import requirements


@click.command(
    "doctor",
    short_help="Check Java, packages, workers and storage; say what to do.",
    epilog="\b\nExamples:\n  duramen spark doctor --folder tour-tables\n  duramen spark doctor --master spark://host:7077\n",
    help="Check everything a pipeline needs. Exit code 1 when something is missing.",
)
@click.option(
    "-b",
    "--bootstrap",
    envvar="DURAMEN_BOOTSTRAP",
    default=DEFAULT_BOOTSTRAP,
    metavar="HOST:PORT",
    show_default=True,
    help="The node.",
)
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="Where tables will be kept."
)
@session_options
@json_option
def doctor_command(bootstrap: str, folder: Path, master: str | None, conf: dict[str, str], as_json: bool) -> int:
    if importlib.util.find_spec("pyspark") is None:
        checks = requirements.examine(bootstrap, folder)
    else:
        from duramen.pipelines.jvm import doctor

        checks = doctor.examine(bootstrap, folder, master, conf)
    found = []
    for check in checks:
        found.append(check)
        if not as_json:
            click.echo(f"{'ok ' if check.good else 'BAD'}  {check.name:<18} {check.found}")
            if not check.good:
                click.echo(f"     {'':<18} → {check.remedy}")
    if as_json:
        print_json([check._asdict() for check in found])
    return 0 if all(check.good for check in found) else 1
