"""ZMTP 3.0 without I/O: what the client of a libzmq socket sends and receives over a stream.

```text
client   greeting (64)                    READY     or, for PLAIN: HELLO … INITIATE      frames …
server   greeting (64)                    READY                    WELCOME … READY       frames …

frame    flags (1): 1 more, 2 long, 4 command │ size (1, or 8 if it is long) │ body
command  length of the name (1) │ name │ data
```
It speaks NULL and PLAIN. CURVE is left to libzmq (``_curve.py``).
"""

from __future__ import annotations

from struct import Struct, error as struct_error
from typing import Callable, List, Optional, Sequence, Tuple

from .errors import Denied, Malformed

Frames = List[bytes]

GREETING_BYTES = 64
# What a reader of the feed takes: 16 MiB and 8 KiB. A page or a reply of many frames may be longer in all.
FRAME_BYTES_MAX = (16 << 20) + (8 << 10)
# What a message may have in all: the server's replies have 1 GiB at most, without the heads of their frames.
MESSAGE_BYTES_MAX = (1 << 30) + (1 << 20)
_MORE, _LONG, _COMMAND = 1, 2, 4
# The most bytes of the context of a PING, which is sent back.
_CONTEXT_BYTES_MAX = 16
# The kinds of sockets that a server has for one of ours.
_PEERS = {"DEALER": (b"ROUTER", b"DEALER", b"REP"), "SUB": (b"PUB", b"XPUB")}
# Some versions of libzmq write the name of the command ERROR so.
_ERROR_OF_LIBZMQ = b"^RROR"
# The status of ZAP for a login that is not accepted.
_WRONG_LOGIN = "400"
# What to do if the mechanisms of client and server differ.
_HINTS = {
    ("PLAIN", "NULL"): "the server has no users, so leave user and password out",
    ("NULL", "PLAIN"): "the server has users, so name a user and its password",
    ("NULL", "CURVE"): "name a user and its password, or give the keys of CURVE",
}
# Of short frames.
_MORE_HEADS = [bytes((_MORE, size)) for size in range(256)]
_LAST_HEADS = [bytes((0, size)) for size in range(256)]
_more_head = _MORE_HEADS.__getitem__
_EMPTY = b""
# Of a bulk reply: a frame of one byte, 1, and the head of a short frame behind it, with more to come.
_PAIR = Struct(">IB")
_PAIR_HEAD = 0x01010101
_ONE = b"\x01"
# What is worth a look for pairs.
_BULK_BYTES = 256


def encode(frames: Sequence[bytes]) -> bytes:
    """The bytes of a message.

    >>> encode([b"a", b""])
    b'\\x01\\x01a\\x00\\x00'
    """
    parts = [_EMPTY] * (2 * len(frames))
    parts[1::2] = frames
    try:
        parts[::2] = map(_more_head, map(len, frames))
        parts[-2] = _LAST_HEADS[len(frames[-1])]
    except IndexError:
        # A frame is long.
        parts = [part for frame in frames for part in (_head(len(frame), _MORE), frame)]
        parts[-2] = _head(len(frames[-1]), 0)
    return b"".join(parts)


def _head(size: int, flags: int) -> bytes:
    return bytes((flags, size)) if size < 256 else bytes((flags | _LONG,)) + size.to_bytes(8, "big")


def _command(name: bytes, data: bytes) -> bytes:
    body = bytes((len(name),)) + name + data
    if len(body) < 256:
        return bytes((_COMMAND, len(body))) + body
    return bytes((_COMMAND | _LONG,)) + len(body).to_bytes(8, "big") + body


def _pairs(data: bytes, at: int, append: Callable[[bytes], None]) -> int:
    """Takes pairs of frames, which are a status of 1 and a short value, as far as they go. Where they end."""
    unpack, head, end = _PAIR.unpack_from, _PAIR_HEAD, len(data)
    try:
        while True:
            found, size = unpack(data, at)
            start = at + 5
            stop = start + size
            if found != head or stop > end:
                return at
            append(_ONE)
            append(data[start:stop])
            at = stop
    except struct_error:
        return at


class Decoder:
    """Turns the bytes of a stream into messages and commands, in whatever pieces they come."""

    __slots__ = ("_frames", "_held", "_held_bytes", "_message_bytes", "_needed", "commands")

    def __init__(self) -> None:
        self._held: List[bytes] = []
        self._held_bytes = 0
        # Bytes that the next whole frame takes.
        self._needed = 0
        # The frames of a message whose last one has not come, and about how long they are.
        self._frames: Frames = []
        self._message_bytes = 0
        # The caller takes them.
        self.commands: List[bytes] = []

    def feed(self, data: bytes) -> List[Frames]:
        """The messages that end in these bytes."""
        if self._held:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed:
                return []
            data = b"".join(self._held)
            self._held = []
        messages: List[Frames] = []
        frames = self._frames
        append = frames.append
        at, end, needed = 0, len(data), 2
        last = end - 1
        while at < last:
            flags, size = data[at], data[at + 1]
            if flags <= 1:
                # Nearly all frames are short.
                if size == 1 and end - at > _BULK_BYTES and data[at + 2] == 1:
                    stop = _pairs(data, at, append)
                    if stop > at:
                        at = stop
                        continue
                start = at + 2
                stop = start + size
                if stop > end:
                    needed = stop - at
                    break
                append(data[start:stop])
                at = stop
                if not flags:
                    messages.append(frames)
                    frames = []
                    append = frames.append
                continue
            if flags > _COMMAND | _LONG or flags == _COMMAND | _MORE:
                raise Malformed(f"no ZMTP is spoken there: a frame has the flags {flags}")
            if flags & _LONG:
                needed = 9
                if end - at < 9:
                    break
                start = at + 9
                size = int.from_bytes(data[at + 1 : start], "big")
            else:
                start = at + 2
            stop = start + size
            if stop > end:
                needed = stop - at
                break
            if flags & _COMMAND:
                self.commands.append(data[start:stop])
            else:
                append(data[start:stop])
                if not flags & _MORE:
                    messages.append(frames)
                    frames = []
                    append = frames.append
            at, needed = stop, 2
        self._frames = frames
        if frames:
            # Those of messages before it in the same piece count too.
            self._message_bytes = at if messages else self._message_bytes + at
            if self._message_bytes > MESSAGE_BYTES_MAX:
                raise Malformed(f"a message of more than {MESSAGE_BYTES_MAX} bytes is longer than any of Spindle")
        if at < end:
            if needed > FRAME_BYTES_MAX + 9:
                raise Malformed(f"a frame of {needed} bytes is longer than any of Spindle")
            self._held = [data[at:]]
            self._held_bytes, self._needed = end - at, needed
        return messages


def hello(user: Optional[str], password: Optional[str]) -> bytes:
    """The data of HELLO.

    >>> hello("ada", "heron")
    b'\\x03ada\\x05heron'
    """
    credentials = [(user or "").encode(), (password or "").encode()]
    if any(len(text) > 255 for text in credentials):
        raise ValueError("a user and a password have 255 bytes at most")
    return b"".join(bytes((len(text),)) + text for text in credentials)


class Handshake:
    """The client's side of a handshake. It takes the bytes of the server, and returns what to send."""

    def __init__(self, kind: str, user: Optional[str] = None, password: Optional[str] = None) -> None:
        self._kind = kind
        self._mechanism = b"NULL" if user is None else b"PLAIN"
        self._metadata = b"".join(
            bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value
            for name, value in ((b"Socket-Type", kind.encode()), (b"Identity", b""))
        )
        self._hello = hello(user, password)
        self._greeting = b""
        self._is_over = False
        self.decoder = Decoder()

    def greeting(self) -> bytes:
        """The first bytes to send."""
        head = b"\xff" + bytes(8) + b"\x7f\x03\x00" + self._mechanism.ljust(20, b"\0")
        return head.ljust(GREETING_BYTES, b"\0")

    def feed(self, data: bytes) -> Tuple[bytes, bool, List[Frames]]:
        """What to send, whether the handshake is over, and the messages that came behind it."""
        out = b""
        if len(self._greeting) < GREETING_BYTES:
            missing = GREETING_BYTES - len(self._greeting)
            self._greeting += data[:missing]
            data = data[missing:]
            if len(self._greeting) < GREETING_BYTES:
                self._check_signature()
                return b"", False, []
            self._check_greeting()
            is_null = self._mechanism == b"NULL"
            out = _command(b"READY", self._metadata) if is_null else _command(b"HELLO", self._hello)
        messages = self.decoder.feed(data) if data else []
        commands, self.decoder.commands = self.decoder.commands, []
        for command in commands:
            name = command[1 : 1 + command[0]] if command else b""
            if name == b"ERROR" or command.startswith(_ERROR_OF_LIBZMQ):
                reason = command[7 if name == b"ERROR" else 6 :].decode("utf-8", "replace")
                if reason == _WRONG_LOGIN:
                    raise Denied("the name of the user or the password is wrong")
                raise Denied(f"the server ends the handshake ({reason or 'it gives no reason'}): check user and key")
            if name == b"WELCOME":
                out += _command(b"INITIATE", self._metadata)
            if name == b"READY":
                self._check_kind(command[6:])
                self._is_over = True
        if messages and not self._is_over:
            raise Malformed("the server sends a message before its handshake is over")
        return out, self._is_over, messages

    def _check_kind(self, metadata: bytes) -> None:
        """Raises if the server's socket is of a kind that has no use for ours."""
        at = 0
        while at < len(metadata):
            name_end = at + 1 + metadata[at]
            value_end = name_end + 4 + int.from_bytes(metadata[name_end : name_end + 4], "big")
            name, value = metadata[at + 1 : name_end], metadata[name_end + 4 : value_end]
            if name.lower() == b"socket-type" and value not in _PEERS[self._kind]:
                other = value.decode("ascii", "replace")
                raise Malformed(f"a {other} answers there, which is no peer of a {self._kind}: is it another service?")
            at = value_end

    def _check_signature(self) -> None:
        if self._greeting and self._greeting[0] != 0xFF:
            raise Malformed(f"no ZMTP is spoken there: it begins with {self._greeting[:8]!r}")

    def _check_greeting(self) -> None:
        self._check_signature()
        if not self._greeting[9] & 1 or self._greeting[10] < 3:
            raise Malformed("ZMTP 3.0 is not spoken there: is it a server of an old libzmq?")
        mechanism = self._greeting[12:32].rstrip(b"\0")
        if mechanism != self._mechanism:
            own, other = self._mechanism.decode(), mechanism.decode("ascii", "replace")
            hint = _HINTS.get((own, other), "check user and curve")
            raise Denied(f"the server wants the mechanism {other}, and the client offers {own}: {hint}")


def ping() -> bytes:
    """Asks for a PONG, which comes when all that was sent before is executed."""
    return _command(b"PING", b"\0\0")


def is_pong(command: bytes) -> bool:
    """Whether a command is the answer to a PING."""
    return command[1:5] == b"PONG"


def pong(command: bytes) -> bytes:
    """The answer to a command: that of a PING, or none."""
    return _command(b"PONG", command[7 : 7 + _CONTEXT_BYTES_MAX]) if command[1:5] == b"PING" else b""
