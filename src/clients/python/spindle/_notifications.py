"""The notifications of a table (``--publish``), without I/O: each change by its key, without value or version.

A message has three frames: table │ kind (1) │ key. A subscription is a prefix, so messages of other tables come too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Deque, Generic, List, Optional, TypeVar

from ._kv import Frames, Key
from ._link import LinkLost, Security, open_link
from .codecs import Codec, as_bytes
from .errors import Error, Malformed

K = TypeVar("K")

DEFAULT_PORT = 5556
_KINDS = {b"\x00": "updated", b"\x01": "deleted"}


@dataclass(frozen=True)
class Notification(Generic[K]):
    """A change of a table."""

    kind: str
    """``updated`` or ``deleted``. ``missed``: the connection was lost and is there again, and changes between have no
    notification. Read again what you need.
    """
    key: Optional[K]
    """None if some were missed."""


class NotificationPump(Generic[K]):
    """A link whose messages become notifications. Its owner polls the link."""

    def __init__(self, table: Key, endpoint: str, security: Security, keys: Codec[K]) -> None:
        self.table = as_bytes(table)
        self.endpoint = endpoint
        self.link: Any = open_link(endpoint, "SUB", security, [self.table])
        self.link.is_confirmed_by_pong = True
        self.link.is_patient = False
        self.keys = keys
        # The connection was lost after it had begun.
        self._is_missing = self._had_begun = False
        # Why the server refuses the user, or is not there yet.
        self.problem: Optional[Error] = None

    @property
    def has_begun(self) -> bool:
        """Whether the server has the subscription."""
        return bool(self.link.is_confirmed)

    def step(self, now: float, into: "Deque[Notification[bytes]]") -> None:
        """Takes what has come. Keys stay bytes: a key that the codec refuses loses no other notification."""
        messages: List[Frames] = []
        try:
            messages = self.link.step(now)
        except LinkLost as loss:
            self.problem = loss.error
            self._is_missing = self._had_begun
        if self.has_begun:
            if self._is_missing:
                into.append(Notification("missed", None))
            self.problem, self._is_missing, self._had_begun = None, False, True
        for message in messages:
            if message[0] != self.table:
                continue
            if len(message) != 3 or message[1] not in _KINDS:
                raise Malformed(f"a notification has a table, a kind and a key: {message[:2]!r}")
            into.append(Notification(_KINDS[message[1]], message[2]))
