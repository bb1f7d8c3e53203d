"""The protocol of jobs, without I/O: one command for each connection, and one answer until its end.

```text
ADD queue length data → id        GET queue → id length data, or NONE
ACK queue id → OK or NO           IN queue id → YES or NO
```
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

from .errors import BadRequest, Disconnected, Malformed, ValueTooLong

DATA_BYTES_MAX = 1_000_000
DEFAULT_PORT = 8080


class RawJob(NamedTuple):
    """A job that was handed out."""

    id: str
    data: bytes


def address_of(address: Optional[str], endpoint: str) -> Tuple[str, int]:
    """Where jobs are served: the address, or the usual port on the host of the client's endpoint.

    >>> address_of(None, "tcp://spindle.example:5555"), address_of("127.0.0.1:9000", "")
    (('spindle.example', 8080), ('127.0.0.1', 9000))
    """
    if address is None:
        host = endpoint.partition("://")[2].rpartition(":")[0] if endpoint.startswith("tcp://") else "127.0.0.1"
        return host.strip("[]"), DEFAULT_PORT
    host, _, port = address.partition("://")[2 if "://" in address else 0].rpartition(":")
    if not port.isdigit():
        raise Disconnected(f"{address!r} is no address of jobs: it should look like HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def check_queue(name: str) -> bytes:
    """The name of a queue: 1 to 255 bytes without white space."""
    encoded = name.encode()
    if not 0 < len(encoded) <= 255 or encoded.split() != [encoded]:
        raise ValueError(f"the name of a queue has 1 to 255 bytes without white space, not {name!r}")
    return encoded


def add(queue: bytes, data: bytes) -> bytes:
    if len(data) > DATA_BYTES_MAX:
        raise ValueTooLong(f"a job has {DATA_BYTES_MAX:,} bytes at most, not {len(data):,}")
    return b"ADD %s %d %s" % (queue, len(data), data)


def get(queue: bytes) -> bytes:
    return b"GET %s\n" % queue


def ack(queue: bytes, job: str) -> bytes:
    return b"ACK %s %s\n" % (queue, job.encode())


def has(queue: bytes, job: str) -> bytes:
    return b"IN %s %s\n" % (queue, job.encode())


def _check(answer: bytes) -> bytes:
    if answer == b"ERROR":
        raise BadRequest("the server of jobs answers ERROR")
    if not answer:
        raise Disconnected("the server of jobs has closed the connection without an answer")
    return answer


def id_of(answer: bytes) -> str:
    """The answer to ADD."""
    if b" " in _check(answer) or len(answer) > 128:
        raise Malformed(f"no server of jobs answers there: {answer[:16]!r}")
    return answer.decode("ascii", "replace")


def job_of(answer: bytes) -> Optional[RawJob]:
    """The answer to GET."""
    if _check(answer) == b"NONE":
        return None
    job, _, rest = answer.partition(b" ")
    length, _, data = rest.partition(b" ")
    if not length.isdigit() or int(length) != len(data):
        raise Malformed(f"no server of jobs answers there, or the answer is cut off: {answer[:16]!r}")
    return RawJob(job.decode("ascii", "replace"), data)


def is_yes(answer: bytes) -> bool:
    """The answer to ACK and IN."""
    if _check(answer) not in (b"OK", b"YES", b"NO"):
        raise Malformed(f"no server of jobs answers there: {answer[:16]!r}")
    return answer != b"NO"
