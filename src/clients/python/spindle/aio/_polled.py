"""A mirror's copy whose links an event loop polls. ``spindle/_polled.py`` has the same class with a thread."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Optional, TypeVar

from .._feed import Position
from .._mirror import MirrorPump, MirrorView
from ..codecs import Codec
from ._concurrency import Event
from ._watch import Watch

K = TypeVar("K")
V = TypeVar("V")


class PolledView(MirrorView[K, V]):
    """The copy, which the event loop follows until it is closed."""

    def __init__(self, pump: MirrorPump, keys: Codec[K], values: Codec[V]) -> None:
        super().__init__(pump, keys, values)
        self._changed = Event()
        self._watch = Watch(asyncio.get_running_loop(), pump.links, self._turn)
        self._turn()

    async def _until_exact(self, timeout: float) -> Optional[Position]:
        """Waits until the copy is exact. None: it was not in time."""
        deadline = monotonic() + timeout
        while True:
            position = self._exact_position()
            left = deadline - monotonic()
            if position is not None or left <= 0:
                return position
            await self._changed.wait(left)

    async def _stop(self) -> None:
        if not self._pump.closed:
            self._watch.close()
            self._pump.close()
            self._changed.wake()

    def _turn(self) -> None:
        if self._pump.closed:
            return
        changes = self._step()
        if self.exact or self._pump.problem is not None:
            self._changed.wake()
        self._watch.update(self._pump.due())
        if changes:
            self._notify(changes)


__all__ = ["PolledView"]
