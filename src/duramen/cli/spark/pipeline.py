"""Loads the file that declares a pipeline, for the commands that work on one."""

from __future__ import annotations

import functools
import importlib.util
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from duramen.cli.shared.output import note
from duramen.errors import ConfigError
from duramen.pipelines.jvm.phases import Phases

if TYPE_CHECKING:
    from duramen.pipelines.model.declaration import Pipeline

_Command = TypeVar("_Command", bound=Callable[..., Any])


def load(file: Path) -> Pipeline:
    """The one pipeline that the file defines. ConfigError when there is none, or several, or the file fails."""
    from pyspark.cloudpickle import register_pickle_by_value

    from duramen.pipelines.model.declaration import Pipeline

    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} is no Python file")
    if b"\0" in file.read_bytes():  # versions of Python differ in the error
        raise ConfigError(f"{file}: source code string cannot contain null bytes")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)
    # What the file imports from beside it is found, as when Python runs it.
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)
    # Workers get the code that was loaded here, not what the file, or a machine of theirs, holds later.
    register_pickle_by_value(sys.modules[file.stem])  # type: ignore[no-untyped-call]
    spec.loader.exec_module(module)
    named = {id(value): value for value in vars(module).values() if isinstance(value, Pipeline)}
    # Those of other files were imported, to read their tables; a file may also name one that another file makes for it.
    found = {each: value for each, value in named.items() if value.module == module.__name__} or named
    if len(found) != 1:
        raise ConfigError(f"{file} defines {len(found)} pipelines; it has to define one")
    (pipeline,) = found.values()
    if not pipeline.steps:
        raise ConfigError(f"the pipeline in {file} has no steps: decorate functions with @{pipeline.name}.table")
    return pipeline


def _chosen(file: Path, bootstrap: str | None, folder: Path | None, env: str | None) -> Pipeline:
    from duramen.pipelines.model.environment import commanded

    with commanded(env):
        pipeline = load(file)
    pipeline.bootstrap = bootstrap or pipeline.bootstrap
    pipeline.folder = pipeline.folder.absolute() if folder is None else pipeline.place(folder)
    return pipeline


def read_again() -> Pipeline:
    """The pipeline of the command that runs, from its file as it is now."""
    given = click.get_current_context().params
    try:
        return _chosen(given["file"], given["bootstrap"], given["folder"], given["env"])
    except (SyntaxError, ImportError, LookupError, NameError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{given['file']}: {type(error).__name__}: {error}") from None


def tell_if_elsewhere(pipeline: Pipeline) -> None:
    """A word for who asks in another folder than where the pipeline is run."""
    if not pipeline.folder.is_dir():
        note(f"nothing has run here: there is no {pipeline.folder} (--folder names another)")


def repeated(words: str) -> str:
    """A further command about the same pipeline, as it can be typed: with the file and the options that were given."""
    given = click.get_current_context().params
    options = [f"--folder {given['folder']}"] if given["folder"] else []
    options += [f"--bootstrap {given['bootstrap']}"] if given["bootstrap"] else []
    options += [f"--env {shlex.quote(given['env'])}"] if given["env"] is not None else []
    command, _, rest = words.partition(" ")
    return " ".join(["duramen spark", command, str(given["file"]), *([rest] if rest else []), *options])


def pipeline_argument(command: _Command) -> _Command:
    """Adds FILE, --bootstrap, --folder and --env; the command gets a Pipeline as its first argument."""

    @functools.wraps(command)
    def with_pipeline(
        *args: Any, file: Path, bootstrap: str | None, folder: Path | None, env: str | None, **rest: Any
    ) -> Any:
        with Phases(note) as phases:
            phases.begin(f"loading {file}")  # and PySpark with it
            pipeline = _chosen(file, bootstrap, folder, env)
        return command(pipeline, *args, **rest)

    options = (
        click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
        click.option("-b", "--bootstrap", metavar="HOST:PORT", help="The node, instead of the pipeline's own."),
        click.option(
            "--folder",
            type=click.Path(file_okay=False, path_type=Path),
            help="Tables and checkpoints, instead of the pipeline's own folder.",
        ),
        click.option("--env", metavar="NAME", help="Keep tables, output topics and sinks apart; else DURAMEN_ENV."),
    )
    wrapped: Any = with_pipeline
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]
