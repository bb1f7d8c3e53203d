"""The driver of threads: any number of them share one connection, and none is spawned.

The thread that waits first is the *leader*: it waits for the socket, and hands replies to the others. When it has its
own, it makes another waiting thread the leader. So a single thread sends, waits for the socket and receives, without a
switch between threads. While the leader waits, others send.

```text
leader      lock │ send │ drain ──► poll(socket, wake) ──► lock │ drain ──► own reply: make another the leader
follower    lock │ send │ drain ──► wait for its event ──► its reply, or it is the leader
```
The socket's descriptor tells of new messages only after a thread has seen that there is none. Each thread that uses the
socket may take that away from the leader. So it drains the socket before it lets go of the lock, and wakes the leader if
its reply was there.
"""

from __future__ import annotations

import os
import select
import threading
from time import monotonic, sleep
from typing import Dict, List, Optional, Sequence

from ._kv import Frames
from ._socket import Connection, Security
from .errors import Closed

# How often a thread tries to send while there is no connection.
_RETRY_SECONDS = 0.01


class _Waiter:
    """A thread with its outstanding requests. Guarded by the lock of the driver."""

    __slots__ = ("event", "ids", "missing", "replies")

    def __init__(self, ids: List[bytes]) -> None:
        self.ids = ids
        self.missing = len(ids)
        self.replies: Dict[bytes, Frames] = {}
        # A follower waits for it.
        self.event: Optional[threading.Lock] = None


class Driver:
    """A connection that threads share."""

    def __init__(self, endpoint: str, security: Security) -> None:
        self._connection = Connection(endpoint, security)
        self._lock = threading.Lock()
        self._pending: Dict[bytes, _Waiter] = {}
        self._leader: Optional[_Waiter] = None
        self._wake_out, self._wake_in = os.pipe()
        # Whether there is a byte in the pipe.
        self._is_awake = False
        self._poll = select.poll()
        self._poll.register(self._connection.fd, select.POLLIN)
        self._poll.register(self._wake_out, select.POLLIN)

    def __del__(self) -> None:
        # Each call holds the driver, so no thread polls the pipe any more.
        self.close()
        if hasattr(self, "_wake_in"):
            os.close(self._wake_out)
            os.close(self._wake_in)

    def close(self) -> None:
        """Ends the connection, and all calls that wait."""
        if not hasattr(self, "_connection") or self._connection.closed is not None:
            return
        with self._lock:
            self._connection.close("this client is closed")
            for waiter in set(self._pending.values()):
                self._awaken(waiter)

    def call(self, request: Frames, timeout: float) -> Frames:
        """Sends a request, and waits for its reply."""
        waiter = self._exchange([request], timeout)
        return waiter.replies[waiter.ids[0]]

    def call_many(self, requests: Sequence[Frames], timeout: float) -> List[Frames]:
        """Sends all requests, and waits for all replies."""
        waiter = self._exchange(requests, timeout)
        return [waiter.replies[request_id] for request_id in waiter.ids]

    def _exchange(self, requests: Sequence[Frames], timeout: float) -> _Waiter:
        deadline = monotonic() + timeout
        new_id = self._connection.new_id
        waiter = _Waiter([new_id() for _ in requests])
        try:
            self._send(waiter, requests, deadline, timeout)
            if self._leader is not waiter:
                self._follow(waiter, deadline, timeout)
            if self._leader is waiter:
                self._lead(waiter, deadline, timeout)
        except BaseException:
            # Also KeyboardInterrupt, which may come at any point.
            with self._lock:
                self._leave(waiter)
            raise
        return waiter

    def _check(self) -> None:
        if self._connection.closed is not None:
            raise Closed(self._connection.closed)

    def _send(self, waiter: _Waiter, requests: Sequence[Frames], deadline: float, timeout: float) -> None:
        """Sends all requests, and makes the thread the leader if there is none."""
        connection = self._connection
        sent = 0
        while True:
            # A fork may have left the lock locked.
            self._check()
            with self._lock:
                self._check()
                for request_id in waiter.ids[sent:]:
                    self._pending[request_id] = waiter
                    if not connection.try_send(request_id, requests[sent]):
                        break
                    sent += 1
                is_sent = sent == len(requests)
                if is_sent and self._leader is None:
                    self._leader = waiter
                elif is_sent and waiter.missing:
                    waiter.event = threading.Lock()
                    waiter.event.acquire()
                self._drain(waiter if self._leader is waiter else None)
                if is_sent:
                    return
                if monotonic() >= deadline:
                    raise connection.late(timeout)
            # Another thread may take the signal of the descriptor, so this one does not rely on it.
            sleep(_RETRY_SECONDS)

    # ------------------------------------------------------------------------------------------------------ waiting

    def _lead(self, waiter: _Waiter, deadline: float, timeout: float) -> None:
        poll, lock = self._poll.poll, self._lock
        while True:
            left = deadline - monotonic()
            if waiter.missing and left > 0:
                poll(left * 1000 + 1)
            with lock:
                self._check()
                self._drain(waiter)
                if not waiter.missing:
                    self._leave(waiter)
                    return
                if left <= 0:
                    raise self._connection.late(timeout)

    def _follow(self, waiter: _Waiter, deadline: float, timeout: float) -> None:
        """Waits for the replies, or to become the leader."""
        if waiter.event is not None:
            waiter.event.acquire(timeout=max(0.0, deadline - monotonic()))
        with self._lock:
            self._check()
            if self._leader is waiter:
                # Its replies may have come since. Then it passes the leadership on.
                waiter.event = None
            elif waiter.missing:
                raise self._connection.late(timeout)

    def _drain(self, leader: Optional[_Waiter]) -> None:
        """Takes all messages that are there. ``leader`` is the caller, if it leads. Only with the lock."""
        connection, pending = self._connection, self._pending
        while connection.is_readable():
            request_id, reply = connection.receive()
            waiter = pending.pop(request_id, None)
            if waiter is None:
                continue
            waiter.replies[request_id] = reply
            waiter.missing -= 1
            if waiter is leader:
                if not pending:
                    # Nobody else waits, and the next request drains before it waits.
                    return
            elif not waiter.missing:
                self._awaken(waiter)

    def _awaken(self, waiter: _Waiter) -> None:
        """Ends the waiting of another thread. Only with the lock."""
        if waiter.event is not None:
            if waiter.event.locked():
                waiter.event.release()
        elif waiter is self._leader and not self._is_awake:
            self._is_awake = True
            os.write(self._wake_in, b"\0")

    def _leave(self, waiter: _Waiter) -> None:
        """Drops what is outstanding, and makes another the leader. Only with the lock."""
        if waiter.missing:
            # A reply that comes later finds nobody.
            for request_id in waiter.ids:
                self._pending.pop(request_id, None)
        if self._leader is not waiter:
            return
        self._leader = None
        if self._is_awake:
            self._is_awake = False
            os.read(self._wake_out, 1)
        for other in self._pending.values():
            if other.event is not None:
                self._leader = other
                self._awaken(other)
                return
