"""The small text files that are only ours: lines, and one with the CRC-32C of those before it."""

from __future__ import annotations

from collections.abc import Iterable

from duramen.wire.checksum import crc32c


def encode_lines(lines: Iterable[str]) -> bytes:
    """The file of these lines, at least one of them."""
    body = "".join(f"{line}\n" for line in lines).encode()
    return body + f"crc {crc32c(body):08x}\n".encode()


def decode_lines(content: bytes, begins: str) -> list[str] | None:
    """Inverse of `encode_lines`; None when it is damaged, or begins otherwise: another file is in this one's place."""
    body, separator, tail = content.rpartition(b"crc ")
    if not separator or tail.strip() != f"{crc32c(body):08x}".encode() or not body.startswith(begins.encode()):
        return None
    return body.decode().split("\n")[:-1]
