"""The protocol of tables, without I/O: each method makes a command, which is the frames of a request and the function
that turns the reply into a result.

The drivers (``_driver.py`` and ``aio/_driver.py``) move the frames and know no command.
"""

from __future__ import annotations

import json
import math
import operator
from dataclasses import dataclass
from datetime import timedelta
from numbers import Integral, Real
from typing import Any, Callable, Dict, Generic, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar
from typing import Union

from .codecs import BYTES, Codec, as_bytes
from .errors import Malformed, refusal

T = TypeVar("T")
D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")

Frames = List[bytes]
Command = Tuple[Frames, Callable[[Frames], T]]
"""The frames of a request, and what its reply means."""
Key = Union[bytes, str]
Ttl = Union[int, float, timedelta]
"""Seconds, or a timedelta. A part of a millisecond counts as a whole one. 0: no TTL."""

Elements = Union[Mapping[Any, Any], Iterable[Tuple[Any, Any]]]
"""Keys with their values."""

OK = b"\x01"
KEY_NOT_FOUND = b"KEY NOT FOUND"
VERSION_MISMATCH = b"VERSION MISMATCH"
NO_DEADLINE = b"\xff" * 8
ABSENT = bytes(8)
# No default is given.
MISSING: Any = object()
# The milliseconds of the longest TTL.
TTL_MILLIS_MAX = (1 << 42) - 1
# By the byte of each.
DURABILITIES = ("none", "soon", "always")
# Keys of one GET_MANY, UPDATE_MANY or DELETE_MANY, and the bytes after which the next one begins.
KEYS_MAX = 1024
BYTES_MAX = 1 << 20
# Elements that a page of a scan looks at.
PAGE = (1000).to_bytes(8, "big")

CREATE_TABLE, DELETE_TABLE, UPDATE, DELETE, GET, PING, GET_ENTRY, COMPARE_AND_SWAP, COMPARE_AND_DELETE, TOUCH = (
    bytes([code]) for code in range(10)
)
GET_MANY, UPDATE_MANY, LIST_TABLES, STATS, SCAN, INCREMENT, GET_AND_TOUCH, DELETE_MANY, FEED_STATE, CHANGES = (
    bytes([code]) for code in range(10, 20)
)
ALTER_TABLE, RESTORE = bytes([20]), bytes([22])


@dataclass(frozen=True)
class Entry(Generic[V]):
    """An element with its version and its remaining time."""

    value: V
    version: int
    """Grows with each change, and never repeats for a key."""
    ttl: Optional[float]
    """The remaining seconds. None: it has no TTL."""


class RateLimit(int):
    """Whether a use was within its limit: 1 or 0, as True and False.

    >>> limit = RateLimit(True, 3, 0.0)
    >>> limit, bool(limit), limit == True
    (RateLimit(True, remaining=3, retry_after=0.0), True, True)
    """

    remaining: int
    """The uses that are left in this window."""
    retry_after: float
    """0, or the seconds until the window ends if the use was one too many."""

    def __new__(cls, is_within: bool, remaining: int, retry_after: float) -> "RateLimit":
        limit = super().__new__(cls, is_within)
        limit.remaining, limit.retry_after = remaining, retry_after
        return limit

    def __repr__(self) -> str:
        return f"RateLimit({bool(self)}, remaining={self.remaining}, retry_after={self.retry_after})"


def whole(number: Any, what: str, low: int, high: int) -> int:
    """A whole number within bounds. Otherwise a TypeError or an OverflowError that says what it is.

    >>> whole(1.5, "a delta", -1, 1)
    Traceback (most recent call last):
    TypeError: a delta is a whole number, not 1.5
    """
    try:
        found = operator.index(number)
    except TypeError:
        raise TypeError(f"{what} is a whole number, not {number!r}") from None
    if not low <= found <= high:
        raise OverflowError(f"{what} is {low} to {high}, not {number!r}")
    return found


def delta_of(number: Any) -> int:
    """What is added to a number."""
    return whole(number, "a delta", -(1 << 63), (1 << 63) - 1)


def seconds_of(seconds: Any, what: str) -> float:
    """A number of seconds, 0 or more. Otherwise a TypeError or a ValueError that says what it is."""
    if isinstance(seconds, bool) or not isinstance(seconds, Real):
        raise TypeError(f"{what} is a number of seconds, not {seconds!r}")
    found = float(seconds)
    if not found >= 0:
        raise ValueError(f"{what} is 0 seconds or more, not {seconds!r}")
    return found


def u64(number: int) -> bytes:
    """8 bytes, big-endian."""
    return whole(number, "a version", 0, (1 << 64) - 1).to_bytes(8, "big")


def text_of(name: bytes) -> str:
    """The name of a table as text, also one that is no UTF-8."""
    return name.decode("utf-8", "surrogateescape")


def millis_of(ttl: Ttl) -> int:
    """The milliseconds of a TTL, rounded up: never early. A float of seconds means the decimal that it is printed as.

    >>> millis_of(2), millis_of(1.1), millis_of(1e-12), millis_of(timedelta(microseconds=1500))
    (2000, 1100, 1, 2)
    """
    if isinstance(ttl, timedelta):
        millis = -(ttl // timedelta(milliseconds=-1))
    elif isinstance(ttl, bool) or not isinstance(ttl, Real):
        raise TypeError(f"a TTL is a number of seconds or a timedelta, not {ttl!r}")
    elif isinstance(ttl, Integral):
        millis = int(ttl) * 1000
    else:
        ttl = float(ttl)
        # NaN and infinity are not within the range. However little a TTL is, it is more than 0, which would be none.
        millis = max(math.ceil(round(ttl * 1000, 6)), int(ttl > 0)) if 0 <= ttl <= TTL_MILLIS_MAX / 1000 else -1
    if not 0 <= millis <= TTL_MILLIS_MAX:
        raise ValueError(f"a TTL is 0 to 4398046511.103 seconds, not {ttl!r}")
    return millis


def field_of(ttl: Ttl) -> bytes:
    """The field of a TTL: 8 bytes for whole seconds, which older servers read too, and otherwise 9.

    >>> field_of(2) == field_of(2.0) == u64(2), field_of(1.5) == b"\1" + u64(1500)
    (True, True)
    """
    millis = millis_of(ttl)
    seconds, rest = divmod(millis, 1000)
    return b"\1" + u64(millis) if rest or seconds >= 1 << 32 else u64(seconds)


def results(request: Frames, reply: Frames, count: int) -> Frames:
    """The reply without its status, if it is OK and has so many frames."""
    if reply[0] != OK:
        raise refusal(request, reply)
    if len(reply) != count + 1:
        raise Malformed(f"the reply to command {request[0][0]} has {len(reply)} frames, not {count + 1}")
    return reply[1:]


def rows(request: Frames, reply: Frames, width: int) -> List[Tuple[bytes, ...]]:
    """The reply without its status, in rows of so many frames."""
    if reply[0] != OK:
        raise refusal(request, reply)
    if (len(reply) - 1) % width:
        raise Malformed(f"the reply to command {request[0][0]} has {len(reply)} frames")
    return list(zip(*[iter(reply[1:])] * width))


def done(request: Frames) -> Command[None]:
    """A request whose reply has no results."""

    def decode(reply: Frames) -> None:
        if reply != [OK]:
            results(request, reply, 0)

    return request, decode


def is_there(request: Frames, count: int) -> Command[bool]:
    """A request about an element, whose reply has so many results. False: there is none."""

    def decode(reply: Frames) -> bool:
        if reply[1:] == [KEY_NOT_FOUND]:
            return False
        results(request, reply, count)
        return True

    return request, decode


def ping() -> Command[None]:
    return done([PING])


def durability_of(durability: str) -> bytes:
    """The byte of a durability.

    >>> durability_of("soon")
    b'\\x01'
    """
    if durability not in DURABILITIES:
        raise ValueError(f"a durability is one of {', '.join(DURABILITIES)}, not {durability!r}")
    return bytes([DURABILITIES.index(durability)])


def create_table(name: Key, evicts: Optional[bool] = None, durability: Optional[str] = None) -> Command[None]:
    if evicts and durability not in (None, "none"):
        raise ValueError(f"a table that evicts is in memory, not {durability!r}")
    if evicts:
        options = [b"\3"]
    elif durability is not None:
        options = [durability_of(durability)]
    else:
        options = [] if evicts is None else [b"\0"]
    return done([CREATE_TABLE, as_bytes(name), *options])


def alter_table(name: Key, durability: str) -> Command[None]:
    return done([ALTER_TABLE, as_bytes(name), durability_of(durability)])


def delete_table(name: Key) -> Command[None]:
    return done([DELETE_TABLE, as_bytes(name)])


def tables() -> Command[Dict[str, int]]:
    """The name of each table, and how many elements it has."""
    request = [LIST_TABLES]
    return request, lambda reply: {
        text_of(name): int.from_bytes(count, "big")
        for name, count in rows(request, reply, 2)
    }


def stats() -> Command[Dict[str, Any]]:
    request = [STATS]

    def decode(reply: Frames) -> Dict[str, Any]:
        (text,) = results(request, reply, 1)
        try:
            metrics: Dict[str, Any] = json.loads(text)
        except ValueError:
            raise Malformed(f"the reply to STATS is no JSON: {text[:32]!r}") from None
        return metrics

    return request, decode


class TableCommands(Generic[K, V]):
    """The commands of one table. Values and keys go through its codecs."""

    def __init__(self, name: Key, values: Codec[V], keys: Codec[K]) -> None:
        self.name = as_bytes(name)
        self.values = values
        self.keys = keys

    # ------------------------------------------------------------------------------------------------ single elements

    def get(self, key: Key, default: D) -> Command[Union[V, D]]:
        request = [GET, self.name, key if type(key) is bytes else as_bytes(key)]
        of_bytes = self.values.decode

        def decode(reply: Frames) -> Union[V, D]:
            if reply[0] == OK and len(reply) == 2:
                return of_bytes(reply[1])
            if reply[1:] == [KEY_NOT_FOUND]:
                return default
            raise refusal(request, reply)

        return request, decode

    def has(self, key: Key) -> Command[bool]:
        return is_there([GET, self.name, as_bytes(key)], 1)

    def item(self, key: Key) -> Command[V]:
        request = [GET, self.name, as_bytes(key)]
        return request, lambda reply: self.values.decode(results(request, reply, 1)[0])

    def set(self, key: Key, value: Any, ttl: Optional[Ttl]) -> Command[None]:
        request = [UPDATE, self.name, key if type(key) is bytes else as_bytes(key), self.values.encode(value)]
        if ttl is not None:
            request.append(field_of(ttl))
        return done(request)

    def delete(self, key: Key) -> Command[bool]:
        return is_there([DELETE, self.name, as_bytes(key)], 1)

    def remove(self, key: Key, default: Any = MISSING) -> Command[Any]:
        request = [DELETE, self.name, as_bytes(key)]

        def decode(reply: Frames) -> Any:
            if default is not MISSING and reply[1:] == [KEY_NOT_FOUND]:
                return default
            return self.values.decode(results(request, reply, 1)[0])

        return request, decode

    def entry(self, key: Key) -> Command[Entry[V]]:
        request = [GET_ENTRY, self.name, as_bytes(key)]

        def decode(reply: Frames) -> Entry[V]:
            value, version, millis = results(request, reply, 3)
            ttl = None if millis == NO_DEADLINE else int.from_bytes(millis, "big") / 1000
            return Entry(self.values.decode(value), int.from_bytes(version, "big"), ttl)

        return request, decode

    def cas(self, key: Key, version: int, value: Any, ttl: Optional[Ttl]) -> Command[int]:
        request = [COMPARE_AND_SWAP, self.name, as_bytes(key), u64(version), self.values.encode(value)]
        if ttl is not None:
            request.append(field_of(ttl))
        return request, lambda reply: int.from_bytes(results(request, reply, 1)[0], "big")

    def add(self, key: Key, value: Any, ttl: Optional[Ttl]) -> Command[bool]:
        request, swapped = self.cas(key, 0, value, ttl)

        def decode(reply: Frames) -> bool:
            if reply[0] != OK and reply[1:2] == [VERSION_MISMATCH]:
                return False
            swapped(reply)
            return True

        return request, decode

    def delete_version(self, key: Key, version: int) -> Command[None]:
        request = [COMPARE_AND_DELETE, self.name, as_bytes(key), u64(version)]

        def decode(reply: Frames) -> None:
            results(request, reply, 1)

        return request, decode

    def restore(self, key: Key, value: Any, version: int, ttl: Optional[Ttl]) -> Command[bool]:
        ttl_field = field_of(0 if ttl is None else ttl)
        request = [RESTORE, self.name, as_bytes(key), self.values.encode(value), u64(version), ttl_field]
        return request, lambda reply: results(request, reply, 1)[0] != b"\0"

    def touch(self, key: Key, ttl: Ttl) -> Command[bool]:
        return is_there([TOUCH, self.name, as_bytes(key), field_of(ttl)], 0)

    def get_and_touch(self, key: Key, ttl: Ttl, default: D) -> Command[Union[V, D]]:
        _, decode = self.get(key, default)
        return [GET_AND_TOUCH, self.name, as_bytes(key), field_of(ttl)], decode

    def incr(self, key: Key, delta: int, ttl: Optional[Ttl]) -> Command[int]:
        request = [INCREMENT, self.name, as_bytes(key), delta_of(delta).to_bytes(8, "big", signed=True)]
        if ttl is not None:
            request.append(field_of(ttl))

        def decode(reply: Frames) -> int:
            number, _ = results(request, reply, 2)
            try:
                return int(number)
            except ValueError:
                raise Malformed(f"the reply to INCREMENT is no number: {number[:32]!r}") from None

        return request, decode

    # -------------------------------------------------------------------------------------------------- many elements

    def get_many(self, keys: Sequence[Key]) -> List[Command[Dict[Key, V]]]:
        """A command for each 1,024 keys. Each results in the elements that are there."""
        return [self._get_chunk(keys[at : at + KEYS_MAX]) for at in range(0, len(keys), KEYS_MAX)]

    def _get_chunk(self, keys: Sequence[Key]) -> Command[Dict[Key, V]]:
        try:
            # Nearly always keys are text.
            encoded = list(map(str.encode, keys))  # type: ignore[arg-type]
        except TypeError:
            encoded = list(map(as_bytes, keys))
        request = [GET_MANY, self.name, *encoded]
        of_bytes = self.values.decode
        is_raw = self.values is BYTES

        def decode(reply: Frames) -> Dict[Key, V]:
            if len(reply) != 2 * len(keys) + 1:
                results(request, reply, 2 * len(keys))
            found: Iterable[Tuple[Key, bytes]] = zip(keys, reply[2::2])
            statuses = reply[1::2]
            if statuses.count(OK) != len(statuses):
                found = [pair for pair, status in zip(found, statuses) if status == OK]
            if is_raw:
                return dict(found)  # type: ignore[arg-type]
            return {key: of_bytes(value) for key, value in found}

        return request, decode

    def set_many(self, elements: Elements, ttl: Optional[Ttl]) -> List[Command[None]]:
        """A command for each 1,024 elements or megabyte."""
        head = [UPDATE_MANY, self.name, b"" if ttl is None else field_of(ttl)]
        commands: List[Command[None]] = []
        request, size = list(head), 0
        for key, value in elements.items() if isinstance(elements, Mapping) else elements:
            encoded = self.values.encode(value)
            is_full = len(request) == len(head) + 2 * KEYS_MAX or size + len(encoded) > BYTES_MAX
            if is_full and len(request) > len(head):
                commands.append(done(request))
                request, size = list(head), 0
            request += (as_bytes(key), encoded)
            size += len(encoded)
        if len(request) > len(head):
            commands.append(done(request))
        return commands

    def delete_many(self, keys: Sequence[Key]) -> List[Command[int]]:
        """A command for each 1,024 keys. Each results in the number of elements that were there."""
        return [self._delete_chunk(keys[at : at + KEYS_MAX]) for at in range(0, len(keys), KEYS_MAX)]

    def _delete_chunk(self, keys: Iterable[Key]) -> Command[int]:
        request = [DELETE_MANY, self.name, *map(as_bytes, keys)]
        return request, lambda reply: results(request, reply, len(request) - 2).count(OK)

    def size(self) -> Command[int]:
        request = [LIST_TABLES]
        name = self.name[:-1] if self.name.endswith(b"\0") else self.name

        def decode(reply: Frames) -> int:
            for found, count in rows(request, reply, 2):
                if found.rstrip(b"\0") == name:
                    return int.from_bytes(count, "big")
            raise refusal(request + [name], [b"\0", b"TABLE NOT FOUND"])

        return request, decode

    def page_of_keys(self, cursor: bytes, prefix: Key) -> Command[Tuple[bytes, List[K]]]:
        """The next cursor, and the keys. An empty cursor begins, and ends."""
        request = [SCAN, self.name, cursor, PAGE, b"\0", as_bytes(prefix)]

        def decode(reply: Frames) -> Tuple[bytes, List[K]]:
            if len(reply) < 2:
                results(request, reply, 1)
            if reply[0] != OK:
                raise refusal(request, reply)
            return reply[1], [self.keys.decode(key) for key in reply[2:]]

        return request, decode

    def page_of_items(self, cursor: bytes, prefix: Key) -> Command[Tuple[bytes, List[Tuple[K, V]]]]:
        """The next cursor, and the keys with their values."""
        request = [SCAN, self.name, cursor, PAGE, b"\1", as_bytes(prefix)]

        def decode(reply: Frames) -> Tuple[bytes, List[Tuple[K, V]]]:
            if reply[0] != OK or len(reply) < 2:
                results(request, reply, 1)
            key_of, value_of = self.keys.decode, self.values.decode
            found = rows(request, [OK, *reply[2:]], 2)
            return reply[1], [(key_of(key), value_of(value)) for key, value in found]

        return request, decode
