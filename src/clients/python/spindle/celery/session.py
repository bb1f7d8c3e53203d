"""The requests of a connection of kombu that wait for their reply. Threads share them, and a fork makes them anew."""

from __future__ import annotations

import os
from typing import List, Sequence, TypeVar

from .. import _queues
from .._driver import Driver
from .._kv import Command
from .._link import Security
from ..errors import ConnectionRefused

T = TypeVar("T")


class Session:
    """A connection to the server of tasks. It is made when it is used."""

    def __init__(self, endpoint: str, security: Security, timeout: float) -> None:
        self.endpoint = endpoint
        self.security = security
        self.timeout = timeout
        self._begin()

    def _begin(self) -> None:
        self._driver = Driver(self.endpoint, self.security)
        self._process = os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether this process has made it. That of a parent is the parent's."""
        return self._process == os.getpid()

    def run(self, command: Command[T], seconds: float = 0) -> T:
        """The result of a request, which may take so many seconds more than usual."""
        if not self.is_own:
            self._begin()
        try:
            reply = self._driver.call(command[0], self.timeout + seconds)
        except ConnectionRefused as error:
            raise ConnectionRefused(f"{error} It needs --tasks.") from None
        return _queues.decoded(command, reply, self.endpoint)

    def run_many(self, commands: Sequence[Command[T]]) -> List[T]:
        """The results of requests that are sent together, in their order."""
        if not self.is_own:
            self._begin()
        replies = self._driver.call_many([request for request, _ in commands], self.timeout)
        return [_queues.decoded(command, reply, self.endpoint) for command, reply in zip(commands, replies)]

    def close(self) -> None:
        """Ends the connection."""
        if self.is_own:
            self._driver.close()
