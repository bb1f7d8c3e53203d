"""The protocol of jobs, without I/O: one command for each connection, and one answer until its end.

```text
ADD queue length data → id        GET queue → id length data, or NONE
ACK queue id → OK or NO           IN queue id → YES or NO
```
With a user, the line ``AUTH name password`` comes before the command.
"""

from __future__ import annotations

import errno
import os
import ssl
from typing import NamedTuple, Optional, Tuple, Union

from ._link import Security
from .errors import BadRequest, ConnectionRefused, Denied, Disconnected, Malformed, ValueTooLong

Tls = Union[ssl.SSLContext, str, "os.PathLike[str]"]
"""A context of TLS, or the path of a file with the certificates that are trusted (PEM)."""

DATA_BYTES_MAX = 1_000_000
DEFAULT_PORT = 8080
ID_DIGITS = 20
# The longest answer: an id, a length, the data.
ANSWER_BYTES_MAX = DATA_BYTES_MAX + 64
# How an alert of TLS begins.
_ALERT = b"\x15\x03"


class RawJob(NamedTuple):
    """A job that was handed out."""

    id: str
    data: bytes


def address_of(address: Optional[str], endpoint: str, usual: int = DEFAULT_PORT) -> Tuple[str, int]:
    """Where jobs are served: the address, or the usual port on the host of the client's endpoint.

    >>> address_of(None, "tcp://spindle.example:5555"), address_of("127.0.0.1:9000", "")
    (('spindle.example', 8080), ('127.0.0.1', 9000))
    """
    if address is None:
        host = endpoint.partition("://")[2].rpartition(":")[0] if endpoint.startswith("tcp://") else "127.0.0.1"
        return host.strip("[]"), usual
    host, _, port = address.partition("://")[2 if "://" in address else 0].rpartition(":")
    if not port.isdigit():
        raise Disconnected(f"{address!r} is no address: it should look like HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


class Place(NamedTuple):
    """Where jobs are served, and how a client shows who it is there."""

    host: str
    port: int
    login: bytes
    tls: Optional[ssl.SSLContext]

    @classmethod
    def of(
        cls, address: Optional[str], endpoint: str, security: Security, tls: Optional[ssl.SSLContext]
    ) -> "Place":
        """The place of a client with these settings."""
        return cls(*address_of(address, endpoint), login_of(security), tls)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def fault(self, error: OSError, flag: str) -> Disconnected:
        """Why a connection has failed."""
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted ({error.verify_message})"
        else:
            why = f"{error.strerror or error}. Is a server with {flag}{'' if self.tls is None else ' and TLS'} there?"
        if _is_refused(error):
            return ConnectionRefused(f"{self}: {why}")
        return Disconnected(f"{self}: {why}")

    def check(self, answer: bytes) -> bytes:
        """The answer, if it is none of an error."""
        if answer == b"ERROR" and self.login:
            raise Denied(f"{self} answers ERROR: check user and password, what the user may do, and the server's disk")
        if answer == b"ERROR":
            raise BadRequest(f"{self} answers ERROR: is its disk full, or does it want a user and password?")
        if not answer:
            raise Disconnected(f"{self} has closed the connection without an answer")
        if len(answer) > ANSWER_BYTES_MAX:
            raise Malformed(f"no server of jobs answers at {self}: its answer does not end")
        if answer.startswith(_ALERT) and self.tls is None:
            raise Malformed(f"{self} speaks TLS: give the client tls=…")
        return answer


def _is_refused(error: OSError) -> bool:
    # asyncio joins the errors of several addresses to a text.
    refused = str(error).count(f"[Errno {errno.ECONNREFUSED}]")
    return isinstance(error, ConnectionRefusedError) or 0 < refused == str(error).count("[Errno ")


def context_of(tls: Optional[Tls]) -> Optional[ssl.SSLContext]:
    """The context of a client's ``tls``."""
    if tls is None or isinstance(tls, ssl.SSLContext):
        return tls
    return ssl.create_default_context(cafile=os.fspath(tls))


def login_of(security: Security) -> bytes:
    """The line before each command.

    >>> login_of(Security("ada", "heron"))
    b'AUTH ada heron\\n'
    """
    if security.user is None:
        return b""
    name, password = security.user.encode(), (security.password or "").encode()
    if name.split() != [name] or b"\n" in password or password.endswith(b"\r"):
        raise ValueError("for jobs, a user has no white space, and a password no end of a line")
    return b"AUTH %s %s\n" % (name, password)


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


def id_of(answer: bytes) -> str:
    """The answer to ADD."""
    if not answer.isdigit() or len(answer) != ID_DIGITS:
        raise Malformed(f"no server of jobs answers there, or the answer is cut off: {answer[:32]!r}")
    return answer.decode()


def job_of(answer: bytes) -> Optional[RawJob]:
    """The answer to GET."""
    if answer == b"NONE":
        return None
    job, _, rest = answer.partition(b" ")
    length, _, data = rest.partition(b" ")
    if not length.isdigit() or int(length) != len(data):
        raise Malformed(f"no server of jobs answers there, or the answer is cut off: {answer[:16]!r}")
    return RawJob(job.decode("ascii", "replace"), data)


def is_yes(answer: bytes) -> bool:
    """The answer to ACK and IN."""
    if answer not in (b"OK", b"YES", b"NO"):
        raise Malformed(f"no server of jobs answers there: {answer[:16]!r}")
    return answer != b"NO"
