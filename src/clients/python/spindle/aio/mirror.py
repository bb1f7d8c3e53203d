"""A mirror, for the tasks of asyncio: an exact copy of a table. See :class:`spindle.Mirror`."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Optional, Set, Type, TypeVar

from .._feed import Position
from .._mirror import MirrorPump, MirrorView
from ..codecs import Codec
from ..errors import Closed
from ._watch import Watch

K = TypeVar("K")
V = TypeVar("V")


class Mirror(MirrorView[K, V]):
    """An exact copy of a table, that follows the server's feed. It is a mapping: reading costs no request and is not
    awaited. Make it with :meth:`spindle.aio.Client.mirror`. Listeners are called in the event loop.

    >>> async def main():
    ...     async with spindle.aio.Client(endpoint) as client:
    ...         birds = await client.table("finches", create=True)
    ...         await birds.set("siskin", "green")
    ...         async with await client.mirror("finches", codec=spindle.TEXT) as mirror:
    ...             await mirror.wait_exact(timeout=10)
    ...             return mirror["siskin"]
    >>> asyncio.run(main())
    'green'
    """

    def __init__(self, pump: MirrorPump, keys: Codec[K], values: Codec[V]) -> None:
        super().__init__(pump, keys, values)
        self._waiting: "Set[asyncio.Future[None]]" = set()
        self._watch = Watch(asyncio.get_running_loop(), pump.links, self._turn)
        self._turn()

    async def wait_exact(self, timeout: float) -> Position:
        """Waits until the copy is exact, and returns its position. See :meth:`spindle.Mirror.wait_exact`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            if self._pump.closed:
                raise Closed("this mirror is closed, or was made before a fork")
            position = self.at
            if self.exact and position is not None:
                return position
            if self._pump.problem is not None:
                raise self._pump.problem
            left = deadline - loop.time()
            if left <= 0:
                raise self._late(timeout)
            future: "asyncio.Future[None]" = loop.create_future()
            self._waiting.add(future)
            try:
                await asyncio.wait([future], timeout=left)
            finally:
                self._waiting.discard(future)

    async def close(self) -> None:
        """Stops following. The copy stays readable, and is not exact."""
        if not self._pump.closed:
            self._watch.close()
            self._pump.close()
            self._end_waiting()

    async def __aenter__(self) -> "Mirror[K, V]":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    def _end_waiting(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def _turn(self) -> None:
        if self._pump.closed:
            return
        changes = self._step()
        if self.exact or self._pump.problem is not None:
            self._end_waiting()
        self._watch.update(self._pump.due())
        if changes:
            self._tell(changes)
