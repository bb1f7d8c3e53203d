"""Notifications whose link the thread polls that waits for them. ``aio/_subscription.py`` has an event loop."""

from __future__ import annotations

import select
import threading
from collections import deque
from time import monotonic
from typing import Deque, Generic, Optional, TypeVar

from ._link import abandon_in_child
from ._notifications import Notification, NotificationPump

K = TypeVar("K")

# How long a closed subscription may be waited for: the thread that waits looks so often.
_LOOK_SECONDS = 0.25


class Subscription(Generic[K]):
    """What has come and was not taken yet. Threads may share it: one waits for the link at a time."""

    def __init__(self, pump: "NotificationPump[K]") -> None:
        self._pump = pump
        self._found: "Deque[Notification[bytes]]" = deque()
        self._lock = threading.Lock()
        abandon_in_child(self)

    def _abandon(self, reason: str) -> None:
        """After a fork, in the child: no thread has the lock."""
        self._lock = threading.Lock()

    def _until_begun(self, timeout: float) -> bool:
        deadline = monotonic() + timeout
        with self._lock:
            while not self._pump.has_begun:
                if self._pump.problem is not None or monotonic() >= deadline:
                    return False
                self._turn(deadline)
            return True

    def _take(self, timeout: Optional[float]) -> "Optional[Notification[bytes]]":
        """The next notification. None: there was none in time."""
        deadline = float("inf") if timeout is None else monotonic() + timeout
        while True:
            with self._lock:
                if not self._found:
                    self._turn(deadline)
                if self._found:
                    return self._found.popleft()
                if monotonic() >= deadline:
                    return None

    def _turn(self, deadline: float) -> None:
        """Waits until the link has something to do, for a while, and does it."""
        link, poll = self._pump.link, select.poll()
        link.check()
        self._pump.step(monotonic(), self._found)
        if self._found or self._pump.has_begun and monotonic() >= deadline:
            return
        for fd, events in link.interests():
            poll.register(fd, events)
        left = min(deadline, link.due(), monotonic() + _LOOK_SECONDS) - monotonic()
        if poll.poll(max(0.0, left * 1000 + 1)):
            self._pump.step(monotonic(), self._found)

    def _stop(self) -> None:
        with self._lock:
            if self._pump.link.closed is None:
                self._pump.link.close("these notifications are closed")


__all__ = ["Subscription"]
