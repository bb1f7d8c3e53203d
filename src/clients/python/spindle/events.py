# Generated from aio/events.py by "python unasync.py". Change that file, not this one.
"""The events of a server, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from . import _events
from ._events import Event

if TYPE_CHECKING:
    from .client import Client


class Events:
    """The numbered events of a server (``--events``). It is ``client.events``. Ids begin at 1 and have no gaps.

    >>> event = client.events.create()
    >>> client.events.get(event.id) == event, client.events.count() == event.id
    (True, True)
    >>> pending = client.events.defer()
    >>> client.events.get(pending) == spindle.Event(pending, None), client.events.get(10**9) is None
    (True, True)
    """

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._place = client._events_place()

    def __repr__(self) -> str:
        return f"<events of {self._place}>"

    def _ask(self, method: str, path: str, *expected: int) -> Tuple[int, Dict[str, Any]]:
        """One connection for one request."""
        request = _events.request(method, path, self._place, self._client._security)
        answer = self._client._exchange(self._place, request, "--events")
        return _events.answer_of(answer, self._place, expected)

    def create(self) -> Event:
        """Makes an event with a value that the server makes. It is stored then."""
        return _events.event_of((self._ask("POST", "/events", 201))[1])

    def defer(self) -> int:
        """Makes an event that waits for a worker, which gives it a value. Returns its id."""
        return _events.number_of((self._ask("POST", "/events/async", 202))[1], "id")

    def get(self, id: int) -> Optional[Event]:
        """The event with this id. None: there is none."""
        path = f"/events/{_events.whole(id, 'an id', 0, (1 << 64) - 1)}"
        status, found = self._ask("GET", path, 200, _events.NOT_FOUND)
        return None if status == _events.NOT_FOUND else _events.event_of(found)

    def count(self) -> int:
        """The number of events, also of those that wait for a value."""
        return _events.number_of((self._ask("GET", "/events", 200))[1], "count")

    def health(self) -> None:
        """Raises :class:`spindle.Unavailable` with the reason if nothing can be stored."""
        self._ask("GET", "/health", 200)


__all__ = ["Event", "Events"]
