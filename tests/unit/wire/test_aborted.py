"""Which batches a reader of committed records leaves out, held against a plain model of transactions."""

from __future__ import annotations

import random

import pytest

from duramen.errors import KafkaError
from duramen.wire.aborted import AbortedTransactions
from duramen.wire.batch import ABORT, COMMIT, build_batch, build_marker, parse_header


def data(producer: int, offset: int, *, count: int = 1, transactional: bool = True) -> bytearray:
    rows = [(None, b"v", [], 0)] * count
    return build_batch(
        rows, base_offset=offset, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=transactional
    )


def shown(log: list[bytearray], listed: list[tuple[int, int]]) -> list[int]:
    aborted = AbortedTransactions(listed)
    headers = [(parse_header(batch), memoryview(batch)) for batch in log]
    return [header.base_offset for header, view in headers if not aborted.hides(header, view)]


def test_a_transaction_is_hidden_from_its_first_batch_to_its_abort_marker() -> None:
    log = [
        data(1, 0), data(2, 1), data(1, 2, transactional=False), build_marker(1, 0, ABORT, 0, 0, base_offset=3),
        data(1, 4), build_marker(2, 0, COMMIT, 0, 0, base_offset=5), build_marker(1, 0, COMMIT, 0, 0, base_offset=6),
    ]  # fmt: skip
    assert shown(log, [(1, 0)]) == [1, 2, 3, 4, 5, 6]
    assert shown(log, []) == [0, 1, 2, 3, 4, 5, 6]


def test_a_stretch_may_begin_in_the_middle_of_a_transaction_and_of_a_batch() -> None:
    log = [data(1, 10, count=5), data(1, 15), build_marker(1, 0, ABORT, 0, 0, base_offset=16), data(1, 17)]
    assert shown(log, [(1, 12), (9, 40)]) == [16, 17]
    assert shown(log[1:], [(1, 3)]) == [16, 17]


def test_a_marker_that_cannot_be_read_is_an_error_and_not_a_guess() -> None:
    odd = build_batch(
        [(b"", b"", [], 0)], base_offset=1, producer_id=1, producer_epoch=0, transactional=True, control=True
    )
    with pytest.raises(KafkaError, match="control record"):
        shown([data(1, 0), odd], [(1, 0)])


@pytest.mark.parametrize("seed", range(50))
def test_histories_of_several_producers_show_what_a_model_shows(seed: int) -> None:
    chance = random.Random(seed)
    log: list[bytearray] = []
    opened: dict[int, list[int]] = {}
    first: dict[int, int] = {}
    ended: list[tuple[int, int, int]] = []
    hidden: set[int] = set()
    for offset in range(60):
        producer = chance.randrange(3)
        if producer in opened and chance.random() < 0.4:
            kind = chance.choice((ABORT, COMMIT))
            log.append(build_marker(producer, 0, kind, 0, 0, base_offset=offset))
            if kind == ABORT:
                ended.append((producer, first[producer], offset))
                hidden |= set(opened[producer])
            del opened[producer]
        else:
            if producer not in opened:
                opened[producer], first[producer] = [], offset
            opened[producer].append(offset)
            log.append(data(producer, offset))
    start = chance.randrange(30)
    chance.shuffle(ended)
    listed = [(producer, at) for producer, at, marker in ended if marker >= start]
    assert shown(log[start:], listed) == [offset for offset in range(start, 60) if offset not in hidden]


def test_a_plain_header_asks_for_nothing() -> None:
    header = parse_header(data(1, 0, transactional=False))
    assert not AbortedTransactions([(1, 0)]).hides(header, memoryview(b""))
