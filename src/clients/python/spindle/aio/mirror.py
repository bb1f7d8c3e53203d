"""A mirror, for tasks of asyncio: an exact copy of a table."""

from __future__ import annotations

from types import TracebackType
from typing import Optional, Type, TypeVar

from .._feed import Position
from .._mirror import MirrorChange
from ._polled import PolledView

K = TypeVar("K")
V = TypeVar("V")


class Mirror(PolledView[K, V]):
    """An exact copy of a table in this process, that follows the server's feed (``--feed``). It is a mapping: reading
    costs no request. Make it with :meth:`spindle.aio.Client.mirror`.

    The copy is *exact* at a position of the feed if it has all that was published before. Gaps, lost connections,
    another start of the server, and the deletion and re-creation of its table end with an exact copy again. Until then
    the old copy stays readable, and ``exact`` is False. Digests of the server check the copy.

    >>> birds = await client.table("birds", create=True, codec=spindle.TEXT)
    >>> await birds.set("heron", "grey")
    >>> mirror = await client.mirror("birds", codec=spindle.TEXT, keys=spindle.TEXT)
    >>> position = await mirror.wait_exact(timeout=10)
    >>> position.sequence, dict(mirror)
    (2, {'heron': 'grey'})

    A live dashboard: a function is called with each change, in the event loop of the mirror.

    >>> shown = asyncio.Queue()
    >>> @mirror.on_change
    ... def show(change):
    ...     shown.put_nowait(f"{change.key} is {change.value} ({change.cause})")
    >>> await birds.set("stork", "white")
    >>> await shown.get()
    'stork is white (set)'
    >>> await mirror.close()
    """

    async def wait_exact(self, timeout: float) -> Position:
        """Waits until the copy is exact, and returns its position. Raises :class:`spindle.Timeout` if it is not in
        time, :class:`spindle.FeedOff` if the server has no feed, and :class:`spindle.Denied` if it refuses the user.
        """
        position = await self._until_exact(timeout)
        if position is None:
            raise self._late(timeout)
        return position

    def __repr__(self) -> str:
        return f"<mirror of table {self._pump.table!r}, {'exact' if self.exact else 'not exact'}>"

    async def close(self) -> None:
        """Stops following. The copy stays readable, and is not exact."""
        await self._stop()

    async def __aenter__(self) -> "Mirror[K, V]":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()


__all__ = ["Mirror", "MirrorChange"]
