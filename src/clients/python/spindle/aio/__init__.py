"""The clients for the tasks of asyncio. They have the methods of the clients for threads, with ``await``."""

from .client import Client
from .mirror import Mirror
from .table import Lock, Table

__all__ = ["Client", "Lock", "Mirror", "Table"]
