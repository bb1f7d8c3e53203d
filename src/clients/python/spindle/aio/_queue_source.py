"""Where a worker's tasks come from, if they are those of a queue by name. For tasks of asyncio."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Generic, List, Optional, Tuple, TypeVar

from .. import _queues
from .._failures import pause_after
from ._driver import Driver

if TYPE_CHECKING:
    from .queue import Queue, QueuedTask

V = TypeVar("V")

_log = logging.getLogger("spindle")
# A request waits for so long at the server, and is then made anew.
WAIT_SECONDS = 30.0


class QueueSource(Generic[V]):
    """A connection of its own, on which each free slot of the worker waits for one task.

    When the connection ends, the server takes back what it has lent to it without an answer.
    """

    def __init__(
        self, queue: "Queue[V]", lease: float, tries: Optional[int], backoff: Optional[Tuple[float, float]]
    ) -> None:
        self.name = f"queue {queue.name}"
        self.lease: Optional[float] = lease
        self._seconds = lease
        self._queue = queue
        self._tries = tries
        self._backoff = backoff
        self._own: "Optional[Queue[V]]" = None

    def begin(self) -> None:
        """Makes the connection."""
        client = self._queue._client
        driver = Driver(client._tasks_address(), client._security, is_patient=True)
        self._own = type(self._queue)(client, driver, self._queue.name, self._queue._codec)

    async def take(self) -> "Optional[QueuedTask[V]]":
        """Waits for a task. One that has had its tries already, since its workers died, is dead."""
        assert self._own is not None
        task = await self._own.lend(self._seconds, WAIT_SECONDS)
        if task is not None:
            # Its function may still run when this connection has ended.
            task._queue = self._queue
        if task is None or self._tries is None or task.tries <= self._tries:
            return task
        _log.error("%r is dead: its lease ran out %d times", task, self._tries)
        await self._settle(task, _queues.bury(task._lent, "lease ran out"))
        return None

    async def _settle(self, task: "QueuedTask[V]", item: bytes) -> bool:
        found: Any = await self._queue._run(_queues.settle([item]))
        return bool(found[0] == _queues.DONE)

    async def extend(self, items: "List[QueuedTask[V]]") -> "List[QueuedTask[V]]":
        """Extends the leases, in one request."""
        found = await self._queue._run(_queues.extend([(item._lent, self._seconds) for item in items]))
        lost = [item for item, result in zip(items, found) if result == _queues.REFUSED]
        for item in lost:
            item.is_lost = True
        if _queues.NO_ROOM in found:
            raise _queues.no_room()
        return lost

    async def done(self, item: "QueuedTask[V]") -> bool:
        """The task is gone."""
        return await self._settle(item, _queues.done(item._lent))

    async def give_back(self, item: "QueuedTask[V]", pause: float, reason: str) -> bool:
        """The task rests, or is dead."""
        if self._tries is not None and item.tries >= self._tries:
            return await self._settle(item, _queues.bury(item._lent, reason))
        delay = None if self._backoff is None else pause_after(item.tries, *self._backoff)
        return await self._settle(item, _queues.give_back(item._lent, delay, reason))

    def id_of(self, item: "QueuedTask[V]") -> bytes:
        """The key."""
        return item.key

    def end(self) -> None:
        """Ends the connection."""
        if self._own is not None:
            self._own._driver.close()


__all__ = ["QueueSource"]
