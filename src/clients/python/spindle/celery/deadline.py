"""The time that the caller of ``get()`` has left. The requests of its thread end with it."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from time import monotonic
from typing import Iterator, Optional

_own = threading.local()


def left() -> float:
    """The seconds that this thread has left. Infinite if nothing bounds it."""
    return max(0.0, getattr(_own, "until", float("inf")) - monotonic())


@contextmanager
def within(seconds: Optional[float]) -> Iterator[None]:
    """The thread has so many seconds for what it does here. None: no bound of its own."""
    before = getattr(_own, "until", float("inf"))
    _own.until = before if seconds is None else min(before, monotonic() + seconds)
    try:
        yield
    finally:
        _own.until = before
