"""A connection that is encrypted with CURVE, over libzmq. It has the methods of :class:`spindle._link.Link`.

Each libzmq socket has one connection, ever. A monitor reports when it is up and when it is lost. Then another socket
is made. So a reply of one connection is never taken for one of the next.
"""

from __future__ import annotations

from time import monotonic
from typing import List, Optional, Sequence, Tuple

import zmq

from ._link import _NEVER, _PAUSE, _PAUSE_MAX, POLLIN, Frames, LinkLost, Security, Text, abandon_in_child, address_of
from .errors import Closed, ConnectionRefused, Denied, Disconnected, Error

# libzmq makes no second connection by itself: practically never.
_RECONNECT_MILLIS = 1 << 30
_REFUSED = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_WATCHED = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_DISCONNECTED
)
# How often a message is tried again that libzmq does not take.
_RETRY = 0.01


def _bytes(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else text


class CurveLink:
    """A connection through a socket of libzmq. It is not safe to share: its owner locks it."""

    is_edge = True

    def __init__(self, endpoint: str, kind: str, security: Security, topics: Sequence[bytes] = ()) -> None:
        address_of(endpoint)
        self.endpoint = endpoint
        self.closed: Optional[str] = None
        self.is_up = False
        # Grows when the interests change.
        self.changes = 0
        self.problem = "there is no connection yet"
        self._kind = kind
        self._security = security
        self._topics = topics
        self._socket: "Optional[zmq.Socket[bytes]]" = None
        self._monitor: "Optional[zmq.Socket[bytes]]" = None
        # Messages that libzmq does not take at the moment.
        self._unsent: List[Frames] = []
        # Whether a host has accepted the connection.
        self._is_accepted = False
        # The event that ends this connection.
        self._ended: Optional[int] = None
        self._pause = _PAUSE
        self._due = 0.0
        # As in Link.
        self.is_patient = True
        self._is_nobody = False
        abandon_in_child(self)

    def close(self, reason: str) -> None:
        """Ends it. A later use raises an error with ``reason``."""
        if self.closed is None:
            self.closed = reason
            self._drop()

    def _abandon(self, reason: str) -> None:
        """After a fork, in the child. The sockets are the parent's, and libzmq is left alone."""
        self.closed = reason

    def check(self) -> None:
        """Raises :class:`Closed` if it was closed."""
        if self.closed is not None:
            raise Closed(self.closed)

    @staticmethod
    def encode(frames: Sequence[bytes]) -> Frames:
        """The frames, if they are bytes."""
        return [bytes(memoryview(frame)) for frame in frames]

    def send(self, message: Frames) -> None:
        """Sends a message, or keeps it for a later step. Only if it is up."""
        self._unsent.append(message)
        self._flush()

    def interests(self) -> List[Tuple[int, int]]:
        """All descriptors to poll."""
        return [(int(found.fd), POLLIN) for found in (self._socket, self._monitor) if found is not None]

    def due(self) -> float:
        """When a step is due although the descriptors are silent."""
        if self._ended is not None:
            return 0.0
        return self._due if not self.is_up or self._unsent else _NEVER

    def step(self, now: float) -> List[Frames]:
        """As :meth:`spindle._link.Link.step`."""
        if self._socket is None:
            if now >= self._due:
                self._connect()
            return []
        messages: List[Frames] = []
        event = self._event()
        if self.is_up:
            self._flush()
            if self._unsent:
                self._due = now + _RETRY
            messages = self._receive()
        if event is None or messages:
            # What came before the end of the connection is taken first. The monitor is asked again.
            return messages
        self._fail(event, now)
        return []

    def hurry(self) -> None:
        """As :meth:`spindle._link.Link.hurry`."""
        if self._socket is None and self._is_nobody:
            self._due = 0.0

    @property
    def is_confirmed(self) -> bool:
        """Whether the server has the topics, as far as libzmq reports."""
        return self.is_up

    def interrupt(self, problem: str = "a request was interrupted", pause: float = 0.0) -> Optional[LinkLost]:
        """As :meth:`spindle._link.Link.interrupt`."""
        was_up = self.is_up
        self._drop()
        self._due = monotonic() + pause
        return LinkLost(Disconnected(f"lost the connection to {self.endpoint}: {problem}"), True) if was_up else None

    # ----------------------------------------------------------------------------------------------------- internals

    def _connect(self) -> None:
        self.changes += 1
        context: "zmq.Context[zmq.Socket[bytes]]" = zmq.Context.instance()
        self._socket = found = context.socket(zmq.DEALER if self._kind == "DEALER" else zmq.SUB)
        found.linger = 0
        found.immediate = True
        found.reconnect_ivl = _RECONNECT_MILLIS
        found.tcp_keepalive = 1
        for topic in self._topics:
            found.subscribe(topic)
        curve = self._security.curve
        assert curve is not None
        public, secret = curve.public_key, curve.secret_key
        if public is None or secret is None:
            public, secret = zmq.curve_keypair()
        found.curve_serverkey = _bytes(curve.server_key)
        found.curve_publickey = _bytes(public)
        found.curve_secretkey = _bytes(secret)
        self._monitor = found.get_monitor_socket(_WATCHED)
        try:
            found.connect(self.endpoint)
        except zmq.ZMQError as error:
            self._drop()
            raise Disconnected(f"{self.endpoint}: {error}") from None

    def _event(self) -> Optional[int]:
        """The event that ends this connection, if there was one."""
        monitor = self._monitor
        while self._ended is None and monitor is not None and monitor.poll(0):
            event = int.from_bytes(monitor.recv_multipart()[0][:2], "little")
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.is_up = True
            elif event == zmq.EVENT_CONNECTED:
                self._is_accepted = True
            else:
                self._ended = event
        return self._ended

    def _flush(self) -> None:
        found = self._socket
        assert found is not None
        try:
            while self._unsent:
                found.send_multipart(self._unsent[0], zmq.NOBLOCK)
                del self._unsent[0]
        except zmq.Again:
            pass

    def _receive(self) -> List[Frames]:
        found, messages = self._socket, []
        assert found is not None
        while int(found.get(zmq.EVENTS)) & zmq.POLLIN:
            messages.append(found.recv_multipart())
            self._pause = _PAUSE
        return messages

    def _fail(self, event: int, now: float) -> None:
        was_up, was_accepted = self.is_up, self._is_accepted
        self._drop()
        error: Error = Disconnected(f"lost the connection to {self.endpoint}")
        self.problem = "no server listens there"
        if was_accepted and not was_up:
            self.problem = "the server ends the handshake, as it does if server_key is not its own"
        if event in _REFUSED:
            self.problem = "the server refuses the handshake"
            error = Denied(f"{self.endpoint} does not accept this key, or has no CURVE")
        self._due = now if was_up and self._pause == _PAUSE else now + self._pause
        self._pause = min(self._pause * 2, _PAUSE_MAX)
        self._is_nobody = event == zmq.EVENT_CONNECT_RETRIED and not was_accepted
        is_over = self._is_nobody and not self.is_patient
        if is_over:
            error = ConnectionRefused(f"{self.endpoint}: {self.problem}. Is the server running?")
        if was_up or is_over or event in _REFUSED:
            raise LinkLost(error, was_up)

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(0)
        if self._monitor is not None:
            self._monitor.close(0)
        self._socket = self._monitor = self._ended = None
        self.is_up = self._is_accepted = False
        self.changes += 1
        self._unsent = []
