"""The protocol of tasks, without I/O: each function makes a command, as in ``_kv.py``.

A request is one frame: tag (1) │ fields. ``bytes`` are length (4) │ bytes. The server returns the frames before it.
"""

from __future__ import annotations

import math
from struct import Struct, error as struct_error
from typing import Dict, NamedTuple, Optional, Tuple

from ._kv import Command, Frames, seconds_of
from .errors import BadRequest, Denied, Error, KeyTooLong, Malformed, OutOfDisk, OutOfMemory, UnknownCommand, ValueTooLong

_U32 = Struct(">I")
_U64 = Struct(">Q")

PENALTY, REWARD, FRONT, DROP = "penalty", "reward", "front", "drop"
STATUSES = {PENALTY: b"\x01", REWARD: b"\x02", FRONT: b"\x03", DROP: b"\x04"}
_DONE = b"\x07"
# Reply tags.
_COUNTED, _ADDED, _KEPT, _UPDATED, _NOT_FOUND, _LENT, _REPAID = 1, 2, 3, 4, 5, 6, 7
_HEARTBEATEN, _SKIPPED, _STATS, _ERROR, _VALUE_FOUND, _VALUE_NOT_FOUND = 8, 9, 10, 11, 13, 14
_QUEUE_EMPTY, _PONG, _REMOVED, _NOT_REMOVED = 16, 17, 18, 19
# Errors: a tag that is unknown, or not for this user; a status that is unknown; keys and values that are too long.
_UNKNOWN_TAG, _UNKNOWN_STATUS = 2, 14
_KEY_ERRORS, _VALUE_ERRORS = (4, 10, 40, 45, 48, 58, 69), (6, 12, 42, 71)
_FAN_OUT_VALUE = 71
# There are too many queues.
_TOO_MANY_QUEUES = 72
_COUNTERS = {
    8: ("count", "add", "update", "lookup", "lend", "repay", "heartbeat", "stats"),
    10: ("ping", "count", "add", "update", "lookup", "remove", "lend", "repay", "heartbeat", "stats"),
}


class Lent(NamedTuple):
    """A task under a lease."""

    lend_key: int
    key: bytes
    value: bytes


def _field(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def _millis(seconds: float) -> bytes:
    """Rounded up, so that a lease does not end early."""
    millis = seconds_of(seconds, "a lease") * 1000
    return _U64.pack((1 << 64) - 1 if millis >= 1 << 64 else math.ceil(millis))


def _fault(reply: bytes) -> Error:
    if reply[:1] != bytes((_ERROR,)) or len(reply) < 2:
        return Malformed(f"no server of tasks answers there: {reply[:16]!r}")
    number = reply[1]
    if number == _UNKNOWN_TAG:
        return Denied("the user may not do this with tasks, or the server is too old for it")
    if number == _UNKNOWN_STATUS:
        return UnknownCommand("the server of tasks does not know this status: it is older than this package")
    if number in _KEY_ERRORS:
        return KeyTooLong("the key of a task has 32 KiB at most")
    if number in _VALUE_ERRORS:
        if reply[6:10] == bytes(4):
            return OutOfDisk("the disk of the server of tasks has no room for more")
        both = ", and what one request adds to all its queues 32" if number == _FAN_OUT_VALUE else ""
        return ValueTooLong(f"the value of a task has 16 MiB at most{both}")
    if number == _TOO_MANY_QUEUES:
        return OutOfMemory("the server of tasks has no place for another queue: purge those that are not needed")
    return BadRequest(f"the server of tasks refuses the request with error {number}")


def _either(request: bytes, yes: int, no: Optional[int]) -> Command[bool]:
    """A request with two answers."""

    def decode(reply: Frames) -> bool:
        tag = reply[0][0] if reply[0] else -1
        if tag not in (yes, no):
            raise _fault(reply[0])
        return tag == yes

    return [request], decode


def ping() -> Command[bool]:
    return _either(b"\x0b", _PONG, None)


def add(key: bytes, value: bytes, is_front: bool) -> Command[bool]:
    return _either(b"\x02" + _field(key) + _field(value) + (b"\x01" if is_front else b"\x02"), _ADDED, _KEPT)


def update(key: bytes, value: bytes) -> Command[bool]:
    return _either(b"\x03" + _field(key) + _field(value), _UPDATED, _NOT_FOUND)


def remove(key: bytes) -> Command[bool]:
    return _either(b"\x0c" + _field(key), _REMOVED, _NOT_REMOVED)


def repay(lent: Lent, value: bytes, status: str) -> Command[bool]:
    if status not in STATUSES:
        raise ValueError(f"a task is repaid with {', '.join(STATUSES)}, not {status!r}")
    return _repay(lent, value, STATUSES[status])


def done(lent: Lent) -> Command[bool]:
    """The task goes with its key and value. An older server raises :class:`spindle.UnknownCommand`."""
    return _repay(lent, b"", _DONE)


def _repay(lent: Lent, value: bytes, status: bytes) -> Command[bool]:
    request = b"\x05" + _U64.pack(lent.lend_key) + _field(lent.key) + _field(value) + status
    return _either(request, _REPAID, _NOT_FOUND)


def heartbeat(lent: Lent, seconds: float) -> Command[bool]:
    request = b"\x06" + _U64.pack(lent.lend_key) + _field(lent.key) + _millis(seconds)
    return _either(request, _HEARTBEATEN, _SKIPPED)


def count() -> Command[int]:
    def decode(reply: Frames) -> int:
        if len(reply[0]) != 5 or reply[0][0] != _COUNTED:
            raise _fault(reply[0])
        return int.from_bytes(reply[0][1:], "big")

    return [b"\x01"], decode


def lookup(key: bytes) -> Command[Optional[bytes]]:
    def decode(reply: Frames) -> Optional[bytes]:
        tag = reply[0][:1]
        if tag == bytes((_VALUE_NOT_FOUND,)):
            return None
        if tag != bytes((_VALUE_FOUND,)):
            raise _fault(reply[0])
        return _take(reply[0], 1)[0]

    return [b"\x09" + _field(key)], decode


def lend(seconds: float, is_blocking: bool) -> Command[Optional[Lent]]:
    """A task under a lease. Blocking: the reply comes when there is one. Otherwise None: there is none."""

    def decode(reply: Frames) -> Optional[Lent]:
        tag = reply[0][:1]
        if tag == bytes((_QUEUE_EMPTY,)):
            return None
        if tag != bytes((_LENT,)) or len(reply[0]) < 9:
            raise _fault(reply[0])
        key, at = _take(reply[0], 9)
        value, _ = _take(reply[0], at)
        return Lent(_U64.unpack_from(reply[0], 1)[0], key, value)

    return [b"\x04" + _millis(seconds) + (b"\x01" if is_blocking else b"\x02")], decode


def stats() -> Command[Dict[str, int]]:
    def decode(reply: Frames) -> Dict[str, int]:
        names = _COUNTERS.get((len(reply[0]) - 1) // 8)
        if reply[0][:1] != bytes((_STATS,)) or names is None:
            raise _fault(reply[0])
        return {name: _U64.unpack_from(reply[0], 1 + 8 * index)[0] for index, name in enumerate(names)}

    return [b"\x07"], decode


def _take(data: bytes, at: int) -> Tuple[bytes, int]:
    """The bytes at a place, and the place behind them."""
    try:
        (size,) = _U32.unpack_from(data, at)
    except struct_error:
        raise Malformed("a reply of the server of tasks is cut off") from None
    end = at + 4 + int(size)
    if end > len(data):
        raise Malformed("a reply of the server of tasks is cut off")
    return data[at + 4 : end], end
