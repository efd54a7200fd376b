"""The version of this package, where everything may read it without importing the package itself."""

from typing import Final

VERSION: Final = "0.1.0"
