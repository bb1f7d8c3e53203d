"""A mirror's copy whose links a thread polls. ``spindle/aio/_polled.py`` has the same class with an event loop."""

from __future__ import annotations

import os
import select
import sys
import threading
import weakref
from time import monotonic
from typing import List, Optional, Tuple, TypeVar

from ._feed import Position
from ._link import abandon_in_child
from ._mirror import MirrorPump, MirrorView, _log
from .codecs import Codec

K = TypeVar("K")
V = TypeVar("V")


class PolledView(MirrorView[K, V]):
    """The copy, which a thread follows until it is closed or nobody has it."""

    def __init__(self, pump: MirrorPump, keys: Codec[K], values: Codec[V]) -> None:
        super().__init__(pump, keys, values)
        self._changed = threading.Condition(self._lock)
        abandon_in_child(self)
        self._wake_out, self._wake_in = os.pipe()
        self._thread = threading.Thread(
            target=_follow, args=(weakref.ref(self), pump, self._wake_out), name="spindle-mirror", daemon=True
        )
        self._thread.start()

    def _until_exact(self, timeout: float) -> Optional[Position]:
        """Waits until the copy is exact. None: it was not in time."""
        with self._changed:
            return self._changed.wait_for(self._exact_position, timeout)

    def _stop(self) -> None:
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
            self._stop()

    def _turn(self) -> None:
        """A turn of the thread."""
        changes = self._step()
        with self._lock:
            if self.exact or self._pump.problem is not None:
                self._changed.notify_all()
        if changes:
            self._notify(changes)


def _follow(own: "weakref.ref[PolledView[object, object]]", pump: MirrorPump, wake: int) -> None:
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
                _log.exception("the mirror of %r continues after a fault of its own", pump.table)
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


__all__ = ["PolledView"]
