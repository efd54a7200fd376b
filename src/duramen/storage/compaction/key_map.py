"""Which offset is the last of each key: a hash table of a fixed number of bytes, filled by a compaction pass.

A slot holds a 16-byte BLAKE2b digest of the key and the offset + 1 in eight bytes (0: free). Two keys with the same
digest would be taken for one; finding such a pair takes some 2^64 digests, and the digest is keyed by the topic's id.
"""

from __future__ import annotations

from collections.abc import Callable

SLOT_BYTES = 24
_DIGEST_BYTES = 16
SMALLEST_SLOTS = 8
_FREE = bytes(SLOT_BYTES - _DIGEST_BYTES)


class OffsetMap:
    """Keys and offsets in at most `max_bytes` bytes, of which the share `load_factor` is used.

    entries: how many keys are expected at most, so that a small pass needs little memory. latest: every record up to
    this offset is in the map; -1 for none. begun: base offset of the batch that `latest` lies within; -1: of none.
    key: at most 64 bytes mixed into every digest.
    """

    __slots__ = ("_capacity", "_digest", "_slots", "_table", "begun", "entries", "latest")

    def __init__(self, max_bytes: int, load_factor: float, entries: int, key: bytes = b"") -> None:
        most = max(SMALLEST_SLOTS, max_bytes // SLOT_BYTES)
        self._slots = _prime(max(SMALLEST_SLOTS, min(most, int(2 * entries))))
        self._capacity = max(1, min(int(most * load_factor), self._slots - 1))
        self._table = bytearray(self._slots * SLOT_BYTES)
        self._digest = digest_function(key)
        self.entries = 0
        self.latest = self.begun = -1

    @property
    def size(self) -> int:
        """Bytes of the table."""
        return len(self._table)

    @property
    def fill(self) -> float:
        """Share of the capacity in use."""
        return self.entries / self._capacity

    def put(self, key: bytes, offset: int) -> bool:
        """Remember the offset as the key's last; False (and nothing changed) when there is no room for a new key."""
        digest = self._digest(key)
        position, found = self._find(digest)
        if not found:
            if self.entries >= self._capacity:
                return False
            self.entries += 1
            self._table[position : position + _DIGEST_BYTES] = digest
        self._table[position + _DIGEST_BYTES : position + SLOT_BYTES] = (offset + 1).to_bytes(8, "big")
        return True

    def get(self, key: bytes) -> int:
        """The last offset of the key; -1 when it is not in the map."""
        digest = self._digest(key)
        position, _ = self._find(digest)
        return int.from_bytes(self._table[position + _DIGEST_BYTES : position + SLOT_BYTES], "big") - 1

    def _find(self, digest: bytes) -> tuple[int, bool]:
        """(where the digest is or would go, whether it is there). There is always a free slot."""
        table, slots = self._table, self._slots
        number = int.from_bytes(digest[:8], "big") % slots
        step = 0
        while True:
            position = number * SLOT_BYTES
            slot = table[position : position + SLOT_BYTES]
            if slot[_DIGEST_BYTES:] == _FREE:
                return position, False
            if slot[:_DIGEST_BYTES] == digest:
                return position, True
            if not step:
                # A distance of the digest's own: keys that begin at the same slot go different ways. The number of
                # slots is prime, so every slot is reached.
                step = 1 + int.from_bytes(digest[8:], "big") % (slots - 1)
            number = (number + step) % slots


def digest_function(key: bytes) -> Callable[[bytes], bytes]:
    """Digests of 16 bytes that nobody can foresee who does not know `key`, of at most 64 bytes."""
    # Brings OpenSSL's library with it, which a start has no time for and no use.
    from hashlib import blake2b

    return lambda data: blake2b(data, digest_size=_DIGEST_BYTES, key=key).digest()


def _prime(number: int) -> int:
    """The greatest prime up to `number`, which is at least 3."""
    number -= number % 2 == 0
    while any(number % divisor == 0 for divisor in range(3, int(number**0.5) + 1, 2)):
        number -= 2
    return number
