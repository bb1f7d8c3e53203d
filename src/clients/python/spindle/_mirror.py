"""What both mirrors do: messages move between two links and the follower, and the copy is read as a mapping.

This file decides nothing: the follower does. It never waits either: a thread or an event loop polls the links.
"""

from __future__ import annotations

import inspect
import logging
import threading
from dataclasses import dataclass
from time import monotonic
from typing import Any, Callable, Dict, Generic, Iterator, List, Mapping, Optional, Tuple, TypeVar

from . import _feed, _kv
from ._copy import Change
from ._follower import ASK_CHANGES, ASK_PAGE, Asked, Follower
from ._kv import OK, Command, Entry, Frames, Key
from ._link import LinkLost, Security, address_of, open_link
from .codecs import Codec, as_bytes
from .errors import Closed, Denied, Error, FeedOff, KeyNotFound, Malformed, Timeout, refusal

K = TypeVar("K")
V = TypeVar("V")

# The pause after an answer with which the mirror can do nothing.
_PAUSE = 0.25
_NEVER = float("inf")
# So long after it was connected a feed has shown a bookmark.
_SILENCE = 2.0
NO_TABLE = b"TABLE NOT FOUND"
_WILDCARDS = ("*", "0.0.0.0", "::", "[::]")
_log = logging.getLogger("spindle")


@dataclass(frozen=True)
class MirrorChange(Generic[K, V]):
    """A change of a mirror's copy."""

    key: K
    value: Optional[V]
    """None: the element is gone."""
    version: int
    """Of the element or of its deletion. 0: a scan, or the end of the table, has shown that it is gone."""
    cause: Optional[str]
    """``set``, ``touch``, ``delete``, ``expire``, ``delete with the table``, ``cas``, ``increment``, ``evict``,
    ``restore``, ``append``, ``persist``, ``set a range``, ``increment by a float``, ``rename from``, ``rename to`` or
    ``copy to``. None: a scan has shown it."""


def feed_of(stats: Dict[str, Any], endpoint: str) -> str:
    """The endpoint of the feed, as STATS reports it to a client of ``endpoint``.

    >>> feed_of({"feed": {"endpoint": "tcp://0.0.0.0:5559"}}, "tcp://spindle.example:5555")
    'tcp://spindle.example:5559'
    """
    reported = (stats.get("feed") or {}).get("endpoint")
    if not reported:
        raise FeedOff(f"{endpoint} reports no feed: start the server with --feed, or name the endpoint with feed=…")
    host, _, port = str(reported).partition("://")[2].rpartition(":")
    if host in _WILDCARDS and endpoint.startswith("tcp://"):
        return f"tcp://{endpoint[6:].rpartition(':')[0]}:{port}"
    return str(reported)


def feed_command(endpoint: str) -> Command[str]:
    """Asks the server of ``endpoint`` for the endpoint of its feed."""
    request, decode = _kv.stats()

    def endpoint_in(reply: Frames) -> str:
        try:
            return feed_of(decode(reply), endpoint)
        except Denied:
            raise Denied("DENIED (only admins may ask for the endpoint of the feed: name it with feed=…)") from None

    return request, endpoint_in


class MirrorPump:
    """Two links and a follower. Its owner polls the links, calls :meth:`step`, and locks it."""

    def __init__(self, table: Key, endpoint: str, feed: str, security: Security, timeout: float) -> None:
        self.table = as_bytes(table)
        self.follower = Follower()
        # An answer that ends the hope to be exact, until the server says otherwise.
        self.problem: Optional[Error] = None
        self._topic = _feed.topic_of(self.table)
        self._timeout = timeout
        address_of(endpoint), address_of(feed)
        self._feed: Any = open_link(feed, "SUB", security, [self._topic])
        self._requests: Any = open_link(endpoint, "DEALER", security)
        self.links = [self._feed, self._requests]
        # The outstanding request. None for what the follower has asked: it only asks why the feed is silent.
        self._asked: Optional[Tuple[bytes, Optional[Asked], Frames]] = None
        self._count = 0
        # When the reply is late, and when the next request may be sent.
        self._late = _NEVER
        self._pause: Optional[float] = None
        # When a feed that is up has been silent for long.
        self._silence: Optional[float] = None

    def close(self) -> None:
        """Ends both connections."""
        for link in self.links:
            link.close("this mirror is closed")

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the parent of a fork."""
        return self._feed.closed is not None

    def due(self) -> float:
        """When a step is due although nothing has come."""
        pause = _NEVER if self._pause is None else self._pause
        silence = _NEVER if self._silence is None else self._silence
        return float(min(self._late, pause, silence, self._feed.due(), self._requests.due()))

    def step(self, now: float) -> None:
        """Takes what has come, and asks for what is needed."""
        self._receive_feed(now)
        self._receive_reply(now)
        while self._ask(now):
            self._receive_reply(now)

    def _receive_feed(self, now: float) -> None:
        try:
            for topic, payload in self._feed.step(now):
                if topic == self._topic:
                    self.follower.receive(_feed.decode(payload))
        except LinkLost as loss:
            self.follower.feed_lost()
            if not loss.was_up:
                self.problem = loss.error
        except (Malformed, ValueError) as error:
            self.problem = error if isinstance(error, Malformed) else Malformed("a message of the feed has two frames")
            self._feed.interrupt(str(self.problem), _PAUSE)
            self.follower.feed_lost()

    def _receive_reply(self, now: float) -> None:
        try:
            replies = self._requests.step(now)
        except LinkLost as loss:
            if not loss.was_up:
                self.problem = loss.error
            self._lose_request()
            return
        for reply in replies:
            if self._asked is None or reply[0] != self._asked[0]:
                continue
            _, asked, request = self._asked
            self._asked, self._late = None, _NEVER
            try:
                self._answer(asked, request, reply[2:] or [b""])
            except Error as error:
                self.problem = error
                self.follower.requests_lost()
                self._pause = now + _PAUSE
        if now >= self._late:
            self._requests.interrupt("a reply is late")
            self._lose_request()

    def _answer(self, asked: Optional[Asked], request: Frames, reply: Frames) -> None:
        follower = self.follower
        if asked is None:
            if reply[0] != OK and reply[1:2] != [NO_TABLE]:
                raise refusal(request, reply)
        elif reply[0] != OK:
            error = refusal(request, reply)
            answers: Dict[bytes, Callable[[], None]] = {
                NO_TABLE: follower.answer_no_table,
                b"BAD CURSOR": follower.answer_bad_cursor,
                b"COMPACTED": follower.answer_compacted,
            }
            answer = answers.get(reply[1] if len(reply) > 1 else b"")
            if answer is None:
                raise error
            answer()
        elif asked.kind == ASK_PAGE:
            follower.answer_page(*_feed.page_of(reply))
        elif asked.kind == ASK_CHANGES:
            follower.answer_changes([_feed.decode(payload) for payload in reply[1:]])
        else:
            follower.answer_state(_feed.state_of(reply))
        self.problem = None

    def _lose_request(self) -> None:
        self._asked, self._late = None, _NEVER
        self.follower.requests_lost()

    def _ask(self, now: float) -> bool:
        """Sends a request if one is needed. True: its reply may have come already."""
        silence, self._silence = self._silence, None
        if self._asked is not None or not self._requests.is_up:
            self._pause = None
            return False
        if not self.follower.wants():
            self._pause = None
            return self._ask_why_silent(now, silence)
        if self._pause is None:
            self._pause = now + self.follower.pause()
        if now < self._pause:
            return False
        self._pause = None
        asked = self.follower.ask()
        if asked is None:
            return False
        if asked.kind == ASK_PAGE:
            request = _feed.page_request(self.table, asked.argument)
        elif asked.kind == ASK_CHANGES:
            request = _feed.changes_request(self.table, asked.argument)
        else:
            request = _feed.state_request(self.table)
        return self._send(now, asked, request)

    def _ask_why_silent(self, now: float, silence: Optional[float]) -> bool:
        """A feed without a message may be one that the user may not read. The server says so if it is asked."""
        if self.follower.is_live or not self._feed.is_up:
            return False
        self._silence = now + _SILENCE if silence is None else silence
        if now < self._silence:
            return False
        self._silence = None
        return self._send(now, None, _feed.state_request(self.table))

    def _send(self, now: float, asked: Optional[Asked], request: Frames) -> bool:
        self._count += 1
        request_id = self._count.to_bytes(8, "big")
        self._asked, self._late = (request_id, asked, request), now + self._timeout
        self._requests.send(self._requests.encode((request_id, b"", *request)))
        return bool(self._requests.is_edge)


class MirrorView(Mapping[K, V]):
    """The copy as a mapping, which any thread may read."""

    def __init__(self, pump: MirrorPump, keys: Codec[K], values: Codec[V]) -> None:
        self._pump = pump
        self._copy = pump.follower.copy
        self._keys = keys
        self._values = values
        # Who reads more than one element, and who steps.
        self._lock = threading.Lock()
        self._listeners: List[Callable[[MirrorChange[K, V]], Any]] = []

    @property
    def table(self) -> bytes:
        """The name of the table."""
        return self._pump.table

    @property
    def exact(self) -> bool:
        """Whether the copy has all that was published before :attr:`at`, and nothing is known to be missing."""
        return self._pump.follower.is_exact and not self._pump.closed

    @property
    def at(self) -> Optional[_feed.Position]:
        """The position of the change that the copy needs next: epoch, incarnation, sequence. None: it has not begun."""
        return self._pump.follower.at()

    @property
    def metrics(self) -> Dict[str, int]:
        """Counters that only grow: ``changes`` taken, ``scans`` of the table, ``gaps`` that were filled, digests of the
        server that were equal (``verified``) and that should have been (``differences``).
        """
        follower = self._pump.follower
        return {name: getattr(follower, name) for name in ("changes", "scans", "gaps", "verified", "differences")}

    def __getitem__(self, key: Any) -> V:
        known = self._copy.known.get(as_bytes(self._keys.encode(key)))
        value = None if known is None else known.value
        if value is None:
            raise KeyNotFound(f"the mirror of {self.table!r} has no {key!r}")
        return self._values.decode(value)

    def __contains__(self, key: Any) -> bool:
        known = self._copy.known.get(as_bytes(self._keys.encode(key)))
        return known is not None and known.value is not None

    def entry(self, key: Any) -> Entry[V]:
        """The value with its version, and the deadline in seconds since 1970 as ``ttl``, or None. The element is there
        until the mirror says otherwise: an expiry is a change.
        """
        with self._lock:
            known = self._copy.known.get(as_bytes(self._keys.encode(key)))
            if known is None or known.value is None:
                raise KeyNotFound(f"the mirror of {self.table!r} has no {key!r}")
            deadline = known.deadline / 1000 if known.deadline else None
            return Entry(self._values.decode(known.value), known.version, deadline)

    def _raw(self) -> List[Tuple[bytes, bytes]]:
        with self._lock:
            return [(key, known.value) for key, known in self._copy.known.items() if known.value is not None]

    def __iter__(self) -> Iterator[K]:
        return map(self._keys.decode, [key for key, _ in self._raw()])

    def __len__(self) -> int:
        return self._copy.elements

    def __bool__(self) -> bool:
        return True

    def snapshot(self) -> "Tuple[Optional[_feed.Position], Dict[K, V]]":
        """The whole copy of one moment, and its position if it is exact."""
        with self._lock:
            position = self.at if self.exact else None
            raw = [(key, known.value) for key, known in self._copy.known.items() if known.value is not None]
        return position, {self._keys.decode(key): self._values.decode(value) for key, value in raw}

    def on_change(self, listener: Callable[[MirrorChange[K, V]], Any]) -> Callable[[MirrorChange[K, V]], Any]:
        """Calls a function with each :class:`MirrorChange` from now on, in order. It may be used as a decorator. An
        exception of the function is logged (``logging``, "spindle"). A function that takes long holds up the mirror.
        """
        if inspect.iscoroutinefunction(listener):
            raise TypeError("a listener is a plain function, which may make a task of a coroutine")
        with self._lock:
            self._listeners.append(listener)
            if self._copy.events is None:
                self._copy.events = []
        return listener

    # ----------------------------------------------------------------------------------------------------- for owners

    def _step(self) -> List[Change]:
        """One step, with the lock. Returns the changes for the listeners."""
        with self._lock:
            self._pump.step(monotonic())
            events = self._copy.events
            if not events:
                return []
            self._copy.events = []
            return events

    def _notify(self, changes: List[Change]) -> None:
        for key, value, version, _, cause in changes:
            for listener in list(self._listeners):
                try:
                    decoded = None if value is None else self._values.decode(value)
                    name = None if cause is None else _feed.cause_name(cause)
                    listener(MirrorChange(self._keys.decode(key), decoded, version, name))
                except Exception:
                    _log.exception("a listener of the mirror of %r has failed", self.table)

    def _exact_position(self) -> Optional[_feed.Position]:
        """The position of a copy that is exact. Raises what ends the hope for one."""
        if self._pump.closed:
            raise Closed("this mirror is closed, or was made before a fork")
        if self.exact:
            return self.at
        if self._pump.problem is not None:
            raise self._pump.problem
        return None

    def _late(self, timeout: float) -> Error:
        """Why it is not exact in time."""
        down = [link for link in self._pump.links if not link.is_up]
        why = f": no connection to {down[0].endpoint}: {down[0].problem}" if down else ""
        if not down and not self._pump.follower.is_live:
            why = f": nothing comes from {self._pump.links[0].endpoint}. Is it the feed of this server?"
        return Timeout(f"the mirror of {self.table!r} is not exact after {timeout:g} s{why}")
