"""What queues show of their tasks and of themselves, and the options that they take."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from struct import Struct
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

from ._kv import MISSING, seconds_of, whole

_U32 = Struct(">I")
_U64 = Struct(">Q")
# A time that is none.
NO_TIME = (1 << 64) - 1
# The priority of a task without one. Smaller ones go first.
PRIORITY = 65_536
# The bytes of a reason that the server keeps.
REASON_BYTES_MAX = 256

Backoff = Union[float, Tuple[float, float]]
"""Seconds, or the first pause and the longest one: it doubles with each failure."""
STATES = {"ready": 1, "delayed": 2, "lent": 3, "dead": 4, "dropped": 5}
_SWEPT = {"ready": 1, "delayed": 2, "dead": 4, "dropped": 8}


class Rate(NamedTuple):
    """A queue lends so many tasks in ``seconds``, and ``burst`` at once. Without a burst: as many."""

    tasks: int
    seconds: float = 1.0
    burst: Optional[int] = None


class LentTask(NamedTuple):
    """A task under a lease, as the server lends it."""

    queue: bytes
    lend_key: int
    tries: int
    key: bytes
    value: bytes


@dataclass(frozen=True)
class BrowsedTask:
    """A task that is shown without being taken."""

    key: bytes
    priority: int
    tries: int
    """How often it was lent since it was added, kicked or repaid."""
    group: bytes
    age: float
    """The seconds for which it has been in its state."""
    left: Optional[float]
    """The seconds until its delay or its lease ends. None: it has neither."""
    reason: str
    """Why it has failed last."""
    size: int
    """The bytes of its value."""
    first: bytes
    """As many of them as were asked for."""


@dataclass(frozen=True)
class QueueCounts:
    """The tasks of a queue by state, what has happened to them since the server started, and the queue's settings."""

    ready: int = 0
    delayed: int = 0
    lent: int = 0
    dead: int = 0
    dropped: int = 0
    unreadable: int = 0
    """Tasks whose values the disk does not return at present."""
    groups: int = 0
    waiting: int = 0
    """The requests that wait for a task."""
    times_added: int = 0
    times_lent: int = 0
    times_done: int = 0
    times_ran_out: int = 0
    times_failed: int = 0
    times_expired: int = 0
    times_throttled: int = 0
    oldest: Optional[float] = None
    """The seconds for which the oldest ready task has been ready. None: there is none."""
    is_paused: bool = False
    pause_left: Optional[float] = None
    """The seconds until the pause ends. None: there is no pause, or it lasts until the queue is resumed."""
    tries: Optional[int] = None
    backoff: Optional[Tuple[float, float]] = None
    group_limit: Optional[int] = None
    rate: Optional[Rate] = None
    sync: Union[None, str, float] = None


# The numbers of a queue in their order.
FIGURES = tuple(field.name for field in fields(QueueCounts))[:15]


def millis(seconds: Any, what: str, bound: int = NO_TIME) -> int:
    """Milliseconds, rounded up, and at most the bound.

    >>> millis(1.0005, "a delay"), millis(1e300, "a delay") == NO_TIME
    (1001, True)
    """
    found = seconds_of(seconds, what) * 1000
    return bound if found >= bound else math.ceil(found)


def backoff_of(backoff: Backoff) -> Tuple[float, float]:
    """The first pause and the longest one.

    >>> backoff_of(5), backoff_of((1, 600))
    ((5.0, 5.0), (1.0, 600.0))
    """
    pair = backoff if isinstance(backoff, tuple) else (backoff, backoff)
    if len(pair) != 2:
        raise ValueError(f"a backoff is a number of seconds, or the first one and the longest one, not {backoff!r}")
    first, longest = (seconds_of(part, "a backoff") for part in pair)
    if longest < first:
        raise ValueError(f"the longest pause of a backoff is not below the first one, as in {backoff!r}")
    return first, longest


def name_of(name: Union[bytes, str]) -> bytes:
    """The name of a queue or a group, with its length."""
    encoded = name.encode() if isinstance(name, str) else bytes(name)
    if not 1 <= len(encoded) <= 255:
        raise ValueError(f"the name of a queue or group has 1 to 255 bytes, not {len(encoded)}")
    return bytes((len(encoded),)) + encoded


def reason_of(reason: str) -> bytes:
    """As much of a reason as the server keeps, with its length. A character is not cut in two."""
    encoded = reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()
    return len(encoded).to_bytes(2, "big") + encoded


def _u32(number: Any, what: str) -> bytes:
    return _U32.pack(whole(number, what, 0, (1 << 32) - 1))


def _u64(seconds: Any, what: str) -> bytes:
    return _U64.pack(millis(seconds, what))


def _backoff(backoff: Backoff) -> bytes:
    first, longest = backoff_of(backoff)
    return b"".join(_U32.pack(millis(part, "a backoff", (1 << 32) - 1)) for part in (first, longest))


def _options(*options: bytes) -> bytes:
    given = [option for option in options if option]
    return bytes((len(given),)) + b"".join(given)


def add_options(
    priority: int = PRIORITY,
    delay: float = 0,
    tries: Optional[int] = None,
    backoff: Optional[Backoff] = None,
    group: Union[None, bytes, str] = None,
    expires: Optional[float] = None,
) -> bytes:
    """The options of a task that is added, encoded."""
    return _options(
        b"" if priority == PRIORITY else b"\x01" + _u32(priority, "a priority"),
        b"" if delay == 0 else b"\x02" + _u64(delay, "a delay"),
        b"" if tries is None else b"\x03" + _u32(tries, "the number of tries"),
        b"" if backoff is None else b"\x04" + _backoff(backoff),
        b"" if not group else b"\x05" + name_of(group),
        b"" if expires is None else b"\x06" + _u64(expires, "an expiry"),
    )


def _rate(rate: Rate) -> bytes:
    tasks, seconds, burst = Rate(*rate)
    numbers = (_u32(tasks, "a rate"), _U32.pack(millis(seconds, "the time of a rate", (1 << 32) - 1)))
    return b"".join(numbers) + _u32(tasks if burst is None else burst, "a burst")


def _sync(sync: Union[str, float]) -> bytes:
    if isinstance(sync, str):
        if sync not in ("always", "never"):
            raise ValueError(f'a queue syncs "always", "never" or within so many seconds, not {sync!r}')
        return _U64.pack(NO_TIME if sync == "never" else 0)
    return _U64.pack(max(1, millis(sync, "the time until a sync", NO_TIME - 1)))


_SETTINGS: Dict[str, Tuple[int, Callable[[Any], bytes]]] = {
    "tries": (1, lambda tries: _u32(tries, "the number of tries")),
    "backoff": (2, _backoff),
    "group_limit": (3, lambda limit: _u32(limit, "the limit of a group")),
    "rate": (4, _rate),
    "pause": (5, lambda pause: _U64.pack(NO_TIME) if pause == math.inf else _u64(pause, "a pause")),
    "sync": (6, _sync),
}


def settings(given: Dict[str, Any]) -> bytes:
    """The settings of a queue that change, encoded. A setting of None is taken away, and MISSING stays."""
    options = []
    for name, value in given.items():
        tag, encode = _SETTINGS[name]
        if value is None:
            options.append(bytes((tag | 0x80,)))
        elif value is not MISSING:
            options.append(bytes((tag,)) + encode(value))
    return _options(*options)


def swept(states: Tuple[str, ...]) -> bytes:
    """The states of tasks that are purged, as one byte."""
    for state in states:
        if state not in _SWEPT:
            raise ValueError(f"a purge takes tasks that are {', '.join(_SWEPT)}, not {state!r}")
    if not states:
        raise ValueError(f"a purge needs states: {', '.join(_SWEPT)}")
    return bytes((sum(_SWEPT[state] for state in set(states)),))
