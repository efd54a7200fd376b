"""What can go wrong between bytes and messages."""

from __future__ import annotations

from duramen.errors import DuramenError, ErrorCode


class DecodeError(DuramenError):
    """The bytes are no message of the expected kind: truncated, oversized, ill-typed or followed by more bytes."""

    code = ErrorCode.INVALID_REQUEST


class TooManyElementsError(DecodeError):
    """The arrays of a message have more elements than were asked for."""


class EncodeError(DuramenError):
    """A message holds a value that its schema does not allow, for instance null in a field that is never null."""

    code = ErrorCode.INVALID_REQUEST


class UnsupportedVersionError(DuramenError):
    """No such API or version, or the message says something that this version has no field for."""

    code = ErrorCode.UNSUPPORTED_VERSION
