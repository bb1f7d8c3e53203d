"""The copy of a table: what is known of each key, and the rules by which it is merged.

```text
                       row of a scan                       change of the feed
key not known          taken; ahead as it is marked        taken
known, same round      the highest version wins            the highest version wins; not ahead from its version on
known, older round     taken; ahead as it is marked        taken; if it is older than what is known: kept, ahead
known, not trusted     taken; ahead as it is marked        taken
```
A *round* is one scan of the table, and the changes that have come since it began. A key that the round has not
confirmed is swept away when its scan is over. A key that was last confirmed before another epoch, or before a wrong
digest, is not trusted: anything outranks it. Deletions are remembered until the copy is exact, because a row that was
read before a deletion may come after it. A key is *ahead* while the copy has a version of it that the feed has not
published yet.

The digest is computed when it is compared: a key that has changed a hundred times since is hashed once. This module
knows no sequence and asks no server.
"""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from . import _feed
from ._xxh3 import xxh3_64

_MASK = (1 << 64) - 1
# Keys whose hashes may be due, before they are computed although nobody asks.
_DUE_MAX = 1 << 16


class Change(NamedTuple):
    """A change of a mirror's copy, with raw bytes."""

    key: bytes
    value: Optional[bytes]
    version: int
    deadline: int
    cause: Optional[int]


class Known:
    """What is known of a key."""

    __slots__ = ("deadline", "hash", "is_ahead", "round", "value", "version")

    def __init__(self, value: Optional[bytes], version: int, deadline: int, round: int, is_ahead: bool) -> None:
        # None: the key is deleted, and the deletion is remembered.
        self.value = value
        self.version = version
        # Milliseconds since 1970, or 0.
        self.deadline = deadline
        # The last round that has confirmed it.
        self.round = round
        # The feed has not published this version yet. It counts in the present round only.
        self.is_ahead = is_ahead
        # Its part of the digest, or 0 if there is none yet.
        self.hash = 0


class TableCopy:
    """The copy. It is exact only if its owner says so."""

    def __init__(self) -> None:
        self.known: Dict[bytes, Known] = {}
        # Elements with a value.
        self.elements = 0
        self._sum = 0
        # Keys that have changed since the sum was computed, with what the sum has of them.
        self._due: Dict[bytes, int] = {}
        # Keys of the present round that are ahead.
        self.ahead = 0
        self.round = 0
        # The first round that is trusted, and the number of keys of rounds before it.
        self._trusted = 0
        self._untrusted = 0
        # None: nobody takes the events.
        self.events: Optional[List[Change]] = None

    def digest(self) -> int:
        """The wrapping sum over the elements of the hash of the key, seeded with the version."""
        if self._due:
            total, known = self._sum, self.known
            for key, old in self._due.items():
                entry = known.get(key)
                if entry is None or entry.value is None:
                    total -= old
                else:
                    entry.hash = xxh3_64(key, entry.version)
                    total += entry.hash - old
            self._sum = total & _MASK
            self._due.clear()
        return self._sum

    def is_trusted(self) -> bool:
        """Whether all that is known is trusted. Otherwise an equal digest proves nothing, because a version
        represents a value only within one epoch.
        """
        return self._untrusted == 0

    def begin_round(self, distrust: bool) -> None:
        """Begins a round. With ``distrust``, all that is known is outranked by what comes."""
        self.round += 1
        self.ahead = 0
        if distrust:
            self._trusted = self.round
            self._untrusted = len(self.known)

    def merge_row(self, row: _feed.Row) -> None:
        """Merges a row of the present round's scan."""
        key, value, version, deadline, mark = row
        self._merge(
            key,
            None if mark == _feed.DELETED else value,
            int.from_bytes(version, "big"),
            int.from_bytes(deadline, "big"),
            mark != _feed.PUBLISHED,
            None,
        )

    def merge_change(self, change: _feed.Change, remember: bool) -> None:
        """Merges a change of the feed. Without ``remember``, a deletion leaves nothing behind."""
        cause, version, deadline, key, value = change
        if cause & _feed.LIVE:
            self._merge(key, value, version, deadline, False, cause)
        elif remember:
            self._merge(key, None, version, deadline, False, cause)
        else:
            self._remove(key, version, cause)

    def _merge(
        self, key: bytes, value: Optional[bytes], version: int, deadline: int, is_ahead: bool, cause: Optional[int]
    ) -> None:
        known = self.known.get(key)
        if known is None:
            self._insert(key, value, version, deadline, is_ahead, cause)
            return
        is_present = known.round == self.round
        was_ahead = is_present and known.is_ahead
        is_untrusted = known.round < self._trusted
        outranks = is_untrusted or version > known.version
        if is_untrusted:
            self._untrusted -= 1
        is_row = cause is None
        known.round = self.round
        if not outranks and version < known.version and (is_present or not is_row):
            # The change was on its way while an earlier round read a later version, which is still to be published.
            known.is_ahead = was_ahead or not is_present
            self.ahead += known.is_ahead - was_ahead
            return
        if not outranks and is_row and is_present:
            # The row of a change that has come.
            known.is_ahead = was_ahead
        else:
            known.is_ahead = is_ahead
        self.ahead += known.is_ahead - was_ahead
        if not outranks and version == known.version:
            return
        was_live = known.value is not None
        self._touch(key, known)
        self.elements += (value is not None) - was_live
        known.value, known.version, known.deadline = value, version, deadline
        if self.events is not None and (was_live or value is not None):
            self.events.append(Change(key, value, version, deadline, cause))

    def _insert(
        self, key: bytes, value: Optional[bytes], version: int, deadline: int, is_ahead: bool, cause: Optional[int]
    ) -> None:
        self.known[key] = Known(value, version, deadline, self.round, is_ahead)
        self.ahead += is_ahead
        if value is not None:
            self.elements += 1
            self._due.setdefault(key, 0)
            if self.events is not None:
                self.events.append(Change(key, value, version, deadline, cause))

    def _touch(self, key: bytes, known: Known) -> None:
        """The key's part of the digest is due anew."""
        if key not in self._due:
            self._due[key] = known.hash if known.value is not None else 0
            if len(self._due) > _DUE_MAX:
                due = self._due.pop(key)
                self.digest()
                self._due[key] = due

    def _remove(self, key: bytes, version: int, cause: int) -> None:
        """Removes an element by a deletion that is not older."""
        known = self.known.get(key)
        if known is None or known.version > version:
            return
        self._forget(key, known)
        if known.value is not None and self.events is not None:
            self.events.append(Change(key, None, version, 0, cause))

    def _forget(self, key: bytes, known: Known) -> None:
        if known.value is not None:
            self._touch(key, known)
            self.elements -= 1
        self.ahead -= known.round == self.round and known.is_ahead
        self._untrusted -= known.round < self._trusted
        del self.known[key]

    def sweep(self) -> None:
        """The scan of this round is over: removes what the round has not confirmed."""
        self._take(lambda known: known.round != self.round, None)

    def settle(self) -> None:
        """The copy is exact: forgets the deletions, and nothing is ahead any more."""
        if self.ahead:
            for known in self.known.values():
                known.is_ahead = False
            self.ahead = 0
        if len(self.known) > self.elements:
            self._take(lambda known: known.value is None, None)

    def clear(self) -> None:
        """The table is gone: removes all."""
        self._take(lambda known: True, _feed.DELETE_WITH_TABLE)

    def _take(self, is_taken: Callable[[Known], bool], cause: Optional[int]) -> None:
        taken: List[Tuple[bytes, Known]] = [item for item in self.known.items() if is_taken(item[1])]
        for key, known in taken:
            self._forget(key, known)
            if known.value is not None and self.events is not None:
                self.events.append(Change(key, None, 0, 0, cause))
