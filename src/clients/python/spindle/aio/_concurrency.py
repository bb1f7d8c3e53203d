"""What tasks of asyncio need besides a driver. ``spindle/_concurrency.py`` has the same names for threads."""

from __future__ import annotations

import asyncio
import inspect
import signal
from asyncio import sleep
from contextlib import contextmanager, nullcontext as Mutex
from typing import Any, Callable, Coroutine, Iterator, List, Optional, Set

# A function of a worker was cancelled, or has failed.
CANCELLED = asyncio.CancelledError
FAILED = Exception


class Event:
    """A flag that is set once. Unlike that of asyncio it may be made before there is an event loop."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: "Set[asyncio.Future[None]]" = set()

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Sets it, and ends all waiting."""
        self._is_set = True
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until it is set, for ``timeout`` seconds at most. Returns whether it is set."""
        if not self._is_set:
            future: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await asyncio.wait([future], timeout=timeout)
            finally:
                self._waiting.discard(future)
        return self._is_set


class Routine:
    """A function that runs in the background, once it is started."""

    def __init__(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._run = run

    def start(self) -> None:
        """Begins to run it."""
        self._task = asyncio.ensure_future(self._run())

    def is_current(self) -> bool:
        """Whether the caller runs in it."""
        return asyncio.current_task() is self._task

    async def join(self) -> None:
        """Waits for its end."""
        await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Ends it. A request that it waits for may be executed."""
        self._task.cancel()
        await self.join()


@contextmanager
def signals_set(event: Event) -> Iterator[None]:
    """SIGTERM and SIGINT set the event. The event loop has no handlers of these signals afterwards."""
    loop = asyncio.get_running_loop()
    ends: List[signal.Signals] = []
    try:
        for end in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(end, event.set)
                ends.append(end)
            except (ValueError, RuntimeError, NotImplementedError):
                # Not the main thread.
                pass
        yield
    finally:
        for end in ends:
            loop.remove_signal_handler(end)


def check_function(function: Callable[..., Any]) -> None:
    """Raises TypeError if a worker cannot call the function."""
    if inspect.isfunction(function) and not inspect.iscoroutinefunction(function):
        raise TypeError("a worker of spindle.aio awaits a coroutine function: make it with async def")


__all__ = ["CANCELLED", "FAILED", "Event", "Mutex", "Routine", "check_function", "signals_set", "sleep"]
