"""The tasks of the tests of Celery. Each notes its runs in a table."""

import os
import time
from types import SimpleNamespace

import celery

import spindle
import spindle.celery  # noqa: F401  (registers the transport and the backend)

_clients = {}


def notes():
    """The table of the runs, by a connection of this process."""
    own = (os.getpid(), os.environ["TEST_KV"])
    if own not in _clients:
        client = spindle.Client(os.environ["TEST_KV"], timeout=30)
        try:
            client.create_table("notes", durability="always")
        except spindle.TableExists:
            pass
        _clients[own] = client.table("notes")
    return _clients[own]


def note(name):
    """A task has run. Returns how often by now."""
    return notes().incr(name)


def wait_until(name, count=1):
    """Waits until a note is there so often."""
    while True:
        try:
            if int(notes().get(name) or 0) >= count:
                return
        except (spindle.Disconnected, spindle.Timeout):
            # The server starts again.
            pass
        time.sleep(0.02)


def build(environment):
    """The application with its tasks. Its broker and results are those of the environment."""
    app = celery.Celery(
        "tests", broker=environment["TEST_BROKER"], backend=environment["TEST_BACKEND"], set_as_current=False
    )
    app.conf.update(
        broker_transport_options={"lease": float(environment.get("TEST_LEASE", "2"))},
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        worker_prefetch_multiplier=1,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
    )

    @app.task(name="add")
    def add(x, y):
        return x + y

    @app.task(name="total")
    def total(numbers):
        return sum(numbers)

    @app.task(name="run")
    def run(name):
        return note(f"run-{name}")

    @app.task(name="held")
    def held(name):
        """Runs until it is released."""
        count = note(f"begun-{name}")
        wait_until(f"release-{name}")
        note(f"ended-{name}")
        return count

    @app.task(name="die_once")
    def die_once(name):
        """Kills its process at the first try."""
        count = note(f"tries-{name}")
        if count == 1:
            os.kill(os.getpid(), 9)
        return count

    @app.task(name="refuse")
    def refuse(reason, requeue=False):
        if requeue and note(f"refused-{reason}") > 1:
            return "accepted"
        raise celery.exceptions.Reject(reason, requeue=requeue)

    @app.task(name="fail")
    def fail(text):
        raise OSError(text)

    @app.task(name="flaky", bind=True, max_retries=3)
    def flaky(self, name):
        count = note(f"flaky-{name}")
        if count < 3:
            raise self.retry(countdown=0.1)
        return count

    known = [add, total, run, held, die_once, refuse, fail, flaky]
    return SimpleNamespace(app=app, **{task.name: task for task in known})


if "TEST_BROKER" in os.environ:
    app = build(os.environ).app
