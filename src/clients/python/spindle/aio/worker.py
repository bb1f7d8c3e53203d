"""Workers, for tasks of asyncio: functions that are called with each task or job.

```text
slot      take ──► function ──► done: acknowledged            raised: given back, for a pause ──► take …
beat      every third of a lease: the leases of all that run are extended together
stop      no more is taken; what runs ends; run() returns
```
"""

from __future__ import annotations

import logging
from time import monotonic
from types import TracebackType
from typing import Any, Awaitable, Callable, Generic, Hashable, List, Optional, Protocol, Type, TypeVar

from .. import _queues
from .._failures import Failures, reason_of
from .._flows import pauses_of
from ..errors import Closed, Disconnected, Error, Timeout
from ._concurrency import CANCELLED, FAILED, Event, Mutex, Routine, check_function, signals_set, sleep

T = TypeVar("T")

_log = logging.getLogger("spindle")
# The pauses of a worker whose server is away: at first, and at most.
AWAY_PAUSES = (0.05, 2.0)
# Extensions within a lease.
BEATS = 3
# Leases that are extended at once.
EXTEND_MAX = _queues.LIST_MAX


class Source(Protocol[T]):
    """Where a worker's items come from. All methods may be called by any of the worker's tasks of asyncio."""

    name: str
    lease: Optional[float]
    """The seconds of a lease that is extended. None: it is not."""

    def begin(self) -> None:
        """The worker begins."""

    async def take(self) -> Optional[T]:
        """Waits for the next item. None: there was none for a while."""

    async def extend(self, items: List[T]) -> List[T]:
        """Extends the leases of these items, at most ``EXTEND_MAX`` of them, within one time-out. Returns those whose lease
        had ended.
        """

    async def done(self, item: T) -> bool:
        """Acknowledges. False: the lease had ended."""

    async def give_back(self, item: T, pause: float, reason: str) -> bool:
        """The function has raised, and the item comes back: after so many seconds, if the source has no backoff of its
        own. False: the lease had ended.
        """

    def id_of(self, item: T) -> Hashable:
        """What an item has in common with its earlier tries."""

    def end(self) -> None:
        """Ends all waiting in :meth:`take`."""


class Worker(Generic[T]):
    """A coroutine function with slots that call it. Make it with :meth:`spindle.aio.Queue.worker`,
    :meth:`spindle.aio.Tasks.worker` or :meth:`spindle.aio.Jobs.worker`.

    ``await worker.run()`` works until SIGTERM, SIGINT or :meth:`stop`. ``async with worker:`` works in the background.
    In both cases what runs ends first. The function itself stays callable: ``await worker(item)``.
    """

    def __init__(self, function: Callable[[T], Awaitable[Any]], source: Source[T], slots: int) -> None:
        if slots < 1:
            raise ValueError("a worker has at least one slot")
        check_function(function)
        self.function = function
        self._source = source
        self._count = slots
        # No more is taken, and nothing runs any more.
        self._stopped, self._ended = Event(), Event()
        self._slots: List[Routine] = []
        # Slots that have not ended. Guarded by the lock.
        self._left = slots
        self._beater: Optional[Routine] = None
        # What runs, and what has failed. Guarded by the lock.
        self._running: List[T] = []
        self._failures = Failures()
        self._lock = Mutex()

    def __call__(self, item: T) -> Awaitable[Any]:
        return self.function(item)

    def __repr__(self) -> str:
        return f"<worker of {self._source.name}, {self._count} slots>"

    async def run(self) -> None:
        """Works until :meth:`stop`. In the main thread also until SIGTERM or SIGINT, which it handles meanwhile."""
        with signals_set(self._stopped):
            try:
                self.start()
                await self._stopped.wait()
            finally:
                await self.stop()

    def start(self) -> None:
        """Begins to work in the background."""
        if self._slots:
            raise Error("a worker works once: make another one")
        self._source.begin()
        self._slots = [Routine(f"spindle-slot-{number}", self._slot) for number in range(self._count)]
        if self._source.lease is not None:
            self._beater = Routine("spindle-beat", self._beat)
            self._beater.start()
        for slot in self._slots:
            slot.start()

    async def stop(self) -> None:
        """Takes no more, and waits until what runs has ended. A function that a slot runs may call it too."""
        self._stopped.set()
        self._source.end()
        if not any(slot.is_current() for slot in self._slots):
            for slot in self._slots:
                await slot.join()
            self._ended.set()
            if self._beater is not None:
                await self._beater.stop()

    async def __aenter__(self) -> "Worker[T]":
        self.start()
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.stop()

    # ------------------------------------------------------------------------------------------------------ routines

    async def _slot(self) -> None:
        try:
            await self._take_and_work()
        finally:
            with self._lock:
                self._left -= 1
                if not self._left:
                    # They may have ended without a call of stop().
                    self._stopped.set()

    async def _take_and_work(self) -> None:
        away = pauses_of(*AWAY_PAUSES)
        while not self._stopped.is_set():
            try:
                item = await self._source.take()
                away = pauses_of(*AWAY_PAUSES)
            except Closed:
                if not self._stopped.is_set():
                    _log.error("the worker of %s ends: its client was closed", self._source.name)
                    self._stopped.set()
                return
            except Error as error:
                _log.warning("the worker of %s gets nothing: %s", self._source.name, error)
                await self._stopped.wait(next(away))
                continue
            if item is not None:
                await self._work(item)

    async def _work(self, item: T) -> None:
        with self._lock:
            self._running.append(item)
        try:
            try:
                await self.function(item)
            except CANCELLED:
                try:
                    await self._source.give_back(item, 0.0, "cancelled")
                except Error:
                    # Its lease ends by itself.
                    pass
                raise
            except FAILED as error:
                settle = self._fail(item, reason_of(error))
            else:
                settle = self._succeed(item)
            await self._settle(item, settle)
        except Error as error:
            _log.error("%r of %s is left to the end of its lease: %s", item, self._source.name, error)
        finally:
            self._end_running(item)

    def _succeed(self, item: T) -> Callable[[T], Awaitable[bool]]:
        with self._lock:
            self._failures.forget(self._source.id_of(item))
        return self._source.done

    def _fail(self, item: T, reason: str) -> Callable[[T], Awaitable[bool]]:
        # An extension would replace the pause.
        self._end_running(item)
        with self._lock:
            failure = self._failures.note(self._source.id_of(item), monotonic())
        if failure.is_logged:
            _log.exception("%r of %s fails, %d times by now", item, self._source.name, failure.times)
        return lambda item: self._source.give_back(item, failure.pause, reason)

    def _end_running(self, item: T) -> None:
        with self._lock:
            if item in self._running:
                self._running.remove(item)

    async def _settle(self, item: T, settle: Callable[[T], Awaitable[bool]]) -> None:
        """Settles, and tries again while the server is away: the lease is extended meanwhile, as far as that goes."""
        until = monotonic() + (self._source.lease or 60.0)
        is_again = False
        for pause in pauses_of(*AWAY_PAUSES):
            try:
                if not await settle(item) and not is_again:
                    _log.warning("the lease of %r of %s had ended", item, self._source.name)
                return
            except (Timeout, Disconnected):
                # It may have been executed. Then the next try says that the lease has ended.
                is_again = True
                if monotonic() >= until:
                    raise
            await sleep(pause)

    async def _beat(self) -> None:
        assert self._source.lease is not None
        while not await self._ended.wait(self._source.lease / BEATS):
            with self._lock:
                running = list(self._running)
            for at in range(0, len(running), EXTEND_MAX):
                await self._extend(running[at : at + EXTEND_MAX])

    async def _extend(self, items: List[T]) -> None:
        try:
            for item in await self._source.extend(items):
                # One that is settled meanwhile has no lease any more.
                if item in self._running:
                    _log.warning("the lease of %r of %s has ended", item, self._source.name)
        except Error as error:
            _log.warning("the leases of %d items of %s are not extended: %s", len(items), self._source.name, error)
