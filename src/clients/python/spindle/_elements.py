"""Elements of a table by key, for threads. ``spindle/aio/_elements.py`` is for tasks of asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._kv import Key, TableCommands

if TYPE_CHECKING:
    from .client import Client

K = TypeVar("K")
V = TypeVar("V")


class Elements(Generic[K, V]):
    """A table as a dictionary.

    >>> birds = client.table("birds", create=True, codec=spindle.TEXT)
    >>> birds["heron"] = "grey"
    >>> birds["heron"], "heron" in birds, len(birds)
    ('grey', True, 1)
    >>> del birds["heron"]
    >>> birds["heron"]
    Traceback (most recent call last):
    spindle.errors.KeyNotFound: KEY NOT FOUND (table b'birds', key b'heron')
    """

    def __init__(self, client: "Client", commands: "TableCommands[K, V]") -> None:
        self._client = client
        self._commands = commands

    def __getitem__(self, key: Key) -> V:
        return self._client._run(self._commands.item(key))

    def __setitem__(self, key: Key, value: Any) -> None:
        self._client._run(self._commands.set(key, value, None))

    def __delitem__(self, key: Key) -> None:
        self._client._run(self._commands.remove(key))

    def __contains__(self, key: Key) -> bool:
        return self._client._run(self._commands.has(key))

    def __len__(self) -> int:
        """The number of elements. The server lists all its tables for it: do not ask all the time."""
        return self._client._run(self._commands.size())

    def __bool__(self) -> bool:
        return True


__all__ = ["Elements"]
