# Generated from aio/table.py by "python unasync.py". Change that file, not this one.
"""A table, for threads."""

from __future__ import annotations

import functools
from time import monotonic
from typing import TYPE_CHECKING, Any, Iterator, Callable, Dict, Iterable, Optional, Tuple
from typing import TypeVar, Union, overload

from ._call_keys import CallKeys
from ._flows import CacheFailures, Cached, Flow, LockState
from ._kv import MISSING, Elements as ManyElements, Entry, Key, RateLimit, TableCommands, Ttl, delta_of
from .errors import Error, KeyNotFound
from ._concurrency import to_its_end
from ._elements import Elements
from .lock import Lock

if TYPE_CHECKING:
    from .client import Client

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class Table(Elements[K, V]):
    """A table of the server. Make it with :meth:`spindle.Client.table`. Threads may share it.

    Keys are bytes or text (UTF-8), of 64 bytes at most unless the server has a larger ``--max-key``. Values go through
    the table's codec.

    >>> birds = client.table("birds", create=True, codec=spindle.TEXT)
    >>> birds.set("heron", "grey", ttl=60)
    >>> birds.get("heron"), birds.get("stork"), birds.get("stork", "white")
    ('grey', None, 'white')
    """

    def __init__(self, client: "Client", commands: "TableCommands[K, V]") -> None:
        super().__init__(client, commands)
        self._cache_failures = CacheFailures()

    @property
    def cache_failures(self) -> int:
        """How often a function that is :meth:`cached` got a result that could not be kept or read."""
        return self._cache_failures.count

    @property
    def name(self) -> bytes:
        """The name."""
        return self._commands.name

    def __repr__(self) -> str:
        return f"<table {self.name!r} of {self._client.endpoint}>"

    # ------------------------------------------------------------------------------------------------ single elements

    @overload
    def get(self, key: Key) -> Optional[V]: ...
    @overload
    def get(self, key: Key, default: D) -> Union[V, D]: ...
    def get(self, key: Key, default: Any = None) -> Any:
        """The value, or ``default`` if there is none."""
        return self._client._run(self._commands.get(key, default))

    def set(self, key: Key, value: Any, ttl: Optional[Ttl] = None) -> None:
        """Adds or replaces an element. Without a TTL an element that exists keeps its deadline, and a new one has
        none. ``ttl=0`` takes the deadline away. A TTL is in seconds, such as ``1.5``, or a ``timedelta``.
        """
        self._client._run(self._commands.set(key, value, ttl))

    def delete(self, key: Key) -> bool:
        """Deletes an element. False: there was none."""
        return self._client._run(self._commands.delete(key))

    @overload
    def pop(self, key: Key) -> V: ...
    @overload
    def pop(self, key: Key, default: D) -> Union[V, D]: ...
    def pop(self, key: Key, default: Any = MISSING) -> Any:
        """Deletes an element, and returns its value. One of many clients that pop a key gets it. If there is none:
        ``default``, or :class:`spindle.KeyNotFound` without one.
        """
        return self._client._run(self._commands.remove(key, default))

    def entry(self, key: Key) -> Entry[V]:
        """The value with its version and its remaining seconds.

        >>> birds = client.table("birds", create=True)
        >>> birds.set("wren", "brown")
        >>> entry = birds.entry("wren")
        >>> entry.ttl is None
        True
        """
        return self._client._run(self._commands.entry(key))

    def cas(self, key: Key, version: int, value: Any, ttl: Optional[Ttl] = None) -> int:
        """Replaces the value if the element has this version, and returns the new version. Version 0: only if the
        element is absent. Raises :class:`spindle.VersionMismatch`, whose ``current`` is the version that it has.

        >>> birds = client.table("birds", create=True)
        >>> birds.set("tit", "blue")
        >>> entry = birds.entry("tit")
        >>> version = birds.cas("tit", entry.version, "great")
        >>> birds.cas("tit", version - 1, "coal")
        Traceback (most recent call last):
        spindle.errors.VersionMismatch: VERSION MISMATCH (table b'birds', key b'tit')
        """
        return self._client._run(self._commands.cas(key, version, value, ttl))

    def add(self, key: Key, value: Any, ttl: Optional[Ttl] = None) -> bool:
        """Adds an element only if it is absent. False: it is there, and stays as it is."""
        return self._client._run(self._commands.add(key, value, ttl))

    def restore(self, key: Key, value: Any, version: int, ttl: Optional[Ttl] = None) -> bool:
        """Stores an element with the version that it had elsewhere, in a new table that is filled in this way alone.
        False: the key keeps its value, since its version is not lower. Raises :class:`spindle.OutOfRange` for a version
        that was perhaps given out before, or that no server can have given.

        >>> birds = client.table("birds", create=True)
        >>> copy = client.table("birds-copy", create=True)
        >>> birds.set("rook", "black")
        >>> entry = birds.entry("rook")
        >>> copy.restore("rook", entry.value, entry.version, entry.ttl), copy.entry("rook") == entry
        (True, True)
        """
        return self._client._run(self._commands.restore(key, value, version, ttl))

    def touch(self, key: Key, ttl: Ttl) -> bool:
        """Gives an element a new TTL. False: there is none."""
        return self._client._run(self._commands.touch(key, ttl))

    @overload
    def get_and_touch(self, key: Key, ttl: Ttl) -> Optional[V]: ...
    @overload
    def get_and_touch(self, key: Key, ttl: Ttl, default: D) -> Union[V, D]: ...
    def get_and_touch(self, key: Key, ttl: Ttl, default: Any = None) -> Any:
        """The value, whose element gets a new TTL. For sessions: one request instead of two."""
        return self._client._run(self._commands.get_and_touch(key, ttl, default))

    def incr(self, key: Key, delta: int = 1, ttl: Optional[Ttl] = None) -> int:
        """Adds to a number, and returns the sum. An absent element counts as 0 and gets the TTL. An element that
        exists keeps its deadline.

        >>> hits = client.table("hits", create=True)
        >>> hits.incr("page"), hits.incr("page", 10), hits.incr("page", -1)
        (1, 11, 10)
        """
        return self._client._run(self._commands.incr(key, delta, ttl))

    def decr(self, key: Key, delta: int = 1, ttl: Optional[Ttl] = None) -> int:
        """Subtracts from a number, and returns the difference. Otherwise as :meth:`incr`."""
        return self.incr(key, -delta_of(delta), ttl)

    def rate_limit(self, key: Key, n: int, seconds: Ttl) -> RateLimit:
        """Counts a use, and says whether it is one of the first ``n`` of its window. The window begins with the first
        use and lasts so many seconds. The result is true or false, and has ``remaining`` and ``retry_after``.

        >>> calls = client.table("calls", create=True)
        >>> [calls.rate_limit("ada", 2, 60) for _ in range(2)]
        [RateLimit(True, remaining=1, retry_after=0.0), RateLimit(True, remaining=0, retry_after=0.0)]
        >>> limit = calls.rate_limit("ada", 2, 60)
        >>> bool(limit), 59 < limit.retry_after <= 60
        (False, True)
        """
        used = self.incr(key, 1, seconds)
        if used <= n:
            return RateLimit(True, n - used, 0.0)
        try:
            entry = self.entry(key)
        except KeyNotFound:
            # The window has just ended.
            return RateLimit(False, 0, 0.0)
        return RateLimit(False, 0, float("inf") if entry.ttl is None else entry.ttl)

    # -------------------------------------------------------------------------------------------------- many elements

    def get_many(self, keys: Iterable[Key]) -> Dict[Key, V]:
        """The elements that are there, 1,024 in a request.

        >>> birds = client.table("birds", create=True)
        >>> birds.set_many({"owl": "brown", "crow": "black"})
        >>> found = birds.get_many(["owl", "crow", "dodo"])
        >>> sorted(found.items())
        [('crow', b'black'), ('owl', b'brown')]
        """
        found: Dict[Key, V] = {}
        for part in self._client._run_many(self._commands.get_many(list(keys))):
            found.update(part)
        return found

    def set_many(self, elements: ManyElements, ttl: Optional[Ttl] = None) -> None:
        """Adds or replaces elements, 1,024 or about a megabyte in a request. Each is atomic, but not all together.
        ``elements`` is a mapping, or pairs of a key and a value.
        """
        self._client._run_many(self._commands.set_many(elements, ttl))

    def delete_many(self, keys: Iterable[Key]) -> int:
        """Deletes elements, and returns how many there were."""
        return sum(self._client._run_many(self._commands.delete_many(list(keys))))

    def scan(self, prefix: Key = b"") -> Iterator[K]:
        """The keys that begin with ``prefix``, read page by page. A key that is there from the first page to the last
        is shown. One that comes or goes meanwhile may be, and a key may come twice.
        """
        cursor = b""
        while True:
            cursor, keys = self._client._run(self._commands.page_of_keys(cursor, prefix))
            for key in keys:
                yield key
            if not cursor:
                return

    def keys(self, prefix: Key = b"") -> Iterator[K]:
        """As :meth:`scan`."""
        return self.scan(prefix)

    def items(self, prefix: Key = b"") -> Iterator[Tuple[K, V]]:
        """The elements, as :meth:`scan` shows the keys."""
        cursor = b""
        while True:
            cursor, elements = self._client._run(self._commands.page_of_items(cursor, prefix))
            for element in elements:
                yield element
            if not cursor:
                return

    def __iter__(self) -> Iterator[K]:
        return self.scan()

    def drop(self) -> None:
        """Deletes the table with its elements."""
        self._client.delete_table(self.name)

    # -------------------------------------------------------------------------------------------------------- recipes

    def lock(self, name: Key, ttl: Ttl = 10, timeout: Optional[float] = None) -> "Lock":
        """A lock that all clients share, for ``with``. It ends with its TTL if its holder dies, and is extended
        in the background while the holder lives. ``timeout`` bounds the wait for it, and then
        :class:`spindle.Timeout` is raised. :class:`spindle.Lock` has ``acquire`` and ``release`` too.

        >>> locks = client.table("locks", create=True)
        >>> with locks.lock("printer", ttl=10) as lock:
        ...     lock.version > 0
        True
        """
        return Lock(self._client, LockState(self._commands, name, ttl), timeout)

    def cached(
        self, ttl: Ttl, key: Optional[Callable[..., Key]] = None, wait: Ttl = 10
    ) -> Callable[[Callable[..., V]], Callable[..., V]]:
        """A decorator that keeps results of a function in the table. While one client computes a value, all
        others wait for it, for ``wait`` seconds at most. ``key`` makes a key of the arguments. Without it equal
        arguments are one key, in all processes. If the table cannot keep or return a result, the function computes it,
        and :attr:`cache_failures` counts that.

        >>> cache = client.table("cache", create=True, codec=spindle.JSON)
        >>> @cache.cached(ttl=60)
        ... def square(number):
        ...     print("computing")
        ...     return number * number
        >>> square(3), square(3)
        computing
        (9, 9)
        """

        def decorate(function: Callable[..., V]) -> Callable[..., V]:
            keys = CallKeys(function, key)
            note = functools.partial(self._cache_failures.note, keys.name)

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> V:
                cached = Cached(self._commands, keys.of(args, kwargs), ttl, wait)
                is_usable, is_found = True, False
                try:
                    try:
                        is_found, value = self._client._flow(cached.find(monotonic, note))
                    except Error as error:
                        is_usable = False
                        note(error)
                    if not is_found:
                        value = function(*args, **kwargs)
                        if is_usable:
                            self._keep(cached.store(value), note)
                finally:
                    if cached.lock.may_hold:
                        self._keep(cached.lock.give_up(), note)
                result: V = value
                return result

            return wrapper

        return decorate

    @to_its_end
    def _keep(self, flow: Flow[None], note: Callable[[Exception], None]) -> None:
        """Stores a value, or lets go of a lock. What fails is noted."""
        try:
            self._client._flow(flow)
        except Exception as error:
            note(error)
