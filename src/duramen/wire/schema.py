"""Declared messages: one value holds every version of a message and turns bytes into objects and back.

Codecs are compiled on first use, one per message, version and direction, so that importing declarations stays cheap.
"""

from __future__ import annotations

from typing import Any

from duramen.ports import Buffer, FileSpan, Part
from duramen.wire.classes import Classes
from duramen.wire.decoder import BoundedDecoder, Decoder, compile_bounded, compile_decoder
from duramen.wire.encoder import Encoder, compile_encoder
from duramen.wire.errors import DecodeError, EncodeError, UnsupportedVersionError
from duramen.wire.runtime import PIECES_AT_ONCE, join_slowly
from duramen.wire.types import Field, Struct, version_range


class Message:
    """A message in all its versions.

    versions: the valid ones, as "3-13"; flexible: the first with compact lengths and tagged fields (KIP-482), or None.
    The constructors of nested structs are attributes: `ProduceRequest.TopicProduceData(name="t")`.
    """

    def __init__(self, name: str, versions: str, flexible: int | None, *fields: Field) -> None:
        self.name = name
        self.min_version, self.max_version = version_range(versions)
        self.flexible_from = flexible
        self.struct = Struct(name, *fields)
        self._classes: Classes | None = None
        self._decoders: dict[int, Decoder] = {}
        self._bounded: dict[int, BoundedDecoder] = {}
        self._encoders: dict[int, Encoder] = {}

    def __repr__(self) -> str:
        return f"<Message {self.name} v{self.min_version}-{self.max_version}>"

    def __getattr__(self, name: str) -> Any:
        """The constructor of the nested struct `name`; from the first use on all of them are plain attributes."""
        constructors = {} if name.startswith("_") else self.classes.constructors
        if name not in constructors:
            raise AttributeError(f"{self.name} has no struct {name}")
        self.__dict__.update(constructors)
        return constructors[name]

    @property
    def classes(self) -> Classes:
        """The classes of this message's structs."""
        if self._classes is None:
            self._classes = Classes(self.struct)
        return self._classes

    def new(self, **fields: Any) -> Any:
        """A message object; fields that are not named have their defaults."""
        constructor = self.classes.constructors[self.name]
        self.__dict__["new"] = constructor  # later calls go straight there
        return constructor(**fields)

    def is_flexible(self, version: int) -> bool:
        """Whether this version has compact lengths and tagged fields."""
        return self.flexible_from is not None and version >= self.flexible_from

    def decode(self, buffer: Buffer, version: int, position: int = 0) -> Any:
        """The message that fills `buffer` from `position` to its end; DecodeError if it does not.

        `records` fields are views of `buffer`; everything else is copied out of it.
        """
        value, end = (self._decoders.get(version) or self._decoder(version))(buffer, position)
        if end != len(buffer):
            raise DecodeError(f"{self.name} v{version}: {len(buffer) - end} bytes follow the message")
        return value

    def decode_from(self, buffer: Buffer, version: int, position: int = 0) -> tuple[Any, int]:
        """(message, position behind it); more bytes may follow."""
        return (self._decoders.get(version) or self._decoder(version))(buffer, position)

    def decode_bounded(self, buffer: Buffer, version: int, position: int, most: int) -> tuple[Any, int]:
        """As `decode_from`; DecodeError, too, for more than `most` elements in all arrays together.

        An element takes two bytes of a message, and a hundred times that of memory and time.
        """
        return self.bounded_decoder(version)(buffer, position, most)

    def bounded_decoder(self, version: int) -> BoundedDecoder:
        """What `decode_bounded` calls with (buffer, position, most); any thread may then do so."""
        decoder = self._bounded.get(version)
        if decoder is None:
            self._check_version(version)
            decoder = compile_bounded(self.struct, self.classes, version, self.is_flexible(version))
            self._bounded[version] = decoder
        return decoder

    def encode(self, value: Any, version: int) -> bytes:
        """The message as bytes, records included; EncodeError if they are on disk (use `encode_parts`)."""
        pieces: list[Any] = []
        (self._encoders.get(version) or self._encoder(version))(value, pieces, None)
        try:
            return b"".join(pieces)
        except TypeError as error:
            on_disk = any(isinstance(piece, FileSpan) for piece in pieces)
            reason = "records are a file span" if on_disk else str(error)
            raise EncodeError(f"{self.name} v{version}: {reason}") from error

    def encode_parts(self, value: Any, version: int) -> list[Part]:
        """The message as buffers and file spans in order; `records` values are passed on without a copy."""
        pieces: list[Any] = []
        parts: list[Part] = []
        (self._encoders.get(version) or self._encoder(version))(value, pieces, parts)
        if pieces:
            try:
                if len(pieces) > PIECES_AT_ONCE:
                    join_slowly(pieces, parts)
                else:
                    parts.append(b"".join(pieces))
            except TypeError as error:
                raise EncodeError(f"{self.name} v{version}: {error}") from error
        return parts

    def _check_version(self, version: int) -> None:
        if not self.min_version <= version <= self.max_version:
            known = f"{self.min_version} to {self.max_version}"
            raise UnsupportedVersionError(f"{self.name} has versions {known}, not {version}")

    def _decoder(self, version: int) -> Decoder:
        self._check_version(version)
        decoder = compile_decoder(self.struct, self.classes, version, self.is_flexible(version))
        self._decoders[version] = decoder
        return decoder

    def _encoder(self, version: int) -> Encoder:
        self._check_version(version)
        encoder = compile_encoder(self.struct, self.classes, version, self.is_flexible(version))
        self._encoders[version] = encoder
        return encoder
