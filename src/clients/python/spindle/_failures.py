"""What has failed of a worker's items, without I/O: how long each one rests, and whether its failure is logged."""

from __future__ import annotations

import random
import traceback
from collections import OrderedDict
from typing import Hashable, NamedTuple

# The seconds for which an item rests that has failed: at first, and at most.
BACKOFF_MIN, BACKOFF_MAX = 1.0, 300.0
# The seconds between two records of one item in the log.
LOG_SECONDS = 60.0
# Items that are remembered. Beyond that the one is forgotten whose last failure is longest ago.
ITEMS_MAX = 10_000


def reason_of(error: BaseException) -> str:
    """The last line of an exception as Python prints it.

    >>> reason_of(OSError("no route"))
    'OSError: no route'
    """
    lines = "".join(traceback.format_exception_only(type(error), error)).split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), type(error).__name__)


def pause_after(times: int, first: float, longest: float) -> float:
    """The seconds for which an item rests that has failed so many times: twice as long each time, less a jitter of up to
    a quarter.

    >>> pause_after(1, 0, 0), 6 <= pause_after(4, 1, 600) <= 8
    (0.0, True)
    """
    return min(first * 2.0 ** min(times - 1, 64), longest) * random.uniform(0.75, 1)


class _Failed:
    __slots__ = ("logged", "times")

    def __init__(self) -> None:
        self.times = 0
        self.logged = -LOG_SECONDS


class Failure(NamedTuple):
    """The failure of an item."""

    times: int
    """How often it has failed by now, without a success between."""
    pause: float
    """The seconds for which it rests."""
    is_logged: bool


class Failures:
    """The failures of a worker's items. Its owner locks it.

    >>> failures = Failures()
    >>> [failures.note("page-1", now) for now in (100, 110)][1][::2], failures.note("page-2", 110).is_logged
    ((2, False), True)
    """

    def __init__(self) -> None:
        self._failed: "OrderedDict[Hashable, _Failed]" = OrderedDict()

    def note(self, item: Hashable, now: float) -> Failure:
        """An item has failed. It rests for a second, and for twice as long each further time, less a jitter of up
        to a quarter.
        """
        failed = self._failed.setdefault(item, _Failed())
        self._failed.move_to_end(item)
        if len(self._failed) > ITEMS_MAX:
            self._failed.popitem(last=False)
        failed.times += 1
        pause = pause_after(failed.times, BACKOFF_MIN, BACKOFF_MAX)
        is_logged = now - failed.logged >= LOG_SECONDS
        if is_logged:
            failed.logged = now
        return Failure(failed.times, pause, is_logged)

    def forget(self, item: Hashable) -> None:
        """An item has succeeded."""
        self._failed.pop(item, None)
