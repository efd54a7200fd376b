"""The libraries of a gateway, which are an extra: whether they are there."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from duramen.errors import ConfigError

_LIBRARIES: Final = ("starlette", "uvicorn", "httptools", "websockets", "msgspec")


def require_http_extra() -> None:
    """Import none of them. ConfigError that says what to install where one is missing."""
    for name in _LIBRARIES:
        if find_spec(name) is None:
            raise ConfigError(f"the gateway needs {name}; install it with: pip install 'duramen[http]'")
