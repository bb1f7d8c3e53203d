"""Waiting for results: the notifications of their table wake those who wait."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from celery import states
from celery.backends.asynchronous import BaseResultConsumer
from celery.exceptions import TimeoutError

from ..errors import Disconnected, Malformed, Timeout
from . import deadline

_log = logging.getLogger("spindle")
# Who reads too slowly loses notifications. After so many seconds without one, all results are looked at.
LOOK_SECONDS = 10.0
# A caller without a time-out fails after so many turns without the server. Celery's turns take a second.
AWAY_TURNS = 17


def check_child(child: Any) -> None:
    """Raises if Celery cannot make a result of this. A result that is made and let go is not waited for any more, also by
    those who wait for the same task: a task that is tried again is a child of itself."""
    own, parts = child
    task_id, parent = own if isinstance(own, (list, tuple)) else (own, None)
    if not isinstance(task_id, str):
        raise ValueError("the id of a child is no text")
    if parent:
        check_child(parent)
    for part in parts or ():
        check_child(part)


def _late(error: Exception) -> TimeoutError:
    return TimeoutError(f"The operation timed out: {error}")


class ResultConsumer(BaseResultConsumer):
    """Receives the results that are waited for. One thread waits for notifications, and the others for that thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._notifications: Any = None
        # The tasks that are waited for, by the key of their result.
        self._tasks: Dict[bytes, Any] = {}
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._received = threading.Condition()
        self._looked = time.monotonic()
        # Results may have come without a notification.
        self._is_behind = False
        # Why the server was away in the last turn. Each thread that waits reads it.
        self._away: Optional[Exception] = None

    def on_after_fork(self) -> None:
        """The child makes its own connection."""
        self._begin()

    def start(self, initial_task_id: Any, **kwargs: Any) -> None:
        """Begins to receive."""
        self.consume_from(initial_task_id)

    def stop(self) -> None:
        """Receives no more."""
        with self._lock:
            if self._notifications is not None:
                self._notifications.close()
                self._notifications = None

    def on_wait_for_pending(self, result: Any, timeout: Optional[float] = None, **kwargs: Any) -> None:
        """Takes the results that are there already."""
        try:
            with deadline.within(timeout):
                # One look, and no pause after it.
                for meta in result._iter_meta(**{**kwargs, "interval": 0}):
                    if meta is not None:
                        self.on_state_change(meta, None)
        except (Disconnected, Timeout) as error:
            if timeout is None:
                raise
            raise _late(error) from None

    def drain_events_until(self, p: Any, timeout: Optional[float] = None, on_interval: Any = None) -> Iterator[Any]:
        """Waits for results. Raises Celery's TimeoutError when the time is over. It says if the server is away."""
        turns_away = 0
        try:
            for turn in super().drain_events_until(p, timeout=timeout, on_interval=on_interval):
                away = self._away
                turns_away = turns_away + 1 if away is not None else 0
                if away is not None and timeout is None and turns_away >= AWAY_TURNS:
                    raise Disconnected(str(away)) from None
                yield turn
        except socket.timeout:
            away = self._away
            if away is None:
                raise
            raise _late(away) from None

    def on_state_change(self, meta: Any, message: Any) -> None:
        """A task has another state."""
        super().on_state_change(meta, message)
        if meta["status"] in states.READY_STATES:
            self.cancel_for(meta["task_id"])

    def consume_from(self, task_id: Any) -> None:
        """The result of this task is waited for."""
        if self._process != os.getpid():
            # Not every version says that the process is a child.
            self._begin()
        self._tasks[self._key(task_id)] = task_id

    def cancel_for(self, task_id: Any) -> None:
        """The result of this task is not waited for any more."""
        self._tasks.pop(self._key(task_id), None)

    def _key(self, task_id: Any) -> bytes:
        key: bytes = self.backend.key_of(self.backend.get_key_for_task(task_id))
        return key

    def drain_events(self, timeout: Optional[float] = None) -> None:
        """Waits for a result. Raises ``socket.timeout`` if there is none in time, and returns if the server is away."""
        if not self._tasks:
            time.sleep(timeout or 0)
            return
        if not self._reading.acquire(blocking=False):
            with self._received:
                self._received.wait(1.0 if timeout is None else timeout)
            return
        try:
            with deadline.within(timeout):
                self._turn(timeout)
        finally:
            self._reading.release()
            with self._received:
                self._received.notify_all()

    def _turn(self, timeout: Optional[float]) -> None:
        try:
            self._receive(timeout)
        except (Disconnected, Timeout) as error:
            self._away = error
            time.sleep(min(1.0, deadline.left()))
        except socket.timeout:
            self._away = None
            raise
        else:
            self._away = None

    def _receive(self, timeout: Optional[float]) -> None:
        self._subscribe()
        if self._is_behind:
            self._look()
            return
        try:
            found = self._notifications.get(timeout)
        except Timeout:
            self._is_behind = time.monotonic() - self._looked >= LOOK_SECONDS
            raise socket.timeout from None
        self._is_behind = found.kind == "missed"
        if found.kind == "updated":
            # Another thread may have ended its waiting.
            task_id = self._tasks.get(found.key)
            if task_id is not None:
                # Until the request has succeeded.
                self._is_behind = True
                self._take([(found.key, task_id)], [self.backend.get(found.key)])
                self._is_behind = False

    def _subscribe(self) -> None:
        """The notifications begin when somebody waits first. Results that came before are looked at."""
        if self._notifications is None:
            found = self.backend.notifications()
            with self._lock:
                self._notifications, self._is_behind = found, True

    def _look(self) -> None:
        """Looks at all results that are waited for."""
        tasks = list(self._tasks.items())
        self._take(tasks, self.backend.mget([key for key, _ in tasks]) if tasks else [])
        self._looked, self._is_behind = time.monotonic(), False

    def _take(self, tasks: List[Tuple[bytes, Any]], values: List[Optional[bytes]]) -> None:
        for (_, task_id), value in zip(tasks, values):
            if value is not None:
                self.on_state_change(self._decoded(task_id, value), None)

    def _decoded(self, task_id: Any, value: bytes) -> Any:
        """A result. One that cannot be read is a failure of its own task: this thread waits for those of others too."""
        try:
            meta = self.backend.decode_result(value)
            if meta["task_id"] != task_id:
                raise ValueError("it is that of another task")
            for child in meta.get("children") or ():
                check_child(child)
            return meta
        except Exception as error:
            _log.error("the result of task %s cannot be read: %r", task_id, error)
            failure = Malformed(f"the result of task {task_id} cannot be read: {error!r}")
            return {"task_id": task_id, "status": states.FAILURE, "result": failure, "traceback": None, "children": []}


__all__ = ["ResultConsumer"]
