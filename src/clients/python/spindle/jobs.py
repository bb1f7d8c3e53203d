# Generated from aio/jobs.py by "python unasync.py". Change that file, not this one.
"""A queue of jobs, for threads."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Callable, Generic, List, Optional, TypeVar, overload

from . import _jobs
from ._flows import pauses_of
from ._kv import seconds_of
from .codecs import Codec
from .errors import LeaseLost
from ._concurrency import Event, sleep
from .worker import Worker

if TYPE_CHECKING:
    from .client import Client

V = TypeVar("V")

# The pauses between two looks at an empty queue: at first, and at most.
POLL_PAUSES = (0.005, 0.25)


class Job(Generic[V]):
    """A job that was handed out. It is handed out again, in its place, when the server's ``--lease`` ends before it is
    acknowledged. The protocol has no extension.
    """

    def __init__(self, jobs: "Jobs[V]", raw: _jobs.RawJob) -> None:
        self._jobs = jobs
        self._codec = jobs._codec
        self._data = raw.data
        self.id = raw.id

    @property
    def data(self) -> V:
        """The data."""
        return self._codec.decode(self._data)

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def done(self) -> None:
        """The job is done and gone. Raises :class:`spindle.LeaseLost` if its lease has ended. The protocol has no
        token: if another worker has it by now, it is done all the same.
        """
        if not self._jobs.ack(self.id):
            raise LeaseLost(f"the lease of {self!r} has ended")


class Jobs(Generic[V]):
    """A first-in-first-out queue of jobs (``--jobs``). Make it with :meth:`spindle.Client.jobs`.

    >>> mail = client.jobs("mail", codec=spindle.JSON)
    >>> number = mail.add({"to": "ada"})
    >>> job = mail.lend()
    >>> job.id == number, job.data
    (True, {'to': 'ada'})
    >>> job.done()
    >>> mail.lend() is None, mail.has(number)
    (True, False)

    >>> sent = queue.Queue()
    >>> @mail.worker(slots=4)
    ... def send(job):
    ...     sent.put_nowait(job.data["to"])
    >>> _ = mail.add({"to": "bob"})
    >>> with send:                            # send.run() works until SIGTERM
    ...     sent.get()
    'bob'
    """

    def __init__(self, client: "Client", name: str, codec: Codec[V]) -> None:
        self._client = client
        self._codec = codec
        self._queue = _jobs.check_queue(name)
        self._place = client._jobs_place()
        self.name = name

    def __repr__(self) -> str:
        return f"<jobs {self.name!r} of {self._place}>"

    def _ask(self, request: bytes) -> bytes:
        """One connection for one request."""
        return self._place.check(self._client._exchange(self._place, request, "--jobs"))

    def add(self, data: Any) -> str:
        """Adds a job, which is on disk then. Returns its id."""
        return _jobs.id_of(self._ask(_jobs.add(self._queue, self._codec.encode(data))))

    def lend(self, wait: float = 0) -> Optional[Job[V]]:
        """The next job, hidden from others for the server's ``--lease``. None: there was none for ``wait`` seconds."""
        deadline = monotonic() + seconds_of(wait, "a wait")
        for pause in pauses_of(*POLL_PAUSES):
            raw = _jobs.job_of(self._ask(_jobs.get(self._queue)))
            if raw is not None:
                return Job(self, raw)
            left = deadline - monotonic()
            if left <= 0:
                return None
            sleep(min(pause, left))
        raise AssertionError("pauses do not end")

    def ack(self, job: str) -> bool:
        """The job of this id is done and gone. False: it was not lent out, or is none."""
        return _jobs.is_yes(self._ask(_jobs.ack(self._queue, job)))

    def has(self, job: str) -> bool:
        """Whether the job of this id is in the queue, lent out or not."""
        return _jobs.is_yes(self._ask(_jobs.has(self._queue, job)))

    @overload
    def worker(self, function: Callable[[Job[V]], Any]) -> Worker[Job[V]]: ...
    @overload
    def worker(self, *, slots: int = 1) -> Callable[[Callable[[Job[V]], Any]], Worker[Job[V]]]: ...
    def worker(self, function: Optional[Callable[[Job[V]], Any]] = None, *, slots: int = 1) -> Any:
        """A decorator, with or without parentheses, that makes a :class:`spindle.Worker` of a function of a
        job. ``slots`` of it run at a time. The job is acknowledged when the function returns. When it raises, the job's
        lease is left to end.
        """

        def decorate(function: Callable[[Job[V]], Any]) -> Worker[Job[V]]:
            return Worker(function, JobSource(self), slots)

        return decorate if function is None else decorate(function)


class JobSource(Generic[V]):
    """Where a worker's jobs come from: the queue, which is looked at again after a pause."""

    lease: Optional[float] = None

    def __init__(self, jobs: Jobs[V]) -> None:
        self.name = f"jobs {jobs.name}"
        self._jobs = jobs
        self._ended = Event()

    def begin(self) -> None:
        """There is nothing to begin."""

    def take(self) -> Optional[Job[V]]:
        """Looks for a job, until there is one or the worker ends."""
        for pause in pauses_of(*POLL_PAUSES):
            if self._ended.is_set():
                return None
            job = self._jobs.lend()
            if job is not None:
                return job
            self._ended.wait(pause)
        raise AssertionError("pauses do not end")

    def extend(self, items: List[Job[V]]) -> List[Job[V]]:
        """The protocol has no extension."""
        return []

    def done(self, item: Job[V]) -> bool:
        """Acknowledges."""
        return self._jobs.ack(item.id)

    def give_back(self, item: Job[V], pause: float, reason: str) -> bool:
        """Leaves the lease to end."""
        return True

    def id_of(self, item: Job[V]) -> str:
        """The id."""
        return item.id

    def end(self) -> None:
        """Ends the waiting."""
        self._ended.set()


__all__ = ["Job", "Jobs"]
