"""The protocol of queues by name, without I/O: each function makes a command, as in ``_spiderq.py``.

```text
name      length (1) │ bytes               list      count (2) │ as many
options   count (1) │ pairs of tag (1) │ value
lease     name │ lend key (8) │ key
```
"""

from __future__ import annotations

from struct import Struct, error as struct_error
from typing import Any, Dict, List, Optional, Sequence, Tuple, TypeVar, Union

from ._kv import Command, Frames
from ._queue_records import FIGURES, NO_TIME, STATES, BrowsedTask, LentTask, QueueCounts, Rate
from ._queue_records import millis, name_of, reason_of, settings, swept
from ._spiderq import _fault, _field
from .errors import Denied, Error, Malformed, OutOfDisk, ValueTooLong

_U16, _U32, _U64 = Struct(">H"), Struct(">I"), Struct(">Q")
_QUEUE_EMPTY = 16
IN_QUEUE, ADD, LEND, SETTLE, EXTEND, BROWSE, KICK, PURGE, CONFIGURE, QUEUES = range(0x20, 0x2A)
# Names, leases or queues of one request.
LIST_MAX = 1_024
VALUE_BYTES_MAX = 16 << 20
PAGE = _U32.pack(1_000)
FIRST_PLACE = bytes(32)
# What became of one of many.
REFUSED, DONE, NO_ROOM = 0, 1, 2

# The requests within IN_QUEUE that look only: count, stats and lookup.
_LOOKS = (1, 7, 9)

Name = Union[bytes, str]
T = TypeVar("T")


def _needed(request: bytes) -> str:
    """The permission that a request needs, and its first queue."""
    at = 3 if request[0] in (ADD, LEND, SETTLE, EXTEND) else 1
    end = at + 1 + request[at]
    looks = request[0] == BROWSE or request[0] == IN_QUEUE and request[end] in _LOOKS
    permission = "admin" if request[0] in (PURGE, CONFIGURE) else "read" if looks else "write"
    return f"the permission {permission} for the task queue {request[at + 1 : end].decode('utf-8', 'replace')!r}"


def decoded(command: Command[T], reply: Frames, endpoint: str) -> T:
    """The result of a request about queues. Errors name the server, and the permission that is missing."""
    (request, *_), decode = command
    try:
        return decode(reply)
    except Malformed as error:
        raise Malformed(f"{endpoint}: {error}") from None
    except Denied:
        needed = "this" if request[0] == QUEUES else _needed(request)
        raise Denied(f"{endpoint}: the user has not {needed}, or the server is too old for it") from None


class _Reader:
    """Reads the fields of a reply."""

    def __init__(self, reply: Frames, tag: int) -> None:
        self.data = reply[0]
        self.at = 1
        if self.data[:1] != bytes((tag,)):
            raise _fault(self.data)

    def number(self, kind: Struct) -> int:
        try:
            (number,) = kind.unpack_from(self.data, self.at)
        except struct_error:
            raise Malformed("a reply of the server of tasks is cut off") from None
        self.at += kind.size
        return int(number)

    def byte(self) -> int:
        return self.raw(1)[0]

    def raw(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise Malformed("a reply of the server of tasks is cut off")
        found = self.data[self.at : end]
        self.at = end
        return found

    def run(self) -> bytes:
        return self.raw(self.number(_U32))

    def name(self) -> bytes:
        return self.raw(self.byte())


def _list(parts: Sequence[bytes]) -> bytes:
    if not 1 <= len(parts) <= LIST_MAX:
        raise ValueError(f"a request names 1 to {LIST_MAX} queues or leases, not {len(parts)}")
    return _U16.pack(len(parts)) + b"".join(parts)


def _items(request: bytes) -> Command[List[int]]:
    """A request whose reply has a byte for each of its items."""

    def decode(reply: Frames) -> List[int]:
        reader = _Reader(reply, request[0])
        return list(reader.raw(reader.number(_U32)))

    return [request], decode


def in_queue(queue: Name, command: Command[Any]) -> Command[Any]:
    """One of the old requests, in the queue of this name."""
    (request,), decode = command
    return [bytes((IN_QUEUE,)) + name_of(queue) + request], decode


def add(queues: Sequence[Name], key: bytes, value: bytes, is_front: bool, options: bytes) -> Command[List[bool]]:
    """A task for each of these queues, in one batch. False: the queue has a task with this key."""
    if len(value) > VALUE_BYTES_MAX:
        # The server closes the connection of a larger one.
        raise ValueTooLong("the value of a task has 16 MiB at most: keep what is larger elsewhere")
    names = _list([name_of(queue) for queue in queues])
    mode = b"\x01" if is_front else b"\x02"
    frames, decode = _items(bytes((ADD,)) + names + _field(key) + _field(value) + mode + options)

    def decode_all(reply: Frames) -> List[bool]:
        found = decode(reply)
        if NO_ROOM in found:
            raise no_room()
        return [item == DONE for item in found]

    return frames, decode_all


def no_room() -> Error:
    """The error of a task for which there is no room."""
    return OutOfDisk("the server has no room for more tasks: its disk is full, or it has --max-tasks of them")


def lend(queues: Sequence[Name], count: int, lease: float, wait: float) -> Command[List[LentTask]]:
    """At most so many tasks of these queues, in their order. None for ``wait`` seconds: an empty list."""
    names = [name_of(queue) for queue in queues]
    numbers = _U32.pack(count) + _U64.pack(millis(lease, "a lease")) + _U64.pack(millis(wait, "a wait"))

    def decode(reply: Frames) -> List[LentTask]:
        if reply[0][:1] == bytes((_QUEUE_EMPTY,)):
            return []
        reader = _Reader(reply, LEND)
        found = []
        for _ in range(reader.number(_U32)):
            queue = names[reader.number(_U16)][1:]
            lend_key, tries = reader.number(_U64), reader.number(_U32)
            found.append(LentTask(queue, lend_key, tries, reader.run(), reader.run()))
        return found

    return [bytes((LEND,)) + _list(names) + numbers], decode


def _lease(lent: LentTask) -> bytes:
    return name_of(lent.queue) + _U64.pack(lent.lend_key) + _field(lent.key)


def done(lent: LentTask) -> bytes:
    """The task is done and gone. This and the following are items of :func:`settle`."""
    return _lease(lent) + b"\x07"


def give_back(lent: LentTask, delay: Optional[float], reason: str) -> bytes:
    """The task has failed, and is ready again after the delay. None: after its backoff."""
    wait = NO_TIME if delay is None else min(NO_TIME - 1, millis(delay, "a delay"))
    return _lease(lent) + b"\x08" + _U64.pack(wait) + reason_of(reason)


def bury(lent: LentTask, reason: str) -> bytes:
    """The task has failed for good."""
    return _lease(lent) + b"\x09" + reason_of(reason)


def not_begun(lent: LentTask) -> bytes:
    """The task was not begun, and this was no try."""
    return _lease(lent) + b"\x0a"


def settle(items: Sequence[bytes]) -> Command[List[int]]:
    """Ends leases, each in its way."""
    return _items(bytes((SETTLE,)) + _list(items))


def extend(leases: Sequence[Tuple[LentTask, float]]) -> Command[List[int]]:
    """Leases end so many seconds from now."""
    items = [_lease(lent) + _U64.pack(millis(seconds, "a lease")) for lent, seconds in leases]
    return _items(bytes((EXTEND,)) + _list(items))


def browse(
    queue: Name, state: str, group: Optional[Name], place: bytes, first_bytes: int
) -> Command[Tuple[Optional[bytes], List[BrowsedTask]]]:
    """A page of tasks, and the place of the next one. None: there is no further page."""
    if state not in STATES:
        raise ValueError(f"tasks are {', '.join(STATES)}, not {state!r}")
    chosen = b"\x00" if group is None else b"\x01" + (name_of(group) if group else b"\x00")
    request = bytes((BROWSE,)) + name_of(queue) + bytes((STATES[state],)) + chosen + place + PAGE

    def decode(reply: Frames) -> Tuple[Optional[bytes], List[BrowsedTask]]:
        reader = _Reader(reply, BROWSE)
        more, following = reader.byte(), reader.raw(32)
        found = [_browsed(reader) for _ in range(reader.number(_U32))]
        return (following if more else None), found

    return [request + _U32.pack(first_bytes)], decode


def _browsed(reader: _Reader) -> BrowsedTask:
    key, priority, tries = reader.run(), reader.number(_U32), reader.number(_U32)
    group, age, left = reader.name(), reader.number(_U64) / 1000, reader.number(_U64)
    reason = reader.run().decode("utf-8", "replace")
    size, first = reader.number(_U64), reader.run()
    return BrowsedTask(key, priority, tries, group, age, None if left == NO_TIME else left / 1000, reason, size, first)


def _counted(request: bytes) -> Command[int]:
    return [request], lambda reply: _Reader(reply, request[0]).number(_U64)


def kick_one(queue: Name, key: bytes) -> Command[int]:
    """The task of this key is ready, if it was dead or delayed. 0: it was neither."""
    return _counted(bytes((KICK,)) + name_of(queue) + b"\x00" + _field(key))


def kick(queue: Name, state: str, most: Optional[int]) -> Command[int]:
    """So many dead or delayed tasks are ready. None: all."""
    kinds = {"dead": b"\x01", "delayed": b"\x02"}
    if state not in kinds:
        raise ValueError(f"a kick makes tasks ready that are {' or '.join(kinds)}, not {state!r}")
    return _counted(bytes((KICK,)) + name_of(queue) + kinds[state] + _U64.pack(NO_TIME if most is None else most))


def purge(queue: Name, states: Tuple[str, ...], older: float) -> Command[int]:
    """Removes the tasks that have been in one of these states for so many seconds."""
    return _counted(bytes((PURGE,)) + name_of(queue) + swept(states) + _U64.pack(millis(older, "an age")))


def configure(queue: Name, given: Dict[str, Any]) -> Command[None]:
    """Changes settings of a queue."""

    def decode(reply: Frames) -> None:
        _Reader(reply, CONFIGURE)

    return [bytes((CONFIGURE,)) + name_of(queue) + settings(given)], decode


def queues(place: int) -> Command[Tuple[Optional[int], List[Tuple[bytes, QueueCounts]]]]:
    """A page of queues, and the place of the next one. None: there is no further page."""

    def decode(reply: Frames) -> Tuple[Optional[int], List[Tuple[bytes, QueueCounts]]]:
        reader = _Reader(reply, QUEUES)
        more, following = reader.byte(), reader.number(_U32)
        found = [(reader.name(), _counts(reader)) for _ in range(reader.number(_U32))]
        return (following if more else None), found

    return [bytes((QUEUES,)) + _U32.pack(place) + PAGE], decode


def _counts(reader: _Reader) -> QueueCounts:
    known: Dict[str, Any] = {name: reader.number(_U64) for name in FIGURES}
    oldest, pause = reader.number(_U64), reader.number(_U64)
    for _ in range(reader.byte()):
        known.update(_setting(reader))
    return QueueCounts(
        oldest=None if oldest == NO_TIME else oldest / 1000,
        is_paused=pause != 0,
        pause_left=None if pause in (0, NO_TIME) else pause / 1000,
        **known,
    )


def _setting(reader: _Reader) -> Dict[str, Any]:
    tag = reader.byte()
    if tag == 1:
        return {"tries": reader.number(_U32)}
    if tag == 2:
        return {"backoff": (reader.number(_U32) / 1000, reader.number(_U32) / 1000)}
    if tag == 3:
        return {"group_limit": reader.number(_U32)}
    if tag == 4:
        count, per, burst = (reader.number(_U32) for _ in range(3))
        return {"rate": Rate(count, per / 1000, burst)}
    if tag == 6:
        sync = reader.number(_U64)
        return {"sync": {0: "always", NO_TIME: "never"}.get(sync, sync / 1000)}
    raise Malformed(f"the server of tasks has a setting {tag} that this package does not know: install a newer one")
