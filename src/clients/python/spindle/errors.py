"""The errors of this package. All are types under :class:`Error`.

A refusal of the server is a :class:`Refused`, and each reason of the protocol has a type of its own. Some are built-in
errors too, so that ``except KeyError`` works:

>>> import spindle
>>> issubclass(spindle.KeyNotFound, KeyError) and issubclass(spindle.KeyNotFound, spindle.Error)
True
"""

from __future__ import annotations

from typing import Dict, Optional, Sequence, Type

__all__ = [
    "BadCursor",
    "BadRequest",
    "BadTableName",
    "BadTtl",
    "Closed",
    "Compacted",
    "ConnectionRefused",
    "Denied",
    "Disconnected",
    "DiskFailed",
    "Error",
    "FeedOff",
    "KeyNotFound",
    "KeyTooLong",
    "LeaseLost",
    "LockLost",
    "Malformed",
    "NotANumber",
    "OutOfDisk",
    "OutOfMemory",
    "OutOfRange",
    "Refused",
    "ReplyTooLong",
    "TableExists",
    "TableNotFound",
    "Timeout",
    "TooManyTables",
    "Unavailable",
    "UnknownCommand",
    "ValueTooLong",
    "VersionMismatch",
]


class Error(Exception):
    """Any error of this package."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message.
        return " ".join(str(part) for part in self.args)


class Timeout(Error, TimeoutError):
    """The server has not answered in time. The client stays usable, and a late reply is dropped.

    The server may have executed the request, or may execute it still if it has received it.
    """


class Closed(Error):
    """The client was closed, or it belongs to the parent process of a fork."""


class Disconnected(Error, ConnectionError):
    """There is no connection: nothing listens there, or the server has closed it."""


class ConnectionRefused(Disconnected, ConnectionRefusedError):
    """No server listens there. The request was not sent."""


class Malformed(Error):
    """The reply is not one of the protocol: another server listens there, or one of another version."""


class LockLost(Error):
    """The lock ended before its holder released it: another client may hold it now."""


class LeaseLost(Error):
    """The lease of a task or job ended before it was settled: another worker may have it now."""


class Refused(Error):
    """The server has refused the request, and has changed nothing.

    ``reason`` is the reason of the protocol.
    """

    reason = ""


class BadRequest(Refused):
    """The request has the wrong frames."""

    reason = "BAD REQUEST"


class UnknownCommand(Refused):
    """The server does not know the command: it is older than this package."""

    reason = "UNKNOWN COMMAND"


class BadTableName(Refused, ValueError):
    """The name of a table has 1 to 254 bytes, none of them NUL."""

    reason = "BAD TABLE NAME"


class TableExists(Refused):
    """There is a table of this name."""

    reason = "TABLE EXISTS"


class TableNotFound(Refused, LookupError):
    """There is no table of this name."""

    reason = "TABLE NOT FOUND"


class KeyTooLong(Refused, ValueError):
    """The key is longer than the server's ``--max-key``."""

    reason = "KEY TOO LONG"


class KeyNotFound(Refused, KeyError):
    """The table has no element with this key. It is a :class:`KeyError` too."""

    reason = "KEY NOT FOUND"


class ValueTooLong(Refused, ValueError):
    """The value is longer than the server's ``--max-value``."""

    reason = "VALUE TOO LONG"


class BadTtl(Refused, ValueError):
    """A TTL is a number of seconds below 2^32, or of milliseconds below 2^42."""

    reason = "BAD TTL"


class VersionMismatch(Refused):
    """The element has another version. ``current`` is the version that it has, or 0 if it is absent."""

    reason = "VERSION MISMATCH"
    current: int = 0


class OutOfMemory(Refused):
    """The server's ``--max-memory`` is reached."""

    reason = "OUT OF MEMORY"


class OutOfDisk(Refused):
    """The server's disk is full."""

    reason = "OUT OF DISK"


class DiskFailed(Refused):
    """The disk of the server's durable tables has failed. Nothing was changed."""

    reason = "DISK FAILED"


class ReplyTooLong(Refused):
    """The reply would be too long: ask for less at once."""

    reason = "REPLY TOO LONG"


class BadCursor(Refused):
    """The scan cannot continue: its table was made anew, or the server has started again. Begin a new one."""

    reason = "BAD CURSOR"


class NotANumber(Refused, ValueError):
    """The value is no number in decimal, so it cannot be incremented."""

    reason = "NOT A NUMBER"


class OutOfRange(Refused, OverflowError):
    """The sum does not fit 64 bits, or the table does not take the version of an element that is restored."""

    reason = "OUT OF RANGE"


class FeedOff(Refused):
    """The server runs without ``--feed``."""

    reason = "FEED OFF"


class Compacted(Refused):
    """The server no longer keeps the changes. ``oldest`` is the first sequence that it keeps."""

    reason = "COMPACTED"
    oldest: int = 0


class Denied(Refused):
    """The user may not do this, or the server does not accept the user and password or the key."""

    reason = "DENIED"


class Unavailable(Refused):
    """The server cannot do this at the moment."""

    reason = "UNAVAILABLE"


class TooManyTables(Refused):
    """The server's ``--max-tables`` is reached."""

    reason = "TOO MANY TABLES"


_TYPES: Dict[bytes, Type[Refused]] = {kind.reason.encode(): kind for kind in Refused.__subclasses__()}


def refusal(request: Sequence[bytes], reply: Sequence[bytes]) -> Error:
    """The error that a reply with the status 0 is.

    >>> error = refusal([b"\\x04", b"birds", b"heron"], [b"\\x00", b"KEY NOT FOUND"])
    >>> raise error
    Traceback (most recent call last):
    spindle.errors.KeyNotFound: KEY NOT FOUND (table b'birds', key b'heron')
    """
    if len(reply) < 2 or reply[0] != b"\x00":
        return Malformed(f"a reply begins with a status of 0 or 1 and has its results: {list(reply)[:2]!r}")
    kind = _TYPES.get(reply[1])
    reason = reply[1].decode("ascii", "replace")
    text = f"{reason}{_place(request)}"
    if kind is None and not (reason.isascii() and reason.isupper()):
        return Malformed(f"no server of tables answers there: {list(reply)[:2]!r}")
    if kind is None:
        return Refused(text)
    error = kind(text)
    number: Optional[int] = int.from_bytes(reply[2], "big") if len(reply) > 2 else None
    if number is not None and isinstance(error, VersionMismatch):
        error.current = number
    if number is not None and isinstance(error, Compacted):
        error.oldest = number
    return error


def _place(request: Sequence[bytes]) -> str:
    if len(request) < 2:
        return ""
    has_key = len(request) > 2 and request[0] not in (b"\x0a", b"\x0b", b"\x0e", b"\x11", b"\x12", b"\x13")
    return f" (table {request[1]!r}, key {request[2]!r})" if has_key else f" (table {request[1]!r})"
