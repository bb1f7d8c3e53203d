"""Exchanges, bindings and temporary queues. They stand in a task queue of their own, so that they survive a restart.

Nobody lends these tasks. Each is one of these records:

```text
key                                group      value
e │ exchange                       e          its type
b │ exchange │ routing key │ queue  b:exchange how long a message stays in the queue
t │ queue                          t          a temporary queue is there
a │ queue │ number                 a          its owner lives. This record expires, and its owner adds the next one
```
A temporary queue without a record ``a`` is nobody's. Who makes a temporary queue removes those first. Whoever may add
tasks to the queue may add others than these. They are passed over.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

from .. import _queues, _spiderq
from .._kv import Command
from .._queue_records import BrowsedTask, add_options
from ..errors import Denied
from .names import Names
from .session import Session

_log = logging.getLogger("spindle")
_CUT = b"\0"
# A temporary queue whose owner has not been there for so many seconds is removed, or after its "x-expires" if that is more.
ALIVE_SECONDS = 60.0
# The seconds between two looks of a process for temporary queues that are nobody's.
SWEEP_SECONDS = 60.0
_FIRST_BYTES = 1_024
# The types of exchanges.
KINDS = frozenset(("direct", "topic", "fanout"))
# The names in the key of each record, and the place of that of its queue.
_NAMES = {"e": 1, "b": 3, "t": 1, "a": 2}
_QUEUE = {"b": 2, "t": 0, "a": 0}
_QUEUE_BYTES_MAX = 255


class Record(NamedTuple):
    """A task of the queue that is one of the records above."""

    kind: str
    names: List[str]
    key: bytes
    first: bytes

    @classmethod
    def of(cls, task: BrowsedTask) -> "Record":
        """That of a task. Raises ValueError if it is none."""
        kind, *names = task.key.decode().split(_CUT.decode())
        if _NAMES.get(kind) != len(names):
            raise ValueError(f"it is of the kind {kind!r} and has {len(names)} names")
        return cls(kind, names, task.key, task.first)

    @property
    def queue(self) -> Optional[str]:
        """The queue that it is about. None: it is about an exchange."""
        return self.names[_QUEUE[self.kind]] if self.kind in _QUEUE else None


class Binding(NamedTuple):
    """A queue gets the messages of an exchange with a routing key. ``ttl``: they go after so many seconds."""

    exchange: str
    routing_key: str
    queue: str
    ttl: Optional[float] = None

    @property
    def key(self) -> bytes:
        """The key of its record."""
        return _CUT.join((b"b", self.exchange.encode(), self.routing_key.encode(), self.queue.encode()))

    @classmethod
    def of(cls, record: Record) -> "Binding":
        """That of a record. Raises ValueError if it is none."""
        ttl = json.loads(record.first or b"null")
        if ttl is not None and (type(ttl) not in (int, float) or not 0 <= ttl < float("inf")):
            raise ValueError("its TTL is no number of seconds")
        exchange, routing_key, queue = record.names
        return cls(exchange, routing_key, queue, ttl)


def _key(kind: bytes, *parts: str) -> bytes:
    return _CUT.join((kind, *(part.encode() for part in parts)))


class Bindings:
    """The records of a virtual host."""

    def __init__(self, session: Session, names: Names) -> None:
        self._session = session
        self._names = names
        self._queue = names.bindings
        self._swept = float("-inf")
        self._number = 0
        self._is_fault_logged = False

    def _add(self, key: bytes, group: str, value: Any = None, expires: Optional[float] = None) -> Command[List[bool]]:
        encoded = b"" if value is None else json.dumps(value).encode()
        return _queues.add([self._queue], key, encoded, False, add_options(group=group, expires=expires))

    def _remove(self, key: bytes) -> Command[bool]:
        return _queues.in_queue(self._queue, _spiderq.remove(key))

    def _browse(self, group: Optional[str]) -> Iterator[BrowsedTask]:
        place: Optional[bytes] = _queues.FIRST_PLACE
        while place is not None:
            place, tasks = self._session.run(_queues.browse(self._queue, "ready", group, place, _FIRST_BYTES))
            yield from tasks

    def _records(self, group: Optional[str]) -> Iterator[Record]:
        for task in self._browse(group):
            try:
                record = Record.of(task)
                if record.queue is not None and not self._is_possible(record.queue):
                    raise ValueError("its queue has a name that no queue can have")
            except ValueError as error:
                self._pass_over(task.key, error)
            else:
                yield record

    def _is_possible(self, queue: str) -> bool:
        return bool(queue) and len(self._names.task_queue(queue).encode()) <= _QUEUE_BYTES_MAX

    def _bindings(self, group: Optional[str]) -> Iterator[Binding]:
        for record in self._records(group):
            if record.kind == "b":
                try:
                    yield Binding.of(record)
                except ValueError as error:
                    self._pass_over(record.key, error)

    def _pass_over(self, key: bytes, fault: Exception) -> None:
        if not self._is_fault_logged:
            self._is_fault_logged = True
            _log.warning("%s has tasks that are no records, such as %r: %s", self._queue, key, fault)

    # ------------------------------------------------------------------------------------------------------- exchanges

    def exchange(self, name: str) -> Optional[str]:
        """The type of an exchange. None: nobody has declared it, or its record is damaged."""
        key = _key(b"e", name)
        found = self._session.run(_queues.in_queue(self._queue, _spiderq.lookup(key)))
        kind = None
        try:
            kind = None if found is None else json.loads(found)
            if found is not None and (not isinstance(kind, str) or kind not in KINDS):
                raise ValueError("it has no known type of an exchange")
        except ValueError as error:
            self._pass_over(key, error)
            return None
        return kind

    def declare_exchange(self, name: str, kind: str) -> None:
        """There is an exchange of this type."""
        key = _key(b"e", name)
        is_new = all(self._session.run(self._add(key, "e", kind)))
        if not is_new and self.exchange(name) is None:
            self._session.run(_queues.in_queue(self._queue, _spiderq.update(key, json.dumps(kind).encode())))

    def delete_exchange(self, name: str) -> None:
        """There is no such exchange, and it has no bindings."""
        gone = [self._remove(binding.key) for binding in self.of_exchange(name)]
        self._session.run_many([*gone, self._remove(_key(b"e", name))])

    # -------------------------------------------------------------------------------------------------------- bindings

    def of_exchange(self, name: str) -> List[Binding]:
        """The bindings of an exchange, as they are now."""
        return [binding for binding in self._bindings(f"b:{name}") if binding.exchange == name]

    def of_all(self) -> List[Binding]:
        """The bindings of all exchanges."""
        return list(self._bindings(None))

    def add(self, binding: Binding) -> None:
        """The binding is there."""
        self._session.run(self._add_binding(binding))

    def _add_binding(self, binding: Binding) -> Command[List[bool]]:
        return self._add(binding.key, f"b:{binding.exchange}", binding.ttl)

    def remove(self, binding: Binding) -> None:
        """The binding is not there."""
        self._session.run(self._remove(binding.key))

    # ------------------------------------------------------------------------------------------------ temporary queues

    def declare_temporary(self, queue: str, seconds: float) -> None:
        """There is a temporary queue. Its messages are not synced to the disk."""
        self.sweep()
        self._session.run(self._add(self._alive(queue), "a", None, max(seconds, ALIVE_SECONDS)))
        self._session.run(self._add(_key(b"t", queue), "t"))
        self._configure(queue, "never")

    def _alive(self, queue: str) -> bytes:
        # Numbers of several owners differ, and so do those of one that starts again.
        self._number = max(self._number + 1, time.time_ns())
        return _key(b"a", queue, str(self._number))

    def refreshed(
        self, queue: str, seconds: float, bindings: List[Binding], before: Optional[bytes]
    ) -> Tuple[bytes, List[Command[Any]]]:
        """The owner of a temporary queue lives: the requests that say so, and the key for the next time."""
        alive = self._alive(queue)
        commands: List[Command[Any]] = [
            self._add(alive, "a", None, max(seconds, ALIVE_SECONDS)),
            self._add(_key(b"t", queue), "t"),
            *(self._add_binding(binding) for binding in bindings),
        ]
        if before is not None:
            commands.append(self._remove(before))
        return alive, commands

    def delete_queue(self, queue: str, is_temporary: bool) -> int:
        """There is no such queue, with its bindings and messages. Returns the number of these."""
        return self._delete(queue, list(self._records(None)), is_temporary)

    def _delete(self, queue: str, records: List[Record], is_temporary: bool) -> int:
        gone = [self._remove(record.key) for record in records if record.kind in "ab" and record.queue == queue]
        if gone:
            self._session.run_many(gone)
        # Messages of a temporary queue expire, if this user may not remove them.
        count = self.purge(queue, "ready", "delayed", "dead", is_quiet=is_temporary)
        if is_temporary:
            self._configure(queue, None)
            # The last one: a process that ends before it does not forget the queue.
            self._session.run(self._remove(_key(b"t", queue)))
        return count

    def purge(self, queue: str, *states: str, is_quiet: bool = False) -> int:
        """Removes the messages of a queue in these states."""
        command = _queues.purge(self._names.task_queue(queue), states, 0)
        try:
            return self._session.run(command, 600.0)
        except Denied:
            if not is_quiet:
                _log.warning("the messages of %s stay: only a user with the permission admin may purge a queue", queue)
            return 0

    def _configure(self, queue: str, sync: Optional[str]) -> None:
        try:
            self._session.run(_queues.configure(self._names.task_queue(queue), {"sync": sync}))
        except Denied:
            # Only a user with the permission admin may configure a queue. Then its messages are synced as others are.
            pass

    def sweep(self) -> None:
        """Removes the temporary queues that are nobody's, unless this process has just done so."""
        now = time.monotonic()
        if now - self._swept < SWEEP_SECONDS:
            return
        self._swept = now
        there = [record.queue for record in self._records("t") if record.kind == "t"]
        # An owner adds its next record before it removes the one before, so this finds one of them.
        alive = {record.queue for record in self._records("a") if record.kind == "a"}
        gone = [queue for queue in there if queue is not None and queue not in alive]
        records = list(self._records(None)) if gone else []
        for queue in gone:
            self._delete(queue, records, True)
