"""The wheel is whole, and works with nothing but its plain dependencies: no package of the extra `spark`."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from zipfile import ZipFile

import pytest

from duramen.cli.spark.spark import COMMANDS
from duramen.version import INSTALL_SPARK, VERSION

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"[A-Za-z0-9._-]+")


class Installed(NamedTuple):
    """A folder with Duramen from its wheel, and one with links to the packages that it depends on."""

    wheel: Path
    site: Path
    others: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Of a Python that sees these two folders and its own library."""
        path = {"PYTHONPATH": f"{self.site}:{self.others}", "PATH": "/usr/bin:/bin"}
        words = [sys.executable, "-S", *arguments]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=self.others, env=path)

    def duramen(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command that the wheel installs."""
        return self.run(str(self.site / "bin" / "duramen"), *arguments)


def dependencies(package: str) -> Iterator[str]:
    """What a package needs without an extra, and what that needs, and so on."""
    for line in importlib.metadata.requires(package) or ():
        needed, _, marker = line.partition(";")
        if not marker and (name := NAME.match(needed)):
            yield name[0]
            yield from dependencies(name[0])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built from a copy, for what is built here stays where it is built."""
    folder = tmp_path_factory.mktemp("wheel")
    clone, site, others = (folder / name for name in ("clone", "site", "others"))
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, clone], check=True, timeout=120
    )
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", site, wheel], check=True, timeout=120)
    others.mkdir()
    for name in set(dependencies("duramen")):
        package = importlib.metadata.distribution(name)
        for top in {part.parts[0] for part in package.files or ()} - {"..", "__pycache__"}:
            (others / top).symlink_to(str(package.locate_file(top)))
    return Installed(wheel, site, others)


def test_the_wheel_has_every_file_of_the_source_and_the_command(installed: Installed) -> None:
    ours = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.is_file()}
    ours = {name for name in ours if not {"__pycache__"} & set(PurePosixPath(name).parts) and ".egg-info" not in name}
    with ZipFile(installed.wheel) as wheel:
        built = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert built == ours
    assert {"duramen/py.typed", "duramen/pipelines/jvm/log4j2.properties"} <= built
    told = installed.duramen("--version")
    assert (told.stdout, told.returncode) == (f"duramen {VERSION}\n", 0), told.stderr


def test_the_zip_of_the_page_is_enough_on_the_path_of_the_driver(installed: Installed, tmp_path: Path) -> None:
    """As Spark looks for it: `--py-files` alone is not seen by that, and a job of another machine found no source."""
    (command,) = re.findall(r"^python3 -m (zipfile .*)$", (ROOT / "docs" / "spark-where.md").read_text(), re.MULTILINE)
    clone = installed.wheel.parent / "clone"
    subprocess.run([sys.executable, "-m", *command.split()], check=True, timeout=60, cwd=clone)
    lookup = (
        "import pkgutil, importlib, sys\n"
        "names = [name for _, name, _ in pkgutil.iter_modules() if name.startswith('pyspark_')]\n"
        "source = importlib.import_module(*names).DefaultSource\n"
        "print(names, source.name(), source({'kafka.bootstrap.servers': 'h:1', 'subscribe': 't'}).schema()[:12])\n"
        "import duramen.spark.source.stream_reader, duramen.spark.sink.sink_task\n"
        "print(sys.modules['duramen'].__file__)\n"
    )
    packages = Path(sysconfig.get_path("purelib"))  # as a folder like others: no link to our sources counts there
    told = subprocess.run(
        [sys.executable, "-S", "-c", lookup],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{clone / 'duramen.zip'}:{packages}"},
    )
    found, where = told.stdout.splitlines()
    assert found == "['pyspark_duramen'] duramen `key` binary"
    assert where.startswith(str(clone / "duramen.zip"))


def test_help_works_without_the_extra_and_what_needs_it_says_so(installed: Installed) -> None:
    """In one process, for each of its own takes half a second to start."""
    (installed.others / "tour.py").write_text("from pyspark.sql import DataFrame\n")
    asked = [("spark", name, "--help") for name in COMMANDS]
    asked += [("spark", name, "tour.py") for name in ("run", "status", "dry-run", "lag")]
    told = installed.run(
        "-c", f"from duramen.cli.main import main\nfor words in {asked}: print(main(words), flush=True)"
    )
    for name in COMMANDS:
        assert f"Usage: duramen spark {name}" in told.stdout
    assert re.findall(r"^\d$", told.stdout, re.MULTILINE) == ["0"] * len(COMMANDS) + ["1"] * 4
    assert told.stderr == f"duramen: pyspark is not installed; {INSTALL_SPARK}\n" * 4
    told = installed.run("-c", "from duramen import pipelines; pipelines.session()")
    assert told.stderr.endswith(f"ModuleNotFoundError: pyspark is not installed; {INSTALL_SPARK}\n")


def test_the_doctor_says_all_that_is_missing(installed: Installed) -> None:
    told = installed.duramen("spark", "doctor", "-b", "127.0.0.1:1")
    assert told.returncode == 1
    assert told.stderr == ""
    bad = re.findall(r"^BAD  (\w+)", told.stdout, re.MULTILINE)
    assert [name for name in bad if name != "java"] == [
        "pyspark",
        "pyarrow",
        "pandas",
        "numpy",
        "protobuf",
        "deltalake",
        "node",
    ]
    assert re.search(r"^ok   storage", told.stdout, re.MULTILINE)
    assert INSTALL_SPARK in told.stdout
