"""A mirror, for threads: an exact copy of a table. :class:`spindle.aio.Mirror` is for tasks."""

from __future__ import annotations

import os
import select
import sys
import threading
import weakref
from time import monotonic
from types import TracebackType
from typing import List, Optional, Tuple, Type, TypeVar

from ._feed import Position
from ._link import abandon_in_child
from ._mirror import MirrorChange, MirrorPump, MirrorView, _log
from .codecs import Codec
from .errors import Closed

K = TypeVar("K")
V = TypeVar("V")


class Mirror(MirrorView[K, V]):
    """An exact copy of a table in this process, that follows the server's feed (``--feed``). It is a mapping: reading
    costs no request. Make it with :meth:`spindle.Client.mirror`.

    The copy is *exact* at a position of the feed if it has all that was told before. Gaps, lost connections, another
    start of the server, and the deletion and re-creation of its table end with an exact copy again. Until then the old
    copy stays readable, and ``exact`` is False. Digests of the server check the copy.

    >>> birds = client.table("birds", create=True, codec=spindle.TEXT)
    >>> birds.set("heron", "grey")
    >>> mirror = client.mirror("birds", codec=spindle.TEXT, keys=spindle.TEXT)
    >>> mirror.wait_exact(timeout=10).sequence
    2
    >>> dict(mirror)
    {'heron': 'grey'}

    A live dashboard: a function is called with each change, in a thread of the mirror.

    >>> shown = queue.Queue()
    >>> @mirror.on_change
    ... def show(change):
    ...     shown.put(f"{change.key} is {change.value} ({change.cause})")
    >>> birds.set("stork", "white")
    >>> shown.get(timeout=10)
    'stork is white (set)'
    >>> mirror.close()
    """

    def __init__(self, pump: MirrorPump, keys: Codec[K], values: Codec[V]) -> None:
        super().__init__(pump, keys, values)
        self._changed = threading.Condition(self._lock)
        abandon_in_child(self)
        self._wake_out, self._wake_in = os.pipe()
        self._thread = threading.Thread(
            target=_follow, args=(weakref.ref(self), pump, self._wake_out), name="spindle-mirror", daemon=True
        )
        self._thread.start()

    def wait_exact(self, timeout: float) -> Position:
        """Waits until the copy is exact, and returns its position. Raises :class:`spindle.Timeout` if it is not in
        time, :class:`spindle.FeedOff` if the server has no feed, and :class:`spindle.Denied` if it does not let us in.
        """
        deadline = monotonic() + timeout
        with self._lock:
            while True:
                if self._pump.closed:
                    raise Closed("this mirror is closed, or was made before a fork")
                position = self.at
                if self.exact and position is not None:
                    return position
                if self._pump.problem is not None:
                    raise self._pump.problem
                left = deadline - monotonic()
                if left <= 0:
                    raise self._late(timeout)
                self._changed.wait(left)

    def close(self) -> None:
        """Stops following. The copy stays readable, and is not exact."""
        with self._lock:
            if self._pump.closed:
                return
            self._pump.close()
            self._changed.notify_all()
            try:
                os.write(self._wake_in, b"\0")
            except BrokenPipeError:
                # The thread has seen that nobody has the mirror.
                pass
        # The thread does not run any more when the interpreter ends.
        if self._thread is not threading.current_thread() and not sys.is_finalizing():
            self._thread.join()
        os.close(self._wake_in)

    def _abandon(self, reason: str) -> None:
        """After a fork, in the child: no thread has the lock."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()

    def __enter__(self) -> "Mirror[K, V]":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def _turn(self) -> None:
        """A turn of the thread."""
        changes = self._step()
        with self._lock:
            if self.exact or self._pump.problem is not None:
                self._changed.notify_all()
        if changes:
            self._tell(changes)


def _follow(own: "weakref.ref[Mirror[object, object]]", pump: MirrorPump, wake: int) -> None:
    """The thread. It holds its mirror only within a turn, so a mirror that nobody has ends."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    polled: List[Tuple[int, int]] = []
    try:
        while not pump.closed:
            mirror = own()
            if mirror is None:
                return
            try:
                mirror._turn()
            except Exception:
                _log.exception("the mirror of %r goes on after a fault of its own", pump.table)
            del mirror
            wanted = [interest for link in pump.links for interest in link.interests()]
            if wanted != polled:
                for fd, _ in polled:
                    poll.unregister(fd)
                for fd, events in wanted:
                    poll.register(fd, events)
                polled = wanted
            left = pump.due() - monotonic()
            poll.poll(min(3_600_000, max(0.0, left * 1000 + 1)))
    finally:
        os.close(wake)


__all__ = ["Mirror", "MirrorChange"]
