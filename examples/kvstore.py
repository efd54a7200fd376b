"""A key-value store whose write-ahead log is Duramen: whatever `set` returned from survives kill -9 and power cuts.

    python examples/kvstore.py DIRECTORY set KEY VALUE
    python examples/kvstore.py DIRECTORY get KEY
    python examples/kvstore.py DIRECTORY fill COUNT        writes COUNT keys, printing each one once it is durable

State lives in memory and is rebuilt from the log at start: replaying the same records in the same order gives the same
state. That is the whole recovery procedure.
"""

from __future__ import annotations

import sys
from types import TracebackType

import duramen


class KeyValueStore:
    """A dictionary that is written to a log before it changes. For one thread: several would have to apply what they
    appended in the order of the offsets."""

    def __init__(self, directory: str) -> None:
        self._log = duramen.open(directory)
        self._changes = self._log.topic("changes", partitions=1)
        self._values: dict[bytes, bytes] = {}
        for record in self._changes.read(0):
            self._apply(record.key or b"", record.value)

    def _apply(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value

    def get(self, key: bytes) -> bytes | None:
        """The value, None when there is none."""
        return self._values.get(key)

    def set(self, key: bytes, value: bytes | None) -> int:
        """Write (None deletes) and return the log position once the change is on stable storage."""
        (offset,) = self._changes.append([duramen.Record(key=key, value=value)])
        self._apply(key, value)
        return offset

    def __len__(self) -> int:
        return len(self._values)

    def __enter__(self) -> KeyValueStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.close()


def main(arguments: list[str]) -> int:
    """The command line above; returns the exit code."""
    match arguments:
        case [directory, "set", key, value]:
            with KeyValueStore(directory) as store:
                print(f"durable at offset {store.set(key.encode(), value.encode())}")
        case [directory, "get", key]:
            with KeyValueStore(directory) as store:
                found = store.get(key.encode())
            if found is None:
                print(f"no key {key}", file=sys.stderr)
                return 1
            print(found.decode())
        case [directory, "fill", count]:
            with KeyValueStore(directory) as store:
                for number in range(int(count)):
                    store.set(b"key-%d" % number, b"value-%d" % number)
                    print(number, flush=True)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
