"""What a dead letter says: the names of its headers. Key and value are those of the record, its own headers go first.

Where Kafka has a name for it (KIP-1191, the dead-letter queue of share groups), that is taken. All values are text.
"""

from __future__ import annotations

from typing import Final

TOPIC: Final = "__dlq.errors.topic"
PARTITION: Final = "__dlq.errors.partition"
OFFSET: Final = "__dlq.errors.offset"
GROUP: Final = "__dlq.errors.group"
"""Who could not use the record: `<pipeline>.<step>`."""
MESSAGE: Final = "__dlq.errors.message"
REASON: Final = "duramen.dlq.reason"
"""`corrupt`, or the names of the expectations, with `, ` between."""
VERSION: Final = "duramen.dlq.version"
"""Of the step, for a version that is built again meets the same records."""
TIMESTAMP: Final = "duramen.dlq.timestamp"
"""Of the record, in ms since 1970; the dead letter's own is when it was written."""
OTHERS: Final = "duramen.dlq.other-records"
"""Of a join: the other records of the row, as `topic-partition@offset`, with blanks between."""
REPLAYED: Final = "duramen.dlq.replayed"
"""Not of a dead letter but of a note among them: its value lists the records that were put back, as JSON texts."""
PREFIXES: Final = ("__dlq.", "duramen.dlq.")
CORRUPT: Final = "corrupt"
