"""The protocol of events, without I/O: HTTP with one request for each connection (``src/services/events``)."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from ._jobs import Place, address_of
from ._kv import whole
from ._link import Security
from .errors import BadRequest, Denied, Disconnected, Malformed, Unavailable

DEFAULT_PORT = 8081
NOT_FOUND = 404


@dataclass(frozen=True)
class Event:
    """A numbered event."""

    id: int
    value: Optional[str]
    """None: it waits for a worker that gives it a value."""


def place_of(address: Optional[str], endpoint: str, tls: Any) -> Place:
    """Where events are served: the address, or the usual port on the host of the client's endpoint."""
    return Place(*address_of(address, endpoint, DEFAULT_PORT), b"", tls)


def request(method: str, path: str, place: Place, security: Security) -> bytes:
    """A request, and the wish that the connection ends with its answer."""
    host = f"[{place.host}]" if ":" in place.host else place.host
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}:{place.port}\r\nConnection: close\r\n"
    if security.user is not None:
        login = b64encode(f"{security.user}:{security.password or ''}".encode()).decode()
        head += f"Authorization: Basic {login}\r\n"
    return f"{head}Content-Length: 0\r\n\r\n".encode()


def answer_of(answer: bytes, place: Place, expected: Tuple[int, ...]) -> Tuple[int, Dict[str, Any]]:
    """The status and the JSON of an answer, if the status is one that is expected."""
    if not answer:
        raise Disconnected(f"{place} has closed the connection without an answer")
    head, _, body = answer.partition(b"\r\n\r\n")
    line, *headers = head.split(b"\r\n")
    words = line.split(b" ")
    length = [header[15:].strip() for header in headers if header[:15].lower() == b"content-length:"]
    if not line.startswith(b"HTTP/1.") or len(words) < 2 or not words[1].isdigit() or length != [b"%d" % len(body)]:
        raise Malformed(f"no server of events answers at {place}, or the answer is cut off: {answer[:32]!r}")
    status = int(words[1])
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if status in expected and isinstance(found, dict):
        return status, found
    why = f"{place} answers {status}: {found.get('error') if isinstance(found, dict) else body[:64]!r}"
    if status in (401, 403):
        raise Denied(why)
    if status == 503:
        raise Unavailable(why)
    raise BadRequest(why) if 400 <= status < 500 else Malformed(why)


def number_of(found: Dict[str, Any], name: str) -> int:
    """A number of an answer."""
    number = found.get(name)
    if type(number) is not int:
        raise Malformed(f"the answer has no {name}: {found!r}")
    return number


def event_of(found: Dict[str, Any]) -> Event:
    """The event of an answer."""
    value = found.get("value")
    if value is not None and not isinstance(value, str):
        raise Malformed(f"the value of an event is text: {found!r}")
    return Event(number_of(found, "id"), value)


__all__ = ["NOT_FOUND", "Event", "answer_of", "event_of", "number_of", "place_of", "request", "whole"]
