"""Workers, for threads: functions that are called with each task or job. :class:`spindle.aio.Worker` is for tasks of
asyncio.

```text
slot      take ──► function ──► done: acknowledged            raised: given back ──► take …
beat      every third of a lease: the leases of all that run are extended
stop      no more is taken; what runs ends; run() returns
```
"""

from __future__ import annotations

import inspect
import logging
import signal
import threading
from time import monotonic
from types import TracebackType
from typing import Any, Callable, Dict, Generic, List, Optional, Protocol, Type, TypeVar

from ._flows import pauses_of
from .errors import Closed, Disconnected, Error, Timeout

T = TypeVar("T")

_log = logging.getLogger("spindle")
# The pauses of a worker whose server is away: at first, and at most.
AWAY_PAUSES = (0.05, 2.0)
# Extensions within a lease.
BEATS = 3


class Source(Protocol[T]):
    """Where a worker's items come from. All methods may be called by any thread."""

    name: str
    lease: Optional[float]
    """The seconds of a lease that is extended. None: it is not."""

    def begin(self) -> None:
        """The worker begins."""

    def take(self) -> Optional[T]:
        """Waits for the next item. None: there was none for a while."""

    def extend(self, item: T) -> None:
        """Extends the lease of an item."""

    def done(self, item: T) -> bool:
        """Acknowledges. False: the lease had ended."""

    def give_back(self, item: T) -> bool:
        """The function has raised. False: the lease had ended."""

    def end(self) -> None:
        """Ends all waiting in :meth:`take`."""


class Worker(Generic[T]):
    """A function with slots that call it. Make it with :meth:`spindle.Tasks.worker` or :meth:`spindle.Jobs.worker`.

    ``run`` works until SIGTERM, SIGINT or :meth:`stop`. ``with worker:`` works in the background. In both cases what
    runs ends first. The function itself stays callable: ``worker(item)``.
    """

    def __init__(self, function: Callable[[T], Any], source: Source[T], slots: int) -> None:
        if slots < 1:
            raise ValueError("a worker has at least one slot")
        if inspect.iscoroutinefunction(function):
            raise TypeError("a worker of threads calls a plain function: coroutine functions are for spindle.aio")
        self.function = function
        self._source = source
        self._slots = slots
        # No more is taken, and no slot runs.
        self._stopped, self._ended = threading.Event(), threading.Event()
        self._beater: Optional[threading.Thread] = None
        self._threads: List[threading.Thread] = []
        self._running: Dict[int, T] = {}
        self._lock = threading.Lock()

    def __call__(self, item: T) -> Any:
        return self.function(item)

    def run(self) -> None:
        """Works until :meth:`stop`. In the main thread also until SIGTERM or SIGINT, whose handlers are put back."""
        is_main = threading.current_thread() is threading.main_thread()
        ends = (signal.SIGTERM, signal.SIGINT) if is_main else ()
        before = {end: signal.signal(end, lambda *_: self._stopped.set()) for end in ends}
        try:
            self.start()
            while not self._stopped.wait(3600):
                pass
        finally:
            self.stop()
            for end, handler in before.items():
                signal.signal(end, handler)

    def start(self) -> None:
        """Begins to work in the background."""
        if self._threads:
            raise Error("a worker works once: make another one")
        self._source.begin()
        self._threads = [
            threading.Thread(target=self._slot, name=f"spindle-slot-{number}", daemon=True)
            for number in range(self._slots)
        ]
        if self._source.lease is not None:
            self._beater = threading.Thread(target=self._beat, name="spindle-beat", daemon=True)
            self._beater.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Takes no more, and waits until what runs has ended. A function that a slot runs may call it too."""
        self._stopped.set()
        self._source.end()
        if threading.current_thread() not in self._threads:
            for thread in self._threads:
                thread.join()
            self._ended.set()
            if self._beater is not None:
                self._beater.join()

    def __enter__(self) -> "Worker[T]":
        self.start()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------------------------------------------- threads

    def _slot(self) -> None:
        away = pauses_of(*AWAY_PAUSES)
        while not self._stopped.is_set():
            try:
                item = self._source.take()
                away = pauses_of(*AWAY_PAUSES)
            except Closed:
                if not self._stopped.is_set():
                    _log.error("the worker of %s ends: its client was closed", self._source.name)
                    self._stopped.set()
                return
            except Error as error:
                _log.warning("the worker of %s gets nothing: %s", self._source.name, error)
                self._stopped.wait(next(away))
                continue
            if item is not None:
                self._work(item)

    def _work(self, item: T) -> None:
        own = threading.get_ident()
        with self._lock:
            self._running[own] = item
        try:
            self.function(item)
            settle = self._source.done
        except BaseException:
            _log.exception("%r of %s is given back", item, self._source.name)
            settle = self._source.give_back
        try:
            self._settle(item, settle)
        except Error as error:
            _log.error("%r of %s is left to the end of its lease: %s", item, self._source.name, error)
        finally:
            with self._lock:
                del self._running[own]

    def _settle(self, item: T, settle: Callable[[T], bool]) -> None:
        """Settles, and tries again while the server is away: the lease is extended meanwhile, as far as that goes."""
        until = monotonic() + (self._source.lease or 60.0)
        is_again = False
        for pause in pauses_of(*AWAY_PAUSES):
            try:
                if not settle(item) and not is_again:
                    _log.warning("the lease of %r of %s had ended", item, self._source.name)
                return
            except (Timeout, Disconnected):
                # It may have been executed. Then the next try says that the lease has ended.
                is_again = True
                if monotonic() >= until:
                    raise
            threading.Event().wait(pause)

    def _beat(self) -> None:
        assert self._source.lease is not None
        while not self._ended.wait(self._source.lease / BEATS):
            with self._lock:
                running = list(self._running.values())
            for item in running:
                try:
                    self._source.extend(item)
                except Error as error:
                    _log.warning("the lease of %r of %s is not extended: %s", item, self._source.name, error)
