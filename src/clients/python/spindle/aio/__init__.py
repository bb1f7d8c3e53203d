"""The clients for tasks of asyncio. They have the methods of the clients for threads, with ``await``. A client belongs
to the event loop in which it was used first.

>>> async def main():
...     async with spindle.aio.Client(endpoint) as client:
...         hits = await client.table("visits", create=True)
...         return sorted(await asyncio.gather(*(hits.incr("page") for _ in range(3))))
>>> asyncio.run(main())
[1, 2, 3]

Examples of the classes are lines of ``python -m asyncio``, where ``await`` needs no function around it.
"""

from .client import Client
from .events import Events
from .jobs import Job, Jobs
from .lock import Lock
from .mirror import Mirror
from .notifications import Notifications
from .queue import Queue, QueuedTask
from .table import Table
from .tasks import Task, Tasks
from .worker import Worker

__all__ = [
    "Client",
    "Events",
    "Job",
    "Jobs",
    "Lock",
    "Mirror",
    "Notifications",
    "Queue",
    "QueuedTask",
    "Table",
    "Task",
    "Tasks",
    "Worker",
]
