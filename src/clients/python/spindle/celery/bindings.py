"""Exchanges, bindings and temporary queues. They stand in a task queue of their own, so that they survive a restart.

Nobody lends these tasks. Each is one of these records:

```text
key                                group      value
e │ exchange                       e          its type
b │ exchange │ routing key │ queue  b:exchange how long a message stays in the queue
t │ queue                          t          a temporary queue is there
a │ queue │ number                 a          its owner lives. This record expires, and its owner adds the next one
```
A temporary queue without a record ``a`` is nobody's. Who makes a temporary queue removes those first.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from .. import _queues, _spiderq
from .._kv import Command
from .._queue_records import BrowsedTask, add_options
from ..errors import Denied
from .session import Session

_log = logging.getLogger("spindle")
_NAME = "kombu.bindings"
_CUT = b"\0"
# A temporary queue whose owner has not been there for so many seconds is removed, or after its "x-expires" if that is more.
ALIVE_SECONDS = 60.0
# The seconds between two looks of a process for temporary queues that are nobody's.
SWEEP_SECONDS = 60.0
_FIRST_BYTES = 1_024


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
    def of(cls, task: BrowsedTask) -> "Binding":
        """That of a record."""
        _, exchange, routing_key, queue = (part.decode() for part in task.key.split(_CUT))
        return cls(exchange, routing_key, queue, json.loads(task.first or b"null"))


def _key(kind: bytes, *parts: str) -> bytes:
    return _CUT.join((kind, *(part.encode() for part in parts)))


class Bindings:
    """The records of a virtual host."""

    def __init__(self, session: Session, prefix: str) -> None:
        self._session = session
        self._prefix = prefix
        self._queue = prefix + _NAME
        self._swept = float("-inf")
        self._number = 0

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

    # ------------------------------------------------------------------------------------------------------- exchanges

    def exchange(self, name: str) -> Optional[str]:
        """The type of an exchange. None: nobody has declared it."""
        found = self._session.run(_queues.in_queue(self._queue, _spiderq.lookup(_key(b"e", name))))
        return None if found is None else str(json.loads(found))

    def declare_exchange(self, name: str, kind: str) -> None:
        """There is an exchange of this type."""
        self._session.run(self._add(_key(b"e", name), "e", kind))

    def delete_exchange(self, name: str) -> None:
        """There is no such exchange, and it has no bindings."""
        gone = [self._remove(binding.key) for binding in self.of_exchange(name)]
        self._session.run_many([*gone, self._remove(_key(b"e", name))])

    # -------------------------------------------------------------------------------------------------------- bindings

    def of_exchange(self, name: str) -> List[Binding]:
        """The bindings of an exchange, as they are now."""
        return [Binding.of(task) for task in self._browse(f"b:{name}")]

    def of_all(self) -> List[Binding]:
        """The bindings of all exchanges."""
        return [Binding.of(task) for task in self._browse(None) if task.key.startswith(b"b" + _CUT)]

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
        return self._delete(queue, list(self._browse(None)), is_temporary)

    def _delete(self, queue: str, records: List[BrowsedTask], is_temporary: bool) -> int:
        own = queue.encode()
        kinds: Dict[bytes, int] = {b"b": 3, b"a": 1}
        gone = []
        for record in records:
            parts = record.key.split(_CUT)
            place = kinds.get(parts[0])
            if place is not None and parts[place] == own:
                gone.append(self._remove(record.key))
        if gone:
            self._session.run_many(gone)
        count = self.purge(queue, "ready", "delayed", "dead") if is_temporary else self.purge(queue, "ready", "delayed")
        if is_temporary:
            self._configure(queue, None)
            # The last one: a process that ends before it does not forget the queue.
            self._session.run(self._remove(_key(b"t", queue)))
        return count

    def purge(self, queue: str, *states: str) -> int:
        """Removes the messages of a queue in these states."""
        command = _queues.purge(self._prefix + queue, states, 0)
        try:
            return self._session.run(command, 600.0)
        except Denied:
            _log.warning("the messages of %s stay: only a user with --admin may purge a queue", queue)
            return 0

    def _configure(self, queue: str, sync: Optional[str]) -> None:
        try:
            self._session.run(_queues.configure(self._prefix + queue, {"sync": sync}))
        except Denied:
            # Only a user with --admin may configure a queue. Then its messages are synced as others are.
            pass

    def sweep(self) -> None:
        """Removes the temporary queues that are nobody's, unless this process has just done so."""
        now = time.monotonic()
        if now - self._swept < SWEEP_SECONDS:
            return
        self._swept = now
        there = [record.key.split(_CUT)[1] for record in self._browse("t")]
        # An owner adds its next record before it removes the one before, so this finds one of them.
        alive: Set[bytes] = {record.key.split(_CUT)[1] for record in self._browse("a")}
        gone = [queue for queue in there if queue not in alive]
        records = list(self._browse(None)) if gone else []
        for queue in gone:
            self._delete(queue.decode(), records, True)
