"""The version of this package and how it is installed, for everything to read without importing the package itself."""

from typing import Final

VERSION: Final = "0.1.0"

INSTALL_SPARK: Final = "in a clone of Duramen: pip install '.[spark]'"
"""What brings the packages that pipelines need, as every message says it: there is no release on an index yet."""

SPARK_PACKAGES: Final = frozenset({"pyspark", "pyarrow", "pandas", "numpy", "deltalake", "py4j", "arro3"})
"""What of it is imported; the commands that need none of it work without."""
