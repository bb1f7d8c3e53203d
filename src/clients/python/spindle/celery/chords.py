"""Chords in the table of the results: which parts have returned, and who calls the body.

```text
size     how many parts there are, known before the last of them is published
result   of each part. It is there before the part is counted
part-N   the parts of this shard, a line each. The elements grow by compare-and-swap
           3 TASK    the part of this index has returned
           + TASK    this part was added while the chord runs. Ids are quoted, so that they have no end of a line
claim    the worker that calls the body. It expires, so that another one does if that worker dies
done     the body was called. A part that runs again is not counted
```
A part that runs again, since its worker has died, is the same line. So it counts once. Each step may be repeated, since
the reply to it may be lost. A line that is none of these is passed over.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import quote, unquote
from zlib import crc32

from ..errors import KeyNotFound, VersionMismatch

if TYPE_CHECKING:
    from .backend import SpindleBackend

# So many elements hold the parts of a chord: a part reads all and writes one.
SHARDS = 16
# So long a worker may take to call the body of a chord, before another one does.
CLAIM_SECONDS = 30.0
# A chord that is over is known for so long at least.
DONE_SECONDS = 3_600
# The place in the line of a part that was added while the chord runs.
_ADDED = "+"


class Part(NamedTuple):
    """A task of the header of a chord."""

    place: str
    task: str

    @classmethod
    def of(cls, line: bytes) -> "Optional[Part]":
        """That of a line. None: it is no line of a part."""
        place, space, task = line.decode("utf-8", "replace").partition(" ")
        is_place = place in ("", _ADDED) or (place.isascii() and place.isdigit())
        return cls(place, unquote(task)) if space and is_place else None

    @classmethod
    def added(cls, task: str) -> "Part":
        """A part that a task of the chord has added. It has not returned."""
        return cls(_ADDED, task)

    @property
    def is_added(self) -> bool:
        """Whether this says that the part was added."""
        return self.place == _ADDED

    def encode(self) -> bytes:
        """Its line."""
        return f"{self.place} {quote(self.task)}".encode()

    def order(self) -> Tuple[float, str]:
        """Its place among the results."""
        return float(self.place or "inf"), self.task


class Chord:
    """A chord, by the id of its group."""

    def __init__(self, backend: "SpindleBackend", group: str) -> None:
        self._backend = backend
        self._group = group
        self._shards = [self._key(f"part-{number}") for number in range(SHARDS)]

    def _key(self, name: str) -> bytes:
        key: bytes = self._backend.key_of(self._backend.get_key_for_chord(self._group, f"-{name}"))
        return key

    def result_key(self, part: Part) -> bytes:
        """The key of the result of a part."""
        return self._key(f"result-{part.place}-{part.task}")

    @property
    def _ttl(self) -> float:
        return float(self._backend.chord_seconds)

    def begin(self, size: int) -> None:
        """So many parts are published. A chord that is published again begins anew."""
        self._run(lambda table: table.delete_many([self._key("done"), self._key("claim")]))
        self._run(lambda table: table.set(self._key("size"), str(size), self._ttl))

    def add(self, task: str) -> None:
        """A task of the chord has added another part."""
        self._add(Part.added(task))

    def _add(self, part: Part) -> None:
        line = part.encode()
        self._run(lambda table: self._append(table, self._shards[crc32(line) % SHARDS], line))

    def _run(self, call: Any) -> Any:
        return self._backend.ensure(lambda: call(self._backend.table))

    def is_done(self) -> bool:
        """Whether the body was called."""
        return self._run(lambda table: table.get(self._key("done"))) is not None

    def count(self, part: Part) -> Optional[List[Part]]:
        """A part has returned. All parts in their order, if it was the last one. Otherwise None."""
        self._add(part)
        size = self._key("size")
        found: Dict[Any, bytes] = self._run(lambda table: table.get_many([*self._shards, size]))
        lines = (Part.of(line) for key in self._shards for line in found.get(key, b"").split(b"\n"))
        known = [part for part in lines if part is not None]
        returned = [part for part in known if not part.is_added]
        if size not in found or len(returned) < int(found[size]) + len(known) - len(returned):
            return None
        return sorted(returned, key=Part.order)

    def _append(self, table: Any, shard: bytes, line: bytes) -> None:
        while True:
            try:
                entry = table.entry(shard)
                version, value = entry.version, entry.value
            except KeyNotFound:
                version, value = 0, b""
            if line in value.split(b"\n"):
                return
            try:
                table.cas(shard, version, value + line + b"\n", self._ttl)
                return
            except VersionMismatch:
                time.sleep(random.uniform(0, 0.005))

    def claim(self) -> bool:
        """Whether this worker calls the body. If another one is about to, this waits until it has, or has died."""
        token, key = os.urandom(8), self._key("claim")
        while True:
            is_mine = self._run(lambda table: table.add(key, token, CLAIM_SECONDS))
            # If the reply to this was lost, the claim is there with this token.
            is_mine = is_mine or self._run(lambda table: table.get(key)) == token
            if self.is_done():
                # The other one has just called it.
                if is_mine:
                    self._run(lambda table: table.delete(key))
                return False
            if is_mine:
                return True
            time.sleep(random.uniform(0.05, 0.1))

    def end(self, parts: List[Part]) -> None:
        """The body was called, or the chord has failed."""
        seconds = max(DONE_SECONDS, self._ttl)
        self._run(lambda table: table.set(self._key("done"), b"1", seconds))
        names = [self._key(name) for name in ("size", "claim")]
        self._run(lambda table: table.delete_many([*self._shards, *names, *map(self.result_key, parts)]))
