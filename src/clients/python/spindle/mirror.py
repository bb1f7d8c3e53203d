# Generated from aio/mirror.py by "python unasync.py". Change that file, not this one.
"""A mirror, for threads: an exact copy of a table."""

from __future__ import annotations

from types import TracebackType
from typing import Optional, Type, TypeVar

from ._feed import Position
from ._mirror import MirrorChange
from ._polled import PolledView

K = TypeVar("K")
V = TypeVar("V")


class Mirror(PolledView[K, V]):
    """An exact copy of a table in this process, that follows the server's feed (``--feed``). It is a mapping: reading
    costs no request. Make it with :meth:`spindle.Client.mirror`.

    The copy is *exact* at a position of the feed if it has all that was published before. Gaps, lost connections,
    another start of the server, and the deletion and re-creation of its table end with an exact copy again. Until then
    the old copy stays readable, and ``exact`` is False. Digests of the server check the copy.

    >>> birds = client.table("birds", create=True, codec=spindle.TEXT)
    >>> birds.set("heron", "grey")
    >>> mirror = client.mirror("birds", codec=spindle.TEXT, keys=spindle.TEXT)
    >>> position = mirror.wait_exact(timeout=10)
    >>> position.sequence, dict(mirror)
    (2, {'heron': 'grey'})

    A live dashboard: a function is called with each change, in a thread of the mirror.

    >>> shown = queue.Queue()
    >>> @mirror.on_change
    ... def show(change):
    ...     shown.put_nowait(f"{change.key} is {change.value} ({change.cause})")
    >>> birds.set("stork", "white")
    >>> shown.get()
    'stork is white (set)'
    >>> mirror.close()
    """

    def wait_exact(self, timeout: float) -> Position:
        """Waits until the copy is exact, and returns its position. Raises :class:`spindle.Timeout` if it is not in
        time, :class:`spindle.FeedOff` if the server has no feed, and :class:`spindle.Denied` if it refuses the user.
        """
        position = self._until_exact(timeout)
        if position is None:
            raise self._late(timeout)
        return position

    def __repr__(self) -> str:
        return f"<mirror of table {self._pump.table!r}, {'exact' if self.exact else 'not exact'}>"

    def close(self) -> None:
        """Stops following. The copy stays readable, and is not exact."""
        self._stop()

    def __enter__(self) -> "Mirror[K, V]":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


__all__ = ["Mirror", "MirrorChange"]
