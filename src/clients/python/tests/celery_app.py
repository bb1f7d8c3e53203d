"""The tasks of the tests of Celery. Each notes its runs in a table."""

import os
import time

import celery

import spindle
import spindle.celery  # noqa: F401  (registers the transport and the backend)

app = celery.Celery("tests", broker=os.environ.get("TEST_BROKER"), backend=os.environ.get("TEST_BACKEND"))
app.conf.update(
    broker_transport_options={"lease": float(os.environ.get("TEST_LEASE", "2"))},
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
)
_clients = {}


def notes():
    """The table of the runs, by a connection of this process."""
    if os.getpid() not in _clients:
        client = spindle.Client(os.environ["TEST_KV"], timeout=30)
        _clients[os.getpid()] = client.table("notes", create=True)
    return _clients[os.getpid()]


def note(name):
    """A task has run. Returns how often by now."""
    return notes().incr(name)


def wait_until(name, count=1):
    """Waits until a note is there so often."""
    while int(notes().get(name) or 0) < count:
        time.sleep(0.02)


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task
def run(name):
    return note(f"run-{name}")


@app.task
def held(name):
    """Runs until it is released."""
    count = note(f"begun-{name}")
    wait_until(f"release-{name}")
    note(f"ended-{name}")
    return count


@app.task
def die_once(name):
    """Kills its process at the first try."""
    count = note(f"tries-{name}")
    if count == 1:
        os.kill(os.getpid(), 9)
    return count


@app.task
def refuse(reason, requeue=False):
    if requeue and note(f"refused-{reason}") > 1:
        return "accepted"
    raise celery.exceptions.Reject(reason, requeue=requeue)


@app.task
def fail(text):
    raise OSError(text)


@app.task(bind=True, max_retries=3)
def flaky(self, name):
    count = note(f"flaky-{name}")
    if count < 3:
        raise self.retry(countdown=0.1)
    return count
