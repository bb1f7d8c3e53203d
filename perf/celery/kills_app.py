"""The application of ``kills.py``. Each task writes a line when it has run."""

import os
import random
import time

import celery

import spindle.celery  # noqa: F401

app = celery.Celery("kills", broker=os.environ["KILLS_BROKER"], backend=os.environ["KILLS_BACKEND"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_publish_retry_policy={"max_retries": None, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.5},
    worker_prefetch_multiplier=4,
    broker_transport_options={"lease": float(os.environ.get("KILLS_LEASE", "3"))},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    worker_hijack_root_logger=False,
)


def note(name):
    """A line of the file that all processes append to."""
    descriptor = os.open(os.environ["KILLS_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{name}\n".encode())
    os.close(descriptor)


@app.task(name="work")
def work(name):
    time.sleep(random.uniform(0, 0.05))
    note(name)
    return name


@app.task(name="again", bind=True, max_retries=None)
def again(self, name):
    """Fails at its first two tries."""
    if self.request.retries < 2:
        raise self.retry(countdown=random.uniform(0, 0.3))
    note(name)


@app.task(name="body")
def body(parts, name):
    note(f"{name}" if len(set(parts)) == 4 else f"wrong {name} {parts}")
