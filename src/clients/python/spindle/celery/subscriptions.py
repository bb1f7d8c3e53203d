"""What the channels of a connection consume, and what they hold."""

from __future__ import annotations

from time import monotonic
from typing import Iterable, List, NamedTuple, Optional

from .._queue_records import LentTask

# The messages that are taken at once for a channel that bounds them not.
UNBOUNDED_COUNT = 64


class Held:
    """A message under a lease."""

    __slots__ = ("is_lost", "lent", "subscription")

    def __init__(self, lent: LentTask, subscription: "Subscription") -> None:
        self.lent = lent
        self.subscription = subscription
        # Its lease has ended. Another consumer may have it.
        self.is_lost = False


class Lend(NamedTuple):
    """A request that waits for messages."""

    subscription: "Subscription"
    queues: List[bytes]
    most: int
    begun: float


class Subscription:
    """The queues of a channel. Guarded by the lock of the puller."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.queues: List[bytes] = []
        self.prefetch = 0
        # All messages that it has, and those of them that nobody has taken.
        self.held = self.arrived = 0
        # No request is sent before.
        self.not_before = 0.0
        self._turn = 0

    def room(self) -> int:
        """How many further messages it may have."""
        return self.prefetch - self.held if self.prefetch else UNBOUNDED_COUNT - self.arrived

    def next_lend(self, now: float, waiting: Iterable[Lend]) -> Optional[Lend]:
        """The request that is to be sent. None: it has no room, or one for the same queues waits already."""
        room = self.room()
        if room <= 0 or not self.queues or now < self.not_before:
            return None
        for lend in waiting:
            if lend.subscription is self and set(lend.queues) == set(self.queues):
                return None
        # Each queue has its turn to be the first one.
        self._turn = (self._turn + 1) % len(self.queues)
        return Lend(self, self.queues[self._turn :] + self.queues[: self._turn], room, monotonic())
