"""The client of Spindle, a server of tables, tasks and jobs.

=================================  =====================================================================
:class:`Client`                    a connection, shared by threads. ``spindle.aio.Client`` is for asyncio
:class:`Table`                     keys with values, versions and TTLs; locks, caches and rate limits
:class:`Mirror`                    an exact copy of a table in this process, which follows each change
:class:`Queue`                     a durable queue of tasks by name, with delays, tries, priorities and groups
:class:`Tasks`, :class:`Jobs`      durable work: the tasks of the queue ``default``, and jobs over TCP
:class:`Worker`                    a function that is called with each task or job
:class:`Notifications`             the changes of a table, by key
:class:`Events`                    numbered events
``spindle.celery``                 a broker and a result backend of Celery
=================================  =====================================================================

>>> client.table("birds", create=True).set("heron", "grey")
"""

from . import aio, codecs, errors
from ._feed import Position
from ._kv import Entry, RateLimit
from ._link import Curve
from ._queue_records import BrowsedTask, QueueCounts, Rate
from .client import Client
from .codecs import BYTES, JSON, PICKLE, TEXT, Codec
from .errors import *  # noqa: F403
from .events import Event, Events
from .jobs import Job, Jobs
from .lock import Lock
from .mirror import Mirror, MirrorChange
from .notifications import Notification, Notifications
from .queue import Queue, QueuedTask
from .table import Table
from .tasks import Task, Tasks
from .worker import Worker

__version__ = "0.1.0"

__all__ = [
    "BYTES",
    "BrowsedTask",
    "JSON",
    "PICKLE",
    "TEXT",
    "Client",
    "Codec",
    "Curve",
    "Entry",
    "Event",
    "Events",
    "Job",
    "Jobs",
    "Lock",
    "Mirror",
    "MirrorChange",
    "Notification",
    "Notifications",
    "Position",
    "Queue",
    "QueueCounts",
    "QueuedTask",
    "Rate",
    "RateLimit",
    "Table",
    "Task",
    "Tasks",
    "Worker",
    "aio",
    *errors.__all__,
]
