"""Takes messages for the channels of a connection, keeps their leases, and settles them. It is a thread of its own, so
that leases are extended while a task runs in the main thread (pool solo) or in others.

```text
thread   LendMany waits at the server ──► arrived ──► ready: a descriptor that is readable while there is something
         every third of a lease: ExtendMany of all that is held
         what was settled meanwhile: SettleMany, one at a time
main     take() ──► a message ──► its callback ──► settle()
```
A connection that is lost is made again. Leases outlive it, and the server too: what was settled is sent once more.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import threading
from collections import deque
from time import monotonic, sleep
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

from .. import _queues
from .._kv import Command, Frames
from .._link import LinkLost, Security, abandon_in_child, open_link
from .._queue_records import LentTask
from ..errors import Error
from .subscriptions import Held, Lend, Subscription

_log = logging.getLogger("spindle")
# A request waits for so long at the server, and is then made anew.
WAIT_SECONDS = 30.0
# The pause after a request that was refused, or that found no place to wait.
PAUSE_SECONDS = 0.5
# Extensions within a lease.
BEATS = 3
# How long closing waits for the server.
CLOSE_SECONDS = 5.0
_EMPTY = b""
_MILLIS_MAX = 3_600_000.0


class Puller:
    """The messages of a connection of kombu."""

    def __init__(self, endpoint: str, security: Security, lease: float) -> None:
        self.lease = lease
        self._endpoint = endpoint
        self._link: Any = open_link(endpoint, "DEALER", security)
        self._ids = itertools.count(1)
        # What follows is guarded by the lock.
        self._lock = threading.RLock()
        self._subscriptions: Dict[int, Subscription] = {}
        self._held: Dict[int, Held] = {}
        self._arrived: Deque[Held] = deque()
        # Leases that end, in order: their item, and whether it may have been sent before.
        self._ends: Deque[Tuple[Held, bytes, bool]] = deque()
        self._posts: Deque[Command[Any]] = deque()
        self._error: Optional[Error] = None
        self._is_closing = False
        # Only the thread uses what follows.
        self._lends: Dict[bytes, Lend] = {}
        self._settling: Dict[bytes, List[Tuple[Held, bytes, bool]]] = {}
        self._extending: Dict[bytes, List[Held]] = {}
        self._beat = monotonic() + lease / BEATS
        self._was_up = False
        self.on_beat: Callable[[], None] = lambda: None
        self._wake_out, self._wake_in = os.pipe()
        self._ready_out, self._ready_in = os.pipe()
        for descriptor in (self._wake_in, self._ready_in):
            os.set_blocking(descriptor, False)
        self._is_awake = self._is_ready = False
        self._thread: Optional[threading.Thread] = None
        abandon_in_child(self)

    # ------------------------------------------------------------------------------------- what channels call

    def fileno(self) -> int:
        """A descriptor that is readable while :meth:`take` has something."""
        return self._ready_out

    def consume(self, owner: int, queues: Sequence[bytes], prefetch: int) -> None:
        """A channel consumes these queues, and holds so many messages at most (0: any number)."""
        with self._lock:
            found = self._subscriptions.setdefault(owner, Subscription(owner))
            found.queues, found.prefetch = list(queues), prefetch
            if queues and self._thread is None and not self._is_closing:
                self._thread = threading.Thread(target=self._run, name="spindle-celery", daemon=True)
                self._thread.start()
            self._wake()

    def hold(self, owner: int, lent: LentTask) -> None:
        """A channel has got a message by itself. Its lease is extended like the others."""
        with self._lock:
            subscription = self._subscriptions.setdefault(owner, Subscription(owner))
            self._held[lent.lend_key] = Held(lent, subscription)
            subscription.held += 1
            if self._thread is None and not self._is_closing:
                self._thread = threading.Thread(target=self._run, name="spindle-celery", daemon=True)
                self._thread.start()

    def take(self) -> Optional[Tuple[int, LentTask]]:
        """The next message with its channel. None: there is none yet. What a channel consumes no more goes back."""
        with self._lock:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            while self._arrived:
                held = self._arrived.popleft()
                held.subscription.arrived -= 1
                if held.lent.queue in held.subscription.queues:
                    self._signal()
                    if not held.subscription.prefetch:
                        self._wake()
                    return held.subscription.owner, held.lent
                self._end(held, _queues.not_begun(held.lent))
            self._signal()
            return None

    def wait(self, timeout: Optional[float]) -> bool:
        """Waits until :meth:`take` has something. False: there was nothing in time."""
        poll = select.poll()
        poll.register(self._ready_out, select.POLLIN)
        return bool(poll.poll(_MILLIS_MAX if timeout is None else min(_MILLIS_MAX, max(0.0, timeout * 1000))))

    def settle(self, lend_key: int, item: bytes) -> None:
        """A message is settled. The request follows by itself."""
        with self._lock:
            held = self._held.get(lend_key)
            if held is not None:
                self._end(held, item)
                self._wake()

    def held_by(self, owner: int) -> List[LentTask]:
        """The messages that a channel holds, in the order in which they were lent."""
        with self._lock:
            return [held.lent for held in self._held.values() if held.subscription.owner == owner]

    def leave(self, owner: int) -> None:
        """A channel ends. What it holds goes back. Messages that have merely arrived were not begun."""
        with self._lock:
            subscription = self._subscriptions.pop(owner, None)
            if subscription is None:
                return
            subscription.queues = []
            for held in [held for held in self._arrived if held.subscription is subscription]:
                self._end(held, _queues.not_begun(held.lent))
            for held in [held for held in self._held.values() if held.subscription is subscription]:
                self._end(held, _queues.give_back(held.lent, None, "connection closed"))
            self._arrived = deque(held for held in self._arrived if held.subscription is not subscription)
            self._signal()
            self._wake()

    def post(self, commands: Sequence[Command[Any]]) -> None:
        """Requests whose replies nobody needs."""
        with self._lock:
            self._posts.extend(commands)
            self._wake()

    def close(self) -> None:
        """Sends what was settled, and ends."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
            thread = self._thread
            self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS + 1)
        if self._link.closed is None:
            self._link.close("this connection is closed")
        for descriptor in (self._wake_out, self._wake_in, self._ready_out, self._ready_in):
            os.close(descriptor)
        self._wake_out = self._wake_in = self._ready_out = self._ready_in = -1

    def _abandon(self, reason: str) -> None:
        """After a fork, in the child: the thread and the leases are the parent's."""
        self._lock = threading.RLock()
        self._is_closing = True
        self._thread = None
        self._held, self._arrived, self._ends, self._subscriptions = {}, deque(), deque(), {}

    # ------------------------------------------------------------------------------------- only with the lock

    def _end(self, held: Held, item: bytes) -> None:
        if self._held.pop(held.lent.lend_key, None) is not None:
            held.subscription.held -= 1
            self._ends.append((held, item, False))

    def _wake(self) -> None:
        if not self._is_awake and self._wake_in >= 0:
            self._is_awake = True
            os.write(self._wake_in, b"\0")

    def _signal(self) -> None:
        """Makes the descriptor readable, or not, as there is something to take."""
        has_any = bool(self._arrived) or self._error is not None
        if has_any and not self._is_ready and self._ready_in >= 0:
            self._is_ready = True
            os.write(self._ready_in, b"\0")
        elif not has_any and self._is_ready and self._ready_out >= 0:
            self._is_ready = False
            os.read(self._ready_out, 1)

    def _is_sent(self) -> bool:
        """Whether the server has all that it should get. What was settled waits for a connection, and posts do not."""
        return not self._ends and not self._settling and (not self._posts or not self._link.is_up)

    # ------------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake_out, select.POLLIN)
        polled: List[Tuple[int, int]] = []
        closing_until: Optional[float] = None
        while True:
            try:
                self._step(monotonic())
            except Exception:
                _log.exception("the messages of %s continue after a fault", self._endpoint)
                sleep(PAUSE_SECONDS)
            with self._lock:
                is_over = self._is_closing and self._is_sent()
                if self._is_closing and closing_until is None:
                    closing_until = monotonic() + CLOSE_SECONDS
            if closing_until is not None and (is_over or monotonic() >= closing_until):
                self._link.close("this connection is closed")
                return
            wanted = self._link.interests()
            if wanted != polled:
                for descriptor, _ in polled:
                    poll.unregister(descriptor)
                for descriptor, events in wanted:
                    poll.register(descriptor, events)
                polled = wanted
            due = min(self._due(), closing_until or float("inf"))
            poll.poll(min(_MILLIS_MAX, max(0.0, (due - monotonic()) * 1000 + 1)))

    def _due(self) -> float:
        with self._lock:
            pauses = [found.not_before for found in self._subscriptions.values() if found.queues]
        now = monotonic()
        # A beat needs a connection. Without one it is due when there is one again.
        beat = self._beat if self._link.is_up else float("inf")
        return min(self._link.due(), beat, *(pause for pause in pauses if pause > now), float("inf"))

    def _step(self, now: float) -> None:
        with self._lock:
            if self._is_awake:
                self._is_awake = False
                os.read(self._wake_out, 1)
        try:
            messages = self._link.step(now)
            if self._link.is_up and not self._was_up:
                self._was_up = True
                self._beat = now
        except LinkLost as loss:
            self._lose(loss)
            return
        for message in messages:
            self._receive(message[0], message[2:] or [_EMPTY], now)
        if not self._link.is_up:
            return
        if now >= self._beat:
            self._beat = now + self.lease / BEATS
            self._extend()
            self.on_beat()
        self._send_ends()
        self._send_lends(now)
        with self._lock:
            posts, self._posts = self._posts, deque()
        for request, _ in posts:
            self._send(request)
        if self._link.is_edge:
            for message in self._link.step(now):
                self._receive(message[0], message[2:] or [_EMPTY], now)

    def _send(self, request: Frames) -> bytes:
        own = next(self._ids).to_bytes(8, "big")
        self._link.send(self._link.encode((own, _EMPTY, *request)))
        return own

    def _lose(self, loss: LinkLost) -> None:
        """The connection is lost. What was settled is sent again over the next one."""
        if self._was_up or not loss.was_up:
            _log.warning("messages wait for a connection: %s", loss.error)
        self._was_up = False
        self._lends.clear()
        self._extending.clear()
        with self._lock:
            for items in self._settling.values():
                self._ends.extendleft((held, item, True) for held, item, _ in reversed(items))
            self._settling.clear()
            if not loss.was_up:
                # The server refuses this user. A server that is away is waited for.
                self._fail(loss.error)

    def _fail(self, error: Error) -> None:
        self._error = error
        self._signal()

    # -------------------------------------------------------------------------------------------------- requests

    def _extend(self) -> None:
        with self._lock:
            held = [found for found in self._held.values() if not found.is_lost]
        for at in range(0, len(held), _queues.LIST_MAX):
            part = held[at : at + _queues.LIST_MAX]
            request, _ = _queues.extend([(found.lent, self.lease) for found in part])
            self._extending[self._send(request)] = part

    def _send_ends(self) -> None:
        if self._settling:
            return
        with self._lock:
            count = min(len(self._ends), _queues.LIST_MAX)
            items = [self._ends.popleft() for _ in range(count)]
        if items:
            request, _ = _queues.settle([item for _, item, _ in items])
            self._settling[self._send(request)] = items

    def _send_lends(self, now: float) -> None:
        with self._lock:
            if self._is_closing:
                return
            wanted = [found.next_lend(now, self._lends.values()) for found in self._subscriptions.values()]
        for lend in wanted:
            if lend is not None:
                request, _ = _queues.lend(lend.queues, lend.most, self.lease, WAIT_SECONDS)
                self._lends[self._send(request)] = lend

    # --------------------------------------------------------------------------------------------------- replies

    def _receive(self, own: bytes, reply: Frames, now: float) -> None:
        lend = self._lends.pop(own, None)
        if lend is not None:
            self._receive_lent(lend, reply, now)
        elif own in self._settling:
            self._receive_settled(self._settling.pop(own), reply)
        elif own in self._extending:
            self._receive_extended(self._extending.pop(own), reply)

    def _receive_lent(self, lend: Lend, reply: Frames, now: float) -> None:
        try:
            found = _queues.decoded(_queues.lend(lend.queues, 1, 1, 1), reply, self._endpoint)
        except Error as error:
            with self._lock:
                lend.subscription.not_before = now + PAUSE_SECONDS
                self._fail(error)
            return
        with self._lock:
            if not found and now - lend.begun < WAIT_SECONDS / 2:
                # The server ends, or too many wait.
                lend.subscription.not_before = now + PAUSE_SECONDS
            for lent in found:
                held = Held(lent, lend.subscription)
                self._held[lent.lend_key] = held
                lend.subscription.held += 1
                if self._is_closing or lent.queue not in lend.subscription.queues or lend.subscription.room() < 0:
                    self._end(held, _queues.not_begun(lent))
                else:
                    lend.subscription.arrived += 1
                    self._arrived.append(held)
            self._signal()

    def _receive_settled(self, items: List[Tuple[Held, bytes, bool]], reply: Frames) -> None:
        try:
            results = _queues.settle([b""])[1](reply)
        except Error as error:
            _log.error("%d messages are left to the end of their leases: %s", len(items), error)
            return
        for (held, _, is_again), result in zip(items, results):
            # One that was sent before may have been executed then.
            if result != _queues.DONE and not is_again:
                _log.warning("the lease of message %r of %r had ended: it runs again", held.lent.key, held.lent.queue)

    def _receive_extended(self, part: List[Held], reply: Frames) -> None:
        try:
            results = _queues.settle([b""])[1]([bytes((_queues.SETTLE,)) + reply[0][1:]])
        except Error as error:
            _log.error("%d leases are not extended: %s", len(part), error)
            return
        with self._lock:
            for held, result in zip(part, results):
                if result == _queues.REFUSED and held.lent.lend_key in self._held:
                    held.is_lost = True
                    _log.warning("the lease of message %r of %r has ended", held.lent.key, held.lent.queue)
        if _queues.NO_ROOM in results:
            _log.error("%d leases are not extended: %s", results.count(_queues.NO_ROOM), _queues.no_room())
