"""What tasks of asyncio need besides a driver. ``spindle/_concurrency.py`` has the same names for threads."""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
from asyncio import sleep
from contextlib import contextmanager, nullcontext as Mutex
from time import monotonic
from typing import Any, Callable, Coroutine, Iterator, List, Optional, Set, TypeVar, cast

from ..errors import Error

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

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
        self.wake()

    def wake(self) -> None:
        """Ends all waiting without setting it."""
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


class Turn:
    """One of the tasks of asyncio has it at a time, and the others wait."""

    def __init__(self) -> None:
        self._owner: "Optional[asyncio.Task[Any]]" = None
        self._given = Event()

    def is_mine(self) -> bool:
        """Whether the caller has it."""
        return self._owner is not None and self._owner is asyncio.current_task()

    def may_give(self) -> bool:
        """Whether the caller may give it: it has it, or the task that has it is over, as in ``asyncio.wait_for``."""
        return self._owner is not None and (self.is_mine() or self._owner.done())

    async def take(self, timeout: Optional[float]) -> bool:
        """Waits for it. False: another one had it for ``timeout`` seconds."""
        end = None if timeout is None else monotonic() + timeout
        while self._owner is not None:
            left = None if end is None else end - monotonic()
            if left is not None and left <= 0:
                return False
            await self._given.wait(left)
        self._owner = asyncio.current_task()
        return True

    def give(self) -> None:
        """Gives it to one of those that wait."""
        self._owner = None
        self._given.wake()


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


def to_its_end(function: F) -> F:
    """Such a coroutine function runs to its end, also if its caller is cancelled meanwhile. The cancellation counts
    after that.
    """

    @functools.wraps(function)
    async def run(*args: Any) -> Any:
        task = asyncio.ensure_future(function(*args))
        cancelled: Optional[asyncio.CancelledError] = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is None:
            return task.result()
        if not task.cancelled():
            # Otherwise asyncio says that nobody has seen it.
            task.exception()
        raise cancelled

    return cast(F, run)


# Calls whose callers were cancelled. The event loop itself holds no task.
_LEFT: "Set[asyncio.Task[None]]" = set()


async def kept(call: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, None]]) -> T:
    """What a call brings. If its caller is cancelled meanwhile, the call goes on, and what it brings is undone."""
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        left = asyncio.ensure_future(_undo(task, undo))
        _LEFT.add(left)
        left.add_done_callback(_LEFT.discard)
        raise


async def _undo(task: "asyncio.Task[T]", undo: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    try:
        await undo(await task)
    except Error:
        # The server has noticed that the connection has ended.
        pass


def check_function(function: Callable[..., Any]) -> None:
    """Raises TypeError if a worker cannot call the function."""
    if not callable(function):
        raise TypeError(f"a worker calls a function, not {function!r}")
    if inspect.isfunction(function) and not inspect.iscoroutinefunction(function):
        raise TypeError("a worker of spindle.aio awaits a coroutine function: make it with async def")


__all__ = [
    "CANCELLED",
    "FAILED",
    "Event",
    "Mutex",
    "Routine",
    "Turn",
    "check_function",
    "kept",
    "signals_set",
    "sleep",
    "to_its_end",
]
