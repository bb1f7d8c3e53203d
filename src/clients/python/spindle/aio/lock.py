"""A lock that all clients share, for tasks of asyncio."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Optional, Type

from .._flows import EXTENSIONS, LockState
from .._kv import seconds_of
from ..errors import Error, LockLost, Timeout
from ._concurrency import Event, Routine, Turn, to_its_end

if TYPE_CHECKING:
    from .client import Client


class Lock:
    """A lock, held or not. See :meth:`spindle.aio.Table.lock`.

    Its holder is one of the tasks of asyncio: if several share it, one has it and the others wait. The holder does not
    get it twice, and nobody else releases it while its holder runs. It may be acquired again after its release.

    ``version`` is a fencing token: it is larger than that of each earlier holder. What the lock protects can refuse a
    holder with a smaller one than it has seen.

    >>> locks = await client.table("locks", create=True)
    >>> lock = locks.lock("printer", ttl=10)
    >>> await lock.acquire(blocking=False), await lock.locked(), lock.is_lost, await lock.release()
    (True, True, False, None)
    """

    def __init__(self, client: "Client", state: LockState, timeout: Optional[float]) -> None:
        self._client = client
        self._state = state
        self._timeout = None if timeout is None else seconds_of(timeout, "a time-out")
        self._turn = Turn()
        # Of the present holder.
        self._is_held = False
        self._lost: Optional[LockLost] = None
        self._released = Event()
        self._extender: Optional[Routine] = None

    @property
    def version(self) -> int:
        """The fencing token."""
        return self._state.fence

    @property
    def is_lost(self) -> bool:
        """Whether another client may hold it although it was not released. It is true as soon as its TTL has ended
        without an extension, also while the server is away. If a late extension shows that nobody has taken it, it is
        false again.
        """
        return self._lost is not None or (self._is_held and monotonic() >= self._state.until)

    def __repr__(self) -> str:
        standing = "lost" if self.is_lost else "held" if self._is_held else "not held"
        return f"<lock {self._state.name!r} of table {self._state.commands.name!r}, {standing}>"

    async def locked(self) -> bool:
        """Whether any client holds it. This asks the server."""
        return await self._client._run(self._state.commands.has(self._state.name))

    async def acquire(self, blocking: bool = True, timeout: Optional[float] = None) -> bool:
        """Takes the lock. False: another one had it for ``timeout`` seconds, or at all if not ``blocking``. Without a
        time-out that of the lock counts.
        """
        if not blocking and timeout is not None:
            raise ValueError("a time-out is for an acquire that blocks")
        # After a fork, the holder may be a thread of the parent.
        self._client._check()
        if self._turn.is_mine():
            raise Error(f"{self!r} is held by its caller already, who would wait for itself")
        limit = 0.0 if not blocking else self._timeout if timeout is None else seconds_of(timeout, "a time-out")
        end = None if limit is None else monotonic() + limit
        if not await self._turn.take(limit):
            return False
        is_held = False
        try:
            left = None if end is None else max(0.0, end - monotonic())
            is_held = await self._client._flow(self._state.acquire(monotonic, left))
        finally:
            if not is_held:
                await self._give_up()
        if is_held:
            self._is_held, self._lost, self._released = True, None, Event()
            self._extender = Routine("spindle-lock", self._extend)
            self._extender.start()
        return is_held

    @to_its_end
    async def _give_up(self) -> None:
        try:
            await self._client._flow(self._state.give_up())
        except Error:
            # It ends with its TTL, or the next try finds its token.
            pass
        finally:
            self._turn.give()

    async def release(self) -> None:
        """Lets go of it. Raises :class:`spindle.LockLost` if it ended before."""
        if not self._turn.may_give():
            raise Error(f"{self!r} is not held by its caller")
        await self._end()

    @to_its_end
    async def _end(self) -> None:
        self._released.set()
        try:
            assert self._extender is not None
            await self._extender.stop()
            if self._lost is not None:
                raise self._lost
            await self._client._flow(self._state.release())
        except LockLost as error:
            self._lost = error
            raise
        finally:
            self._is_held = False
            self._turn.give()

    async def _extend(self) -> None:
        released = self._released
        while not await released.wait(self._state.ttl_seconds / EXTENSIONS):
            try:
                await self._client._flow(self._state.extend(monotonic))
            except LockLost as error:
                self._lost = error
                return
            except Error:
                # The server may be back in time.
                pass

    async def __aenter__(self) -> "Lock":
        if not await self.acquire():
            raise Timeout(f"another client holds the lock {self._state.name!r}")
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            await self.release()
        except Error:
            # The error of the body counts.
            if error is None:
                raise


__all__ = ["Lock"]
