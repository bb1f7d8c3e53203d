"""What takes several commands, without I/O: locks, and values that are computed once.

A flow is a generator. It yields commands and pauses, and is sent the results. A driver runs it: in a thread, or as a
task.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from typing import Any, Callable, Generator, Generic, NamedTuple, Optional, Set, Tuple, TypeVar, Union

from ._call_keys import hashed
from ._kv import Command, Entry, Key, TableCommands, Ttl, create_table, millis_of, tables, text_of
from .codecs import BYTES, as_bytes
from .errors import Denied, KeyNotFound, LockLost, TableExists, TableNotFound, VersionMismatch

T = TypeVar("T")
V = TypeVar("V")


class Pause(NamedTuple):
    """The flow continues after so many seconds."""

    seconds: float


Step = Union[Command[Any], Pause]
Flow = Generator[Step, Any, T]

_log = logging.getLogger("spindle")
# The pauses between two looks at what another client has: at first, and at most.
_PAUSE_MIN = 0.002
_PAUSE_MAX = 0.1
# A lock is extended three times within its TTL.
EXTENSIONS = 3


def pauses_of(first: float, longest: float) -> Generator[float, None, None]:
    """Longer and longer pauses, each with jitter, so that clients do not look at the same moment."""
    while True:
        yield random.uniform(first / 2, first)
        first = min(first * 2, longest)


def pauses() -> Generator[Pause, None, None]:
    """The pauses between two looks at what another client has."""
    return (Pause(seconds) for seconds in pauses_of(_PAUSE_MIN, _PAUSE_MAX))


def make_table(name: Key) -> Flow[None]:
    """Makes a table if it does not exist. A user who may not make it may still use it."""
    try:
        yield create_table(name)
    except TableExists:
        pass
    except Denied:
        if text_of(as_bytes(name)) not in (yield tables()):
            raise


class LockState:
    """A lock is an element that only its holder replaces and deletes. Its value is the holder's token.

    A time-out, or a task that is cancelled, leaves open whether the request was executed. The token shows it.
    """

    def __init__(self, commands: "TableCommands[Any, Any]", name: Key, ttl: Ttl) -> None:
        self.commands: "TableCommands[bytes, bytes]" = TableCommands(commands.name, BYTES, BYTES)
        self.name = name
        self.ttl = ttl
        self.ttl_seconds = millis_of(ttl) / 1000
        if self.ttl_seconds == 0:
            raise ValueError("a lock has a TTL, so that it ends with its holder")
        self.token = b""
        self.fence = 0
        self.version = 0
        # The lock may have our token: it is held, or a request to take it has no reply yet.
        self.may_hold = False
        # From then on another client may have it.
        self.until = 0.0

    def acquire(self, clock: Callable[[], float], timeout: Optional[float]) -> Flow[bool]:
        """Takes the lock. False: another client has it, and still had it when the time was up."""
        # A new token is nowhere yet, and a request without a reply ends this flow.
        is_fresh = not self.may_hold
        if is_fresh:
            self.token = os.urandom(16)
        self.version = 0
        end = None if timeout is None else clock() + timeout
        for pause in pauses():
            until = clock() + self.ttl_seconds
            self.may_hold = True
            try:
                self.version = yield self.commands.cas(self.name, 0, self.token, self.ttl)
                self.until = until
                break
            except VersionMismatch:
                if not is_fresh:
                    self.version = yield from self._own()
                if self.version:
                    try:
                        yield from self.extend(clock)
                        break
                    except LockLost:
                        # It has just ended.
                        pass
                self.may_hold = False
            left = pause.seconds if end is None else end - clock()
            if left <= 0:
                return False
            yield Pause(min(pause.seconds, left))
        self.fence = self.version
        return True

    def _own(self) -> Flow[int]:
        """The version of the lock, if it has our token. Otherwise 0."""
        try:
            entry: Entry[bytes] = yield self.commands.entry(self.name)
        except (KeyNotFound, TableNotFound):
            return 0
        return entry.version if entry.value == self.token else 0

    def extend(self, clock: Callable[[], float]) -> Flow[None]:
        """Begins the TTL anew."""
        until = clock() + self.ttl_seconds
        try:
            self.version = yield self.commands.cas(self.name, self.version, self.token, self.ttl)
        except (VersionMismatch, TableNotFound):
            held = yield from self._own()
            if not held:
                raise self._lost() from None
            self.version = yield self.commands.cas(self.name, held, self.token, self.ttl)
        self.until = until

    def release(self) -> Flow[None]:
        """Lets go of it."""
        held = self.version or (yield from self._own())
        while held:
            try:
                yield self.commands.delete_version(self.name, held)
                self.may_hold = False
                return
            except (VersionMismatch, KeyNotFound, TableNotFound):
                held = yield from self._own()
        self.may_hold = False
        raise self._lost()

    def give_up(self) -> Flow[None]:
        """Lets go of it if it may have our token."""
        if self.may_hold:
            try:
                yield from self.release()
            except LockLost:
                pass

    def _lost(self) -> LockLost:
        return LockLost(f"the lock {self.name!r} ended, or another client has taken it")


class CacheFailures:
    """Counts the uses of a cache that have failed. The first one of each kind is logged for each function."""

    def __init__(self) -> None:
        self.count = 0
        self._logged: Set[Tuple[str, type]] = set()
        self._lock = threading.Lock()

    def note(self, name: str, error: Exception) -> None:
        """A use of the cache for the function of this name has failed."""
        kind = (name, type(error))
        with self._lock:
            self.count += 1
            is_first = kind not in self._logged
            self._logged.add(kind)
        if is_first:
            _log.warning("the cache of %s fails, and results are computed each time: %s", name, error)


class Cached(Generic[V]):
    """A value that one client computes while the others wait for it.

    Who finds no value takes a lock, looks once more, computes, stores and lets go. Who finds the lock taken looks again
    after a pause. Who has waited for so long as the lock's TTL computes too.
    """

    def __init__(self, commands: "TableCommands[Any, V]", key: bytes, ttl: Ttl, wait: Ttl) -> None:
        self.commands = commands
        self.key = key
        self.ttl = ttl
        self.lock = LockState(commands, hashed(b"lock", commands.name, key), wait)

    def find(self, clock: Callable[[], float], note: Callable[[Exception], None]) -> Flow[Tuple[bool, Any]]:
        """The value. Or False: the caller computes it. A value that the codec refuses is none, which is noted."""
        end = clock() + self.lock.ttl_seconds
        look = self.lock.commands.get(self.key, None)
        refused = None
        for pause in pauses():
            value = yield look
            if value is None or value == refused:
                if not (yield from self.lock.acquire(clock, 0)):
                    if clock() >= end:
                        return False, None
                    yield pause
                    continue
                value = yield look
                if value is None or value == refused:
                    return False, None
            try:
                return True, self.commands.values.decode(value)
            except Exception as error:
                refused = value
                note(error)
        raise AssertionError("pauses do not end")

    def store(self, value: Any) -> Flow[None]:
        """Stores what was computed."""
        yield self.commands.set(self.key, value, self.ttl)
