"""One DEALER connection: what both drivers do with its socket.

```text
request   id (8 bytes) │ empty │ command │ arguments…        the server returns id and the empty frame before its reply
```
A reply is matched by its id, so a reply that comes after its time-out, or after a new connection, finds nobody and is
dropped. Frames go one by one through the methods of pyzmq's compiled class, which is the cheapest way.

Nothing is queued for a server that is not there: a request whose time has run out is not executed later.
"""

from __future__ import annotations

import itertools
import os
import weakref
from functools import partial
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import zmq

from .errors import Denied, Disconnected, Error, Timeout

Text = Union[str, bytes]

_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_RCVMORE = int(zmq.RCVMORE)
_NOBLOCK = int(zmq.NOBLOCK)
_MORE_NOBLOCK = int(zmq.SNDMORE) | _NOBLOCK
# The pause before a connection is made again: at first, and at most.
_RECONNECT_MILLIS = 20
_RECONNECT_MILLIS_MAX = 1000
# Bytes of a frame that is neither a name nor a key, and frames that no request of one element has.
_TOO_LONG = b"\xff" * 300
_TOO_MANY = 8

Sender = Callable[[bytes, int], None]


class Curve(NamedTuple):
    """The keys of a connection that is encrypted with CURVE: text of 40 characters (Z85), as ``zmq.curve_keypair``
    makes them. Without keys of its own the client makes a pair for each connection.
    """

    server_key: Text
    public_key: Optional[Text] = None
    secret_key: Optional[Text] = None


class Security(NamedTuple):
    """How a client shows who it is."""

    user: Optional[str] = None
    password: Optional[str] = None
    curve: Optional[Curve] = None

    def apply(self, socket: "zmq.Socket[bytes]") -> None:
        """Sets the options of a socket that is not connected yet."""
        if self.user is not None:
            socket.plain_username = self.user.encode()
            socket.plain_password = (self.password or "").encode()
        if self.curve is not None:
            public, secret = self.curve.public_key, self.curve.secret_key
            if public is None or secret is None:
                public, secret = zmq.curve_keypair()
            socket.curve_serverkey = _bytes(self.curve.server_key)
            socket.curve_publickey = _bytes(public)
            socket.curve_secretkey = _bytes(secret)


def _bytes(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else text


def open_socket(kind: int, endpoint: str, security: Security) -> "zmq.Socket[bytes]":
    """A socket that connects, and connects again."""
    socket: "zmq.Socket[bytes]" = zmq.Context.instance().socket(kind)
    socket.linger = 0
    socket.immediate = True
    socket.reconnect_ivl = _RECONNECT_MILLIS
    socket.reconnect_ivl_max = _RECONNECT_MILLIS_MAX
    socket.tcp_keepalive = 1
    security.apply(socket)
    return socket


class Connection:
    """A DEALER socket. It is not safe to share: its driver locks it."""

    def __init__(self, endpoint: str, security: Security) -> None:
        self.endpoint = endpoint
        self.closed: Optional[str] = None
        self._ids = itertools.count(1)
        self._socket = open_socket(zmq.DEALER, endpoint, security)
        watched = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        watched |= zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        self._monitor = self._socket.get_monitor_socket(watched)
        self._last_event: Optional[int] = None
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close("the endpoint is wrong")
            raise Disconnected(f"{endpoint}: {error}") from None
        raw = zmq.backend.Socket
        self._send: Sender = partial(raw.send, self._socket)
        self._receive: Callable[[], bytes] = partial(raw.recv, self._socket)
        self._get: Callable[..., Any] = partial(raw.get, self._socket)
        self.fd = int(self._get(int(zmq.FD)))
        _OPEN.add(self)

    def close(self, reason: str) -> None:
        """Ends it. ``reason`` is what a later use is told."""
        if self.closed is None:
            self.closed = reason
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(0)

    def new_id(self) -> bytes:
        """An id that no other request of this connection has."""
        return next(self._ids).to_bytes(8, "big")

    def try_send(self, request_id: bytes, request: Sequence[bytes]) -> bool:
        """Sends a request. False: there is no connection at the moment, or it takes no more."""
        send = self._send
        try:
            send(request_id, _MORE_NOBLOCK)
        except zmq.Again:
            return False
        try:
            send(b"", _MORE_NOBLOCK)
            for frame in request[:-1]:
                send(frame, _MORE_NOBLOCK)
            send(request[-1], _NOBLOCK)
        except zmq.Again:
            # The connection ended within the message. libzmq drops the rest of it, up to its last frame.
            self._end_message(b"", 1)
            return False
        except BaseException:
            # An interrupt, or a frame that is no bytes. Half a message may mean another request. So it ends with more
            # frames than a request of one element has, and longer ones than a key may be: the server refuses it.
            self._end_message(_TOO_LONG, _TOO_MANY)
            raise
        return True

    def _end_message(self, frame: bytes, count: int) -> None:
        try:
            for _ in range(count - 1):
                self._send(frame, _MORE_NOBLOCK)
            self._send(frame, _NOBLOCK)
        except zmq.Again:
            pass

    def is_readable(self) -> bool:
        """Whether a message is there. After this has been false, the descriptor becomes readable with the next one."""
        return bool(self._get(_EVENTS) & _POLLIN)

    def receive(self) -> Tuple[bytes, List[bytes]]:
        """The id and the frames of a message that is there."""
        receive, get = self._receive, self._get
        frames = [receive()]
        append = frames.append
        while get(_RCVMORE):
            append(receive())
        # The id and the empty frame come back as they were sent. Anything else has an id that nobody waits for.
        return frames[0], frames[2:] or [b""]

    def late(self, timeout: float) -> Error:
        """Why there was no reply."""
        while self._monitor.poll(0):
            event = self._monitor.recv_multipart()
            self._last_event = int.from_bytes(event[0][:2], "little")
        if self._last_event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return Denied(f"{self.endpoint} does not accept this user and password, or this key")
        if self._last_event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            return Denied(f"{self.endpoint} ends the handshake: it wants another mechanism (PLAIN, CURVE) or key")
        return Timeout(f"no reply of {self.endpoint} within {timeout:g} s")


_OPEN: "weakref.WeakSet[Connection]" = weakref.WeakSet()


def _after_fork() -> None:
    for connection in list(_OPEN):
        connection.closed = "this client was made before a fork: make one in the child"


os.register_at_fork(after_in_child=_after_fork)
