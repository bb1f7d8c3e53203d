"""The clients for the tasks of asyncio. They have the methods of the clients for threads, with ``await``."""

from .client import Client
from .jobs import Job, Jobs
from .mirror import Mirror
from .table import Lock, Table
from .tasks import Task, Tasks
from .worker import Worker

__all__ = ["Client", "Job", "Jobs", "Lock", "Mirror", "Table", "Task", "Tasks", "Worker"]
