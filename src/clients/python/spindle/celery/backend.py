"""The result backend of Celery: ``spindle://user:password@host:5555/table?publish=host:5556``."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import threading
import time
from typing import Any, Callable, List, Optional, Sequence, TypeVar, Union

from celery.backends.asynchronous import AsyncBackendMixin
from celery.backends.base import BaseKeyValueStoreBackend
from celery.exceptions import ImproperlyConfigured
from kombu.utils.functional import retry_over_time
from kombu.utils.url import url_to_parts

from ..client import Client
from ..codecs import as_bytes
from ..errors import Denied, Disconnected, KeyNotFound, TableExists, Timeout, ValueTooLong, VersionMismatch
from ..table import Table
from .results import ResultConsumer

T = TypeVar("T")
Key = Union[bytes, str]

_log = logging.getLogger("spindle")
DEFAULT_PORT = 5555
DEFAULT_TABLE = "celery-results"
# Keys that every server takes, and the values that results need.
KEY_BYTES_MAX = 64
VALUE_BYTES = 1 << 20
# So long a worker may take to call the body of a chord, before another one does.
CLAIM_SECONDS = 30.0
_DONE = b"done"
# Why the server is away. The requests of a backend may be repeated.
AWAY = (Disconnected, Timeout)
_RETRIES = {"max_retries": 20, "interval_start": 0, "interval_step": 0.2, "interval_max": 1}


class Parts(threading.local):
    """The part of a chord that the thread is counting, and the size of the chord."""

    part = b""
    size: Optional[int] = None


class SpindleBackend(BaseKeyValueStoreBackend, AsyncBackendMixin):
    """Results and chords in a table, which is on disk before a result is acknowledged.

    ``get()`` waits for the table's notifications (``--publish``). ``result_backend_transport_options``: ``durability``
    of the table when it is made (``"always"``), and ``timeout`` of each request (10 seconds).
    """

    ResultConsumer = ResultConsumer
    supports_autoexpire = True
    supports_native_join = True
    implements_incr = True
    persistent = True

    def __init__(self, url: Optional[str] = None, expires: Any = None, **kwargs: Any) -> None:
        super().__init__(url=url, **kwargs)
        found = url_to_parts(url or "spindle://")
        options = self.app.conf.get("result_backend_transport_options") or {}
        host = found.hostname or "localhost"
        self.expires = self.prepare_expires(expires, type=int)
        self._endpoint = f"{host}:{found.port or DEFAULT_PORT}"
        self._publish = found.query.get("publish") or None
        self._user, self._password = found.username or None, found.password or None
        self._timeout = float(options.get("timeout", 10.0))
        self._durability = str(options.get("durability", "always"))
        self._name = (found.path or "").strip("/") or DEFAULT_TABLE
        self._lock = threading.Lock()
        self._process = 0
        self._table: "Optional[Table[bytes, bytes]]" = None
        self._parts = Parts()
        self.result_consumer = self.ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    # -------------------------------------------------------------------------------------------------- the table

    @property
    def table(self) -> "Table[bytes, bytes]":
        """The table. A process makes its own connection, also after a fork."""
        if self._process != os.getpid():
            self._lock, self._table, self._process = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._table is None:
                client = Client(
                    self._endpoint, timeout=self._timeout, publish=self._publish, user=self._user, password=self._password
                )
                self._table = self._made(client)
            return self._table

    def _made(self, client: Client) -> "Table[bytes, bytes]":
        try:
            client.create_table(self._name, durability=self._durability)
        except TableExists:
            pass
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
        table = self.table
        try:
            return self.ensure(lambda: table._client.notifications(self._name))
        except Disconnected as error:
            raise Disconnected(f"results are awaited through notifications (--publish): {error}") from None

    def key_of(self, key: Key) -> bytes:
        """The key of an element. One that is too long is replaced by its hash."""
        encoded = as_bytes(key)
        return encoded if len(encoded) <= KEY_BYTES_MAX else hashlib.sha256(encoded).hexdigest().encode()

    def ensure(self, call: Callable[[], T]) -> T:
        """Repeats a request while the server is away."""
        result: T = retry_over_time(call, AWAY, **_RETRIES)
        return result

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
        """Deletes an element. A chord that is over stays known for a while: parts of it may run again."""
        if as_bytes(key).startswith(as_bytes(self.chord_keyprefix)):
            self.ensure(lambda: self.table.set(self.key_of(key), _DONE, self.expires or 86_400))
            self.ensure(lambda: self.table.delete(self._claim_of(key)))
        else:
            self.ensure(lambda: self.table.delete(self.key_of(key)))

    def expire(self, key: Key, value: Any) -> None:
        """Gives an element a new TTL."""
        self.ensure(lambda: self.table.touch(self.key_of(key), value or 0))

    def _claim_of(self, key: Key) -> bytes:
        return self.key_of(as_bytes(key) + b"-claim")

    # ---------------------------------------------------------------------------------------------------- chords

    def on_chord_part_return(self, request: Any, state: Any, result: Any, **kwargs: Any) -> Any:
        """Counts a part of a chord, and calls its body after the last one. A part that runs again, since its worker has
        died, counts once.
        """
        if not request.group or self.get(self.get_key_for_chord(request.group)) == _DONE:
            return None
        own = f"{request.id}:{getattr(request, 'group_index', None)}".encode()
        self._parts.part = hashlib.blake2b(own, digest_size=8).digest()
        self._parts.size = (request.chord or {}).get("chord_size")
        try:
            return super().on_chord_part_return(request, state, result, **kwargs)
        finally:
            self._parts.part = b""

    def incr(self, key: Key) -> int:
        """How many parts of a chord have returned by now, this one included. 0 if another worker calls the body."""
        count = self.ensure(lambda: self._count(self.key_of(key)))
        if self._parts.size is not None and count >= self._parts.size and not self._claim(key):
            return 0
        return count

    def _count(self, key: bytes) -> int:
        part, table = self._parts.part, self.table
        while True:
            try:
                entry = table.entry(key)
                version, value = entry.version, entry.value
            except KeyNotFound:
                version, value = 0, b""
            if value == _DONE:
                return 0
            parts = {value[at : at + len(part)] for at in range(0, len(value), len(part))}
            if part in parts:
                return len(parts)
            try:
                table.cas(key, version, value + part, self.expires or 0)
                return len(parts) + 1
            except VersionMismatch:
                time.sleep(random.uniform(0, 0.005))

    def _claim(self, key: Key) -> bool:
        """Whether this worker calls the body. If another one is about to, this waits until it has, or has died."""
        token = os.urandom(8)
        while True:
            if self.ensure(lambda: self.table.add(self._claim_of(key), token, CLAIM_SECONDS)):
                # The other one may just have called it.
                return self.get(key) != _DONE
            if self.get(key) == _DONE:
                return False
            if self.ensure(lambda: self.table.get(self._claim_of(key))) == token:
                # The reply to a request before was lost.
                return True
            time.sleep(random.uniform(0.05, 0.1))

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {"url": self.url, "expires": self.expires, **(kwargs or {})})


__all__ = ["SpindleBackend"]
