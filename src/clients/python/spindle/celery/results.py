"""Waiting for results: the notifications of their table wake those who wait."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from celery import states
from celery.backends.asynchronous import BaseResultConsumer

from ..errors import Malformed, Timeout

_log = logging.getLogger("spindle")
# Who reads too slowly loses notifications. After so many seconds without one, all results are looked at.
LOOK_SECONDS = 10.0


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

    def on_wait_for_pending(self, result: Any, **kwargs: Any) -> None:
        """Takes the results that are there already."""
        # One look, and no pause after it.
        for meta in result._iter_meta(**{**kwargs, "interval": 0}):
            if meta is not None:
                self.on_state_change(meta, None)

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
        with self._lock:
            if self._notifications is None:
                self._notifications = self.backend.notifications()
            self._tasks[self._key(task_id)] = task_id

    def cancel_for(self, task_id: Any) -> None:
        """The result of this task is not waited for any more."""
        self._tasks.pop(self._key(task_id), None)

    def _key(self, task_id: Any) -> bytes:
        key: bytes = self.backend.key_of(self.backend.get_key_for_task(task_id))
        return key

    def drain_events(self, timeout: Optional[float] = None) -> None:
        """Waits for a result. Raises ``socket.timeout`` if there is none in time."""
        if self._notifications is None:
            time.sleep(timeout or 0)
            return
        if not self._reading.acquire(blocking=False):
            with self._received:
                self._received.wait(1.0 if timeout is None else timeout)
            return
        try:
            self._receive(timeout)
        finally:
            self._reading.release()
            with self._received:
                self._received.notify_all()

    def _receive(self, timeout: Optional[float]) -> None:
        try:
            found = self._notifications.get(timeout)
        except Timeout:
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._look()
            raise socket.timeout from None
        if found.kind == "missed":
            self._look()
        elif found.kind == "updated":
            # Another thread may have ended its waiting.
            task_id = self._tasks.get(found.key)
            if task_id is not None:
                self._take([(found.key, task_id)], [self.backend.get(found.key)])

    def _look(self) -> None:
        """Looks at all results that are waited for."""
        self._looked = time.monotonic()
        tasks = list(self._tasks.items())
        self._take(tasks, self.backend.mget([key for key, _ in tasks]) if tasks else [])

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
