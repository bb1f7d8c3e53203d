"""The client, for tasks of asyncio."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, List, Optional, Sequence, Tuple, Type, TypeVar
from typing import Union, overload

from .. import _events, _kv, _notifications, _queues
from .._flows import Flow, Pause, make_table
from .._jobs import Place, Tls, context_of
from .._kv import Command, Key, TableCommands
from .._link import Curve, Security, abandon_in_child, endpoint_of, full_endpoint
from .._mirror import MirrorPump, feed_command
from .._notifications import NotificationPump
from .._queue_records import PRIORITY, Backoff, QueueCounts, add_options
from ..codecs import BYTES, Codec, as_bytes
from ..errors import Error, Timeout
from ._concurrency import Mutex, sleep
from ._driver import Driver
from ._exchange import LATE, exchange
from .events import Events
from .jobs import Jobs
from .mirror import Mirror
from .notifications import Notifications
from .queue import Queue, QueuedTask
from .table import Table
from .tasks import DEFAULT_PORT, Tasks
from .worker import Worker

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

# Requests that are sent before the first reply is waited for: enough to keep the server busy, and far less than it
# holds for one client.
WINDOW = 8


class Client:
    """A connection to a server. Tasks of asyncio may share it: their requests go over one connection, without waiting
    for each other.

    ``endpoint`` is that of the server's ``--kv``, such as ``localhost:5555`` or ``ipc:///run/spindle``. The connection is made when it is used, and again when it is lost.
    Each request has ``timeout`` seconds. When they are over, :class:`spindle.Timeout` is raised and the client stays
    usable. A request that is on its way when the connection is lost raises :class:`spindle.Disconnected` at once, and
    :class:`spindle.ConnectionRefused` if no server listens there.
    ``publish``, ``tasks``, ``jobs``, ``events`` and ``feed`` are the endpoints of the other services, if they are used.

    A server with ``--users`` wants ``user`` and ``password``, or ``curve`` with the keys of a user, which encrypts
    too. Jobs and events have no CURVE. They take ``user`` and ``password``, encrypted with ``tls``, which is an
    ``ssl.SSLContext`` or the path of the certificates to trust.

    >>> async with spindle.aio.Client(endpoint) as client:
    ...     birds = await client.table("birds", create=True)
    ...     await birds.set("heron", "grey")
    ...     await birds.get("heron")
    b'grey'

    Make it after a fork, not before. A client of the parent process raises :class:`spindle.Closed` in the child.
    """

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:5555",
        *,
        timeout: float = 2.0,
        user: Optional[str] = None,
        password: Optional[str] = None,
        curve: Optional[Curve] = None,
        feed: Optional[str] = None,
        publish: Optional[str] = None,
        tasks: Optional[str] = None,
        jobs: Optional[str] = None,
        events: Optional[str] = None,
        tls: Optional[Tls] = None,
    ) -> None:
        self.endpoint = full_endpoint(endpoint)
        self.timeout = _kv.seconds_of(timeout, "a time-out")
        self._security = Security.of(user, password, curve)
        self._feed = feed and full_endpoint(feed)
        self._publish = publish and full_endpoint(publish)
        self._tasks_endpoint = tasks and full_endpoint(tasks)
        self._jobs_address = jobs
        self._events_address = events
        self._tls = context_of(tls)
        self._mirrors: "weakref.WeakValueDictionary[int, Mirror[Any, Any]]" = weakref.WeakValueDictionary()
        self._subscriptions: "weakref.WeakSet[Notifications[Any]]" = weakref.WeakSet()
        self._tasks: Optional[Tasks[bytes]] = None
        # Whether it was logged that the server of tasks is an older one.
        self._is_old_logged = False
        self._lock = Mutex()
        self._driver = Driver(self.endpoint, self._security)
        abandon_in_child(self)

    def _abandon(self, reason: str) -> None:
        """After a fork, in the child: nobody has the lock."""
        self._lock = Mutex()

    def __repr__(self) -> str:
        return f"<client of {self.endpoint}>"

    async def close(self) -> None:
        """Ends the connection, the mirrors and the notifications. Calls that wait raise :class:`spindle.Closed`."""
        self._driver.close()
        with self._lock:
            tasks = self._tasks
        if tasks is not None:
            tasks._driver.close()
        for mirror in list(self._mirrors.values()):
            await mirror.close()
        for found in list(self._subscriptions):
            await found.close()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------------------ services

    @overload
    async def table(self, name: Key, *, create: bool = False) -> Table[bytes, bytes]: ...
    @overload
    async def table(self, name: Key, *, create: bool = False, codec: Codec[V]) -> Table[bytes, V]: ...
    @overload
    async def table(self, name: Key, *, create: bool = False, keys: Codec[K]) -> Table[K, bytes]: ...
    @overload
    async def table(self, name: Key, *, create: bool = False, codec: Codec[V], keys: Codec[K]) -> Table[K, V]: ...
    async def table(
        self, name: Key, *, create: bool = False, codec: Codec[Any] = BYTES, keys: Codec[Any] = BYTES
    ) -> Table[Any, Any]:
        """A table. With ``create`` it is made if it does not exist. ``codec`` decodes its values, ``keys`` its keys.

        >>> ducks = await client.table("ducks", create=True, codec=spindle.JSON)
        >>> await ducks.set("mallard", {"legs": 2})
        """
        if create:
            await self._flow(make_table(name))
        return Table(self, TableCommands(name, codec, keys))

    @overload
    async def mirror(self, name: Key, *, feed: Optional[str] = None) -> Mirror[bytes, bytes]: ...
    @overload
    async def mirror(self, name: Key, *, feed: Optional[str] = None, codec: Codec[V]) -> Mirror[bytes, V]: ...
    @overload
    async def mirror(self, name: Key, *, feed: Optional[str] = None, keys: Codec[K]) -> Mirror[K, bytes]: ...
    @overload
    async def mirror(
        self, name: Key, *, feed: Optional[str] = None, codec: Codec[V], keys: Codec[K]
    ) -> Mirror[K, V]: ...
    async def mirror(
        self, name: Key, *, feed: Optional[str] = None, codec: Codec[Any] = BYTES, keys: Codec[Any] = BYTES
    ) -> Mirror[Any, Any]:
        """An exact copy of a table that follows the server's feed (``--feed``). The table need not exist yet. ``feed``
        is the feed's endpoint. Without it, and without that of the client, the server is asked. It ends with the
        client.
        """
        endpoint = full_endpoint(feed) if feed else self._feed
        if endpoint is None:
            endpoint = await self._run(feed_command(self.endpoint))
        mirror: Mirror[Any, Any] = Mirror(
            MirrorPump(name, self.endpoint, endpoint, self._security, self.timeout), keys, codec
        )
        self._mirrors[id(mirror)] = mirror
        return mirror

    @overload
    async def notifications(self, name: Key, *, publish: Optional[str] = None) -> Notifications[bytes]: ...
    @overload
    async def notifications(
        self, name: Key, *, publish: Optional[str] = None, keys: Codec[K]
    ) -> Notifications[K]: ...
    async def notifications(
        self, name: Key, *, publish: Optional[str] = None, keys: Codec[Any] = BYTES
    ) -> Notifications[Any]:
        """The changes of a table by key, as the server publishes them (``--publish``). ``publish`` is that endpoint.
        Without it, and without that of the client, it is the usual port of the same host. The server has the
        subscription when this returns. It ends with the client.
        """
        usual = endpoint_of(self.endpoint, _notifications.DEFAULT_PORT)
        endpoint = full_endpoint(publish) if publish else self._publish or usual
        found: Notifications[Any] = Notifications(NotificationPump(name, endpoint, self._security, keys))
        self._subscriptions.add(found)
        await found._begin(self.timeout)
        return found

    @property
    def tasks(self) -> Tasks[bytes]:
        """The tasks of the server (``--tasks``). Their endpoint is the client's ``tasks``, or the usual port of the
        same host.
        """
        with self._lock:
            if self._tasks is None:
                self._check()
                self._tasks = Tasks(self, Driver(self._tasks_address(), self._security), BYTES)
            return self._tasks

    @overload
    def queue(self, name: str) -> Queue[bytes]: ...
    @overload
    def queue(self, name: str, *, codec: Codec[V]) -> Queue[V]: ...
    def queue(self, name: str, *, codec: Codec[Any] = BYTES) -> Queue[Any]:
        """A queue of tasks by name (``--tasks``), which is there with its first task. ``client.tasks`` are those of the
        queue ``default``.
        """
        return Queue(self, self.tasks._driver, name, codec)

    def worker(
        self,
        queue: str,
        *,
        slots: int = 1,
        lease: float = 60,
        tries: Optional[int] = None,
        backoff: Optional[Backoff] = None,
    ) -> Callable[[Callable[[QueuedTask[bytes]], Awaitable[Any]]], Worker[QueuedTask[bytes]]]:
        """A decorator that makes a worker of a queue, as :meth:`spindle.aio.Queue.worker` says it."""
        decorate: Callable[[Callable[[QueuedTask[bytes]], Awaitable[Any]]], Worker[QueuedTask[bytes]]] = (
            self.queue(queue).worker(slots=slots, lease=lease, tries=tries, backoff=backoff)
        )
        return decorate

    async def queues(self) -> Dict[str, QueueCounts]:
        """The queues that the user may read, with their counts and settings.

        >>> await client.queue("parcels").add("one", "to ada")
        True
        >>> counts = await client.queues()
        >>> counts["parcels"].ready
        1
        """
        return {name.decode("utf-8", "replace"): counts async for name, counts in self._queues()}

    async def _queues(self) -> AsyncIterator[Tuple[bytes, QueueCounts]]:
        place: Optional[int] = 0
        while place is not None:
            request, decode = _queues.queues(place)
            place, found = decode(await self.tasks._driver.call(request, self.timeout))
            for one in found:
                yield one

    async def fan_out(
        self,
        queues: Sequence[str],
        key: Key,
        value: Key,
        *,
        front: bool = False,
        priority: int = PRIORITY,
        delay: float = 0,
        tries: Optional[int] = None,
        backoff: Optional[Backoff] = None,
        group: Union[None, bytes, str] = None,
        expires: Optional[float] = None,
    ) -> Dict[str, bool]:
        """Adds a task to each of these queues, 1,024 at most, or to none: they are one write to the disk. The options
        are those of :meth:`spindle.aio.Queue.add`. False: the queue has a task with this key.

        >>> await client.fan_out(["press", "radio"], "story-1", "a heron was seen")
        {'press': True, 'radio': True}
        """
        options = add_options(priority, delay, tries, backoff, group, expires)
        request, decode = _queues.add(queues, as_bytes(key), as_bytes(value), front, options)
        return dict(zip(queues, decode(await self.tasks._driver.call(request, self.timeout))))

    @overload
    def jobs(self, name: str) -> Jobs[bytes]: ...
    @overload
    def jobs(self, name: str, *, codec: Codec[V]) -> Jobs[V]: ...
    def jobs(self, name: str, *, codec: Codec[Any] = BYTES) -> Jobs[Any]:
        """A queue of jobs (``--jobs``), which is there with its first job. Their address is the client's ``jobs``, or
        the usual port of the same host.
        """
        return Jobs(self, name, codec)

    @property
    def events(self) -> Events:
        """The events of the server (``--events``). Their address is the client's ``events``, or the usual port of the
        same host.
        """
        return Events(self)

    def _tasks_address(self) -> str:
        return self._tasks_endpoint or endpoint_of(self.endpoint, DEFAULT_PORT)

    def _jobs_place(self) -> Place:
        return Place.of(self._jobs_address, self.endpoint, self._security, self._tls)

    def _events_place(self) -> Place:
        return _events.place_of(self._events_address, self.endpoint, self._tls)

    def _check(self) -> None:
        """Raises :class:`spindle.Closed` if the client was closed."""
        self._driver.check()

    # ------------------------------------------------------------------------------------------------------- commands

    async def create_table(
        self, name: Key, evicts: Optional[bool] = None, durability: Optional[str] = None
    ) -> None:
        """Makes a table, or raises :class:`spindle.TableExists`.

        ``evicts``: whether its elements may be evicted when the memory is full. ``durability``: what is on disk,
        ``"none"``, ``"soon"`` (within a second, unless the server says otherwise) or ``"always"`` (before it is
        answered). ``None``: as the server says.
        """
        await self._run(_kv.create_table(name, evicts, durability))

    async def alter_table(self, name: Key, durability: str) -> None:
        """Changes what is on disk of a table, as :meth:`create_table` says it. Returns when that holds."""
        await self._run(_kv.alter_table(name, durability))

    async def delete_table(self, name: Key) -> None:
        """Deletes a table with its elements."""
        await self._run(_kv.delete_table(name))

    async def tables(self) -> Dict[str, int]:
        """The name of each table, and how many elements it has.

        >>> nests = await client.table("nests", create=True)
        >>> await nests.set("oak", "")
        >>> tables = await client.tables()
        >>> tables["nests"]
        1
        """
        return await self._run(_kv.tables())

    async def stats(self) -> Dict[str, Any]:
        """The metrics of the server."""
        return await self._run(_kv.stats())

    async def ping(self) -> None:
        """Asks the server for an answer."""
        await self._run(_kv.ping())

    # -------------------------------------------------------------------------------------------------------- running

    async def _run(self, command: Command[T]) -> T:
        request, decode = command
        return decode(await self._driver.call(request, self.timeout))

    async def _run_many(self, commands: Sequence[Command[T]]) -> List[T]:
        results: List[T] = []
        for at in range(0, len(commands), WINDOW):
            window = commands[at : at + WINDOW]
            replies = await self._driver.call_many([request for request, _ in window], self.timeout)
            results += [decode(reply) for (_, decode), reply in zip(window, replies)]
        return results

    async def _exchange(self, place: Place, request: bytes, flag: str) -> bytes:
        """The answer to a request over a connection of its own, to a service that the flag starts."""
        self._check()
        timeout = self.timeout
        try:
            return await exchange(place, request, timeout)
        except LATE:
            raise Timeout(f"no answer of {place} within {timeout:g} s") from None
        except OSError as error:
            raise place.fault(error, flag) from None

    async def _flow(self, flow: Flow[T]) -> T:
        result: Any = None
        error: Optional[Error] = None
        while True:
            try:
                step = flow.send(result) if error is None else flow.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            result, error = None, None
            if isinstance(step, Pause):
                await sleep(step.seconds)
                continue
            try:
                result = await self._run(step)
            except Error as raised:
                error = raised
