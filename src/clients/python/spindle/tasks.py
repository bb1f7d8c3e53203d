# Generated from aio/tasks.py by "python unasync.py". Change that file, not this one.
"""The tasks of a server, for threads."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, Callable, Dict, Generic, List, Optional, TypeVar, Union, overload

from . import _spiderq
from ._flows import pauses_of
from ._kv import Command, seconds_of
from ._spiderq import DROP, FRONT, PENALTY, REWARD, Lent
from .codecs import Codec, as_bytes
from .errors import LeaseLost, UnknownCommand
from ._concurrency import sleep
from ._driver import Driver
from .worker import Worker

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")
V = TypeVar("V")

_log = logging.getLogger("spindle")
DEFAULT_PORT = 5557
# The pauses between two looks at an empty queue: at first, and at most.
POLL_PAUSES = (0.005, 0.25)
# A request that waits for a task has no time-out of its own.
FOREVER = 1e9


class Task(Generic[V]):
    """A task under a lease. Another worker gets it when the lease ends before it is repaid."""

    def __init__(self, tasks: "Tasks[V]", lent: Lent, lease: float) -> None:
        self._tasks = tasks
        self._lent = lent
        self._codec = tasks._codec
        self.lease = lease
        self.is_lost = False

    @property
    def key(self) -> bytes:
        """The key."""
        return self._lent.key

    @property
    def value(self) -> V:
        """The value that was lent."""
        return self._codec.decode(self._lent.value)

    @property
    def lend_key(self) -> int:
        """The fencing token: larger than that of each earlier lease of any task."""
        return self._lent.lend_key

    def __repr__(self) -> str:
        return f"<task {self.key!r}, lend key {self.lend_key}>"

    def _repayment(self, status: str, value: Any) -> Command[bool]:
        return _spiderq.repay(self._lent, self._lent.value if value is None else self._codec.encode(value), status)

    def _check(self, is_held: bool) -> None:
        if not is_held:
            self.is_lost = True
            raise LeaseLost(f"the lease of {self!r} has ended")

    def heartbeat(self, seconds: Optional[float] = None) -> None:
        """The lease ends so many seconds from now. Without a number: as many as it had at first. Raises
        :class:`spindle.LeaseLost` if it has ended.
        """
        seconds = self.lease if seconds is None else seconds
        self._check(self._tasks._run(_spiderq.heartbeat(self._lent, seconds)))

    def repay(self, status: str = PENALTY, value: Any = None) -> None:
        """Gives the task back to the queue, with a new value if there is one: ``"penalty"`` further behind,
        ``"reward"`` further ahead, ``"front"`` to the front. ``"drop"`` takes it out of the queue for good, and keeps its
        key and value until :meth:`Tasks.remove`. Raises :class:`spindle.LeaseLost` if the lease has ended.
        """
        self._check(self._tasks._run(self._repayment(status, value)))

    def done(self) -> None:
        """The task is done: it is gone, with its key and value. Raises :class:`spindle.LeaseLost` if the lease has ended.
        A result goes into a table.
        """
        self._check(self._tasks._done(self._lent))


class Tasks(Generic[V]):
    """The tasks of a server (``--tasks``): keys with values, and one queue with priorities from which each is lent
    under a lease. It is ``client.tasks``; ``client.tasks.using(codec)`` has other values than bytes.

    >>> tasks = client.tasks.using(spindle.JSON)
    >>> tasks.add("page-1", {"url": "https://example.com"}), tasks.add("page-1", "twice")
    (True, False)
    >>> task = tasks.lend(lease=60)
    >>> task.key, task.value
    (b'page-1', {'url': 'https://example.com'})
    >>> task.done()
    >>> tasks.lend() is None
    True

    A work queue. Four slots of each process take tasks. A lease is extended while its function runs. A task is gone when
    the function returns, and comes back after a pause when it raises:

    >>> seen = queue.Queue()
    >>> @client.tasks.worker(slots=4, lease=30)
    ... def fetch(task):
    ...     seen.put_nowait(task.value)
    >>> with fetch:                           # fetch.run() works until SIGTERM
    ...     client.tasks.add("page-2", "https://example.org")
    ...     seen.get()
    True
    b'https://example.org'
    """

    def __init__(self, client: "Client", driver: Driver, codec: Codec[V]) -> None:
        self._client = client
        self._driver = driver
        self._codec = codec

    def __repr__(self) -> str:
        return f"<tasks of {self._client._tasks_address()}>"

    def using(self, codec: Codec[T]) -> "Tasks[T]":
        """The same tasks, with another codec for their values."""
        return Tasks(self._client, self._driver, codec)

    def _run(self, command: Command[T]) -> T:
        request, decode = command
        return decode(self._driver.call(request, self._client.timeout))

    def _done(self, lent: Lent) -> bool:
        """A task is done. False: its lease had ended."""
        try:
            return self._run(_spiderq.done(lent))
        except UnknownCommand:
            if not self._client._is_old_logged:
                self._client._is_old_logged = True
                _log.warning("the server of tasks is older than this package: a task that is done takes three requests")
        is_held = self._run(_spiderq.repay(lent, b"", DROP))
        if is_held:
            self._run(_spiderq.remove(lent.key))
        return is_held

    def add(self, key: Union[bytes, str], value: Any, front: bool = False) -> bool:
        """Adds a task at the tail of the queue, or at its front. False: there is one with this key, and it stays."""
        return self._run(_spiderq.add(as_bytes(key), self._codec.encode(value), front))

    def update(self, key: Union[bytes, str], value: Any) -> bool:
        """Replaces the value of a task, wherever it is. False: there is none."""
        return self._run(_spiderq.update(as_bytes(key), self._codec.encode(value)))

    def get(self, key: Union[bytes, str]) -> Optional[V]:
        """The value of a task, also of one that is lent or dropped. None: there is none."""
        value = self._run(_spiderq.lookup(as_bytes(key)))
        return None if value is None else self._codec.decode(value)

    def remove(self, key: Union[bytes, str]) -> bool:
        """Forgets a task with its key and value, whatever its state. False: there is none."""
        return self._run(_spiderq.remove(as_bytes(key)))

    def count(self) -> int:
        """The tasks that can be lent."""
        return self._run(_spiderq.count())

    def stats(self) -> Dict[str, int]:
        """The requests that the server has answered since its start, by kind."""
        return self._run(_spiderq.stats())

    def lend(self, lease: float = 60, wait: float = 0) -> Optional[Task[V]]:
        """The next task, under a lease of so many seconds. None: there was none for ``wait`` seconds."""
        deadline = monotonic() + seconds_of(wait, "a wait")
        for pause in pauses_of(*POLL_PAUSES):
            lent = self._run(_spiderq.lend(lease, False))
            if lent is not None:
                return Task(self, lent, lease)
            left = deadline - monotonic()
            if left <= 0:
                return None
            sleep(min(pause, left))
        raise AssertionError("pauses do not end")

    @overload
    def worker(self, function: Callable[[Task[V]], Any]) -> Worker[Task[V]]: ...
    @overload
    def worker(
        self, *, slots: int = 1, lease: float = 60, failed: Optional[str] = None
    ) -> Callable[[Callable[[Task[V]], Any]], Worker[Task[V]]]: ...
    def worker(
        self,
        function: Optional[Callable[[Task[V]], Any]] = None,
        *,
        slots: int = 1,
        lease: float = 60,
        failed: Optional[str] = None,
    ) -> Any:
        """A decorator, with or without parentheses, that makes a :class:`spindle.Worker` of a function of a
        task. ``slots`` of it run at a time. A lease is extended while its function runs. The task is gone when the
        function returns. When it raises, the task comes back after a second, and after twice as long each further time,
        up to 5 minutes. With ``failed`` it is repaid so at once.
        """
        if failed is not None and failed not in _spiderq.STATUSES:
            raise ValueError(f"a task is repaid with {', '.join(_spiderq.STATUSES)}, not {failed!r}")

        def decorate(function: Callable[[Task[V]], Any]) -> Worker[Task[V]]:
            return Worker(function, TaskSource(self, lease, failed), slots)

        return decorate if function is None else decorate(function)


class TaskSource(Generic[V]):
    """Where a worker's tasks come from: a connection of its own, on which requests wait for tasks.

    When the connection ends, the server takes back what it has lent to it without an answer. The lease of a task whose
    answer is on its way in that moment ends by itself.
    """

    name = "tasks"

    def __init__(self, tasks: Tasks[V], lease: float, failed: Optional[str]) -> None:
        self.lease: Optional[float] = lease
        self._seconds = lease
        self._tasks = tasks
        self._failed = failed
        self._driver: Optional[Driver] = None

    def begin(self) -> None:
        """Makes the connection."""
        self._driver = Driver(self._tasks._client._tasks_address(), self._tasks._client._security, is_patient=True)

    def take(self) -> Optional[Task[V]]:
        """Waits for a task."""
        assert self._driver is not None
        request, decode = _spiderq.lend(self._seconds, True)
        lent = decode(self._driver.call(request, FOREVER))
        if lent is None:
            # The server ends, or too many wait.
            sleep(POLL_PAUSES[1])
            return None
        return Task(self._tasks, lent, self._seconds)

    def extend(self, items: List[Task[V]]) -> List[Task[V]]:
        """Extends the leases. The requests are sent together."""
        commands = [_spiderq.heartbeat(item._lent, self._seconds) for item in items]
        replies = self._tasks._driver.call_many([request for request, _ in commands], self._tasks._client.timeout)
        lost = [item for item, (_, decode), reply in zip(items, commands, replies) if not decode(reply)]
        for item in lost:
            item.is_lost = True
        return lost

    def done(self, item: Task[V]) -> bool:
        """A task is done."""
        return self._tasks._done(item._lent)

    def give_back(self, item: Task[V], pause: float, reason: str) -> bool:
        """Repays a task, or has its lease end after the pause."""
        if self._failed is not None:
            return self._tasks._run(item._repayment(self._failed, None))
        return self._tasks._run(_spiderq.heartbeat(item._lent, pause))

    def id_of(self, item: Task[V]) -> bytes:
        """The key."""
        return item.key

    def end(self) -> None:
        """Ends the connection."""
        if self._driver is not None:
            self._driver.close()


__all__ = ["DROP", "FRONT", "PENALTY", "REWARD", "Task", "Tasks"]
