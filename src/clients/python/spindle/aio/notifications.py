"""The notifications of a table, for tasks of asyncio."""

from __future__ import annotations

from types import TracebackType
from typing import Optional, Type, TypeVar

from .._notifications import Notification
from ..errors import Timeout
from ._subscription import Subscription

K = TypeVar("K")


class Notifications(Subscription[K]):
    """The changes of a table as they come, by key, without ``--feed`` (``--publish``). Make them with
    :meth:`spindle.aio.Client.notifications`. Values are read from the table. For an exact copy there is
    :meth:`spindle.aio.Client.mirror`.

    They begin when they are made. A connection that is lost is made again, and a notification ``missed`` says so. Who
    reads too slowly loses some without that (``--publish-hwm``).

    >>> finches = await client.table("finches", create=True)
    >>> changes = await client.notifications("finches", keys=spindle.TEXT)
    >>> await finches.set("siskin", "green")
    >>> await changes.get(timeout=10)
    Notification(kind='updated', key='siskin')
    >>> await changes.close()
    """

    def __repr__(self) -> str:
        return f"<notifications of table {self._pump.table!r} at {self._pump.endpoint}>"

    async def get(self, timeout: Optional[float] = None) -> Notification[K]:
        """The next one. Raises :class:`spindle.Timeout` if there is none for so many seconds."""
        found = await self._take(timeout)
        if found is None:
            raise Timeout(f"no notification of table {self._pump.table!r} within {timeout:g} s")
        return Notification(found.kind, None if found.key is None else self._pump.keys.decode(found.key))

    async def _begin(self, timeout: float) -> None:
        """Waits until the server has the subscription."""
        if not await self._until_begun(timeout):
            error, problem = self._pump.problem, self._pump.link.problem
            self._stop()
            raise error or Timeout(f"no notifications of {self._pump.endpoint} within {timeout:g} s: {problem}")

    async def close(self) -> None:
        """Ends them. Who waits for one raises :class:`spindle.Closed`."""
        self._stop()

    def __aiter__(self) -> "Notifications[K]":
        return self

    async def __anext__(self) -> Notification[K]:
        return await self.get()

    async def __aenter__(self) -> "Notifications[K]":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()


__all__ = ["Notification", "Notifications"]
