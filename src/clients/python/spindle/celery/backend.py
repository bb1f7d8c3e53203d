"""The result backend of Celery: ``spindle://user:password@host:5555/table?publish=host:5556``."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, TypeVar, Union
from urllib.parse import parse_qsl, urlsplit

from celery import states
from celery.backends.asynchronous import AsyncBackendMixin
from celery.backends.base import BaseKeyValueStoreBackend, _create_chord_error_with_cause
from celery.canvas import maybe_signature
from celery.exceptions import ChordError, ImproperlyConfigured
from celery.result import GroupResult
from celery.utils.functional import _regen
from kombu.utils.url import url_to_parts

from ..client import Client
from ..codecs import as_bytes
from ..errors import Denied, Disconnected, Malformed, TableExists, Timeout, ValueTooLong, VersionMismatch
from ..table import Table
from . import deadline, options
from .chords import Chord, Part
from .results import ResultConsumer

T = TypeVar("T")
Key = Union[bytes, str]

_log = logging.getLogger("spindle")
DEFAULT_PORT = 5555
TIMEOUT_SECONDS = 10.0
DEFAULT_TABLE = "celery-results"
# Keys that every server takes, and the values that results need.
KEY_BYTES_MAX = 64
VALUE_BYTES = 1 << 20
# Why the server is away. The requests of a backend may be repeated.
AWAY = (Disconnected, Timeout)
# The seconds before each further try.
_PAUSES = (0.0, 0.2, 0.4, 0.6, 0.8, *[1.0] * 15)
# The options of the URL.
_QUERY = ("publish",)


class _ResultClient(Client):
    """A client whose requests end with the time of the caller of ``get()``."""

    @property
    def timeout(self) -> float:
        """The seconds of the next request."""
        return min(self._seconds, deadline.left())

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._seconds = seconds


def _check_query(url: str) -> None:
    """Raises if the URL has an option that nobody reads."""
    for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if name not in _QUERY:
            known = ", ".join(_QUERY)
            raise ImproperlyConfigured(f"the URL of the results has the unknown option {name!r}: known is {known}")


class SpindleBackend(BaseKeyValueStoreBackend, AsyncBackendMixin):
    """Results and chords in a table, which is on disk before a result is acknowledged.

    ``get()`` waits for the table's notifications (``--publish``). ``result_backend_transport_options``: ``durability``
    of the table when it is made (``"always"``), and ``timeout`` of each request (10 seconds).
    """

    ResultConsumer = ResultConsumer
    supports_autoexpire = True
    supports_native_join = True
    persistent = True

    def __init__(self, url: Optional[str] = None, expires: Any = None, **kwargs: Any) -> None:
        super().__init__(url=url, **kwargs)
        found = url_to_parts(url or "spindle://")
        _check_query(url or "")
        given = self.app.conf.get(options.RESULTS) or {}
        options.check(options.RESULTS, given)
        host = found.hostname or "localhost"
        self.expires = self.prepare_expires(expires, type=int)
        self._endpoint = f"{host}:{found.port or DEFAULT_PORT}"
        self._publish = found.query.get("publish") or None
        self._user, self._password = found.username or None, found.password or None
        self._timeout = options.seconds(options.RESULTS, given, "timeout", TIMEOUT_SECONDS)
        self._durability = str(given.get("durability", "always"))
        self._name = (found.path or "").strip("/") or DEFAULT_TABLE
        self._lock = threading.Lock()
        self._process = 0
        self._client: Optional[Client] = None
        self._table: "Optional[Table[bytes, bytes]]" = None
        self.result_consumer = self.ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    # -------------------------------------------------------------------------------------------------- the table

    @property
    def table(self) -> "Table[bytes, bytes]":
        """The table. A process makes its own connection, also after a fork."""
        if self._process != os.getpid():
            self._lock, self._client, self._table, self._process = threading.Lock(), None, None, os.getpid()
        if self._table is None:
            # Without the lock, since each thread has its own time. Several threads may do it at once.
            self._table = self._made(self._connected())
        return self._table

    def _connected(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = _ResultClient(
                    self._endpoint, timeout=self._timeout, publish=self._publish, user=self._user, password=self._password
                )
            return self._client

    def _made(self, client: Client) -> "Table[bytes, bytes]":
        try:
            client.create_table(self._name, durability=self._durability)
        except TableExists:
            pass
        except Malformed as error:
            raise Malformed(f"{self._endpoint}: {error}. The URL of the results names the port of --kv") from None
        except Denied:
            if self._name not in client.tables():
                raise
        table = client.table(self._name)
        try:
            # This version cannot be that of an element, so nothing is stored.
            table.cas("celery-max-value", (1 << 64) - 1, bytes(VALUE_BYTES))
        except ValueTooLong:
            raise ImproperlyConfigured(
                f"results of Celery may have a mebibyte, and the server at {self._endpoint} takes less: "
                "start it with --max-value 1M or more"
            ) from None
        except VersionMismatch:
            pass
        return table

    def notifications(self) -> Any:
        """The changes of the table from now on."""
        table = self.ensure(lambda: self.table)
        try:
            return self.ensure(lambda: table._client.notifications(self._name))
        except AWAY as error:
            raise Disconnected(f"results are awaited through notifications (--publish): {error}") from None

    def key_of(self, key: Key) -> bytes:
        """The key of an element. One that is too long is replaced by its hash."""
        encoded = as_bytes(key)
        return encoded if len(encoded) <= KEY_BYTES_MAX else hashlib.sha256(encoded).hexdigest().encode()

    def ensure(self, call: Callable[[], T]) -> T:
        """Repeats a request while the server is away, as long as the thread has time."""
        for pause in _PAUSES:
            try:
                return call()
            except AWAY:
                if deadline.left() <= pause:
                    raise
                time.sleep(pause)
        return call()

    # ------------------------------------------------------------------------------------------------- key and value

    def get(self, key: Key) -> Optional[bytes]:
        """The value, or None."""
        return self.ensure(lambda: self.table.get(self.key_of(key)))

    def mget(self, keys: Sequence[Key]) -> List[Optional[bytes]]:
        """The values, in the order of their keys."""
        hashed = [self.key_of(key) for key in keys]
        found = self.ensure(lambda: self.table.get_many(hashed))
        return [found.get(key) for key in hashed]

    def set(self, key: Key, value: Union[bytes, str]) -> None:
        """Stores a value, which expires with ``result_expires``."""
        encoded = as_bytes(value)
        try:
            self.ensure(lambda: self.table.set(self.key_of(key), encoded, self.expires or 0))
        except ValueTooLong as error:
            raise ValueTooLong(
                f"a result has {len(encoded)} bytes, which is more than the --max-value of the server: {error}"
            ) from None

    def delete(self, key: Key) -> None:
        """Deletes an element."""
        self.ensure(lambda: self.table.delete(self.key_of(key)))

    def expire(self, key: Key, value: Any) -> None:
        """Gives an element a new TTL."""
        self.ensure(lambda: self.table.touch(self.key_of(key), value or 0))

    # ---------------------------------------------------------------------------------------------------- chords

    @property
    def chord_seconds(self) -> float:
        """How long the parts of a chord are kept. 0: for ever."""
        # Celery 5.7 has a setting of its own.
        return float(getattr(self, "chord_expires", self.expires) or 0)

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """A chord has so many parts. Celery says it before it publishes the last one."""
        Chord(self, group_id).begin(chord_size)

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """A chord has another part."""
        Chord(self, chord_id).add(result.id)

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        """A chord begins. The structure of its header is kept if there are groups within."""
        if isinstance(header_result_args[1], _regen):
            return
        header = self.app.GroupResult(*header_result_args)
        if any(isinstance(result, GroupResult) for result in header.results):
            header.save(backend=self)

    def on_chord_part_return(self, request: Any, state: Any, result: Any, **kwargs: Any) -> Any:
        """Counts a part of a chord, and calls its body after the last one."""
        if not request.group or not request.id:
            return None
        chord = Chord(self, request.group)
        if chord.is_done():
            return None
        index = getattr(request, "group_index", None)
        part = Part(str(index) if type(index) is int and index >= 0 else "", request.id)
        own = self.encode([state, self.encode_result(result, state)])
        self.ensure(lambda: self.table.set(chord.result_key(part), as_bytes(own), self.chord_seconds))
        parts = chord.count(part)
        if parts is None or not chord.claim():
            return None
        callback = maybe_signature(request.chord, app=self.app)
        try:
            return self._call_body(callback, self._joined(chord, request.group, parts))
        except Exception as error:
            _log.exception("the chord %s fails", request.group)
            failure = error if isinstance(error, ChordError) else ChordError(f"Join error: {error!r}")
            return self.chord_error_from_stack(callback, failure)
        finally:
            chord.end(parts)

    def _call_body(self, callback: Any, results: Any) -> None:
        # Celery 5.7 repeats it while the broker is away.
        publish = getattr(self.app.amqp, "_retry_publish", None)
        try:
            publish(callback.delay, results) if publish else callback.delay(results)
        except Exception as error:
            raise ChordError(f"Callback error: {error!r}") from error

    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, store_result: bool = True, state: str = states.SUCCESS
    ) -> None:
        """A task has succeeded. Its chord knows it first: when a process dies in between, and Celery finds the result, it
        takes the task for done.
        """
        if request and request.chord:
            self.on_chord_part_return(request, state, result)
        if store_result and not (request and getattr(request, "ignore_result", False)):
            self.store_result(task_id, result, state, request=request)

    def _joined(self, chord: Chord, group: str, parts: List[Part]) -> List[Any]:
        """The results of a chord's header, in their structure."""
        found = self.mget([chord.result_key(part) for part in parts])
        results = [self._result_of(part, own) for part, own in zip(parts, found)]
        header = GroupResult.restore(group, backend=self, app=self.app)
        if header is None:
            return results
        by_task = {part.task: result for part, result in zip(parts, results)}
        return [self._structured(node, by_task) for node in header.results]

    def _structured(self, node: Any, by_task: Dict[str, Any]) -> Any:
        if isinstance(node, GroupResult):
            return [self._structured(child, by_task) for child in node.results]
        if node.id not in by_task:
            raise ChordError(f"the result of {node.id} is not there: it is no part of the chord")
        return by_task[node.id]

    def _result_of(self, part: Part, own: Optional[bytes]) -> Any:
        if own is None:
            raise ChordError(f"the result of {part.task} has expired: raise result_expires")
        state, result = self.decode(own)
        if state in states.EXCEPTION_STATES:
            result = self.exception_to_python(result)
        if state in states.PROPAGATE_STATES:
            raise _create_chord_error_with_cause(message=f"Dependency {part.task} raised {result!r}", original_exc=result)
        return result

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {"url": self.url, "expires": self.expires, **(kwargs or {})})


__all__ = ["SpindleBackend"]
