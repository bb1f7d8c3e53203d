"""A table, for tasks of asyncio."""

from __future__ import annotations

import functools
from time import monotonic
from typing import TYPE_CHECKING, Any, AsyncIterator, Awaitable, Callable, Dict, Iterable, Optional, Tuple
from typing import TypeVar, Union, overload

from .._call_keys import CallKeys
from .._flows import CacheFailures, Cached, Flow, LockState
from .._kv import MISSING, Elements as ManyElements, Entry, Key, RateLimit, TableCommands, Ttl, delta_of
from ..errors import Error, KeyNotFound
from ._concurrency import to_its_end
from ._elements import Elements
from .lock import Lock

if TYPE_CHECKING:
    from .client import Client

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class Table(Elements[K, V]):
    """A table of the server. Make it with :meth:`spindle.aio.Client.table`. Tasks of asyncio may share it.

    Keys are bytes or text (UTF-8), of 64 bytes at most unless the server has a larger ``--max-key``. Values go through
    the table's codec.

    >>> birds = await client.table("birds", create=True, codec=spindle.TEXT)
    >>> await birds.set("heron", "grey", ttl=60)
    >>> await birds.get("heron"), await birds.get("stork"), await birds.get("stork", "white")
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
    async def get(self, key: Key) -> Optional[V]: ...
    @overload
    async def get(self, key: Key, default: D) -> Union[V, D]: ...
    async def get(self, key: Key, default: Any = None) -> Any:
        """The value, or ``default`` if there is none."""
        return await self._client._run(self._commands.get(key, default))

    async def set(self, key: Key, value: Any, ttl: Optional[Ttl] = None) -> None:
        """Adds or replaces an element. Without a TTL an element that exists keeps its deadline, and a new one has
        none. ``ttl=0`` takes the deadline away. A TTL is in seconds, such as ``1.5``, or a ``timedelta``.
        """
        await self._client._run(self._commands.set(key, value, ttl))

    async def delete(self, key: Key) -> bool:
        """Deletes an element. False: there was none."""
        return await self._client._run(self._commands.delete(key))

    @overload
    async def pop(self, key: Key) -> V: ...
    @overload
    async def pop(self, key: Key, default: D) -> Union[V, D]: ...
    async def pop(self, key: Key, default: Any = MISSING) -> Any:
        """Deletes an element, and returns its value. One of many clients that pop a key gets it. If there is none:
        ``default``, or :class:`spindle.KeyNotFound` without one.
        """
        return await self._client._run(self._commands.remove(key, default))

    async def entry(self, key: Key) -> Entry[V]:
        """The value with its version and its remaining seconds.

        >>> birds = await client.table("birds", create=True)
        >>> await birds.set("wren", "brown")
        >>> entry = await birds.entry("wren")
        >>> entry.ttl is None
        True
        """
        return await self._client._run(self._commands.entry(key))

    async def cas(self, key: Key, version: int, value: Any, ttl: Optional[Ttl] = None) -> int:
        """Replaces the value if the element has this version, and returns the new version. Version 0: only if the
        element is absent. Raises :class:`spindle.VersionMismatch`, whose ``current`` is the version that it has.

        >>> birds = await client.table("birds", create=True)
        >>> await birds.set("tit", "blue")
        >>> entry = await birds.entry("tit")
        >>> version = await birds.cas("tit", entry.version, "great")
        >>> await birds.cas("tit", version - 1, "coal")
        Traceback (most recent call last):
        spindle.errors.VersionMismatch: VERSION MISMATCH (table b'birds', key b'tit')
        """
        return await self._client._run(self._commands.cas(key, version, value, ttl))

    async def add(self, key: Key, value: Any, ttl: Optional[Ttl] = None) -> bool:
        """Adds an element only if it is absent. False: it is there, and stays as it is."""
        return await self._client._run(self._commands.add(key, value, ttl))

    async def restore(self, key: Key, value: Any, version: int, ttl: Optional[Ttl] = None) -> bool:
        """Stores an element with the version that it had elsewhere, in a new table that is filled in this way alone.
        False: the key keeps its value, since its version is not lower. Raises :class:`spindle.OutOfRange` for a version
        that was perhaps given out before, or that no server can have given.

        >>> birds = await client.table("birds", create=True)
        >>> copy = await client.table("birds-copy", create=True)
        >>> await birds.set("rook", "black")
        >>> entry = await birds.entry("rook")
        >>> await copy.restore("rook", entry.value, entry.version, entry.ttl), await copy.entry("rook") == entry
        (True, True)
        """
        return await self._client._run(self._commands.restore(key, value, version, ttl))

    async def touch(self, key: Key, ttl: Ttl) -> bool:
        """Gives an element a new TTL. False: there is none."""
        return await self._client._run(self._commands.touch(key, ttl))

    @overload
    async def get_and_touch(self, key: Key, ttl: Ttl) -> Optional[V]: ...
    @overload
    async def get_and_touch(self, key: Key, ttl: Ttl, default: D) -> Union[V, D]: ...
    async def get_and_touch(self, key: Key, ttl: Ttl, default: Any = None) -> Any:
        """The value, whose element gets a new TTL. For sessions: one request instead of two."""
        return await self._client._run(self._commands.get_and_touch(key, ttl, default))

    async def incr(self, key: Key, delta: int = 1, ttl: Optional[Ttl] = None) -> int:
        """Adds to a number, and returns the sum. An absent element counts as 0 and gets the TTL. An element that
        exists keeps its deadline.

        >>> hits = await client.table("hits", create=True)
        >>> await hits.incr("page"), await hits.incr("page", 10), await hits.incr("page", -1)
        (1, 11, 10)
        """
        return await self._client._run(self._commands.incr(key, delta, ttl))

    async def decr(self, key: Key, delta: int = 1, ttl: Optional[Ttl] = None) -> int:
        """Subtracts from a number, and returns the difference. Otherwise as :meth:`incr`."""
        return await self.incr(key, -delta_of(delta), ttl)

    async def rate_limit(self, key: Key, n: int, seconds: Ttl) -> RateLimit:
        """Counts a use, and says whether it is one of the first ``n`` of its window. The window begins with the first
        use and lasts so many seconds. The result is true or false, and has ``remaining`` and ``retry_after``.

        >>> calls = await client.table("calls", create=True)
        >>> [await calls.rate_limit("ada", 2, 60) for _ in range(2)]
        [RateLimit(True, remaining=1, retry_after=0.0), RateLimit(True, remaining=0, retry_after=0.0)]
        >>> limit = await calls.rate_limit("ada", 2, 60)
        >>> bool(limit), 59 < limit.retry_after <= 60
        (False, True)
        """
        used = await self.incr(key, 1, seconds)
        if used <= n:
            return RateLimit(True, n - used, 0.0)
        try:
            entry = await self.entry(key)
        except KeyNotFound:
            # The window has just ended.
            return RateLimit(False, 0, 0.0)
        return RateLimit(False, 0, float("inf") if entry.ttl is None else entry.ttl)

    # -------------------------------------------------------------------------------------------------- many elements

    async def get_many(self, keys: Iterable[Key]) -> Dict[Key, V]:
        """The elements that are there, 1,024 in a request.

        >>> birds = await client.table("birds", create=True)
        >>> await birds.set_many({"owl": "brown", "crow": "black"})
        >>> found = await birds.get_many(["owl", "crow", "dodo"])
        >>> sorted(found.items())
        [('crow', b'black'), ('owl', b'brown')]
        """
        found: Dict[Key, V] = {}
        for part in await self._client._run_many(self._commands.get_many(list(keys))):
            found.update(part)
        return found

    async def set_many(self, elements: ManyElements, ttl: Optional[Ttl] = None) -> None:
        """Adds or replaces elements, 1,024 or about a megabyte in a request. Each is atomic, but not all together.
        ``elements`` is a mapping, or pairs of a key and a value.
        """
        await self._client._run_many(self._commands.set_many(elements, ttl))

    async def delete_many(self, keys: Iterable[Key]) -> int:
        """Deletes elements, and returns how many there were."""
        return sum(await self._client._run_many(self._commands.delete_many(list(keys))))

    async def scan(self, prefix: Key = b"") -> AsyncIterator[K]:
        """The keys that begin with ``prefix``, read page by page. A key that is there from the first page to the last
        is shown. One that comes or goes meanwhile may be, and a key may come twice.
        """
        cursor = b""
        while True:
            cursor, keys = await self._client._run(self._commands.page_of_keys(cursor, prefix))
            for key in keys:
                yield key
            if not cursor:
                return

    def keys(self, prefix: Key = b"") -> AsyncIterator[K]:
        """As :meth:`scan`."""
        return self.scan(prefix)

    async def items(self, prefix: Key = b"") -> AsyncIterator[Tuple[K, V]]:
        """The elements, as :meth:`scan` shows the keys."""
        cursor = b""
        while True:
            cursor, elements = await self._client._run(self._commands.page_of_items(cursor, prefix))
            for element in elements:
                yield element
            if not cursor:
                return

    def __aiter__(self) -> AsyncIterator[K]:
        return self.scan()

    async def drop(self) -> None:
        """Deletes the table with its elements."""
        await self._client.delete_table(self.name)

    # -------------------------------------------------------------------------------------------------------- recipes

    def lock(self, name: Key, ttl: Ttl = 10, timeout: Optional[float] = None) -> "Lock":
        """A lock that all clients share, for ``async with``. It ends with its TTL if its holder dies, and is extended
        in the background while the holder lives. ``timeout`` bounds the wait for it, and then
        :class:`spindle.Timeout` is raised. :class:`spindle.aio.Lock` has ``acquire`` and ``release`` too.

        >>> locks = await client.table("locks", create=True)
        >>> async with locks.lock("printer", ttl=10) as lock:
        ...     lock.version > 0
        True
        """
        return Lock(self._client, LockState(self._commands, name, ttl), timeout)

    def cached(
        self, ttl: Ttl, key: Optional[Callable[..., Key]] = None, wait: Ttl = 10
    ) -> Callable[[Callable[..., Awaitable[V]]], Callable[..., Awaitable[V]]]:
        """A decorator that keeps results of a coroutine function in the table. While one client computes a value, all
        others wait for it, for ``wait`` seconds at most. ``key`` makes a key of the arguments. Without it equal
        arguments are one key, in all processes. If the table cannot keep or return a result, the function computes it,
        and :attr:`cache_failures` counts that.

        >>> cache = await client.table("cache", create=True, codec=spindle.JSON)
        >>> @cache.cached(ttl=60)
        ... async def square(number):
        ...     print("computing")
        ...     return number * number
        >>> await square(3), await square(3)
        computing
        (9, 9)
        """

        def decorate(function: Callable[..., Awaitable[V]]) -> Callable[..., Awaitable[V]]:
            keys = CallKeys(function, key)
            note = functools.partial(self._cache_failures.note, keys.name)

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> V:
                cached = Cached(self._commands, keys.of(args, kwargs), ttl, wait)
                is_usable, is_found = True, False
                try:
                    try:
                        is_found, value = await self._client._flow(cached.find(monotonic, note))
                    except Error as error:
                        is_usable = False
                        note(error)
                    if not is_found:
                        value = await function(*args, **kwargs)
                        if is_usable:
                            await self._keep(cached.store(value), note)
                finally:
                    if cached.lock.may_hold:
                        await self._keep(cached.lock.give_up(), note)
                result: V = value
                return result

            return wrapper

        return decorate

    @to_its_end
    async def _keep(self, flow: Flow[None], note: Callable[[Exception], None]) -> None:
        """Stores a value, or lets go of a lock. What fails is noted."""
        try:
            await self._client._flow(flow)
        except Exception as error:
            note(error)
