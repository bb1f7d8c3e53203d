"""Calls a step whenever a descriptor is ready or a time is due, for whatever speaks to servers over links."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Dict, List, Optional, Sequence

from .._link import POLLIN, POLLOUT


class Watch:
    """The descriptors and the due time of links, in an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, links: Sequence[Any], step: Callable[[], None]) -> None:
        self._loop = loop
        self._links = links
        self._step = step
        self._watched: Dict[int, int] = {}
        self._timer: Optional[asyncio.TimerHandle] = None

    def update(self, due: float = float("inf")) -> None:
        """Watches what the links want, and calls the step when they or ``due`` want it."""
        wanted: Dict[int, int] = {}
        for link in self._links:
            wanted.update(link.interests())
            due = min(due, link.due())
        if wanted != self._watched:
            self._watch(wanted)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due != float("inf"):
            self._timer = self._loop.call_at(due, self._step)

    def _watch(self, wanted: Dict[int, int]) -> None:
        for fd, events in self._watched.items():
            if events & POLLIN:
                self._loop.remove_reader(fd)
            if events & POLLOUT:
                self._loop.remove_writer(fd)
        for fd, events in wanted.items():
            if events & POLLIN:
                self._loop.add_reader(fd, self._step)
            if events & POLLOUT:
                self._loop.add_writer(fd, self._step)
        self._watched = wanted

    def close(self) -> None:
        """Watches nothing any more. Before the links are closed."""
        if not self._loop.is_closed():
            self._watch({})
            if self._timer is not None:
                self._timer.cancel()


__all__: List[str] = ["Watch"]
