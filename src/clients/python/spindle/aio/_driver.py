"""The driver of tasks: the event loop watches the descriptor of the socket. There are no threads and no polling."""

from __future__ import annotations

import asyncio
from typing import Dict, List, Optional, Sequence

from .._kv import Frames
from .._socket import Connection, Security
from ..errors import Closed, Error

# How often a task tries to send while there is no connection.
_RETRY_SECONDS = 0.01


class AsyncDriver:
    """A connection that the tasks of one event loop share."""

    def __init__(self, endpoint: str, security: Security) -> None:
        self._connection = Connection(endpoint, security)
        self._pending: Dict[bytes, "asyncio.Future[Frames]"] = {}
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None and self._loop is None:
            connection.close("this client is closed")

    def close(self) -> None:
        """Ends the connection, and all calls that wait."""
        if self._connection.closed is not None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._connection.fd)
        self._connection.close("this client is closed")
        for future in self._pending.values():
            if not future.done():
                future.set_exception(Closed(self._connection.closed))
        self._pending.clear()

    async def call(self, request: Frames, timeout: float) -> Frames:
        """Sends a request, and waits for its reply."""
        loop = self._enter()
        request_id = self._connection.new_id()
        future: "asyncio.Future[Frames]" = loop.create_future()
        due = loop.time() + timeout
        self._pending[request_id] = future
        timer: Optional[asyncio.TimerHandle] = None
        try:
            while not self._connection.try_send(request_id, request):
                if loop.time() >= due:
                    raise self._connection.late(timeout)
                self._drain()
                await asyncio.sleep(_RETRY_SECONDS)
                self._enter()
            # To send may have taken the signal of the descriptor.
            self._drain()
            if not future.done():
                timer = loop.call_at(due, self._expire, future, timeout)
            return await future
        finally:
            # Also when the task is cancelled. A reply that comes later finds nobody.
            self._pending.pop(request_id, None)
            if timer is not None:
                timer.cancel()

    async def call_many(self, requests: Sequence[Frames], timeout: float) -> List[Frames]:
        """Sends all requests, and waits for all replies."""
        return await asyncio.gather(*(self.call(request, timeout) for request in requests))

    def _enter(self) -> asyncio.AbstractEventLoop:
        if self._connection.closed is not None:
            raise Closed(self._connection.closed)
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise Error("a client belongs to the event loop in which it was used first")
            self._loop = loop
            loop.add_reader(self._connection.fd, self._drain)
        return loop

    def _expire(self, future: "asyncio.Future[Frames]", timeout: float) -> None:
        if not future.done():
            future.set_exception(self._connection.late(timeout))

    def _drain(self) -> None:
        connection = self._connection
        while connection.closed is None and connection.is_readable():
            request_id, reply = connection.receive()
            future = self._pending.pop(request_id, None)
            if future is not None and not future.done():
                future.set_result(reply)
