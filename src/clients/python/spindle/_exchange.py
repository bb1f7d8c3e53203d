"""One request over a connection of its own, for threads. ``spindle/aio/_exchange.py`` is for tasks of asyncio."""

from __future__ import annotations

import socket
from time import monotonic

from ._jobs import ANSWER_BYTES_MAX, Place

# The time was up.
LATE = socket.timeout


def exchange(place: Place, request: bytes, timeout: float) -> bytes:
    """The answer to a request."""
    deadline = monotonic() + timeout

    def bound(connection: socket.socket) -> socket.socket:
        left = deadline - monotonic()
        if left <= 0:
            raise socket.timeout()
        connection.settimeout(left)
        return connection

    answer = bytearray()
    with socket.create_connection(place[:2], timeout=max(0.0, timeout)) as plain:
        connection = plain
        if place.tls is not None:
            connection = place.tls.wrap_socket(bound(plain), server_hostname=place.host, suppress_ragged_eofs=False)
        with connection:
            bound(connection).sendall(place.login + request)
            while len(answer) <= ANSWER_BYTES_MAX:
                part = bound(connection).recv(1 << 16)
                if not part:
                    break
                answer += part
    return bytes(answer)


__all__ = ["LATE", "exchange"]
