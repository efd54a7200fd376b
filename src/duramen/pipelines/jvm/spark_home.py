"""A home for Spark without the zipped Python that an installed PySpark has beside itself.

Spark puts `pyspark.zip` of its home before everything else on the path of its Python workers, and what is imported from
a zip is compiled anew by each of them: 1.7 s of processor time against 0.4 s with the installed package, which is the
same. On a busy machine that is longer than the ten seconds that Spark waits for a worker.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

import pyspark

HOME = "SPARK_HOME"
PARTS = ("bin", "conf", "jars", "sbin")


def prepare(environ: MutableMapping[str, str], master: str) -> None:
    """Set SPARK_HOME for a session in this process, unless it is set, or the workers are another machine's.

    The folder holds links and goes with the process, but for one that is killed.
    """
    installed = Path(pyspark.__file__).parent
    if HOME in environ or not master.startswith("local") or not (installed / "python" / "lib" / "pyspark.zip").exists():
        return
    with suppress(OSError):  # a full disk, or links that are not to be had: it goes without
        environ[HOME] = make(installed)


def make(installed: Path) -> str:
    """Such a home beside a PySpark package, in a new folder for temporary files; its path. OSError."""
    home = tempfile.mkdtemp(prefix="duramen-spark-home-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in PARTS:
        if (installed / name).exists():
            Path(home, name).symlink_to(installed / name)
    return home
