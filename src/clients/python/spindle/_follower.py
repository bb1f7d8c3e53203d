"""The algorithm of a mirror: it takes what the server has sent, and returns what to ask next. It does no I/O.

```text
         a first message, or one of another life
                     │
                     ▼         the server's state: life, and the sequence to begin with
 STARTING ──── FEED_STATE ───► SCANNING ──── SCAN … ───► SCANNED ──── FEED_STATE ───► ENDING ───► COMPLETE
    ▲                             │                                     `end`           │            │
    │                             └────── a bookmark at our sequence has our digest ────┴──────────► │
    └──────────── COMPACTED, BAD CURSOR, another life, a digest that counts and differs ─────────────┘
```
``next`` is the sequence that the copy needs next. Changes are taken in their order, without a gap, and only from
``next`` on. So a late or doubled message changes nothing. A message beyond ``next`` shows a gap: it is let go, and
CHANGES asks for all from ``next`` on. Why the copy is exact: ``src/feed/FEED.md``.

One request is outstanding at most. A server that contradicts itself makes the machine begin again, after longer and
longer pauses.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Tuple

from . import _feed
from ._copy import TableCopy
from ._feed import Message, Position, Row, State

Life = Tuple[int, int]
"""Epoch and incarnation: one life of a table in one start of the server. Incarnation 0: there is no such table."""

STARTING, SCANNING, SCANNED, ENDING, COMPLETE = range(5)
ASK_STATE, ASK_PAGE, ASK_CHANGES = range(3)
# Bookmarks at our sequence that may differ after the scan while rows are ahead. Each such row has a change on its way.
_DIFFERING_MAX = 64
# Requests in a row that may bring nothing before the machine begins anew.
_FRUITLESS_MAX = 8
# The first pause before a request after one that brought nothing, and its doublings.
_PAUSE = 0.01
_DOUBLINGS_MAX = 9


class Asked(NamedTuple):
    """The outstanding request."""

    kind: int
    argument: Any
    """The cursor of a page, or the position of CHANGES."""
    round: int
    next: int
    doubtful: Optional[Life]
    """The life of the message that made us ask."""


class Follower:
    """A copy that follows the feed of one table."""

    def __init__(self) -> None:
        self.copy = TableCopy()
        self.life: Optional[Life] = None
        self.next = 1
        self.is_exact = False
        # Counters.
        self.verified = self.differences = self.scans = self.gaps = self.changes = 0
        self._stage = STARTING
        self._cursor = b""
        self._end: Optional[State] = None
        # The highest incarnation of this epoch that is known to be over.
        self._ended = 0
        # The sequence behind the last one that the feed has shown. Above `next`: there is a gap.
        self._seen = 1
        # A message has come over the present connection to the feed.
        self.is_live = False
        # The life of a message that may be of a newer life than ours.
        self._doubtful: Optional[Life] = None
        # The next round trusts nothing that is known.
        self._distrusts = False
        self._asked: Optional[Asked] = None
        # Requests in a row that brought nothing, and rounds since a digest was equal.
        self._fruitless = 0
        self._failures = 0
        # Bookmarks of this round that differed while rows were ahead.
        self._differing = 0

    def at(self) -> Optional[Position]:
        """The position that the copy needs next. None: it has not begun."""
        return None if self.life is None else Position(*self.life, self.next)

    # -------------------------------------------------------------------------------------------------------- asking

    def _wanted(self) -> Optional[Tuple[int, Any]]:
        if self._asked is not None or not self.is_live:
            return None
        if self._doubtful is not None or self._stage == STARTING:
            return ASK_STATE, None
        if self.next < self._seen:
            return ASK_CHANGES, self.at()
        if self._stage == SCANNING:
            return ASK_PAGE, self._cursor
        return (ASK_STATE, None) if self._stage == SCANNED else None

    def wants(self) -> bool:
        """Whether there is a request to send, after :meth:`pause`."""
        return self._wanted() is not None

    def ask(self) -> Optional[Asked]:
        """The next request, if there is one and none is outstanding. The caller answers it, or says that it is lost."""
        wanted = self._wanted()
        if wanted is None:
            return None
        kind, argument = wanted
        if kind != ASK_PAGE:
            self._fruitless += 1
        doubtful = None
        if kind == ASK_STATE:
            doubtful, self._doubtful = self._doubtful, None
        self._asked = Asked(kind, argument, self.copy.round, self.next, doubtful)
        return self._asked

    def pause(self) -> float:
        """The seconds before the next request: none, unless the last ones were in vain."""
        vain = max(self._fruitless, self._failures if self._stage == STARTING else 0)
        return 0.0 if vain < 2 else _PAUSE * (1 << min(vain - 2, _DOUBLINGS_MAX))

    # ------------------------------------------------------------------------------------------------------- answers

    def _take_asked(self) -> Asked:
        asked, self._asked = self._asked, None
        assert asked is not None
        return asked

    def answer_state(self, state: State) -> None:
        """The reply to FEED_STATE: to begin with, to end with, or to compare with."""
        asked = self._take_asked()
        epoch, incarnation, sequence = state.position
        life = (epoch, incarnation)
        if self.life != life or self._stage == STARTING:
            self._begin(life, asked, sequence)
        else:
            if self._doubtful == life:
                self._doubtful = None
            if sequence < asked.next:
                # We are beyond the server: it has given a number twice.
                self._differs()
            else:
                if self._stage == SCANNED and asked.round == self.copy.round:
                    self._stage, self._end = ENDING, state
                if sequence == self.next:
                    self._compare(state.elements, state.digest)
        self._judge()

    def answer_page(self, cursor: bytes, rows: List[Row]) -> None:
        """The reply to SCAN."""
        asked = self._take_asked()
        if asked.round == self.copy.round and self._stage == SCANNING:
            self._fruitless = 0 if rows or cursor != self._cursor else self._fruitless + 1
            self._cursor = cursor
            merge = self.copy.merge_row
            for row in rows:
                merge(row)
            if not cursor:
                self._stage = SCANNED
                self.copy.sweep()
        self._judge()

    def answer_changes(self, messages: List[Message]) -> None:
        """The reply to CHANGES: the changes that were missed, or the first of them."""
        self._take_asked()
        before = self.next
        for message in messages:
            self._changes(message)
        if self.next == before and self.next < self._seen and self._fruitless >= _FRUITLESS_MAX:
            self._begin_again(False)
        self._judge()

    def answer_no_table(self) -> None:
        """TABLE NOT FOUND."""
        asked = self._take_asked()
        if asked.kind == ASK_STATE:
            self._no_table(asked)
        else:
            # The life is over. Only FEED_STATE decides.
            self._doubtful = self.life
        self._judge()

    def answer_bad_cursor(self) -> None:
        """BAD CURSOR."""
        if self._take_asked().round == self.copy.round:
            self._begin_again(False)
        self._judge()

    def answer_compacted(self) -> None:
        """COMPACTED."""
        self._take_asked()
        self._begin_again(False)
        self._judge()

    def requests_lost(self) -> None:
        """The connection for requests is lost, with the outstanding request. Another one may lead to another start of
        the server, so it is asked for its life before it is asked for anything else.
        """
        asked, self._asked = self._asked, None
        self._doubtful = self._doubtful or (asked and asked.doubtful) or self.life
        if asked is not None:
            self._fruitless = max(0, self._fruitless - 1)

    def _begin(self, life: Life, asked: Asked, sequence: int) -> None:
        """Begins a round at the sequence that comes next."""
        is_same = self.life == life
        is_new_epoch = self.life is None or self.life[0] != life[0]
        if is_new_epoch:
            self._ended = 0
        # A message may have come after the server was asked. But if we were beyond the server then, its word counts.
        self.next = max(self.next, sequence) if is_same and sequence >= asked.next else sequence
        self._seen = self.next
        self.copy.begin_round(is_new_epoch or self._distrusts)
        self._distrusts = False
        self.life = life
        if self._doubtful == life:
            self._doubtful = None
        self._stage, self._cursor = SCANNING, b""
        self._differing = 0
        self._failures += 1
        self.scans += 1

    def _begin_again(self, distrust: bool) -> None:
        """Waits for the state of the server, to begin a round."""
        self._distrusts = self._distrusts or distrust
        self._stage = STARTING

    def _no_table(self, asked: Asked) -> None:
        """There is no such table. The message that made us ask came before, so its life is over too."""
        found = asked.doubtful or self.life
        if found is None:
            return
        epoch = found[0]
        over = max((life[1] for life in (self.life, asked.doubtful) if life and life[0] == epoch), default=0)
        is_same_epoch = self.life is not None and self.life[0] == epoch
        self._ended = max(self._ended, over) if is_same_epoch else over
        was_there = self.life is None or self.life[1] != 0
        self.life = (epoch, 0)
        self.next = self._seen = 1
        self._distrusts = False
        self.copy.begin_round(True)
        self.copy.clear()
        self._complete()
        if was_there:
            # The copy of another life is exact from now on.
            self.is_exact = False

    # ----------------------------------------------------------------------------------------------------- receiving

    def feed_lost(self) -> None:
        """The connection to the feed is lost."""
        self.is_live = False
        self._judge()

    def receive(self, message: Message) -> None:
        """A message of the table's topic."""
        self.is_live = True
        kind = message.kind
        life = message.position[:2]
        if life != self.life:
            if not self._is_over(life):
                self._doubtful = life
        elif kind == _feed.CHANGES_TYPE:
            self._changes(message)
        elif kind == _feed.BOOKMARK_TYPE:
            self._bookmark(message)
        else:
            self._doubtful = life
        self._judge()

    def _is_over(self, life: Life) -> bool:
        """Whether this life is known to be over."""
        own = self.life
        return own is not None and own[0] == life[0] and life[1] != 0 and life[1] <= max(self._ended, own[1])

    def _note_seen(self, first: int, end: int) -> None:
        """The feed has shown these sequences."""
        if first > self.next and self._seen <= self.next:
            self.gaps += 1
        self._seen = max(self._seen, end)

    def _changes(self, message: Message) -> None:
        """Takes the changes from our sequence on, unless there is a gap."""
        first, changes = message.position.sequence, message.changes
        end = first + len(changes)
        self._note_seen(first, end)
        if self.next < first or end <= self.next:
            return
        if self.next > first:
            changes = changes[self.next - first :]
        merge = self.copy.merge_change
        if self._stage == COMPLETE:
            for change in changes:
                merge(change, False)
            self.next = end
        else:
            for change in changes:
                merge(change, self._stage != COMPLETE)
                self.next += 1
                if self._stage == ENDING and self._end is not None and self._end.position.sequence == self.next:
                    self._compare(self._end.elements, self._end.digest)
        self.changes += len(changes)
        self._fruitless = 0

    def _bookmark(self, message: Message) -> None:
        sequence = message.position.sequence
        self._note_seen(sequence, sequence)
        if sequence == self.next:
            self._compare(message.elements, message.digest)
        elif sequence < self.next and self._stage == COMPLETE:
            # An old bookmark. Or we are beyond the server: its answer decides.
            self._doubtful = self.life

    def _compare(self, elements: int, digest: int) -> None:
        """Compares the copy with what the server has published before our sequence."""
        copy = self.copy
        if copy.elements == elements and copy.digest() == digest:
            if copy.is_trusted():
                self.verified += 1
                self._failures = 0
                self._distrusts = False
                self._complete()
            return
        has_ended = self._stage == ENDING and self._end is not None and self.next >= self._end.position.sequence
        if has_ended and copy.ahead:
            self._differing += 1
        if self._stage == COMPLETE or (has_ended and (not copy.ahead or self._differing > _DIFFERING_MAX)):
            self._differs()

    def _differs(self) -> None:
        """The copy, or the server, is wrong. Nothing that is known is trusted."""
        self.differences += 1
        self._begin_again(True)

    def _complete(self) -> None:
        if self._stage != COMPLETE:
            self._stage = COMPLETE
            self.copy.settle()
        self._fruitless = 0

    def _judge(self) -> None:
        """Decides whether the copy is exact."""
        if self._stage == ENDING and self._end is not None:
            if self.next >= self._end.position.sequence and not self.copy.ahead:
                self._complete()
        self.is_exact = self._stage == COMPLETE and self.next >= self._seen and self.is_live
