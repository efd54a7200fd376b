"""The states in which a power cut can leave a disk, enumerated from a tape.

Behind every step the platter surely holds what was synced; of what was not, anything: each sector of each write may be
there or not (the last one in part), a file may be longer than its data (zeros), a name may have come, gone or moved or
not yet, in any combination. Two rules bound it, as every file system that journals its metadata keeps them: a rename
is one change even between directories, and bytes written behind the point to which a file was cut are only there once
the cut is.

Everything is too much, so it is everything while few pieces are unsynced, and otherwise: all, none, every prefix (from
the steps before), every piece missing alone and there alone, the last one torn, lengths without data, and seeded
samples. States are counted by content: two moments that may leave the same bytes under the same names are one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from typing import NamedTuple

from tests.crash.tape import NOWHERE, ROOT, Forgotten, NamesSynced, Renamed, Resized, Step, Synced, Tape, Tree, Written

SECTOR = 512
BLOCK = 4096
ALL_SUBSETS = 6
"""Up to so many unsynced pieces, every combination of them is a state."""
MOST_PIECES = 48
"""So many pieces are taken out or left in alone; of more, a seeded choice."""


class Piece(NamedTuple):
    """The smallest thing that a crash lets through or not: part of a write, a new length, or a change of names.

    start, end: bytes of a file; start -1: a new length `end`. data: None for zeros; for a length b"" if it is a cut.
    """

    step: int
    inode: int
    start: int
    end: int
    data: bytes | None
    change: Renamed | None = None


class State(NamedTuple):
    """One possible platter. key: digest of its content. promised: the newest mark it has to honour."""

    tree: Tree
    key: bytes
    promised: object
    origin: str


@dataclass(slots=True)
class Platter:
    """What is durable, and what waits, behind some step of a tape."""

    files: dict[int, bytes]
    tree: dict[int, dict[str, tuple[int, bool]]]
    waiting: list[Piece] = field(default_factory=list)
    digests: dict[int, bytes] = field(default_factory=dict)

    def take(self, number: int, step: Step) -> None:
        """Step `number` of the tape happened."""
        if isinstance(step, Written):
            self.waiting += [piece for piece in _pieces(number, step) if not self._is_there(piece)]
        elif isinstance(step, Resized):
            self.waiting.append(Piece(number, step.inode, -1, step.size, b"" if step.cut else None))
        elif isinstance(step, Renamed):
            self.waiting.append(Piece(number, NOWHERE, 0, 0, None, step))
        elif isinstance(step, Synced):
            mine = [piece for piece in self.waiting if piece.inode == step.inode]
            if mine:
                self.files[step.inode] = apply(self.files.get(step.inode, b""), mine)
                self.digests.pop(step.inode, None)
                self.waiting = [piece for piece in self.waiting if piece.inode != step.inode]
        elif isinstance(step, Forgotten):
            self.waiting = [piece for piece in self.waiting if piece.inode != step.inode]
        else:
            self._sync_names(step)

    def _is_there(self, piece: Piece) -> bool:
        """Whether the platter has these very bytes: whatever of them arrives, or of their length, changes nothing."""
        stable = self.files.get(piece.inode, b"")
        waits = any(other.inode == piece.inode for other in self.waiting)
        return not waits and stable[piece.start : piece.end] == piece.data

    def _sync_names(self, step: NamesSynced) -> None:
        rest = []
        for piece in self.waiting:
            change = piece.change
            if change is not None and step.directory in (change.source, change.target):
                settle(self.tree, change)
            else:
                rest.append(piece)
        self.waiting = rest


def _pieces(number: int, step: Written) -> Iterator[Piece]:
    """A write cut at the borders of sectors, or of blocks when it is long."""
    unit = SECTOR if len(step.data) <= 16 * SECTOR else BLOCK
    position, end = step.offset, step.offset + len(step.data)
    while position < end:
        stop = min(end, position - position % unit + unit)
        yield Piece(number, step.inode, position, stop, step.data[position - step.offset : stop - step.offset])
        position = stop


def apply(stable: bytes, pieces: list[Piece]) -> bytes:
    """A file's bytes once these pieces of it, in the order they happened, are on the platter."""
    out = bytearray(stable)
    for piece in pieces:
        if piece.start < 0:
            if piece.end < len(out):
                del out[piece.end :]
            else:
                out.extend(bytes(piece.end - len(out)))
            continue
        if piece.start > len(out):
            out.extend(bytes(piece.start - len(out)))
        out[piece.start : piece.end] = piece.data if piece.data is not None else bytes(piece.end - piece.start)
    return bytes(out)


def settle(tree: dict[int, dict[str, tuple[int, bool]]], change: Renamed) -> None:
    """Make a change of names durable."""
    node = (change.node, change.is_directory)
    if change.source != NOWHERE and tree.setdefault(change.source, {}).get(change.source_name) == node:
        del tree[change.source][change.source_name]
    if change.target != NOWHERE:
        tree.setdefault(change.target, {})[change.target_name] = node


class Choice(NamedTuple):
    """Behind step `number`, with `mark` marks passed: which of the waiting pieces are on the platter, and why these."""

    number: int
    mark: int
    how: str
    chosen: list[Piece]
    platter: Platter


def crash_states(
    tape: Tape, *, first: int = 0, samples: int = 4, seed: int = 0, about: int | None = None
) -> Iterator[State]:
    """Every state (see the module) behind the steps from `first` on, each content once for each promise.

    samples: seeded choices behind each step, besides those that are always made. about: only so many of the states,
    roughly, spread evenly over the steps.
    """
    every = 1.0
    if about is not None:
        every = max(1.0, sum(1 for _ in _choices(tape, first, samples, seed)) / about)
    seen: set[tuple[bytes, int]] = set()
    taken = 0
    for count, choice in enumerate(_choices(tape, first, samples, seed)):
        if count < taken * every:
            continue
        taken += 1
        tree, key = assemble(choice.platter, choice.chosen)
        if (key, choice.mark) not in seen:
            seen.add((key, choice.mark))
            call = tape.call_of(choice.number - 1) if choice.number else "nothing"
            promised = tape.marks[choice.mark - 1][1] if choice.mark else None
            yield State(tree, key, promised, f"behind step {choice.number}, {call}: {choice.how}")


def final_states(tape: Tape, promised: object) -> Iterator[State]:
    """What a crash at the end of a tape leaves at least and at most: what was synced, and all that was written."""
    platter = Platter(dict(tape.files), {node: dict(names) for node, names in tape.tree.items()})
    for number, step in enumerate(tape.steps):
        platter.take(number, step)
    for how, chosen in (("only what was synced", []), ("all that was written", platter.waiting)):
        tree, key = assemble(platter, chosen)
        yield State(tree, key, promised, f"at the end: {how}")


def _choices(tape: Tape, first: int, samples: int, seed: int) -> Iterator[Choice]:
    platter = Platter(dict(tape.files), {node: dict(names) for node, names in tape.tree.items()})
    mark = 0
    for number in range(len(tape.steps) + 1):
        while mark < len(tape.marks) and tape.marks[mark][0] <= number:
            mark += 1
        if number >= first:
            random = Random(seed * 1_000_003 + number)
            for how, chosen in selections(platter.waiting, number, random, samples):
                yield Choice(number, mark, how, chosen, platter)
        if number < len(tape.steps):
            platter.take(number, tape.steps[number])


def selections(waiting: list[Piece], number: int, random: Random, samples: int) -> Iterator[tuple[str, list[Piece]]]:
    """Which of the waiting pieces are on the platter, described and in order. `number`: steps taken so far."""
    yield "nothing unsynced", []
    if not waiting:
        return
    yield "everything", waiting
    count = len(waiting)
    if count <= ALL_SUBSETS:
        for bits in range(1, (1 << count) - 1):
            yield f"pieces {bits:b}", [piece for place, piece in enumerate(waiting) if bits >> place & 1]
    else:
        names = [piece for piece in waiting if piece.change is not None]
        data = [piece for piece in waiting if piece.change is None]
        yield "all names", names
        yield "all data", data
        yield "all but the newest step", [piece for piece in waiting if piece.step < number - 1]
        yield "the newest step", [piece for piece in waiting if piece.step == number - 1]
        places = range(count) if count <= MOST_PIECES else sorted(random.sample(range(count), MOST_PIECES))
        for place in places:
            yield f"all but piece {place}", waiting[:place] + waiting[place + 1 :]
            yield f"only piece {place}", [waiting[place]]
    yield "lengths without data", [_emptied(piece) for piece in waiting]
    newest = waiting[-1]
    if newest.data and newest.end - newest.start > 1:
        half = random.randint(newest.start + 1, newest.end - 1)
        torn = newest._replace(end=half, data=newest.data[: half - newest.start])
        yield f"torn at byte {half}", [*waiting[:-1], torn]
        yield f"only the newest, torn at byte {half}", [torn]
    if count > ALL_SUBSETS:
        for sample in range(samples):
            yield f"sample {sample}", _sampled(waiting, random)


def _emptied(piece: Piece) -> Piece:
    return piece if piece.change is not None or piece.start < 0 else piece._replace(data=None)


def _sampled(waiting: list[Piece], random: Random) -> list[Piece]:
    """A seeded choice: names and data each a prefix or a subset of their own density; some data are only lengths."""
    chosen: list[Piece] = []
    for are_names in (True, False):
        kind = [piece for piece in waiting if (piece.change is not None) == are_names]
        if kind and random.random() < 0.4:
            chosen += kind[: random.randint(0, len(kind))]
        else:
            density = random.choice((0.1, 0.5, 0.9))
            chosen += [piece for piece in kind if random.random() < density]
    chosen.sort(key=lambda piece: (piece.step, piece.start))
    if random.random() < 0.3:
        chosen = [_emptied(piece) if random.random() < 0.3 else piece for piece in chosen]
    return chosen


def _possible(waiting: list[Piece], chosen: list[Piece]) -> list[Piece]:
    """Without bytes behind a cut that is not on the platter itself."""
    there = {(piece.step, piece.inode) for piece in chosen if piece.start < 0}
    cuts = [
        piece
        for piece in waiting
        if piece.start < 0 and piece.data is not None and (piece.step, piece.inode) not in there
    ]
    if not cuts:
        return chosen
    kept = []
    for piece in chosen:
        limit = min((cut.end for cut in cuts if cut.inode == piece.inode and cut.step < piece.step), default=None)
        if limit is None or piece.change is not None or piece.start < 0 or piece.end <= limit:
            kept.append(piece)
        elif piece.start < limit:
            data = None if piece.data is None else piece.data[: limit - piece.start]
            kept.append(piece._replace(end=limit, data=data))
    return kept


def assemble(platter: Platter, chosen: list[Piece]) -> tuple[Tree, bytes]:
    """The tree of a platter with these pieces, and the digest of its content."""
    chosen = _possible(platter.waiting, chosen)
    names = platter.tree
    changes = [piece.change for piece in chosen if piece.change is not None]
    if changes:
        names = {node: dict(entries) for node, entries in names.items()}
        for change in changes:
            settle(names, change)
    touched: dict[int, list[Piece]] = {}
    for piece in chosen:
        if piece.change is None:
            touched.setdefault(piece.inode, []).append(piece)
    digest = blake2b(digest_size=16)

    def build(node: int) -> dict[str, bytes | Tree]:
        found: dict[str, bytes | Tree] = {}
        for name, (child, is_directory) in sorted(names.get(node, {}).items()):
            digest.update(name.encode())
            if is_directory:
                digest.update(b"/")
                found[name] = build(child)
                digest.update(b"\\")
            elif child in touched:
                content = apply(platter.files.get(child, b""), touched[child])
                digest.update(blake2b(content, digest_size=16).digest())
                found[name] = content
            else:
                content = platter.files.get(child, b"")
                known = platter.digests.get(child)
                if known is None:
                    known = platter.digests[child] = blake2b(content, digest_size=16).digest()
                digest.update(known)
                found[name] = content
        return found

    return build(ROOT), digest.digest()
