"""Elements of a table by key, for tasks of asyncio. ``spindle/_elements.py`` is for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from .._kv import Key, TableCommands

if TYPE_CHECKING:
    from .client import Client

K = TypeVar("K")
V = TypeVar("V")


class Elements(Generic[K, V]):
    """What is an operator for threads.

    >>> birds = await client.table("birds", create=True, codec=spindle.TEXT)
    >>> await birds.set("heron", "grey")
    >>> await birds.item("heron"), await birds.has("heron"), await birds.size()
    ('grey', True, 1)
    >>> await birds.item("stork")
    Traceback (most recent call last):
    spindle.errors.KeyNotFound: KEY NOT FOUND (table b'birds', key b'stork')
    """

    def __init__(self, client: "Client", commands: "TableCommands[K, V]") -> None:
        self._client = client
        self._commands = commands

    async def item(self, key: Key) -> V:
        """The value, or :class:`spindle.KeyNotFound`. For threads this is ``table[key]``."""
        return await self._client._run(self._commands.item(key))

    async def has(self, key: Key) -> bool:
        """Whether there is such an element. For threads this is ``key in table``."""
        return await self._client._run(self._commands.has(key))

    async def size(self) -> int:
        """The number of elements. The server lists all its tables for it: do not ask all the time. For threads this is
        ``len(table)``.
        """
        return await self._client._run(self._commands.size())


__all__ = ["Elements"]
