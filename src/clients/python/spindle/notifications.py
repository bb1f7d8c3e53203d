# Generated from aio/notifications.py by "python unasync.py". Change that file, not this one.
"""The notifications of a table, for threads."""

from __future__ import annotations

from types import TracebackType
from typing import Optional, Type, TypeVar

from ._notifications import Notification
from .errors import Timeout
from ._subscription import Subscription

K = TypeVar("K")


class Notifications(Subscription[K]):
    """The changes of a table as they come, by key, without ``--feed`` (``--publish``). Make them with
    :meth:`spindle.Client.notifications`. Values are read from the table. For an exact copy there is
    :meth:`spindle.Client.mirror`.

    They begin when they are made. A connection that is lost is made again, and a notification ``missed`` says so. Who
    reads too slowly loses some without that (``--publish-hwm``).

    >>> finches = client.table("finches", create=True)
    >>> changes = client.notifications("finches", keys=spindle.TEXT)
    >>> finches.set("siskin", "green")
    >>> changes.get(timeout=10)
    Notification(kind='updated', key='siskin')
    >>> changes.close()
    """

    def __repr__(self) -> str:
        return f"<notifications of table {self._pump.table!r} at {self._pump.endpoint}>"

    def get(self, timeout: Optional[float] = None) -> Notification[K]:
        """The next one. Raises :class:`spindle.Timeout` if there is none for so many seconds."""
        found = self._take(timeout)
        if found is None:
            raise Timeout(f"no notification of table {self._pump.table!r} within {timeout:g} s")
        return Notification(found.kind, None if found.key is None else self._pump.keys.decode(found.key))

    def _begin(self, timeout: float) -> None:
        """Waits until the server has the subscription."""
        if not self._until_begun(timeout):
            error, problem = self._pump.problem, self._pump.link.problem
            self._stop()
            raise error or Timeout(f"no notifications of {self._pump.endpoint} within {timeout:g} s: {problem}")

    def close(self) -> None:
        """Ends them. Who waits for one raises :class:`spindle.Closed`."""
        self._stop()

    def __iter__(self) -> "Notifications[K]":
        return self

    def __next__(self) -> Notification[K]:
        return self.get()

    def __enter__(self) -> "Notifications[K]":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


__all__ = ["Notification", "Notifications"]
