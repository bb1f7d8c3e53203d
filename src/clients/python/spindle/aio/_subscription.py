"""Notifications whose link an event loop polls. ``spindle/_subscription.py`` has the same class with threads."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Deque, Generic, Optional, TypeVar

from .._notifications import Notification, NotificationPump
from ..errors import Error
from ._concurrency import Event
from ._watch import Watch

K = TypeVar("K")


class Subscription(Generic[K]):
    """What has come and was not taken yet."""

    def __init__(self, pump: "NotificationPump[K]") -> None:
        self._pump = pump
        self._found: "Deque[Notification[bytes]]" = deque()
        self._fault: Optional[Error] = None
        self._changed = Event()
        self._watch = Watch(asyncio.get_running_loop(), [pump.link], self._turn)
        self._turn()

    def _turn(self) -> None:
        try:
            self._pump.step(monotonic(), self._found)
        except Error as error:
            self._fault = error
            self._stop()
        else:
            self._watch.update()
        self._changed.wake()

    async def _until_begun(self, timeout: float) -> bool:
        deadline = monotonic() + timeout
        while not self._pump.has_begun:
            self._check()
            left = deadline - monotonic()
            if self._pump.problem is not None or left <= 0:
                return False
            await self._changed.wait(left)
        return True

    async def _take(self, timeout: Optional[float]) -> "Optional[Notification[bytes]]":
        """The next notification. None: there was none in time."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self._found:
            self._check()
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                return None
            await self._changed.wait(left)
        return self._found.popleft()

    def _check(self) -> None:
        if self._fault is not None:
            raise self._fault
        self._pump.link.check()

    def _stop(self) -> None:
        if self._pump.link.closed is None:
            self._watch.close()
            self._pump.link.close("these notifications are closed")
            self._changed.wake()


__all__ = ["Subscription"]
