"""The driver of threads: any number of them share one connection, and none is spawned.

The thread that waits first is the *leader*: it waits for the connection, and hands replies to the others. When it has
its own, it makes another waiting thread the leader. So a single thread sends, waits and receives, without a switch
between threads. While the leader waits, others send.

```text
leader      lock │ send ──► poll(connection, wake) ──► lock │ step ──► own reply: make another the leader
follower    lock │ send ──► wait for its event ──► its reply, or it is the leader
```
Requests without a connection wait for one, until their time is over or nobody listens there. Those of a patient driver
wait then too. So none is executed later. Requests that were sent
when the connection is lost fail at once: the server may have executed them.
"""

from __future__ import annotations

import itertools
import os
import select
import threading
from time import monotonic
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ._kv import Frames
from ._link import LinkLost, Security, abandon_in_child, open_link
from .errors import Closed, Disconnected, Error, Timeout

_EMPTY = b""
# After so long without a look at the connection a thread looks whether it is still there, before it sends.
_IDLE_SECONDS = 0.0001
# What the system can poll for.
_POLL_MILLIS_MAX = 3_600_000


class _Waiter:
    """A thread with its outstanding requests. Guarded by the lock of the driver."""

    __slots__ = ("error", "event", "ids", "missing", "replies")

    def __init__(self, ids: List[bytes]) -> None:
        self.ids = ids
        self.missing = len(ids)
        self.replies: Dict[bytes, Frames] = {}
        self.error: Optional[Error] = None
        # A follower waits for it.
        self.event: Optional[threading.Lock] = None


def late(link: Any, timeout: float) -> Timeout:
    """Why there was no reply."""
    if link.is_up:
        return Timeout(f"no reply of {link.endpoint} within {timeout:g} s")
    return Timeout(f"no connection to {link.endpoint} within {timeout:g} s: {link.problem}. Is the server running?")


def lost(error: Error, count: int) -> Error:
    """The error of a request that was on its way when the connection was lost."""
    return Disconnected(f"{error}, with {count} requests unanswered, which it may have executed")


class Driver:
    """A connection that threads share."""

    def __init__(self, endpoint: str, security: Security, is_patient: bool = False) -> None:
        self._link: Any = open_link(endpoint, "DEALER", security)
        self._link.is_patient = is_patient
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._pending: Dict[bytes, _Waiter] = {}
        # Of these, the ones that wait for a connection, with their messages.
        self._unsent: Dict[bytes, Any] = {}
        self._leader: Optional[_Waiter] = None
        self._wake_out, self._wake_in = os.pipe()
        # Whether there is a byte in the pipe.
        self._is_awake = False
        # A thread uses the connection. Still so after an exception: it was interrupted.
        self._is_inside = False
        self._poll = select.poll()
        self._poll.register(self._wake_out, select.POLLIN)
        # When the connection was last looked at.
        self._looked = 0.0
        # What is registered besides, and for which state of the connection.
        self._watched = -1
        self._polled: List[Tuple[int, int]] = []
        abandon_in_child(self)

    def __del__(self) -> None:
        # Each call holds the driver, so no thread polls the pipe any more.
        self.close()
        if hasattr(self, "_wake_in"):
            self._close_pipe()

    def close(self) -> None:
        """Ends the connection, and all calls that wait."""
        if not hasattr(self, "_polled") or self._link.closed is not None:
            return
        with self._lock:
            self._link.close("this client is closed")
            for waiter in set(self._pending.values()):
                self._awaken(waiter)
            self._end_if_idle()

    def _end_if_idle(self) -> None:
        """Closes the pipe of a closed client when the last thread has left it. Only with the lock."""
        if self._link.closed is not None and self._leader is None and not self._pending:
            self._close_pipe()

    def _close_pipe(self) -> None:
        if self._wake_in >= 0:
            os.close(self._wake_out)
            os.close(self._wake_in)
            self._wake_out = self._wake_in = -1

    def _abandon(self, reason: str) -> None:
        """After a fork, in the child: none of the threads is there that wait, or have the lock."""
        self._lock = threading.Lock()
        self._pending, self._unsent, self._leader = {}, {}, None

    def check(self) -> None:
        """Raises :class:`spindle.Closed` if it was closed."""
        self._link.check()

    def call(self, request: Frames, timeout: float) -> Frames:
        """Sends a request, and waits for its reply."""
        request_id = next(self._ids).to_bytes(8, "big")
        message = self._link.encode((request_id, _EMPTY, *request))
        waiter = _Waiter([request_id])
        try:
            if self._begin_alone(waiter, message):
                return self._end_alone(waiter, timeout)
        except BaseException:
            # Also KeyboardInterrupt, which may come at any point.
            with self._lock:
                self._repair()
                self._leave(waiter)
            raise
        self._exchange(waiter, [message], timeout)
        return waiter.replies[request_id]

    def _begin_alone(self, waiter: _Waiter, message: Any) -> bool:
        """Sends a request with the fewest steps, and makes the thread the leader, if nobody else waits and the
        connection was used a moment ago. False: nothing was done.
        """
        link = self._link
        if self._leader is not None or link.changes != self._watched or link.is_edge or link.closed is not None:
            return False
        with self._lock:
            if self._leader is not None or self._pending or not link.is_up or link.changes != self._watched:
                return False
            if monotonic() - self._looked > _IDLE_SECONDS:
                return False
            self._is_inside = True
            self._pending[waiter.ids[0]] = waiter
            self._leader = waiter
            link.send(message)
            self._is_inside = False
        return True

    def _end_alone(self, waiter: _Waiter, timeout: float) -> Frames:
        """Waits for the reply."""
        now = monotonic()
        link, pending, request_id = self._link, self._pending, waiter.ids[0]
        try:
            self._poll.poll(min(_POLL_MILLIS_MAX, timeout * 1000 + 1))
            with self._lock:
                self._is_inside = True
                if len(pending) == 1 and waiter.missing and not self._is_awake and link.is_up:
                    for reply in link.step(now):
                        if reply[0] == request_id:
                            self._leader = None
                            del pending[request_id]
                            self._looked = monotonic()
                            self._is_inside = False
                            return reply[2:] or [_EMPTY]
                self._is_inside = False
            self._lead(waiter, now + timeout, timeout)
        except LinkLost as loss:
            with self._lock:
                self._is_inside = False
                self._fail(loss, waiter)
                self._leave(waiter)
        if waiter.error is not None:
            raise waiter.error
        return waiter.replies[request_id]

    def call_many(self, requests: Sequence[Frames], timeout: float) -> List[Frames]:
        """Sends all requests, and waits for all replies."""
        ids, encode = self._ids, self._link.encode
        waiter = _Waiter([next(ids).to_bytes(8, "big") for _ in requests])
        messages = [encode((own, _EMPTY, *request)) for own, request in zip(waiter.ids, requests)]
        self._exchange(waiter, messages, timeout)
        return [waiter.replies[request_id] for request_id in waiter.ids]

    def _exchange(self, waiter: _Waiter, messages: List[Any], timeout: float) -> None:
        now = monotonic()
        deadline = now + timeout
        link = self._link
        try:
            # A fork may have left the lock locked.
            link.check()
            with self._lock:
                link.check()
                self._send(waiter, messages, now)
            if self._leader is not waiter:
                self._follow(waiter, deadline, timeout)
            if self._leader is waiter:
                self._lead(waiter, deadline, timeout)
        except BaseException:
            # Also KeyboardInterrupt, which may come at any point.
            with self._lock:
                self._repair()
                self._leave(waiter)
            raise
        if waiter.error is not None:
            raise waiter.error

    def _send(self, waiter: _Waiter, messages: List[Any], now: float) -> None:
        """Sends all messages, and makes the thread the leader if there is none. Only with the lock."""
        link, pending = self._link, self._pending
        self._is_inside = True
        if not link.is_up:
            link.hurry()
        if self._leader is None and not pending and link.is_up and now - self._looked > _IDLE_SECONDS:
            # The server may have ended since the last request. This one goes over the next connection then.
            if link.changes != self._watched:
                self._watch()
            if self._poll.poll(0):
                self._step(waiter)
        for request_id, message in zip(waiter.ids, messages):
            pending[request_id] = waiter
            if link.is_up:
                link.send(message)
            else:
                self._unsent[request_id] = message
        if self._leader is None:
            self._leader = waiter
        else:
            waiter.event = threading.Lock()
            waiter.event.acquire()
        if link.is_edge and link.is_up:
            self._step(waiter)
        if self._leader is not waiter and link.changes != self._watched:
            self._wake()
        self._is_inside = False

    # ------------------------------------------------------------------------------------------------------ waiting

    def _lead(self, waiter: _Waiter, deadline: float, timeout: float) -> None:
        link, poll, lock = self._link, self._poll.poll, self._lock
        if not link.is_up:
            with lock:
                self._step(waiter)
        now = monotonic()
        while True:
            if link.changes != self._watched:
                self._watch()
            if waiter.missing and now < deadline:
                left = (deadline if link.is_up and not link.is_edge else min(deadline, link.due())) - now
                poll(min(_POLL_MILLIS_MAX, max(0.0, left * 1000 + 1)))
            with lock:
                link.check()
                if self._is_awake:
                    self._is_awake = False
                    os.read(self._wake_out, 1)
                if waiter.missing:
                    self._step(waiter)
                now = self._looked = monotonic()
                if not waiter.missing:
                    self._leave(waiter)
                    return
                if now >= deadline:
                    raise late(link, timeout)

    def _watch(self) -> None:
        """Registers the descriptors of the connection. Only the leader, or a thread with the lock if there is none."""
        self._watched = self._link.changes
        wanted = self._link.interests()
        if wanted != self._polled:
            for fd, _ in self._polled:
                self._poll.unregister(fd)
            for fd, events in wanted:
                self._poll.register(fd, events)
            self._polled = wanted

    def _follow(self, waiter: _Waiter, deadline: float, timeout: float) -> None:
        """Waits for the replies, or to become the leader."""
        if waiter.event is not None:
            waiter.event.acquire(timeout=max(0.0, deadline - monotonic()))
        with self._lock:
            self._link.check()
            if self._leader is waiter:
                # Its replies may have come since. Then it passes the leadership on.
                waiter.event = None
            elif waiter.missing:
                raise late(self._link, timeout)

    def _step(self, own: _Waiter) -> None:
        """Takes what has come, and hands it on. Only with the lock. ``own`` is the caller's."""
        link, pending = self._link, self._pending
        self._is_inside = True
        try:
            was_up = link.is_up
            messages = link.step(monotonic())
            if link.is_up and not was_up:
                self._send_waiting()
                if link.is_edge:
                    # The replies may be there already.
                    messages += link.step(monotonic())
        except LinkLost as loss:
            self._fail(loss, own)
            messages = []
        for message in messages:
            # The id and the empty frame come back as they were sent. Anything else has an id that nobody waits for.
            found = pending.pop(message[0], None)
            if found is not None:
                found.replies[message[0]] = message[2:] or [_EMPTY]
                found.missing -= 1
                if not found.missing and found is not own:
                    self._awaken(found)
        self._is_inside = False

    def _send_waiting(self) -> None:
        unsent, self._unsent = self._unsent, {}
        for message in unsent.values():
            self._link.send(message)

    def _repair(self) -> None:
        """Ends the connection if an interrupt came while it was used: nobody knows then what was sent or received."""
        if self._is_inside:
            self._is_inside = False
            loss = self._link.interrupt()
            if loss is not None:
                self._fail(loss, None)

    def _fail(self, loss: LinkLost, own: Optional[_Waiter]) -> None:
        """Ends the requests that were on their way. If the server has refused us, also those that wait."""
        failed = [found for found in self._pending if not loss.was_up or found not in self._unsent]
        error = lost(loss.error, len(failed)) if loss.was_up else loss.error
        for request_id in failed:
            self._unsent.pop(request_id, None)
            waiter = self._pending.pop(request_id)
            if waiter.error is None:
                waiter.error = error
                waiter.missing = 0
                if waiter is not own:
                    self._awaken(waiter)
                # Its other requests go too: some may wait for a connection.
                for other in waiter.ids:
                    self._unsent.pop(other, None)

    def _awaken(self, waiter: _Waiter) -> None:
        """Ends the waiting of another thread. Only with the lock."""
        if waiter.event is not None:
            if waiter.event.locked():
                waiter.event.release()
        elif waiter is self._leader:
            self._wake()

    def _wake(self) -> None:
        """Wakes the leader. Only with the lock."""
        if not self._is_awake and self._wake_in >= 0:
            self._is_awake = True
            os.write(self._wake_in, b"\0")

    def _leave(self, waiter: _Waiter) -> None:
        """Drops what is outstanding, and makes another the leader. Only with the lock."""
        if waiter.missing or waiter.error is not None:
            # A reply that comes later finds nobody.
            for request_id in waiter.ids:
                self._pending.pop(request_id, None)
                self._unsent.pop(request_id, None)
        if self._leader is waiter:
            self._leader = None
            for other in self._pending.values():
                if other.event is not None:
                    self._leader = other
                    self._awaken(other)
                    break
        self._end_if_idle()


__all__ = ["Closed", "Driver", "late", "lost"]
