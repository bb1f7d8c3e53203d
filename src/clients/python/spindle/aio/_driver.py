"""The driver of tasks: the event loop watches the connection. There are no threads."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Dict, List, Optional, Sequence

from .._driver import late, lost
from .._kv import Frames
from .._link import LinkLost, Security, open_link
from ..errors import Closed, Error
from ._watch import Watch

_EMPTY = b""


class Driver:
    """A connection that the tasks of one event loop share."""

    def __init__(self, endpoint: str, security: Security, is_patient: bool = False) -> None:
        self._link: Any = open_link(endpoint, "DEALER", security)
        self._link.is_patient = is_patient
        self._ids = itertools.count(1)
        self._pending: Dict[bytes, "asyncio.Future[Frames]"] = {}
        # Of these, the ones that wait for a connection, with their messages.
        self._unsent: Dict[bytes, Any] = {}
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._watch: Optional[Watch] = None
        # The state of the connection for which it is watched.
        self._watched = -1

    def __del__(self) -> None:
        link = getattr(self, "_link", None)
        if link is not None and self._loop is None:
            link.close("this client is closed")

    def close(self) -> None:
        """Ends the connection, and all calls that wait."""
        if self._link.closed is not None:
            return
        if self._watch is not None:
            self._watch.close()
        self._link.close("this client is closed")
        self._end(list(self._pending), Closed(self._link.closed))

    def check(self) -> None:
        """Raises :class:`spindle.Closed` if it was closed."""
        self._link.check()

    async def call(self, request: Frames, timeout: float) -> Frames:
        """Sends a request, and waits for its reply."""
        loop, link = self._enter(), self._link
        request_id = next(self._ids).to_bytes(8, "big")
        message = link.encode((request_id, _EMPTY, *request))
        future: "asyncio.Future[Frames]" = loop.create_future()
        if not self._pending and link.is_up:
            # The server may have ended since the last request. This one goes over the next connection then.
            self._step()
        self._pending[request_id] = future
        if link.is_up:
            link.send(message)
        else:
            self._unsent[request_id] = message
            link.hurry()
        if not link.is_up or link.is_edge or link.changes != self._watched:
            self._step()
        timer = loop.call_later(timeout, self._expire, future, timeout)
        try:
            return await future
        finally:
            # Also when the task is cancelled. A reply that comes later finds nobody.
            self._pending.pop(request_id, None)
            self._unsent.pop(request_id, None)
            timer.cancel()

    async def call_many(self, requests: Sequence[Frames], timeout: float) -> List[Frames]:
        """Sends all requests, and waits for all replies."""
        return await asyncio.gather(*(self.call(request, timeout) for request in requests))

    def _enter(self) -> asyncio.AbstractEventLoop:
        self._link.check()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise Error("a client belongs to the event loop in which it was used first")
            self._loop = loop
            self._watch = Watch(loop, [self._link], self._step)
        return loop

    def _expire(self, future: "asyncio.Future[Frames]", timeout: float) -> None:
        if not future.done():
            future.set_exception(late(self._link, timeout))

    def _step(self) -> None:
        link, pending = self._link, self._pending
        if link.closed is not None or self._loop is None or self._watch is None:
            return
        try:
            was_up = link.is_up
            messages = link.step(self._loop.time())
            if link.is_up and not was_up:
                unsent, self._unsent = self._unsent, {}
                for message in unsent.values():
                    link.send(message)
                if link.is_edge:
                    # The replies may be there already.
                    messages += link.step(self._loop.time())
        except LinkLost as loss:
            messages = []
            failed = [own for own in pending if not loss.was_up or own not in self._unsent]
            self._end(failed, lost(loss.error, len(failed)) if loss.was_up else loss.error)
        for message in messages:
            future = pending.pop(message[0], None)
            if future is not None and not future.done():
                future.set_result(message[2:] or [_EMPTY])
        self._watched = link.changes
        self._watch.update()

    def _end(self, failed: List[bytes], error: Error) -> None:
        for request_id in failed:
            self._unsent.pop(request_id, None)
            future = self._pending.pop(request_id)
            if not future.done():
                future.set_exception(error)
