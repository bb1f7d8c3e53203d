"""Workers, for the tasks of asyncio. See :class:`spindle.Worker`."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
from time import monotonic
from types import TracebackType
from typing import Any, Awaitable, Callable, Generic, List, Optional, Protocol, Set, Type, TypeVar

from .._flows import pauses_of
from ..errors import Closed, Disconnected, Error, Timeout
from ..worker import AWAY_PAUSES, BEATS

T = TypeVar("T")

_log = logging.getLogger("spindle")


class Source(Protocol[T]):
    """Where a worker's items come from. See :class:`spindle.worker.Source`."""

    name: str
    lease: Optional[float]

    def begin(self) -> None: ...
    async def take(self) -> Optional[T]: ...
    async def extend(self, item: T) -> None: ...
    async def done(self, item: T) -> bool: ...
    async def give_back(self, item: T) -> bool: ...
    def end(self) -> None: ...


class Worker(Generic[T]):
    """A coroutine function with slots that call it. Make it with :meth:`spindle.aio.Tasks.worker` or
    :meth:`spindle.aio.Jobs.worker`.

    ``await worker.run()`` works until SIGTERM, SIGINT or :meth:`stop`. ``async with worker:`` works in the background.
    In both cases what runs ends first. The function itself stays callable: ``await worker(item)``.
    """

    def __init__(self, function: Callable[[T], Awaitable[Any]], source: Source[T], slots: int) -> None:
        if slots < 1:
            raise ValueError("a worker has at least one slot")
        if inspect.isfunction(function) and not inspect.iscoroutinefunction(function):
            raise TypeError("a worker of spindle.aio awaits a coroutine function: make it with async def")
        self.function = function
        self._source = source
        self._slots = slots
        self._is_stopped = False
        self._tasks: "List[asyncio.Task[None]]" = []
        self._beater: "Optional[asyncio.Task[None]]" = None
        self._running: List[T] = []
        # Slots that wait for an item.
        self._waiting: "Set[asyncio.Task[None]]" = set()

    def __call__(self, item: T) -> Awaitable[Any]:
        return self.function(item)

    async def run(self) -> None:
        """Works until :meth:`stop`, SIGTERM or SIGINT. The event loop's handlers of these signals are taken away."""
        loop = asyncio.get_running_loop()
        ends: List[signal.Signals] = []
        try:
            for end in (signal.SIGTERM, signal.SIGINT):
                try:
                    loop.add_signal_handler(end, self._end_taking)
                    ends.append(end)
                except (ValueError, RuntimeError, NotImplementedError):
                    # Not the main thread.
                    pass
            self.start()
            await asyncio.wait(self._tasks)
        finally:
            await self.stop()
            for end in ends:
                loop.remove_signal_handler(end)

    def start(self) -> None:
        """Begins to work in the background."""
        if self._tasks:
            raise Error("a worker works once: make another one")
        self._source.begin()
        self._tasks = [asyncio.ensure_future(self._slot()) for _ in range(self._slots)]
        if self._source.lease is not None:
            self._beater = asyncio.ensure_future(self._beat(self._source.lease))

    def _end_taking(self) -> None:
        self._is_stopped = True
        self._source.end()
        for task in self._waiting:
            task.cancel()

    async def stop(self) -> None:
        """Takes no more, and waits until what runs has ended. A function that a slot runs may call it too."""
        self._end_taking()
        if asyncio.current_task() not in self._tasks:
            if self._tasks:
                await asyncio.wait(self._tasks)
            if self._beater is not None:
                self._beater.cancel()
                await asyncio.wait([self._beater])

    async def __aenter__(self) -> "Worker[T]":
        self.start()
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.stop()

    # --------------------------------------------------------------------------------------------------------- tasks

    async def _slot(self) -> None:
        own = asyncio.current_task()
        assert own is not None
        away = pauses_of(*AWAY_PAUSES)
        while not self._is_stopped:
            self._waiting.add(own)
            try:
                item = await self._source.take()
                away = pauses_of(*AWAY_PAUSES)
            except Closed:
                if not self._is_stopped:
                    _log.error("the worker of %s ends: its client was closed", self._source.name)
                    self._end_taking()
                return
            except Error as error:
                _log.warning("the worker of %s gets nothing: %s", self._source.name, error)
                await asyncio.sleep(next(away))
                continue
            finally:
                self._waiting.discard(own)
            if item is not None:
                await self._work(item)

    async def _work(self, item: T) -> None:
        self._running.append(item)
        try:
            await self.function(item)
            settle = self._source.done
        except asyncio.CancelledError:
            await self._source.give_back(item)
            raise
        except Exception:
            _log.exception("%r of %s is given back", item, self._source.name)
            settle = self._source.give_back
        try:
            await self._settle(item, settle)
        except Error as error:
            _log.error("%r of %s is left to the end of its lease: %s", item, self._source.name, error)
        finally:
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
            await asyncio.sleep(pause)

    async def _beat(self, lease: float) -> None:
        while True:
            await asyncio.sleep(lease / BEATS)
            for item in list(self._running):
                try:
                    await self._source.extend(item)
                except Error as error:
                    _log.warning("the lease of %r of %s is not extended: %s", item, self._source.name, error)
