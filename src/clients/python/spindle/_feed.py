"""The messages of the feed, and the requests of a mirror, without I/O (``src/feed/FEED.md``).

```text
payload   format (1) = 2 │ type (1) │ epoch (8) │ incarnation (8) │ sequence (8) │ …
type 1    CHANGES    count (2) │ count × cause (1), version (8), deadline (8), key (2 + bytes), value (4 + bytes)
type 2    BOOKMARK   elements (8) │ digest (8) │ durable (8)
type 3    DROPPED    –
cause     bit 7: the element is there. The rest is a number, and one that is not known is a set or a delete
```
"""

from __future__ import annotations

from struct import Struct, error as struct_error
from typing import List, NamedTuple, Tuple

from ._kv import CHANGES, FEED_STATE, OK, PAGE, SCAN, Frames, u64
from .errors import Malformed

CHANGES_TYPE, BOOKMARK_TYPE, DROPPED_TYPE = 1, 2, 3
FORMAT = 2
# In a cause: the element is there.
LIVE = 0x80
SET, DELETE, DELETE_WITH_TABLE = LIVE | 1, 3, 5
CAUSES = {
    SET: "set",
    LIVE | 2: "touch",
    DELETE: "delete",
    4: "expire",
    DELETE_WITH_TABLE: "delete with the table",
    LIVE | 6: "cas",
    LIVE | 7: "increment",
    8: "evict",
    LIVE | 9: "restore",
    LIVE | 10: "append",
    LIVE | 11: "persist",
    LIVE | 12: "set a range",
    LIVE | 13: "increment by a float",
    14: "rename from",
    LIVE | 15: "rename to",
    LIVE | 16: "copy to",
}
# The marks of a row: its version is published, it is ahead of the feed, or its deletion is not published yet.
PUBLISHED, AHEAD, DELETED = b"\0", b"\1", b"\2"

_HEAD = Struct(">BBQQQ")
_COUNT = Struct(">H")
_CHANGE = Struct(">BQQH")
_VALUE = Struct(">I")
_BOOKMARK = Struct(">QQQ")
_SIX = Struct(">6Q")

Change = Tuple[int, int, int, bytes, bytes]
"""Cause, version, deadline in milliseconds since 1970 or 0, key, value."""
Row = Tuple[bytes, bytes, bytes, bytes, bytes]
"""Key, value, version, deadline, mark."""


class Position(NamedTuple):
    """A place in the feed: how far a copy is."""

    epoch: int
    """One start of the server."""
    incarnation: int
    """One life of the table. 0: there is no such table."""
    sequence: int
    """The number of the change that comes next."""


class Message(NamedTuple):
    """A message of the feed."""

    kind: int
    position: Position
    changes: List[Change]
    elements: int
    digest: int


class State(NamedTuple):
    """The reply to FEED_STATE."""

    position: Position
    oldest: int
    elements: int
    digest: int


def topic_of(table: bytes) -> bytes:
    """The topic of a table's messages."""
    name = table[:-1] if table.endswith(b"\0") else table
    return bytes((len(name),)) + name


def decode(payload: bytes) -> Message:
    """A payload as it was published, or as CHANGES replays it."""
    try:
        form, kind, epoch, incarnation, sequence = _HEAD.unpack_from(payload)
        if form < FORMAT:
            raise Malformed(f"the feed has format {form}, and this package reads format {FORMAT}: update the server")
        if form > FORMAT or not CHANGES_TYPE <= kind <= DROPPED_TYPE:
            raise Malformed(f"the feed has a message of format {form}, type {kind}: update this package")
        position = Position(epoch, incarnation, sequence)
        if kind == CHANGES_TYPE:
            return Message(kind, position, _changes(payload), 0, 0)
        if kind == BOOKMARK_TYPE:
            elements, digest, _ = _BOOKMARK.unpack_from(payload, _HEAD.size)
            return Message(kind, position, [], elements, digest)
        return Message(kind, position, [], 0, 0)
    except (struct_error, IndexError):
        raise Malformed(f"a message of the feed is cut off after {len(payload)} bytes") from None


def _changes(payload: bytes) -> List[Change]:
    (count,) = _COUNT.unpack_from(payload, _HEAD.size)
    at = _HEAD.size + 2
    change, length = _CHANGE.unpack_from, _VALUE.unpack_from
    changes: List[Change] = []
    for _ in range(count):
        cause, version, deadline, key_bytes = change(payload, at)
        key_at = at + _CHANGE.size
        key_end = key_at + key_bytes
        (value_bytes,) = length(payload, key_end)
        value_at = key_end + 4
        key = payload[key_at:key_end]
        at = value_at + value_bytes
        changes.append((cause, version, deadline, key, payload[value_at:at]))
    if at > len(payload):
        raise IndexError
    return changes


def cause_name(cause: int) -> str:
    """The name of a cause. Of one that is not known, bit 7 counts."""
    return CAUSES.get(cause) or CAUSES[SET if cause & LIVE else DELETE]


# --------------------------------------------------------------------------------------------------------- requests


def state_request(table: bytes) -> Frames:
    return [FEED_STATE, table]


def page_request(table: bytes, cursor: bytes) -> Frames:
    return [SCAN, table, cursor, PAGE, b"\3"]


def changes_request(table: bytes, position: Position) -> Frames:
    return [CHANGES, table, *map(u64, position)]


def state_of(reply: Frames) -> State:
    """The reply to FEED_STATE, if it is OK."""
    if reply[0] != OK or len(reply) != 7 or any(len(frame) != 8 for frame in reply[1:]):
        raise Malformed(f"the reply to FEED_STATE has {len(reply)} frames")
    epoch, incarnation, sequence, oldest, elements, digest = _SIX.unpack(b"".join(reply[1:]))
    return State(Position(epoch, incarnation, sequence), oldest, elements, digest)


def page_of(reply: Frames) -> Tuple[bytes, List[Row]]:
    """The next cursor and the rows of a page, if the reply is OK."""
    if reply[0] != OK or len(reply) % 5 != 2:
        raise Malformed(f"the reply to SCAN has {len(reply)} frames")
    return reply[1], list(zip(*[iter(reply[2:])] * 5))
