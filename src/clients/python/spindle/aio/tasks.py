"""The tasks of a server, for the tasks of asyncio. See :class:`spindle.Tasks`."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, Generic, Optional, TypeVar, Union

from .. import _spiderq
from .._flows import pauses_of
from .._kv import Command
from .._spiderq import DROP, PENALTY, Lent
from ..codecs import Codec, as_bytes
from ..errors import LeaseLost
from ..tasks import FOREVER, POLL_PAUSES, TaskItem
from ._driver import AsyncDriver
from .worker import Worker

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")
V = TypeVar("V")

class Task(TaskItem[V]):
    """A task under a lease. Another worker gets it when the lease ends before it is repaid."""

    def __init__(self, tasks: "Tasks[V]", lent: Lent, lease: float) -> None:
        super().__init__(lent, tasks._codec, lease)
        self._tasks = tasks

    async def heartbeat(self, seconds: Optional[float] = None) -> None:
        """The lease ends so many seconds from now. Without a number: as many as it had at first. Raises
        :class:`spindle.LeaseLost` if it has ended.
        """
        if not await self._tasks._run(_spiderq.heartbeat(self._lent, self.lease if seconds is None else seconds)):
            self.is_lost = True
            raise LeaseLost(f"the lease of {self!r} has ended")

    async def repay(self, status: str = PENALTY, value: Any = None) -> None:
        """Gives the task back to the queue, with a new value if there is one: ``"penalty"`` further behind,
        ``"reward"`` further ahead, ``"front"`` to the front. ``"drop"`` takes it out of the queue for good. Raises
        :class:`spindle.LeaseLost` if the lease has ended.
        """
        if not await self._tasks._run(self._repayment(status, value)):
            self.is_lost = True
            raise LeaseLost(f"the lease of {self!r} has ended")

    async def done(self, value: Any = None) -> None:
        """The task is done: it leaves the queue, and its key and value stay."""
        await self.repay(DROP, value)


class Tasks(Generic[V]):
    """The tasks of a server (``--tasks``). It is ``client.tasks``. See :class:`spindle.Tasks`.

    >>> async def main():
    ...     async with spindle.aio.Client(endpoint, tasks=tasks) as client:
    ...         await client.tasks.add("page-3", "https://example.net")
    ...         task = await client.tasks.lend(lease=60)
    ...         await task.done()
    ...         return task.key
    >>> asyncio.run(main())
    b'page-3'
    """

    def __init__(self, client: "Client", driver: AsyncDriver, codec: Codec[V]) -> None:
        self._client = client
        self._driver = driver
        self._codec = codec

    def using(self, codec: Codec[T]) -> "Tasks[T]":
        """The same tasks, with another codec for their values."""
        return Tasks(self._client, self._driver, codec)

    async def _run(self, command: Command[T]) -> T:
        request, decode = command
        return decode(await self._driver.call(request, self._client.timeout))

    async def add(self, key: Union[bytes, str], value: Any, front: bool = False) -> bool:
        """Adds a task at the tail of the queue, or at its front. False: there is one with this key, and it stays."""
        return await self._run(_spiderq.add(as_bytes(key), self._codec.encode(value), front))

    async def update(self, key: Union[bytes, str], value: Any) -> bool:
        """Replaces the value of a task, wherever it is. False: there is none."""
        return await self._run(_spiderq.update(as_bytes(key), self._codec.encode(value)))

    async def get(self, key: Union[bytes, str]) -> Optional[V]:
        """The value of a task, also of one that is lent or dropped. None: there is none."""
        value = await self._run(_spiderq.lookup(as_bytes(key)))
        return None if value is None else self._codec.decode(value)

    async def remove(self, key: Union[bytes, str]) -> bool:
        """Forgets a task with its key and value, whatever its state. False: there is none."""
        return await self._run(_spiderq.remove(as_bytes(key)))

    async def count(self) -> int:
        """The tasks that can be lent."""
        return await self._run(_spiderq.count())

    async def stats(self) -> Dict[str, int]:
        """The requests that the server has answered since its start, by kind."""
        return await self._run(_spiderq.stats())

    async def lend(self, lease: float = 60, wait: float = 0) -> Optional[Task[V]]:
        """The next task, under a lease of so many seconds. None: there was none for ``wait`` seconds."""
        deadline = monotonic() + wait
        for pause in pauses_of(*POLL_PAUSES):
            lent = await self._run(_spiderq.lend(lease, False))
            if lent is not None:
                return Task(self, lent, lease)
            left = deadline - monotonic()
            if left <= 0:
                return None
            await asyncio.sleep(min(pause, left))
        raise AssertionError("pauses do not end")

    def worker(
        self, slots: int = 1, lease: float = 60, failed: str = PENALTY
    ) -> Callable[[Callable[[Task[V]], Awaitable[Any]]], Worker[Task[V]]]:
        """A decorator that makes a :class:`spindle.aio.Worker` of a coroutine function of a task. ``slots`` of it run
        at a time. A lease is extended while its function runs. The task is dropped when the function returns, and
        repaid with ``failed`` when it raises.
        """
        if failed not in _spiderq.STATUSES:
            raise ValueError(f"a task is repaid with {', '.join(_spiderq.STATUSES)}, not {failed!r}")

        def decorate(function: Callable[[Task[V]], Awaitable[Any]]) -> Worker[Task[V]]:
            return Worker(function, TaskSource(self, lease, failed), slots)

        return decorate


class TaskSource(Generic[V]):
    """Where a worker's tasks come from: a connection of its own, on which requests wait for tasks.

    When the connection ends, the server takes back what it has lent to it without an answer. The lease of a task whose
    answer is on its way in that moment ends by itself.
    """

    name = "tasks"

    def __init__(self, tasks: Tasks[V], lease: float, failed: str) -> None:
        self.lease: Optional[float] = lease
        self._seconds = lease
        self._tasks = tasks
        self._failed = failed
        self._driver: Optional[AsyncDriver] = None

    def begin(self) -> None:
        """Makes the connection."""
        self._driver = AsyncDriver(self._tasks._client._tasks_address(), self._tasks._client._security)

    async def take(self) -> Optional[Task[V]]:
        """Waits for a task."""
        assert self._driver is not None
        request, decode = _spiderq.lend(self._seconds, True)
        lent = decode(await self._driver.call(request, FOREVER))
        if lent is None:
            # The server ends, or too many wait.
            await asyncio.sleep(POLL_PAUSES[1])
            return None
        return Task(self._tasks, lent, self._seconds)

    async def extend(self, item: Task[V]) -> None:
        """Extends a lease."""
        await item.heartbeat()

    async def done(self, item: Task[V]) -> bool:
        """Drops a task."""
        return await self._tasks._run(item._repayment(DROP, None))

    async def give_back(self, item: Task[V]) -> bool:
        """Repays a task."""
        return await self._tasks._run(item._repayment(self._failed, None))

    def end(self) -> None:
        """Ends the connection."""
        if self._driver is not None:
            self._driver.close()


__all__ = ["Task", "Tasks"]
