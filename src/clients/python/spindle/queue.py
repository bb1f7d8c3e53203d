# Generated from aio/queue.py by "python unasync.py". Change that file, not this one.
"""A queue of tasks by name, for threads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Iterator, Callable, Dict, Generic, List, Optional
from typing import Sequence, TypeVar, Union, overload

from . import _queues, _spiderq
from ._kv import MISSING, Command, seconds_of
from ._queue_records import PRIORITY, Backoff, BrowsedTask, LentTask, QueueCounts, Rate
from ._queue_records import add_options, backoff_of, name_of
from .codecs import Codec, as_bytes
from .errors import LeaseLost
from ._concurrency import kept
from ._driver import Driver
from ._queue_source import QueueSource
from .worker import Worker

if TYPE_CHECKING:
    from .client import Client

V = TypeVar("V")

# Kicks and purges of many tasks are answered at their end.
SWEEP_SECONDS = 600.0


class QueuedTask(Generic[V]):
    """A task of a queue under a lease. Another worker gets it when the lease ends before it is settled."""

    def __init__(self, queue: "Queue[V]", lent: LentTask, lease: float) -> None:
        self._queue = queue
        self._lent = lent
        self.lease = lease
        self.is_lost = False

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._lent.queue.decode("utf-8", "replace")

    @property
    def key(self) -> bytes:
        """The key."""
        return self._lent.key

    @property
    def value(self) -> V:
        """The value."""
        return self._queue._codec.decode(self._lent.value)

    @property
    def tries(self) -> int:
        """How often it was lent since it was added, kicked or repaid, this time included."""
        return self._lent.tries

    @property
    def lend_key(self) -> int:
        """The fencing token: larger than that of each earlier lease of any task."""
        return self._lent.lend_key

    def __repr__(self) -> str:
        return f"<task {self.key!r} of {self.queue!r}, try {self.tries}>"

    def _check(self, item: int) -> None:
        if item == _queues.NO_ROOM:
            raise _queues.no_room()
        if item != _queues.DONE:
            self.is_lost = True
            raise LeaseLost(f"the lease of {self!r} has ended")

    def _settle(self, item: bytes) -> None:
        self._check((self._queue._run(_queues.settle([item])))[0])

    def done(self) -> None:
        """The task is done: it is gone, with its key and value. Raises :class:`spindle.LeaseLost` if the lease has
        ended, as the following do. A result goes into a table.
        """
        self._settle(_queues.done(self._lent))

    def give_back(self, delay: Optional[float] = None, reason: str = "") -> None:
        """The task has failed, and is ready again after so many seconds. Without a number: after its backoff. When this
        was the last of its tries, it is dead.
        """
        self._settle(_queues.give_back(self._lent, delay, reason))

    def bury(self, reason: str = "") -> None:
        """The task has failed for good: it is dead, until it is kicked or purged."""
        self._settle(_queues.bury(self._lent, reason))

    def undo(self) -> None:
        """The task was not begun. It is ready again, and this was no try."""
        self._settle(_queues.not_begun(self._lent))

    def extend(self, seconds: Optional[float] = None) -> None:
        """The lease ends so many seconds from now. Without a number: as many as it had at first."""
        seconds = self.lease if seconds is None else seconds
        self._check((self._queue._run(_queues.extend([(self._lent, seconds)])))[0])


class Queue(Generic[V]):
    """A durable queue of tasks by name (``--tasks``). Make it with :meth:`spindle.Client.queue`. It is there as long
    as it has a task or a setting. Keys are unique in it.

    >>> mail = client.queue("mail", codec=spindle.JSON)
    >>> mail.add("ada", {"to": "ada"}), mail.add("ada", "twice")
    (True, False)
    >>> task = mail.lend(lease=60, wait=5)
    >>> task.key, task.value, task.tries
    (b'ada', {'to': 'ada'}, 1)
    >>> task.done()
    >>> mail.lend() is None
    True

    A worker. What raises comes back after a second, later after two, four and so on, and is dead after the fifth time:

    >>> sent = queue.Queue()
    >>> @mail.worker(slots=4, tries=5, backoff=(1, 600))
    ... def send(task):
    ...     sent.put_nowait(task.value["to"])
    >>> with send:                            # send.run() works until SIGTERM
    ...     mail.add("bob", {"to": "bob"})
    ...     sent.get()
    True
    'bob'
    """

    def __init__(self, client: "Client", driver: Driver, name: str, codec: Codec[V]) -> None:
        name_of(name)
        self._client = client
        self._driver = driver
        self._codec = codec
        self.name = name

    def __repr__(self) -> str:
        return f"<queue {self.name!r} of {self._client._tasks_address()}>"

    def _run(self, command: Command[Any], seconds: float = 0) -> Any:
        reply = self._driver.call(command[0], self._client.timeout + seconds)
        return _queues.decoded(command, reply, self._client._tasks_address())

    # ---------------------------------------------------------------------------------------------------------- tasks

    def add(
        self,
        key: Union[bytes, str],
        value: Any,
        *,
        front: bool = False,
        priority: int = PRIORITY,
        delay: float = 0,
        tries: Optional[int] = None,
        backoff: Optional[Backoff] = None,
        group: Union[None, bytes, str] = None,
        expires: Optional[float] = None,
    ) -> bool:
        """Adds a task at the tail of its priority, or at its front. It is on disk then. False: there is a task with this
        key, and it stays.

        ``priority``: a smaller one is lent first. ``delay``: the seconds until it is ready. ``tries``: after so many
        leases a task that fails is dead (0: never). ``backoff``: the seconds for which it rests after a failure, or a
        pair of the first pause and the longest one. ``group``: tasks of several groups are lent by turns. ``expires``:
        after so many seconds it is not lent any more.
        """
        options = add_options(priority, delay, tries, backoff, group, expires)
        encoded = self._codec.encode(value)
        return bool((self._run(_queues.add([self.name], as_bytes(key), encoded, front, options)))[0])

    def update(self, key: Union[bytes, str], value: Any) -> bool:
        """Replaces the value of a task, wherever it is. False: there is none."""
        command = _spiderq.update(as_bytes(key), self._codec.encode(value))
        return bool(self._run(_queues.in_queue(self.name, command)))

    def get(self, key: Union[bytes, str]) -> Optional[V]:
        """The value of a task in any state. None: there is none."""
        value = self._run(_queues.in_queue(self.name, _spiderq.lookup(as_bytes(key))))
        return None if value is None else self._codec.decode(value)

    def remove(self, key: Union[bytes, str]) -> bool:
        """Forgets a task with its key and value, whatever its state. False: there is none."""
        return bool(self._run(_queues.in_queue(self.name, _spiderq.remove(as_bytes(key)))))

    def lend(self, lease: float = 60, wait: float = 0) -> Optional[QueuedTask[V]]:
        """The next task, under a lease of so many seconds. The request waits at the server for ``wait`` seconds. None:
        there was no task.
        """
        return next(iter(self.lend_many(1, lease, wait)), None)

    def lend_many(self, count: int, lease: float = 60, wait: float = 0) -> List[QueuedTask[V]]:
        """At most so many tasks: those that are ready, or the first one that is within ``wait`` seconds."""
        seconds = seconds_of(wait, "a wait")
        lent = kept(self._run(_queues.lend([self.name], count, lease, wait), seconds), self._undo)
        return [QueuedTask(self, one, lease) for one in lent]

    def _undo(self, lent: List[LentTask]) -> None:
        if lent:
            self._run(_queues.settle([_queues.not_begun(one) for one in lent]))

    # -------------------------------------------------------------------------------------------------------- the queue

    def counts(self) -> QueueCounts:
        """Its tasks by state, what has happened to them since the server started, and its settings."""
        name = self.name.encode()
        for found, counts in self._client._queues():
            if found == name:
                return counts
        return QueueCounts()

    def browse(
        self, state: str = "ready", group: Union[None, bytes, str] = None, first_bytes: int = 0
    ) -> Iterator[BrowsedTask]:
        """Shows the tasks that are ``"ready"``, ``"delayed"``, ``"lent"``, ``"dead"`` or ``"dropped"``, in order,
        without taking them. A task that keeps its state meanwhile is shown exactly once. ``group=""``: those without a
        group. ``first_bytes``: so many bytes of each value, 1,024 at most.

        >>> mail = client.queue("mail-to-show")
        >>> mail.add("ada", "hello", delay=60)
        True
        >>> [(task.key, task.first) for task in mail.browse("delayed", first_bytes=3)]
        [(b'ada', b'hel')]
        """
        place: Optional[bytes] = _queues.FIRST_PLACE
        while place is not None:
            place, tasks = self._run(_queues.browse(self.name, state, group, place, first_bytes))
            for task in tasks:
                yield task

    def kick(
        self, key: Union[None, bytes, str] = None, *, state: str = "dead", most: Optional[int] = None
    ) -> int:
        """Makes tasks ready, whose tries begin anew: the one of this key, or so many that are ``"dead"`` or
        ``"delayed"``. Without a number: all. Returns how many there were.
        """
        if key is not None:
            return int(self._run(_queues.kick_one(self.name, as_bytes(key))))
        return int(self._run(_queues.kick(self.name, state, most), SWEEP_SECONDS))

    def purge(self, *states: str, older: float = 0) -> int:
        """Removes the tasks that are ``"ready"``, ``"delayed"``, ``"dead"`` or ``"dropped"``, and have been so for
        ``older`` seconds. Returns how many there were.
        """
        return int(self._run(_queues.purge(self.name, states, older), SWEEP_SECONDS))

    def configure(
        self,
        *,
        tries: Optional[int] = MISSING,
        backoff: Optional[Backoff] = MISSING,
        group_limit: Optional[int] = MISSING,
        rate: Optional[Rate] = MISSING,
        sync: Union[None, str, float] = MISSING,
    ) -> None:
        """Changes the settings that are given. None takes one away. ``tries`` and ``backoff`` hold for tasks without
        their own. ``group_limit``: at most so many tasks of a group are lent at a time. ``rate``: a
        :class:`spindle.Rate`. ``sync``: ``"always"``, ``"never"``, or the seconds until a change is on disk.
        """
        given = {"tries": tries, "backoff": backoff, "group_limit": group_limit, "rate": rate, "sync": sync}
        self._run(_queues.configure(self.name, given))

    def pause(self, seconds: float = math.inf) -> None:
        """Lends no tasks for so many seconds, or until :meth:`resume`. Everything else goes on."""
        self._run(_queues.configure(self.name, {"pause": seconds}))

    def resume(self) -> None:
        """Ends a pause."""
        self._run(_queues.configure(self.name, {"pause": None}))

    # --------------------------------------------------------------------------------------------------------- workers

    @overload
    def worker(self, function: Callable[[QueuedTask[V]], Any]) -> Worker[QueuedTask[V]]: ...
    @overload
    def worker(
        self, *, slots: int = 1, lease: float = 60, tries: Optional[int] = None, backoff: Optional[Backoff] = None
    ) -> Callable[[Callable[[QueuedTask[V]], Any]], Worker[QueuedTask[V]]]: ...
    def worker(
        self,
        function: Optional[Callable[[QueuedTask[V]], Any]] = None,
        *,
        slots: int = 1,
        lease: float = 60,
        tries: Optional[int] = None,
        backoff: Optional[Backoff] = None,
    ) -> Any:
        """A decorator, with or without parentheses, that makes a :class:`spindle.Worker` of a function of a
        task. ``slots`` of it run at a time, and no more tasks are lent than slots are free. A lease is extended while its
        function runs. The task is gone when the function returns. When it raises, the task is given back with the last
        line of the exception as the reason. It rests for its backoff, and is dead after its tries. ``backoff`` holds
        in place of those of the task and of the queue. ``tries`` holds beside theirs: the smaller number ends it.
        """
        if tries is not None and tries < 1:
            raise ValueError(f"a worker tries a task once or more, not {tries} times")
        pair = None if backoff is None else backoff_of(backoff)

        def decorate(function: Callable[[QueuedTask[V]], Any]) -> Worker[QueuedTask[V]]:
            return Worker(function, QueueSource(self, lease, tries, pair), slots)

        return decorate if function is None else decorate(function)


__all__ = ["Queue", "QueuedTask"]
