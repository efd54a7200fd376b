"""Content types: which are the same, and which are text."""

from __future__ import annotations

import re

from duramen.gateway.edge.problem import bad_request

DEFAULT = "application/octet-stream"
JSON = "application/json"

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}(\s*;[\t\x20-\x7e]*)?", re.ASCII)
LENGTH_MAX = 255


def checked(content_type: str) -> str:
    """The header's value, trimmed. Problem 400 where it is no media type."""
    text = content_type.strip()
    if len(text) > LENGTH_MAX or not _MEDIA_TYPE.fullmatch(text):
        raise bad_request("Content-Type", "it is no media type such as application/json")
    return text


def essence(content_type: str) -> str:
    """Type and subtype in small letters, without parameters: what is compared."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    return essence(content_type) == JSON


def is_text(content_type: str) -> bool:
    """Whether SSE sends it as it is rather than as base64."""
    return is_json(content_type) or essence(content_type).startswith("text/")
