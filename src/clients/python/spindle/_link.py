"""A connection to a server over a stream, which is made again when it is lost. It never waits: its owner polls.

```text
Down ── the pause is over ──► Connecting ──► Greeting ──► Up
  ▲                               │ no server   │ refused   │ lost: step() says so, once
  └───────────────────────────────┴─────────────┴───────────┘
```
The socket is used by the thread that calls, without a thread between. So a request is one system call to send it, and
its reply is one to wait and one to receive. Nothing is queued here for a server that is not there.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import weakref
from time import monotonic
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _zmtp
from .errors import Closed, ConnectionRefused, Denied, Disconnected, Error, Malformed

Text = Union[str, bytes]
Frames = List[bytes]

POLLIN, POLLOUT = select.POLLIN, select.POLLOUT
# The pause before a connection is made again: at first, and at most.
_PAUSE = 0.02
_PAUSE_MAX = 1.0
# Bytes that the system has not taken, above which a PING is not answered: the server does not read.
_OUT_BYTES_MAX = 1 << 20
# How long a host may take to accept a connection, and a server for its handshake.
_CONNECT_SECONDS = 10.0
_RECEIVE_BYTES = 1 << 16
# A host that has vanished is found out after a minute and a half, as on the server.
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
_NEVER = float("inf")
# Nothing listens at a port, or at the path of a socket.
_NOBODY = (errno.ECONNREFUSED, errno.ENOENT)


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

    @classmethod
    def of(cls, user: Optional[str], password: Optional[str], curve: Optional[Curve]) -> "Security":
        """That of a client, which is checked before it connects."""
        if password is not None and user is None:
            raise ValueError("a password is that of a user: give user=… too")
        _zmtp.hello(user, password)
        return cls(user, password, curve)


class LinkLost(Exception):
    """The connection is lost, or was refused. ``error`` is for what was on its way, or waits for a connection."""

    def __init__(self, error: Error, was_up: bool) -> None:
        super().__init__(error)
        self.error = error
        self.was_up = was_up


def full_endpoint(endpoint: str) -> str:
    """The endpoint with its scheme.

    >>> full_endpoint("localhost:5555"), full_endpoint("ipc:///run/spindle")
    ('tcp://localhost:5555', 'ipc:///run/spindle')
    """
    return endpoint if "://" in endpoint else f"tcp://{endpoint}"


def endpoint_of(endpoint: str, port: int) -> str:
    """Where another service is by default: at its usual port of the same host.

    >>> endpoint_of("tcp://spindle.example:5555", 5557)
    'tcp://spindle.example:5557'
    """
    host = endpoint.rpartition(":")[0] if endpoint.startswith("tcp://") else "tcp://127.0.0.1"
    return f"{host}:{port}"


def address_of(endpoint: str) -> Tuple[int, Any]:
    """The family and the address of an endpoint.

    >>> address_of("tcp://[::1]:5555")[1], address_of("ipc:///run/spindle")[1]
    (('::1', 5555), '/run/spindle')
    """
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc" and rest:
        return socket.AF_UNIX, "\0" + rest[1:] if rest.startswith("@") else rest
    host, _, port = rest.rpartition(":")
    if scheme == "tcp" and host and port.isdigit() and 0 < int(port) < 1 << 16:
        return socket.AF_UNSPEC, (host.strip("[]"), int(port))
    raise Disconnected(f"{endpoint!r} is no endpoint: it should look like HOST:PORT, tcp://HOST:PORT or ipc://PATH")


class Link:
    """A connection. It is not safe to share: its owner locks it."""

    # Whether sending may take the signal of the descriptor. Then a step follows.
    is_edge = False

    def __init__(self, endpoint: str, kind: str, security: Security, topics: Sequence[bytes] = ()) -> None:
        self.endpoint = endpoint
        self.closed: Optional[str] = None
        self.is_up = False
        # Grows when the interests change.
        self.changes = 0
        # Why there is no connection.
        self.problem = "there is no connection yet"
        self._family, self._address = address_of(endpoint)
        self._kind = kind
        self._security = security
        self._topics = topics
        self._socket: Optional[socket.socket] = None
        self._handshake: Optional[_zmtp.Handshake] = None
        self._decoder = _zmtp.Decoder()
        self._is_connecting = False
        self._broken: Optional[OSError] = None
        # Bytes that the system has not taken yet.
        self._out = bytearray()
        self._pause = _PAUSE
        # When the next try begins, or the present one is late.
        self._due = 0.0
        # Whether the server has the topics. It is asked for that if so wanted.
        self.is_confirmed_by_pong = self.is_confirmed = False
        # Addresses of the host that were not tried yet.
        self._others: List[Tuple[int, Any]] = []
        # Whether what waits for a connection fails if nobody listens there, and whether nobody does.
        self.is_patient = True
        self._is_nobody = False
        abandon_in_child(self)

    def close(self, reason: str) -> None:
        """Ends it. A later use raises an error with ``reason``."""
        if self.closed is None:
            self.closed = reason
            self._drop()

    def check(self) -> None:
        """Raises :class:`Closed` if it was closed."""
        if self.closed is not None:
            raise Closed(self.closed)

    # The bytes of a message. A message that is none raises here, before anything is sent.
    encode = staticmethod(_zmtp.encode)

    def send(self, message: bytes) -> None:
        """Sends a message, as far as the system takes it. The rest follows in later steps. Only if it is up."""
        if self._out:
            self._out += message
            return
        try:
            sent = self._socket.send(message)  # type: ignore[union-attr]
        except BlockingIOError:
            sent = 0
        except OSError as error:
            # The next step reports it.
            self._broken = error
            return
        if sent < len(message):
            self._out += message[sent:]
            self.changes += 1

    def interest(self) -> Tuple[int, int]:
        """The descriptor to poll, or -1, and for what."""
        if self._socket is None:
            return -1, 0
        if self._is_connecting:
            return self._socket.fileno(), POLLOUT
        return self._socket.fileno(), POLLIN | POLLOUT if self._out else POLLIN

    def interests(self) -> List[Tuple[int, int]]:
        """All descriptors to poll."""
        fd, events = self.interest()
        return [] if fd < 0 else [(fd, events)]

    def due(self) -> float:
        """When a step is due although the descriptor is silent."""
        return _NEVER if self.is_up else self._due

    def step(self, now: float) -> List[Frames]:
        """Does what is due, without waiting. Returns the messages that have come.

        Raises :class:`LinkLost` when the connection is lost, or the server does not accept it.
        """
        if self.is_up:
            try:
                if self._broken is not None:
                    raise self._broken
                if self._out:
                    self._flush()
                data = self._socket.recv(_RECEIVE_BYTES)  # type: ignore[union-attr]
            except BlockingIOError:
                return []
            except OSError as error:
                raise self._lose(now, error.strerror or str(error)) from None
            if not data:
                raise self._lose(now, "the server has closed it")
            try:
                messages = self._decoder.feed(data)
            except Malformed as error:
                raise self._lose(now, str(error)) from None
            if self._decoder.commands:
                self._obey()
            if messages:
                self._pause = _PAUSE
            return messages
        return self._open(now)

    def hurry(self) -> None:
        """Somebody waits for a connection: if nobody listened there, another try is due at once."""
        if self._socket is None and self._is_nobody:
            self._due = 0.0

    def interrupt(self, problem: str = "a request was interrupted", pause: float = 0.0) -> Optional[LinkLost]:
        """Ends the connection, since its owner cannot continue with it. Another one is made after the pause."""
        if not self.is_up:
            return None
        now = monotonic()
        loss = self._lose(now, problem)
        self._due = max(self._due, now + pause)
        return loss

    # ----------------------------------------------------------------------------------------------------- internals

    def _flush(self) -> None:
        sent = self._socket.send(self._out)  # type: ignore[union-attr]
        del self._out[:sent]
        if not self._out:
            self.changes += 1

    def _obey(self) -> None:
        commands, self._decoder.commands = self._decoder.commands, []
        for command in commands:
            self.is_confirmed = self.is_confirmed or _zmtp.is_pong(command)
            answer = _zmtp.pong(command)
            if answer and len(self._out) < _OUT_BYTES_MAX:
                self.send(answer)

    def _open(self, now: float) -> List[Frames]:
        try:
            if self._socket is None:
                if now < self._due and not self._others:
                    return []
                self._connect(now)
            if self._is_connecting and not self._is_accepted():
                if now >= self._due:
                    raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
                return []
            return self._greet(now)
        except BlockingIOError:
            if now >= self._due:
                self._drop()
                self._wait(now, "the server does not end its handshake")
            return []
        except OSError as error:
            self._drop()
            if self._others:
                return self._open(now)
            self._wait(now, error.strerror or str(error))
            self._is_nobody = error.errno in _NOBODY
            if self._is_nobody and not self.is_patient:
                refused = ConnectionRefused(f"{self.endpoint}: {self.problem}. Is the server running?")
                raise LinkLost(refused, was_up=False) from None
            return []
        except (Denied, Malformed) as error:
            self._drop()
            self._wait(now, str(error))
            raise LinkLost(type(error)(f"{self.endpoint}: {error}"), was_up=False) from None

    def _connect(self, now: float) -> None:
        self._due = now + _CONNECT_SECONDS
        if self._family == socket.AF_UNIX:
            family, address = int(socket.AF_UNIX), self._address
        else:
            if not self._others:
                host, port = self._address
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                self._others = [(int(entry[0]), entry[4]) for entry in found]
            family, address = self._others.pop(0)
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        if family != socket.AF_UNIX:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._is_connecting = True
        self.changes += 1
        error = self._socket.connect_ex(address)
        if error not in (0, errno.EINPROGRESS, errno.EAGAIN):
            raise OSError(error, os.strerror(error))

    def _is_accepted(self) -> bool:
        """Whether the host has accepted the connection. Then the greeting is sent."""
        assert self._socket is not None
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        try:
            self._socket.getpeername()
        except OSError:
            return False
        self._is_connecting = self._is_nobody = False
        self._others = []
        self.changes += 1
        self._handshake = _zmtp.Handshake(self._kind, self._security.user, self._security.password)
        self._socket.sendall(self._handshake.greeting())
        return True

    def _greet(self, now: float) -> List[Frames]:
        assert self._socket is not None and self._handshake is not None
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise OSError("the server ends the connection before its handshake")
        answer, is_over, messages = self._handshake.feed(data)
        if now >= self._due and not is_over:
            raise OSError("the server does not end its handshake")
        if is_over:
            answer += b"".join(_zmtp.encode([b"\x01" + topic]) for topic in self._topics)
            answer += _zmtp.ping() if self.is_confirmed_by_pong else b""
        if answer:
            self._socket.sendall(answer)
        if is_over:
            self._decoder, self._handshake = self._handshake.decoder, None
            self.is_up = True
        return messages

    def _lose(self, now: float, problem: str) -> LinkLost:
        """A connection that worked is lost. It is made again at once, or after a pause if it has brought nothing."""
        self._drop()
        self.problem = problem
        self._due = now if self._pause == _PAUSE else now + self._pause
        self._pause = min(self._pause * 2, _PAUSE_MAX)
        return LinkLost(Disconnected(f"lost the connection to {self.endpoint}: {problem}"), was_up=True)

    def _wait(self, now: float, problem: str) -> None:
        self.problem = problem
        self._due = now + self._pause
        self._pause = min(self._pause * 2, _PAUSE_MAX)

    def _abandon(self, reason: str) -> None:
        """After a fork, in the child: gives up its copy of the descriptor. The connection is the parent's."""
        self.closed = reason
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self.is_up = False

    def _drop(self) -> None:
        if self._socket is not None:
            try:
                # The server sees the end also if a child of a fork has a copy of the descriptor.
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._socket.close()
        self._socket = self._handshake = self._broken = None
        self.is_up = self._is_connecting = self.is_confirmed = False
        self.changes += 1
        self._out = bytearray()


_OPEN: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def abandon_in_child(own: Any) -> None:
    """After a fork, ``own._abandon(reason)`` is called in the child. A thread that is not there may have its locks."""
    _OPEN[id(own)] = own


def _after_fork() -> None:
    for own in list(_OPEN.values()):
        own._abandon("this client was made before a fork: make one in the child")


os.register_at_fork(after_in_child=_after_fork)


def open_link(endpoint: str, kind: str, security: Security, topics: Sequence[bytes] = ()) -> Any:
    """A link of this kind of socket: DEALER or SUB."""
    if security.curve is None:
        return Link(endpoint, kind, security, topics)
    from ._curve import CurveLink

    return CurveLink(endpoint, kind, security, topics)


__all__ = ["Curve", "Link", "LinkLost", "Security", "open_link"]
