"""The client of Spindle, a server of tables, tasks and jobs.

=================================  =====================================================================
:class:`Client`                    a connection, shared by threads. ``spindle.aio.Client`` is for asyncio
:class:`Table`                     keys with values, versions and TTLs; locks, caches and rate limits
:class:`Mirror`                    an exact copy of a table in this process, which follows each change
=================================  =====================================================================

>>> client.table("birds", create=True).set("heron", "grey")
"""

from . import aio, codecs, errors
from ._feed import Position
from ._kv import Entry
from ._link import Curve
from .client import Client
from .codecs import BYTES, JSON, PICKLE, TEXT, Codec
from .errors import *  # noqa: F403
from .mirror import Mirror, MirrorChange
from .table import Lock, Table

__version__ = "0.1.0"

__all__ = [
    "BYTES",
    "JSON",
    "PICKLE",
    "TEXT",
    "Client",
    "Codec",
    "Curve",
    "Entry",
    "Lock",
    "Mirror",
    "MirrorChange",
    "Position",
    "Table",
    "aio",
    *errors.__all__,
]
