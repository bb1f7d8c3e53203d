"""The transport of kombu: ``spindle://user:password@host:5557/virtual-host``."""

from __future__ import annotations

import atexit
import os
import socket
import weakref
from time import monotonic
from typing import Any, Dict, List, Optional

from kombu.transport import virtual

from .. import _queues
from .._link import Curve, Security
from ..errors import Closed, Denied, Disconnected, Malformed, Refused, Timeout, UnknownCommand
from . import options
from .bindings import Binding, Bindings
from .channel import Channel
from .names import Names
from .puller import Puller
from .session import Session

DEFAULT_PORT = 5557
# The seconds of a lease: so long after its death the messages of a worker are ready again.
LEASE_SECONDS = 60.0
TIMEOUT_SECONDS = 10.0
# Messages that are delivered in one turn of the event loop.
TURN_COUNT = 64

_PULLERS: "weakref.WeakSet[Puller]" = weakref.WeakSet()


@atexit.register
def _flush() -> None:
    """What was acknowledged is sent before the interpreter ends, also over connections that nobody closes."""
    for puller in list(_PULLERS):
        puller.close()


class Transport(virtual.Transport):
    """A connection to the server of tasks.

    ``broker_transport_options``: ``lease`` (the seconds after which the messages of a dead worker are ready again, 60),
    ``timeout`` (of each request, 10) and ``curve`` (the server's key, and the public and the secret one of a user).
    """

    Channel = Channel
    default_port = DEFAULT_PORT
    driver_type = "spindle"
    driver_name = "spindle"
    connection_errors = (*virtual.Transport.connection_errors, Disconnected, Timeout, Closed)
    channel_errors = (*virtual.Transport.channel_errors, Refused, Malformed)
    # A publish is repeated when the connection fails. What the server refuses it would refuse again.
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        given = client.transport_options or {}
        options.check(options.BROKER, given)
        self.lease = options.seconds(options.BROKER, given, "lease", LEASE_SECONDS)
        timeout = options.seconds(options.BROKER, given, "timeout", TIMEOUT_SECONDS)
        host, port = client.hostname or "localhost", client.port or DEFAULT_PORT
        curve = given.get("curve")
        security = Security.of(client.userid or None, client.password or None, Curve(*curve) if curve else None)
        self.session = Session(f"tcp://{host}:{port}", security, timeout)
        self.names = Names((client.virtual_host or "/").strip("/"))
        self.bindings = Bindings(self.session, self.names)
        # Of the queues that were declared here: how long messages stay, how long temporary ones live without an owner,
        # and the bindings of these.
        self.ttls: Dict[str, Optional[float]] = {}
        self.temporary: Dict[str, float] = {}
        self.own_bindings: Dict[str, List[Binding]] = {}
        self._alive: Dict[str, bytes] = {}
        self._refreshed = monotonic()
        self._puller: Optional[Puller] = None
        self._puller_process = 0
        # The event loop that delivers the messages, if there is one.
        self._loop: Any = None

    def driver_version(self) -> str:
        """The version of this package."""
        from .. import __version__

        return __version__

    # ---------------------------------------------------------------------------------------------------- connection

    def establish_connection(self) -> "Transport":
        """Connects, and finds out whether the server knows queues by name."""
        try:
            self.session.run(_queues.browse(self.names.bindings, "dead", None, _queues.FIRST_PLACE, 0))
        except UnknownCommand as error:
            raise Denied(f"{error}: Celery needs a server that knows queues by name") from None
        connection: Transport = super().establish_connection()
        return connection

    def verify_connection(self, connection: Any) -> bool:
        """Whether the connection is this process's own. That of a parent is made anew."""
        return self.session.is_own

    def close_connection(self, connection: Any) -> None:
        """Closes the channels, sends what was settled, and ends."""
        for channels in (self._avail_channels, self.channels):
            while channels:
                channels.pop().close()
        if self._puller is not None:
            if self._loop is not None:
                self.unregister_from_event_loop(connection, self._loop)
            puller, self._puller = self._puller, None
            puller.close()
        self.session.close()

    @property
    def has_puller(self) -> bool:
        """Whether something was consumed."""
        return self._puller is not None and self._puller_process == os.getpid()

    @property
    def puller(self) -> Puller:
        """What takes the messages of this connection."""
        if self._puller is None or self._puller_process != os.getpid():
            self._puller = Puller(self.session.endpoint, self.session.security, self.lease)
            self._puller.on_beat = self._refresh
            self._puller_process = os.getpid()
            _PULLERS.add(self._puller)
        return self._puller

    # -------------------------------------------------------------------------------------------------------- queues

    def delete_queue(self, queue: str) -> int:
        """There is no such queue, and it has no bindings. Returns how many messages it had."""
        is_temporary = self.temporary.pop(queue, None) is not None
        self.ttls.pop(queue, None)
        self.own_bindings.pop(queue, None)
        self._alive.pop(queue, None)
        return self.bindings.delete_queue(queue, is_temporary)

    def _refresh(self) -> None:
        """Says of each temporary queue that it has an owner. The puller calls it."""
        due = self._refreshed + min((max(1.0, seconds / 3) for seconds in self.temporary.values()), default=0.0)
        if monotonic() < due or self._puller is None:
            return
        self._refreshed = monotonic()
        for queue, seconds in list(self.temporary.items()):
            own = list(self.own_bindings.get(queue, ()))
            self._alive[queue], commands = self.bindings.refreshed(queue, seconds, own, self._alive.get(queue))
            self._puller.post(commands)

    # ------------------------------------------------------------------------------------------------------ messages

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """The event loop delivers the messages. The descriptor is readable as long as there are some."""
        self._loop = loop
        loop.add_reader(self.puller.fileno(), self._on_ready)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """The event loop delivers no more messages."""
        self._loop = None
        if self.has_puller:
            loop.remove_reader(self.puller.fileno())

    def _on_ready(self) -> None:
        for _ in range(TURN_COUNT):
            if not self.has_puller or not self._deliver_next():
                return

    def _deliver_next(self) -> bool:
        """Delivers a message. False: there is none."""
        while self.has_puller:
            found = self.puller.take()
            if found is None:
                return False
            owner, lent = found
            for channel in self.channels:
                if channel.channel_id == owner:
                    if channel.deliver(lent):
                        return True
                    break
            else:
                self.puller.settle(lent.lend_key, _queues.not_begun(lent))
        return False

    def drain_events(self, connection: Any, timeout: Optional[float] = None) -> None:
        """Waits for a message, and delivers it. Raises ``socket.timeout`` if there is none in time."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self._deliver_next():
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                raise socket.timeout(f"no message within {timeout:g} s")
            self.puller.wait(left)


__all__ = ["Transport"]
