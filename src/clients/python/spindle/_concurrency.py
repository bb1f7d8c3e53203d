"""What threads need besides a driver. ``spindle/aio/_concurrency.py`` has the same names for tasks of asyncio."""

from __future__ import annotations

import inspect
import signal
import threading
from contextlib import contextmanager
from threading import Event, Lock as Mutex
from time import sleep
from typing import Any, Callable, Iterator, Optional, Tuple, Type, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# A function of a worker was cancelled, which no thread is, or has failed.
CANCELLED: Tuple[Type[BaseException], ...] = ()
FAILED = BaseException


class Turn:
    """One thread has it at a time, and the others wait."""

    def __init__(self) -> None:
        self._lock = Mutex()
        self._owner: Optional[threading.Thread] = None

    def is_mine(self) -> bool:
        """Whether the caller has it."""
        return self._owner is threading.current_thread()

    def may_give(self) -> bool:
        """Whether the caller may give it: it has it, or the thread that has it is over."""
        owner = self._owner
        return owner is not None and (owner is threading.current_thread() or not owner.is_alive())

    def take(self, timeout: Optional[float]) -> bool:
        """Waits for it. False: another one had it for ``timeout`` seconds."""
        bound = -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        if not self._lock.acquire(timeout=bound):
            return False
        self._owner = threading.current_thread()
        return True

    def give(self) -> None:
        """Gives it to one of those that wait."""
        self._owner = None
        self._lock.release()


class Routine(threading.Thread):
    """A function that runs in the background, once it is started."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        super().__init__(target=run, name=name, daemon=True)

    def is_current(self) -> bool:
        """Whether the caller runs in it."""
        return threading.current_thread() is self

    def stop(self) -> None:
        """Waits for its end. It has an event that says so."""
        self.join()


@contextmanager
def signals_set(event: Event) -> Iterator[None]:
    """In the main thread, SIGTERM and SIGINT set the event. The handlers are put back afterwards."""
    is_main = threading.current_thread() is threading.main_thread()
    ends = (signal.SIGTERM, signal.SIGINT) if is_main else ()
    before = {end: signal.signal(end, lambda *_: event.set()) for end in ends}
    try:
        yield
    finally:
        for end, handler in before.items():
            signal.signal(end, handler)


def to_its_end(function: F) -> F:
    """A thread is not cancelled."""
    return function


def kept(result: T, undo: Callable[[T], None]) -> T:
    """A thread is not cancelled, so nothing is undone."""
    return result


def check_function(function: Callable[..., Any]) -> None:
    """Raises TypeError if a worker cannot call the function."""
    if not callable(function):
        raise TypeError(f"a worker calls a function, not {function!r}")
    if inspect.iscoroutinefunction(function):
        raise TypeError("a worker of threads calls a plain function: coroutine functions are for spindle.aio")


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
